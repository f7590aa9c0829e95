"""Reports in a real headless browser."""

import shutil
from pathlib import Path

import pytest
from support.needs import needs
from support.reports import RESULTS

from sopr_fast import report

WIDE, LAPTOP, PHONE = ({"width": w, "height": h} for w, h in ((1920, 1080), (1366, 768), (390, 844)))
COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium: the system's, else Playwright's own."""
    api = needs("playwright.sync_api")
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = [shutil.which(command) for command in COMMANDS]
        path = next((path for path in [*found, own] if path and Path(path).exists()), None)
        if path is None:
            pytest.skip("needs Chromium: apt-get install chromium, or playwright install chromium")
        try:
            # In a container or as root, Chromium has no sandbox of its own.
            opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"Chromium does not start: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    paths = {kind: folder / f"{kind}.html" for kind in RESULTS}
    for kind, make in RESULTS.items():
        report(make(hostile=True), paths[kind])
    return paths


@pytest.fixture
def show(chromium, pages):
    """Return a function that opens a report and collects what the browser complains of and asks for."""
    contexts = []

    def show(kind, *, viewport=LAPTOP, **options):
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
    assert page.locator("img").evaluate_all("all => all.every(image => image.complete && image.naturalWidth > 0)")


@pytest.mark.parametrize("kind", ["selection", "ranking"])
def test_the_first_screen_of_a_laptop_holds_verdict_and_figure(show, kind):
    page = show(kind)
    for place in ("h1", "header img", "header figcaption"):
        box = page.locator(place).first.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= LAPTOP["height"], place
    assert page.locator("header img").bounding_box()["x"] > page.locator("h1").bounding_box()["width"]


@pytest.mark.parametrize("kind", RESULTS)
def test_axe_finds_no_barrier(show, kind):
    axe = needs("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(show(kind, bypass_csp=True))
    assert not found.response["violations"], found.generate_report()


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("kind", RESULTS)
def test_no_page_needs_sideways_scrolling(show, kind, viewport):
    page = show(kind, viewport=viewport)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert min(page.locator("img").evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")) > 300
