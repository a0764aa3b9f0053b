"""How Dynamo traces hooks of ``nn.Module.register_backward_hook``.

They belong to the autograd node of the module's last operation, which ``_call_impl``
reads in order to register them. Called by the seam in ``TensorVariable`` and by
``call_impl``. Must not import ``guards``.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch._dynamo import config
from torch._dynamo.variables.constant import ConstantVariable

from .backward_hooks import watch_autograd_node
from .call_frames import is_inner, local
from .graph_inputs import module_hooks_input


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.tensor import TensorVariable


def register_legacy_hooks(
    tx: InstructionTranslatorBase, output: TensorVariable
) -> VariableTracker | None:
    """Register the legacy backward hooks of the module whose call is being traced.

    Args:
        tx: the frame being traced.
        output: a tensor whose ``grad_fn`` is read, any shape.

    Returns:
        A ``grad_fn`` that leaves nothing to do, or None when it is not read for hooks
        or not of this graph.
    """
    if output.source is not None or not is_inner(tx):
        return None
    names = ("self", "args", "result", "non_full_backward_hooks")
    module, args, result, hooks = (local(tx, name) for name in names)
    call = module_hooks_input(tx, module, hooks.unpack_var_sequence(tx), ())
    proxy = output.as_proxy()
    value = proxy.node.meta["example_value"]
    module.value._maybe_warn_non_full_backward_hook(  # type: ignore[attr-defined]
        _value(tx, args), _value(tx, result), value.grad_fn
    )
    output.proxy = proxy.tracer.create_proxy(
        "call_function", watch_autograd_node, (call.as_proxy(), proxy), {}
    )
    output.proxy.node.meta["example_value"] = value
    return ConstantVariable.create(None)


def must_run_eagerly(tx: InstructionTranslatorBase) -> bool:
    """Whether a call of a module with legacy backward hooks is not one piece.

    After a graph break inside the call, the node of the module's last operation would
    be that of a whole graph, and its gradients those of all inputs of that graph.

    Args:
        tx: the frame being traced.
    """
    return is_inner(tx) and (tx.parent is None or config.nested_graph_breaks)


def _value(tx: InstructionTranslatorBase, variable: VariableTracker) -> Any:
    variable = variable.realize()
    if variable.is_tensor():
        return variable.as_proxy().node.meta["example_value"]
    if variable.python_type() is tuple:
        return tuple(_value(tx, item) for item in variable.unpack_var_sequence(tx))
    return object()
