"""Every operator on every device, on the inputs of operators.py."""

import operators
import pytest
import torch

from sopr_fast import _native
from sopr_fast.ops import library


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_writes_all_of_its_outputs(name, device, poison):
    assert torch.empty(3).isnan().all()
    operators.check(name, device)


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_repeats_bit_for_bit(name, device):
    one = operators.CALLS[name]
    first, second = (operators.run(one.operator, one, device=device) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_does_not_depend_on_torch_s_defaults(name, set_default_dtype):
    one = operators.CALLS[name]
    expected = one.operator(**one.arguments)
    set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        found = one.operator(**one.arguments)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_without_a_kernel_is_the_reference_and_says_so_once(name, device, monkeypatch, caplog):
    monkeypatch.setattr(_native, "_cuda", None)
    monkeypatch.setattr(library, "has_kernel", lambda device: False)
    library._say_that_the_reference_runs.cache_clear()
    caplog.set_level("INFO")
    operators.check(name, device)
    operators.check(name, device)
    said = [record.message for record in caplog.records]
    assert said[0].startswith(name.split()[0].replace("plusplus", "init"))
    assert said[0].endswith(f": no kernel for {device.type}, running the reference") and len(set(said)) == len(said)


def test_devices_with_kernels(monkeypatch):
    def have():
        return [device for device in ("cpu", "cuda", "mps", "meta") if library.has_kernel(device)]

    monkeypatch.setattr(_native, "_cuda", None)
    assert have() == ["cpu", "meta"]
    monkeypatch.setattr(_native, "_cuda", _native._cpu)
    assert have() == ["cpu", "cuda", "meta"]
