"""LeRobot policies, a folder with `config.json` and safetensors: ACT and diffusion policies, opened by lerobot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from ....runtime.files import open_regular
from ..called import Called
from .options import SETTINGS_BYTES, Options, library, parse_settings, untrusted

SETTINGS, WEIGHTS = "config.json", "model.safetensors"
_KINDS = ("act", "diffusion")
_STATES = ("observation.state", "observation.environment_state")  # in the order of `sopr_fast.inputs.logs.lerobot`
_PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
_STEPS = 10  # denoising steps of the deterministic sampler, where the settings state no number


def is_policy(path: Path) -> bool:
    """Return whether weights are those of a LeRobot policy, by the settings beside them."""
    settings = path.with_name(SETTINGS)
    if not settings.is_file():
        return False
    with open_regular(settings) as file:
        text = file.read(SETTINGS_BYTES + 1)
    return b'"input_features"' in text and b'"type"' in text


def is_companion(path: Path) -> bool:
    """Return whether a file of safetensors belongs to a policy: its statistics, or the state of its training."""
    if path.parent.name == "training_state":
        return True
    return path.name.startswith(("policy_preprocessor_", "policy_postprocessor_"))


def read(path: Path, options: Options) -> list[Called]:
    """Read an ACT or diffusion policy of vectors, if trusted."""
    with open_regular(path.with_name(SETTINGS)) as file:
        settings = parse_settings(file.read(SETTINGS_BYTES + 1))
    kind, widths = _check(settings)
    if not options.trust:
        raise untrusted(f"a LeRobot policy ({kind}) is opened by lerobot, which imports classes that its files name,")
    folder = path.parent
    if missing := [name for name in _PROCESSORS if not (folder / name).is_file()]:
        raise ValueError(
            f"no {missing[0]} beside it, which holds its normalisation: it was saved by LeRobot before 0.4; convert it "
            "with lerobot/processor/migrate_policy_normalization.py of LeRobot 0.4"
        )
    factory, configs = library("lerobot.policies.factory", "lerobot"), library("lerobot.configs.policies", "lerobot")
    try:
        config = configs.PreTrainedConfig.from_pretrained(str(folder))
        policy = factory.get_policy_class(kind)(config)
        policy.load_state_dict(load(path.read_bytes()))
        policy.to(config.device).eval()
        before, after = factory.make_pre_post_processors(
            config, str(folder), preprocessor_overrides={"device_processor": {"device": str(config.device)}}
        )
        plan = _plan_of_diffusion(policy) if kind == "diffusion" else policy.predict_action_chunk
    except Exception as error:  # lerobot raises many types
        raise ValueError(f"lerobot cannot open it: {type(error).__name__}: {error}") from error

    def act(states: np.ndarray) -> Tensor:
        parts = torch.from_numpy(states).split([*widths.values()], 1)
        with torch.no_grad():
            batch = before(dict(zip(widths, parts, strict=True)))
            return after(plan({key: batch[key] for key in widths})[:, 0])

    return [Called(options.name, act, state_dim=sum(widths.values()))]


def _check(settings: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """Return type and inputs of a policy: name → width.

    Raises:
        ValueError: The policy is of another type, reads images, or its settings are damaged.
    """
    kind, inputs = str(settings.get("type"))[:40], settings["input_features"]
    if kind not in _KINDS:
        raise ValueError(
            f"a LeRobot policy of type {kind!r}; {' and '.join(_KINDS)} are read: open it with lerobot and pass an "
            "object whose predict(states) returns the first action of its plan"
        )
    if others := [name for name in inputs if name not in _STATES]:
        raise ValueError(
            f"a LeRobot policy that reads {str(others[0])[:80]!r}, but logged states are vectors: pass an array of the "
            "first action of its plan in every state of the log, or an object whose predict(states) looks them up"
        )
    widths = {name: int(np.prod(inputs[name]["shape"])) for name in _STATES if name in inputs}
    if not widths:
        raise ValueError(f"its settings name no input; expected {' or '.join(_STATES)}")
    return kind, widths


def _plan_of_diffusion(policy: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    """Return a deterministic function from normalised states to plans, (N, steps, dim_a).

    Denoising adds no noise (DDIM) and begins at one draw of noise for all states, so that an action depends on its
    state alone. A policy that reads several last states gets the same state for each, as at the start of an episode.
    """
    config, model = policy.config, policy.diffusion
    schedulers = library("diffusers.schedulers.scheduling_ddim", "lerobot")
    model.noise_scheduler = schedulers.DDIMScheduler.from_config(model.noise_scheduler.config)
    model.num_inference_steps = config.num_inference_steps or _STEPS
    shape = (1, config.horizon, config.action_feature.shape[0])
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(config.device)

    def plan(batch: dict[str, Tensor]) -> Tensor:
        last = {key: values[:, None].expand(-1, config.n_obs_steps, -1) for key, values in batch.items()}
        count = len(next(iter(batch.values())))
        return model.generate_actions(last, noise=noise.expand(count, -1, -1))

    return plan
