"""Several processes: the same bits as one, and errors that reach all."""

import contextlib
import copy
import json
import re
import shutil
import signal
import subprocess
import sys
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import distributed_cases as cases
import numpy as np
import pytest
import selection_problems
import torch
import torch.distributed as dist
from problems import ladder
from processes import TIMEOUT, environment, run

from sopr_fast.cli import processes as cli_processes
from sopr_fast.cli.main import main as command
from sopr_fast.runtime import distributed
from sopr_fast.runtime.blocks import Blocks, add_up, largest_subtrees
from sopr_fast.runtime.group import Group
from sopr_fast.runtime.told import LostProcessError, lost_before, told_by
from sopr_fast.sopr.candidates import Share
from sopr_fast.sopr.losses import Objective
from sopr_fast.sopr.subsets import Subsets
from sopr_fast.sopr.training import _Trainer
from sopr_fast.sopr.update import Examples

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")


def errors(processes):
    return "\n".join(f"process {rank}: {process.stderr}" for rank, process in enumerate(processes))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Folder and hashes of the results of one process."""
    folder = tmp_path_factory.mktemp("one")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return folder, cases.results(folder)


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 8))])
def test_any_number_of_processes_gives_the_same_bits(count, one, tmp_path):
    folder, hashes = one
    processes = run(count, "same_bits", tmp_path, folder=tmp_path)
    assert [process.returncode for process in processes] == [0] * count, errors(processes)
    assert processes[0].stdout.split() == hashes
    assert not any(process.stdout for process in processes[1:])
    for path in folder.glob("*.safetensors"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def estimated():
    """Names and hashes of the results of one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cases.estimates()


