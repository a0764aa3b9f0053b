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
    Binding,
    COMPUTED_SCALARS,
    edits,
    edits_operand,
    Given,
    given_in,
    has_names,
    is_callback,
    is_container,
    is_forbidden,
    is_fresh,
    is_functional,
    is_library,
    is_library_type,
    is_measuring,
    is_plain,
    is_plain_type,
    is_random,
    is_random_module,
    is_tensor,
    is_torch,
    join,
    join_all,
    Known,
    LOOKS,
    Made,
    made_of,
    may_take_tensors,
    Member,
    METADATA,
    MODULE_READS,
    NONE,
    Of,
    of,
    OneOf,
    PLAIN,
    plain,
    returns_none,
    SAME_VALUE,
    STATE,
    TENSOR,
    type_of,
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
        keeps_whole: whether it may keep a container that it is given.
        reads: names of attributes and globals it reads.
        writes: names of attributes and globals it writes.
        edits_tensors: whether it edits tensors that it was not given.
        reads_clock: whether it asks what time it is.
        returns: which argument it returns, if not None; 0 for none.
        restless: what it reads and changes itself, other than tensors, as it is now:
            numbers, and lengths of containers. What is traced of it holds for these.
        touched: objects of its own that it reads or writes.
        bindings: what of this rests on objects that may be bound anew.
    """

    given: set[int] = dataclasses.field(default_factory=set)
    live: set[int] = dataclasses.field(default_factory=set)
    computes: bool = False
    shares: bool = False
    keeps_whole: bool = False
    reads: set[str] = dataclasses.field(default_factory=set)
    writes: set[str] = dataclasses.field(default_factory=set)
    edits_tensors: bool = False
    reads_clock: bool = False
    returns: int = 0
    restless: list[object] = dataclasses.field(default_factory=list, compare=False)
    touched: list[object] = dataclasses.field(default_factory=list, compare=False)
    bindings: list[Binding] = dataclasses.field(default_factory=list, compare=False)


def effects_of(hook: Callable[..., Any], module: object, n: int) -> HookEffects:
    """What calling ``hook`` with ``n`` arguments does.

    Args:
        hook: the hook.
        module: its first argument.
        n: number of its arguments. All but the first are made of tensors.

    Raises:
        ReturnsValue: when it may return something else than None or an argument.
        Unclear: when it may edit what it is given, change autograd, modules or hooks,
            or when its code cannot be read.
    """
    args: list[Value] = [Known(module)]
    args += [Given(frozenset((i,)), is_argument=True) for i in range(1, n)]
    assigned: dict[object, Value] = {}
    try:
        for _ in range(_MAX_DEPTH):
            before = dict(assigned)
            reader = _Reader(assigned)
            result = reader.call(Known(hook), args)
            if assigned == before:
                break
        else:
            raise Unclear("what it keeps changes too often")
    except RecursionError:
        raise Unclear("it is too deep") from None
    reader.finish()
    if isinstance(result, Given) and result.is_argument and len(result.params) == 1:
        (reader.effects.returns,) = result.params
    elif result != NONE:
        raise ReturnsValue(reader.effects)
    return reader.effects


class ReturnsValue(Unclear):
    """The hook may return a value, and its effects are these."""

    def __init__(self, effects: HookEffects) -> None:
        super().__init__("it may return a value")
        self.effects = effects


class _Reader:
    """Judges instructions, for :class:`.hook_bytecode.Frame`.

    Args:
        assigned: what the hook itself binds to names and puts into containers, as far
            as known; grows while the hook is read.
    """

    def __init__(self, assigned: dict[object, Value]) -> None:
        self.effects = HookEffects()
        self._assigned = assigned
        self._read: dict[object, object] = {}
        self._edits_unknown = False
        self._running: list[types.CodeType] = []
        self._steps = 0
        self._seen: set[int] = set()
        # The function, and the place in its closure, where a cell was found.
        self._homes: dict[int, tuple[types.FunctionType, int]] = {}

    def finish(self) -> None:
        """Call when all of the hook is read."""
        changed = [obj for key, obj in self._read.items() if key in self._assigned]
        self.effects.restless += changed
        if self._edits_unknown:
            # Whichever it is, it is found in one of these.
            found = [obj for obj in self.effects.touched if is_container(type(obj))]
            self.effects.restless.append(sum(map(len, found)))  # type: ignore[arg-type]

    # What is done with values

    def look(self, value: Value) -> None:
        for given in given_in(value):
            self.effects.given |= given.params

    def keep(self, *values: Value) -> None:
        for value in values:
            if is_callback(value):
                # It may be called with anything that goes the same way.
                others = [other for other in values if not is_callback(other)]
                self.call(value, others, ("?",))
            if isinstance(value, Member) and given_in(value) and edits(value.name):
                raise Unclear(f"it may edit what it is given: {value.name!r}")
            for given in given_in(value):
                self.effects.given |= given.params
                self.effects.shares |= given.shares
                self.effects.keeps_whole |= given.whole
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
        if is_container(type(obj)):
            values = obj.values() if isinstance(obj, dict) else obj
            for item in [*values]:  # type: ignore[misc]
                self.touch(item)

    def _bound(self, holder: Any, key: Any, obj: object) -> Known:
        """``obj`` was found at ``holder[key]``, of which the result depends."""
        self.touch(obj)
        self.effects.bindings.append(Binding(holder, key, obj))
        return Known(obj)

    def _note_read(self, key: object, value: Value) -> None:
        # Dynamo makes numbers in closures dynamic, so that they are read once.
        if not is_tensor(value):
            is_number = isinstance(value, Known) and isinstance(value.obj, (int, float))
            self._read[key] = value.obj if is_number else None  # type: ignore[union-attr]

    def _own(self, key: object, known: Value) -> Value:
        """A value that the hook itself may have changed before it reads it."""
        if key not in self._assigned:
            return known
        current = of(type(known.obj)) if isinstance(known, Known) else known
        return join(current, self._assigned[key])

    def _assign(self, key: object, value: Value) -> None:
        value = of(type(value.obj)) if isinstance(value, Known) else plain(value)
        known = self._assigned.get(key)
        self._assigned[key] = value if known is None else join(known, value)

    def variable(self, cell: types.CellType) -> Value:
        try:
            obj = cell.cell_contents
        except ValueError:
            raise Unclear("it reads a variable that is not bound") from None
        function, index = self._homes[id(cell)]
        return self._own((id(cell),), self._bound(function, index, obj))

    def rebind(self, cell: types.CellType, name: str, value: Value) -> None:
        self.effects.writes.add(name)
        self.touch(cell)
        self.keep(value)
        self._assign((id(cell),), value)

    def global_(self, scope: dict[str, Any], name: str) -> Value:
        if is_forbidden(name):
            raise Unclear(f"it uses {name!r}")
        self.effects.reads.add(name)
        builtins = scope.get("__builtins__", {})
        builtins = getattr(builtins, "__dict__", builtins)
        if name in scope:
            known: Value = self._bound(scope, name, scope[name])
        elif name in builtins:
            known = Known(builtins[name])
        else:
            raise Unclear(f"{name!r} is not bound")
        key = ("global", id(scope), name)
        self._note_read(key, known)
        return self._own(key, known)

    def rebind_global(self, scope: dict[str, Any], name: str, value: Value) -> None:
        self.effects.writes.add(name)
        self.keep(value)
        self._assign(("global", id(scope), name), value)

    def attribute(self, owner: Value, name: str, default: Value | None = None) -> Value:
        if is_forbidden(name):
            raise Unclear(f"it uses {name!r}")
        if found := given_in(owner):
            self.look(owner)
            if name in METADATA:
                return PLAIN
            if name == "data":
                return found[0].part(live=False)
            if name in AUTOGRAD_NAMES:
                self.keep(owner)
                return PLAIN
            return Member(owner, name)
        if is_tensor(owner):
            self.keep(owner)
            is_view = name in ("data", "T", "mT", "real", "imag")
            is_plain = name in METADATA or name in AUTOGRAD_NAMES
            return TENSOR if is_view else PLAIN if is_plain else Member(owner, name)
        if not isinstance(owner, Known):
            if owner == PLAIN or is_container(type_of(owner)):
                return Member(owner, name)
            raise Unclear(f"it reads {name!r} of an object that is not known")
        if has_names(owner):
            self.effects.reads.add(name)
        obj = owner.obj
        if isinstance(obj, types.ModuleType):
            self._note_clock(obj.__name__)
            return self._bound(vars(obj), name, getattr(obj, name, None))
        self.touch(obj)
        value = self._attribute_of(obj, name)
        if value is None:
            value = PLAIN if default is None else default
        elif default is not None:
            value = join(value, default)
        self._note_read((id(obj), name), value)
        return self._own((id(obj), name), value)

    def _attribute_of(self, obj: Any, name: str) -> Value | None:
        """The value of an attribute, None if there is no such attribute yet."""
        own = {} if isinstance(obj, type) else getattr(obj, "__dict__", {})
        places = [own]
        if isinstance(obj, Module):
            places += [
                own.get(table, {}) for table in ("_parameters", "_buffers", "_modules")
            ]
        for place in places:
            if name in place:
                return self._bound(obj, name, place[name])
        is_class = isinstance(obj, type)
        found = inspect.getattr_static(obj if is_class else type(obj), name, _MISSING)
        if found is _MISSING:
            return None
        if isinstance(found, staticmethod):
            return Known(found.__func__)
        if isinstance(found, classmethod):
            cls = obj if is_class else type(obj)
            return Known(types.MethodType(found.__func__, cls))
        if isinstance(found, types.FunctionType):
            return Known(found) if is_class else Member(Known(obj), name, found)
        if isinstance(found, _BUILTIN_METHODS):
            if isinstance(found, types.MemberDescriptorType) and not is_class:
                return self._bound(obj, name, getattr(obj, name, None))
            return Known(found) if is_class else Member(Known(obj), name, found)
        if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
            return self.call(Known(found.fget), [Known(obj)])
        if hasattr(type(found), "__get__"):
            raise Unclear(f"it reads {name!r}, which runs code")
        self.touch(found)
        return Known(found)

    def write(self, owner: Value, name: str, value: Value) -> None:
        if given_in(owner):
            raise Unclear("it edits what it is given")
        if is_forbidden(name):
            raise Unclear(f"it sets {name!r}")
        if not isinstance(owner, Known) or is_tensor(owner):
            raise Unclear(f"it sets {name!r} of an object that is not known")
        if has_names(owner):
            self.effects.writes.add(name)
        self.keep(owner, value)
        self._assign((id(owner.obj), name), value)
        found = inspect.getattr_static(type(owner.obj), name, None)
        if isinstance(found, property) and isinstance(found.fset, types.FunctionType):
            self.call(Known(found.fset), [owner, value])
        setter = inspect.getattr_static(type(owner.obj), "__setattr__")
        if isinstance(setter, types.FunctionType) and not is_torch(setter):
            raise Unclear(f"setting {name!r} runs code")

    def edit(self, owner: Value, *values: Value) -> None:
        if given_in(owner):
            raise Unclear("it edits what it is given")
        if is_tensor(owner):
            self.effects.edits_tensors = True
            self.compute(*values)
        elif not is_container(type_of(owner)):
            raise Unclear("it edits an object that is not known")
        self.keep(owner, *values)
        objs = owner.objs if isinstance(owner, OneOf) else ()
        objs = (owner.obj,) if isinstance(owner, Known) else objs
        if not is_tensor(owner):
            self.effects.restless.append([len(obj) for obj in objs])
            self._edits_unknown |= not objs
        for obj in objs:
            for value in values:
                self._assign(("items", id(obj)), value)
        is_unknown = isinstance(owner, Of) and not is_tensor(owner)
        if is_unknown and any(map(given_in, values)):
            # Which container it is, and so what is found there, is not known.
            self._assign(("items", None), join_all(values))

    def item(self, owner: Value, key: Value) -> Value:
        if found := given_in(owner):
            self.look(owner)
            if isinstance(key, Known) and isinstance(key.obj, _INDICES):
                return found[0].part()
            return self.compute(owner, key)
        self.keep(key)
        if is_tensor(owner):
            self.keep(owner)
            return self.compute(owner, key, TENSOR)
        if owner == PLAIN:
            return PLAIN
        if not is_container(type_of(owner)):
            raise Unclear("it takes an item of an object that is not known")
        if isinstance(owner, Known) and isinstance(key, Known):
            return self._item_at(owner.obj, key.obj)
        return self.element(owner)

    def _item_at(self, container: Any, key: object) -> Value:
        self.touch(container)
        return join_all(self._values_at(container, key))

    def _values_at(self, container: Any, key: object) -> list[Value]:
        known: list[Value] = []
        place = ("item", id(container), key)
        try:
            obj = container[key]
        except (LookupError, TypeError):
            factory = getattr(container, "default_factory", None)
            known += [of(factory)] if isinstance(factory, type) else []
        else:
            cls = type(obj)
            known.append(OneOf(cls, (obj,)) if is_container(cls) else of(cls))
            if isinstance(obj, int):
                self._read[place] = obj
        for place_ in (("items", id(container)), place):
            if place_ in self._assigned and self._assigned[place_] not in known:
                known.append(self._assigned[place_])
        return known

    def _is_absent(self, owner: Value, key: Value) -> bool:
        """Whether nothing is known to be there, so that a default is what is found."""
        if not isinstance(owner, Known):
            return False
        if isinstance(key, Known):
            return not self._values_at(owner.obj, key.obj)
        return not self._items((owner.obj,))

    def put(self, owner: Value, key: Value, value: Value) -> None:
        place = key.obj if isinstance(key, Known) else None
        is_known = isinstance(owner, Known) and isinstance(place, (str, int))
        if not is_known or not is_container(type_of(owner)):
            self.edit(owner, key, value)
            return
        self.keep(owner, value)
        self._assign(("item", id(owner.obj), place), value)  # type: ignore[union-attr]

    def element(self, owner: Value) -> Value:
        """Any item of a container."""
        if found := given_in(owner):
            self.look(owner)
            return found[0].part()
        if is_tensor(owner) or owner == PLAIN:
            return self.compute(owner)
        if not is_container(type_of(owner)):
            return STATE
        if isinstance(owner, Known):
            return join_all(self._items((owner.obj,)))
        if isinstance(owner, OneOf):
            return join_all(self._items(owner.objs))
        return self._assigned.get(("items", None), STATE)

    def _items(self, containers: Sequence[Any]) -> list[Value]:
        """What there is in containers, and what the hook puts there."""
        values: list[Value] = []
        items: list[Any] = []
        for container in containers:
            self.touch(container)
            factory = getattr(container, "default_factory", None)
            if isinstance(factory, type):
                values.append(of(factory))
            is_dict = isinstance(container, dict)
            items += container.values() if is_dict else container
            if ("items", id(container)) in self._assigned:
                values.append(self._assigned["items", id(container)])
            values += [
                value
                for key, value in self._assigned.items()
                if isinstance(key, tuple) and key[:2] == ("item", id(container))
            ]
        classes = [*{type(item) for item in items}]
        if len(classes) == 1 and is_container(classes[0]) and not values:
            return [OneOf(classes[0], tuple(items))]
        return values + [of(cls) for cls in classes]

    def compute(self, *values: Value, name: str = "") -> Value:
        found = [given for value in values for given in given_in(value)]
        self.effects.computes |= any(given.shares for given in found)
        for value in values:
            self.look(value)
            if not (
                given_in(value)
                or is_tensor(value)
                or is_plain(value)
                or is_container(type_of(value))
            ):
                raise Unclear("it computes with an object that is not known")
        if found:
            return made_of(found, shares=not is_fresh(name), whole=False)
        return TENSOR if any(map(is_tensor, values)) else PLAIN

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
        raise Unclear("it calls what is not known")

    def _call_method(
        self, callee: Member, args: Sequence[Value], names: Sequence[str]
    ) -> Value:
        owner, name = callee.owner, callee.name
        if given := given_in(owner):
            return self._call_on_given(given[0], name, args)
        if is_random(name):
            raise Unclear("it draws random numbers")
        if isinstance(callee.function, types.FunctionType):
            return self._call_known(callee.function, [owner, *args], names)
        if is_tensor(owner):
            self.keep(owner)
            if edits(name):
                self.edit(owner, *args)
                return owner
            is_scalar = name in COMPUTED_SCALARS or name in LOOKS
            result = self.compute(owner, *args, name="clone")
            return PLAIN if is_scalar else result
        if is_plain(owner):
            self._show(*args)
            return PLAIN
        if is_container(type_of(owner)):
            return self._call_on_container(owner, name, args)
        if not isinstance(owner, Known) or not is_library_type(type(owner.obj)):
            raise Unclear(f"it calls {name!r} of an object that is not known")
        self._note_clock(type(owner.obj).__module__)
        self._show(owner, *args)
        return PLAIN

    def _call_on_given(self, owner: Given, name: str, args: Sequence[Value]) -> Value:
        if edits(name):
            raise Unclear(f"it may edit what it is given: {name!r}")
        if is_random(name):
            raise Unclear("it draws random numbers")
        self.look(owner)
        if name == "detach":
            return owner.part(live=False, whole=False)
        if name in SAME_VALUE:
            return owner.part(whole=False)
        if name in LOOKS:
            return PLAIN
        if name == "numpy":
            # Which is an error for a tensor that requires grad.
            self.keep(owner)
            return owner.part()
        result = self.compute(owner, *args, name=name)
        return PLAIN if name in COMPUTED_SCALARS else result

    def _call_on_container(
        self, owner: Value, name: str, args: Sequence[Value]
    ) -> Value:
        cls = type_of(owner)
        if name == "setdefault" and len(args) > 1:
            self.keep(args[0])
            self.edit(owner, args[1])
        elif edits(name) or returns_none(cls, name):
            self.edit(owner, *args)
        else:
            self.keep(owner, *args)
        if returns_none(cls, name):
            return NONE
        if name in ("keys", "index", "count", "__len__", "__contains__"):
            return PLAIN
        if name in ("get", "setdefault", "pop", "popitem", "popleft"):
            if len(args) > 1 and self._is_absent(owner, args[0]):
                return args[1]
            known = self.item(owner, args[0]) if args else self.element(owner)
            return join(known, args[1]) if len(args) > 1 and known != args[1] else known
        if name in ("values", "copy"):
            return owner
        return STATE

    def _call_known(
        self, obj: Any, args: Sequence[Value], names: Sequence[str]
    ) -> Value:
        obj = getattr(obj, "_torchdynamo_orig_callable", obj)
        if isinstance(obj, functools.partial):
            first = [self._bound(obj, i, arg) for i, arg in enumerate(obj.args)]
            rest = [self._bound(obj, key, arg) for key, arg in obj.keywords.items()]
            return self.call(
                Known(obj.func), [*first, *args, *rest], [*names, *obj.keywords]
            )
        if isinstance(obj, types.MethodType):
            return self.call(Known(obj.__func__), [Known(obj.__self__), *args], names)
        wrapped = getattr(obj, "__wrapped__", None)
        wraps = isinstance(wrapped, types.FunctionType) and not is_library(wrapped)
        if wraps and not (isinstance(obj, types.FunctionType) and not is_library(obj)):
            # functools.cache, torch.no_grad and their like.
            return self._call_known(wrapped, args, names)
        if isinstance(obj, types.FunctionType) and not is_library(obj):
            return self._call_function(obj, args, names)
        if isinstance(obj, _UNBOUND_METHODS) and args:
            name = obj.__name__
            if is_forbidden(name):
                raise Unclear(f"it uses {name!r}")
            return self._call_method(Member(args[0], name, obj), args[1:], names)
        if isinstance(obj, types.BuiltinFunctionType) and is_container(
            type(obj.__self__)
        ):
            owner = self._bound(obj, "__self__", obj.__self__)
            return self._call_on_container(owner, obj.__name__, args)
        if isinstance(obj, Module):
            raise Unclear("it calls a module")
        if isinstance(obj, type):
            return self._make(obj, args, names)
        call = inspect.getattr_static(type(obj), "__call__", None)
        if isinstance(call, types.FunctionType) and not is_library(call):
            self.touch(obj)
            return self.call(Known(call), [Known(obj), *args], names)
        return self._call_library(obj, args)

    def _make(self, cls: type, args: Sequence[Value], names: Sequence[str]) -> Value:
        """A class is called."""
        if cls in _LOOKS:
            return self._look_at(args)
        if cls in _PACKS:
            return self._pack(args) or of(list)
        if is_plain_type(cls):
            self._show(*args)
            return PLAIN
        if is_container(cls) or issubclass(cls, BaseException):
            self._show(*args)
            return of(cls)
        if cls in _OWN_CONTEXTS:
            self.keep(*args)
            return of(_Context)
        if is_torch(cls) and not is_measuring(cls.__module__):
            raise Unclear(f"it makes a {cls.__name__}")
        if is_library_type(cls):
            self._note_clock(cls.__module__)
            self._show(*args)
            return of(_Context) if is_measuring(cls.__module__) else STATE
        new: Value = Known(object())
        for name in ("__new__", "__init__", "__post_init__"):
            found = inspect.getattr_static(cls, name, None)
            found = getattr(found, "__func__", found)
            if isinstance(found, types.FunctionType):
                given = () if name == "__post_init__" else args
                self.call(Known(found), [new, *given], names if given else ())
        self.keep(*args)
        return STATE

    def _call_library(self, obj: Any, args: Sequence[Value]) -> Value:
        name = getattr(obj, "__name__", type(obj).__name__)
        if is_forbidden(name):
            raise Unclear(f"it calls {name!r}")
        if is_random(name) or is_random_module(obj):
            raise Unclear("it draws random numbers")
        owner = getattr(obj, "__self__", None)
        for place in (getattr(obj, "__module__", None), _module_of(owner)):
            self._note_clock(place)
        if edits_operand(obj):
            self.edit(args[0], *args[1:])
            return PLAIN
        if obj in _LOOKS:
            return self._look_at(args)
        if obj in _PACKS:
            return self._pack(args) or self._element_of_any(args)
        if obj is getattr and len(args) > 1:
            return self._getattr(args)
        if obj is setattr and len(args) == 3:
            if not isinstance(args[1], Known):
                raise Unclear("it sets an attribute whose name is not known")
            self.write(args[0], str(args[1].obj), args[2])
            return NONE
        if is_torch(obj):
            return self._call_torch(obj, name, args)
        self._show(*args)
        found = [given for arg in args for given in given_in(arg)]
        if not may_take_tensors(obj) and any(given.shares for given in found):
            raise Unclear(f"it hands what it is given to {name!r}")
        if obj is print:
            return NONE
        return made_of(found) if found else PLAIN

    def _look_at(self, args: Sequence[Value]) -> Value:
        for arg in args:
            self.look(arg)
        return PLAIN

    def _pack(self, args: Sequence[Value]) -> Value | None:
        """What is made of the hook's arguments in ``args``, None if there are none."""
        if any(map(is_callback, args)):
            self.keep(*args)
        # Values that are packed are not kept yet, methods may be called.
        self.keep(*(a for a in args if isinstance(a, Member) or not given_in(a)))
        found = [given for arg in args for given in given_in(arg)]
        return made_of(found, whole=False) if found else None

    def _element_of_any(self, args: Sequence[Value]) -> Value:
        """What a loop over containers, or numbers, that were packed together gives."""
        if all(map(is_plain, args)):
            return PLAIN
        is_one = len(args) == 1 and is_plain(self.element(args[0]))
        return PLAIN if is_one else STATE

    def _call_torch(self, obj: Any, name: str, args: Sequence[Value]) -> Value:
        if args and isinstance(args[0], Known) and isinstance(args[0].obj, Module):
            return self._call_on_module(args[0].obj, name, args[1:])
        if edits(name) and args:
            self.effects.edits_tensors = True
            self.edit(args[0], *args[1:])
            return args[0]
        if is_measuring(getattr(obj, "__module__", None) or ""):
            self.keep(*args)
            return PLAIN
        if isinstance(obj, types.FunctionType) and not is_functional(obj):
            raise Unclear(f"it calls {name!r} of PyTorch")
        for arg in args:
            if is_callback(arg):
                self.keep(*args)
        return self.compute(*(arg for arg in args if not is_callback(arg)), name=name)

    def _call_on_module(
        self, module: Module, name: str, args: Sequence[Value]
    ) -> Value:
        if name not in MODULE_READS:
            raise Unclear(f"it calls {name!r} of a module")
        for tensor in (*module.parameters(), *module.buffers()):
            self.touch(tensor)
        self.effects.computes = True
        self.keep(*args)
        return TENSOR

    def _show(self, *values: Value) -> None:
        """Values go where they are read at once, or kept."""
        for value in values:
            if isinstance(value, Known) and isinstance(value.obj, Module):
                raise Unclear("it hands a module on")
            if any(given.shares for given in given_in(value)):
                self.effects.computes = True
        self.keep(*values)

    def show(self, value: Value) -> None:
        if not isinstance(value, Known) or not isinstance(value.obj, Module):
            self._show(value)

    def enter(self, context: Value) -> None:
        """A with statement."""
        obj = context.obj if isinstance(context, Known) else None
        if context != of(_Context) and not is_library_type(type(obj)):
            raise Unclear("it enters a context that is not known")
        self.keep(context)

    def truth(self, value: Value) -> None:
        """Asked whether it is true, or nothing."""
        if isinstance(value, Known):
            for name in ("__bool__", "__len__"):
                found = inspect.getattr_static(type(value.obj), name, None)
                if isinstance(found, types.FunctionType) and not is_library(found):
                    raise Unclear(f"it asks for {name!r} of an object, which runs code")
            self.touch(value.obj)
        elif given_in(value) or is_tensor(value):
            self.compute(value)

    def _getattr(self, args: Sequence[Value]) -> Value:
        if not isinstance(args[1], Known) or not isinstance(args[1].obj, str):
            raise Unclear("it reads an attribute whose name is not known")
        self.keep(*args[2:])
        return self.attribute(args[0], args[1].obj, *args[2:3])

    def _note_clock(self, module: str | None) -> None:
        if is_measuring(module or ""):
            self.effects.reads_clock = True

    def _call_function(
        self,
        function: types.FunctionType,
        args: Sequence[Value],
        names: Sequence[str],
    ) -> Value:
        cells = zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
        for i, cell in enumerate(function.__closure__ or ()):
            self._homes[id(cell)] = (function, i)
        defaults = (
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        )
        for default in defaults:
            self.touch(default)
        return self._run(
            Made(function.__code__, dict(cells), function.__globals__),
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


def _module_of(owner: object) -> str | None:
    if isinstance(owner, type):
        return owner.__module__
    return owner.__name__ if isinstance(owner, types.ModuleType) else None


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


class _Context:
    """Stands for a context manager that concerns the hook alone."""


_MISSING = object()
_INDICES = (int, slice, type(None), type(...))
_UNBOUND_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_BUILTIN_METHODS = (
    *_UNBOUND_METHODS,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
)
_UNTOUCHED = (
    type(None), bool, int, float, complex, str, bytes, type, types.ModuleType,
    types.FunctionType, types.BuiltinFunctionType, torch.dtype, torch.device,
)  # fmt: skip
_LOOKS = (isinstance, issubclass, len, type, callable, hasattr)
_PACKS = (tuple, list, set, zip, enumerate, iter, next, reversed, range, sorted, map)
_OWN_CONTEXTS = (torch.no_grad, torch.enable_grad, torch.autocast)
