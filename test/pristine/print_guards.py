"""Compile five models with hook guards skipped and print every guard they get.

Run by ``test_guard_lists`` in two interpreters, with our torch and with the pristine
one, so that it may use nothing of ours. Numbers that differ from one process to the
next, and where in torch's files a guard was made, are left out.
"""

from __future__ import annotations

import re

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list


class Residual(nn.Module):
    """``(N, 8) -> (N, 8)`` with one child at two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = self.first
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.again(self.first(x)))


class Hooked(nn.Module):
    """``(N, 8) -> (N, 4)`` with hooks in an order and with marks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.head = nn.Linear(8, 4)
        body, head = self.body, self.head
        body.register_forward_hook(lambda module, args, out: out * 2)
        body.register_forward_hook(lambda module, args, out: out + 1, prepend=True)
        head.register_forward_pre_hook(
            lambda module, args, kwargs: (args, kwargs), with_kwargs=True
        )
        head.register_forward_hook(lambda module, args, out: None, always_call=True)
        self.tail = nn.Linear(4, 4)
        self.tail.register_forward_hook(lambda module, args, out: out / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(self.body(x))
        torch._dynamo.graph_break()
        return self.tail(x)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (8,)),
    "residual": (Residual, (8,)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.1), nn.Flatten()
        ),
        (1, 8, 8),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), (3, 8)),
    "hooked": (Hooked, (8,)),
}


def main() -> None:
    torch._dynamo.config.skip_nnmodule_hook_guards = True
    for name, (make, shape) in MODELS.items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = make()

        def step(x: torch.Tensor, model: nn.Module = model) -> torch.Tensor:
            return model(x)

        torch.compile(step, backend="eager")(torch.ones(2, *shape))
        for entry in _debug_get_cache_entry_list(step.__code__):
            text = re.sub(r"\b\d{6,}\b", "ID", str(entry.guard_manager))
            text = re.sub(r"  # .*", "", text)
            print(f"== {name}\n{text}")


if __name__ == "__main__":
    main()
