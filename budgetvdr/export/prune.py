"""The part of a graph that some of its outputs need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx


def pruned(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """A copy with these outputs alone, without the nodes, constants and inputs that none of them needs."""
    needed = _needed(model.graph, outputs)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    declared = {output.name: output for output in model.graph.output}
    graph.ClearField("output")
    graph.output.extend(declared[name] for name in outputs)
    _keep(graph.node, [node for node in graph.node if not needed.isdisjoint(node.output)])
    _keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in needed])
    _keep(graph.input, [value for value in graph.input if value.name in needed])
    return result


def _needed(graph: onnx.GraphProto, outputs: Collection[str]) -> set[str]:
    """Names of all values that lead to the outputs."""
    needed = set(outputs)
    # Nodes stand behind those whose results they take.
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(taken(node))
    needed.discard("")
    return needed


def taken(node: onnx.NodeProto) -> Iterator[str]:
    """What a node takes, graphs inside of it included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            for part in inner.node:
                yield from taken(part)
            yield from (output.name for output in inner.output)


def _keep(field: object, kept: Sequence[object]) -> None:
    copies = [type(item).FromString(item.SerializeToString()) for item in kept]  # type: ignore[attr-defined]
    del field[:]  # type: ignore[attr-defined]
    field.extend(copies)  # type: ignore[attr-defined]
