"""Files of Stable-Baselines3 as earlier versions of gym, numpy and the library itself wrote them."""

import base64
import contextlib
import copyreg
import io
import json
import pickle
import sys
import types
import zipfile

import numpy as np
import torch


class Box:
    """gym.spaces.box.Box"""


class Discrete:
    """gym.spaces.discrete.Discrete"""


class RandomNumberGenerator:
    """gym.utils.seeding.RandomNumberGenerator of gym 0.22 to 0.25"""

    @staticmethod
    def _generator_ctor(bit_generator_name="MT19937"):
        raise AssertionError("readers do not run code")

    def __reduce__(self):
        generator = np.random.PCG64(0)
        return RandomNumberGenerator._generator_ctor, ("PCG64",), generator.state


RandomNumberGenerator._generator_ctor.__module__ = "gym.utils.seeding"


def _reconstruct():
    """numpy.core.multiarray._reconstruct"""


def scalar():
    """numpy.core.multiarray.scalar"""


def _frombuffer():
    """numpy.core.numeric._frombuffer"""


_MEMBERS = {
    "gym.spaces.box": [Box],
    "gym.spaces.discrete": [Discrete],
    "gym.utils.seeding": [RandomNumberGenerator],
    "numpy.core.multiarray": [_reconstruct, scalar],
    "numpy.core.numeric": [_frombuffer],
}
# By version of gym, where spaces keep their shape and their random numbers.
LAYOUTS = {
    "0.15": ("shape", "np_random"),
    "0.17": ("shape", "_np_random"),
    "0.21": ("_shape", "_np_random"),
    "0.23": ("_shape", "_np_random"),
    "0.26": ("_shape", "_np_random"),
}


@contextlib.contextmanager
def _old_modules():
    """Let pickle find the old classes and functions under the names that old pickles have."""
    before = dict(sys.modules)
    for name, members in _MEMBERS.items():
        for parent in (name.rpartition(".")[0], name.partition(".")[0]):
            if not parent.startswith("numpy"):
                sys.modules[parent] = types.ModuleType(parent)
        sys.modules[name] = types.ModuleType(name)
        for member in members:
            member.__module__ = name
            setattr(sys.modules[name], member.__name__, member)
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


class _Pickler(pickle.Pickler):
    def __init__(self, file, protocol, states):
        super().__init__(file, protocol)
        self.protocol, self.states = protocol, states

    def reducer_override(self, value):
        if isinstance(value, np.ndarray | np.generic):
            function, *rest = value.__reduce_ex__(self.protocol)
            return {f.__name__: f for f in (_reconstruct, _frombuffer, scalar)}[function.__name__], *rest
        if isinstance(value, np.random.RandomState):  # as numpy 1.17 to 1.23 did
            constructor = vars(np.random._pickle)["__randomstate_ctor"]
            return constructor, ("MT19937",), value.get_state(legacy=False)
        if id(value) in self.states:
            return copyreg.__newobj__, (type(value),), self.states[id(value)]
        return NotImplemented


def dumps(value, protocol=4, state=None):
    """Pickle the value, with another state if given, and with the names that numpy 1 used."""
    with _old_modules():
        file = io.BytesIO()
        _Pickler(file, protocol, {} if state is None else {id(value): state}).dump(value)
        return file.getvalue()


def old_space(space, version):
    """Return a space of gymnasium as an object with the attributes of a version of gym."""
    shape, random = LAYOUTS[version]
    values = {"dtype": space.dtype, shape: space.shape}
    values[random] = RandomNumberGenerator() if version == "0.23" else np.random.RandomState(0)
    if hasattr(space, "n"):
        old = Discrete()
        old.__dict__.update(n=int(space.n), **values)
        if version in ("0.23", "0.26"):
            old.start = 0
        return old
    old = Box()
    old.__dict__.update(low=space.low, high=space.high, **values)
    old.bounded_below, old.bounded_above = -np.inf < space.low, np.inf > space.high
    if version == "0.26":
        old.low_repr, old.high_repr = str(space.low), str(space.high)
    return old


def make_old(path, version, protocol=4, rename=lambda key: key, **settings):
    """Rewrite a model as Stable-Baselines3 saved it with a version of gym, in place.

    Args:
        path: The model, as the installed version saved it.
        version: Version of gym.
        protocol: Protocol of the pickles.
        rename: New name of a weight by its name.
        settings: Settings to change.
    """
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "system_info.txt"}
    data = json.loads(members["data"])
    for key in ("observation_space", "action_space"):
        space = pickle.loads(base64.b64decode(data[key][":serialized:"]))
        serialized = base64.b64encode(dumps(old_space(space, version), protocol)).decode()
        data[key] = {":type:": f"<class 'gym.spaces.{type(space).__name__}'>", ":serialized:": serialized}
    for key in ("sde_net_arch", "_stats_window_size", "normalize_advantage", "replay_buffer_class"):
        data.pop(key, None)
    members["data"] = json.dumps({**data, **settings}, indent=4).encode()
    weights = torch.load(io.BytesIO(members["policy.pth"]), weights_only=True)
    file = io.BytesIO()
    torch.save({rename(key): value for key, value in weights.items()}, file)
    members["policy.pth"] = file.getvalue()
    members["_stable_baselines3_version"] = b"1.0"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def save_old_statistics(path, env, version, protocol=4):
    """Write a `VecNormalize` as version 1.0 did: without `norm_obs_keys`, with `obs_keys`, and spaces of gym."""
    state = {
        "num_envs": env.num_envs,
        "observation_space": old_space(env.observation_space, version),
        "action_space": old_space(env.action_space, version),
        "obs_keys": None,
        "obs_spaces": None,
        "obs_rms": env.obs_rms,
        "ret_rms": env.ret_rms,
        "clip_obs": env.clip_obs,
        "clip_reward": env.clip_reward,
        "gamma": env.gamma,
        "epsilon": env.epsilon,
        "training": env.training,
        "norm_obs": env.norm_obs,
        "norm_reward": env.norm_reward,
        "old_obs": np.array([]),
        "old_reward": np.array([]),
    }
    path.write_bytes(dumps(env, protocol, state))
