"""Operators that call hooks at run time from a compiled graph.

The hooks of a call are an *input* of the graph, an opaque ``HooksInput``, and reach
the operators that call them, so one graph serves all hooks. Used by
``backward_hooks``. Must not import Dynamo.
"""

from __future__ import annotations

import enum
import functools
import itertools
import sys
from typing import Any, TYPE_CHECKING

import torch
from torch._library.effects import EffectType
from torch._library.opaque_object import get_opaque_type_name
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import BackwardHook

from .call_hooks import fits, ModuleHooks, TensorHooks
from .gradient_flow import GradientFlow


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor


class GradientStatus(enum.IntEnum):
    """What stands in the place of one tensor's gradient when a graph is traced."""

    GIVEN = 0
    DROPPED = 1  # None in eager: the tensor takes no gradient
    ABSENT = 2  # None in eager: the tensor takes a gradient, but none arrives


class _RunTimeBackwardHook(BackwardHook):
    """Eager's ``BackwardHook``, fed by an operator in place of the autograd engine."""

    _index: Any
    _hook: Callable[..., Any]

    def __init__(self, call: ModuleHooks) -> None:
        super().__init__(call.module, call.hooks, call.pre_hooks)

    def _apply_on_tensors(self, fn: Callable[..., Any], args: Any) -> Any:
        fn(self)
        return args, self._index

    def register_hook(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def fire_on_outputs(
        self, grads: Sequence[Any], index: Sequence[int], size: int, n_inputs: int
    ) -> Sequence[Any]:
        self._index = index
        self.setup_output_hook((None,) * size)
        self.n_inputs = n_inputs
        index_of_inputs: Any = None if n_inputs >= 0 else []
        self.input_tensors_index = index_of_inputs
        return self._hook(None, grads)

    def fire_on_inputs(
        self, grads: Sequence[Any], index: Sequence[int], size: int, grad_outputs: Any
    ) -> Sequence[Any]:
        self._index = index
        self.setup_input_hook((None,) * size)
        self.grad_outputs = grad_outputs
        return self._hook(grads, None)


def _references(tensors: list[Any], i: int) -> tuple[int, int]:
    storage = tensors[i].untyped_storage()
    return sys.getrefcount(tensors[i]), torch._C._storage_Use_Count(storage._cdata)


_UNSHARED = _references([torch.empty(0)], 0)


def _release(grads: list[Any], like: Sequence[Tensor]) -> list[Tensor]:
    """Give gradients to a graph that may write over them: nobody else holds them."""
    for i, reference in enumerate(like):
        if (
            _references(grads, i) != _UNSHARED
            or grads[i].stride() != torch.empty_like(reference, device="meta").stride()
            or type(grads[i]) is not torch.Tensor
        ):
            grads[i] = torch.empty_like(reference).copy_(grads[i])
    return grads


def _checked(
    result: Any, like: Sequence[Tensor | None], name: str
) -> tuple[Tensor | None, ...]:
    """What a hook of an autograd node returned, or autograd's own error about it.

    Args:
        result: what the hook returned.
        like: the gradients it was given, None for inputs of the node that take none.
        name: name of the hook.
    """
    if (
        isinstance(result, tuple)
        and len(result) == len(like)
        and all(
            r is None or (g is not None and fits(r, g))
            for r, g in zip(result, like, strict=True)
        )
    ):
        return result
    edges = [
        torch.zeros(()) if g is None else g.detach().requires_grad_() for g in like
    ]
    with torch.enable_grad():
        outputs = BackwardHookFunction.apply(*edges)

    def returns(*_: Any) -> Any:
        return result

    returns.__name__ = name
    used = [i for i, edge in enumerate(edges) if edge.requires_grad]
    outputs[used[0]].grad_fn.register_hook(returns)
    given = iter(
        torch.autograd.grad(
            [outputs[i] for i in used],
            [edges[i] for i in used],
            [edges[i] for i in used],
            allow_unused=True,
        )
    )
    return tuple(next(given) if edge.requires_grad else None for edge in edges)


def _spread(grads: Iterable[Any], status: Sequence[int]) -> list[Any]:
    given = iter(grads)
    return [next(given) if s == GradientStatus.GIVEN else None for s in status]


def pack(grads: Sequence[Any], index: Sequence[int], size: int) -> tuple[Any, ...]:
    packed = [None] * size
    for i, grad in zip(index, grads, strict=True):
        packed[i] = grad
    return tuple(packed)


def _fire(
    run: Callable[[list[Any]], Sequence[Any]],
    grads: Sequence[Tensor],
    defined: Sequence[bool],
    status: Sequence[int],
) -> list[Any]:
    """What hooks make of gradients: None where they leave one undefined."""
    values = _spread(
        (g.clone() if d else None for g, d in zip(grads, defined, strict=True)), status
    )
    results = run(values)
    del values
    if any(
        r is not None and s == GradientStatus.ABSENT
        for r, s in zip(results, status, strict=True)
    ):
        raise RuntimeError(_ABSENT)
    settled = _checked(results, _spread(grads, status), "hook")
    del results
    return [
        r for r, s in zip(settled, status, strict=True) if s == GradientStatus.GIVEN
    ]


def _settle(
    settled: list[Any], grads: Sequence[Tensor], flow: GradientFlow, site: int
) -> list[Tensor]:
    """Hand gradients to the graph, which knows no undefined ones."""
    flow.settle(site, settled)
    for i, grad in enumerate(grads):
        if settled[i] is None:
            settled[i] = torch.zeros_like(grad)
    return _release(settled, grads)


_ABSENT = (
    "A backward pre-hook returned a gradient for an output of its module whose "
    "gradient is None, because the compiled graph does not use that output. The "
    "compiled backward has no place for it. Return None there, or keep the module "
    "out of the graph with torch.compiler.disable."
)


def _hear(
    flow: GradientFlow, sources: Sequence[int], offsets: Sequence[int], n: int
) -> tuple[list[bool], list[bool]]:
    """Of ``n`` gradients, which exist and which are defined in eager."""
    if not offsets:
        return [True] * n, [True] * n
    each = [sources[i:j] for i, j in itertools.pairwise((*offsets, len(sources)))]
    return [flow.exists(s) for s in each], [flow.is_defined(s) for s in each]


def _any(exist: Sequence[bool]) -> bool:
    # Autograd's nodes also run where all their gradients are undefined.
    return not exist or any(exist)


def call_on_outputs(
    call: ModuleHooks,
    grads: Sequence[Tensor],
    status: Sequence[int],
    index: Sequence[int],
    size: int,
    n_inputs: int,
    site: int,
    sources: Sequence[int],
    offsets: Sequence[int],
    reach: Sequence[int],
    inputs: Sequence[int],
) -> list[Tensor]:
    """Call a module's backward pre-hooks, and its full hooks where no input counts.

    Args:
        call: the hooks.
        grads: gradients with respect to the output tensors that have one.
        status: a :class:`GradientStatus` for each output tensor.
        index: where each output tensor stands in the output tuple.
        size: length of the output tuple.
        n_inputs: number of arguments when none of them requires grad, so that the
            full backward hooks fire here; -1 otherwise.
        site: number of the first gradient returned here among those of the graph.
        sources: what the gradients are computed from, see :mod:`.gradient_flow`.
        offsets: where the sources of each gradient begin.
        reach: the graph inputs whose gradients are computed from those returned.
        inputs: at the first operator of the graph, what the gradients of the graph's
            inputs are computed from.

    Returns:
        As many tensors as ``grads``, of the same shapes, that share no memory.

    Raises:
        RuntimeError: as autograd does, for gradients that do not fit.
    """
    flow = GradientFlow.of_this_backward(site, inputs)
    exist, defined = _hear(flow, sources, offsets, len(grads))
    if not _any(exist) or not flow.needs(reach):
        flow.miss(site, len(grads))
        return [torch.zeros_like(grad) for grad in grads]
    run = functools.partial(
        _RunTimeBackwardHook(call).fire_on_outputs,
        index=index,
        size=size,
        n_inputs=n_inputs,
    )
    return _settle(_fire(run, grads, defined, status), grads, flow, site)


def call_on_inputs(
    call: ModuleHooks,
    grads: Sequence[Tensor],
    status: Sequence[int],
    index: Sequence[int],
    size: int,
    output_grads: Sequence[Tensor],
    output_index: Sequence[int],
    output_size: int,
    site: int,
    sources: Sequence[int],
    offsets: Sequence[int],
    reach: Sequence[int],
    inputs: Sequence[int],
) -> list[Tensor]:
    """Call a module's full backward hooks.

    Args:
        call: the hooks.
        grads: gradients with respect to the input tensors that have one.
        status: a :class:`GradientStatus` for each input tensor.
        index: where each input tensor stands among the arguments.
        size: number of arguments.
        output_grads: gradients with respect to the output tensors that have one.
        output_index: where each of them stands in the output tuple.
        output_size: length of the output tuple.
        site: number of the first gradient returned here among those of the graph.
        sources: what ``grads`` and ``output_grads`` are computed from, see
            :mod:`.gradient_flow`.
        offsets: where the sources of each gradient begin.
        reach: the graph inputs whose gradients are computed from those returned.
        inputs: at the first operator of the graph, what the gradients of the graph's
            inputs are computed from.

    Returns:
        As many tensors as ``grads``, of the same shapes, that share no memory.

    Raises:
        RuntimeError: as autograd does, for gradients that do not fit.
    """
    flow = GradientFlow.of_this_backward(site, inputs)
    n = len(grads)
    exist, defined = _hear(flow, sources, offsets, n + len(output_grads))
    if not _any(exist[:n]) or not flow.needs(reach):
        flow.miss(site, n)
        return [torch.zeros_like(grad) for grad in grads]
    if not _any(exist[n:]):
        return [grad.clone() for grad in grads]
    outputs = [
        grad.clone() if is_defined else None
        for grad, is_defined in zip(output_grads, defined[n:], strict=True)
    ]
    run = functools.partial(
        _RunTimeBackwardHook(call).fire_on_inputs,
        index=index,
        size=size,
        grad_outputs=pack(outputs, output_index, output_size),
    )
    # Autograd has put zeros in the place of the gradients that are missing here.
    return _settle(_fire(run, grads, [True] * n, status), grads, flow, site)


def call_on_tensor(
    call: TensorHooks,
    grads: Sequence[Tensor],
    site: int,
    sources: Sequence[int],
    offsets: Sequence[int],
    reach: Sequence[int],
    inputs: Sequence[int],
) -> list[Tensor]:
    """Call the hooks of a tensor.

    Args:
        call: the hooks.
        grads: the gradient with respect to the tensor, nothing else.
        site: number of the gradient among those that hooks of the graph return.
        sources: what the gradient is computed from, see :mod:`.gradient_flow`.
        offsets: ``[0]``, or empty when unknown.
        reach: the graph inputs whose gradients are computed from the one returned.
        inputs: at the first operator of the graph, what the gradients of the graph's
            inputs are computed from.

    Returns:
        One tensor, of the same shape, that shares no memory.

    Raises:
        RuntimeError: as autograd does, for a gradient that does not fit.
        TypeError: as autograd does, for what is no gradient.
    """
    flow = GradientFlow.of_this_backward(site, inputs)
    (exists,), (is_defined,) = _hear(flow, sources, offsets, 1)
    if not exists or not flow.needs(reach):
        flow.miss(site, 1)
        return [torch.zeros_like(grad) for grad in grads]
    (like,) = grads
    settled = [call.call_in_turn(like.clone() if is_defined else None, like)]
    if settled[0] is not None:
        call.retain(settled[0])
    return _settle(settled, grads, flow, site)


def call_on_node(
    call: ModuleHooks,
    grads: Sequence[Tensor],
    status: Sequence[int],
    output_grads: Sequence[Tensor],
    output_status: Sequence[int],
    site: int,
    sources: Sequence[int],
    offsets: Sequence[int],
    reach: Sequence[int],
    inputs: Sequence[int],
) -> list[Tensor]:
    """Call a module's legacy backward hooks, which belong to its last autograd node.

    Args:
        call: the hooks.
        grads: gradients with respect to the node's inputs, of those that have one.
        status: a :class:`GradientStatus` for each input of the node.
        output_grads: gradients with respect to the node's outputs, likewise.
        output_status: a :class:`GradientStatus` for each output of the node.
        site: number of the first gradient returned here among those of the graph.
        sources: what ``grads`` and ``output_grads`` are computed from, see
            :mod:`.gradient_flow`.
        offsets: where the sources of each gradient begin.
        reach: the graph inputs whose gradients are computed from those returned.
        inputs: at the first operator of the graph, what the gradients of the graph's
            inputs are computed from.

    Returns:
        As many tensors as ``grads``, of the same shapes, that share no memory.

    Raises:
        RuntimeError: as autograd does, for gradients that do not fit.
        TypeError: as autograd does, for what is no gradient.
    """
    flow = GradientFlow.of_this_backward(site, inputs)
    n = len(grads)
    exist, defined = _hear(flow, sources, offsets, n + len(output_grads))
    if not _any(exist[n:]) or not flow.needs(reach):
        flow.miss(site, n)
        return [torch.zeros_like(grad) for grad in grads]
    like = _spread(grads, status)
    outputs = _spread(
        (
            grad.clone() if is_defined else None
            for grad, is_defined in zip(output_grads, defined[n:], strict=True)
        ),
        output_status,
    )
    run = functools.partial(_run_on_node, call, like, tuple(outputs))
    return _settle(_fire(run, grads, defined[:n], status), grads, flow, site)


def _run_on_node(
    call: ModuleHooks,
    like: Sequence[Tensor | None],
    grad_outputs: Sequence[Any],
    grads: Sequence[Any],
) -> Sequence[Any]:
    grads = tuple(grads)
    for hook in call.hooks:
        result = hook(call.module, grads, grad_outputs)  # type: ignore[misc]
        if result is not None:
            name = getattr(hook, "__name__", type(hook).__name__)
            grads = _checked(result, like, name)
    return grads


_LIBRARY = torch.library.Library("nn_module_hooks", "DEF")
_FLOW = "int site, int[] sources, int[] offsets, int[] reach, int[] inputs"
_MODULE = f"{get_opaque_type_name(ModuleHooks)} call, Tensor[] grads, int[] status"
_SCHEMAS = {
    call_on_outputs: f"({_MODULE}, int[] index, int size, int n_inputs, {_FLOW})",
    call_on_inputs: (
        f"({_MODULE}, int[] index, int size, Tensor[] output_grads, "
        f"int[] output_index, int output_size, {_FLOW})"
    ),
    call_on_node: (f"({_MODULE}, Tensor[] output_grads, int[] output_status, {_FLOW})"),
    call_on_tensor: (
        f"({get_opaque_type_name(TensorHooks)} call, Tensor[] grads, {_FLOW})"
    ),
}


def _fake(call: object, grads: Sequence[Tensor], *args: Any) -> list[Tensor]:
    return [torch.empty_like(grad) for grad in grads]


def _define() -> None:
    for function, schema in _SCHEMAS.items():
        name = function.__name__
        _LIBRARY.define(
            f"{name}{schema} -> Tensor[]",
            tags=(torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe),
        )
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"nn_module_hooks::{name}", _fake, lib=_LIBRARY)
        torch.library._register_effectful_op(
            f"nn_module_hooks::{name}", EffectType.ORDERED
        )


_define()
