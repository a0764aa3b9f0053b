"""How Dynamo traces forward hooks and pre-hooks.

Where nothing can tell the difference, they are not traced but called at run time, so
that nothing guards on their state: by the bytecode after the graph, with live tensors,
or by the graph itself, when they ask for the time. Used by ``variables``. Must not
import ``call_impl``.
"""

from __future__ import annotations

import functools
import json
import logging
import types
from typing import Any, NoReturn, TYPE_CHECKING

import torch
from torch._dynamo.code_context import code_context
from torch._dynamo.decorators import disable
from torch._dynamo.exc import unimplemented, Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.utils import warn_once
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lists import BaseListVariable, ListVariable, TupleVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from . import run_hooks
from .forward_calls import (
    ForwardCall,
    graph_inputs,
    memory_of,
    must_call_in_graph,
    must_copy,
    must_trace,
    note_call,
)
from .graph_inputs import module_hooks_input, RunTimeHookVariable
from .guards import failed_guards
from .hook_code import effects_of, HookEffects, ReturnsValue
from .hook_frames import run_eagerly
from .hook_identity import described, function_of
from .hook_values import Unclear
from .policy import mark_of, policy_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch._dynamo.codegen import PyCodegen
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


log = logging.getLogger(__name__)

call_hook = disable(run_hooks.call_hook, reason="hooks are not compiled by themselves")


