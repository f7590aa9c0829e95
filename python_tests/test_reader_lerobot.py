"""LeRobot policies: refused with the remedy; with lerobot and trust, they act as lerobot's own policies do.

`make test-lerobot` runs the tests that need lerobot, which needs an older torch than the other tests.
"""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sopr_fast.inputs.policies import load

STATE, ENVIRONMENT = "observation.state", "observation.environment_state"
WIDTHS = {STATE: 3, ENVIRONMENT: 2}
DA = 2


def write_folder(folder, kind="act", inputs=WIDTHS, processors=True):
    """Write the files of a policy as LeRobot 0.4.4 does, with weights of no model."""
    folder.mkdir(parents=True)
    features = {name: {"type": "STATE", "shape": [width]} for name, width in inputs.items()}
    (folder / "config.json").write_text(json.dumps({"type": kind, "input_features": features}))
    save_file({"model.action_head.weight": torch.zeros(DA, 4)}, folder / "model.safetensors")
    if processors:
        for name, step in (("preprocessor", "3_normalizer"), ("postprocessor", "0_unnormalizer")):
            (folder / f"policy_{name}.json").write_text("{}")
            save_file({"mean": torch.zeros(1)}, folder / f"policy_{name}_step_{step}_processor.safetensors")


def test_they_are_refused_without_trust(tmp_path):
    write_folder(tmp_path / "run")
    with pytest.raises(ValueError, match=r"model\.safetensors: a LeRobot policy \(act\) .* read only with trust=True"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "smolvla"}, "type 'smolvla'; act and diffusion are read: open it with lerobot and pass"),
        ({"inputs": WIDTHS | {"observation.images.top": 3}}, r"reads 'observation\.images\.top', but logged states"),
        ({"inputs": {}}, "its settings name no input; expected observation.state"),
        ({"processors": False}, r"no policy_preprocessor\.json beside it, .* before 0\.4; convert it"),
    ],
)
def test_what_is_not_read_says_why(tmp_path, options, message):
    write_folder(tmp_path / "run", **options)
    with pytest.raises(ValueError, match=rf"model\.safetensors: .*{message}"):
        load(tmp_path, trust=True)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot", None)
    monkeypatch.setitem(sys.modules, "lerobot.policies.factory", None)
    write_folder(tmp_path / "run")
    with pytest.raises(ImportError, match=r"reading it needs lerobot: pip install 'sopr_fast\[lerobot\]'"):
        load(tmp_path, trust=True)


def test_statistics_and_training_states_are_passed_over(tmp_path):
    write_folder(tmp_path / "checkpoints" / "005000" / "pretrained_model")
    state = tmp_path / "checkpoints" / "005000" / "training_state"
    state.mkdir()
    save_file({"step": torch.zeros(1)}, state / "optimizer_state.safetensors")
    with pytest.raises(ValueError, match="none of the files could be read: ") as raised, pytest.warns(UserWarning):
        load(tmp_path, skip=True)
    assert str(raised.value).count(".safetensors") == 1


@pytest.fixture
def lerobot():
    """Import what makes policies; skip where lerobot is missing."""
    pytest.importorskip("lerobot", reason="needs lerobot: make test-lerobot")
    from lerobot.configs import types
    from lerobot.policies import factory

    return types, factory


def make(lerobot, folder, kind, **options):
    """Save a policy with its normalisation; return it, the statistics of each feature, and the folder."""
    types, factory = lerobot
    torch.manual_seed(0)
    features = {name: types.PolicyFeature(types.FeatureType.STATE, (width,)) for name, width in WIDTHS.items()}
    features[ENVIRONMENT] = types.PolicyFeature(types.FeatureType.ENV, (WIDTHS[ENVIRONMENT],))
    config = factory.make_policy_config(
        kind,
        input_features=features,
        output_features={"action": types.PolicyFeature(types.FeatureType.ACTION, (DA,))},
        device="cpu",
        **options,
    )
    policy = factory.get_policy_class(kind)(config).eval()
    widths = WIDTHS | {"action": DA}
    stats = {
        name: {
            "mean": torch.randn(width),
            "std": 0.5 + torch.rand(width),
            "min": -1 - torch.rand(width),
            "max": 1 + torch.rand(width),
        }
        for name, width in widths.items()
    }
    policy.save_pretrained(folder)
    for processor in factory.make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(folder)
    return policy, stats


ACT = {
    "dim_model": 16, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1, "n_decoder_layers": 1,
    "n_vae_encoder_layers": 1, "latent_dim": 4, "chunk_size": 4, "n_action_steps": 4,
}  # fmt: skip
DIFFUSION = {"down_dims": (8, 16), "horizon": 8, "n_action_steps": 4, "n_groups": 4, "diffusion_step_embed_dim": 8}


def read(folder, states):
    """Return the policy's actions, asked for all states at once and one by one in reverse."""
    (policy,) = load(folder, trust=True).values()
    assert policy.state_dim == 5
    together = policy.act(states)
    torch.testing.assert_close(
        torch.cat([policy.act(row[None]) for row in states.flip(0)]).flip(0), together, atol=1e-5, rtol=1e-4
    )
    return together


def test_act_acts_like_lerobot(tmp_path, lerobot, generator):
    policy, stats = make(lerobot, tmp_path / "run", "act", **ACT)
    states = torch.randn(20, 5, generator=generator)
    state, environment = states.split([3, 2], 1)  # their normalisation_mapping leaves ENV as it is
    batch = {STATE: (state - stats[STATE]["mean"]) / (stats[STATE]["std"] + 1e-8), ENVIRONMENT: environment}
    expected = policy.select_action(batch) * stats["action"]["std"] + stats["action"]["mean"]
    torch.testing.assert_close(read(tmp_path / "run", states), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scheduler", ["DDIM", "DDPM"])
def test_diffusion_acts_like_lerobot(tmp_path, lerobot, generator, scheduler):
    options = {"noise_scheduler_type": scheduler, "num_inference_steps": 5}
    policy, stats = make(lerobot, tmp_path / "run", "diffusion", **DIFFUSION, **options)
    states = torch.rand(20, 5, generator=generator) * 2 - 1
    actions = read(tmp_path / "run", states)
    if scheduler == "DDPM":  # lerobot draws noise in every step; ours depends on the state alone
        assert len(np.unique(actions.numpy(), axis=0)) == len(states)
        return
    state, environment = states.split([3, 2], 1)
    low, high = stats[STATE]["min"], stats[STATE]["max"]
    scaled = {STATE: 2 * (state - low) / (high - low) - 1, ENVIRONMENT: environment}
    noise = torch.randn((1, 8, DA), generator=torch.Generator().manual_seed(0)).expand(len(states), -1, -1)
    expected = policy.select_action(scaled, noise=noise)
    low, high = stats["action"]["min"], stats["action"]["max"]
    torch.testing.assert_close(actions, (expected + 1) / 2 * (high - low) + low, atol=1e-5, rtol=1e-4)


def test_damaged_weights_are_refused(tmp_path, lerobot):
    make(lerobot, tmp_path / "run", "act", **ACT)
    save_file({"other": torch.zeros(1)}, tmp_path / "run" / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: lerobot cannot open it: RuntimeError"):
        load(tmp_path, trust=True)
