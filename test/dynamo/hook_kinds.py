# Owner(s): ["module: dynamo"]
"""The five kinds of module hook behind one interface, for tests that cross kinds.

An *edit* hook maps every tensor it may change through ``t * scale + shift``. Two
such maps do not commute, so values show which hooks ran, how often and in what
order. A *watch* hook only records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils.hooks import RemovableHandle


FORWARD_KINDS = ("forward_pre", "forward")
FULL_BACKWARD_KINDS = ("backward_pre", "full_backward")
KINDS = (*FORWARD_KINDS, *FULL_BACKWARD_KINDS, "legacy_backward")
PREPENDABLE_KINDS = (*FORWARD_KINDS, *FULL_BACKWARD_KINDS)

_REGISTER = {
    "forward_pre": "register_forward_pre_hook",
    "forward": "register_forward_hook",
    "backward_pre": "register_full_backward_pre_hook",
    "full_backward": "register_full_backward_hook",
    "legacy_backward": "register_backward_hook",
}
_REGISTER_GLOBAL = {
    "forward_pre": "register_module_forward_pre_hook",
    "forward": "register_module_forward_hook",
    "backward_pre": "register_module_full_backward_pre_hook",
    "full_backward": "register_module_full_backward_hook",
    "legacy_backward": "register_module_backward_hook",
}
_DICT_NAME = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "backward_pre": "_backward_pre_hooks",
    "full_backward": "_backward_hooks",
    "legacy_backward": "_backward_hooks",
}

Hook = Callable[..., Any]


def each_with_kinds(
    values: Sequence[Any], kinds: Sequence[str] = KINDS
) -> list[tuple[Any, str]]:
    """Each value with "forward" and, in turn, with one of the other kinds.

    For behaviours in which the kind is not the point: two tests for each value
    instead of five, and all kinds are seen.
    """
    others = [kind for kind in kinds if kind != "forward"]
    return [
        (value, kind)
        for i, value in enumerate(values)
        for kind in ("forward", others[i % len(others)])
    ]


def name_each(function: Callable[..., Any], kind: str) -> str:
    """Name of the test of one pair of ``each_with_kinds``."""
    return f"{function.__name__.strip('_')}_kind_{kind}"


def register(
    module: nn.Module, kind: str, hook: Hook, **options: Any
) -> RemovableHandle:
    """Register ``hook`` on ``module`` through the public method of its kind."""
    return getattr(module, _REGISTER[kind])(hook, **options)


def register_global(kind: str, hook: Hook, **options: Any) -> RemovableHandle:
    """Register ``hook`` for all modules through the public function of its kind."""
    return getattr(nn_module, _REGISTER_GLOBAL[kind])(hook, **options)


def dict_name(kind: str) -> str:
    """Name of the attribute of ``nn.Module`` that holds hooks of ``kind``."""
    return _DICT_NAME[kind]


def hook_dict(module: nn.Module, kind: str) -> OrderedDict[Any, Hook]:
    """The very dict of ``module`` that holds its hooks of ``kind``."""
    return getattr(module, _DICT_NAME[kind])


def global_hook_dict(kind: str) -> OrderedDict[Any, Hook]:
    """The registry of ``torch.nn`` that holds the global hooks of ``kind``."""
    return getattr(nn_module, "_global" + _DICT_NAME[kind])


def mapped(values: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``values`` with every tensor changed, in tuples one level deep."""
    if isinstance(values, tuple):
        return tuple(change(v) if isinstance(v, torch.Tensor) else v for v in values)
    return change(values)


def on_change(kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Hook:
    """A hook of ``kind`` that returns what it may edit, passed through ``change``."""

    def forward_pre(module: nn.Module, args: Any) -> Any:
        return mapped(args, change)

    def forward(module: nn.Module, args: Any, output: Any) -> Any:
        return mapped(output, change)

    def backward_pre(module: nn.Module, grad_output: Any) -> Any:
        return mapped(grad_output, change)

    def backward(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return mapped(grad_input, change)

    hooks: dict[str, Hook] = {
        "forward_pre": forward_pre,
        "forward": forward,
        "backward_pre": backward_pre,
        "full_backward": backward,
        "legacy_backward": backward,
    }
    return hooks[kind]


def edit(kind: str, scale: float = 2.0, shift: float = 0.5) -> Hook:
    """A hook of ``kind`` that maps what it may edit through ``t * scale + shift``."""
    return on_change(kind, lambda t: t * scale + shift)


def watch(log: list[Any], name: Any) -> Hook:
    """A hook of any kind that appends ``name`` to ``log`` and changes nothing."""

    def hook(module: nn.Module, *values: Any) -> None:
        log.append(name)

    return hook
