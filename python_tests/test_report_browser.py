"""Reports in a real headless browser."""

import pytest
from browsers import browser
from reports import HOSTILE, RESULTS, few_replicates  # noqa: F401

from sopr_fast import report

WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 700}


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return paths of reports with hostile names, by kind."""
    folder = tmp_path_factory.mktemp("reports")
    for kind, make in RESULTS.items():
        report(make(hostile=True), folder / f"{kind}.html")
    return {kind: folder / f"{kind}.html" for kind in RESULTS}


@pytest.fixture
def show(chromium, pages):
    """Return a function that opens a report and collects what the browser complains of and asks for."""
    contexts = []

    def show(kind, *, viewport=WIDE, **options):
        context = chromium.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(pages[kind].as_uri())
        return page

    yield show
    for context in contexts:
        context.close()


@pytest.mark.parametrize("kind", RESULTS)
def test_nothing_is_asked_for_and_nothing_complained_of(show, pages, kind):
    page = show(kind)
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [pages[kind].as_uri()]
    assert page.evaluate("window.hacked") is None


def test_hostile_names_are_shown_as_they_are(show):
    page = show("selection")
    names = page.locator("section[aria-labelledby=order] tbody th").all_inner_texts()
    assert HOSTILE[0] in names
    assert HOSTILE[4] in names
    assert "a \\u202egnp.exe \\x1b[31m\\x00 \\u2066b" in names
    svg = page.locator("figure svg").first.text_content()
    assert "<scrip" in svg


def test_other_scripts_and_styles_are_blocked(show):
    page = show("ranking")
    page.evaluate(
        """() => { const s = document.createElement('script'); s.textContent = 'window.hacked = true';
                   document.body.append(s); document.body.setAttribute('style', 'display: none'); }"""
    )
    assert page.evaluate("window.hacked") is None
    assert page.locator("body").is_visible()
    assert any("Content Security Policy" in text for text in page.complaints)


def _column(page, place):
    return page.locator(f"section[aria-labelledby=order] tbody tr > :nth-child({place})").evaluate_all(
        "cells => cells.map(cell => cell.dataset.key === undefined ? null : Number(cell.dataset.key))"
    )


def test_columns_sort_by_click_and_by_keyboard(show):
    page = show("selection")
    head = page.locator("section[aria-labelledby=order] thead th").nth(4)
    button = head.locator("button")
    before = _column(page, 5)
    known = sorted(value for value in before if value is not None)
    missing = [None] * (len(before) - len(known))
    assert known and missing
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert _column(page, 5) == known[::-1] + missing
    button.focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert _column(page, 5) == known + missing
    page.keyboard.press("Space")
    assert _column(page, 5) == known[::-1] + missing
    names = page.locator("section[aria-labelledby=order] thead th").first
    names.locator("button").click()
    assert head.get_attribute("aria-sort") == "none"
    rows = page.locator("section[aria-labelledby=order] tbody tr").count()
    assert rows == len(before)


def test_every_button_and_link_is_reached_by_keyboard(show):
    page = show("ranking")
    controls = page.locator("a, button").count()
    reached = set()
    for _ in range(controls + page.locator("[tabindex='0']").count()):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('a, button')].indexOf(document.activeElement)"))
    assert reached >= set(range(controls))


def test_tables_are_whole_without_script(show):
    page = show("selection", java_script_enabled=False)
    assert page.locator("section[aria-labelledby=order] tbody tr").count() == 22
    assert page.locator("button").count() == 0
    assert page.locator("section[aria-labelledby=order] thead th").nth(2).inner_text() == "return"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", RESULTS)
def test_axe_finds_no_barrier(show, kind, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    found = axe.Axe().run(show(kind, color_scheme=scheme, bypass_csp=True))
    assert not found.response["violations"], found.generate_report()


def _colour(page, selector, name):
    return page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{name}")


def test_figures_follow_light_and_dark(show):
    light, dark = (show("selection", color_scheme=scheme) for scheme in ("light", "dark"))
    for selector, name in (("body", "backgroundColor"), ("body", "color"), ("figure svg text", "fill")):
        assert _colour(light, selector, name) != _colour(dark, selector, name)
    assert _colour(dark, "body", "backgroundColor") == "rgb(19, 23, 27)"
    for page in (light, dark):
        fills = page.locator("figure svg *").evaluate_all("all => all.map(e => getComputedStyle(e).fill)")
        assert not [fill for fill in fills if fill.startswith("rgb(10, 11")]  # a stand-in that no rule replaced


@pytest.mark.parametrize("kind", RESULTS)
def test_a_phone_needs_no_sideways_scrolling(show, kind):
    page = show(kind, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert min(page.locator("figure svg").evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")) > 250


def test_print_shows_dark_ink_and_whole_tables(show):
    page = show("selection", color_scheme="dark")
    page.emulate_media(media="print")
    assert _colour(page, "body", "color") == "rgb(0, 0, 0)"
    assert _colour(page, ".scroll", "overflowX") == "visible"
    assert not page.locator("nav").is_visible()
    assert page.pdf(format="A4").startswith(b"%PDF")
