"""Studies of `bench.paper` on a small folder laid out like the stages' products, and the committed page of results."""

import csv
import dataclasses
import itertools
import json
import re
import shutil

import h5py
import numpy as np
import pytest
from paper.__main__ import main
from paper.studies import cells, command, frontier_choice, methods, page, plans, records, running, tables
from paper.studies.cells import Cell
from paper.studies.records import Mean, Record
from scipy.stats import spearmanr

import sopr_fast
import sopr_fast.inputs.logs
from sopr_fast.estimators import Simulator

TASK = "hopper-medium"
SPLIT = {"train": list(range(8)), "validation": [8, 9, 10], "test_set_2": [11, 12, 13, 14]}
SIZES = dataclasses.replace(plans.SIZES["smoke"], rows=(64,))
STUDY = {
    "sopr-t",
    "sopr-mlp",
    "nearest-policy",
    "sarsa-critic",
    "importance-weighting",
    "fqe",
    "simulator",
    "dual-dice",
    "select",
}


def write_policies(path, gains, returns, names=None):
    """Write linear actors with the given gains to one archive, and their returns beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weight = np.random.default_rng(7).standard_normal((3, 11)) / 4
    np.savez(
        path,
        **{"mean.weight": np.reshape(gains, (-1, 1, 1)) * weight, "mean.bias": np.zeros((len(gains), 3))},
    )
    with (path.parent / "returns.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["policy", "return_mean"], *zip(names or range(len(gains)), returns, strict=True)])


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    game, rng = folder / "smoke" / "hopper-v4", np.random.default_rng(0)
    gains = rng.permutation(np.linspace(0.1, 1.5, 15))
    write_policies(game / "policies.npz", gains, 100 * gains)
    (game / "split.json").write_text(json.dumps(SPLIT))
    write_policies(game / "test_set_1" / "medium" / "policies.npz", [0.25, 0.95, 1.35], [25.0, 95, 135])
    (game / "logs").mkdir()
    with h5py.File(game / "logs" / "medium.hdf5", "w") as file:
        states = rng.standard_normal((401, 11)).astype(np.float32)
        following = states[1:].copy()
        following[19::20] += 1  # the last state of an episode, which the next one does not begin with
        file["observations"], file["next_observations"] = states[:-1], following
        file["actions"] = np.clip(rng.standard_normal((400, 3)), -0.99, 0.99).astype(np.float32)
        file["rewards"] = rng.standard_normal(400).astype(np.float32)
        file["timeouts"] = np.arange(400) % 20 == 19
        file["terminals"] = np.zeros(400, bool)
        file["infos/action_log_probs"] = -np.ones(400, np.float32)
    foreign = folder / "foreign" / "hopper"
    for name, gain in (("x", 0.45), ("y", 1.15), ("z", 0.65)):
        write_policies(foreign / f"{name}.npz", [gain], [0])
    (foreign / "returns.csv").write_text("policy,return_mean\nx,45\ny,115\nz,65\n")
    return folder


def study(sets, results, *options):
    paths = ["--sets", sets, "--results", results, "--foreign", sets / "foreign", "--page", results / "page.md"]
    return main([*options, "--scale", "smoke", *map(str, paths)])


@pytest.fixture(scope="module")
def results(sets, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plans.SIZES, "smoke", SIZES)
        patch.setitem(methods._ESTIMATORS, "simulator", lambda: Simulator(hidden=(8,), horizon=3))
        assert study(sets, folder, "studies") == 0
        yield folder


def everything():
    return [cell for plan in plans.PLANS.values() for cell in plan("smoke")]


def test_every_cell_has_a_result_and_no_two_share_a_file(results):
    paths = {}
    for cell in everything():
        assert paths.setdefault(cell.path(results), cell) == cell
        result = cells.read(results / "smoke", cell)
        assert result.get("gap") in (None, "training collapsed")  # in three steps SOPR-MLP may
        assert "gap" in result or result["fit_seconds"]["cpu"] >= 0
    assert {cell.method for cell in everything()} >= STUDY


def test_measures_agree_with_scipy(results):
    for cell in plans.main("smoke"):
        for test in cells.read(results / "smoke", cell).get("tests", {}).values():
            expected = spearmanr(test["returns"], test["scores"]).statistic
            assert test["spearman"] == (None if np.isnan(expected) else pytest.approx(expected))
            best = max(test["returns"])
            chosen = test["returns"][int(np.argmax(test["scores"]))]
            if len(set(test["scores"])) == len(test["scores"]):
                assert test["regret@1"] == pytest.approx((best - chosen) / (best - min(test["returns"])))


def test_the_tables_say_what_the_files_say(results):
    text = (results / "page.md").read_text()
    table = text.split("**Test Set II**")[1].split("**")[0]
    for cell in plans.main("smoke"):
        result = cells.read(results / "smoke", cell)
        value = result.get("tests", {}).get("II", {}).get("spearman")
        row = next(line for line in table.splitlines() if line.startswith(f"| {methods.LABELS[cell.method]} "))
        shown = "—" if value is None else f"{value:.2f}".replace("-", "−")
        assert row.split(" | ")[1] == shown
    returns = result["tests"]["II"]["returns"]
    chance = np.mean([(max(returns) - one) / np.ptp(returns) for one in returns])
    assert f"| random order (expected) | 0.00 | {chance:.2f} |" in table
    with (results / "smoke" / "main.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert ["| " + " | ".join(row) + " |" in text for row in rows[1:4]] == [True] * 3


def test_finished_cells_are_kept_and_missing_ones_are_gaps(sets, results, tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(results, folder)
    monkeypatch.setattr(methods, "run", None)
    assert study(sets, folder, "main") == 0
    before = (folder / "smoke" / "main.md").read_text()
    cell = plans.main("smoke")[0]
    cell.path(folder / "smoke").unlink()
    assert study(sets, folder, "main", "--tables-only") == 0
    after = (folder / "smoke" / "main.md").read_text()
    assert "not run" not in before and re.search(rf"\| {cell.setting} \| 1 \| not run \|", after)


def test_a_missing_log_is_a_gap_until_it_is_there(sets, tmp_path, monkeypatch):
    cell = Cell("hopper-expert", "nearest-policy")
    options = {"sets": sets / "smoke", "results": tmp_path}
    running.run_cells([cell], **options)
    assert "missing input: hopper-v4" in cells.why_missing(tmp_path, cell)
    assert str(sets) not in cells.why_missing(tmp_path, cell)
    monkeypatch.setattr(methods, "read_task", lambda *_: None)
    monkeypatch.setattr(methods, "run", lambda *_: {"gap": "the method diverged"})
    running.run_cells([cell], **options)
    assert cells.why_missing(tmp_path, cell) == "the method diverged"


def test_a_finished_cell_ranks_test_sets_that_came_later(sets, tmp_path, monkeypatch, capsys):
    games, ranked = tmp_path / "sets", []
    shutil.copytree(sets / "smoke", games)
    options = {"sets": games, "results": tmp_path}
    cell, select = Cell(TASK, "nearest-policy"), Cell(TASK, "select", options={"methods": "nearest policy"})

    def run(cell, task):
        ranked.append((cell.method, sorted(task.tests)))
        return {"scores": {name: float(i) for i, name in enumerate(task.candidates)}}

    monkeypatch.setattr(methods, "run", run)
    running.run_cells([cell, select], foreign=sets / "foreign", **options)
    first = cells.read(tmp_path, cell)["tests"]
    competent = games / "hopper-v4" / "competent" / "medium" / "policies.npz"
    write_policies(competent, [0.3, 0.6, 0.9], [30.0, 60, 90])
    ranked.clear()
    for _ in range(2):  # the second time nothing is left to do
        running.run_cells([cell, select], foreign=sets / "foreign", **options)
    assert ranked == [("nearest-policy", ["competent"]), ("select", ["I", "II", "competent", "foreign"])]
    later = cells.read(tmp_path, cell)["tests"]
    assert later.pop("competent")["returns"] == [30, 60, 90] and later == first

    write_policies(competent, [0.3, 0.6, 0.9], [30.0, 61, 90])  # made again
    ranked.clear()
    running.run_cells([cell, select], **options)
    assert ranked == [("nearest-policy", ["competent"])]
    assert cells.read(tmp_path, cell)["tests"]["competent"]["returns"] == [30, 61, 90]
    assert "kept, since foreign would be lost" in capsys.readouterr().out


def test_a_test_set_on_which_a_finished_cell_fails_is_a_gap(sets, tmp_path, monkeypatch):
    cell = Cell(TASK, "nearest-policy")
    running.run_cells([cell], sets=sets / "smoke", results=tmp_path)
    monkeypatch.setattr(methods, "run", lambda *_: {"gap": "the method diverged"})
    for _ in range(2):
        running.run_cells([cell], sets=sets / "smoke", results=tmp_path, foreign=sets / "foreign")
    result = cells.read(tmp_path, cell)
    assert result["test_gaps"] == {"foreign": "the method diverged"} and sorted(result["tests"]) == ["I", "II"]
    rows = records.records(tmp_path, [cell])
    assert records.gaps(rows) == {("nearest-policy, test set foreign", "the method diverged"): 1}


def test_a_method_that_fails_is_a_gap(sets, tmp_path, monkeypatch):
    def fails(*_):
        raise ValueError("no")

    monkeypatch.setattr(methods, "run", fails)
    cell = Cell(TASK, "nearest-policy")
    running.run_cells([cell], sets=sets / "smoke", results=tmp_path)
    assert cells.why_missing(tmp_path, cell) == "ValueError: no"


def test_no_cell_begins_after_the_time_is_over(sets, tmp_path):
    cell = Cell(TASK, "nearest-policy")
    running.run_cells([cell], sets=sets / "smoke", results=tmp_path, seconds=-1)
    assert cells.why_missing(tmp_path, cell) == "not run"


def test_actions_of_other_authors_policies_are_clipped(sets, tmp_path):
    write_policies(tmp_path / "hopper" / "x.npz", [90.0], [0])
    with np.load(tmp_path / "hopper" / "x.npz") as archive:
        np.savez(tmp_path / "hopper" / "x.npz", **archive, squash="none", activation="identity")
    (tmp_path / "hopper" / "returns.csv").write_text("policy,return_mean\nx,40\n")
    task = methods.read_task(Cell(TASK, "fqe"), sets / "smoke", tmp_path)
    actions = task.tests["foreign"][0]["foreign-x"](np.random.default_rng(0).standard_normal((50, 11)))
    assert np.abs(actions).max() == 1 and (np.abs(actions) < 1).any()


def test_rows_are_whole_episodes_in_order_or_at_random(sets):
    log = sopr_fast.inputs.logs.load(sets / "smoke" / "hopper-v4" / "logs" / "medium.hdf5")
    in_order = methods.take_rows(log, Cell("hopper-medium-replay", "fqe", rows=50))
    np.testing.assert_array_equal(in_order.states, log.states[:50])
    assert in_order.episodes.tolist() == [0, 20, 40, 50]
    drawn = methods.take_rows(log, Cell(TASK, "fqe", rows=50))
    starts = [int(np.flatnonzero((log.states == state).all(1))[0]) for state in drawn.initial_states]
    assert all(start % 20 == 0 for start in starts) and starts != [0, 20, 40]
    np.testing.assert_array_equal(drawn.states[:20], log.states[starts[0] : starts[0] + 20])


def test_known_policies_are_chosen_by_return():
    returns = np.array([3.0, 1, 5, 2, 4])
    train = {name: name for name in "abcde"}, returns
    assert list(methods.choose_known(train, "poor-2")[0]) == ["b", "d"]
    assert methods.choose_known(train, "good-2")[1].tolist() == [5, 4]
    assert sorted(methods.choose_known(train, "mixed-3")[1]) == [1, 3, 5]


def record(task, seed, value, gap=""):
    return Record(task, "s", "sopr-t", seed, {} if gap else {"II": {"spearman": value}}, gap, None, {})


def test_means_are_over_tasks_of_means_over_seeds():
    rows = [record("a", 0, 0.5), record("a", 1, 0.7), record("b", 0, 0.0), record("c", 0, 0, gap="not run")]
    mean = records.mean(rows, records.measure("II", "spearman"))
    assert (mean.value, mean.tasks, mean.wanted) == (pytest.approx(0.3), 2, 3)
    assert mean.error == pytest.approx(0.3) and mean.deviation == pytest.approx(0.2 / 2**0.5)
    assert str(mean) == "0.30 ± 0.30 (2 of 3 tasks)"
    base = [record("a", 0, 0.4), record("b", 1, 0.4)]
    gain = records.difference(rows, base, records.measure("II", "spearman"))
    assert gain.by_task == {"a": pytest.approx(0.1)}


def test_differences_are_of_runs_that_ranked_the_same_policies():
    def ranked(task, spearman, returns):
        return Record(task, "s", "m", 0, {"II": {"spearman": spearman, "returns": returns}}, "", None, {})

    rows = [ranked("a", 0.9, [1.0, 2.0]), ranked("b", 0.8, [1.0, 2.0])]
    base = [ranked("a", 0.5, [1.0, 2.0]), ranked("b", 0.1, [1.0, 3.0])]
    gain = records.difference(rows, base, records.measure("II", "spearman"), "II")
    assert gain.by_task == {"a": pytest.approx(0.4)}


def test_the_cheapest_point_within_a_standard_error_is_chosen():
    first, second = frontier_choice.HALVES

    def point(name, seconds, gain, first_half=0.0, second_half=0.0, foreign=0.0, short=0, eligible=True):
        def gains(tasks, gain):
            values = {"I": 0.0, "II": gain, "foreign": foreign}
            return {test: Mean(value, 0.1, None, tasks - short, tasks, {}) for test, value in values.items()}

        none = Mean(None, None, None, 0, 0, {})
        return frontier_choice.Point(
            name=name,
            eligible=eligible,
            fit=Mean(seconds, 0, None, 1, 1, {}),
            rank=none,
            spearman={},
            regret_ii=none,
            spearman_gain={
                frontier_choice.ALL: gains(12, gain),
                first: gains(6, first_half),
                second: gains(6, second_half),
            },
            regret_gain={},
        )

    worse, fine, dear = point("a", 1, -0.2), point("b", 5, -0.05), point("c", 9, 0.1)
    assert frontier_choice.choose([dear, worse, fine]) is fine
    assert frontier_choice.choose([worse]) is None
    for why in {"short": 1}, {"foreign": -0.2}, {"eligible": False}:
        assert frontier_choice.choose([dear, fine, point("d", 1, 0.1, **why)]) is fine
    cheap = point("f", 1, -0.2, second_half=-0.2)
    said = frontier_choice.verdict([cheap, fine])
    assert "This is b. " in said
    assert f"On {first} alone f would be chosen, which fails the same test on {second}." in said
    assert f"On {second} alone b would be chosen, which passes the same test on {first}." in said
    assert "can be chosen when" in frontier_choice.verdict([worse])


def test_only_sizes_with_all_runs_may_become_the_default():
    def record(setting, *tests):
        return Record("hopper-expert", setting, "sopr-t", 0, {test: {"spearman": 0.5} for test in tests}, "", None, {})

    def eligible(**tests):
        groups = {setting: [record(setting, *tests.get(setting, frontier_choice.RANKED))] for setting in settings}
        return [point.eligible for point in frontier_choice.points(groups, [])]

    settings = ["sopr-t.1x1x1", "sopr-t.1x1x1.precision=bf16.training_precision=bf16", "sopr-t.9x9x9"]
    assert eligible() == [True, False, True, False]
    assert eligible(**{"sopr-t.1x1x1": ["I", "II"]}) == [False, False, True, False]
    assert eligible(**{"sopr-t.9x9x9": []}) == [False] * 4


def test_the_default_is_what_the_rule_chooses():
    rows = records.records(command.RESULTS / "small", plans.PLANS["frontier"]("small"))
    chosen = frontier_choice.choose(frontier_choice.points(tables.group_by_setting(rows), []))
    config = sopr_fast.Config()
    assert chosen.name == f"{config.subset_size}x{config.clusters}x{config.steps}"
    assert config == sopr_fast.Config.paper(
        subset_size=config.subset_size, clusters=config.clusters, subsets=config.steps, steps=config.steps
    )


def test_the_committed_page_says_what_the_files_say():
    source = tables.Source("small", command.RESULTS / "small", command.SETS / "small")
    assert page.text(source, command.PAGE.parent) == command.PAGE.read_text()
    for name in plans.PLANS:
        assert (source.results / f"{name}.md").read_text() == tables.markdown(tables.build(name, source)) + "\n"


def mean_regret(returns, scores, k):
    """Regret@k, averaged over every choice that equal scores leave open."""
    last = sorted(scores)[-k]
    sure = [value for value, score in zip(returns, scores, strict=True) if score > last]
    tied = [value for value, score in zip(returns, scores, strict=True) if score == last]
    chosen = [max(sure + list(some)) for some in itertools.combinations(tied, k - len(sure))]
    return (max(returns) - np.mean(chosen)) / (max(returns) - min(returns))


def test_every_committed_file_is_the_result_of_the_cell_that_names_it():
    paths = sorted((command.RESULTS / "small" / "cells").rglob("*.json"))
    assert paths
    for path in paths:
        result = json.loads(path.read_text())
        cell = Cell(**result["cell"])
        assert cell.path(command.RESULTS / "small") == path
        for test in result.get("tests", {}).values():
            expected = spearmanr(test["returns"], test["scores"]).statistic
            assert test["spearman"] == (None if np.isnan(expected) else pytest.approx(expected, abs=1e-6))
            for k in (1, 3):
                assert test[f"regret@{k}"] == pytest.approx(mean_regret(test["returns"], test["scores"], k), abs=1e-6)


def test_cells_are_plain_values():
    assert all(dataclasses.asdict(cell) == json.loads(json.dumps(dataclasses.asdict(cell))) for cell in everything())
