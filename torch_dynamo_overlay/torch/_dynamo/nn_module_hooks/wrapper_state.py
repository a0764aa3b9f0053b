"""What ``torch.compile``'s wrapper of a module keeps, saves and loads.

Called by the seams in ``OptimizedModule``. Copies and pickles of the wrapper are made
from the module that it wraps, which knows nothing of hooks on the wrapper. Must import
neither Dynamo nor anything else of this package.
"""

from __future__ import annotations

import inspect
from typing import Any, TYPE_CHECKING

from torch.nn import Module


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_PREFIX = "_orig_mod."


def own_hooks(wrapper: Module) -> dict[str, Any] | None:
    """The hooks registered on a wrapper itself, None where there are none.

    Args:
        wrapper: the ``OptimizedModule``.

    Returns:
        Its attributes that hold hooks, of any kind, and their marks.
    """
    hooks = {
        name: value
        for name, value in wrapper.__dict__.items()
        if "_hooks" in name and value
    }
    kind = wrapper.__dict__.get("_is_full_backward_hook")
    if kind is not None:
        hooks["_is_full_backward_hook"] = kind
    return hooks or None


def state_dict(
    wrapper: Module, save: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """``wrapper.state_dict``: what its module saves, under names that start with it.

    Args:
        wrapper: the ``OptimizedModule``.
        save: ``Module.state_dict`` of the wrapper, which calls that of its module with
            ``destination``, ``prefix`` and ``keep_vars``. A module that overrides it
            with one that takes none of these can only be called as users call it.
        args: passed on.
        kwargs: passed on.
    """
    module: Any = wrapper._orig_mod
    if type(module).state_dict is not Module.state_dict and not _takes(
        module.state_dict, destination={}, prefix=_PREFIX, keep_vars=False
    ):
        return module.state_dict(*args, **kwargs)
    return save(*args, **kwargs)


def load_state_dict(
    wrapper: Module,
    load: Callable[..., Any],
    state: Mapping[str, Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``wrapper.load_state_dict``: its module's own, where it overrides that.

    Args:
        wrapper: the ``OptimizedModule``.
        load: ``Module.load_state_dict`` of the wrapper, which calls none of a module.
        state: what :func:`state_dict` returned, or such of the module alone.
        args: passed on.
        kwargs: passed on.
    """
    module: Any = wrapper._orig_mod
    if type(module).load_state_dict is Module.load_state_dict:
        return load(state, *args, **kwargs)
    if state and all(str(name).startswith(_PREFIX) for name in state):
        state = {name.removeprefix(_PREFIX): value for name, value in state.items()}
    return module.load_state_dict(state, *args, **kwargs)


def _takes(function: Callable[..., Any], **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(**kwargs)
    except TypeError:
        return False
    return True
