"""What hooks that record cost: time of a training step of a transformer, by mode.

A forward hook on every Linear and every block appends its detached output to a list,
which is emptied every ten steps, and counts. All modes are interleaved in one run; the
table gives medians, quartiles, ratios, and the time to the third step, most of which is
compilation; the number of graphs goes to standard error:

    python benchmarks/recording_hooks.py [--pristine PYTHON]

where PYTHON is one that has the pristine release, which compiles anew at each step
until it gives up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

from interleaved import BATCH, hooked, run, TOKENS, transformer, WIDTH


OURS = ("eager", "eager, recording", "no hooks", "recording", "recording live")
PRISTINE = ("pristine, no hooks", "pristine")


def step_of(mode: str, blocks: int) -> Callable[[], None]:
    """A training step of a new model in one of the modes, compiled and run twice."""
    model = transformer(blocks)
    kept: list[torch.Tensor] = []
    calls = [0]

    def record(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        kept.append(out.detach())
        calls[0] += 1

    def record_live(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        kept.append(out)
        calls[0] += 1

    if mode not in ("eager", "no hooks", "pristine, no hooks"):
        for module in hooked(model):
            module.register_forward_hook(record_live if "live" in mode else record)
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    # A code object of its own: nothing compiled before counts.
    name = f"forward_{mode}_{blocks}".replace(" ", "_").replace(",", "")
    forward.__code__ = forward.__code__.replace(co_name=name)
    graphs = counters["stats"]["unique_graphs"]
    compiled = forward if mode.startswith("eager") else torch.compile(forward)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps % 10 == 0:
            kept.clear()
        compiled(x).backward()
        x.grad = None
        model.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    graphs = counters["stats"]["unique_graphs"] - graphs
    print(f"{blocks} blocks, {mode}: {graphs} graphs in 3 steps", file=sys.stderr)
    return step


if __name__ == "__main__":
    run(__doc__, step_of, OURS, PRISTINE)
