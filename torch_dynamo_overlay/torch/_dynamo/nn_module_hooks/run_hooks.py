"""Calls forward hooks at run time, and sees to it that they do what they promised.

Called by the bytecode that ``forward_variables`` makes and by an operator of
``call_op``. Must not import Dynamo.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def call_hook(hook: Callable[..., Any], grad_mode: bool, *args: Any) -> None:
    """Call a forward hook, or pre-hook, that changes nothing of the module's call.

    Args:
        hook: the hook.
        grad_mode: whether autograd recorded where eager would have called it.
        args: what it is called with. None stands for what it does not look at.

    Raises:
        RuntimeError: when it does what it seemed not to do: return a value other than
            the last argument, or edit a tensor that it is given.
    """
    before: list[tuple[torch.Tensor, int]] = []
    _note_versions(args[1:], before)
    if torch.is_grad_enabled() == grad_mode:
        result = hook(*args)
    else:
        with torch.set_grad_enabled(grad_mode):
            result = hook(*args)
    if result is not None and result is not args[-1]:
        raise RuntimeError(_wrong(hook, "returned a value"))
    for tensor, version in before:
        if tensor._version != version:
            raise RuntimeError(_wrong(hook, "edited a tensor that it was given"))


def _wrong(hook: Callable[..., Any], what: str) -> str:
    return (
        f"The hook {getattr(hook, '__qualname__', hook)} {what}, which its code did "
        "not show, when the graph had already run. Set "
        'torch._dynamo.config.nn_module_hook_policy = "trace", or call the module '
        "outside of compiled code. See docs/nn_module_hooks.md of torch-hooks, "
        "'Hooks that record'."
    )


def _note_versions(values: Iterable[Any], to: list[tuple[torch.Tensor, int]]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            # Tensors of inference mode have no version.
            if not value.is_inference():
                to.append((value, value._version))
        elif isinstance(value, (tuple, list)):
            _note_versions(value, to)
        elif isinstance(value, dict):
            _note_versions(value.values(), to)
