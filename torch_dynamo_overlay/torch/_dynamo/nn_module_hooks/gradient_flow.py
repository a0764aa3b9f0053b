"""Which gradients of a compiled backward eager would have.

A compiled backward computes everything; eager computes what is asked for from what
arrives. Called by the operators of ``call_op``, by the seams in the autograd function
of AOTAutograd's graphs, and by ``joint_graph``. Must not import Dynamo.
"""

from __future__ import annotations

import itertools
from typing import Any, TYPE_CHECKING

import torch

from .call_hooks import HooksInput
from .sites import Site


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_FLOW = "_nn_module_hooks_gradient_flow"
_ARRIVED = "_nn_module_hooks_arrived"

# What a gradient is computed from, as one number: something that is always defined,
# the gradient of an output of the graph, or one that a hook returned.
ALWAYS = 0


def output_gradient(position: int) -> int:
    """The number of the gradient of the graph's output at ``position``."""
    return 2 * position + 1


def hook_gradient(number: int) -> int:
    """The number of the ``number``-th gradient that hooks of the graph return."""
    return 2 * number + 2


def note_arrivals(ctx: Any, n_outputs: int) -> None:
    """Let a compiled graph note, when its backward starts, which gradients arrive.

    Autograd puts zeros in the place of undefined gradients.

    Args:
        ctx: the context of the graph's autograd function, at the end of forward.
        n_outputs: number of the graph's outputs.
    """
    if n_outputs > 1 and any(isinstance(o, HooksInput) for o in ctx.opaque_objects):
        ctx.register_prehook(_note_arrivals)


def _note_arrivals(grads: Sequence[Any]) -> None:
    arrived = tuple(grad is not None for grad in grads)
    setattr(torch._C._current_autograd_node(), _ARRIVED, arrived)


def without_undefined(ctx: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """The gradients a compiled backward returns, None where eager has none.

    Args:
        ctx: the context of the graph's autograd function, at the end of backward.
        grads: gradients with respect to the inputs of the graph.
    """
    flow = getattr(ctx, _FLOW, None)
    if flow is None:
        return grads
    delattr(ctx, _FLOW)
    undefined = flow.undefined_inputs()
    if not undefined:
        return grads
    return tuple(None if i in undefined else grad for i, grad in enumerate(grads))


class GradientFlow:
    """What one run of a compiled backward knows about undefined gradients.

    Args:
        node: the autograd node of the compiled graph, None outside of autograd.
        inputs: position and sources of the gradient of each input of the graph.
    """

    def __init__(self, node: Any, inputs: Sequence[tuple[int, Sequence[int]]]) -> None:
        self._node = node
        self._inputs = inputs
        self._arrived: tuple[bool, ...] | None = getattr(node, _ARRIVED, None)
        # Whether all gradients are defined, so far.
        self.is_complete = self._arrived is None or all(self._arrived)
        self._undefined: set[int] = set()
        self._needed: dict[int, bool] = {}

    @classmethod
    def of_this_backward(cls, site: Site) -> GradientFlow:
        """The flow of the backward that is running.

        Args:
            site: where the hook that asks fires.
        """
        node = torch._C._current_autograd_node()
        if node is None or site.number < 0:
            return cls(None, ())
        if site.number == 0:
            setattr(node, _FLOW, cls(node, site.inputs))
        return getattr(node, _FLOW)

    def runs(self, site: Site) -> bool:
        """Whether autograd would run the node that fires at ``site``."""
        return self.starts_from(site.roots) and self.needs(site.reach)

    def starts_from(self, roots: Sequence[int]) -> bool:
        """Whether backward was run from one of these outputs of the graph.

        Args:
            roots: positions of outputs, empty when unknown.
        """
        arrived = self._arrived
        return not roots or arrived is None or any(arrived[root] for root in roots)

    def is_defined(self, sources: Sequence[int]) -> bool:
        """Whether a gradient computed from ``sources`` is not None in eager."""
        return not sources or any(map(self._is_defined, sources))

    def _is_defined(self, source: int) -> bool:
        position, is_hook = divmod(source - 1, 2)
        if is_hook or source == ALWAYS:
            return source not in self._undefined
        return self._arrived is None or self._arrived[position]

    def settle(self, site: int, grads: Iterable[Any]) -> None:
        """Note which gradients a hook returned, numbered from ``site``, are None."""
        for number, grad in enumerate(grads, site):
            if grad is None:
                self.is_complete = False
                self._undefined.add(hook_gradient(number))

    def needs(self, reach: Sequence[int]) -> bool:
        """Whether the gradient of one of the graph's inputs is asked for.

        Args:
            reach: runs of positions among the tensors that are inputs of the graph,
                ``[begin, end, ...]``, empty when unknown.
        """
        if not reach or self._node is None:
            return True
        runs = itertools.starmap(range, zip(reach[::2], reach[1::2], strict=True))
        return any(map(self._needs, itertools.chain.from_iterable(runs)))

    def _needs(self, position: int) -> bool:
        needed = self._needed.get(position)
        if needed is None:
            node = self._node.next_functions[position][0]
            needed = self._needed[position] = node is None or _will_run(node)
        return needed

    def undefined_inputs(self) -> set[int]:
        """Positions of the graph's inputs that have no gradient in eager."""
        if self.is_complete:
            return set()
        return {
            position
            for position, sources in self._inputs
            if not self.is_defined(sources)
        }


def _will_run(node: Any) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        # Said only of a leaf whose gradient torch.autograd.grad was asked for.
        return True
