"""Descriptions of logs."""

import numpy as np
import pytest
from test_data import write_hdf5

import sopr_fast.inputs.logs
from sopr_fast.cli import main as cli
from sopr_fast.inputs.logs import describe


def arrays():
    """Two episodes, of 2 and 3 steps, with returns 3 and 12; state column 1 is constant."""
    states = np.array([[0, 5], [1, 5], [2, 5], [3, 5], [4, 5]], np.float32)
    return {
        "observations": states,
        "actions": np.array([[0, 1, 2], [1, 1, 2], [1, 1, 2], [0, 1, 2], [1, 1, 2]], np.float32),
        "rewards": np.array([1, 2, 3, 4, 5], np.float32),
        "next_observations": states + 1,
        "terminals": np.array([0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 1]),
    }


def test_transitions_are_described_from_any_source(tmp_path):
    path = write_hdf5(tmp_path / "log.hdf5", arrays())
    described = describe(arrays())
    for source in (path, str(path), arrays(), sopr_fast.load_log(path)):
        assert str(describe(source)) == str(described)
    assert (described.rows, described.episodes) == (5, 2)
    assert str(described).splitlines() == [
        "rows: 5",
        "state columns: 2 (constant: 1)",
        "action columns: 3 (constant: 1, 2)",
        "episodes: 2 of 2 to 3 steps; 1 end in a terminal state, 1 are cut; decided by 'terminals' and 'timeouts'",
        "returns of episodes: 3 to 12, mean 7.5",
        "missing: log probs",
        "not for importance weighting by logged probabilities: no log probs",
        "column            low         high         mean          std",
        "state 0             0            4            2        1.414",
        "state 1             5            5            5            0",
        "action 0            0            1          0.6       0.4899",
        "action 1            1            1            1            0",
        "action 2            2            2            2            0",
        "reward              1            5            3        1.414",
    ]


def test_missing_parts_are_listed():
    short = {key: values for key, values in arrays().items() if key in ("observations", "actions", "rewards")}
    with pytest.warns(UserWarning, match="neither next states nor timeouts"):
        assert "missing: next states, terminals, timeouts, log probs\n" in str(describe(short))


@pytest.mark.parametrize("name", [None, "states.npy", "log.npz", "log.hdf5"])
def test_states_alone_are_described(tmp_path, name):
    states = arrays()["observations"]
    source = states if name is None else tmp_path / name
    if name == "states.npy":
        np.save(source, states)
    elif name == "log.npz":
        np.savez(source, obs=states)
    elif name == "log.hdf5":
        write_hdf5(source, {"observations": states})
    lines = str(describe(source)).splitlines()
    assert lines[:2] == ["rows: 5", "state columns: 2 (constant: 1)"]
    assert lines[2] == "only states are read, since it has no rewards"
    assert lines[3].startswith("missing: actions, rewards, next states")
    assert lines[4].startswith("not for FQE, SARSA critic, ") and lines[4].endswith(": no actions, rewards")
    assert [line.split()[:2] for line in lines[6:]] == [["column", "low"], ["state", "0"], ["state", "1"]]


def test_a_log_without_states_is_refused():
    with pytest.raises(ValueError, match="dataset: no array 'observations'"):
        describe({"actions": np.zeros((3, 1))})
    with pytest.raises(ValueError, match="states are empty"):
        describe(np.zeros((0, 2)))


def test_the_command_line_describes_logs(tmp_path, capsys):
    path = write_hdf5(tmp_path / "log.hdf5", arrays())
    cli.main(["info", str(path)])
    assert capsys.readouterr().out == f"{describe(path)}\n"
    csv = tmp_path / "other.csv"
    csv.write_text("x,speed,u\n1,2,3\n4,2,6\n")
    cli.main(["info", str(csv), "--columns", "states=x,speed"])
    assert capsys.readouterr().out.startswith("rows: 2\nstate columns: 2 (constant: 1)\n")
    csv.unlink()
    np.save(tmp_path / "states.npy", arrays()["observations"])
    cli.main(["info", str(tmp_path)])
    assert capsys.readouterr().out.startswith("rows: 5\nstate columns: 2 (constant: 1)\n")
