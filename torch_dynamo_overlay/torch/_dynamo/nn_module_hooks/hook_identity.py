"""What tells hooks apart where objects are others: in code that is saved and loaded.

Dynamo knows functions by identity, and drops such guards from what it saves. Used by
``guards``. Must import neither Dynamo nor anything of this package.
"""

from __future__ import annotations

import functools
import marshal
import types
from collections.abc import Callable, Iterator
from typing import Any


class HookIdentity:
    """The code of a hook, and of the functions it closes over.

    Code objects are equal when they do the same and stand at the same lines.

    Args:
        hook: the hook. Nothing of it but code is kept.
    """

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._codes = [*_codes_of(hook, set())]
        self.is_loaded = False

    def is_of(self, hook: Callable[..., Any]) -> bool:
        """Whether ``hook`` is the same, whatever it closes over besides functions."""
        return self._codes == [*_codes_of(hook, set())]

    def __getstate__(self) -> bytes:
        return marshal.dumps(self._codes)

    def __setstate__(self, state: bytes) -> None:
        self._codes = marshal.loads(state)
        self.is_loaded = True

    def __str__(self) -> str:
        code = self._codes[0]
        if isinstance(code, str):
            return code
        return f"{code.co_qualname} (line {code.co_firstlineno})"


def function_of(hook: Any) -> Any:
    """The function in Python that calling a hook runs, or the object without one.

    Args:
        hook: a function, method, ``functools.partial`` or object with ``__call__``.
    """
    while not isinstance(hook, types.FunctionType):
        if isinstance(hook, types.MethodType):
            hook = hook.__func__
        elif isinstance(hook, functools.partial):
            hook = hook.func
        elif isinstance(type(hook).__call__, types.FunctionType):
            hook = type(hook).__call__
        else:
            break
    return hook


def described(hook: Any) -> str:
    """The name of a hook, with file and line where these are known, for messages."""
    function = function_of(hook)
    named = next(
        (f for f in (hook, function) if hasattr(f, "__qualname__")), type(hook)
    )
    name: str = named.__qualname__
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _codes_of(hook: Any, seen: set[int]) -> Iterator[Any]:
    hook = function_of(hook)
    if not isinstance(hook, types.FunctionType):
        named = hook if hasattr(hook, "__qualname__") else type(hook)
        yield f"{named.__module__}.{named.__qualname__}"
        return
    if id(hook) in seen:
        return
    seen.add(id(hook))
    yield hook.__code__
    for cell in hook.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, types.FunctionType):
            yield from _codes_of(value, seen)
