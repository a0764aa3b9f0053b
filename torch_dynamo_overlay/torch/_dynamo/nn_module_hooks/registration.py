"""How Dynamo traces forward hooks that a frame registers and removes itself.

Called by the seam in ``UserDefinedClassVariable.call_function`` when a frame makes a
``RemovableHandle``, and by ``forward_calls`` before a graph is compiled. A frame that
leaves a hook behind is broken at its registration. Must not import ``guards``.
"""

from __future__ import annotations

import types
from typing import Any, NoReturn, TYPE_CHECKING

from torch._dynamo.exc import UnspecializeRestartAnalysis
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.ctx_manager import ContextWrappingVariable
from torch._dynamo.variables.dicts import NNModuleHooksDictVariable
from torch._dynamo.variables.hashable import HashableTracker
from torch._dynamo.variables.lists import ListVariable
from torch.nn.modules import module as nn_module
from torch.utils.hooks import RemovableHandle

from .state import BACKWARD_HOOK_DICTS, GLOBAL_HOOK_DICTS, MODULE_HOOK_DICTS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._dynamo.codegen import PyCodegen
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


_TRACED = (MODULE_HOOK_DICTS | GLOBAL_HOOK_DICTS) - {
    name for kind in BACKWARD_HOOK_DICTS for name in (kind, f"_global{kind}")
}


def handle_of(
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker | None:
    """The variable of a handle that a frame makes to register a hook.

    Args:
        tx: the frame.
        args: of ``RemovableHandle``: the hook dict.
        kwargs: of ``RemovableHandle``: ``extra_dict``.

    Returns:
        None where it is left to upstream, which breaks the graph.
    """
    if _State.of(tx).leaves_hooks:
        return None
    extra = kwargs.get("extra_dict")
    dicts = [*args]
    if extra is not None:
        extra = extra.realize()
        dicts += extra.items if isinstance(extra, ListVariable) else [extra]
    dicts = [value.realize() for value in dicts]
    if not all(map(_is_traced, dicts)):
        return None
    handle = ModuleHookHandleVariable(dicts)  # type: ignore[arg-type]
    _handles(tx).append(handle)
    tx.output.root_tx.debug_locals.append((_TakeIdVariable(), []))
    return handle


def check_handles(tx: InstructionTranslatorBase) -> bool:
    """See that a frame has removed all hooks that it registered.

    Args:
        tx: the frame, whose graph is about to be compiled.

    Returns:
        Whether it has registered any.

    Raises:
        torch._dynamo.exc.RestartAnalysis: when some are left.
    """
    handles = _handles(tx)
    if not all(handle.is_removed for handle in handles):
        _leave(tx, "a hook that the frame registers outlives its graph")
    return bool(handles)


def _leave(tx: InstructionTranslatorBase, reason: str) -> NoReturn:
    """Analyse the frame again, with eager code registering its hooks."""
    _State.of(tx).leaves_hooks = True
    raise UnspecializeRestartAnalysis(restart_reason=reason)


def _is_traced(value: VariableTracker) -> bool:
    source = value.source
    return (
        isinstance(value, NNModuleHooksDictVariable)
        and isinstance(source, AttrSource)
        and source.member in _TRACED
    )


class _State:
    """What is known of a frame's registrations, kept when analysis restarts."""

    def __init__(self) -> None:
        self.leaves_hooks = False

    @staticmethod
    def of(tx: InstructionTranslatorBase) -> _State:
        log: Any = tx.speculation_log
        if not hasattr(log, "nn_module_registrations"):
            log.nn_module_registrations = _State()
        return log.nn_module_registrations


def _handles(tx: InstructionTranslatorBase) -> list[ModuleHookHandleVariable]:
    output: Any = tx.output
    if not hasattr(output, "nn_module_hook_handles"):
        output.nn_module_hook_handles = []
    return output.nn_module_hook_handles


class ModuleHookHandleVariable(ContextWrappingVariable):
    """The handle of a forward hook that the frame has registered.

    Args:
        dicts: the hook dict, and those that mark the hook.
    """

    _nonvar_fields = {
        "dicts",
        "id",
        "is_removed",
        *ContextWrappingVariable._nonvar_fields,
    }

    def __init__(self, dicts: Sequence[NNModuleHooksDictVariable]) -> None:
        super().__init__(target_values=None)
        self.dicts = [(hooks, _is_modified(hooks)) for hooks in dicts]
        self.id = _HookIdVariable()
        self.is_removed = False

    def python_type(self) -> type:
        return RemovableHandle

    def tp_getattro_impl(
        self, tx: InstructionTranslatorBase, name: str
    ) -> VariableTracker:
        if name != "id":
            return super().tp_getattro_impl(tx, name)
        if tx.f_code.co_filename != nn_module.__file__:
            _leave(tx, "the frame reads the id of a hook that it registers")
        return self.id

    def call_method(
        self,
        tx: InstructionTranslatorBase,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if name == "remove":
            return self._remove()
        if name == "__enter__":
            return self
        if name == "__exit__":
            return self.exit(tx, *args)
        return super().call_method(tx, name, args, kwargs)

    def enter(self, tx: InstructionTranslatorBase) -> VariableTracker:
        return self

    def exit(
        self, tx: InstructionTranslatorBase, *args: VariableTracker
    ) -> VariableTracker:
        return self._remove()

    def supports_graph_breaks(self) -> bool:
        return False

    def _remove(self) -> VariableTracker:
        key = HashableTracker(self.id)
        for hooks, was_modified in self.dicts:
            hooks.items.pop(key, None)
            # As it was: nothing is left for the bytecode to do.
            if not any(isinstance(k.vt, _HookIdVariable) for k in hooks.items):
                hooks.mutation_type.is_modified = was_modified  # type: ignore[union-attr]
        self.is_removed = True
        return ConstantVariable.create(None)


def _is_modified(hooks: NNModuleHooksDictVariable) -> bool:
    is_ours = any(isinstance(key.vt, _HookIdVariable) for key in hooks.items)
    return not is_ours and bool(getattr(hooks.mutation_type, "is_modified", False))


class _HookIdVariable(VariableTracker):
    """The id of a hook, which is another one at each call."""

    def python_type(self) -> type:
        return int

    def is_hashable(self) -> bool:
        return True

    def hash_impl(self, tx: InstructionTranslatorBase) -> tuple[int, bool]:
        return id(self), True


class _TakeIdVariable(VariableTracker):
    """The function that bytecode takes an id with, as eager does for each hook."""

    def python_type(self) -> type:
        return types.FunctionType

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.load_import_from(__name__, "take_id")


def take_id() -> None:
    """Leave out the id that a hook would have been registered under."""
    RemovableHandle.next_id += 1
