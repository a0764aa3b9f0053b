"""Compiles the hooks of the root module together with its forward.

Called by the seam in ``_TorchDynamoContext.__call__``. Dynamo skips the frames of
``nn.Module.__call__``, so that hooks of the module given to ``torch.compile`` would
run in frames of their own. Must not import anything else of this package but
``state``.
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


def _code(forward: Callable[..., Any], code: types.CodeType) -> types.CodeType:
    # What Dynamo compiles belongs to a code object, and so does the limit of
    # recompilations: both are shared as they are without hooks, by forward.
    key = getattr(forward, "__code__", None)
    if key is None:
        return code.replace(co_name="call_with_hooks")
    if key not in _CODE:
        _CODE[key] = code.replace(co_name=f"call_{forward.__name__}_with_hooks")
    return _CODE[key]