class ForwardHookVariable(RunTimeHookVariable):
    """A forward hook or pre-hook, called at run time or traced.

    Args:
        value: the hook.
        source: where bytecode finds it.
    """

    def call_function(
        self,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        assert self.source is not None
        try:
            self._call_at_run_time(tx, args, self.source)
        except Unclear as reason:
            if self._has_moved(tx, args, self.source):
                self._break_graph(self.source, str(reason))
            log.info("%s: traced into the graph: %s", self.source.name, reason)
            return self._trace(tx, args, kwargs, str(reason))
        _guard_on_code(self.value, self.source)
        return ConstantVariable.create(None)

    def _has_moved(
        self,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        source: Source,
    ) -> bool:
        """Whether what was traced of the hook before did not hold for long."""
        if tx.one_graph or tx.error_on_graph_break or policy_of(self.value) == "trace":
            return False
        function = function_of(self.value)
        if not isinstance(function, types.FunctionType):
            return False
        key = "nn_module_hook_states"
        of_hook: Any = code_context.get_context(function.__code__)
        of_frame: Any = code_context.get_context(tx.output.root_tx.f_code)
        states = of_frame.setdefault(key, {})
        now = self._changing_state(args)
        before = states.setdefault((function.__code__, source.name), now)
        if before != now or failed_guards(tx.output.root_tx.f_code, source) > 1:
            # In frames that have not been compiled yet, it would be the same.
            of_hook[key] = "move"
        return key in of_hook

    def _changing_state(self, args: Sequence[VariableTracker]) -> list[object]:
        """What the hook reads and changes itself, as far as its code shows."""
        module = getattr(args[0].realize(), "value", None)
        try:
            return effects_of(self.value, module, len(args)).restless
        except ReturnsValue as result:
            return result.effects.restless
        except Unclear:
            return []

    def _break_graph(self, source: Source, reason: str) -> NoReturn:
        warn_once(
            f"The hook {described(self.value)} breaks the graph. It has to be traced "
            f"({reason}), and reads state that changes, so that a graph of it would "
            "hold for one call. Hooks that only record compile in whole graphs: split "
            "one that also returns a value. See docs/nn_module_hooks.md of "
            "torch-hooks, 'Hooks that record'."
        )
        run_eagerly(self.value)
        unimplemented(
            gb_type="nn.Module hook that is traced and reads what changes",
            context=f"{source.name}: {reason}",
            explanation="A graph of this hook would hold for one call, as it reads "
            "state that changes.",
            hints=[
                "Make two hooks of one that records and returns a value.",
                "Compile with fullgraph=True, or decorate the hook with "
                'torch._dynamo.nn_module_hooks.hook_policy("trace"), to trace it all '
                "the same.",
            ],
        )

    def _trace(
        self,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
        reason: str,
    ) -> VariableTracker:
        try:
            return super().call_function(tx, args, kwargs)
        except Unsupported as error:
            warn_once(
                f"The hook {described(self.value)} breaks the graph. It cannot be "
                f"traced ({str(error).splitlines()[0]}), nor called at run time: "
                f"{reason}. See docs/nn_module_hooks.md of torch-hooks, 'Hooks that "
                "record'."
            )
            raise

    def _call_at_run_time(
        self,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        source: Source,
    ) -> None:
        if policy_of(self.value) == "trace":
            raise Unclear("its policy says so")
        if must_trace(tx, self.value):
            raise Unclear("the frame could tell")
        module = args[0].realize()
        if module.source is None:
            raise Unclear("its module is made in the frame")
        _check_frames(tx)
        effects = self._effects(module, len(args), trusts=mark_of(self.value) == "call")
        if effects.returns and not self._is_result(effects.returns, len(args), source):
            raise Unclear("it may return a value")
        tensors: list[torch.Tensor] = []
        copies = must_copy(tx, self.value)
        handed = [
            _handed(
                tx,
                arg,
                tensors,
                is_live=i in effects.live,
                copies=copies,
                keeps_whole=effects.keeps_whole,
            )
            if i in effects.given
            else ConstantVariable.create(None)
            for i, arg in enumerate(args[1:], 1)
        ]
        in_graph = effects.reads_clock or must_call_in_graph(tx, self.value)
        if in_graph:
            if effects.live and any(tensor.requires_grad for tensor in tensors):
                raise Unclear("it reads the clock and keeps tensors that require grad")
            self._call_in_graph(tx, module, args, handed)
        else:
            grad_mode = ConstantVariable.create(torch.is_grad_enabled())
            tx.output.root_tx.debug_locals.append(
                (_CallHookVariable(), [self, grad_mode, module, *handed])
            )
        when = "in the graph" if in_graph else "after the graph"
        log.info("%s: called %s", source.name, when)
        inputs = graph_inputs(tx)
        if not effects.computes or copies or (in_graph and not effects.shares):
            # It does not matter, or is not seen, what becomes of these later.
            tensors.clear()
        seen = [*tensors]
        memories = {memory_of(obj) for obj in effects.touched}
        seen += [inputs[memory] for memory in memories & inputs.keys()]
        note_call(
            tx,
            ForwardCall(
                self.value,
                source,
                getattr(module, "value", None),
                module.source,
                len(args),
                effects,
                in_graph,
                seen,
            ),
        )

    def _is_result(self, returned: int, n: int, source: Source) -> bool:
        """Whether to return this argument, of ``n``, is to return None."""
        takes_kwargs = n == 3 and "_forward_pre_hooks" in source.name
        return returned == n - 1 and not takes_kwargs

    def _effects(self, module: VariableTracker, n: int, *, trusts: bool) -> HookEffects:
        try:
            return effects_of(self.value, getattr(module, "value", None), n)
        except Unclear:
            if not trusts:
                raise
            given = {*range(1, n)}
            return HookEffects(
                given=given, live=given, computes=True, shares=True, keeps_whole=True
            )

    def _call_in_graph(
        self,
        tx: InstructionTranslatorBase,
        module: VariableTracker,
        args: Sequence[VariableTracker],
        handed: Sequence[VariableTracker],
    ) -> None:
        layout: list[int | None] = []
        tensors: list[VariableTracker] = []
        for arg in handed:
            if isinstance(arg, ConstantVariable) and arg.value is None:
                layout.append(None)
            elif arg.is_tensor():
                layout.append(-1)
                tensors.append(arg)
            elif type(arg) is TupleVariable and all(i.is_tensor() for i in arg.items):
                layout.append(len(arg.items))
                tensors += arg.items
            else:
                raise Unclear("it reads the clock and is given more than tensors")
        # Only what a call depends on keeps it in its place.
        after = [vt for arg in args[1:] for vt in _tensors_in(arg.realize())]
        call = module_hooks_input(tx, module, [self], [])
        tx.output.create_proxy(
            "call_function",
            torch.ops.nn_module_hooks.call_in_forward.default,
            (
                call.as_proxy(),
                [vt.as_proxy() for vt in tensors],
                [vt.as_proxy() for vt in after],
                json.dumps([torch.is_grad_enabled(), *layout]),
            ),
            {},
        )


class _CallHookVariable(VariableTracker):
    """The function that bytecode calls hooks with."""

    def python_type(self) -> type:
        return types.FunctionType

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.load_import_from(__name__, "call_hook")


def _tensors_in(value: VariableTracker) -> list[VariableTracker]:
    if value.is_tensor():
        return [value]
    items: Iterable[VariableTracker] = ()
    if isinstance(value, BaseListVariable):
        items = value.items
    elif isinstance(value, ConstDictVariable):
        items = value.items.values()
    return [vt for item in items for vt in _tensors_in(item.realize())]


def _handed(
    tx: InstructionTranslatorBase,
    value: VariableTracker,
    seen: list[torch.Tensor],
    *,
    is_live: bool,
    copies: bool,
    keeps_whole: bool,
) -> VariableTracker:
    """``value`` as the hook is given it; ``seen`` takes in the tensors."""
    value = value.realize()
    if value.is_tensor():
        example = value.as_proxy().node.meta["example_value"]
        seen.append(example)
        # AOTAutograd cannot give out a view, of some kinds, and the same detached.
        if not is_live and example.requires_grad and not example._is_view():
            value = value.call_method(tx, "detach", [], {})
        return value.call_method(tx, "clone", [], {}) if copies else value
    if isinstance(value, (ConstantVariable, SymNodeVariable)):
        return value
    hand = functools.partial(
        _handed,
        tx,
        seen=seen,
        is_live=is_live,
        copies=copies,
        keeps_whole=keeps_whole,
    )
    if type(value) is TupleVariable:
        return TupleVariable([hand(item) for item in value.items])
    is_new = value.source is None
    if not is_new and tx.output.side_effects.is_modified(value):
        raise Unclear("the frame changes what it is given")
    if is_new and keeps_whole and type(value) in (ListVariable, ConstDictVariable):
        raise Unclear("it may keep a container that the frame has made")
    if type(value) is ListVariable:
        items = [hand(item) for item in value.items]
        return ListVariable(items) if is_new or copies or not is_live else value
    if type(value) is ConstDictVariable:
        pairs = {key: hand(item) for key, item in value.items.items()}
        copy = ConstDictVariable(pairs)
        return copy if is_new or copies or not is_live else value
    if isinstance(value, BaseListVariable) and not copies:
        for item in value.items:
            hand(item)
    elif is_new or copies:
        raise Unclear(f"it is given a {value.python_type().__name__}")
    return value


def _check_frames(tx: InstructionTranslatorBase) -> None:
    """Refuse where calls have to take place at their own time."""
    if tx.export:
        raise Unclear("it is exported")
    if tx.output.current_tracer.parent is not None:
        raise Unclear("it is called in a region with a graph of its own")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Unclear("it is called inside of a function transform")
    frame: InstructionTranslatorBase | None = tx
    while frame is not None:
        if frame.block_stack:
            raise Unclear("it is called inside of a context manager")
        if frame.current_instruction.exn_tab_entry:
            # Of a try statement, or of a with statement.
            raise Unclear("its errors may be caught")
        frame = frame.parent


def _guard_on_code(hook: Any, source: Source) -> None:
    """Guard on what the hook's code is: all that its call depends on."""
    if isinstance(hook, types.FunctionType):
        install_guard(source.make_guard(GuardBuilder.CLOSURE_MATCH))
    elif isinstance(hook, types.MethodType):
        _guard_on_code(hook.__func__, AttrSource(source, "__func__"))
        owner = AttrSource(source, "__self__")
        install_guard(owner.make_guard(GuardBuilder.TYPE_MATCH))
    elif isinstance(hook, functools.partial):
        install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
        _guard_on_code(hook.func, AttrSource(source, "func"))
    elif isinstance(hook, types.BuiltinFunctionType):
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
    else:
        install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
