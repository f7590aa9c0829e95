"""Add pages that stand elsewhere in the repository: benchmarks, contributing, changelog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {"benchmarks.md": "bench/README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](../docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link the pages by their place in the site."""
    for name, source in PAGES.items():
        markdown = markdown.replace(f"../{source})", f"{name})")
    return markdown
