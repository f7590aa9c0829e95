"""Perceptrons of `ops.mlp` against torch.nn and torch.optim, and what they promise of threads and batches."""

import itertools

import pytest
import torch
from torch import nn

from sopr_fast import ops


def module(row, sizes, activation):
    """Return torch.nn's perceptron with these parameters, in float64."""
    layers = []
    for width, next_width in itertools.pairwise(sizes):
        layer = nn.Linear(width, next_width, dtype=torch.float64)
        weight, bias, row = row.double().split([width * next_width, next_width, len(row) - (width + 1) * next_width])
        layer.weight.data, layer.bias.data = weight.view(next_width, width).clone(), bias.clone()
        layers += [layer, nn.ReLU() if activation == "relu" else nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [[1, 1], [3, 64, 2], [17, 48, 49, 6], [4, 256, 300, 1]])
@pytest.mark.parametrize("batch", [1, 64, 65, 200])
def test_mlp_is_that_of_torch_nn(sizes, batch, activation, device, generator):
    parameters = torch.randn(2, ops.mlp_size(sizes), generator=generator) / max(sizes) ** 0.5
    x = torch.randn(2, batch, sizes[0], generator=generator)
    expected = torch.stack([module(p, sizes, activation)(each.double()) for p, each in zip(parameters, x, strict=True)])
    out = ops.mlp(x.to(device), parameters.to(device), sizes, activation=activation)
    error = (out.cpu() - expected).abs().max()
    assert error <= 3e-6 * expected.abs().max() + 1e-7


def test_training_is_that_of_torch_optim(device, generator):
    sizes, steps = [5, 40, 30, 2], 12
    parameters = 0.3 * torch.randn(2, ops.mlp_size(sizes), generator=generator)
    x, target = torch.randn(2, 90, 5, generator=generator), 2 * torch.randn(2, 90, 2, generator=generator)
    weight = torch.rand(2, 90, 2, generator=generator)
    changed = {name: torch.zeros_like(parameters) for name in ("means", "squares", "average")}
    mine = {key: value.to(device) for key, value in (changed | {"parameters": parameters.clone()}).items()}
    thresholds = torch.tensor([0.5, torch.inf])
    options = {"rate": 1e-2, "decay": 0.1, "average_rate": 0.2}
    tensors = {"x": x, "target": target, "weight": weight, "thresholds": thresholds}
    losses = [
        ops.mlp_step(**{k: v.to(device) for k, v in tensors.items()}, **mine, sizes=sizes, step=step + 1, **options)
        for step in range(steps)
    ]
    for c, row in enumerate(parameters):
        network = module(row, sizes, "relu")
        optimizer = torch.optim.AdamW(network.parameters(), 1e-2, weight_decay=0.1)
        average = torch.zeros(len(row), dtype=torch.float64)
        for step in range(steps):
            out = network(x[c].double())
            huber = nn.functional.huber_loss(out[:, 0], target[c, :, 0].double(), reduction="none", delta=0.5)
            square = 0.5 * (out[:, 1] - target[c, :, 1]).square()
            loss = (huber * weight[c, :, 0] + square * weight[c, :, 1]).mean()
            torch.testing.assert_close(losses[step][c].cpu().double(), loss.detach(), atol=1e-6, rtol=1e-5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            final = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
            average.lerp_(final, 0.2)
        for name, expected in (("parameters", final), ("average", average)):
            torch.testing.assert_close(mine[name][c].cpu().double(), expected, atol=2e-5, rtol=0)


def test_a_row_does_not_depend_on_its_batch(generator):
    sizes = [7, 80, 3]
    parameters = torch.randn(1, ops.mlp_size(sizes), generator=generator)
    x = torch.randn(150, 7, generator=generator)
    whole = ops.mlp(x, parameters, sizes)[0]
    assert all(torch.equal(ops.mlp(x[i : i + 1], parameters, sizes)[0, 0], whole[i]) for i in range(150))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_values_that_are_not_finite_reach_the_output(activation):
    parameters = torch.ones(1, ops.mlp_size([2, 3, 1]))
    x = torch.tensor([[torch.nan, 0.0], [torch.inf, 0.0], [-torch.inf, 0.0], [1e30, 0.0]])
    expected = module(parameters[0], [2, 3, 1], activation)(x.double()).float()
    torch.testing.assert_close(ops.mlp(x, parameters, [2, 3, 1], activation=activation)[0], expected, equal_nan=True)


def test_no_rows_give_no_outputs_and_no_gradients():
    parameters = torch.ones(2, ops.mlp_size([2, 3, 1]), requires_grad=True)
    out = ops.mlp(torch.empty(2, 0, 2), parameters, [2, 3, 1])
    assert out.shape == (2, 0, 1)
    assert not torch.autograd.grad(out.sum(), parameters)[0].any()
