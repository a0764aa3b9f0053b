"""Tells the hooks of a joint graph where their gradients come from and go to.

Called by the seam in ``aot_dispatch_autograd_graph`` of AOTAutograd, before the
graph is partitioned, and by one in Inductor's cache. What it writes is read by
``gradient_flow`` at run time. Must not import Dynamo.
"""

from __future__ import annotations

import dataclasses
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

from .autograd_topology import forget_topology, numbers
from .gradient_flow import ALWAYS, hook_gradient, output_gradient
from .sites import Site


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
    from torch.fx import GraphModule


# Sets of numbers are kept as the bits of an int: graphs are large.
_Bits = int

# Runs of positions of no input at all.
_NOWHERE = [0, 0]


def annotate_gradient_flow(gm: GraphModule, metadata: ViewAndMutationMeta) -> None:
    """Complete the sites of the operators of ``call_op``.

    Args:
        gm: the joint graph, changed in place.
        metadata: what AOTAutograd knows about the graph.
    """
    forget_topology()
    sites: dict[Node, int] = {}
    number = 0
    for node in gm.graph.nodes:
        if calls_hooks(node) and "grads" in _arguments(node):
            sites[node] = number
            number += len(_gradients(node, "grads"))
    if not sites:
        return
    n_mutated = metadata.num_mutated_inp_runtime_indices
    sources = _sources(gm, sites, n_mutated)
    descs = [n.meta.get("desc") for n in gm.graph.find_nodes(op="placeholder")]
    # Inputs that are subclasses of tensors are others for the graph's function.
    is_plain = not any(isinstance(desc, SubclassGetAttrAOTInput) for desc in descs)
    inputs = _input_sources(gm, sources) if is_plain else []
    below = _input_positions(gm) if is_plain else None
    above = _output_positions(gm, n_mutated)
    for node, number in sites.items():
        traced = Site.parse(str(node.args[-1]))
        gradients = _gradients(node, "grads", "output_grads")
        site = dataclasses.replace(
            traced,
            number=number,
            sources=[numbers(sources[gradient]) for gradient in gradients],
            roots=_translated(traced.roots, above),
            output_roots=_translated(traced.output_roots, above),
            reach=_ranges(_translated(traced.reach, below)),
            reach_of_each=[
                _ranges(_translated(reach, below)) or _NOWHERE
                for reach in (traced.reach_of_each if below is not None else ())
            ],
            inputs=[] if number else inputs,
        )
        node.args = (*node.args[:-1], str(site))


def calls_hooks(node: Node) -> bool:
    """Whether a node calls an operator of ``call_op``.

    Args:
        node: a node of a graph that AOTAutograd has traced.
    """
    return node.target is with_effects and (
        getattr(node.args[1], "namespace", None) == "nn_module_hooks"
    )


def _arguments(site: Node) -> dict[str, Any]:
    op: Any = site.args[1]
    names = [argument.name for argument in op._schema.arguments]
    return dict(zip(names, site.args[2:], strict=True))


def _gradients(site: Node, *names: str) -> list[Node]:
    arguments = _arguments(site)
    return [
        gradient
        for name, value in arguments.items()
        if name in names
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


def _output_positions(gm: GraphModule, n_mutated: int) -> list[int] | None:
    """Where the outputs that have tangents stand among those of the graph."""
    descs = [n.meta.get("desc") for n in gm.graph.find_nodes(op="placeholder")]
    outputs = [desc.output for desc in descs if isinstance(desc, TangentAOTInput)]
    plain = [o.idx for o in outputs if isinstance(o, PlainAOTOutput)]
    if len(plain) < len(outputs):
        return None
    return [n_mutated + position for position in plain]


def _input_positions(gm: GraphModule) -> list[int]:
    """Where the inputs that have gradients stand among those that are tensors."""
    inputs = _inputs(gm)
    tensors = [desc for desc, val in inputs if isinstance(val, torch.Tensor)]
    positions = {desc: i for i, desc in enumerate(tensors)}
    _, descs = _outputs(gm)
    return [positions[d.grad_of] for d in descs if isinstance(d, GradAOTOutput)]


def _translated(indices: list[int], positions: list[int] | None) -> list[int]:
    if positions is None or (indices and indices[-1] >= len(positions)):
        return []
    return [positions[index] for index in indices]


def _input_sources(
    gm: GraphModule, sources: dict[Node, _Bits]
) -> list[tuple[int, list[int]]]:
    """Position and sources of the gradient of each input that has one."""
    positions = {desc: i for i, (desc, _) in enumerate(_inputs(gm))}
    outputs, descs = _outputs(gm)
    found = []
    for node, desc in zip(outputs, descs, strict=True):
        if isinstance(node, Node) and isinstance(desc, GradAOTOutput):
            found.append((positions[desc.grad_of], numbers(sources[node])))
    return found


def _ranges(positions: list[int]) -> list[int]:
    """``[begin, end, begin, end, ...]`` of the runs of positions."""
    bits = 0
    for position in positions:
        bits |= 1 << position
    return numbers(bits ^ bits << 1)
