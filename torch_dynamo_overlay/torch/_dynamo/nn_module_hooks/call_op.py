"""Operators that call hooks at run time from a compiled graph.

The hooks of a call are an *input* of the graph, an opaque ``HooksInput``, and reach
the operators that call them, so one graph serves all hooks. Used by
``backward_hooks``. Must not import Dynamo.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from typing import Any, TYPE_CHECKING

import torch
from torch._library.effects import EffectType
from torch._library.opaque_object import get_opaque_type_name
from torch.fx.node import has_side_effect
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import BackwardHook

from .call_hooks import fits, ModuleHooks, TensorHooks
from .gradient_flow import GradientFlow
from .run_hooks import call_hook
from .sites import given, GradientStatus, Site, spread


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


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

    def fire_on_outputs(self, site: Site, grads: Sequence[Any]) -> Sequence[Any]:
        self._index = site.index
        self.setup_output_hook((None,) * site.size)
        self.n_inputs = site.n_inputs
        index_of_inputs: Any = None if site.n_inputs >= 0 else []
        self.input_tensors_index = index_of_inputs
        return self._hook(None, grads)

    def fire_on_inputs(
        self, site: Site, grad_outputs: Any, grads: Sequence[Any]
    ) -> Sequence[Any]:
        self._index = site.index
        self.setup_input_hook((None,) * site.size)
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
            type(grads[i]) is not torch.Tensor
            or _references(grads, i) != _UNSHARED
            or not _strides_as_traced(grads[i], reference)
        ):
            grads[i] = torch.empty_like(reference).copy_(grads[i])
    return grads


def _strides_as_traced(grad: Tensor, reference: Tensor) -> bool:
    if reference.is_contiguous():
        return grad.is_contiguous()
    return grad.stride() == torch.empty_like(reference, device="meta").stride()


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
    converted = iter(
        torch.autograd.grad(
            [outputs[i] for i in used],
            [edges[i] for i in used],
            [edges[i] for i in used],
            allow_unused=True,
        )
    )
    return tuple(next(converted) if edge.requires_grad else None for edge in edges)


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
    values = _clones(grads, defined, status)
    results = run(values)
    del values
    if GradientStatus.ABSENT in status and any(
        r is not None and s == GradientStatus.ABSENT
        for r, s in zip(results, status, strict=True)
    ):
        raise RuntimeError(_ABSENT)
    settled = _checked(results, spread(grads, status), "hook")
    del results
    return given(settled, status)


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
    "A hook returned a gradient in the place of None, which stands for a tensor that "
    "the compiled graph does not use. The compiled backward has no place for it. "
    "Return None there, or keep the module out of the graph with "
    "torch.compiler.disable."
)


def _defined(flow: GradientFlow, site: Site, n: int) -> list[bool]:
    """Which of ``n`` gradients are not None in eager."""
    if flow.is_complete or not site.sources:
        return [True] * n
    return [flow.is_defined(sources) for sources in site.sources]


def _silent(grads: Sequence[Tensor], flow: GradientFlow, site: Site) -> list[Tensor]:
    """What comes from a node that autograd would not run."""
    return _settle([None] * len(grads), grads, flow, site.number)


def _clones(
    grads: Sequence[Tensor], defined: Sequence[bool], status: Sequence[int]
) -> list[Any]:
    clones = [g.clone() if d else None for g, d in zip(grads, defined, strict=True)]
    return spread(clones, status)


def call_on_outputs(
    call: ModuleHooks, grads: Sequence[Tensor], site: str
) -> list[Tensor]:
    """Call a module's backward pre-hooks, and its full hooks where no input counts.

    Args:
        call: the hooks.
        grads: gradients with respect to the output tensors that have one.
        site: the :class:`Site`.

    Returns:
        As many tensors as ``grads``, of the same shapes, that share no memory.

    Raises:
        RuntimeError: as autograd does, for gradients that do not fit.
    """
    at = Site.parse(site)
    flow = GradientFlow.of_this_backward(at)
    if not flow.runs(at):
        return _silent(grads, flow, at)
    defined = _defined(flow, at, len(grads))
    run = functools.partial(_RunTimeBackwardHook(call).fire_on_outputs, at)
    return _settle(_fire(run, grads, defined, at.status), grads, flow, at.number)


def call_on_inputs(
    call: ModuleHooks,
    grads: Sequence[Tensor],
    output_grads: Sequence[Tensor],
    site: str,
) -> list[Tensor]:
    """Call a module's full backward hooks.

    Args:
        call: the hooks.
        grads: gradients with respect to the input tensors that have one.
        output_grads: gradients with respect to the output tensors that have one.
        site: the :class:`Site`.

    Returns:
        As many tensors as ``grads``, of the same shapes, that share no memory.

    Raises:
        RuntimeError: as autograd does, for gradients that do not fit.
    """
    at = Site.parse(site)
    flow = GradientFlow.of_this_backward(at)
    n = len(grads)
    if not flow.runs(at):
        return _silent(grads, flow, at)
    if not flow.starts_from(at.output_roots):
        return [grad.clone() for grad in grads]
    defined = _defined(flow, at, n + len(output_grads))
    outputs = _clones(output_grads, defined[n:], at.output_status)
    run = functools.partial(
        _RunTimeBackwardHook(call).fire_on_inputs,
        at,
        pack(outputs, at.output_index, at.output_size),
    )
    del outputs
    # Autograd has put zeros in the place of the gradients that are missing here.
    results = _fire(run, grads, [True] * n, at.status)
    return _settle(results, grads, flow, at.number)


def call_on_node(
    call: ModuleHooks,
    grads: Sequence[Tensor],
    output_grads: Sequence[Tensor],
    site: str,
) -> list[Tensor]:
    """Call a module's legacy backward hooks, which belong to its last autograd node.

    Args:
        call: the hooks.
        grads: gradients with respect to the node's inputs, of those that have one.
        output_grads: gradients with respect to the node's outputs, likewise.
        site: the :class:`Site`.

    Returns:
        As many tensors as ``grads``, of the same shapes, that share no memory.

    Raises:
        RuntimeError: as autograd does, for gradients that do not fit.
        TypeError: as autograd does, for what is no gradient.
    """
    at = Site.parse(site)
    flow = GradientFlow.of_this_backward(at)
    n = len(grads)
    if not flow.runs(at):
        return _silent(grads, flow, at)
    defined = _defined(flow, at, n + len(output_grads))
    # Unlike those of hooks, autograd's own nodes compute what is asked for only.
    wanted = [flow.needs(reach) for reach in at.reach_of_each] or [True] * n
    present = [d and w for d, w in zip(defined[:n], wanted, strict=True)]
    outputs = tuple(_clones(output_grads, defined[n:], at.output_status))
    values = _clones(grads, present, at.status)
    like = [None if value is None else value.detach() for value in values]
    results = _run_on_node(call, like, outputs, values)
    del values, like, outputs
    settled = given(results, at.status)
    del results
    return _settle(settled, grads, flow, at.number)


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


def call_on_tensor(
    call: TensorHooks, grads: Sequence[Tensor], site: str
) -> list[Tensor]:
    """Call the hooks of a tensor.

    Args:
        call: the hooks.
        grads: the gradient with respect to the tensor, or none if it is undefined.
        site: the :class:`Site`.

    Returns:
        As many tensors, of the same shape, that share no memory.

    Raises:
        RuntimeError: as autograd does, for a gradient that does not fit.
        TypeError: as autograd does, for what is no gradient.
    """
    at = Site.parse(site)
    flow = GradientFlow.of_this_backward(at)
    if not flow.runs(at):
        call.retain(None)
        return _silent(grads, flow, at)
    defined = _defined(flow, at, len(grads))
    if not grads:
        if call.call_in_turn(None, None) is not None:
            raise RuntimeError(_ABSENT)
        return []
    (like,), (is_defined,) = grads, defined
    settled = [call.call_in_turn(like.clone() if is_defined else None, like)]
    call.retain(settled[0])
    return _settle(settled, grads, flow, at.number)


def call_in_forward(
    call: ModuleHooks, tensors: Sequence[Tensor], after: Sequence[Tensor], layout: str
) -> None:
    """Call a forward hook or pre-hook that returns nothing.

    Args:
        call: the hook.
        tensors: what the hook is given, flat, any shapes.
        after: what has to be computed before.
        layout: whether autograd recorded in eager, and how ``tensors`` make up the
            arguments: -1 for one, a number for a tuple, null for what does not matter.

    Raises:
        RuntimeError: when the hook returns something, or edits a tensor.
    """
    grad_mode, *sizes = json.loads(layout)
    # The graph may write over its own when the hook has kept them.
    rest = iter([tensor.clone() for tensor in tensors])
    args = [
        None
        if size is None
        else next(rest)
        if size < 0
        else tuple(itertools.islice(rest, size))
        for size in sizes
    ]
    (hook,) = call.hooks
    call_hook(hook, grad_mode, call.module, *args)  # type: ignore[arg-type]


def _fake_in_forward(*args: Any) -> None:
    pass


_MODULE = f"{get_opaque_type_name(ModuleHooks)} call, Tensor[] grads"
_SCHEMAS = {
    call_on_outputs: f"({_MODULE}, str site) -> Tensor[]",
    call_on_inputs: f"({_MODULE}, Tensor[] output_grads, str site) -> Tensor[]",
    call_on_node: f"({_MODULE}, Tensor[] output_grads, str site) -> Tensor[]",
    call_on_tensor: (
        f"({get_opaque_type_name(TensorHooks)} call, Tensor[] grads, str site)"
        " -> Tensor[]"
    ),
    call_in_forward: (
        f"({get_opaque_type_name(ModuleHooks)} call, Tensor[] tensors, Tensor[] after,"
        " str layout) -> ()"
    ),
}
_LIBRARY = torch.library.Library("nn_module_hooks", "DEF")


def _fake(call: object, grads: Sequence[Tensor], *args: Any) -> list[Tensor]:
    return [torch.empty_like(grad) for grad in grads]


def _define() -> None:
    for function, schema in _SCHEMAS.items():
        name = function.__name__
        _LIBRARY.define(
            f"{name}{schema}",
            tags=(torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe),
        )
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        fake = _fake_in_forward if function is call_in_forward else _fake
        torch.library.register_fake(f"nn_module_hooks::{name}", fake, lib=_LIBRARY)
        torch.library._register_effectful_op(
            f"nn_module_hooks::{name}", EffectType.ORDERED
        )


_define()
has_side_effect(torch.ops.nn_module_hooks.call_in_forward.default)
