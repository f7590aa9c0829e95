"""Figures of matplotlib as SVG inside of a page: no inline styles, colours from the page, ids of their own."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

from ..runtime.forks import fork_safe_lock
from ..runtime.plotting import figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"

# Colours that figures name; the page says what they are in light and dark.
COLOURS = {
    "ink": "#0a0b0c",
    "muted": "#0a0b1c",
    "line": "#0a0b2c",
    "surface": "#0a0b3c",
    "accent": "#0a0b4c",
    "known": "#0a0b5c",
    "warn": "#0a0b6c",
}
INK, MUTED, LINE, SURFACE, ACCENT, KNOWN, WARN = COLOURS.values()

_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sopr_fast",
    "svg.image_inline": True,
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.formatter.use_locale": False,
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.major.width": 0.8,
    "ytick.major.size": 0.0,
    "path.simplify": True,
}

_lock = fork_safe_lock()  # settings of matplotlib are those of all threads


@dataclass
class StyleSheet:
    """Classes that stand for the inline styles of all figures of a page."""

    classes: dict[str, str] = field(default_factory=dict)
    figures: int = 0

    def name(self, declarations: str) -> str:
        """Return the class of some declarations."""
        return self.classes.setdefault(declarations, f"d{len(self.classes)}")

    def text(self) -> str:
        """Return the rules."""
        return "".join(f".{name}{{{declarations}}}\n" for declarations, name in self.classes.items())


@dataclass(frozen=True)
class Drawing:
    """An SVG element.

    Attributes:
        markup: The element.
        width: Its width in points.
    """

    markup: Markup
    width: float


@contextmanager
def settings() -> Iterator[None]:
    """Plot as reports do, whatever the user's settings of matplotlib are; one thread at a time.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure_class()
    import matplotlib

    with _lock, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's browser has other fonts
        warnings.filterwarnings("ignore", ".*constrained_layout not applied")
        yield


def draw(plot: Callable[[Figure], None], size: tuple[float, float], title: str, styles: StyleSheet) -> Drawing:
    """Draw a figure.

    Args:
        plot: Function that plots on a figure.
        size: Width and height in inches.
        title: What the figure is, for those who do not see it.
        styles: Style sheet of the page, which gets the figure's styles.
    """
    with settings():
        figure = figure_class()(figsize=size, dpi=72, layout="constrained")
        plot(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    styles.figures += 1
    return Drawing(Markup(_inline(buffer.getvalue(), f"f{styles.figures}", title, styles)), 72 * size[0])


def _inline(text: str, prefix: str, title: str, styles: StyleSheet) -> str:
    """Return matplotlib's SVG document as an element of a page."""
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in (f"{_SVG}style", f"{_SVG}metadata")]:
            parent.remove(child)
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text))
    referenced = {name for pair in used for name in pair if name}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if (link := element.attrib.pop(_LINK, None)) is not None:
            element.set("href", f"#{prefix}{link[1:]}")
        if (clip := element.get("clip-path")) is not None:
            element.set("clip-path", clip.replace("url(#", f"url(#{prefix}"))
        if (identity := element.attrib.pop("id", None)) in referenced:
            element.set("id", f"{prefix}{identity}")
        if (style := element.attrib.pop("style", None)) is not None and (declarations := _declarations(style)):
            element.set("class", styles.name(declarations))
    box = root.get("viewBox", "")
    root.attrib.clear()
    for name, value in (("viewBox", box), ("role", "img"), ("aria-labelledby", f"{prefix}title")):
        root.set(name, value)
    heading = ElementTree.Element("title", {"id": f"{prefix}title"})
    heading.text = title
    root.insert(0, heading)
    return ElementTree.tostring(root, encoding="unicode")


def _declarations(style: str) -> str:
    """Return the declarations of an inline style in the page's colours and font."""
    kept = []
    for part in style.split(";"):
        name, _, value = (text.strip() for text in part.partition(":"))
        if name == "font":
            kept.append(f"font-size:{re.search(r'[0-9.]+px', value).group()}")  # type: ignore[union-attr]
            if " bold" in f" {value}" or "700" in value.split("px")[0]:
                kept.append("font-weight:600")
        elif name and name not in ("font-family", "font-stretch", "font-style", "font-variant"):
            kept.append(f"{name}:{value}")
    text = ";".join(kept)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text
