"""How Dynamo sees hook dicts while it traces ``nn.Module.__call__``.

Called by the seams in ``UnspecializedNNModuleVariable.tp_getattro_impl`` and
``VariableBuilder._wrap``. Hooks are found by position, never by id: ids are new at
each registration. Must not import ``call_impl``.
"""

from __future__ import annotations

from typing import Any, cast, NoReturn, TYPE_CHECKING

from torch._dynamo import config, graph_break_hints
from torch._dynamo.exc import unimplemented
from torch._dynamo.guards import install_guard, make_dupe_guard
from torch._dynamo.source import AttrSource, ConstDictKeySource, DictGetItemSource
from torch._dynamo.utils import enumerate_items_with_dict_position
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.dicts import NNModuleHooksDictVariable
from torch.nn import Module
from torch.nn.modules import module as nn_module

from .forward_variables import ForwardHookVariable
from .graph_inputs import RunTimeHookVariable
from .guards import install_global_guard, install_module_guards, install_size_guard
from .state import (
    BACKWARD_HOOK_DICTS,
    global_hook_dict_name,
    HookDict,
    is_plain,
    KINDS,
    MARKS,
    MODULE_HOOK_DICTS,
)


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable
    from torch._guards import Source


def module_hook_dict(
    tx: InstructionTranslatorBase, module: UnspecializedNNModuleVariable, name: str
) -> VariableTracker | None:
    """The variable of a module's hook dict, with all guards a call depends on.

    Args:
        tx: the frame being traced.
        module: the module whose attribute is read.
        name: the attribute.

    Returns:
        None when the attribute is none of ours, or ours to leave to upstream.
    """
    if name not in MODULE_HOOK_DICTS or config.skip_nnmodule_hook_guards:
        return None
    value = cast(Module, module.value)
    hooks = value.__dict__.get(name)
    if (
        hooks is None
        or module.source is None
        or tx.output.side_effects.has_pending_mutation_of_attr(module, name)
    ):
        return None
    source = AttrSource(module.source, name)
    if not is_plain(hooks):
        _break_graph_at(hooks, source)
    install_module_guards(value, module.source, name, hooks)
    return _tracked(tx, hooks, source, name)


def global_hook_dict(builder: VariableBuilder, value: object) -> VariableTracker | None:
    """The variable of a global hook dict, with all guards a call depends on.

    Args:
        builder: the builder that was asked to wrap ``value``.
        value: any object.

    Returns:
        None when ``value`` is no global hook dict, or ours to leave to upstream.
    """
    if config.skip_nnmodule_hook_guards or not isinstance(value, dict):
        return None
    name = global_hook_dict_name(value)
    if name is None:
        return None
    name = name.removeprefix("_global")
    source = builder.get_source()
    install_size_guard(value, source)
    if value:
        install_global_guard(builder.tx.import_source(nn_module.__name__), name)
    return _tracked(builder.tx, value, source, name)


def wrapper_runs_hooks(wrapper: Module, source: Source) -> bool:
    """Whether what ``torch.compile`` returned for a module has hooks of its own.

    Without, a frame that calls it calls the module that it wraps.

    Args:
        wrapper: the ``OptimizedModule``.
        source: where the compiled frame finds it.
    """
    hooks = wrapper.__dict__
    if not config.skip_nnmodule_hook_guards:
        name = "_forward_hooks"
        install_module_guards(wrapper, source, name, hooks[name])
    return any(hooks[kind.hooks] for kind in KINDS)


def _tracked(
    tx: InstructionTranslatorBase, hooks: HookDict, source: Source, name: str
) -> VariableTracker:
    side_effects = tx.output.side_effects
    if hooks in side_effects:
        known = side_effects[hooks]
        dupe_guard = make_dupe_guard(source, known.source)
        if dupe_guard is not None:
            install_guard(source.make_guard(dupe_guard))
        return known
    if hooks:
        tx.output.guard_on_key_order.add(source)
    items = dict(
        _item(tx, source, position, hook_id, value, name)
        for position, hook_id, value in enumerate_items_with_dict_position(hooks)
    )
    return side_effects.track_mutable(
        hooks, NNModuleHooksDictVariable(items, source=source)
    )


def _item(
    tx: InstructionTranslatorBase,
    source: Source,
    position: int,
    hook_id: int,
    value: Any,
    name: str,
) -> tuple[VariableTracker, VariableTracker]:
    # Without a source nothing guards on the id.
    key = VariableTracker.build(tx, hook_id)
    if name in MARKS:
        return key, VariableTracker.build(tx, value)
    value_source = DictGetItemSource(source, ConstDictKeySource(source, position))
    if name in BACKWARD_HOOK_DICTS:
        return key, RunTimeHookVariable(value, source=value_source)
    return key, ForwardHookVariable(value, source=value_source)


def _break_graph_at(hooks: object, source: Source) -> NoReturn:
    unimplemented(
        gb_type="nn.Module hook dict of a user-defined type",
        context=f"{source.name}: {type(hooks)}",
        explanation="Dynamo cannot tell in which order a mapping of type "
        f"{type(hooks).__name__} hands out the hooks of a module.",
        hints=[
            "Keep the hooks in the OrderedDict that nn.Module makes for them.",
            *graph_break_hints.USER_ERROR,
        ],
    )
