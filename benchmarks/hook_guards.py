"""What it costs to notice changed hooks: time of a compiled call, by model size.

The backend computes nothing, so that a call is its guards. Modes are interleaved in one
process; the table gives medians, the spread (quartiles) and the ratio to skipping.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch._dynamo
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._dynamo.utils import counters


BLOCKS = (10, 50, 100)
MODES = {"default": False, "skip": True}
ROUNDS, CALLS = 31, 50


class Block(nn.Module):
    """``(N, 2) -> (N, 2)``, six modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(2), nn.ReLU()
        self.up, self.down, self.drop = nn.Linear(2, 2), nn.Linear(2, 2), nn.Dropout(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(self.act(self.up(self.norm(x)))))


def call_of(blocks: int, skip: bool, hooked: bool) -> Callable[[], object]:
    """A compiled call of a new model whose graph returns its input at once."""
    model = nn.Sequential(*[Block() for _ in range(blocks)])
    if hooked:
        for module in model:
            module.register_forward_hook(lambda module, args, out: out * 2)
            module.register_forward_hook(lambda module, args, out: out + 1)
    x = torch.ones(1, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    # A code object of its own: one cache entry to check, whatever was compiled before.
    step.__code__ = step.__code__.replace(co_name=f"step_{blocks}_{skip}_{hooked}")
    compiled = torch.compile(step, backend=lambda gm, inputs: lambda *args: (x,))
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip):
        compiled(x)
    return lambda: compiled(x)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    table = Table("modules", "hooks", "mode", "us per call", "quartiles", "ratio")
    for blocks in BLOCKS:
        for hooked in (False, True):
            times: dict[str, list[float]] = {mode: [] for mode in MODES}
            # Grad mode is guarded, so it is the same for compiling and calling.
            with torch.no_grad():
                calls = {m: call_of(blocks, skip, hooked) for m, skip in MODES.items()}
                compiled = counters["stats"]["unique_graphs"]
                for _ in range(ROUNDS):
                    for mode, call in calls.items():
                        times[mode].append(seconds(call) * 1e6)
            if counters["stats"]["unique_graphs"] != compiled:
                raise AssertionError("compiled while measuring: not the time of guards")
            base = statistics.median(times["skip"])
            for mode, taken in times.items():
                low, middle, high = statistics.quantiles(taken, n=4)
                table.add_row(
                    str(blocks * 6 + 1),
                    "2 a block" if hooked else "none",
                    mode,
                    f"{middle:.1f}",
                    f"{low:.1f} to {high:.1f}",
                    f"{middle / base:.2f}",
                )
    Console().print(table)


if __name__ == "__main__":
    main()
