"""Tells the hooks of a joint graph where their gradients come from and go to.

Called by the seam in ``aot_dispatch_autograd_graph`` of AOTAutograd, before the
graph is partitioned, and by one in Inductor's cache. What it writes is read by
``gradient_flow`` at run time. Must not import Dynamo.
"""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

import torch
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    DifferentiableAOTInput,
    GradAOTOutput,
    PlainAOTOutput,
    SubclassGetAttrAOTInput,
    TangentAOTInput,
)
from torch._higher_order_ops.effects import with_effects
from torch.fx import Node

from .gradient_flow import ALWAYS, hook_gradient, output_gradient


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
    from torch.fx import GraphModule


# Sets of numbers are kept as the bits of an int: graphs are large.
_Bits = int


def annotate_gradient_flow(gm: GraphModule, metadata: ViewAndMutationMeta) -> None:
    """Fill in the flow arguments of the operators of ``call_op``.

    Args:
        gm: the joint graph, changed in place.
        metadata: what AOTAutograd knows about the graph.
    """
    sites: dict[Node, int] = {}
    number = 0
    for node in gm.graph.nodes:
        if calls_hooks(node):
            sites[node] = number
            number += len(_gradients(node, "grads"))
    if not sites:
        return
    sources = _sources(gm, sites, metadata.num_mutated_inp_runtime_indices)
    descs = [n.meta.get("desc") for n in gm.graph.find_nodes(op="placeholder")]
    if any(isinstance(desc, SubclassGetAttrAOTInput) for desc in descs):
        # Inputs of the graph are then not those of its autograd function.
        reach, inputs = {}, []
    else:
        reach, inputs = _reach(gm, sources), _input_sources(gm, sources)
    for site, number in sites.items():
        flat: list[int] = []
        offsets: list[int] = []
        for gradient in _gradients(site, "grads", "output_grads"):
            offsets.append(len(flat))
            flat.extend(_numbers(sources[gradient]))
        ranges = _ranges(reach.get(site, 0))
        flow = (number, flat, offsets, ranges, [] if number else inputs)
        site.args = (*site.args[: -len(flow)], *flow)


def calls_hooks(node: Node) -> bool:
    """Whether a node calls an operator of ``call_op``.

    Args:
        node: a node of a graph that AOTAutograd has traced.
    """
    return node.target is with_effects and (
        getattr(node.args[1], "namespace", None) == "nn_module_hooks"
    )


def _gradients(site: Node, *names: str) -> list[Node]:
    op: Any = site.args[1]
    arguments = op._schema.arguments
    values: Sequence[Any] = site.args[2:]
    return [
        gradient
        for argument, value in zip(arguments, values, strict=True)
        if argument.name in names
        for gradient in value
    ]


def _sources(
    gm: GraphModule, sites: dict[Node, int], n_mutated: int
) -> dict[Node, _Bits]:
    """What each node is computed from, as far back as the next hook."""
    sources: dict[Node, _Bits] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            sources[node] = _tangent(node, n_mutated)
        elif node in sites or _is_token(node, sites):
            sources[node] = 0
        elif _is_result(node, sites):
            site = node.args[0].args[0]
            sources[node] = 1 << hook_gradient(sites[site] + node.args[1])
        else:
            sources[node] = 0
            for n in node.all_input_nodes:
                sources[node] |= sources[n]
    return sources


def _is_token(node: Node, sites: dict[Node, int]) -> bool:
    return (
        node.target is operator.getitem
        and node.args == (node.args[0], 0)
        and (node.args[0] in sites)
    )


def _is_result(node: Node, sites: dict[Node, int]) -> bool:
    """Whether a node takes a gradient out of ``(token, (grad, ...))`` of a site."""
    if node.target is not operator.getitem:
        return False
    grads: Any = node.args[0]
    return grads.target is operator.getitem and grads.args[0] in sites


def _tangent(node: Node, n_mutated: int) -> _Bits:
    desc = node.meta.get("desc")
    if not isinstance(desc, TangentAOTInput):
        return 0
    if isinstance(desc.output, PlainAOTOutput):
        return 1 << output_gradient(n_mutated + desc.output.idx)
    return 1 << ALWAYS


def _inputs(gm: GraphModule) -> list[tuple[AOTInput, Any]]:
    """What the graph's autograd function takes, without tangents and tokens."""
    return [
        (desc, node.meta.get("val"))
        for node in gm.graph.find_nodes(op="placeholder")
        if isinstance(desc := node.meta.get("desc"), DifferentiableAOTInput)
        and not isinstance(desc, TangentAOTInput)
    ]


def _outputs(gm: GraphModule) -> tuple[Sequence[Any], Sequence[Any]]:
    output: Any = gm.graph.output_node()
    return output.args[0], output.meta["desc"]


def _reach(gm: GraphModule, sources: dict[Node, _Bits]) -> dict[Node, _Bits]:
    """The inputs whose gradients are computed from each node, by position."""
    inputs = _inputs(gm)
    tensors = [desc for desc, val in inputs if isinstance(val, torch.Tensor)]
    positions = {desc: i for i, desc in enumerate(tensors)}
    outputs, descs = _outputs(gm)
    reach: dict[Node, _Bits] = {}
    for node, desc in zip(outputs, descs, strict=True):
        if isinstance(node, Node) and isinstance(desc, GradAOTOutput):
            reach[node] = reach.get(node, 0) | 1 << positions[desc.grad_of]
    for node in reversed(gm.graph.nodes):
        if node not in reach or node.op == "placeholder":
            continue
        is_site = calls_hooks(node)
        for n in _gradients(node, "grads") if is_site else node.all_input_nodes:
            if sources[n] or calls_hooks(n) or n.target is operator.getitem:
                reach[n] = reach.get(n, 0) | reach[node]
    return reach


def _input_sources(gm: GraphModule, sources: dict[Node, _Bits]) -> list[int]:
    """Position, number of sources and sources of each input that has a gradient."""
    positions = {desc: i for i, (desc, _) in enumerate(_inputs(gm))}
    outputs, descs = _outputs(gm)
    flat: list[int] = []
    for node, desc in zip(outputs, descs, strict=True):
        if isinstance(node, Node) and isinstance(desc, GradAOTOutput):
            numbers = _numbers(sources[node])
            flat.extend((positions[desc.grad_of], len(numbers), *numbers))
    return flat


def _numbers(bits: _Bits) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def _ranges(bits: _Bits) -> list[int]:
    """``[begin, end, begin, end, ...]`` of the runs of set bits."""
    return _numbers(bits ^ bits << 1)
