"""Mutated files of every kind: readers raise documented exceptions that name the file, in bounded time and memory.

`make fuzz` runs this; the environment variable FUZZ_EXAMPLES sets the cases per kind. Hypothesis shrinks a failing case
and prints it with `@reproduce_failure`; add it to the tests of its reader.
"""

import json
import os
import pickle
import resource
import signal
from contextlib import contextmanager
from functools import partial

import h5py
import numpy as np
import pandas
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.needs import needs, to_parquet
from support.problems import fit, ladder, log
from support.programs import export_onnx

import sopr_fast
from sopr_fast.inputs.returns import load_returns
from sopr_fast.runtime import tensor_files as files
from sopr_fast.sopr.subsets import Subsets

pytestmark = [pytest.mark.fuzz, pytest.mark.filterwarnings("ignore")]

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
SECONDS = 5
MEMORY = 200 << 20
DOCUMENTED = (ValueError, TypeError, OSError, ImportError, MemoryError)
STATES = log(64)
TRANSITIONS = {"observations": STATES, "actions": np.zeros((64, 2), np.float32), "rewards": np.ones(64, np.float32)}
TRANSITIONS |= {"terminals": np.zeros(64, bool), "timeouts": np.arange(64) % 16 == 15}


def write_hdf5(path, groups=("",)):
    with h5py.File(path, "w") as file:
        for group in groups:
            for name, values in TRANSITIONS.items():
                file[f"{group}{name}"] = values


