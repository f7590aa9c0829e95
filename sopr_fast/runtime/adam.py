"""Adam in one fused call. `torch.optim` would import torch._dynamo, which costs every process 0.8 s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_EPS = 1e-8


class Adam:
    """Adam (Kingma & Ba 2015) of tensors that stay in place, with weight decay relative to the rate (AdamW).

    On a GPU the rate is a () float32 tensor, so that a CUDA graph reads its value.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        rate: float | Tensor,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        decay: float = 0.0,
    ) -> None:
        self.parameters, self.rate = list(parameters), rate
        self._betas, self._decay = betas, decay
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._steps = [torch.zeros((), dtype=torch.float32, device=each.device) for each in self.parameters]

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...] | list[Tensor], most: float = 0.0) -> None:
        """Move all parameters by gradients, which are first scaled to a norm of at most `most`, unless that is 0."""
        if most:
            norm = torch.nn.utils.get_total_norm(gradients)
            gradients = torch._foreach_mul(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
        torch._foreach_add_(self._steps, 1)
        torch._fused_adamw_(
            self.parameters,
            gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            lr=self.rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._decay,
            eps=_EPS,
            amsgrad=False,
            maximize=False,
        )

    def next_step(self) -> dict[str, Any]:
        """Count a step of a single tensor, which `ops.mlp_step` takes, and return its options."""
        (means,), (squares,), (step,) = self._means, self._squares, self._steps
        step += 1
        options = {"rate": self.rate, "betas": self._betas, "decay": self._decay}
        return {"means": means, "squares": squares, "step": int(step), **options}

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the state, named "name.parameter.key", for a checkpoint."""
        state = {"step": self._steps, "mean": self._means, "square": self._squares}
        return {f"{name}.{i}.{key}": value for key, values in state.items() for i, value in enumerate(values)}
