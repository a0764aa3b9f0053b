"""Traces hooks that fire in backward into the backward graph, where that is sound.

A traced hook is fused with the backward around it; what it reads is read when forward
runs. Called by ``backward_variables``. Must not import ``guards`` or ``call_impl``.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TYPE_CHECKING

import torch
from torch._dynamo import graph_break_hints
from torch._dynamo.exc import (
    ObservedException,
    unimplemented,
    UnknownPropertiesDuringBackwardTrace,
    Unsupported,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import NestedUserFunctionVariable
from torch._dynamo.variables.higher_order_ops import speculate_subgraph
from torch._dynamo.variables.lists import BaseListVariable, TupleVariable

from .backward_hooks import trace_hook
from .closed_functions import is_closed
from .graph_inputs import RunTimeHookVariable
from .policy import policy_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TracedHook:
    """A hook as a graph of its own.

    Args:
        graph: takes the gradients, then what it reads; returns the new gradients.
        reads: what it reads of the graph around it.
    """

    graph: torch.fx.Proxy
    reads: Sequence[torch.fx.Proxy]


class _OnlyTypeVariable(VariableTracker):
    """The module that a hook is given, where reading its attributes is not sound."""

    def __init__(self, module: VariableTracker) -> None:
        super().__init__()
        self._module = module

    def python_type(self) -> type:
        return self._module.python_type()

    def tp_getattro_impl(
        self, tx: InstructionTranslatorBase, name: str
    ) -> VariableTracker:
        unimplemented(
            gb_type="backward hook reads an attribute of its module",
            context=name,
            explanation="The attribute may change between forward and backward.",
            hints=[*graph_break_hints.SUPPORTABLE],
        )


class _HookBodyVariable(VariableTracker):
    """A hook as a function of nothing but tensors.

    Args:
        hook: the hook.
        module: its first argument, None for the hook of a tensor.
        sizes: how the tensors are packed into tuples, one for each further argument.
    """

    def __init__(
        self,
        hook: VariableTracker,
        module: VariableTracker | None,
        sizes: Sequence[int],
    ) -> None:
        super().__init__()
        self._hook = hook
        self._module = module
        self._sizes = sizes

    def call_function(
        self,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if self._module is None:
            return self._hook.call_function(tx, args, {})
        packed: list[VariableTracker] = [self._module]
        rest = [*args]
        for size in self._sizes:
            packed.append(TupleVariable(rest[:size]))
            del rest[:size]
        result = self._hook.call_function(tx, packed, {}).realize()
        if isinstance(result, ConstantVariable) and result.value is None:
            return packed[1]
        return result


def traced(
    tx: InstructionTranslatorBase,
    hooks: Sequence[VariableTracker],
    module: VariableTracker | None,
    grads: Sequence[Sequence[VariableTracker]],
) -> list[TracedHook] | None:
    """Trace all of some hooks that fire together.

    Args:
        tx: the frame being traced.
        hooks: the hooks, in the order they fire.
        module: whose hooks they are, None for the hooks of a tensor.
        grads: the tuples of gradients a hook is given, each gradient represented by
            the tensor it belongs to. A hook returns the first one.

    Returns:
        The traced hooks; None when they are to be called at run time.

    Raises:
        torch._dynamo.exc.Unsupported: when the configuration wants them traced, and
            they cannot be.
    """
    policies = [policy_of(hook_value(hook)) for hook in hooks]
    if "call" in policies or not hooks:
        return None
    flat = [tensor for group in grads for tensor in group]
    nodes = {tensor.as_proxy().node for tensor in flat}
    if len(nodes) < len(flat) and "auto" in policies:
        return None
    bodies = []
    for hook, policy in zip(hooks, policies, strict=True):
        name = _name(hook)
        if policy == "auto" and not is_closed(hook_value(hook)):
            log.info("%s: called at run time: it may read what changes", name)
            return None
        try:
            bodies.append(_trace(tx, hook, module, grads, is_auto=policy == "auto"))
        except (Unsupported, ObservedException) as error:
            if policy == "trace":
                raise
            reason = str(error).split("\n")[0]
            log.info("%s: called at run time: cannot be traced: %s", name, reason)
            return None
        log.info("%s: traced into the backward graph", name)
    return bodies


def hook_value(hook: VariableTracker) -> object:
    """The hook that a variable stands for, None where that is not looked into."""
    if isinstance(hook, RunTimeHookVariable):
        return hook.value
    if isinstance(hook, NestedUserFunctionVariable) and hook.has_closure():
        # Not looked into: what is looked into is guarded.
        return None
    try:
        return hook.realize().get_function()  # type: ignore[attr-defined]
    except (AttributeError, NotImplementedError, Unsupported):
        return None


def _name(hook: VariableTracker) -> str:
    code = getattr(hook_value(hook), "__code__", None)
    name = hook.source.name if hook.source else "hook made in compiled code"
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _trace(
    tx: InstructionTranslatorBase,
    hook: VariableTracker,
    module: VariableTracker | None,
    grads: Sequence[Sequence[VariableTracker]],
    *,
    is_auto: bool,
) -> TracedHook:
    if module is not None and is_auto:
        module = _OnlyTypeVariable(module)
    body = _HookBodyVariable(hook, module, [len(group) for group in grads])
    side_effects = tx.output.side_effects.clone()
    try:
        with tx.strict_translation_mode(lambda vt: vt.is_tensor()):
            (result, _), graph, lifted = speculate_subgraph(
                tx,
                body,
                [tensor for group in grads for tensor in group],
                {},
                "backward hook",
                source_target=trace_hook,
                set_subgraph_inputs="automatic_with_forced_inputs",
                supports_aliasing=True,
                supports_input_input_aliasing=True,
            )
    except UnknownPropertiesDuringBackwardTrace:
        _refuse("it asks for a property of a gradient that is not known")
    except BaseException:
        tx.output.side_effects = side_effects
        raise
    if lifted and is_auto:
        _refuse("it reads tensors that may change")
    if not _fits(result, grads[0], single=module is None):
        _refuse("it returns what is no gradient")
    context = tx.output.tracing_context.module_context.copy_graphstate()
    name = tx.output.install_subgraph(
        "backward_hook", torch.fx.GraphModule(context.nn_modules, graph)
    )
    return TracedHook(tx.output.create_proxy("get_attr", name, (), {}), [*lifted])


def _refuse(reason: str) -> Any:
    unimplemented(
        gb_type="backward hook that cannot be traced",
        context="",
        explanation=reason,
        hints=[
            'Set torch._dynamo.config.nn_module_hook_policy = "auto", and it is called '
            "at run time.",
        ],
    )


def _fits(
    result: VariableTracker, grads: Sequence[VariableTracker], *, single: bool
) -> bool:
    items = [result] if single else getattr(result, "items", None)
    if not single and not isinstance(result, BaseListVariable):
        return False
    return (
        isinstance(items, list)
        and len(items) == len(grads)
        and all(
            item.is_tensor() and _meta(item) == _meta(grad)
            for item, grad in zip(items, grads, strict=True)
        )
    )


def _meta(tensor: VariableTracker) -> tuple[Any, ...]:
    value = tensor.as_proxy().node.meta["example_value"]
    return value.shape, value.dtype, value.device, value.layout
