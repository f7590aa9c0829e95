"""What only a GPU can show: the operators and the model there, against the CPU and float64."""

import operators
import pytest
import torch
from problems import TINY

from sopr_fast import ops
from sopr_fast.model import ScoringModel

KERNELS = ["segment_mean", "segment_dropout", "segment_attention"]


@pytest.mark.parametrize("name", KERNELS)
def test_cuda_operators_match_float64(name, cuda):
    operators.check(name, "cuda")


@pytest.mark.parametrize("name", KERNELS)
def test_cuda_operators_repeat_bit_for_bit_on_any_stream(name, cuda):
    one = operators.CALLS[name]
    first = operators.run(one.operator, one, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        second = operators.run(one.operator, one, device="cuda")
    torch.cuda.synchronize()
    assert all(map(torch.equal, first, second))


def test_cuda_segment_attention_of_one_long_segment(cuda, generator):
    q, k, v = torch.randn(3, 16384, 2, 32, generator=generator).to(cuda)
    offsets = torch.tensor([0, 16384], dtype=torch.int32, device=cuda)
    found = ops.segment_attention(q, k, v, offsets).cpu()
    some = torch.arange(0, 16384, 1000)
    q, k, v = (x[:, 1].double().cpu() for x in (q, k, v))
    expected = torch.softmax(q[some] / 32**0.5 @ k.T, -1) @ v
    assert (found[some, 1] - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("training", [False, True])
def test_cuda_model_scores_and_learns_as_on_the_cpu(training, cuda, generator):
    model = ScoringModel(6, TINY).train(training)
    states, columns = torch.randn(200, 4, generator=generator), torch.randn(3, 200, 2, generator=generator)
    rows = torch.randint(200, (2, 128), generator=generator, dtype=torch.int32)
    offsets = torch.tensor([[0, 5, 5, 40, 60, 61, 90, 100, 128], [0, 16, 32, 48, 64, 80, 96, 112, 128]]).int()
    rng = torch.tensor([3, 4]) if training else None

    def run(device):
        twin = ScoringModel(6, TINY).train(training).to(device)
        twin.load_state_dict(model.state_dict())
        tensors = [x.to(device) for x in (states, columns, rows, offsets)]
        scores = twin(*tensors, None if rng is None else rng.to(device))
        scores.square().sum().backward()
        return scores.detach().cpu(), torch.cat([p.grad.reshape(-1).cpu() for p in twin.parameters()])

    for mine, theirs in zip(run(cuda), run("cpu"), strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()
