"""What backward hooks cost: time of a training step of a transformer, by mode.

A full backward hook on every Linear and every block changes the gradients. All modes
are interleaved in one run; the table gives medians, quartiles and ratios:

    python benchmarks/backward_hooks.py [--pristine PYTHON]

where PYTHON is one that has the pristine release, whose ``torch.compile`` breaks the
graph at every such hook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.config
from torch import nn

from interleaved import BATCH, hooked, run, TOKENS, transformer, WIDTH


OURS = ("eager", "no hooks", "called at run time", "traced", "compiled autograd")
PRISTINE = ("pristine, no hooks", "pristine")


def scale(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    """A full backward hook that is nothing but tensor code."""
    return (grad_input[0] * 0.999,)


def step_of(mode: str, blocks: int) -> Callable[[], None]:
    """A training step of a new model in one of the modes, compiled and run twice."""
    model = transformer(blocks)
    if "no hooks" not in mode:
        for module in hooked(model):
            module.register_full_backward_hook(scale)
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    options: dict[str, Any] = {}
    if mode == "called at run time":
        options["nn_module_hook_policy"] = "call"
    if mode == "compiled autograd":
        options["compiled_autograd"] = True

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    def train(x: torch.Tensor) -> None:
        forward(x).backward()

    # Code objects of their own: nothing compiled before counts.
    for function in (forward, train):
        name = f"{function.__name__}_{mode}_{blocks}".replace(" ", "_")
        function.__code__ = function.__code__.replace(co_name=name)
    if mode == "compiled autograd":
        train = torch.compile(train)
    elif mode != "eager":
        forward = torch.compile(forward)

    def step() -> None:
        with torch._dynamo.config.patch(options):
            train(x)
        x.grad = None
        model.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    return step


if __name__ == "__main__":
    run(__doc__, step_of, OURS, PRISTINE)
