"""How users choose the way in which compiled code runs hooks.

For all hooks by ``torch._dynamo.config.nn_module_hook_policy``, for one by a decorator.
Used by ``forward_variables``, ``traced_hooks`` and ``backward_variables``. Must not
import anything of this package.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Literal, TYPE_CHECKING, TypeAlias, TypeVar

from torch._dynamo import config


if TYPE_CHECKING:
    from collections.abc import Callable

Policy: TypeAlias = Literal["auto", "trace", "call"]
_Hook = TypeVar("_Hook", bound="Callable[..., Any]")

_POLICIES = ("auto", "trace", "call")
_MARK = "_torchdynamo_nn_module_hook_policy"


def hook_policy(policy: Policy) -> Callable[[_Hook], _Hook]:
    """Decorate a hook with the way in which compiled code runs it.

    Args:
        policy: ``"trace"``: as part of the graph, which it breaks where that is not
            possible. ``"call"``: at run time. A forward hook or pre-hook promises to
            return None, to edit nothing that it is given, and that compiled code reads
            nothing that it writes; the configuration's ``"call"`` takes no such
            promise. ``"auto"``: whichever is known to be right.

    Returns:
        A decorator of functions, which returns what it is given. It wins over
        ``torch._dynamo.config.nn_module_hook_policy``.

    Raises:
        ValueError: for any other policy.
    """
    if policy not in _POLICIES:
        known = ", ".join(map(repr, _POLICIES))
        raise ValueError(f"hook_policy({policy!r}): expected one of {known}")

    def mark(hook: _Hook) -> _Hook:
        setattr(hook, _MARK, policy)
        return hook

    return mark


def policy_of(hook: object) -> Policy:
    """The way in which compiled code has to run ``hook``.

    Args:
        hook: a hook, or None when it is not known yet.
    """
    mark = mark_of(hook)
    return config.nn_module_hook_policy if mark is None else mark


def mark_of(hook: object) -> Policy | None:
    """What :func:`hook_policy` says of ``hook``, None when nothing."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    call = inspect.getattr_static(type(hook), "__call__", None)
    return getattr(hook, _MARK, getattr(call, _MARK, None))
