"""How AOTAutograd traces the backward hooks of a call.

The higher-order operators here stand in Dynamo's graph, where
``backward_variables`` puts them. Traced, they register on autograd's nodes what
eager registers, but what fires there is an operator of ``call_op``. Must not import
Dynamo.
"""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

import torch
from torch._functorch.partitioners import _is_tangent
from torch._library.fake_class_registry import FakeScriptObject
from torch._ops import HigherOrderOperator
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.graph import get_gradient_edge
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.node import has_side_effect
from torch.nn.modules._functions import BackwardHookFunction
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import BackwardHook

from .autograd_topology import before_backward, inputs_below, outputs_above
from .call_hooks import ModuleHooks, TensorHooks
from .call_op import pack
from .sites import given, GradientStatus, Site, spread


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from torch import Tensor

    _Body: TypeAlias = Callable[..., Any]


class TracedBackwardHook:
    """Stands for the ``BackwardHook`` of one call while its graph is traced.

    Args:
        call: the hooks, an input of the graph.
        n_hooks: number of full backward hooks.
        n_pre_hooks: number of backward pre-hooks.
    """

    def __init__(self, call: ModuleHooks, n_hooks: int, n_pre_hooks: int) -> None:
        self._call = call
        self._n_hooks = n_hooks
        self._n_pre_hooks = n_pre_hooks
        self._bodies: dict[bool, list[_Body]] = {True: [], False: []}
        self._output_grads: Sequence[Tensor | None] | None = None
        self._output_roots: list[int] = []
        self._output_index: Sequence[int] = ()
        self._output_size = 0

    def trace(self, body: _Body, *, is_pre_hook: bool) -> None:
        """Trace a hook in place of calling it, if all hooks beside it are traced.

        Args:
            body: takes gradients, and returns those that the hook changes.
            is_pre_hook: whether it is a backward pre-hook.
        """
        self._bodies[is_pre_hook].append(body)

    def _traced(
        self, n: int, *gradients: Sequence[Tensor | None], is_pre_hook: bool
    ) -> Sequence[Tensor] | None:
        bodies = self._bodies[is_pre_hook]
        flat = [grad for group in gradients for grad in group]
        if len(bodies) != n or not _all_arrive(flat):
            return None
        changed, given = gradients[0], flat[len(gradients[0]) :]
        for body in bodies:
            changed = body(*changed, *given)
        return tuple(changed)  # type: ignore[arg-type]

    def watch_inputs(
        self, tensors: Sequence[Tensor], index: Sequence[int], size: int
    ) -> Sequence[Tensor]:
        tensors, node = _watched(BackwardHookFunction, tensors)

        def hook(
            grad_inputs: Sequence[Tensor | None], _: Sequence[Tensor | None]
        ) -> Sequence[Tensor | None] | None:
            if self._output_grads is None:
                return None
            output_grads, self._output_grads = self._output_grads, None
            if not self._n_hooks:
                return None
            traced = self._traced(
                self._n_hooks, grad_inputs, output_grads, is_pre_hook=False
            )
            if traced is not None:
                return traced
            status = _status(grad_inputs, grad_inputs)
            output_status = _status(output_grads, output_grads)
            site = Site(
                status,
                [*index],
                size,
                output_status,
                [*self._output_index],
                self._output_size,
                roots=outputs_above(node),
                output_roots=self._output_roots,
                reach=inputs_below(node),
            )
            grads = torch.ops.nn_module_hooks.call_on_inputs(
                self._call,
                given(grad_inputs, status),
                given(output_grads, output_status),
                str(site),
            )
            return tuple(spread(grads, status))

        node.register_hook(hook)
        return tensors

    def watch_outputs(
        self,
        tensors: Sequence[Tensor],
        index: Sequence[int],
        size: int,
        n_inputs: int,
    ) -> Sequence[Tensor]:
        # Dynamo wants to see views, and with them eager's errors about edits in place.
        is_aot = any(isinstance(tensor, FunctionalTensor) for tensor in tensors)
        function = _WatchOutputs if is_aot else BackwardHookFunction
        tensors, node = _watched(function, tensors)
        self._output_index = index
        self._output_size = size

        def hook(
            grad_inputs: Sequence[Tensor | None],
            grad_outputs: Sequence[Tensor | None],
        ) -> Sequence[Tensor | None] | None:
            self._output_grads = grad_outputs
            self._output_roots = outputs_above(node)
            if not self._n_pre_hooks and n_inputs < 0:
                # Not the zeros that autograd has put in the place of None.
                return grad_outputs
            if n_inputs < 0:
                traced = self._traced(self._n_pre_hooks, grad_outputs, is_pre_hook=True)
                if traced is not None:
                    self._output_grads = traced
                    return traced
            status = _status(grad_outputs, grad_inputs)
            site = Site(
                status,
                [*index],
                size,
                n_inputs=n_inputs,
                roots=self._output_roots,
                reach=inputs_below(node),
            )
            grads = torch.ops.nn_module_hooks.call_on_outputs(
                self._call, given(grad_outputs, status), str(site)
            )
            self._output_grads = tuple(spread(grads, status))
            if n_inputs >= 0:
                grads, self._output_grads = self._output_grads, None
                return grads
            return self._output_grads

        node.register_hook(hook)
        return tensors


