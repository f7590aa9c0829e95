"""The encoder of a training step: blocks of policies in one call, with activations kept or computed again."""

import pytest
import torch
from support.encoder_problems import problem

from sopr_fast import ops
from sopr_fast.ops.segment_encoder_blocks import Arena, segment_encoder_blocks

LOW = {"width": 24, "layers": 2, "heads": 2, "feedforward": 40, "project": True, "level": 0}
HIGH = {"width": 16, "layers": 3, "heads": 4, "feedforward": 50, "project": False, "level": 1}
BLOCKS = (3, 1, 4)
EVERYTHING = 1 << 30


def block_problem(shape, generator):
    """Return inputs of 8 policies, one cluster of which is empty, and a gradient of the output."""
    states = 4 if shape["project"] else 0
    tensors, _ = problem([7, 0, 23, 11, 17], policies=sum(BLOCKS), subsets=2, ds=states, distinct=70, **shape)
    return tensors, torch.randn(sum(BLOCKS), 2, 5, shape["width"], generator=generator)


def in_one_call(tensors, grad, shape, arena, **options):
    states, columns, rows, offsets, parameters = tensors
    arena.reset()
    leaves = columns.clone().requires_grad_(), parameters.expand(len(BLOCKS), -1).requires_grad_()
    out = segment_encoder_blocks(
        states, leaves[0], rows, offsets, leaves[1], blocks=BLOCKS, arena=arena, pool=True, **shape, **options
    )
    return out.detach(), *torch.autograd.grad((out * grad).sum(), leaves)


def block_by_block(tensors, grad, shape, **options):
    states, columns, rows, offsets, parameters = tensors
    results, begin, base = [], 0, options.pop("segment_base")
    for count in BLOCKS:
        leaves = columns[begin : begin + count].clone().requires_grad_(), parameters.clone().requires_grad_()
        first = base + begin * offsets[:, 1:].numel()
        out = ops.segment_encoder(
            states, leaves[0], rows, offsets, leaves[1], pool=True, segment_base=first, **shape, **options
        )
        grads = torch.autograd.grad((out * grad[begin : begin + count]).sum(), leaves)
        results.append((out.detach(), *grads))
        begin += count
    outs, columns_grads, parameters_grads = zip(*results, strict=True)
    return torch.cat(outs), torch.cat(columns_grads), torch.stack(parameters_grads)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("budget", [0, 400_000, EVERYTHING], ids=["nothing kept", "some kept", "all kept"])
@pytest.mark.parametrize("shape", [LOW, HIGH], ids=["low", "high"])
def test_one_call_has_the_bits_of_a_call_for_each_block(shape, budget, precision, generator):
    tensors, grad = block_problem(shape, generator)
    options = {"dropout": 0.3, "rng": torch.tensor([3, 4]), "precision": precision, "segment_base": 20}
    actual = in_one_call(tensors, grad, shape, Arena(budget), **options)
    expected = block_by_block(tensors, grad, shape, **options)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_an_arena_is_used_again_and_within_its_budget(generator):
    tensors, grad = block_problem(LOW, generator)
    options = {"dropout": 0.0, "rng": None, "precision": "fp32", "segment_base": 0}
    arena = Arena(400_000)
    first = in_one_call(tensors, grad, LOW, arena, **options)
    places = [buffer.data_ptr() for buffer in arena._buffers]
    second = in_one_call(tensors, grad, LOW, arena, **options)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert [buffer.data_ptr() for buffer in arena._buffers] == places
    _, kept = Arena(400_000).take(30_000, 8)
    assert kept == 3  # of 4 bytes each
