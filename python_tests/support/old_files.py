"""Files of Stable-Baselines3 as earlier versions of gym, numpy and the library itself wrote them."""

import base64
import copy
import io
import json
import pickle
import zipfile

import numpy as np
import torch


class RandomNumberGenerator:
    """gym.utils.seeding.RandomNumberGenerator of gym 0.22 to 0.25"""

    def __reduce__(self):
        return RandomNumberGenerator, ("PCG64",), np.random.PCG64(0).state


# By version of gym, where spaces keep their shape and their random numbers.
LAYOUTS = {"0.15": ("shape", "np_random"), "0.17": ("shape", "_np_random")}
LAYOUTS |= dict.fromkeys(("0.21", "0.23", "0.26"), ("_shape", "_np_random"))


def dumps(value):
    """Pickle a value with the names of gym and numpy 1; protocol 2 writes names without their lengths."""
    names = {b"gymnasium.": b"gym.", b"numpy._core.": b"numpy.core.", b"csupport.old_files\n": b"cgym.utils.seeding\n"}
    content = pickle.dumps(value, 2)
    for new, old in names.items():
        content = content.replace(new, old)
    return content


def old_space(space, version):
    shape, random = LAYOUTS[version]
    old = copy.copy(space)
    values = {"dtype": space.dtype, shape: space.shape}
    values[random] = RandomNumberGenerator() if version == "0.23" else np.random.RandomState(0)
    if hasattr(space, "n"):
        values["n"] = int(space.n)
        values |= {"start": 0} if version in ("0.23", "0.26") else {}
    else:
        values |= {"low": space.low, "high": space.high}
        values |= {"bounded_below": -np.inf < space.low, "bounded_above": np.inf > space.high}
        values |= {"low_repr": str(space.low), "high_repr": str(space.high)} if version == "0.26" else {}
    vars(old).clear()
    vars(old).update(values)
    return old


def make_old(path, version, rename=lambda key: key):
    """Rewrite a model as Stable-Baselines3 saved it with a version of gym, in place.

    Args:
        path: The model, as the installed version saved it.
        version: Version of gym.
        rename: New name of a weight by its name.
    """
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "system_info.txt"}
    data = json.loads(members["data"])
    for key in ("observation_space", "action_space"):
        space = pickle.loads(base64.b64decode(data[key][":serialized:"]))
        serialized = base64.b64encode(dumps(old_space(space, version))).decode()
        data[key] = {":type:": f"<class 'gym.spaces.{type(space).__name__}'>", ":serialized:": serialized}
    for key in ("sde_net_arch", "_stats_window_size", "normalize_advantage", "replay_buffer_class"):
        data.pop(key, None)
    members["data"] = json.dumps(data, indent=4).encode()
    weights = torch.load(io.BytesIO(members["policy.pth"]), weights_only=True)
    file = io.BytesIO()
    torch.save({rename(key): value for key, value in weights.items()}, file)
    members["policy.pth"] = file.getvalue()
    members["_stable_baselines3_version"] = b"1.0"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def save_old_statistics(path, env, version):
    """Write a `VecNormalize` as version 1.0 did: without `norm_obs_keys`, with `obs_keys`, and spaces of gym."""
    old = object.__new__(type(env))
    vars(old).update(vars(env), obs_keys=None, obs_spaces=None)
    del old.norm_obs_keys
    old.observation_space, old.action_space = (old_space(s, version) for s in (env.observation_space, env.action_space))
    path.write_bytes(dumps(old))
