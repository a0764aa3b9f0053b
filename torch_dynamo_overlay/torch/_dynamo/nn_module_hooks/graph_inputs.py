"""Graph inputs that take hooks along, made and filled by Dynamo's bytecode.

Called by ``backward_variables``. What is known before the graph runs is handed over
then; hooks that the frame itself makes are handed over after it, which is soon enough
for backward. Must not import ``variables`` or ``call_impl``.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch._dynamo.bytecode_transformation import create_instruction
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.source import SyntheticLocalSource
from torch._dynamo.variables.base import ValueMutationNew, VariableTracker
from torch._dynamo.variables.functions import NestedUserFunctionVariable
from torch._dynamo.variables.user_defined import RemovableHandleVariable
from torch._guards import TracingContext

from .call_hooks import ModuleHooks, TensorHooks
from .guards import install_identity_guard


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source

    from .call_hooks import HooksInput


class RunTimeHookVariable(VariableTracker):
    """A hook that the graph takes in, of which tracing needs to know nothing.

    So nothing guards on it, and another hook in its place needs no other graph. Code
    that does look at it sees what it would see without us.

    Args:
        value: the hook.
        source: where bytecode finds it.
    """

    _nonvar_fields = {"value", *VariableTracker._nonvar_fields}

    def __init__(self, value: Callable[..., Any], source: Source) -> None:
        super().__init__(source=source)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def tp_getattro_impl(
        self, tx: InstructionTranslatorBase, name: str
    ) -> VariableTracker:
        return self._traced(tx).tp_getattro_impl(tx, name)

    def call_function(
        self,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return self._traced(tx).call_function(tx, args, kwargs)

    def _traced(self, tx: InstructionTranslatorBase) -> VariableTracker:
        assert self.source is not None
        install_identity_guard(self.source, self.value)
        return VariableTracker.build(tx, self.value, self.source).realize()


class _UnseenFunctionVariable(VariableTracker):
    """A function of the frame that bytecode makes, but that tracing does not look into.

    Bytecode for a function begins with a look at all it closes over, to see whether it
    is a constant; what is looked at is guarded, such as the length of a list.
    """

    def __init__(self, function: NestedUserFunctionVariable) -> None:
        super().__init__()
        self.function = function

    def python_type(self) -> type:
        return self.function.python_type()

    def reconstruct(self, codegen: PyCodegen) -> None:
        self.function.reconstruct(codegen)


def module_hooks_input(
    tx: InstructionTranslatorBase,
    module: VariableTracker,
    hooks: Sequence[VariableTracker],
    pre_hooks: Sequence[VariableTracker],
) -> VariableTracker:
    """An input that holds the hooks of one call of a module.

    Args:
        tx: the frame being traced.
        module: the module.
        hooks: its full backward hooks, or legacy ones.
        pre_hooks: its backward pre-hooks.
    """

    cg = PyCodegen(tx.output.root_tx)
    cg.add_push_null(lambda: _load(cg, ModuleHooks))
    _load_if_known(cg, module)
    for vts in (hooks, pre_hooks):
        for vt in vts:
            _load_if_known(cg, vt)
        cg.append_output(create_instruction("BUILD_TUPLE", arg=len(vts)))
    call = _graph_input(tx, cg, 3, ModuleHooks())
    if module.source is None:
        call_later(tx, call, "fill_module", module)
    for vt in (*hooks, *pre_hooks):
        if vt.source is None:
            call_later(tx, call, "fill_hook", vt)
    return call


def tensor_hooks_input(tx: InstructionTranslatorBase) -> VariableTracker:
    """An input that holds the hooks of one tensor, filled with :func:`call_later`.

    Args:
        tx: the frame being traced.
    """
    cg = PyCodegen(tx.output.root_tx)
    cg.add_push_null(lambda: _load(cg, TensorHooks))
    return _graph_input(tx, cg, 0, TensorHooks())


def call_later(
    tx: InstructionTranslatorBase,
    call: VariableTracker,
    method: str,
    argument: VariableTracker,
) -> RemovableHandleVariable:
    """Call a method of a hooks input after the graph has run.

    Args:
        tx: the frame being traced.
        call: the input.
        method: name of the method.
        argument: what it takes.

    Returns:
        What the method returns, if that is a handle.
    """
    if isinstance(argument, NestedUserFunctionVariable):
        argument = _UnseenFunctionVariable(argument)
    handle = RemovableHandleVariable(mutation_type=ValueMutationNew())
    registered: dict[int, Any] = tx.output.side_effects.tensor_hooks
    handle.idx = max(registered, default=-1) + 1
    registered[handle.idx] = (call, argument, handle, method)
    return handle


def _load(cg: PyCodegen, cls: type[HooksInput]) -> None:
    cg.load_import_from(cls.__module__, cls.__name__)


def _load_if_known(cg: PyCodegen, vt: VariableTracker) -> None:
    if vt.source is None:
        cg.append_output(cg.create_load_const(None))
    else:
        cg(vt.source)


def _graph_input(
    tx: InstructionTranslatorBase, cg: PyCodegen, n: int, example: HooksInput
) -> VariableTracker:
    output = tx.output
    name = output.new_var()
    cg.call_function(n, False)
    cg.store(name)
    output.pregraph_bytecode.extend(cg.get_instructions())
    source = SyntheticLocalSource(name)
    call = VariableTracker.build(output.root_tx, example, source).realize()
    guards = TracingContext.get().guards_context.dynamo_guards
    guards.remove_guards_with_source(source)
    return call
