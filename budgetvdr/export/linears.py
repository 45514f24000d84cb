"""Finds the linear layers and tables of a network, and puts other nodes in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from budgetvdr.export.network import Array, Constant, Network
from budgetvdr.export.prune import taken


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """x @ weight.T + bias, as one node computes it.

    weight: (out, in), a view of a constant. bias: the name of a value, or nothing. head: whether the results reach an
    output without another linear layer in between.
    """

    node: onnx.NodeProto
    x: str
    weight: Array
    bias: str | None
    head: bool

    @property
    def output(self) -> str:
        """What it computes."""
        return str(self.node.output[0])


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Rows of a table (rows, width), by whole numbers that come from `ids`."""

    node: onnx.NodeProto
    table: Array
    ids: str

    @property
    def output(self) -> str:
        """What it computes."""
        return str(self.node.output[0])


def find_linears(network: Network, outputs: Sequence[str]) -> list[Linear]:
    """Linear layers whose weights are constants, in the order of the graph. outputs: what `head` is judged by."""
    matrices = {name: constant.source for name, constant in network.constants.items() if constant.source.ndim == 2}
    # Transposed by a node of its own, as (in, out).
    turned = {
        node.output[0]: matrices[node.input[0]].T
        for node in network.proto.graph.node
        if node.op_type == "Transpose" and node.input[0] in matrices
    }
    found = []
    for node in network.proto.graph.node:
        if len(node.input) < 2:
            continue
        second = turned.get(node.input[1], matrices.get(node.input[1]))
        if second is None:
            continue
        if node.op_type == "MatMul":
            found.append((node, second.T, None))
        elif node.op_type == "Gemm" and _plain(node):
            weight = second if _attribute(node, "transB", 0) else second.T
            found.append((node, weight, node.input[2] if len(node.input) > 2 else None))
    heads = _heads(network.proto.graph, {node.output[0] for node, _, _ in found}, outputs)
    return [Linear(node, node.input[0], weight, bias, node.output[0] in heads) for node, weight, bias in found]


def find_lookups(network: Network, source: str) -> list[Lookup]:
    """Tables that are looked up by what comes from the input `source`."""
    reached = {source}
    found = []
    for node in network.proto.graph.node:
        table = network.constants.get(node.input[0]) if node.input else None
        if node.op_type == "Gather" and table is not None:
            if node.input[1] in reached and table.source.ndim == 2 and not _attribute(node, "axis", 0):
                found.append(Lookup(node, table.source, node.input[1]))
        elif not reached.isdisjoint(node.input):
            reached.update(node.output)
    return found


def replaced(
    network: Network, substitutes: Mapping[str, Sequence[onnx.NodeProto]], constants: Mapping[str, Constant]
) -> Network:
    """A network with other nodes for those that compute some values. substitutes: value -> what computes it now."""
    proto = onnx.ModelProto()
    proto.CopyFrom(network.proto)
    nodes: list[onnx.NodeProto] = []
    for node in network.proto.graph.node:
        nodes.extend(substitutes.get(node.output[0], [node]))
    proto.graph.ClearField("node")
    proto.graph.node.extend(nodes)
    return Network(proto, {**network.constants, **constants})


def settled(network: Network) -> Network:
    """Without transpositions of constants, which become constants, and without constants that no node takes."""
    constants = dict(network.constants)
    nodes = []
    for node in network.proto.graph.node:
        if node.op_type == "Transpose" and node.input[0] in constants:
            axes = next((list(entry.ints) for entry in node.attribute if entry.name == "perm"), None)
            constants[node.output[0]] = Constant(np.transpose(constants[node.input[0]].source, axes))
        else:
            nodes.append(node)
    proto = onnx.ModelProto()
    proto.CopyFrom(network.proto)
    proto.graph.ClearField("node")
    proto.graph.node.extend(nodes)
    # In the order in which they are needed, so that a shallow graph finds its part together.
    order = dict.fromkeys(name for node in nodes for name in taken(node) if name in constants)
    return Network(proto, {name: constants[name] for name in order})


def _heads(graph: onnx.GraphProto, linears: set[str], outputs: Sequence[str]) -> set[str]:
    producers = {output: node for node in graph.node for output in node.output}
    heads: set[str] = set()
    waiting, seen = list(outputs), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in linears:
            heads.add(name)
        elif name in producers:
            waiting.extend(taken(producers[name]))
    return heads


def _plain(node: onnx.NodeProto) -> bool:
    return bool(_attribute(node, "alpha", 1) == 1 and _attribute(node, "beta", 1) == 1) and not _attribute(
        node, "transA", 0
    )


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    value: float = next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
    return value
