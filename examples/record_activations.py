"""Read what the layers of a transformer put out, after it was compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn


def main(backend: str = "inductor") -> int:
    torch.manual_seed(0)
    # A digit is a sequence of eight rows of eight pixels.
    rows = torch.tensor(load_digits().images[:32], dtype=torch.float32) / 16
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.TransformerEncoder(layer, 3))
    compiled = torch.compile(model, backend=backend)
    compiled(rows)  # there is no hook yet

    kept: dict[str, torch.Tensor] = {}

    def recorder(name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            kept[name] = output.detach()

        return record

    def record_one_call(call: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
        kept.clear()
        call(rows)
        return kept.copy()

    handles = [
        module.register_forward_hook(recorder(name))
        for name, module in model.named_modules()
        if name.endswith(("linear1", "linear2", "norm1", "norm2"))
    ]
    eager, hooked = record_one_call(model), record_one_call(compiled)
    for handle in handles:
        handle.remove()
    removed = record_one_call(compiled)

    good = list(eager) == list(hooked) and not removed
    for before, after in zip(eager.values(), hooked.values()):
        good = good and torch.allclose(before, after, rtol=1e-4, atol=1e-5)
    print(
        f"activations recorded: {len(hooked)} of {len(handles)} while hooked, "
        f"{len(removed)} afterwards; {'as eager' if good else 'DIFFERENT FROM EAGER'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
