import pytest
import torch
from peers.loop import ReleasedModel


def problem(policies, generator, dtype=torch.float32):
    labels = torch.tensor([0] * 5 + [2] * 1 + [3] * 17)[torch.randperm(23, generator=generator)]
    states = torch.randn(23, 3, generator=generator, dtype=dtype)
    actions = torch.randn(policies, 23, 2, generator=generator, dtype=dtype)
    return states, actions, labels


@pytest.mark.parametrize("encoder", ["transformer", "mlp"])
@pytest.mark.parametrize("score", ["mean", "sort", "cls"])
def test_loop_scores_policies_one_by_one_alike(encoder, score, generator):
    model = ReleasedModel(3, 2, encoder=encoder, score=score, clusters=3).double().eval()
    states, actions, labels = problem(4, generator, torch.float64)
    scores = model(states, actions, labels)
    one_by_one = torch.cat([model(states, actions[p : p + 1], labels) for p in range(4)])
    torch.testing.assert_close(scores, one_by_one)


def test_loop_takes_labels_or_rows_and_offsets(generator):
    model = ReleasedModel(3, 2).eval()
    states, actions, labels = problem(2, generator)
    rows = labels.argsort(stable=True).int()
    offsets = torch.tensor([0, 5, 5, 6, 23, 23], dtype=torch.int32)
    assert torch.equal(model(states, actions, labels), model(states, actions, (rows, offsets)))


def test_loop_has_released_names():
    names = {name.rpartition(".")[0] for name in ReleasedModel(3, 2).state_dict()}
    assert {"fc.0", "fc.1", "model.0", "fc_score.0", "encoder_layer_lowlev.linear1"} <= names
    assert {f"encoder_hilev.layers.{i}.norm2" for i in range(6)} <= names
    mlp = {name.split(".")[1] for name in ReleasedModel(3, 2, encoder="mlp").state_dict() if "hilev" in name}
    assert mlp == {"0", "3", "4", "7", "8", "11", "12", "15", "16", "19", "20", "23"}
