"""Every operator on every device, on the inputs of operators.py."""

import operators
import pytest
import torch


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_writes_all_of_its_outputs(name, device, poison):
    assert torch.empty(3).isnan().all()
    operators.check(name, device)


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_repeats_bit_for_bit(name, device):
    one = operators.CALLS[name]
    first, second = (operators.run(one.operator, one, device=device) for _ in range(2))
    assert all(map(torch.equal, first, second))
