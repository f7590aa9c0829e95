"""Refuse a site that loads anything from another place: scripts, styles, fonts, images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LOADED = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\s\"'>]+"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon))[^>]*\bhref=[\"']?(?:https?:)?//[^\s\"'>]+"
    r"|url\([\"']?(?:https?:)?//[^)]+"
)


def on_post_build(config: Any) -> None:
    """Look through the pages and styles of the built site."""
    for file in sorted(Path(config["site_dir"]).rglob("*")):
        if file.suffix in (".html", ".css") and (match := LOADED.search(file.read_text(encoding="utf-8"))):
            raise SystemExit(f"{file} loads something from another place: {match[0]}")