def write_sb3(path):
    gymnasium = needs("gymnasium")
    sb3 = needs("stable_baselines3")

    class Still(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    sb3.PPO("MlpPolicy", Still(), policy_kwargs={"net_arch": [4]}, device="cpu").save(path)


def write_d3(path):
    d3rlpy = needs("d3rlpy")
    encoder = d3rlpy.models.VectorEncoderFactory([4])
    algorithm = d3rlpy.algos.TD3Config(actor_encoder_factory=encoder, critic_encoder_factory=encoder).create()
    algorithm.create_impl((4,), 2)
    algorithm.save(str(path))


def write_pickle(path):
    weights = {"last_fc/weight": np.ones((2, 4), np.float32), "last_fc/bias": np.zeros(2, np.float32)}
    path.write_bytes(pickle.dumps({**weights, "nonlinearity": "relu", "output_distribution": "tanh_gaussian"}))


def write_replay_buffer(path):
    gymnasium = needs("gymnasium")
    buffers = needs("stable_baselines3.common.buffers")
    observations, actions = gymnasium.spaces.Box(-9, 9, (4,)), gymnasium.spaces.Box(-1, 1, (2,))
    buffer = buffers.ReplayBuffer(32, observations, actions, device="cpu")
    for state in STATES[:40]:
        buffer.add(state, state, np.zeros(2), np.ones(1), np.zeros(1), [{}])
    path.write_bytes(pickle.dumps(buffer))


SEQUENTIAL = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
load_weights = partial(sopr_fast.load_policies, module=SEQUENTIAL)
load_checkpoint = partial(load_weights, key="model_state_dict.actor")
read_names = partial(load_returns, names=[f"p{i}" for i in range(20)])
load_states = partial(Subsets.draw, count=1, size=32, clusters=4)
WEIGHTS = SEQUENTIAL.state_dict()
LAYERS = {key.replace("0.", "hidden_0.").replace("2.", "mean."): value.numpy() for key, value in WEIGHTS.items()}
CHECKPOINT = {"model_state_dict": {f"actor.{key}": value for key, value in WEIGHTS.items()}, "iter": 1, "infos": None}
GUARDED = {"model": "model"}  # what files that people share call their kind
LISTS = {key: values.tolist() for key, values in TRANSITIONS.items()}
TABLE = pandas.DataFrame({"observations": list(STATES), "rewards": TRANSITIONS["rewards"]})
ROWS = np.column_stack([STATES, TRANSITIONS["actions"], TRANSITIONS["rewards"]])
NAMES = [*(f"obs_{i}" for i in range(STATES.shape[1])), "action_0", "action_1", "reward"]
RETURNS = "name,return,return_std,rollouts\n" + "".join(f"p{i},1,2,{i}\n" for i in range(9))
KINDS = {
    "model": (".safetensors", lambda path: fit().save(path), sopr_fast.load),
    "layers": (".npz", lambda path: np.savez(path, **LAYERS), sopr_fast.load_policies),
    "actions": (".npy", lambda path: np.save(path, TRANSITIONS["actions"]), sopr_fast.load_policies),
    "state dict": (".pt", lambda path: torch.save(SEQUENTIAL.state_dict(), path), load_weights),
    "safetensors": (".safetensors", lambda path: save_file(SEQUENTIAL.state_dict(), path), load_weights),
    "checkpoint": (".pt", lambda path: torch.save(CHECKPOINT, path), load_checkpoint),
    "D4RL": (".pkl", write_pickle, sopr_fast.load_policies),
    "Stable-Baselines3": (".zip", write_sb3, sopr_fast.load_policies),
    "d3rlpy": (".d3", write_d3, sopr_fast.load_policies),
    "ONNX": (".onnx", lambda path: export_onnx(torch.nn.Linear(4, 2), path, shape=(4,)), sopr_fast.load_policies),
    "states npy": (".npy", lambda path: np.save(path, STATES), load_states),
    "states npz": (".npz", lambda path: np.savez_compressed(path, **TRANSITIONS), load_states),
    "states HDF5": (".hdf5", write_hdf5, load_states),
    "states parquet": (".parquet", lambda path: to_parquet(TABLE, path), load_states),
    "log npz": (".npz", lambda path: np.savez(path, **TRANSITIONS), sopr_fast.load_log),
    "log HDF5": (".hdf5", write_hdf5, sopr_fast.load_log),
    "log csv": (".csv", lambda path: pandas.DataFrame(ROWS, None, NAMES).to_csv(path, index=False), sopr_fast.load_log),
    "log JSON": (".json", lambda path: path.write_text(json.dumps(LISTS)), sopr_fast.load_log),
    "log pickle": (".pkl", lambda path: path.write_bytes(pickle.dumps(TRANSITIONS)), sopr_fast.load_log),
    "log of episodes": (".pkl", lambda path: path.write_bytes(pickle.dumps([TRANSITIONS] * 3)), sopr_fast.load_log),
    "replay buffer": (".pkl", write_replay_buffer, sopr_fast.load_log),
    "log by episodes": (".hdf5", lambda path: write_hdf5(path, ["episode_0/", "episode_1/"]), sopr_fast.load_log),
    "evaluations": (".npz", lambda path: np.savez(path, timesteps=np.arange(9), results=np.ones((9, 3))), read_names),
    "returns json": (".json", lambda path: path.write_text(json.dumps({f"p{i}": [i] for i in range(9)})), read_names),
    "returns csv with errors": (".csv", lambda path: path.write_text(RETURNS), read_names),
}  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Content of a valid file, by kind; made once."""
    made = {}

    def content(kind):
        if kind not in made:
            suffix, write, _ = KINDS[kind]
            path = tmp_path_factory.mktemp("original") / f"file{suffix}"
            write(path)
            made[kind] = path.read_bytes()
        return made[kind]

    return content


PLACE = st.floats(0, 1, exclude_max=True)
BYTES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from([b"\x00" * 8, b"\xff" * 8, b"9" * 24, b"-1", b"NaN", b"null", b'""', b"[[[[", b"\x80\x04(((("]),
)
HOW = st.sampled_from(["overwrite", "insert", "delete", "truncate", "repeat"])
MUTATIONS = st.lists(st.tuples(HOW, PLACE, BYTES, PLACE), min_size=1, max_size=4)


def mutate(content, mutations):
    content = bytearray(content)
    for how, place, patch, length in mutations:
        # Half of all places lie among the first 512 bytes, where headers are.
        start = int(place * 2 * 512) if place < 0.5 and len(content) > 512 else int(place * len(content))
        size = 1 + int(length**4 * min(4096, len(content)))
        if how == "overwrite":
            content[start : start + len(patch)] = patch
        elif how == "insert":
            content[start:start] = patch
        elif how == "delete":
            del content[start : start + size]
        elif how == "truncate":
            del content[start:]
        else:
            content[start:start] = content[start : start + size] * 4
    return bytes(content)


@contextmanager
def bounded():
    """Fail after five seconds, or where the peak of the process's memory grows by more than 200 MB."""

    def stop(*_):
        raise AssertionError(f"reading took over {SECONDS} seconds")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_are_read_or_refused_by_name(kind, original, tmp_path):
    suffix, _, read = KINDS[kind]
    content, path = original(kind), tmp_path / f"mutated{suffix}"

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(MUTATIONS)
    def check(mutations):
        mutated = mutate(content, mutations)
        path.write_bytes(mutated)
        with bounded():
            try:
                read(path)
            except DOCUMENTED as error:
                assert path.name in str(error), f"{type(error).__name__} without the file's name: {error}"
                return
        assert kind not in GUARDED or mutated == content, "an altered file was accepted"

    check()


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.just(10**30), st.floats(), st.text(max_size=4))
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(max_size=3), SCALARS, max_size=2))


@pytest.mark.parametrize("kind", GUARDED)
def test_forged_descriptions_are_refused_by_name(kind, original, tmp_path):
    """Files whose description was altered and whose hash was made anew: the schema must refuse what is nonsense."""
    suffix, _, read = KINDS[kind]
    path = tmp_path / f"forged{suffix}"
    path.write_bytes(original(kind))
    tensors, description = files.load_tensors(path, GUARDED[kind])
    places = list(_places(description))

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(places), VALUES)
    def check(place, value):
        forged = json.loads(json.dumps(description))
        at = forged
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value
        files.save_tensors(path, tensors, GUARDED[kind], forged)
        with bounded():
            try:
                result = read(path)
                if kind == "model":
                    result.rank(ladder([0.4]))
            except DOCUMENTED as error:
                assert path.name in str(error), f"{type(error).__name__} without the file's name: {error}"

    check()


def _places(value, prefix=()):
    """Paths of keys to every value of a nested description."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*prefix, key)
        yield from _places(inner, (*prefix, key))
