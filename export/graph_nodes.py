"""Nodes and tensors of an ONNX graph as they are added, and the few that every part of a graph needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from weight_file import Array, WeightFile

CONTRIB = "com.microsoft"


@dataclass
class Nodes:
    """A graph that is being written. Methods append nodes and return the name of what they compute."""

    weights: WeightFile
    nodes: list[onnx.NodeProto] = field(init=False, default_factory=list)
    initializers: dict[str, TensorProto] = field(init=False, default_factory=dict)

    def constant(self, name: str, values: Array | np.generic) -> str:
        """Adds a tensor of the weights file to the graph, once."""
        if name not in self.initializers:
            self.initializers[name] = self.weights.tensor(name, np.asarray(values))
        return name

    def op(self, kind: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        """Appends one node with one output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, domain=domain, **attributes))
        return output

    def cut(self, x: str, axis: int, start: int, end: int, name: str) -> str:
        """x[start:end] along an axis."""
        bounds = [self.constant(f"at.{value}", np.array([value], np.int64)) for value in (start, end)]
        return self.op("Slice", [x, *bounds, self.axes(axis)], name)

    def axes(self, *numbers: int) -> str:
        """Axes as reductions and slices take them."""
        return self.constant("axes." + ".".join(map(str, numbers)), np.array(numbers, np.int64))

    def last_axis(self) -> str:
        """The axis of the hidden size, as reductions take it."""
        return self.constant("last_axis", np.array([-1], np.int64))

    def subgraph(
        self, scope: str, inputs: Sequence[onnx.ValueInfoProto], fill: Callable[[str], Sequence[str]]
    ) -> onnx.GraphProto:
        """A graph inside a node. fill: appends its nodes, whose names begin with scope, and returns its outputs."""
        outside, self.nodes = self.nodes, []
        outputs = [onnx.ValueInfoProto(name=name) for name in fill(scope)]
        inside, self.nodes = self.nodes, outside
        return helper.make_graph(inside, scope.rstrip("."), list(inputs), outputs)
