"""Between which outputs and inputs of a joint graph an autograd node lies.

Autograd runs a node if backward starts from an output above it and asks for an input
below it, whether or not any gradient along the way is defined. Called by the seam in
``create_joint`` of AOTAutograd; asked by ``backward_hooks`` while backward is traced.
Must not import Dynamo.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, TYPE_CHECKING

from torch.autograd.graph import get_gradient_edge
from torch.fx.experimental.proxy_tensor import get_proxy_mode


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor


_local = threading.local()


def note_topology(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Remember what backward is about to be traced from, and for.

    Args:
        outputs: outputs of the joint graph that have tangents, any shapes.
        inputs: inputs of the joint graph whose gradients are traced, any shapes.
    """
    pending, _local.pending = getattr(_local, "pending", []), []
    trace = get_proxy_mode()
    for traced_by, action in pending:
        if traced_by is trace:
            action()
    _local.topology = _Topology(outputs, inputs)


def before_backward(action: Callable[[], object]) -> None:
    """Have something done when the forward of the joint graph is traced.

    Args:
        action: called once, before backward is traced, if it is: forward alone is run
            first to see what it does.
    """
    pending = getattr(_local, "pending", [])
    _local.pending = [*pending, (get_proxy_mode(), action)]


def forget_topology() -> None:
    """Let go of the autograd graph once it is traced."""
    _local.topology = None
    _local.pending = []


def outputs_above(node: Any) -> list[int]:
    """Which of the noted outputs lead to an autograd node; empty when unknown."""
    topology = getattr(_local, "topology", None)
    return [] if topology is None else numbers(topology.above.get(node, 0))


def inputs_below(node: Any) -> list[int]:
    """Which of the noted inputs an autograd node leads to; empty when unknown."""
    topology = getattr(_local, "topology", None)
    return [] if topology is None else numbers(topology.below.get(node, 0))


class _Topology:
    """Sets of outputs and inputs, as the bits of integers, by autograd node."""

    def __init__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self._roots = [get_gradient_edge(output).node for output in outputs]
        self._leaves = [get_gradient_edge(tensor).node for tensor in inputs]

    # Graphs without hooks never ask.
    @functools.cached_property
    def _order(self) -> list[Any]:
        return list(_parents_last(self._roots))

    @functools.cached_property
    def above(self) -> dict[Any, int]:
        above: dict[Any, int] = dict.fromkeys(self._order, 0)
        for i, root in enumerate(self._roots):
            above[root] |= 1 << i
        for node in reversed(self._order):
            for child in _children(node):
                above[child] |= above[node]
        return above

    @functools.cached_property
    def below(self) -> dict[Any, int]:
        below: dict[Any, int] = dict.fromkeys(self._order, 0)
        for i, leaf in enumerate(self._leaves):
            if leaf in below:
                below[leaf] |= 1 << i
        for node in self._order:
            for child in _children(node):
                below[node] |= below[child]
        return below


def _parents_last(roots: Sequence[Any]) -> Iterator[Any]:
    seen = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in _children(node))


def _children(node: Any) -> list[Any]:
    return [child for child, _ in node.next_functions if child is not None]


def numbers(bits: int) -> list[int]:
    """The set that the bits of an integer stand for, in order."""
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
