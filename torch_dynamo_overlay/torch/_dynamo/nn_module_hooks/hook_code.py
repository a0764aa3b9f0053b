"""What the code of a hook does, read from its bytecode.

An abstract interpretation: values are what the hook is given, objects that are known
when it is compiled, or anything else. ``forward_variables`` asks whether a hook can be
called at run time. Must not import Dynamo.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from typing import Any, TYPE_CHECKING

import torch
from torch.nn import Module

from .hook_bytecode import Frame
from .hook_values import (
    AUTOGRAD_NAMES,
    COMPUTED_SCALARS,
    edits,
    edits_operand,
    Given,
    given_in,
    has_names,
    is_forbidden,
    is_fresh,
    is_harmless,
    is_library,
    is_measuring,
    is_random,
    is_torch,
    join_all,
    Known,
    LOOKS,
    Made,
    made_of,
    Member,
    METADATA,
    MODULE_READS,
    NONE,
    Of,
    returns_none,
    SAME_VALUE,
    STATE,
    Unclear,
    Value,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_MAX_DEPTH = 8
_MAX_STEPS = 20_000


@dataclasses.dataclass
class HookEffects:
    """What calling a hook may do, besides raising.

    Args:
        given: which arguments it looks at.
        live: which of these it may keep, or use, with their autograd history.
        computes: whether it uses values, and does more than keep tensors.
        shares: whether what it keeps may share memory with what it is given.
        reads: names of attributes and globals it reads.
        writes: names of attributes and globals it writes.
        touched: objects of its own that it reads or writes.
        edits_tensors: whether it edits tensors that it was not given.
        reads_clock: whether it asks what time it is.
    """

    given: set[int] = dataclasses.field(default_factory=set)
    live: set[int] = dataclasses.field(default_factory=set)
    computes: bool = False
    shares: bool = False
    reads: set[str] = dataclasses.field(default_factory=set)
    writes: set[str] = dataclasses.field(default_factory=set)
    touched: list[object] = dataclasses.field(default_factory=list)
    edits_tensors: bool = False
    reads_clock: bool = False


def effects_of(hook: Callable[..., Any], module: object, n: int) -> HookEffects:
    """What calling ``hook`` with ``n`` arguments does.

    Args:
        hook: the hook.
        module: its first argument.
        n: number of its arguments. All but the first are made of tensors.

    Raises:
        Unclear: when it may return something else than None, edit what it is given,
            change autograd, modules or hooks, or when its code cannot be read.
    """
    reader = _Reader()
    try:
        args: list[Value] = [Known(module)]
        args += [Given(frozenset((i,))) for i in range(1, n)]
        result = reader.call(Known(hook), args)
    except RecursionError:
        raise Unclear("it is too deep") from None
    if result != NONE:
        raise Unclear("it may return a value")
    return reader.effects


def _static(owner: Value, name: str) -> Any:
    """What the class of an object has under a name."""
    if not isinstance(owner, Known):
        return None
    return inspect.getattr_static(type(owner.obj), name, None)


def _is_callback(value: Value) -> bool:
    if isinstance(value, Made):
        return True
    function = value.obj if isinstance(value, Known) else None
    if isinstance(function, types.MethodType):
        function = function.__func__
    return isinstance(function, types.FunctionType) and not is_library(function)


class _Reader:
    def __init__(self) -> None:
        self.effects = HookEffects()
        self._running: list[types.CodeType] = []
        self._steps = 0
        self._seen: set[int] = set()

    # What is done with values

    def keep(self, *values: Value) -> None:
        for value in values:
            if _is_callback(value):
                # It may be called with anything that goes the same way.
                others = [other for other in values if not _is_callback(other)]
                self.call(value, others, ("?",))
            for given in given_in(value):
                self.effects.given |= given.params
                self.effects.shares |= given.shares
                if given.live:
                    self.effects.live |= given.params
            if isinstance(value, Known):
                self.touch(value.obj)

    def touch(self, obj: object) -> None:
        if isinstance(obj, _UNTOUCHED) or id(obj) in self._seen:
            return
        if len(self._seen) > _MAX_STEPS:
            raise Unclear("it reaches too many objects")
        self._seen.add(id(obj))
        self.effects.touched.append(obj)
        if isinstance(obj, dict):
            for item in [*obj.values()]:
                self.touch(item)
        elif isinstance(obj, (list, tuple, set, frozenset)) or (
            type(obj).__module__ == "collections" and hasattr(obj, "__iter__")
        ):
            for item in [*obj]:
                self.touch(item)

    def attribute(self, owner: Value, name: str) -> Value:
        if is_forbidden(name):
            raise Unclear(f"it uses {name!r}")
        if isinstance(owner, Given):
            self.effects.given |= owner.params
            if name in METADATA:
                return STATE
            if name == "data":
                return dataclasses.replace(owner, live=False)
            if name in AUTOGRAD_NAMES:
                self.keep(owner)
                return STATE
            return Member(owner, name)
        if has_names(owner):
            self.effects.reads.add(name)
        if not isinstance(owner, Known):
            return Member(owner, name)
        obj = owner.obj
        if isinstance(obj, types.ModuleType):
            value = getattr(obj, name, None)
            self._note_clock(obj.__name__)
            return Known(value)
        self.touch(obj)
        found = self._attribute_of(obj, name)
        if isinstance(found, Known):
            self.touch(found.obj)
        return found

    def _attribute_of(self, obj: Any, name: str) -> Value:
        own = getattr(obj, "__dict__", {})
        places = [own]
        if isinstance(obj, Module):
            names = ("_parameters", "_buffers", "_modules")
            places += [own.get(table, {}) for table in names]
        for place in places:
            if name in place:
                return Known(place[name])
        found = _static(Known(obj), name)
        if isinstance(found, types.MemberDescriptorType):
            try:
                return Known(found.__get__(obj))
            except AttributeError:
                return STATE
        if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
            return self.call(Known(found.fget), [Known(obj)])
        if isinstance(found, staticmethod):
            return Known(found.__func__)
        return Member(Known(obj), name, found)

    def read_name(self, name: str) -> None:
        self.effects.reads.add(name)

    def write_name(self, name: str) -> None:
        self.effects.writes.add(name)

    def write(self, owner: Value, name: str, value: Value) -> None:
        if given_in(owner):
            raise Unclear("it edits what it is given")
        if is_forbidden(name):
            raise Unclear(f"it sets {name!r}")
        if has_names(owner):
            self.effects.writes.add(name)
        self.keep(owner, value)
        found = _static(owner, name)
        if isinstance(found, property) and isinstance(found.fset, types.FunctionType):
            self.call(Known(found.fset), [owner, value])

    def edit(self, owner: Value, *values: Value) -> None:
        if given_in(owner):
            raise Unclear("it edits what it is given")
        self.keep(owner, *values)
        if isinstance(owner, Member):
            self.effects.writes.add(owner.name)
        if not isinstance(owner, Known) or isinstance(owner.obj, torch.Tensor):
            self.effects.edits_tensors = True

    def compute(self, *values: Value, name: str = "") -> Value:
        found = [given for value in values for given in given_in(value)]
        self.effects.computes |= bool(found)
        for given in found:
            self.effects.given |= given.params
        return made_of(found, shares=not is_fresh(name)) if found else STATE

    # Calls

    def call(
        self, callee: Value, args: Sequence[Value], names: Sequence[str] = ()
    ) -> Value:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise Unclear("its code is too long")
        if {"out", "inplace"} & set(names) and any(map(given_in, args)):
            raise Unclear("it may write to what it is given")
        if isinstance(callee, Member):
            return self._call_method(callee, args, names)
        if isinstance(callee, Made):
            return self._run(callee, args, names=names)
        if isinstance(callee, Known):
            return self._call_known(callee.obj, args, names)
        if given_in(callee):
            raise Unclear("it calls what it is given")
        self.keep(*args)
        return STATE

    def _call_method(
        self, callee: Member, args: Sequence[Value], names: Sequence[str]
    ) -> Value:
        name = callee.name
        owner = next(iter(given_in(callee.owner)), callee.owner)
        if isinstance(owner, Given):
            if edits(name):
                raise Unclear(f"it may edit what it is given: {name!r}")
            if name == "detach":
                return dataclasses.replace(owner, live=False)
            if name in SAME_VALUE:
                return owner
            if name in LOOKS:
                return STATE
            if name == "numpy":
                self.keep(owner)
            result = self.compute(owner, *args, name=name)
            return STATE if name in COMPUTED_SCALARS else result
        if is_random(name):
            raise Unclear("it draws random numbers")
        if isinstance(callee.function, types.FunctionType):
            if is_torch(callee.function):
                return self._call_torch_method(owner, name, args)
            return self._call_known(callee.function, [owner, *args], names)
        cls = owner.type if isinstance(owner, Of) else type(getattr(owner, "obj", None))
        if cls is None and name == "remove":
            raise Unclear("it may remove hooks")
        if name.endswith("_") and not name.startswith("_"):
            self.edit(owner, *args)
            return owner
        self.keep(owner, *args)
        return NONE if returns_none(cls, name) else self._result(args)

    def _call_torch_method(
        self, owner: Value, name: str, args: Sequence[Value]
    ) -> Value:
        obj = owner.obj if isinstance(owner, Known) else None
        if isinstance(obj, Module) and name in MODULE_READS:
            for tensor in (*obj.parameters(), *obj.buffers()):
                self.touch(tensor)
        elif not is_harmless(type(obj)):
            raise Unclear(f"it calls {name!r} of a {type(obj).__name__}")
        self._note_clock(type(obj).__module__)
        self.keep(*args)
        return STATE

    @staticmethod
    def _result(args: Sequence[Value]) -> Value:
        found = [given for arg in args for given in given_in(arg)]
        return made_of(found) if found else STATE

    def _call_known(
        self, obj: Any, args: Sequence[Value], names: Sequence[str]
    ) -> Value:
        obj = inspect.unwrap(obj) if is_torch(type(obj)) else obj
        obj = getattr(obj, "_torchdynamo_orig_callable", obj)
        if isinstance(obj, functools.partial):
            for arg in (*obj.args, *obj.keywords.values()):
                self.touch(arg)
            first = [Known(arg) for arg in obj.args]
            rest = [Known(arg) for arg in obj.keywords.values()]
            return self.call(
                Known(obj.func), [*first, *args, *rest], [*names, *obj.keywords]
            )
        if isinstance(obj, types.MethodType):
            return self.call(Known(obj.__func__), [Known(obj.__self__), *args], names)
        if isinstance(obj, types.FunctionType) and not is_library(obj):
            return self._call_function(obj, args, names)
        if isinstance(obj, Module):
            raise Unclear("it calls a module")
        if isinstance(obj, type):
            self._make(obj, args, names)
        call = inspect.getattr_static(type(obj), "__call__", None)
        if isinstance(call, types.FunctionType) and not is_library(call):
            self.touch(obj)
            return self.call(Known(call), [Known(obj), *args], names)
        return self._call_library(obj, args)

    def _make(self, cls: type, args: Sequence[Value], names: Sequence[str]) -> None:
        """A class is called: what its own code does."""
        new = Known(object())
        for name in ("__init__", "__post_init__"):
            found = inspect.getattr_static(cls, name, None)
            if isinstance(found, types.FunctionType) and not is_library(found):
                given = args if name == "__init__" else ()
                self.call(Known(found), [new, *given], names if given else ())

    def _call_library(self, obj: Any, args: Sequence[Value]) -> Value:
        name = getattr(obj, "__name__", type(obj).__name__)
        if is_forbidden(name):
            raise Unclear(f"it calls {name!r}")
        self._note_clock(getattr(obj, "__module__", None))
        owner = getattr(obj, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.touch(owner)
            if returns_none(type(owner), name):
                self.keep(*args)
                return NONE
        if edits_operand(obj):
            self.edit(*args)
            return STATE
        if obj in _BUILTIN_LOOKS:
            for arg in args:
                for given in given_in(arg):
                    self.effects.given |= given.params
            return STATE
        if obj in _BUILTIN_PACKS:
            self.keep(*(arg for arg in args if not given_in(arg)))
            return self._result(args)
        if obj in _BUILTIN_SCALARS:
            self.compute(*args)
            return STATE
        if obj is getattr and len(args) > 1:
            return self._getattr(args)
        if obj is setattr and len(args) == 3:
            if not isinstance(args[1], Known):
                raise Unclear("it sets an attribute whose name is not known")
            self.write(args[0], str(args[1].obj), args[2])
            return NONE
        if is_torch(obj):
            if is_random(name):
                raise Unclear("it draws random numbers")
            if edits(name) and args:
                self.edit(args[0], *args[1:])
                return args[0]
            if not isinstance(obj, type) and not isinstance(obj, types.FunctionType):
                return self.compute(*args, name=name)
        for arg in args:
            if isinstance(arg, Known) and isinstance(arg.obj, Module):
                raise Unclear(f"it hands a module to {name!r}")
        self.compute(*args)
        self.keep(*args)
        if obj is print:
            return NONE
        return self._result(args)

    def _getattr(self, args: Sequence[Value]) -> Value:
        if not isinstance(args[1], Known) or not isinstance(args[1].obj, str):
            raise Unclear("it reads an attribute whose name is not known")
        self.keep(*args[2:])
        found = self.attribute(args[0], args[1].obj)
        return STATE if len(args) > 2 and not given_in(found) else found

    def _note_clock(self, module: str | None) -> None:
        if is_measuring(module or ""):
            self.effects.reads_clock = True

    def _call_function(
        self,
        function: types.FunctionType,
        args: Sequence[Value],
        names: Sequence[str],
    ) -> Value:
        cells = {
            name: _cell(cell)
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            )
        }
        for value, cell in zip(cells.values(), function.__closure__ or (), strict=True):
            if isinstance(value, Known):
                self.effects.touched.append(cell)
        defaults = (
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        )
        for default in defaults:
            self.touch(default)
        return self._run(
            Made(function.__code__, cells, function.__globals__),
            args,
            names=names,
            defaults=[Known(default) for default in defaults],
        )

    def _run(
        self,
        function: Made,
        args: Sequence[Value],
        *,
        names: Sequence[str],
        defaults: Sequence[Value] = (),
    ) -> Value:
        code = function.code
        if code in self._running or len(self._running) >= _MAX_DEPTH:
            raise Unclear("it calls itself, or too deep")
        self._running.append(code)
        try:
            bound = _bound(code, args, names, defaults)
            return Frame(self, function).run(bound)
        finally:
            self._running.pop()


def _cell(cell: types.CellType) -> Value:
    try:
        return Known(cell.cell_contents)
    except ValueError:
        return STATE


def _bound(
    code: types.CodeType,
    args: Sequence[Value],
    names: Sequence[str],
    defaults: Sequence[Value],
) -> dict[str, Value]:
    """The arguments of a function by name, the last ones given by ``names``."""
    n = code.co_argcount
    parameters = code.co_varnames[: n + code.co_kwonlyargcount]
    extra = code.co_varnames[len(parameters) :]
    starred = bool(code.co_flags & inspect.CO_VARARGS) + bool(
        code.co_flags & inspect.CO_VARKEYWORDS
    )
    if not all(map(str.isidentifier, names)):
        # Called with * or **: any argument may be any parameter.
        return dict.fromkeys(parameters + extra[:starred], join_all([*args, *defaults]))
    first = len(args) - len(names)
    bound = dict.fromkeys(parameters, join_all(defaults))
    bound |= zip(parameters[: min(n, first)], args, strict=False)
    named = dict(zip(names, args[first:], strict=True))
    bound |= {name: named.pop(name) for name in names if name in bound}
    rest = join_all([*args[n:first], *named.values()])
    return bound | dict.fromkeys(extra[:starred], rest)


_UNTOUCHED = (
    type(None), bool, int, float, complex, str, bytes, type, types.ModuleType,
    types.FunctionType, types.BuiltinFunctionType, torch.dtype, torch.device,
)  # fmt: skip
_BUILTIN_LOOKS = (isinstance, issubclass, len, type, id, callable, hasattr)
_BUILTIN_PACKS = (tuple, list, dict, set, zip, enumerate, iter, next, reversed)
_BUILTIN_SCALARS = (bool, float, int)
