"""What a page graph tells of its attention, for page compression: computed for the layers that a run selects.

Beside its exits a page graph outputs statistics of the attention among the n = T - 2 tokens between the marks of start
and end: `support` (S, K, n) and `in_degree` (S, n) of the S layers that `layers` (depth,) bool selects, after each of
`steps` () int64 steps, and `from_start` (R, n) of the R layers that `starts` (depth,) bool selects. These inputs may be
left out: no layer is selected then, and nothing computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from graph_nodes import CONTRIB, Nodes
from onnx import TensorProto, helper

# The shapes: S or R layers selected, K steps, n tokens.
STATISTICS: Mapping[str, list[str | int]] = {
    "support": ["S", "K", "n"],
    "in_degree": ["S", "n"],
    "from_start": ["R", "n"],
}


class AttentionStatistics:
    """The nodes that compute them, added to a graph of `depth` layers; `heads` divide the `hidden` components.

    To be made before the first layer; `measure` follows the projections of each, `outputs` the last.
    """

    def __init__(self, nodes: Nodes, depth: int, *, heads: int, hidden: int) -> None:
        self._nodes, self._depth, self._heads, self._hidden = nodes, depth, heads, hidden
        self._op, self._constant, self._cut, self._axes = nodes.op, nodes.constant, nodes.cut, nodes.axes
        # An initializer that is an input too is that input's default.
        for selector in ("layers", "starts"):
            nodes.constant(selector, np.zeros(depth, np.bool_))
        nodes.constant("steps", np.array(1, np.int64))
        nodes.op("Or", ["layers", "starts"], "looked_at")
        self._nothings()

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """`layers`, `starts` and `steps`."""
        return [
            helper.make_tensor_value_info("layers", TensorProto.BOOL, [self._depth]),
            helper.make_tensor_value_info("starts", TensorProto.BOOL, [self._depth]),
            helper.make_tensor_value_info("steps", TensorProto.INT64, []),
        ]

    def outputs(self) -> list[onnx.ValueInfoProto]:
        """The statistics of all layers, by name."""
        found = []
        for name, shape in STATISTICS.items():
            parts = [f"encoder.layer.{layer}.{name}" for layer in range(self._depth)]
            self._op("Concat", parts, name, axis=0)
            found.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return found

    def measure(self, prefix: str, index: int) -> None:
        """What one layer adds to each of the statistics; where nothing of it is selected, arrays for no layer."""
        looked_at = self._picked("looked_at", index, prefix + "looked_at")
        branches = {
            "then_branch": self._nodes.subgraph(prefix + "seen.", [], lambda scope: self._seen(prefix, index, scope)),
            "else_branch": self._nodes.subgraph(
                prefix + "unseen.", [], lambda scope: self._nothing(scope, *STATISTICS)
            ),
        }
        results = [prefix + name for name in STATISTICS]
        self._nodes.nodes.append(helper.make_node("If", [looked_at], results, name=prefix + "if_looked_at", **branches))

    def _seen(self, layer: str, index: int, scope: str) -> list[str]:
        """All statistics of a layer, each where it is selected."""
        *among, start = STATISTICS

        def where(selector: str, names: Sequence[str], fill: Callable[[str], Sequence[str]]) -> list[str]:
            branches = {
                "then_branch": self._nodes.subgraph(f"{scope}{selector}.", [], fill),
                "else_branch": self._nodes.subgraph(
                    f"{scope}no_{selector}.", [], lambda scope: self._nothing(scope, *names)
                ),
            }
            selected = self._picked(selector, index, f"{scope}{selector}.selected")
            results = [scope + name for name in names]
            self._nodes.nodes.append(
                helper.make_node("If", [selected], results, name=f"{scope}if_{selector}", **branches)
            )
            return results

        return [
            *where("layers", among, lambda scope: self._propagated(layer, scope)),
            *where("starts", [start], lambda scope: [self._from_start(layer, scope)]),
        ]

    def _propagated(self, layer: str, scope: str) -> list[str]:
        """support (1, K, n) and in_degree (1, n) of one layer.

        The graph of a head is its attention among the tokens, each row divided by its sum: that is the softmax over
        the tokens alone, without the marks (AnchorFold, section 3.2). `support` is the root mean square over heads
        after 1..K steps from the uniform distribution, `in_degree` the mean over heads after the first.
        """
        parts = []
        for part in "qk":
            tokens = self._cut(layer + part, 1, 1, -1, f"{scope}{part}.tokens")
            by_head = self._op("Reshape", [tokens, self._by_head()], f"{scope}{part}.by_head")
            parts.append(self._op("Transpose", [by_head], f"{scope}{part}", perm=[0, 2, 1, 3]))
        scale = (self._hidden // self._heads) ** -0.5
        logits = self._op("FusedMatMul", parts, scope + "logits", CONTRIB, transB=1, alpha=scale)
        graph = self._op("Softmax", [logits], scope + "graph")
        states = self._states(scope, graph)
        squares = self._op("Mul", [states, states], scope + "squares")
        square = self._op("ReduceMean", [squares, self._axes(1, 2, 3)], scope + "square", keepdims=0)
        support = self._op("Unsqueeze", [self._op("Sqrt", [square], scope + "root"), self._axes(0)], scope + "support")
        first = self._cut(states, 0, 0, 1, scope + "first")
        return [
            support,
            self._op("ReduceMean", [first, self._axes(1, 2, 3)], scope + "in_degree", keepdims=0),
        ]

    def _states(self, scope: str, graph: str) -> str:
        """(K, 1, heads, 1, n): where each step leads, by a loop of as many turns."""
        state, going = scope + "loop.state", scope + "loop.going"

        def turn(scope: str) -> list[str]:
            stepped = self._op("MatMul", [state, graph], scope + "stepped")
            go_on = self._op("Identity", [going], scope + "go_on")
            return [go_on, stepped, self._op("Identity", [stepped], scope + "noted")]

        count = self._op("Shape", [graph], scope + "count", start=3, end=4)
        one_row = self._constant("one_row", np.array([1, self._heads, 1], np.int64))
        shape = self._op("Concat", [one_row, count], scope + "shape", axis=0)
        count = self._op("Cast", [count], scope + "count.float", to=TensorProto.FLOAT)
        uniform = self._op("Expand", [self._op("Reciprocal", [count], scope + "share"), shape], scope + "uniform")
        inputs = [
            helper.make_tensor_value_info(scope + "loop.turn", TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            helper.make_tensor_value_info(state, TensorProto.FLOAT, [1, self._heads, 1, "n"]),
        ]
        body = self._nodes.subgraph(scope + "loop.", inputs, turn)
        always = self._constant("always", np.array(True))
        outputs = [scope + "final", scope + "states"]
        self._nodes.nodes.append(
            helper.make_node("Loop", ["steps", always, uniform], outputs, scope + "loop", body=body)
        )
        return outputs[1]

    def _from_start(self, layer: str, scope: str) -> str:
        """(1, n): mean over heads of what the mark of start pays to each token, both marks within its softmax."""
        start = self._cut(layer + "q", 1, 0, 1, scope + "q")
        scale = np.float32((self._hidden // self._heads) ** -0.5)
        start = self._op("Mul", [start, self._constant("head_scale", scale)], scope + "scaled")
        products = self._op("Mul", [layer + "k", start], scope + "products")
        by_head = self._op("Reshape", [products, self._by_head()], scope + "by_head")
        logits = self._op("ReduceSum", [by_head, self._nodes.last_axis()], scope + "logits", keepdims=0)
        logits = self._op("Transpose", [logits], scope + "of_heads", perm=[0, 2, 1])
        paid = self._op("Softmax", [logits], scope + "paid")
        mean = self._op("ReduceMean", [paid, self._axes(1)], scope + "mean", keepdims=0)
        return self._cut(mean, 1, 1, -1, scope + "tokens")

    def _nothings(self) -> None:
        """Statistics of no layer, under names that `nothing` takes them from: (0, K, n), (0, n) and (0, n)."""
        none = self._constant("zero", np.zeros(1, np.int64))
        length = self._op("Shape", ["ids"], "none.length", start=1, end=2)
        between = self._op("Sub", [length, self._constant("marks", np.array([2], np.int64))], "none.between")
        count = self._op("Max", [between, none], "none.count")
        steps = self._op("Unsqueeze", ["steps", self._axes(0)], "none.steps")
        flat, deep = [none, count], [none, steps, count]
        for name, shape in zip(STATISTICS, (deep, flat, flat), strict=True):
            self._op("ConstantOfShape", [self._op("Concat", shape, f"none.{name}.shape", axis=0)], f"none.{name}")

    def _nothing(self, scope: str, *names: str) -> list[str]:
        """Some statistics of no layer."""
        return [self._op("Identity", [f"none.{name}"], scope + name) for name in names]

    def _picked(self, selector: str, index: int, name: str) -> str:
        """One layer's entry of a selector (depth,)."""
        return self._op("Gather", [selector, self._constant(f"number.{index}", np.array(index, np.int64))], name)

    def _by_head(self) -> str:
        """(1, T, hidden) -> (1, T, heads, d), as a shape."""
        return self._constant("by_head", np.array([0, 0, self._heads, -1], np.int64))
