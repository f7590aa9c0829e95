"""Reports as files: structure, hostile names, numbers, reproducibility, and files that cannot be written."""

import base64
import hashlib
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
from support.reports import HOSTILE, METHODS, RESULTS, evaluation, ranking, selection

from sopr_fast import report
from sopr_fast.estimators import Estimates
from sopr_fast.reports import svg
from sopr_fast.results.numbers import chance, number

VOID = {"meta", "link", "br", "img", "input"}
OPTIONS = {"command": "sopr-fast select --policies '<b>'", "title": "pendulum.hdf5", "date": "1 May 2030"}
KINDS = [(kind, hostile) for kind in RESULTS for hostile in (False, True)]


class Document(HTMLParser):
    """Elements of a page with their attributes and text, checked for nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = text
        self.elements: list[tuple[str, dict, list[str]]] = []
        self.open: list[tuple[str, dict, list[str]]] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2].append(data.replace("\u00a0", " "))

    def all(self, *tags):
        return [element for element in self.elements if element[0] in tags]

    def text(self, tag):
        return ["".join(parts) for _, _, parts in self.all(tag)]


def read(result, path, **options):
    report(result, path, **options)
    return Document(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {
        (kind, hostile): read(RESULTS[kind](hostile=hostile), folder / f"{kind}{hostile}.html", **OPTIONS)
        for kind, hostile in KINDS
    }


def pictures(page: Document) -> list[str]:
    uris = [attributes["src"] for _, attributes, _ in page.all("img")]
    assert all(uri.startswith("data:image/svg+xml;base64,") for uri in uris)
    return [base64.b64decode(uri.partition(",")[2]).decode() for uri in uris]


@pytest.mark.parametrize("key", KINDS)
def test_pages_allow_only_their_own_style_and_images(pages, key):
    page = pages[key]
    [policy] = [a["content"] for _, a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    [style] = page.text("style")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; ")
    assert not [name for _, names, _ in page.elements for name in names if name == "style" or name.startswith("on")]
    assert "http" not in re.sub(r"data:[^\"]*|http-equiv", "", page.source)


@pytest.mark.parametrize("kind", RESULTS)
def test_hostile_names_stay_text(pages, kind):
    page = pages[kind, True]
    assert not page.all("script", "b", "i")
    assert not [char for char in page.source if not char.isprintable() and char not in "\n\u00a0"]
    assert not [svg for svg in pictures(page) if "<script" in svg or "<b>" in svg]
    shown = "".join(page.text("body"))
    names = METHODS[3:] if kind == "evaluation" else (HOSTILE[0], r"a \u202egnp.exe \x1b[31m\x00 \u2066b", HOSTILE[4])
    assert all(name in shown for name in names)


@pytest.mark.parametrize("kind", RESULTS)
def test_tables_and_plots_escape_hostile_names(kind):
    result = RESULTS[kind](hostile=True)
    axes = result.plot()
    axes.figure.draw_without_rendering()  # names are no formulas
    labels = [label.get_text() for label in axes.get_yticklabels()]
    lines = [*result.table().split("\n"), *repr(result).split("\n")]
    assert all(text.isprintable() for text in [*lines, axes.get_title(), *labels])
    assert not [line for line in lines if line.startswith("gnp.exe")]  # a line break in a name forges no row
    assert max(len(label) for label in labels) < 60
    assert max(map(len, lines)) <= 80 or kind != "ranking"  # sentences hold long names
    assert "<table" in (html := result._repr_html_()) and "<script>" not in html
    assert json.loads(result.to_json()).keys() == result.to_dict().keys()


@pytest.mark.parametrize("kind", RESULTS)
def test_equal_results_give_equal_bytes_whatever_the_user_s_settings_of_matplotlib(pages, kind, tmp_path):
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": True, "text.usetex": True}):
        report(RESULTS[kind](), tmp_path / "r.html", **OPTIONS)
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == pages[kind, False].source


def test_the_title_says_the_answer_the_log_and_the_date(pages, tmp_path):
    for kind, what in (("selection", "Selection of policies"), ("ranking", "Ranking of policies")):
        page = pages[kind, False]
        [verdict], [title] = page.text("h1"), page.text("title")
        assert title == f"{verdict} – {what} · pendulum.hdf5 · 1 May 2030"
    assert re.search(r" · \d{4}-\d\d-\d\d$", read(ranking(), tmp_path / "r.html").text("title")[0])


def cells(page):
    """Return the texts of the first table, row by row."""
    table = Document(re.search("<tbody>.*?</tbody>", page.source, re.DOTALL)[0])
    return np.reshape(["".join(parts) for _, _, parts in table.all("th", "td")], (len(table.all("tr")), -1)).tolist()


def test_a_selection_shows_its_numbers(pages):
    selected, page = selection(), pages["selection", False]
    assert page.text("h1") == [f"{selected.verdict.text}."] and selected.verdict.reason in page.text("header")[0]
    rows = cells(page)
    order = np.argsort(-selected.predicted)
    assert [row[0] for row in rows] == [selected.names[i] for i in order] == selected.to_pandas().index.tolist()
    assert " ".join(selected.columns()) == "policy return low high best known note distance copies Simulator"
    assert [row[4].strip() for row in rows] == [chance(selected.probability_best[i]) for i in order]
    assert number(selected.evidence["left out"]) in "".join(page.text("section"))
    assert "sopr-fast select --policies '<b>'" in page.text("code")[0]


def test_a_selection_of_costs_speaks_of_costs(tmp_path):
    text = "".join(read(replace(selection(incumbent=False), are_costs=True), tmp_path / "s.html").text("html"))
    assert "Predicted without their own costs" in text and "known returns" not in text


def test_few_policies_and_estimates_have_a_report(tmp_path):
    for count, verdict in ((1, "is the only candidate"), (2, "has the highest score of 2 candidates")):
        ranked = replace(ranking(count=count, known=2), distance_limit=1e9)
        estimates = Estimates(["a", "b"][:count], np.array([1.0, 2.0])[:count], method="FQE")
        assert all(verdict in read(result, tmp_path / "r.html").text("h1")[0] for result in (ranked, estimates))
    for known, count in ((0, 3), (1, 2), (3, 4), (6, 0)):
        page = read(selection(known=known, count=count, incumbent=known == 6), tmp_path / "r.html")
        assert len(page.all("tr")) > known + count
        assert ("unlike" in page.text("header")[0].lower()) == (known == 3)


def test_an_evaluation_sells_no_tie_as_a_win(pages, tmp_path):
    page = pages["evaluation", False]
    assert page.text("h1") == [
        "Best on a new group of policies: SOPR (rank correlation 1.00; Simulator may be as good)."
    ]
    assert "FQE was dropped: it diverged" in "".join(page.text("section"))
    rows = cells(page)
    means = evaluation().measures
    assert {row[0]: row[1].split()[0] for row in rows} == {name: number(means[name]["spearman"][0]) for name in METHODS}
    few = replace(evaluation(), folds={str(i): np.array([4 + i]) for i in range(2)})
    title = read(few, tmp_path / "r.html").text("h1")
    assert title == ["These policies are too few to choose the best method."]


def test_a_ranking_shows_its_numbers(pages):
    ranked = ranking()
    rows = cells(pages["ranking", False])
    assert [row[1] for row in rows] == ranked.order and [row[0] for row in rows] == list("123456")
    assert [row[3] == "foreign" for row in rows] == ranked.foreign[ranked.places].tolist()
    evidence = "".join(pages["ranking", False].text("section"))
    assert "rank correlation of 0.80" in evidence  # on validation policies, at the best step


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "Unknown distance"),
        ({"distances": np.full(6, np.nan)}, "Unknown distance to the training policies: "),
        ({"distance_limit": 1e9}, "the highest score of 6 candidates"),
        ({"history": None}, "keeps nothing of how its scores were made"),
        ({"subset_scores": None}, "Errors, if any, come from replicates"),
        ({"history": {"collapsed": True}}, "collapsed: this order means nothing"),
    ],
)
def test_a_ranking_says_what_limits_it(change, expected, tmp_path):
    ranked = replace(ranking(), **change)
    text = "".join(read(ranked, tmp_path / "r.html").text("body"))
    assert (expected in text) == bool(change)
    assert ("Unlike every known policy" in text) == any(ranked.foreign)


def test_pictures_of_several_threads_are_those_of_one():
    before, interval = dict(matplotlib.rcParams), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(4) as threads:
        plot = lambda _: svg.draw(lambda ax: ax.plot([0, 1]))  # noqa: E731
        assert len(set(threads.map(plot, range(8)))) == 1
    sys.setswitchinterval(interval)
    assert dict(matplotlib.rcParams) == before


def test_wrong_uses_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot write .*missing does not exist"):
        report(ranking(), tmp_path / "missing" / "r.html")
    with pytest.raises(TypeError, match="result must be what rank, .* or an estimator returned, got dict"):
        report({}, ranking())  # in the wrong order
