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
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for plot in sorted((ROOT / "bench").glob("*.png")):
        files.append(File.generated(config, plot.name, content=plot.read_bytes()))
    return files
