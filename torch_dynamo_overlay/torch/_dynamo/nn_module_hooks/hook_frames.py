"""Keeps Dynamo from compiling hooks by themselves, where eager code calls them.

What such a frame reads is guarded, so a hook with state would be compiled at each call.
Used by ``guards`` and ``forward_variables`` where they break the graph. Must not import
these.
"""

from __future__ import annotations

import types
from typing import Any, TYPE_CHECKING

from torch._C._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo.types import FrameAction, FrameExecStrategy

from .hook_code import effects_of, ReturnsValue
from .hook_identity import function_of
from .hook_values import is_torch, Unclear
from .state import global_hook_dict


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.nn import Module


_ARGUMENTS = {"_forward_pre_hooks": 2, "_forward_hooks": 3}
_SKIP_ALL = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)


def run_restless_hooks_eagerly(module: Module) -> None:
    """See that no forward hook with state is compiled when eager code calls ``module``.

    Args:
        module: the module, with the hooks it has now.
    """
    for hook, n in forward_hooks(module):
        try:
            effects_of(hook, module, n)
        except ReturnsValue as result:
            if not result.effects.restless:
                continue
        except Unclear:
            continue
        run_eagerly(hook)


def forward_hooks(module: Module) -> Iterator[tuple[Callable[..., Any], int]]:
    """Each forward hook and pre-hook that calling a module runs, global ones too.

    Args:
        module: the module.

    Returns:
        Pairs of hook and number of its arguments.
    """
    own = module.__dict__
    for name, n in _ARGUMENTS.items():
        marks = f"{name}_with_kwargs"
        with_kwargs = {*own[marks], *global_hook_dict(marks)}
        hooks = {**global_hook_dict(name), **own[name]}
        for hook_id, hook in hooks.items():
            yield hook, n + (hook_id in with_kwargs)


def run_eagerly(hook: Callable[..., Any]) -> None:
    """Run a hook, and what it calls, eagerly when it is not part of another frame.

    Args:
        hook: the hook. Nothing is done about hooks of PyTorch's own, among them
            functions that ``torch.compile`` has returned.
    """
    function = function_of(hook)
    if isinstance(function, types.FunctionType) and not is_torch(function):
        set_code_exec_strategy(function.__code__, _SKIP_ALL)
