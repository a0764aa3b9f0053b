"""Which functions read nothing but their arguments.

What such a function computes does not depend on when it is called, so that a hook can
be traced when forward runs and take effect in backward. Used by ``traced_hooks``.
Must not import Dynamo.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
from typing import Any

import torch


# Of a gradient they say something else when forward runs, or do more than compute.
_NAMES = frozenset(
    (
        "backward",
        "data",
        "data_ptr",
        "grad",
        "grad_fn",
        "item",
        "is_contiguous",
        "is_grad_enabled",
        "is_leaf",
        "numpy",
        "register_hook",
        "requires_grad",
        "requires_grad_",
        "retain_grad",
        "stride",
        "tolist",
        "untyped_storage",
        "_version",
    )
)
# Their numbers come in another order, or from another generator, when compiled.
_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal", "uniform")
_BUILTINS = frozenset(
    (abs, all, any, bool, dict, enumerate, filter, float, int, isinstance, issubclass)
    + (len, list, map, max, min, pow, range, reversed, round, set, slice, sorted)
    + (sum, tuple, type, zip)
)
_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, slice)


def is_closed(function: object) -> bool:
    """Whether ``function`` reads nothing that may change before it is called.

    Read from its code: arguments, constants, torch and builtins are fair; attributes
    of modules, globals and variables of other functions are not, unless nothing else
    can reach the variable.

    Args:
        function: any object.
    """
    return _is_closed(function, frozenset())


def _is_closed(function: object, seen: frozenset[Any]) -> bool:
    if isinstance(function, functools.partial):
        values = (*function.args, *function.keywords.values())
        return all(map(_is_plain, values)) and _is_closed(function.func, seen)
    if not isinstance(function, types.FunctionType) or function.__dict__:
        return False
    if function in seen:
        return True
    seen |= {function}
    defaults = (
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
    )
    return (
        all(map(_is_plain, defaults))
        and all(_is_private(function, i, seen) for i in _free_variables(function))
        and _reads_no_state(function.__code__, function.__globals__, seen)
    )


def _free_variables(function: types.FunctionType) -> range:
    return range(len(function.__closure__ or ()))


def _is_private(function: types.FunctionType, i: int, seen: frozenset[Any]) -> bool:
    closure = function.__closure__ or ()
    # Nobody else can bind another value to a variable that nobody else holds: the
    # closure and the argument of getrefcount are two.
    if sys.getrefcount(closure[i]) > 2:
        return False
    try:
        value = closure[i].cell_contents
    except ValueError:
        return False
    return _is_plain(value) or _is_closed(value, seen)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _reads_no_state(
    code: types.CodeType, scope: dict[str, Any], seen: frozenset[Any]
) -> bool:
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            if not _is_fair(argument, scope, seen):
                return False
        elif name.startswith(("STORE_", "DELETE_", "IMPORT_")):
            if not name.startswith(("STORE_FAST", "DELETE_FAST")):
                return False
        elif isinstance(argument, str) and (
            argument in _NAMES or any(part in argument for part in _RANDOM)
        ):
            return False
    return all(
        _reads_no_state(constant, scope, seen)
        for constant in code.co_consts
        if isinstance(constant, types.CodeType)
    )


def _is_fair(name: str, scope: dict[str, Any], seen: frozenset[Any]) -> bool:
    value = scope.get(name, getattr(builtins, name, None))
    if isinstance(value, types.ModuleType):
        return value.__name__.split(".")[0] in ("torch", "math", "operator")
    module = getattr(value, "__module__", None) or ""
    if module == "builtins":
        return value in _BUILTINS
    return (
        callable(value) and module.split(".")[0] in ("torch", "math", "_operator")
    ) or _is_closed(value, seen)
