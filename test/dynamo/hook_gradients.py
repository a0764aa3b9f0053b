"""What the tests of backward hooks share: hooks that log, and how gradients compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hook_programs import Run


BACKENDS = ("eager", "aot_eager", "inductor")
AOT_BACKENDS = ("aot_eager", "inductor")


def summary(values: Any) -> Any:
    """Gradients as a log can compare them: shapes and rounded sums, None for None."""
    if values is None:
        return None
    if isinstance(values, torch.Tensor):
        total = round(float(values.detach().double().sum()), 3)
        return tuple(values.shape), total + 0.0
    return type(values).__name__, [summary(value) for value in values]


def logging(log: list[Any], name: Any) -> Any:
    """A hook of any backward kind that logs all it is given."""

    def hook(module: nn.Module, *gradients: Any) -> None:
        log.append((name, type(module).__name__, *map(summary, gradients)))

    return hook


def growing(log: list[Any], name: Any, factor: float = 1.25) -> Any:
    """A hook of any backward kind that logs, and makes the gradients larger."""

    def hook(module: nn.Module, *gradients: Any) -> Any:
        log.append((name, *map(summary, gradients)))
        return tuple(None if g is None else g * factor for g in gradients[0])

    return hook


def watch_all(run: Run, *, edit: bool = False) -> None:
    """Put a full backward hook and a backward pre-hook on every module of ``run``."""
    make = growing if edit else logging
    for name, module in run.model.named_modules():
        module.register_full_backward_pre_hook(make(run.log, f"pre {name}"))
        module.register_full_backward_hook(make(run.log, f"full {name}"))


def ones(*shape: int, value: float = 1.0) -> torch.Tensor:
    """A leaf of ``shape`` (``(3, 4)`` by default) that requires grad."""
    return torch.full(shape or (3, 4), value, requires_grad=True)


def attempt(run: Run, backward: Callable[[], Any]) -> None:
    """Run ``backward`` and record its error, or the gradients it left."""
    try:
        backward()
    except Exception as error:
        message = str(error).split("\n")[0]
        run.steps.append([type(error).__name__, message])
        return
    grads = [p.grad for p in run.model.parameters()]
    run.steps.append([None if g is None else g.clone() for g in grads])
    run.model.zero_grad(set_to_none=True)
