import io
import logging
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from sopr_fast.runtime import progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "sopr_fast"]


def test_off_a_terminal_a_line_is_logged_every_thirty_seconds_and_at_the_end(clock, caplog):
    caplog.set_level(logging.INFO, "sopr_fast")
    with progress.progress_bar(90, "training", "step", show=True, initial=10) as bar:
        for _ in range(80):
            clock[0] += 1
            bar.set_postfix({"loss": "0.5"}, refresh=False)
            bar.update()
        assert bar.n == 90
    assert lines(caplog) == [
        "training: step 41 of 90, loss 0.5, 31 s",
        "training: step 72 of 90, loss 0.5, 62 s",
        "training: step 90 of 90, loss 0.5, 80 s",
    ]


@pytest.mark.parametrize("stderr", ["none", "closed", "no isatty"])
def test_without_a_usable_stderr_lines_are_logged(stderr, clock, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "sopr_fast")
    closed = io.StringIO()
    closed.close()
    streams = {"none": None, "closed": closed, "no isatty": SimpleNamespace(write=len)}
    monkeypatch.setattr(sys, "stderr", streams[stderr])
    with progress.progress_bar(2, "training", "step", show=True) as bar:
        clock[0] += 2
        bar.update(2)
    assert lines(caplog) == ["training: step 2 of 2, 2 s"]


@pytest.mark.parametrize(("show", "seconds"), [(True, 0.9), (False, 100)], ids=["short", "off"])
def test_short_stages_and_progress_that_is_off_show_nothing(show, seconds, clock, caplog, capsys):
    caplog.set_level(logging.INFO, "sopr_fast")
    with progress.progress_bar(3, "acting", "policy", show=show) as bar:
        clock[0] += seconds
        bar.update(3)
    assert not lines(caplog) and capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar(monkeypatch, caplog):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    caplog.set_level(logging.INFO, "sopr_fast")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "_DELAY", 0)
    with progress.part(3, 7, "FQE"), progress.progress_bar(3, "training", "step", show=True) as bar:
        bar.update(3)
    assert "3 of 7, FQE: training: 100%" in sys.stderr.getvalue() and not lines(caplog)


def test_a_process_killed_while_it_holds_the_lock_of_a_bar_blocks_no_other():
    holder = os.fork()
    if holder == 0:
        progress._Bar.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(holder, 0)
    assert progress._Bar.get_lock().acquire(blocking=False)
    progress._Bar.get_lock().release()
