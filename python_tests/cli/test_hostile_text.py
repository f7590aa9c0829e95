"""Paths, files and exceptions of policies with text that would move the cursor: errors and warnings escape it."""

import logging
import warnings

import numpy as np
import pytest
from support.problems import TINY, LinearPolicy, log, training_gains

import sopr_fast
from sopr_fast.reports import check_report
from sopr_fast.runtime import tensor_files as files
from sopr_fast.runtime.warn import warn

HOSTILE = "a\x1b[31m\x9b2J\u202egnp\u2066\u200b\r\n\tb"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / HOSTILE
    path.mkdir()
    return path


def damaged(folder, name, content=b"damaged"):
    path = folder / name
    path.write_bytes(content)
    return path


def fit(returns, **options):
    return sopr_fast.fit({"a": LinearPolicy(0.1), "b": LinearPolicy(0.2)}, log(), returns, config=TINY, **options)


ERRORS = {
    "load": lambda folder: sopr_fast.load(folder / "missing"),
    "rank": lambda folder: sopr_fast.rank({"a": LinearPolicy(1.0)}, log(), model=folder / "missing"),
    "save": lambda folder: files.save_tensors(folder, {}, "model", {}),
    "checkpoint": lambda folder: fit([1, 2], checkpoint=folder),
    "log": lambda folder: sopr_fast.load_log(damaged(folder, "log.npz")),
    "log of one array": lambda folder: sopr_fast.inputs.logs.describe(folder / "log.npy"),
    "states": lambda folder: sopr_fast.load_log(damaged(folder, "log.npy")),
    "log with hostile columns": lambda folder: sopr_fast.load_log({HOSTILE: np.ones((3, 2))}),
    "returns": lambda folder: fit(damaged(folder, "returns.json")),
    "policies": lambda folder: sopr_fast.load_policies(damaged(folder, "policy.pt")),
    "report": lambda folder: check_report(folder),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_hold_no_control_characters(name, folder):
    refused = OSError, TypeError, ValueError, RuntimeError
    with pytest.raises(refused) as error, warnings.catch_warnings(action="ignore"):
        ERRORS[name](folder)
    assert str(error.value).isprintable() and r"\x1b[31m" in str(error.value)


def test_warnings_and_logs_hold_no_control_characters(folder, caplog):
    with pytest.warns(UserWarning) as caught:
        warn(HOSTILE)
    assert str(caught[0].message).isprintable()
    with caplog.at_level(logging.DEBUG, "sopr_fast"), warnings.catch_warnings(record=True, action="always") as caught:
        gains = training_gains()
        policies = {f"{HOSTILE}{gain}": LinearPolicy(gain) for gain in gains}
        ranker = sopr_fast.fit(policies, log(), gains, config=TINY, checkpoint=folder / "run")
        ranker.save(folder / "model")
        sopr_fast.load(folder / "model").rank({HOSTILE: LinearPolicy(-99.0)}, log())
    texts = [record.getMessage() for record in caplog.records] + [str(each.message) for each in caught]
    assert texts and all(text.isprintable() for text in texts)
