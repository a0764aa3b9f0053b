"""How Dynamo traces hooks that fire in backward.

Called by the seams in ``BackwardHookVariable.create`` and in ``TensorVariable``.
Must not import ``guards`` or ``call_impl``.
"""

from __future__ import annotations

import warnings
from typing import Any, TYPE_CHECKING

import torch
from torch._dynamo.source import AttrSource
from torch._dynamo.utils import warn_once
from torch._dynamo.variables.base import Method, VariableTracker
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import TupleVariable
from torch._dynamo.variables.misc import DebuggingVariable
from torch.utils.hooks import BackwardHook

from .backward_hooks import (
    nn_module_backward_hook,
    trace_hook,
    watch_nn_module,
    watch_tensor,
)
from .graph_inputs import (
    call_later,
    module_hooks_input,
    tensor_hooks_input,
)
from .policy import policy_of
from .traced_hooks import hook_value, traced, TracedHook


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.tensor import TensorVariable


class NNModuleBackwardHookVariable(VariableTracker):
    """The ``BackwardHook`` of one call, whose hooks are called at run time.

    Args:
        proxy: the graph node that makes the hook.
        module: the module that is called.
        hooks: its full backward hooks.
        pre_hooks: its backward pre-hooks.
    """

    def __init__(
        self,
        proxy: torch.fx.Proxy,
        module: VariableTracker,
        hooks: Sequence[VariableTracker],
        pre_hooks: Sequence[VariableTracker],
    ) -> None:
        super().__init__()
        self.proxy = proxy
        self._module = module
        self._hooks = hooks
        self._pre_hooks = pre_hooks
        self._inputs: list[VariableTracker] = []
        self._n_inputs = 0

    def python_type(self) -> type:
        return BackwardHook

    def as_proxy(self) -> torch.fx.Proxy:
        return self.proxy

    def setup_input_hook(
        self,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        (inputs,) = args
        self._inputs = items = inputs.unpack_var_sequence(tx)
        watched = self._watch(tx, items, None)
        self._n_inputs = len(items) if watched is None else -1
        return inputs if watched is None else TupleVariable(watched)

    def setup_output_hook(
        self,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        output = args[0].realize()
        if not issubclass(output.python_type(), (torch.Tensor, tuple)):
            _warn(tx, f"{_OUTPUT_WARNING} {output.python_type()}")
            return output
        is_tuple = issubclass(output.python_type(), tuple)
        items = output.unpack_var_sequence(tx) if is_tuple else [output]
        watched = self._watch(tx, items, self._n_inputs)
        if watched is None:
            return output
        if self._n_inputs < 0:
            self._trace(tx, items)
        if not is_tuple:
            return watched[0]
        if output.python_type() is tuple:
            return TupleVariable(watched)
        make = VariableTracker.build(tx, output.python_type())
        return make.call_function(tx, watched, {})

    tp_methods = {
        "setup_input_hook": Method(setup_input_hook),
        "setup_output_hook": Method(setup_output_hook),
    }

    def _trace(
        self, tx: InstructionTranslatorBase, outputs: Sequence[VariableTracker]
    ) -> None:
        if not all(vt.is_tensor() for vt in (*self._inputs, *outputs)):
            return
        for is_pre_hook, hooks, grads in (
            (False, self._hooks, (self._inputs, outputs)),
            (True, self._pre_hooks, (outputs,)),
        ):
            for body in traced(tx, hooks, self._module, grads) or ():
                tx.output.create_proxy(
                    "call_function",
                    trace_hook,
                    (self.proxy, is_pre_hook, body.graph, *body.reads),
                    {},
                )

    def _watch(
        self,
        tx: InstructionTranslatorBase,
        items: Sequence[VariableTracker],
        n_inputs: int | None,
    ) -> list[VariableTracker] | None:
        watched = [item.realize() for item in items]
        index = [
            i for i, item in enumerate(watched) if issubclass(_type(item), torch.Tensor)
        ]
        proxies = [watched[i].as_proxy() for i in index]
        if not (
            torch.is_grad_enabled()
            and any(p.node.meta["example_value"].requires_grad for p in proxies)
        ):
            return None
        tensors = wrap_fx_proxy(
            tx,
            tx.output.create_proxy(
                "call_function",
                watch_nn_module,
                (self.proxy, tuple(index), len(items), n_inputs, *proxies),
                {},
            ),
        )
        for i, tensor in zip(index, tensors.unpack_var_sequence(tx), strict=True):
            watched[i] = tensor
        return watched


def backward_hook(
    tx: InstructionTranslatorBase,
    module: VariableTracker,
    hooks: VariableTracker,
    pre_hooks: VariableTracker,
) -> NNModuleBackwardHookVariable:
    """The variable of ``BackwardHook(module, hooks, pre_hooks)``.

    Args:
        tx: the frame being traced, ``nn.Module._call_impl``.
        module: the module that is called.
        hooks: list of its full backward hooks.
        pre_hooks: list of its backward pre-hooks.
    """
    _warn_of_parameter_hooks(module)
    lists = [vt.unpack_var_sequence(tx) for vt in (hooks, pre_hooks)]
    call = module_hooks_input(tx, module, *lists)
    args = (call.as_proxy(), *map(len, lists))
    proxy = tx.output.create_proxy("call_function", nn_module_backward_hook, args, {})
    proxy.node.meta["example_value"] = nn_module_backward_hook(
        call.as_proxy().node.meta["example_value"], *args[1:]
    )
    return NNModuleBackwardHookVariable(proxy, module, *lists)


def _warn_of_parameter_hooks(module: VariableTracker) -> None:
    value: Any = getattr(module, "value", None)
    if not isinstance(value, torch.nn.Module):
        return
    for name, parameter in value.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            where = module.source.name if module.source else type(value).__name__
            warn_once(
                f"torch.compile of {where}, which has backward hooks: the hooks of its "
                f"parameter {name!r} fire when the compiled backward is over, after "
                "all hooks of modules. Call the module outside of compiled code if "
                "their order matters. See docs/nn_module_hooks.md of torch-hooks, "
                "'Hooks that fire in backward'."
            )
            return


_OUTPUT_WARNING = (
    "For backward hooks to be called, module output should be a Tensor or a tuple of "
    "Tensors but received"
)


def _warn(tx: InstructionTranslatorBase, message: str) -> None:
    """Warn each time the graph has run, as code that is not compiled would."""
    source = AttrSource(tx.import_source("warnings"), "warn")
    warn = DebuggingVariable(warnings.warn, source=source)
    tx.output.root_tx.debug_locals.append((warn, [ConstantVariable.create(message)]))


def _type(item: VariableTracker) -> type:
    return item.python_type() if item.is_tensor() else type(None)


def register_tensor_hook(
    tx: InstructionTranslatorBase, tensor: TensorVariable, hook: VariableTracker
) -> VariableTracker:
    """``Tensor.register_hook`` of a tensor that the graph computes.

    Args:
        tx: the frame being traced.
        tensor: the tensor, any shape.
        hook: the hook.

    Returns:
        The handle that removes the hook.
    """
    call = tensor_hooks_input(tx)
    # A handle that is kept may remove the hook before backward.
    can_remove = tx.next_instruction.opname != "POP_TOP"
    must_call = can_remove and policy_of(hook_value(hook)) == "auto"
    bodies = None if must_call else traced(tx, [hook], None, [[tensor]])
    _watch_tensor(tensor, call, retains_grad=False, body=bodies[0] if bodies else None)
    return call_later(tx, call, "register_hook", hook)


def retain_grad(
    tx: InstructionTranslatorBase, tensor: TensorVariable
) -> VariableTracker:
    """``Tensor.retain_grad``.

    Args:
        tx: the frame being traced.
        tensor: the tensor, any shape, an input of the graph or computed by it.
    """
    call = tensor_hooks_input(tx)
    if tensor.source is None:
        _watch_tensor(tensor, call, retains_grad=True)
        call_later(tx, call, "retain_grad", tensor)
    else:
        call_later(tx, call, "retain_grad_of_input", tensor)
    return ConstantVariable.create(None)


def _watch_tensor(
    tensor: TensorVariable,
    call: VariableTracker,
    *,
    retains_grad: bool,
    body: TracedHook | None = None,
) -> None:
    proxy = tensor.as_proxy()
    extra = () if body is None else (body.graph, *body.reads)
    watched = proxy.tracer.create_proxy(
        "call_function",
        watch_tensor,
        (call.as_proxy(), proxy, retains_grad, *extra),
        {},
    )
    watched.node.meta["example_value"] = proxy.node.meta["example_value"]
    tensor.proxy = watched
