"""Reports as files: structure, hostile names, reproducibility, and files that cannot be written."""

import base64
import hashlib
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from reports import HOSTILE, RESULTS, few_replicates, policies, ranking, selection  # noqa: F401
from selection_problems import DISCOUNT

from sopr_fast.estimators import Estimates
from sopr_fast.reports import evaluating, ranks, report
from sopr_fast.reports.map import classical_scaling
from sopr_fast.reports.page import _template
from sopr_fast.reports.svg import StyleSheet, draw
from sopr_fast.reports.text import Name, Numbers, chance, label, number, percent, spread

QUIET = {"folds": 4, "discount": DISCOUNT, "progress": False}
VOID = {"meta", "link", "br", "img", "input"}


class Document(HTMLParser):
    """Elements of a page with their attributes and text, checked for nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict, list[str]]] = []
        self.open: list[tuple[str, dict, list[str]]] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2].append(data)

    def all(self, *tags):
        return [element for element in self.elements if element[0] in tags]

    def text(self, tag):
        return ["".join(parts) for _, _, parts in self.all(tag)]


@pytest.fixture(scope="module")
def results():
    return {(kind, hostile): make(hostile=hostile) for kind, make in RESULTS.items() for hostile in (False, True)}


@pytest.fixture(scope="module")
def pages(results, tmp_path_factory):
    """Return the text of every report by kind and hostility."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for key, result in results.items():
        path = folder / f"{key[0]}{key[1]}.html"
        report(result, path, command="sopr-fast select --policies '<b>'")
        found[key] = path.read_text(encoding="utf-8")
    return found


KINDS = [(kind, hostile) for kind in RESULTS for hostile in (False, True)]