def _all_arrive(grads: Sequence[Tensor | None]) -> bool:
    """Whether all gradients are there whenever the compiled backward runs."""
    mode = get_proxy_mode()
    if mode is None or any(grad is None for grad in grads):
        return False
    # With more outputs, some may not take part in what backward is run from.
    inputs = mode.tracer.graph.find_nodes(op="placeholder")
    return sum(map(_is_tangent, inputs)) == 1


class _WatchOutputs(BackwardHookFunction):
    """Eager's function, whose outputs are no views of what it is given.

    AOTAutograd makes an output that is a view anew from what it is a view of, where
    that is an output too, and with it goes around the function.
    """

    @staticmethod
    def forward(ctx: Any, *args: Tensor) -> tuple[Tensor, ...]:
        ctx.mark_non_differentiable(*[arg for arg in args if not arg.requires_grad])
        return tuple(arg.clone() if arg.requires_grad else arg for arg in args)


def _watched(
    function: type[torch.autograd.Function], tensors: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Any]:
    tensors = function.apply(*tensors)
    return tensors, next(t.grad_fn for t in tensors if t.grad_fn is not None)


def _status(
    grads: Sequence[Tensor | None], takes: Sequence[Tensor | None]
) -> list[int]:
    return [
        (
            GradientStatus.DROPPED
            if taken is None
            else GradientStatus.ABSENT
            if grad is None
            else GradientStatus.GIVEN
        ).value
        for grad, taken in zip(grads, takes, strict=True)
    ]


class EagerBackwardHook(BackwardHook):
    """Eager's ``BackwardHook``, for backends that run Dynamo's graph as it stands."""

    def watch_inputs(
        self, tensors: Sequence[Tensor], index: Sequence[int], size: int
    ) -> Sequence[Tensor]:
        args = self.setup_input_hook(pack(tensors, index, size))
        return tuple(args[i] for i in index)

    def watch_outputs(
        self,
        tensors: Sequence[Tensor],
        index: Sequence[int],
        size: int,
        n_inputs: int,
    ) -> Sequence[Tensor]:
        if n_inputs >= 0:
            self.n_inputs = n_inputs
        outputs = self.setup_output_hook(pack(tensors, index, size))
        return tuple(outputs[i] for i in index)


