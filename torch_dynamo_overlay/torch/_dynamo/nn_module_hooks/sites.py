"""Where in a backward graph hooks fire, as a constant of that graph.

Written by ``backward_hooks`` when the graph is traced, completed by ``joint_graph``,
read by the operators of ``call_op`` at run time. A string, so that it goes through
dispatcher, generated code and caches at little cost. Must not import Dynamo.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from typing import Any, TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence


class GradientStatus(enum.IntEnum):
    """What stands in the place of one tensor's gradient when a graph is traced."""

    GIVEN = 0
    DROPPED = 1  # None in eager: the tensor takes no gradient
    ABSENT = 2  # None in eager: the tensor takes a gradient, but none arrives


def given(grads: Sequence[Any], status: Sequence[int]) -> list[Any]:
    """Of a gradient, or None, for each tensor: those that are given."""
    if GradientStatus.DROPPED not in status and GradientStatus.ABSENT not in status:
        return [*grads]
    return [g for g, s in zip(grads, status, strict=True) if s == GradientStatus.GIVEN]


def spread(grads: Sequence[Any], status: Sequence[int]) -> list[Any]:
    """The inverse of :func:`given`, with None for the others."""
    if len(grads) == len(status):
        return [*grads]
    rest = iter(grads)
    return [next(rest) if s == GradientStatus.GIVEN else None for s in status]


@dataclasses.dataclass(frozen=True)
class Site:
    """One place where hooks fire.

    Args:
        status: a :class:`GradientStatus` for each tensor whose gradient hooks may
            change: outputs of the module for pre-hooks, inputs for full hooks.
        index: where each of these tensors stands in its tuple.
        size: length of that tuple.
        output_status: as ``status``, for the outputs beside the inputs.
        output_index: as ``index``, likewise.
        output_size: as ``size``, likewise.
        n_inputs: number of arguments when none of them requires grad, so that full
            hooks fire on outputs; -1 otherwise.
        number: number of the first gradient that is given here, among those that the
            hooks of the graph return; -1 when unknown.
        sources: of each gradient that is given here, what it is computed from, as
            numbered in :mod:`.gradient_flow`; empty when unknown.
        roots: outputs of the graph from which autograd comes to the node that fires
            here; empty when unknown.
        output_roots: the same for the node that watches the module's outputs.
        reach: runs ``[begin, end, ...]`` of inputs of the graph, among those that are
            tensors, to which autograd goes on from that node; empty when unknown.
        reach_of_each: the same from each gradient alone, where hooks belong to a node
            that computes only what is asked for.
        inputs: at the first site of a graph, position and sources of the gradient of
            each input of the graph.
    """

    status: list[int] = dataclasses.field(default_factory=list)
    index: list[int] = dataclasses.field(default_factory=list)
    size: int = 0
    output_status: list[int] = dataclasses.field(default_factory=list)
    output_index: list[int] = dataclasses.field(default_factory=list)
    output_size: int = 0
    n_inputs: int = -1
    number: int = -1
    sources: list[list[int]] = dataclasses.field(default_factory=list)
    roots: list[int] = dataclasses.field(default_factory=list)
    output_roots: list[int] = dataclasses.field(default_factory=list)
    reach: list[int] = dataclasses.field(default_factory=list)
    reach_of_each: list[list[int]] = dataclasses.field(default_factory=list)
    inputs: list[tuple[int, list[int]]] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        fields = dataclasses.asdict(self)
        default = Site().__dict__
        said = {name: value for name, value in fields.items() if value != default[name]}
        return json.dumps(said, separators=(",", ":"))

    @staticmethod
    @functools.cache
    def parse(text: str) -> Site:
        """The site that ``str`` made ``text`` of."""
        return Site(**json.loads(text))