@pytest.mark.parametrize("key", KINDS)
def test_pages_are_well_formed_and_ordered(pages, key):
    page = Document(pages[key])
    levels = [int(tag[1]) for tag, _, _ in page.all("h1", "h2", "h3")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.all("html")[0][1]["lang"] == "en"
    identities = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    for _, attributes, _ in page.all("a"):
        assert attributes["href"].removeprefix("#") in identities
    for _, attributes, _ in page.all("svg"):
        assert attributes["role"] == "img"
        assert attributes["aria-labelledby"] in identities
    for text in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', pages[key]):
        assert (text[0] or text[1]) in identities


@pytest.mark.parametrize("key", KINDS)
def test_tables_name_their_rows_and_columns(pages, key):
    page = Document(pages[key])
    assert page.all("table")
    for _, attributes, _ in page.all("th"):
        assert attributes["scope"] in ("row", "col")
    assert len(page.all("caption")) == len(page.all("table"))


@pytest.mark.parametrize("key", KINDS)
def test_the_policy_allows_the_page_its_own_style_and_script_alone(pages, key):
    page = Document(pages[key])
    [policy] = [a["content"] for _, a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        [text] = page.text(tag)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for _, attributes, _ in page.elements:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
    assert set(re.findall(r"https?://[^\"'< ]*", pages[key])) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("kind", RESULTS)
def test_hostile_names_stay_text(pages, kind):
    text = pages[kind, True]
    page = Document(text)
    assert len(page.all("script")) == 1 and not page.all("img", "b", "i")
    assert not [char for char in text if not char.isprintable() and char not in "\n\u00a0"]
    shown = "".join(page.text("body"))
    if kind != "evaluation":
        assert HOSTILE[0] in shown
        assert "a \\u202egnp.exe \\x1b[31m\\x00 \\u2066b" in shown
        assert "{{ 7 * 7 }}" in shown
    else:
        assert "<i>known</i>\\n\\u202e" in shown


@pytest.mark.parametrize("kind", RESULTS)
def test_tables_and_plots_escape_hostile_names(results, kind):
    result = results[kind, True]
    axes = result.plot()
    axes.figure.draw_without_rendering()  # names are no formulas
    labels = [label.get_text() for label in axes.get_yticklabels()]
    lines = result.table().split("\n")
    assert all(text.isprintable() for text in [*lines, *repr(result).split("\n"), axes.get_title(), *labels])
    assert not any(line.startswith("\\u202e") for line in lines)  # a line break in a name forges no row
    assert max(len(label) for label in labels) < 60
    if kind != "evaluation":
        assert any("a \\u202egnp.exe \\x1b[31m\\x00 \\u2066b" in line for line in lines)


def test_a_selection_tells_its_numbers(results, pages):
    selected, page = results["selection", False], Document(pages["selection", False])
    cells = "\n".join(page.text("table"))
    assert all(name in cells for name in selected.names)
    assert selected.verdict.text in "".join(page.text("header"))
    assert selected.verdict.reason in "".join(page.text("header"))


def test_a_measured_selection_has_a_report(tmp_path):
    selected = selection(incumbent=False)
    report(selected.update({selected.candidates[0]: 3.0}), tmp_path / "r.html")
    assert "measured" in Document((tmp_path / "r.html").read_text(encoding="utf-8")).text("main")[0]


def test_a_ranking_with_true_returns_prints_their_correlation(tmp_path):
    ranked = ranking()
    report(ranked, tmp_path / "r.html", returns=dict(zip(ranked.names, ranked.scores, strict=True)))
    page = Document((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "1.000" in "".join(page.text("header"))


def keys_of(blocks, caption):
    """Return what the rows of a table are sorted by, by the head of the column."""
    [table] = [block for block in blocks if getattr(block, "caption", "") == caption]
    return {column.head: [row[i].key for row in table.rows] for i, column in enumerate(table.columns)}


def test_a_ranking_s_tables_hold_its_numbers():
    ranked = ranking()
    order = np.argsort(-ranked.scores)
    wins = ranked.win_probability
    table = keys_of(ranks._wins(ranked), "How firm the order is")
    assert table["candidate"] == ranked.order and table["rank"] == [1, 2, 3, 4, 5, 6]
    next_ones = [wins[i, j] for i, j in pairwise(order)]
    np.testing.assert_array_equal(np.array(table["scores above the next"], float), [*next_ones, np.nan])
    first = [wins[order[0], i] for i in order[1:]]
    np.testing.assert_array_equal(np.array(table["the first scores above it"], float), [np.nan, *first])

    caption = "Candidates and the known policies nearest to them"
    table = keys_of(ranks._distances(ranked, {}, StyleSheet()), caption)
    nearest = ranked.training.distances[order].argmin(1)
    assert table["nearest known policy"] == [f"known <{i}>" for i in nearest]
    np.testing.assert_allclose(table["action distance"], ranked.training.distances[order].min(1))
    np.testing.assert_allclose(table["over the limit"], ranked.training.distances[order].min(1) / 9)


def test_places_are_1_for_the_largest_value():
    assert evaluating._places(np.array([2.0, 9.0, 2.0, 5.0])).tolist() == [3, 1, 4, 2]


def text_of(ranked, path, **options):
    """Return the words of the ranking's report."""
    report(ranked, path, **options)
    (text,) = Document(path.read_text(encoding="utf-8")).text("body")
    return " ".join(text.split())


def test_true_returns_of_candidates_in_training_are_not_called_unseen(tmp_path):
    ranked = ranking()
    returns = dict(zip(ranked.names, ranked.scores, strict=True))
    correlation = "The scores have a rank correlation of 1.000 with the true returns of these candidates"
    for in_training, unseen in (([False] * 6, True), ([False] * 5 + [True], False), (None, False)):
        text = text_of(replace(ranked, in_training=in_training), tmp_path / "r.html", returns=returns)
        assert f"{correlation}{', which the model has not seen' if unseen else ''}." in text


@pytest.mark.parametrize("bootstraps", [9, 0])
def test_a_report_of_estimates_tells_of_no_states_or_known_policies(bootstraps, tmp_path):
    values = np.array([1.0, 2.0, 3.0])
    noise = np.random.default_rng(0).normal(0, 0.1, (3, bootstraps))
    replicates = values[:, None] + noise if bootstraps else None
    estimates = Estimates(["a", "b", "c"], values, replicates=replicates, method="FQE")
    text = text_of(estimates.ranking(), tmp_path / "r.html", returns={"a": 1, "b": 2, "c": 3})
    for absent in ("draws of states", "known policies", "sopr_fast.rank", "not returns", "no returns", "has not seen"):
        assert absent not in text
    assert 'report again: ranking.report("report.html")' in text
    over = " over replicates (bootstraps or members of an ensemble)"
    for beginning in ("Probabilities", "standard errors", "with a probability of > 99 %"):
        assert (beginning + over in text) == bool(bootstraps)
    text = text_of(ranking(), tmp_path / "r.html")
    for present in (
        "over draws of states",
        "beside the scores of the known policies",
        "sopr_fast.rank(",
        "not returns",
    ):
        assert present in text


def test_a_ranking_says_how_much_of_the_log_each_candidate_covers(tmp_path):
    ranked = ranking()
    coverage = {name: 0.25 + 0.5 * i / len(ranked) for i, name in enumerate(ranked.names)}
    report(ranked, tmp_path / "known.html", coverage=coverage)
    report(ranked, tmp_path / "unknown.html")
    known, unknown = ((tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("known", "unknown"))
    assert "covered by the log" in known and "25\u00a0%" in known
    assert "covered by the log" not in unknown and "rank with --log FILE" in unknown


@pytest.mark.parametrize("count", [1, 2])
def test_few_candidates_have_a_report(tmp_path, count):
    report(replace(ranking(count=count, known=2), distance_limit=1e9), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert Document(text).all("table")
    assert ("is the only candidate" in text, "highest score of 2 candidates" in text) == (count == 1, count == 2)


@pytest.mark.parametrize("kind", RESULTS)
def test_equal_results_give_equal_bytes(results, pages, kind, tmp_path):
    report(results[kind, False], tmp_path / "r.html", command="sopr-fast select --policies '<b>'")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == pages[kind, False]


def test_a_date_is_printed_if_given(tmp_path):
    report(ranking(), tmp_path / "r.html", date="1 May 2030")
    assert "Ranking of policies · 1 May 2030" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_figures_of_several_threads_are_those_of_one():
    import matplotlib

    drawing = []

    def plot(figure):
        drawing.append(figure)
        figure.add_subplot().plot([0, 1])
        assert drawing == [figure]
        drawing.clear()

    def text(_):
        styles = StyleSheet()
        return draw(plot, (2, 2), "a line", styles).markup, styles.text()

    before, interval = dict(matplotlib.rcParams), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(text, range(8)))) == 1
    finally:
        sys.setswitchinterval(interval)
    assert dict(matplotlib.rcParams) == before


def test_a_user_s_settings_of_matplotlib_change_nothing(results, tmp_path):
    import matplotlib

    report(results["ranking", False], tmp_path / "a")
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": True, "text.usetex": True}):
        report(results["ranking", False], tmp_path / "b")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_hundred_policies_take_less_than_two_megabytes(tmp_path):
    report(ranking(count=60, known=40), tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 2e6


@pytest.mark.parametrize("place", ["missing/report.html", ""])
def test_a_report_that_cannot_be_written_is_refused(results, tmp_path, place):
    with pytest.raises(OSError, match="cannot write"):
        report(results["ranking", False], tmp_path / place)
    assert not list(tmp_path.iterdir())


def test_a_report_without_matplotlib_names_the_extra(results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"a report needs matplotlib: pip install 'sopr_fast\[plot\]'"):
        report(results["ranking", False], tmp_path / "r.html")


def _luminance(colour: str) -> float:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_text_stands_out_in_light_and_dark():
    style = _template("style.css")
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(themes) == 3
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", theme))
        for name in ("ink", "muted", "accent", "known", "warn", "good", "bad"):
            for ground in ("surface", "raised"):
                light, dark = sorted((_luminance(colours[name]), _luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


def test_numbers_have_the_decimals_that_tell_them_apart():
    assert Numbers([0.0, 6000.0])(-1234.5) == "−1,234"
    assert Numbers([0.1, 0.2])(0.1234) == "0.123"
    assert number(float("nan")) == "–"
    assert number(-0.001) == "0.00"
    assert [percent(x).replace("\u00a0", " ") for x in (0, 0.001, 0.256, 0.999, 1)] == [
        "0 %", "< 1 %", "26 %", "> 99 %", "100 %",
    ]  # fmt: skip
    assert chance(1.0) == percent(0.999)
    shown = [spread(x, Numbers([0.0, 1.0])).replace("\u00a0", " ") for x in (0.0, 0.004, 0.006, float("nan"))]
    assert shown == ["± 0.00", "± < 0.01", "± 0.01", "–"]
    assert label("runs/experiment-17/best_model", 15) == "runs/ex…t_model"
    assert Name("a<b").__html__() == "<bdi>a&lt;b</bdi>"


def test_the_map_keeps_the_distances_of_points_in_a_plane():
    points = np.random.default_rng(0).standard_normal((7, 2))
    distances = ((points[:, None] - points) ** 2).sum(2)
    places, shown = classical_scaling(distances)
    np.testing.assert_allclose(((places[:, None] - places) ** 2).sum(2), distances, atol=1e-9)
    assert shown == pytest.approx(1)
    assert classical_scaling(np.zeros((4, 4)))[1] == 1.0
