"""Compiles the hooks of the root module together with its forward.

Called by the seams in ``_TorchDynamoContext.__call__`` and ``aot_compile_module``.
Dynamo skips the frames of ``nn.Module.__call__``, so that hooks of the module given to
``torch.compile`` would run in frames of their own, and those of one compiled ahead of
time not at all. Must not import anything else of this package but ``state``.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any, TYPE_CHECKING

from torch._dynamo.external_utils import wrap_inline
from torch.nn import Module

from .state import has_call_hooks


if TYPE_CHECKING:
    from collections.abc import Callable


_CALLS = ("_call_impl", "_wrapped_call_impl")
_CODE: weakref.WeakKeyDictionary[types.CodeType, types.CodeType] = (
    weakref.WeakKeyDictionary()
)


def call_of_root(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of ``fn``, which is about to be compiled.

    Args:
        fn: any callable.

    Returns:
        For ``__call__`` of a module: a function that, where hooks are to run, goes
        through a frame that Dynamo does not skip. Anything else as it is.
    """
    module = getattr(fn, "__self__", None)
    name = getattr(fn, "__name__", None)
    if not isinstance(module, Module) or name not in _CALLS:
        return fn
    whole: Any = wrap_inline(fn)
    whole.__code__ = _code(type(module).forward, whole.__code__)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (whole if has_call_hooks(module) else fn)(*args, **kwargs)

    # What a frame traces that calls it, when it is compiled itself.
    call._torchdynamo_inline = fn  # type: ignore[attr-defined]
    return call


def call_of_saved_root(module: Module) -> Callable[..., Any]:
    """What to compile ahead of time for a module: all of its call, where that is known.

    Its hooks are part of what is saved then, and guarded: what was saved without a hook
    serves no module that has one.

    Args:
        module: the root module.
    """
    return module.__call__ if is_saved_whole(module) else module.forward


def is_saved_whole(module: Module) -> bool:
    """Whether what is compiled ahead of time for ``module`` runs its hooks.

    Not for classes with a ``__call__`` of their own, nor for a lazy module whose
    parameters are to be made by a hook.
    """
    is_lazy = getattr(module, "_initialize_hook", None) is not None
    return type(module).__call__ is Module.__call__ and not is_lazy


def _code(forward: Callable[..., Any], code: types.CodeType) -> types.CodeType:
    # What Dynamo compiles belongs to a code object, and so does the limit of
    # recompilations: both are shared as they are without hooks, by forward.
    key = getattr(forward, "__code__", None)
    if key is None:
        return code.replace(co_name="call_with_hooks")
    if key not in _CODE:
        _CODE[key] = code.replace(co_name=f"call_{forward.__name__}_with_hooks")
    return _CODE[key]