class _NNModuleBackwardHook(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("nn_module_backward_hook", cacheable=True)

    def __call__(
        self, call: ModuleHooks, n_hooks: int, n_pre_hooks: int
    ) -> TracedBackwardHook | EagerBackwardHook:
        if isinstance(call, FakeScriptObject):
            return TracedBackwardHook(call, n_hooks, n_pre_hooks)
        return EagerBackwardHook(call.module, call.hooks, call.pre_hooks)


class _WatchNNModule(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("watch_nn_module", cacheable=True)

    def __call__(
        self,
        hook: TracedBackwardHook | EagerBackwardHook,
        index: Sequence[int],
        size: int,
        n_inputs: int | None,
        *tensors: Tensor,
    ) -> Sequence[Tensor]:
        if n_inputs is None:
            return hook.watch_inputs(tensors, index, size)
        return hook.watch_outputs(tensors, index, size, n_inputs)


class _TracedTensorHook:
    def __init__(
        self,
        call: TensorHooks,
        node: Any,
        *,
        body: _Body | None,
    ) -> None:
        self._call = call
        self._node = node
        self._body = body

    def _site(self) -> str:
        roots, reach = outputs_above(self._node), inputs_below(self._node)
        return str(Site(roots=roots, reach=reach))

    def __call__(self, grad: Tensor | None) -> Tensor | None:
        if grad is None:
            torch.ops.nn_module_hooks.call_on_tensor(self._call, [], self._site())
            return None
        if self._body is not None and _all_arrive([grad]):
            return self._body(grad)
        (grad,) = torch.ops.nn_module_hooks.call_on_tensor(
            self._call, [grad], self._site()
        )
        return grad


class _TraceHook(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("trace_backward_hook", cacheable=True)

    def __call__(
        self,
        hook: TracedBackwardHook | EagerBackwardHook,
        is_pre_hook: bool,
        graph: Callable[..., Any],
        *reads: Tensor,
    ) -> None:
        if isinstance(hook, TracedBackwardHook):
            body = functools.partial(_run, graph, reads)
            hook.trace(body, is_pre_hook=is_pre_hook)


def _run(graph: Callable[..., Any], reads: Sequence[Tensor], *gradients: Tensor) -> Any:
    return graph(*gradients, *reads)


class _WatchNode(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("watch_autograd_node", cacheable=True)

    def __call__(self, call: ModuleHooks, tensor: Tensor) -> Tensor:
        node = tensor.grad_fn
        if node is None:
            return tensor
        if isinstance(call, FakeScriptObject):
            node.register_hook(functools.partial(_fire_on_node, call, node))
        else:
            for hook in call.hooks:
                node.register_hook(_WrappedHook(hook, call.module))  # type: ignore[arg-type]
        return tensor


def _fire_on_node(
    call: ModuleHooks,
    node: Any,
    grad_inputs: Sequence[Tensor | None],
    grad_outputs: Sequence[Tensor | None],
) -> Sequence[Tensor | None]:
    status = _status(grad_inputs, grad_inputs)
    output_status = _status(grad_outputs, grad_outputs)
    site = Site(
        status,
        output_status=output_status,
        roots=outputs_above(node),
        reach=inputs_below(node),
        reach_of_each=[
            inputs_below(child)
            for (child, _), s in zip(node.next_functions, status, strict=True)
            if s == GradientStatus.GIVEN
        ],
    )
    grads = torch.ops.nn_module_hooks.call_on_node(
        call,
        given(grad_inputs, status),
        given(grad_outputs, output_status),
        str(site),
    )
    return tuple(spread(grads, status))


class _WatchTensor(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("watch_tensor", cacheable=True)

    def __call__(
        self,
        call: TensorHooks,
        tensor: Tensor,
        retains_grad: bool,
        graph: Callable[..., Tensor] | None = None,
        *reads: Tensor,
    ) -> Tensor:
        if isinstance(call, FakeScriptObject):
            body = None if graph is None else functools.partial(_run, graph, reads)
            register = functools.partial(_register, call, tensor, body)
            if retains_grad:
                # Autograd retains what other hooks have made, and what edits in place
                # have made of the tensor.
                before_backward(register)
            else:
                register()
        elif retains_grad:
            tensor.retain_grad()
        else:
            tensor.register_hook(functools.partial(_call_in_turn, call))
        return tensor


def _call_in_turn(call: TensorHooks, grad: Tensor) -> Tensor | None:
    return call.call_in_turn(grad, grad)


def _register(call: TensorHooks, tensor: Tensor, body: _Body | None) -> None:
    node = get_gradient_edge(tensor).node
    tensor.register_hook(_TracedTensorHook(call, node, body=body))


nn_module_backward_hook = _NNModuleBackwardHook()
watch_nn_module = _WatchNNModule()
trace_hook = _TraceHook()
watch_autograd_node = _WatchNode()
watch_tensor = _WatchTensor()

# The order in which autograd's nodes come to be is the order in which they fire.
for _operator in (
    nn_module_backward_hook,
    watch_nn_module,
    trace_hook,
    watch_autograd_node,
    watch_tensor,
):
    has_side_effect(_operator)
