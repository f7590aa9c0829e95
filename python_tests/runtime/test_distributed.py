"""Several processes: the same bits as one, and errors that reach all."""

import contextlib
import copy
import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import support.distributed_cases as cases
import torch
import torch.distributed as dist
from support.problems import train_scores
from support.python import python

from sopr_fast import estimators
from sopr_fast.cli.main import main as command
from sopr_fast.runtime import distributed
from sopr_fast.runtime.distributed import Group
from sopr_fast.sopr.losses import pairwise
from sopr_fast.sopr.subsets import Subsets
from sopr_fast.sopr.update import Examples, Update

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    with warnings.catch_warnings(action="ignore"):
        return folder, cases.results(folder)


def torchrun(folder, *arguments, count=2):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", *arguments]
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return python(*launcher, cwd=folder, env=environment, timeout=cases.TIMEOUT)


@pytest.mark.parametrize("count", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_any_number_of_processes_gives_the_same_bits(count, one, tmp_path):
    folder, hashes = one
    result = torchrun(tmp_path, "-m", "support.distributed_cases", "same_bits", str(tmp_path), count=count)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == hashes
    for path in folder.glob("*.safetensors"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_what_is_compared_between_processes(monkeypatch):
    compared = []
    monkeypatch.setattr(Group, "check_same", lambda _, **parts: compared.append({*parts}))
    ranker = cases.fit(replace(cases.TINY, steps=1))
    ranker.rank(cases.HELD_OUT, cases.log())
    estimators.BehaviourQ(updates=1, hidden=(8,)).estimate(cases.gains(2), cases.transitions())
    fit, rank, *estimate = compared
    assert fit == {"options", "seed", "states", "subsets", "policies_or_returns"}
    assert {"options", "names_of_policies", "states", "subsets", "norm.mean"} <= rank and "rewards" in set().union(
        *estimate
    )


def test_unequal_inputs_are_refused(monkeypatch):
    monkeypatch.setattr(Group, "gather_objects", lambda _, value: [value, value | {"some_states": "others"}])
    with pytest.raises(ValueError, match="process 1 has other some states than process 0: start all with the same"):
        Group(1, 2).check_same(options=1, some_states=np.ones(3))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "known").mkdir()
    for name, policy in cases.KNOWN.items():
        np.save(folder / "known" / f"{name}.npy", policy(cases.log()))
    np.save(folder / "states.npy", cases.log())
    (folder / "returns.json").write_text(json.dumps(cases.RETURNS))
    with contextlib.chdir(folder), warnings.catch_warnings(action="ignore"):
        assert command([*FIT, "--out", "one.safetensors"]) == 0
    return folder


CONFIG = {**cases.CONFIGS[0].to_dict(), "steps": 4}
FIT = ["fit", "--policies", "known", "--returns", "returns.json", "--states", "states.npy"]
FIT += [f"--{name.replace('_', '-')}={value}" for name, value in CONFIG.items()]


def test_torchrun_trains_the_same_model(files):
    result = torchrun(files, "-m", "sopr_fast", *FIT, "--out", "two.safetensors")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("trained on 19 policies") == 1
    assert (files / "two.safetensors").read_bytes() == (files / "one.safetensors").read_bytes()


def test_one_process_resumes_what_several_began(files, tmp_path, monkeypatch):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    fit = [*FIT, "--checkpoint", "checkpoint", "--out", "model.safetensors"]
    result = torchrun(tmp_path, "-m", "support.distributed_cases", "command", *fit)
    assert result.returncode and not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoint").exists(), result.stderr
    monkeypatch.chdir(tmp_path)
    assert command(fit) == 0
    assert (tmp_path / "model.safetensors").read_bytes() == (files / "one.safetensors").read_bytes()


def test_gradients_by_blocks_are_those_of_all_policies_at_once():
    config = replace(cases.CONFIGS[0], dropout=0.2, policy_share=1.0)
    subsets = Subsets.draw(cases.log(), 1, size=config.subset_size, clusters=config.clusters)
    columns = torch.from_numpy(np.stack([policy(subsets.states.numpy()) for policy in cases.KNOWN.values()])).float()
    returns = torch.tensor([*cases.RETURNS.values()], dtype=torch.float64)
    examples = Examples(columns, slice(0, len(columns)), returns)
    update = Update(subsets, examples, None, config, 0)
    whole = copy.deepcopy(update.model).train()
    rng = update._rng.copy_(torch.tensor([5, 0]))
    loss, gradients = update.compute_gradients()
    scores = train_scores(whole, subsets.states, columns, subsets.rows, subsets.offsets, rng)[:, 0]
    expected = pairwise(scores, returns)
    expected.backward()
    assert loss == expected
    for mine, theirs in zip(gradients, whole.parameters(), strict=True):
        expected_grad = torch.zeros_like(mine) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(mine, expected_grad, rtol=1e-3, atol=1e-6)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(dict(update.model.named_buffers())[name], buffer)


def test_a_group_without_gloo_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(ValueError, match=r"init_process_group\('cpu:gloo,cuda:nccl'\)"):
        distributed.current()
