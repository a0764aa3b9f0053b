"""Goes through the bytecode of one function, with a stack of ``hook_values``.

What the instructions do is for a :class:`Reader` to judge: ``hook_code`` has it. An
instruction that is not known here makes the hook unclear. Must not import Dynamo.
"""

from __future__ import annotations

import dis
import inspect
import sys
import types
from typing import Any, Protocol, TYPE_CHECKING, TypeAlias

from .hook_values import (
    given_in,
    is_plain,
    join,
    join_all,
    Known,
    Made,
    made_of,
    NONE,
    NULL,
    Of,
    of,
    PLAIN,
    plain,
    STATE,
    Unclear,
    Value,
)


if TYPE_CHECKING:
    from collections.abc import Sequence


_Stack: TypeAlias = tuple[Value, ...]
_Locals: TypeAlias = dict[str, Value]

_MAX_STEPS = 20_000


class Reader(Protocol):
    """Judges what a function does with values."""

    def look(self, value: Value) -> None:
        """A variable is read."""

    def keep(self, *values: Value) -> None:
        """``values`` go where they may be kept, and used in any way."""

    def show(self, value: Value) -> None:
        """A value becomes part of a string."""

    def truth(self, value: Value) -> None:
        """Asked whether a value is true."""

    def enter(self, context: Value) -> None:
        """``with context:``"""

    def attribute(self, owner: Value, name: str) -> Value:
        """``owner.name``"""

    def write(self, owner: Value, name: str, value: Value) -> None:
        """``owner.name = value``"""

    def item(self, owner: Value, key: Value) -> Value:
        """``owner[key]``"""

    def element(self, owner: Value) -> Value:
        """What a loop over ``owner`` gives."""

    def edit(self, owner: Value, *values: Value) -> None:
        """``owner`` changes, and takes in ``values``."""

    def put(self, owner: Value, key: Value, value: Value) -> None:
        """``owner[key] = value``"""

    def compute(self, *values: Value, name: str = "") -> Value:
        """A value computed from ``values``, by what has that name."""

    def call(
        self, callee: Value, args: Sequence[Value], names: Sequence[str] = ()
    ) -> Value:
        """``callee(*args)``, the last ones named by ``names``."""

    def variable(self, cell: types.CellType) -> Value:
        """A variable of a function around is read."""

    def rebind(self, cell: types.CellType, name: str, value: Value) -> None:
        """A variable of a function around is bound to something else."""

    def global_(self, scope: dict[str, Any], name: str) -> Value:
        """A global, or builtin, is read."""

    def rebind_global(self, scope: dict[str, Any], name: str, value: Value) -> None:
        """A global is bound to something else."""


