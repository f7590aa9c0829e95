import dataclasses
import itertools

import pytest
import torch
from peers.loop import ReleasedModel
from peers.released import from_released
from support.encoder_problems import SMALL
from support.encoder_problems import problem as segment_problem
from support.problems import train_scores

from sopr_fast import Config
from sopr_fast.runtime import devices
from sopr_fast.sopr import input_norm
from sopr_fast.sopr.input_norm import row_moments
from sopr_fast.sopr.model import ScoringModel

STATE_DIM, ACTION_DIM = 5, 3
SIZES = [1, 20, 3, 15, 8, 30, 12, 7, 19, 11, 14, 10]  # of clusters
CLUSTERS = len(SIZES)


def problem(sizes=SIZES, **options):
    shape = {"policies": 3, "subsets": 2, "distinct": 400} | options
    return segment_problem(sizes, ds=STATE_DIM, dc=ACTION_DIM, spare=0, **shape, **SMALL)[0][:4]


def released(generator, **options):
    torch.manual_seed(int(torch.randint(1000, (1,), generator=generator)))
    model = ReleasedModel(STATE_DIM, ACTION_DIM, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        model.fc[1].running_mean.normal_(generator=generator)
        model.fc[1].running_var.uniform_(0.5, 2, generator=generator)
    return model.eval()


def oracle_scores(model, states, columns, rows, offsets):
    model = model.double()
    scores = [
        model(states.double(), columns.double(), (subset.long(), bounds))
        for subset, bounds in zip(rows, offsets, strict=True)
    ]
    return torch.stack(scores, 1)


LARGE = {"sizes": [64] * 64, "policies": 2, "subsets": 1, "distinct": 4096}
EMPTY = {"sizes": [0, 21, 3, 15, 0, 0, 50, 7, 19, 11, 14, 10]}


@pytest.mark.parametrize(
    ("encoder", "shape"),
    [
        *((encoder, {"policies": policies}) for encoder in ("transformer", "mlp") for policies in (1, 4)),
        *(("transformer", shape) for shape in (EMPTY, LARGE)),
    ],
)
def test_scores_of_a_released_checkpoint(encoder, shape, generator):
    oracle = released(generator, encoder=encoder)
    ours = from_released(oracle.state_dict())
    data = problem(**shape)
    with torch.no_grad():
        expected, actual = oracle_scores(oracle, *data), ours(*data)
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("encoder", ["transformer", "mlp"])
def test_model_takes_no_policies_and_only_float32(encoder, generator):
    model = ScoringModel(STATE_DIM + ACTION_DIM, Config(encoder=encoder, clusters=CLUSTERS)).eval()
    states, columns, rows, offsets = problem()
    assert model(states, columns[:0], rows, offsets).shape == (0, 2)
    with pytest.raises(TypeError, match=r"must be torch.float32, got torch.float64"):
        model.double()(states.double(), columns.double(), rows, offsets)


# Zero whatever the data: a shift before batch norm, of all keys, or of all scores.
EXACTLY_ZERO = ("projection.bias", "score.bias")


@pytest.mark.parametrize("encoder", ["transformer", "mlp"])
def test_gradients_match_float64_autograd(encoder, generator):
    oracle = released(generator, encoder=encoder)
    ours = from_released(oracle.state_dict()).train()
    ours.config = dataclasses.replace(ours.config, dropout=0.0)
    oracle = oracle.double().train()
    for module in oracle.modules():
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    states, columns, rows, offsets = problem(policies=6, subsets=1)
    weights = torch.randn(6, 1, generator=generator)
    weights -= weights.mean()
    (train_scores(ours, states, columns, rows, offsets, torch.tensor([0, 0])) * weights).sum().backward()
    (oracle_scores(oracle, states, columns, rows, offsets) * weights).sum().backward()
    gradients = {name: p.grad for name, p in oracle.named_parameters() if p.grad is not None}
    expected = _renamed_gradients(gradients, oracle)
    actual = {name: torch.zeros_like(p) if p.grad is None else p.grad.double() for name, p in ours.named_parameters()}
    largest = max(x.norm() for x in (weights, *expected.values()))
    last = "high.5.1.bias" if encoder == "mlp" else "high.5.norm2.bias"
    for name, gradient in expected.items():
        error = (actual[name] - gradient).norm()
        if name in (*EXACTLY_ZERO, last):
            assert error <= 1e-6 * largest, name
        else:
            if name.endswith("in_proj_bias"):  # its key third is exactly zero
                keep = torch.ones(len(gradient), dtype=bool)
                keep[len(gradient) // 3 : 2 * len(gradient) // 3] = False
                assert actual[name][~keep].norm() <= 1e-6 * largest
                error, gradient = (actual[name] - gradient)[keep].norm(), gradient[keep]
            assert error <= 1e-4 * gradient.norm(), name


def _renamed_gradients(gradients, oracle):
    """The oracle's gradients under our names, by sending them through the loader as if they were weights."""
    state = {name: torch.zeros_like(value) for name, value in oracle.state_dict().items()} | gradients
    loaded = dict(from_released(state).double().named_parameters())
    return {name: value.detach() for name, value in loaded.items()}


def test_evaluation_normalises_by_all_rows_seen_under_the_weights_as_they_are(generator):
    ours = from_released(released(generator).state_dict()).train()
    batches = [problem(subsets=1, seed=seed) for seed in range(2)]
    for states, *rest in batches:
        states += 100.0
        train_scores(ours, states, *rest, torch.tensor([1, 2]))
    with torch.no_grad():
        ours.projection.weight += 0.1 * torch.randn(ours.projection.weight.shape, generator=generator)
    means, variances = [], []
    for states, columns, rows, _ in batches:
        index = rows.flatten().long()
        x = torch.cat([states[index].expand(3, -1, -1), columns[:, index]], -1).flatten(0, 1).double()
        projected = x @ ours.projection.weight.double().T + ours.projection.bias.double()
        means.append(projected.mean(0))
        variances.append(projected.var(0))
    ours.eval()
    torch.testing.assert_close(ours.norm.running_mean.double(), sum(means) / 2, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(ours.norm.running_var.double(), sum(variances) / 2, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("widths", [{}, {"low_feedforward": 190, "high_feedforward": 256}])
def test_an_untrained_mlp_passes_its_input_through(widths, generator):
    model = ScoringModel(8, Config(encoder="mlp", **widths))
    x = torch.randn(5, 64, generator=generator)
    for first, second in (*model.low, *model.high):
        torch.testing.assert_close(second(first(x).relu()), x, rtol=1e-5, atol=1e-5)


def test_layers_of_a_stack_start_alike_and_weights_depend_only_on_the_seed():
    first, *others = (layer.state_dict() for layer in ScoringModel(8, Config()).high)
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)
    one, same, other = (ScoringModel(8, Config(encoder="mlp"), seed=seed).low[0][0].weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_moments_on_a_gpu_do_not_depend_on_how_processes_share_policies(generator, monkeypatch):
    """Libraries choose kernels by shapes: these are always those of eight policies."""
    states, columns, rows, _ = problem(policies=21)
    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)
    shapes, of_policies = set(), input_norm._policy_moments
    monkeypatch.setattr(
        input_norm, "_policy_moments", lambda drawn, taken: (shapes.add(taken.shape), of_policies(drawn, taken))[1]
    )

    def moments(*bounds):
        """Return what the last process gets, each of which has the policies between two bounds."""
        parts = []
        for first, last in itertools.pairwise(bounds):
            everyone = row_moments(
                states, columns[first:last], rows, [], lambda own: parts.append(own) or torch.cat(parts)
            )
        return everyone

    for bounds in ((0, 11, 21), (0, 0, 5, 21)):
        torch.testing.assert_close(moments(*bounds), moments(0, 21), rtol=1e-12, atol=1e-12)
    assert shapes == {(8, rows.numel(), columns.shape[2])}
