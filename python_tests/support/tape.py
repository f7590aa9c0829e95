"""A stand-in for CUDA graphs on the CPU: records a function's operators and runs them again on the same tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sopr_fast.runtime import devices, graphs

aten = torch.ops.aten
WAITING = {  # of a GPU: what they return, or its shape, depends on values; or they copy from the host
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.lift_fresh.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
}
IDLE = {"empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view", "detach"}  # launch nothing


def tensors_of(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Tape(TorchDispatchMode):
    """Operators in the order of their calls; an operator for which a GPU's host would wait raises."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        keywords = keywords or {}
        if operator in WAITING:
            raise RuntimeError(f"the host waits in {operator}")
        indexes = operator.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
        if indexes and any(index.dtype == torch.bool for index in tensors_of(arguments[1])):
            raise RuntimeError(f"the host waits in {operator} for the number of true elements")
        results = operator(*arguments, **keywords)
        if operator.namespace != "profiler":
            self.calls.append((operator, arguments, keywords, results))
        return results

    @torch.no_grad()
    def replay(self):
        for operator, arguments, keywords, results in self.calls:
            for old, new in zip(tensors_of(results), tensors_of(operator(*arguments, **keywords)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def launches(self):
        """Return the names of torch's operators that launch kernels, and of ours."""
        theirs, ours = [], []
        for operator, *_ in self.calls:
            if operator.namespace == "sopr_fast":
                ours.append(operator.overloadpacket.__name__)
            elif not operator.is_view and operator.overloadpacket.__name__ not in IDLE:
                theirs.append(operator.overloadpacket.__name__)
        return theirs, ours


class Graph:
    """Takes the place of torch.cuda.CUDAGraph; what capture did counts as the first replay."""

    def __init__(self, function):
        self.tape, self.replays = Tape(), 0
        with self.tape:
            function()

    def replay(self):
        self.replays += 1
        if self.replays > 1:
            self.tape.replay()


def stand_in(monkeypatch, *, captures=True):
    """Run what would run on a GPU on the CPU; return the list of graphs that will be captured."""
    made = []

    def capture(function, device):
        if not captures:
            raise RuntimeError("not here")
        made.append(Graph(function))
        return made[-1]

    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)
    monkeypatch.setattr(graphs, "can_capture", lambda device: True)
    monkeypatch.setattr(graphs, "capture", capture)
    return made
