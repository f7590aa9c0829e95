import io
import logging
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from sopr_fast.runtime import progress


@pytest.fixture
def at_once(monkeypatch, caplog):
    """Lines are due at once."""
    caplog.set_level(logging.INFO, "sopr_fast")
    for name in ("_DELAY", "_SECONDS_BETWEEN_LINES"):
        monkeypatch.setattr(progress, name, 0)


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "sopr_fast"]


def run(show=True):
    with progress.part(3, 7, "FQE"), progress.progress_bar(12, "training", "step", show=show, initial=10) as bar:
        for _ in range(2):
            bar.set_postfix({"loss": "0.5"}, refresh=False)
            bar.update()


STDERR = {"none": None, "closed": io.StringIO(), "no isatty": SimpleNamespace(write=len)}
STDERR["closed"].close()


@pytest.mark.parametrize("stderr", STDERR.values(), ids=STDERR)
def test_without_a_terminal_lines_are_logged(stderr, at_once, caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr)
    run()
    assert lines(caplog)[-2:] == [f"3 of 7, FQE: training: step {n} of 12, loss=0.5, 00:00" for n in (12, 12)]


@pytest.mark.usefixtures("at_once")
def test_progress_that_is_off_shows_nothing(caplog, capsys):
    run(show=False)
    assert not lines(caplog) and capsys.readouterr() == ("", "")


def test_short_stages_show_nothing(caplog, capsys):
    caplog.set_level(logging.INFO, "sopr_fast")
    run()
    assert not lines(caplog) and capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar(at_once, monkeypatch, caplog):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    run()
    assert "3 of 7, FQE: training: 100%" in sys.stderr.getvalue() and not lines(caplog)


@pytest.mark.parametrize("kind", [progress._Bar, progress._Lines])
def test_a_process_killed_while_it_holds_the_lock_of_a_bar_blocks_no_other(kind):
    holder = os.fork()
    if holder == 0:
        kind.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(holder, 0)
    assert kind.get_lock().acquire(blocking=False)
    kind.get_lock().release()