@pytest.mark.parametrize("count", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_share_policies_of_all_estimators_and_get_the_same_bits(count, estimated, tmp_path):
    processes = run(count, "same_estimates", folder=tmp_path)
    assert [process.returncode for process in processes] == [0] * count, errors(processes)
    assert processes[0].stdout.splitlines() == estimated


def test_errors_and_different_input_end_all_processes_with_one_message(tmp_path):
    processes = run(2, "bad_input", folder=tmp_path)
    assert [process.returncode for process in processes] == [0, 0], errors(processes)
    first, second = (dict(line.split(" ", 1) for line in process.stdout.splitlines()) for process in processes)
    assert first.keys() == second.keys()
    for name, words in {
        "version": "ValueError process 1 has other version of sopr fast than process 0 (1.1, not 1.0): install",
        "batches": "ValueError process 1 has other batch size than process 0 (101, not 100)",
        "rule": "ValueError process 1 has other rule of subsets",
        "model": "ValueError process 1 has other model",
        "options": "ValueError process 1 has other options",
        "seed": "ValueError process 1 has other seed than process 0 (1, not 0)",
        "states": "ValueError process 1 has other states",
        "policies": "ValueError policy 'gain-0.100' acts otherwise in process",
        "returns": "ValueError process 1 has other policies or returns",
        "missing": "FileNotFoundError process 1: ",
        "coverage": "FileNotFoundError process 1: ",
        "critic": "FileNotFoundError process 1: ",
        "interrupt": "KeyboardInterrupt",
        "calls": "RuntimeError processes make different calls",
    }.items():
        assert first[name].startswith(words)
    assert first["memory"].startswith("RuntimeError process 1: policy") and "out of luck" in second["memory"]
    assert "process 0: policy" in second["first"] and "process" not in first["first"]
    assert first["exit"] == second["exit"] == "2"
    told = [line for process in processes for line in process.stderr.splitlines() if line.startswith("sopr-fast")]
    assert len(told) == 1 and "no-model.safetensors" in told[0]


def test_estimators_compare_logs_policies_and_returns_before_they_train(tmp_path):
    processes = run(2, "unequal_inputs", folder=tmp_path)
    assert [process.returncode for process in processes] == [0, 0], errors(processes)
    first, second = (dict(line.split(" ", 1) for line in process.stdout.splitlines()) for process in processes)
    policy = r"policy '{}' acts otherwise in process (0|1) than in process (1|0): give all processes the same files"
    expected = {
        "rewards": "process 1 has other rewards than process 0: start all with the same files",
        "ends": "process 1 has other terminals than process 0",
        "states": "process 1 has other (next )?states than process 0",
        "weights": policy.format("right-04"),
        "coverage": policy.format("right-04"),
        "evaluate-rewards": "process 1 has other rewards than process 0",
        "evaluate-weights": policy.format("left-25"),
        "evaluate-returns": "process 1 has other returns than process 0",
        "prepared": policy.format("left-25"),
    }
    for method in ("NearestPolicy", "SOPR-T"):
        expected |= {
            f"{method}-states": "process 1 has other states than process 0",
            f"{method}-count": "process 1 has other number of states than process 0 .499, not 500.",
            f"{method}-returns": "process 1 has other returns than process 0",
            f"{method}-names": "process 1 has other names of known policies than process 0",
            f"{method}-known": policy.format("left-25"),
            f"{method}-weights": policy.format("right-04"),
        }
    for told in (first, second):
        assert told.keys() == expected.keys()
        for name, message in expected.items():
            assert re.match(message, told[name]), (name, told[name])


def test_processes_need_no_common_disk(tmp_path):
    processes = run(2, "apart", tmp_path, folder=tmp_path)
    assert [process.returncode for process in processes] == [0, 0], errors(processes)
    assert [process.stdout for process in processes] == ["True []\n"] * 2
    first, second = ({path.name for path in (tmp_path / rank).rglob("*")} for rank in "01")
    assert first == {"checkpoint", "model.safetensors", "columns", "nearest.json", "fqe.json"}
    assert second <= {"columns"}


def test_a_killed_process_ends_the_others_and_one_process_resumes(one, tmp_path):
    survivor, victim = run(2, "killed", tmp_path, 1, folder=tmp_path)
    assert victim.returncode == -9
    assert survivor.returncode == 1 and survivor.stderr.count(LOST) == 1, survivor.stderr
    resumed = cases.fit(checkpoint=tmp_path / "checkpoint")
    whole = cases.fit()
    assert resumed.history == whole.history
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


def test_a_killed_first_process_ends_the_others(tmp_path):
    victim, *survivors = run(3, "killed", tmp_path, 0, folder=tmp_path)
    assert victim.returncode == -9
    for survivor in survivors:
        assert survivor.returncode == 1 and survivor.stderr.count(LOST) == 1, survivor.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder with policies, states, a log and returns, and a model that one process has trained."""
    folder = tmp_path_factory.mktemp("files")
    states, transitions = cases.log(), selection_problems.log()
    values = selection_problems.gains(12)
    for kind, policies, logged in (
        ("known", cases.KNOWN, states),
        ("candidates", ladder([0.3, 0.4, 0.5]), states),
        ("gains", values, transitions.states),
    ):
        (folder / kind).mkdir()
        for name, policy in policies.items():
            np.save(folder / kind / f"{name}.npy", policy(logged))
    np.save(folder / "states.npy", states)
    names = {"observations": "states", "next_observations": "next_states"}
    parts = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    np.savez(folder / "log.npz", **{name: getattr(transitions, names.get(name, name)) for name in parts})
    (folder / "returns.json").write_text(json.dumps(cases.RETURNS))
    returns = selection_problems.true_values(values)
    (folder / "all.json").write_text(json.dumps(returns))
    (folder / "some.json").write_text(json.dumps(dict([*returns.items()][:8])))
    with contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert command([*FIT, "--out", "one.safetensors"]) == 0
    return folder


CONFIG = {**cases.CONFIGS[0].to_dict(), "steps": 4}
FIT = ["fit", "--policies", "known", "--returns", "returns.json", "--states", "states.npy"]
FIT += [f"--{name.replace('_', '-')}={value}" for name, value in CONFIG.items() if name != "class_token"]
NEAREST = ["--log", "log.npz", "--discount=0.9", "--policies", "gains", "--methods", "nearest policy", "--folds=3"]


LOST = "LostProcessError: a process of the group has ended or cannot be reached"


def torchrun(folder, *arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *arguments]
    return subprocess.run(launcher, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT)


def without_times(text):
    """Return JSON without the seconds that something took."""
    times = ("seconds", "timings")
    return json.loads(text, object_hook=lambda values: {k: v for k, v in values.items() if k not in times})


def test_torchrun_trains_the_same_model(files):
    result = torchrun(files, "-m", "sopr_fast", *FIT, "--out", "two.safetensors")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("trained on 19 policies") == 1
    assert (files / "two.safetensors").read_bytes() == (files / "one.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["rank", "--model", "one.safetensors", "--policies", "candidates", "--states", "states.npy", "--json"],
        ["evaluate", *NEAREST, "--returns", "all.json", "--json"],
        ["select", *NEAREST, "--returns", "some.json", "--json"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_torchrun_prints_the_same_result_once(arguments, files, monkeypatch, capsys):
    result = torchrun(files, "-m", "--", "sopr_fast", *arguments)  # without "--", torchrun takes --log for its own
    assert result.returncode == 0, result.stderr
    monkeypatch.chdir(files)
    assert command(arguments) == 0
    assert without_times(result.stdout) == without_times(capsys.readouterr().out)


LOOPBACK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "-"]


@pytest.mark.slow
def test_the_loopback_interface_alone_is_enough(files):
    if not shutil.which("unshare") or subprocess.run([*LOOPBACK, "true"], capture_output=True).returncode:
        pytest.skip("needs a network namespace without other interfaces")
    rank = ["sopr_fast", "rank", "--model", "one.safetensors", "--policies", "candidates", "--states", "states.npy"]
    found = {key: value for key, value in environment().items() if key != "GLOO_SOCKET_IFNAME"}
    torchrun = [*LOOPBACK, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", *rank]
    for variables in (found, environment()):
        result = subprocess.run(torchrun, cwd=files, env=variables, capture_output=True, text=True, timeout=TIMEOUT)
        assert result.returncode == 0 and "gain-0.500" in result.stdout, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "told"),
    [
        ("interrupt", "interrupted: training was interrupted after 2 of 4 steps; run it again with checkpoint 'check"),
        ("kill", "(error: a process of the group has ended|interrupted: training was interrupted after 2 of 4 steps)"),
        ("kill-first", "(error: a process of the group has ended|interrupted)"),
        ("fail", "error: out of luck"),
    ],
)
def test_torchrun_tells_once_how_it_ended_and_one_process_resumes(event, told, files, tmp_path, monkeypatch):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    script = Path(cases.__file__).with_name("launched.py")
    fit = [*FIT, "--checkpoint", "checkpoint", "--out", "model.safetensors"]
    result = torchrun(tmp_path, str(script), event, *fit)
    assert result.returncode == 1 and not (tmp_path / "model.safetensors").exists()
    assert len(re.findall("^sopr-fast: (?:error|interrupted)", result.stderr, re.MULTILINE)) == 1
    assert re.search(f"^sopr-fast: {told}", result.stderr, re.MULTILINE), result.stderr
    assert (tmp_path / "checkpoint").exists() == (event in ("interrupt", "kill"))
    assert "SIGKILL" not in result.stderr or "kill" in event  # which is how torchrun ends a process that hangs
    monkeypatch.chdir(tmp_path)
    assert command(fit) == 0
    assert (tmp_path / "model.safetensors").read_bytes() == (files / "one.safetensors").read_bytes()


def test_gradients_by_blocks_are_those_of_all_policies_at_once():
    config = replace(cases.CONFIGS[0], dropout=0.2)
    subsets = Subsets.draw(cases.log(), 1, size=config.subset_size, clusters=config.clusters)
    columns = torch.from_numpy(np.stack([policy(subsets.states.numpy()) for policy in cases.KNOWN.values()])).float()
    returns = np.array([*cases.RETURNS.values()])
    objective = Objective.from_returns(config, returns, 0.0, 1.0)
    examples = Examples(columns, slice(0, len(columns)), None, returns, objective)
    trainer = _Trainer(subsets, examples, None, config, 0)
    whole = copy.deepcopy(trainer.model).train()
    rng = trainer.update._rng.copy_(torch.tensor([5, 0]))
    loss = trainer.update.compute_gradients()
    expected = objective.loss(whole(subsets.states, columns, subsets.rows, subsets.offsets, rng)[:, 0])
    expected.backward()
    assert loss == expected
    for mine, theirs in zip(trainer.model.parameters(), whole.parameters(), strict=True):
        expected_grad = torch.zeros_like(mine) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(mine.grad, expected_grad, rtol=1e-3, atol=1e-6)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(dict(trainer.model.named_buffers())[name], buffer)


def test_sums_do_not_depend_on_the_number_of_processes(generator):
    values = torch.randn(21, 5, generator=generator) * 10 ** torch.linspace(-3, 3, 21)[:, None]
    for blocks in (1, 2, 7, 21):
        whole = add_up(0, blocks, lambda block: values[block])
        for count in range(1, 10):
            groups = [Group(rank, count) for rank in range(count)]
            nodes = [list(largest_subtrees(0, blocks, group.part(blocks))) for group in groups]
            covered = [block for each in nodes for first, last in each for block in range(first, last)]
            assert covered == list(range(blocks))
            sums = [[add_up(*node, lambda block: values[block]) for node in each] for each in nodes]
            assert torch.equal(groups[0]._add_subtrees(blocks, nodes, sums), whole)


@pytest.mark.parametrize("policies", [2, 3, 16, 17, 100])
def test_blocks_hold_all_policies_in_even_number(policies):
    blocks = Blocks(policies)
    bounds = [blocks.first(block) for block in range(len(blocks) + 1)]
    sizes = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == policies and len(blocks) % 2 == 0
    assert sizes.min() >= 1 and sizes.max() <= 8 and np.ptp(sizes) <= 1


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("policies", [1, 2, 7, 8, 19])
def test_processes_share_each_cell_of_the_grid_of_scores(policies, count):
    batches, subsets = 4, 5
    acted, scored = np.zeros((policies, batches), int), np.zeros((policies, subsets), int)
    for rank in range(count):
        share = Share.of(policies, Group(rank, count))
        for done in (acted, scored):
            done[share.whole] += 1
            if share.shared is not None:
                assert rank in share.team
                done[share.shared, share.part(done.shape[1], rank)] += 1
    assert (acted == 1).all() and (scored == 1).all()


@pytest.fixture
def second(monkeypatch):
    """Function that makes this process the second of two, whose exchanges are what it is given: the first's part."""

    def become(*received):
        def all_gather(rows, own, group):
            if not parts:
                raise RuntimeError("Connection reset by peer")
            part = parts.pop(0)
            rows[0][: len(part)] = part
            rows[1].copy_(own)

        parts = list(received)
        monkeypatch.setattr(dist, "all_gather", all_gather)
        monkeypatch.setattr(distributed, "current", lambda: Group(1, 2))
        return Group(1, 2)

    return become


def test_a_process_that_leaves_after_the_last_exchange_is_not_lost(second):
    group = second()
    with distributed.together():
        pass
    with pytest.raises(LostProcessError, match="Connection reset by peer"):
        group.gather(torch.zeros(1))


def test_the_loss_of_a_process_is_told_though_an_interrupt_follows(second, monkeypatch):
    second()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "start", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    with pytest.raises(LostProcessError), cli_processes.shared_work():
        try:
            distributed.current().gather(torch.zeros(1))
        finally:
            raise KeyboardInterrupt


def test_a_command_leaves_termination_as_it_was(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "start", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    assert command(["rank", "--model", "no-model.safetensors", "--policies", str(tmp_path)]) == 2
    assert "no-model.safetensors" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_during_a_failing_exchange_is_not_lost(second, monkeypatch):
    def all_gather(*_, **__):
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("Connection reset by peer")

    group = second()
    monkeypatch.setattr(dist, "all_gather", all_gather)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            group.gather(torch.zeros(1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(lost_before(caught.value), LostProcessError)


@pytest.mark.parametrize("count", [1, 3])
def test_processes_share_no_policies(count, tmp_path):
    processes = run(count, "nobody", folder=tmp_path)
    assert [process.returncode for process in processes] == [0] * count, errors(processes)
    assert [process.stdout for process in processes] == ["(0, 2) (0, 2) (0, 5, 2)\n"] * count


def test_a_process_that_leaves_after_its_error_has_told_it(second):
    text = torch.frombuffer(bytearray(b'["ValueError", "out of luck"]'), dtype=torch.uint8)
    for act in (lambda group: group.gather(torch.zeros(1)), lambda group: distributed.together()(int)("no number")):
        group = second(torch.tensor([1, 0, len(text)]), text)
        with pytest.raises(ValueError) as caught:
            act(group)
        assert told_by(caught.value) == 0
    group = second(torch.tensor([0, 1, 1]))
    with pytest.raises(RuntimeError, match="processes make different calls"):
        group.gather(torch.zeros(1))


def test_a_team_exchanges_rows_without_copies_of_them(second, monkeypatch):
    own, sent, waits = torch.arange(4.0).view(2, 2), [], []

    def send(rows, to, group):
        sent.append((rows.data_ptr(), to))
        return SimpleNamespace(wait=lambda: waits.append(to))

    def receive(rows, of, group):
        return SimpleNamespace(wait=lambda: rows.fill_(7))

    monkeypatch.setattr(dist, "isend", send)
    monkeypatch.setattr(dist, "irecv", receive)
    rows = second(torch.tensor([0, zlib.crc32(b"team"), 1])).gather_among(range(2), own)
    assert rows.tolist() == [[7, 7], [0, 1], [2, 3]]
    assert sent == [(own.data_ptr(), 0)] and waits == [0]


def test_a_group_that_refuses_tensors_on_the_cpu_gets_one_beside_it(tmp_path):
    processes = run(2, "beside", folder=tmp_path, backend="cuda:gloo")
    assert [process.returncode for process in processes] == [0, 0], errors(processes)
    for process in processes:
        refusal, results = process.stdout.splitlines()
        assert refusal == "No backend type associated with device type cpu"
        assert results.split() == cases.few_results()


def test_a_torch_without_gloo_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(ValueError, match="install a torch with gloo"):
        distributed.current()
    with distributed.alone():
        assert distributed.current().count == 1
