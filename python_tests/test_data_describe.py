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


def test_transitions_are_described_from_any_source(tmp_path, capsys):
    path = write_hdf5(tmp_path / "log.hdf5", arrays())
    described = describe(arrays())
    for source in (path, str(path), arrays(), sopr_fast.load_log(path)):
        assert describe(source) == described
    cli.main(["info", str(path)])
    assert capsys.readouterr().out == f"{described}\n"
    assert [line.split() for line in described.splitlines()] == [
        line.split()
        for line in (
            "rows: 5",
            "state columns: 2 (constant: 1)",
            "action columns: 3 (constant: 1, 2)",
            "episodes: 2 of 2 to 3 steps; 1 end in a terminal state, 1 are cut; decided by 'terminals' and 'timeouts'",
            "returns of episodes: 3 to 12, mean 7.5",
            "low high mean std",
            "state 0 0 4 2 1.414",
            "state 1 5 5 5 0",
            "action 0 0 1 0.6 0.4899",
            "action 1 1 1 1 0",
            "action 2 2 2 2 0",
            "reward 1 5 3 1.414",
        )
    ]


@pytest.mark.parametrize("name", ["", "states.npy", "log.npz", "log.hdf5", "x.csv"])
def test_states_alone_are_described(tmp_path, name, capsys):
    states, path = arrays()["observations"], tmp_path / name
    if name == "states.npy":
        np.save(path, states)
    elif name == "log.npz":
        np.savez(path, obs=states)
    elif name == "log.hdf5":
        write_hdf5(path, {"observations": states})
    elif name == "x.csv":
        np.savetxt(path, np.column_stack([states, states]), delimiter=",", header="x,speed,u,v", comments="")
    else:
        np.save(path / "states.npy", states)  # of a folder
    cli.main(["info", str(path), *(["--columns", "states=x,speed"] if name == "x.csv" else [])])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["rows: 5", "state columns: 2 (constant: 1)"]
    assert lines[2] == "only states are read, since it has no rewards" and lines[-1].split()[:2] == ["state", "1"]


def test_a_log_without_states_is_refused():
    with pytest.raises(ValueError, match="dataset: no array 'observations'"):
        describe({"actions": np.zeros((3, 1))})
    with pytest.raises(ValueError, match="states are empty"):
        describe(np.zeros((0, 2)))
