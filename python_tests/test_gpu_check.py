"""`bench/gpu_check.py` with shell commands as stages."""

import json
import os
import select
import signal

import gpu_check
import pytest


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """Run gpu_check with shell commands as stages, a temporary folder for reports and a pretended GPU."""
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_check, "PYTHON", "sh")
    monkeypatch.setattr(gpu_check, "gpus", lambda: {"a GPU": "90"})

    def run(commands, *options):
        monkeypatch.setattr(gpu_check, "STAGES", {"build": ["-c", "exit 0"]} | commands)
        code = gpu_check.main([*commands, *options])
        return code, json.loads((tmp_path / "out" / "gpu_check.json").read_text())["stages"]

    return run


@pytest.mark.parametrize("at_first", [signal.SIG_IGN, signal.default_int_handler], ids=["background", "foreground"])
def test_a_stage_out_of_time_is_interrupted_and_leaves_no_process(at_first, stages, tmp_path, request):
    before = signal.signal(signal.SIGINT, at_first)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    os.mkfifo(tmp_path / "child")
    child = os.open(tmp_path / "child", os.O_RDONLY | os.O_NONBLOCK)
    # Background jobs of a shell ignore interrupts.
    script = "trap 'echo told > report; exit 1' INT; sleep 60 > child & wait"
    code, actual = stages({"bench": ["-c", script], "module": ["-c", "exit 0"]}, "--timeout", "bench=1")
    assert code == 1 and actual["bench"]["status"] == "failed: out of time" and actual["bench"]["seconds"] < 20
    assert actual["module"]["status"] == "passed"
    assert (tmp_path / "report").read_text() == "told\n"
    assert select.select([child], [], [], 10)[0] and os.read(child, 1) == b""  # no process has the other end open


def test_stages_share_one_deadline(stages):
    waits = ["-c", "sleep 60"]
    code, actual = stages({name: waits for name in ("build", "module", "test")}, "--timeout", "build=0.5", "all=1")
    assert code == 1 and actual["build"]["status"] == actual["module"]["status"] == "failed: out of time"
    assert actual["build"]["seconds"] + actual["module"]["seconds"] < 10 and actual["test"]["seconds"] < 0.1
