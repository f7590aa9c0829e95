"""Add pages that stand elsewhere in the repository: benchmarks, contributing, changelog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {"benchmarks.md": "bench/README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, and the plots of the benchmarks."""
    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](../docs/", "](")
        files.append(File.generated(config, name, content=text))
    for plot in sorted((ROOT / "bench").rglob("*.png")):
        place = plot.relative_to(ROOT if plot.parent.parent != ROOT else ROOT / "bench")
        files.append(File.generated(config, place.as_posix(), content=plot.read_bytes()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Find the plots of the benchmarks inside of the site."""
    return markdown.replace("](../bench/", "](bench/")