class Frame:
    """One call of a code object: a stack and locals at each instruction."""

    def __init__(
        self,
        reader: Reader,
        function: Made,
    ) -> None:
        self._reader = reader
        self._code = function.code
        self._cells = dict(function.cells)
        self._scope = function.scope
        self._results: list[Value] = []
        self._names: Sequence[str] = ()

    def run(self, bound: _Locals) -> Value:
        code = self._code
        for name in code.co_cellvars:
            self._cells[name] = bound.get(name, STATE)
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise Unclear("it is asynchronous")
        instructions = [*dis.get_instructions(code)]
        at = {ins.offset: i for i, ins in enumerate(instructions)}
        states: dict[int, tuple[_Stack, _Locals]] = {0: ((), bound)}
        todo = [0]
        anything = join_all([*bound.values(), STATE])
        stored = {ins.argval for ins in instructions if ins.opname == "STORE_FAST"}
        caught = {
            name: anything if name in stored else bound.get(name, STATE)
            for name in code.co_varnames
        }
        for entry in getattr(dis.Bytecode(code), "exception_entries", ()):
            below = (anything,) * (entry.depth + bool(entry.lasti))
            states[at[entry.target]] = ((*below, STATE), caught)
            todo.append(at[entry.target])
        steps = 0
        while todo:
            i = todo.pop()
            steps += 1
            if steps > _MAX_STEPS:
                raise Unclear("its code is too long")
            stack, local = states[i]
            branches = self._step(instructions[i], stack, dict(local))
            for jumps, (new_stack, new_local) in branches:
                target = at[instructions[i].argval] if jumps else i + 1
                state = self._merged(states.get(target), new_stack, new_local)
                if states.get(target) != state:
                    states[target] = state
                    todo.append(target)
        # A function without results never returns.
        return join_all(self._results) if self._results else NONE

    @staticmethod
    def _merged(
        known: tuple[_Stack, _Locals] | None, stack: _Stack, local: _Locals
    ) -> tuple[_Stack, _Locals]:
        if known is None:
            return stack, local
        if len(known[0]) != len(stack):
            raise Unclear("its stack is not known")
        merged = {
            name: join(value, local[name]) if name in local else value
            for name, value in known[1].items()
        }
        return (
            tuple(map(join, known[0], stack)),
            {**local, **merged},
        )

    def _step(
        self, ins: dis.Instruction, stack: _Stack, local: _Locals
    ) -> list[tuple[bool, tuple[_Stack, _Locals]]]:
        """The states after an instruction, and whether each jumps."""
        op, items = ins.opname, [*stack]
        if op in ("RETURN_VALUE", "RETURN_CONST"):
            is_const = op == "RETURN_CONST"
            self._results.append(Known(ins.argval) if is_const else items[-1])
            return []
        if op in ("RAISE_VARARGS", "RERAISE"):
            n = ins.arg if op == "RAISE_VARARGS" else 0
            self._reader.keep(*items[len(items) - (n or 0) :])
            return []
        if op.startswith("JUMP_") and "IF" not in op:
            return [(True, (tuple(items), local))]
        if op == "FOR_ITER":
            element = self._reader.element(items[-1])
            jumped = items if sys.version_info >= (3, 12) else items[:-1]
            if sys.version_info >= (3, 12):
                jumped = [*items, STATE]
            return [
                (False, ((*items, element), local)),
                (True, (tuple(jumped), local)),
            ]
        if "JUMP" in op:
            if op.endswith("_OR_POP"):
                self._reader.truth(items[-1])
                return [
                    (False, (tuple(items[:-1]), local)),
                    (True, (tuple(items), local)),
                ]
            self._reader.truth(items.pop())
            return [(jumps, (tuple(items), local)) for jumps in (False, True)]
        handler = getattr(self, f"_{op}", None)
        if handler is None:
            raise Unclear(f"its bytecode has {op}")
        handler(ins, items, local)
        return [(False, (tuple(items), local))]

    # Instructions: each changes the stack and the locals it is given.

    def _nothing(self, ins: Any, items: list[Value], local: _Locals) -> None:
        pass

    _RESUME = _PRECALL = _CACHE = _NOP = _MAKE_CELL = _COPY_FREE_VARS = _nothing
    _NOT_TAKEN = _EXTENDED_ARG = _TO_BOOL = _nothing

    def _LOAD_CONST(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(Known(ins.argval))

    _LOAD_SMALL_INT = _LOAD_CONST

    def _LOAD_FAST(self, ins: Any, items: list[Value], local: _Locals) -> None:
        names = ins.argval if isinstance(ins.argval, tuple) else (ins.argval,)
        for name in names:
            value = local.get(name, STATE)
            self._reader.look(value)
            items.append(value)

    _LOAD_FAST_CHECK = _LOAD_FAST_LOAD_FAST = _LOAD_FAST_BORROW = _LOAD_FAST
    _LOAD_FAST_BORROW_LOAD_FAST_BORROW = _LOAD_FAST

    def _LOAD_FAST_AND_CLEAR(
        self, ins: Any, items: list[Value], local: _Locals
    ) -> None:
        items.append(local.pop(ins.argval, STATE))

    def _STORE_FAST(self, ins: Any, items: list[Value], local: _Locals) -> None:
        names = ins.argval if isinstance(ins.argval, tuple) else (ins.argval,)
        for name in names:
            local[name] = items.pop()

    _STORE_FAST_STORE_FAST = _STORE_FAST

    def _STORE_FAST_LOAD_FAST(
        self, ins: Any, items: list[Value], local: _Locals
    ) -> None:
        local[ins.argval[0]] = items.pop()
        items.append(local.get(ins.argval[1], STATE))

    def _DELETE_FAST(self, ins: Any, items: list[Value], local: _Locals) -> None:
        local.pop(ins.argval, None)

    def _LOAD_DEREF(self, ins: Any, items: list[Value], local: _Locals) -> None:
        value = self._cells.get(ins.argval, STATE)
        is_cell = isinstance(value, types.CellType)
        items.append(self._reader.variable(value) if is_cell else value)

    def _STORE_DEREF(self, ins: Any, items: list[Value], local: _Locals) -> None:
        value = items.pop()
        known = self._cells.get(ins.argval, value)
        if isinstance(known, types.CellType):
            self._reader.rebind(known, ins.argval, value)
        else:
            self._cells[ins.argval] = join(known, value)

    def _LOAD_CLOSURE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(STATE)

    def _LOAD_GLOBAL(self, ins: Any, items: list[Value], local: _Locals) -> None:
        value = self._reader.global_(self._scope, ins.argval)
        with_null = ins.arg is not None and ins.arg & 1
        items += [NULL, value] if with_null else [value]

    def _STORE_GLOBAL(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._reader.rebind_global(self._scope, ins.argval, items.pop())

    def _PUSH_NULL(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(NULL)

    def _POP_TOP(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.pop()

    _POP_ITER = _POP_EXCEPT = _POP_TOP

    def _END_FOR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        del items[-2 if sys.version_info < (3, 13) else -1 :]

    def _PUSH_EXC_INFO(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(STATE)

    def _CHECK_EXC_MATCH(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items[-1] = STATE

    _WITH_EXCEPT_START = _LOAD_ASSERTION_ERROR = _PUSH_EXC_INFO

    def _BEFORE_WITH(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._reader.enter(items.pop())
        items += [_EXIT, STATE]

    def _COPY(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(items[-ins.arg])

    def _SWAP(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items[-1], items[-ins.arg] = items[-ins.arg], items[-1]

    def _LOAD_ATTR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        found = self._reader.attribute(items.pop(), ins.argval)
        is_method = sys.version_info >= (3, 12) and ins.arg & 1
        items += [NULL, found] if is_method else [found]

    def _LOAD_METHOD(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items += [NULL, self._reader.attribute(items.pop(), ins.argval)]

    def _STORE_ATTR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        owner, value = items.pop(), items.pop()
        self._reader.write(owner, ins.argval, value)

    def _DELETE_ATTR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._reader.write(items.pop(), ins.argval, STATE)

    def _BINARY_SUBSCR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        key, owner = items.pop(), items.pop()
        items.append(self._reader.item(owner, key))

    def _BINARY_SLICE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        stop, start, owner = items.pop(), items.pop(), items.pop()
        is_known = all(isinstance(bound, Known) for bound in (start, stop))
        key = Known(slice(None)) if is_known else PLAIN
        items.append(self._reader.item(owner, key))

    def _STORE_SUBSCR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        key, owner, value = items.pop(), items.pop(), items.pop()
        self._reader.put(owner, key, value)

    def _DELETE_SUBSCR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        key, owner = items.pop(), items.pop()
        self._reader.edit(owner, key)

    def _BINARY_OP(self, ins: Any, items: list[Value], local: _Locals) -> None:
        right, left = items.pop(), items.pop()
        if ins.argrepr == "[]":
            items += [left, right]
            self._BINARY_SUBSCR(ins, items, local)
            return
        if ins.argrepr.endswith("=") and not is_plain(left):
            self._reader.edit(left, right)
        items.append(self._reader.compute(left, right, name="add"))

    def _COMPARE_OP(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(self._reader.compute(items.pop(), items.pop(), name="eq"))

    def _CONTAINS_OP(self, ins: Any, items: list[Value], local: _Locals) -> None:
        owner, item = items.pop(), items.pop()
        if given_in(owner) and given_in(item):
            # Compared by identity first.
            self._reader.keep(owner, item)
        self._reader.compute(owner, item)
        items.append(PLAIN)

    def _IS_OP(self, ins: Any, items: list[Value], local: _Locals) -> None:
        pair = [items.pop(), items.pop()]
        if all(map(given_in, pair)):
            self._reader.keep(*pair)
        items.append(PLAIN)

    def _UNARY_NOT(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._reader.truth(items.pop())
        items.append(PLAIN)

    def _UNARY_NEGATIVE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(self._reader.compute(items.pop(), name="mul"))

    _UNARY_INVERT = _UNARY_POSITIVE = _UNARY_NEGATIVE

    def _GET_ITER(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._reader.look(items[-1])

    def _UNPACK_SEQUENCE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items += [self._reader.element(items.pop())] * ins.arg

    def _build(self, ins: Any, items: list[Value], local: _Locals) -> None:
        n = ins.arg * (2 if ins.opname == "BUILD_MAP" else 1)
        n += ins.opname == "BUILD_CONST_KEY_MAP"
        parts = items[len(items) - n :]
        del items[len(items) - n :]
        if any(isinstance(part, Made) for part in parts):
            self._reader.keep(*parts)
        if ins.opname == "BUILD_SLICE":
            is_known = all(isinstance(part, Known) for part in parts)
            items.append(Known(slice(None)) if is_known else PLAIN)
            return
        for part in parts:
            if isinstance(part, Known):
                self._reader.keep(part)
        found = [given for part in parts for given in given_in(part)]
        is_plain_tuple = ins.opname == "BUILD_TUPLE" and all(map(is_plain, parts))
        empty = PLAIN if is_plain_tuple else of(_BUILT.get(ins.opname, tuple))
        items.append(made_of(found) if found else empty)

    _BUILD_TUPLE = _BUILD_LIST = _BUILD_SET = _BUILD_SLICE = _BUILD_MAP = _build
    _BUILD_CONST_KEY_MAP = _build

    def _BUILD_STRING(self, ins: Any, items: list[Value], local: _Locals) -> None:
        del items[len(items) - ins.arg :]
        items.append(PLAIN)

    def _FORMAT_VALUE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        if ins.arg & 4:
            items.pop()
        self._reader.show(items.pop())
        items.append(PLAIN)

    def _FORMAT_SIMPLE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._reader.show(items.pop())
        items.append(PLAIN)

    _CONVERT_VALUE = _FORMAT_SIMPLE

    def _FORMAT_WITH_SPEC(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.pop()
        self._FORMAT_SIMPLE(ins, items, local)

    def _extend(self, ins: Any, items: list[Value], local: _Locals) -> None:
        value = items.pop()
        if found := given_in(value):
            found += given_in(items[-ins.arg])
            items[-ins.arg] = made_of(found)
        elif not given_in(items[-ins.arg]):
            self._reader.keep(value)

    _LIST_APPEND = _SET_ADD = _LIST_EXTEND = _SET_UPDATE = _extend
    _DICT_UPDATE = _DICT_MERGE = _extend

    def _MAP_ADD(self, ins: Any, items: list[Value], local: _Locals) -> None:
        value, key = items.pop(), items.pop()
        items[-ins.arg] = join_all([items[-ins.arg], plain(key), plain(value)])

    def _LIST_TO_TUPLE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        pass

    def _MAKE_FUNCTION(self, ins: Any, items: list[Value], local: _Locals) -> None:
        code = items.pop()
        for flag in (8, 4, 2, 1):
            if sys.version_info < (3, 13) and ins.arg & flag:
                self._reader.keep(items.pop())
        if not isinstance(code, Known) or not isinstance(code.obj, types.CodeType):
            raise Unclear("it makes a function")
        items.append(Made(code.obj, self._cells, self._scope))

    def _SET_FUNCTION_ATTRIBUTE(
        self, ins: Any, items: list[Value], local: _Locals
    ) -> None:
        del items[-2]

    def _RETURN_GENERATOR(self, ins: Any, items: list[Value], local: _Locals) -> None:
        items.append(STATE)

    def _YIELD_VALUE(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._results.append(join(STATE, plain(items.pop())))
        items.append(STATE)

    def _KW_NAMES(self, ins: Any, items: list[Value], local: _Locals) -> None:
        self._names = self._code.co_consts[ins.arg]

    def _CALL(self, ins: Any, items: list[Value], local: _Locals) -> None:
        args = items[len(items) - ins.arg :]
        del items[len(items) - ins.arg :]
        pair = [items.pop(), items.pop()]
        if NULL not in pair:
            # Comprehensions, and the end of a with statement.
            callee, args = pair[1], [pair[0], *args]
        else:
            pair = [value for value in pair if value is not NULL]
            if len(pair) != 1:
                raise Unclear("its calls are not known")
            (callee,) = pair
        names, self._names = self._names, ()
        if callee is _EXIT:
            items.append(STATE)
        else:
            items.append(self._reader.call(callee, args, names))

    def _CALL_KW(self, ins: Any, items: list[Value], local: _Locals) -> None:
        names = items.pop()
        self._names = names.obj if isinstance(names, Known) else ("?",)
        self._CALL(ins, items, local)

    def _CALL_FUNCTION_EX(self, ins: Any, items: list[Value], local: _Locals) -> None:
        n = 2 if ins.arg is not None and ins.arg & 1 else 1
        args = items[len(items) - n :]
        del items[len(items) - n :]
        pair = [items.pop()]
        if items and items[-1] is NULL:
            items.pop()
        items.append(self._reader.call(pair[0], args, ("*",)))

    def _CALL_INTRINSIC_1(self, ins: Any, items: list[Value], local: _Locals) -> None:
        # One makes a tuple of a list, the other is how a generator ends.
        if ins.argrepr not in ("INTRINSIC_LIST_TO_TUPLE", _STOPS):
            raise Unclear(f"its bytecode has {ins.argrepr}")


_STOPS = "INTRINSIC_STOPITERATION_ERROR"
_BUILT: dict[str, type] = {"BUILD_LIST": list, "BUILD_SET": set, "BUILD_MAP": dict}
_BUILT["BUILD_CONST_KEY_MAP"] = dict
# What a with statement calls at its end.
_EXIT = Of(type(None))
