"""The reader's graphs, written node by node: BERT with an exit after chosen layers, over one weights file.

What is done to the weights, and why:

- Linear layers hold 7-bit integers, one scale per output channel. 7 bits and not 8: processors without VNNI add
  pairs of products in 16 bits, which 8-bit weights overflow; then one index would give other scores on another
  machine.
- Their inputs are quantised while running. The two feed-forward layers get one scale per token: with one scale per
  window, as the fused operator has it, a few tokens with large activations cost every other token its precision.
- Word embeddings hold 8-bit integers with one scale per word.
- The heads of trained exits stay float32: they are a fiftieth of the bytes, and nothing comes after them.
- Layer normalisation is written out in elementary operators: the fused ones are not vectorised on CPUs.

One window at a time, without padding and mask: nothing a window's vectors depend on lies outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHTS_NAME = "weights.bin"

# Page-aligned starts let the runtime map the larger tensors instead of copying them.
_ALIGNMENT = 4096
_SMALLEST = 64
_CONTRIB = "com.microsoft"
_OPSETS = (("", 20), (_CONTRIB, 1))
_WEIGHT_LIMIT = 64
_ACTIVATION_LIMIT = 127
# What a page graph tells of its attention, and the shapes: S or R layers selected, K steps, n tokens.
_STATISTICS: Mapping[str, list[str | int]] = {
    "support": ["S", "K", "n"],
    "in_degree": ["S", "n"],
    "from_start": ["R", "n"],
}

Precision = Literal["int8", "float32"]
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """What a trained exit makes of its hidden states.

    projection (D, hidden) and bias (D,). token_weight (1, hidden) and token_bias (1,): the logit of each query token's
    weight, None where queries have none.
    """

    projection: Floats
    bias: Floats
    token_weight: Floats | None = None
    token_bias: Floats | None = None


class WeightFile:
    """The one file all graphs take their tensors from; a tensor asked for twice is written once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._written: dict[str, TensorProto] = {}

    def tensor(self, name: str, values: Array) -> TensorProto:
        """An initializer that points into the file; one of a few bytes, which shape inference may read, holds them."""
        if values.nbytes < _SMALLEST:
            return numpy_helper.from_array(values, name)
        if name not in self._written:
            self._written[name] = self._write(name, np.ascontiguousarray(values))
        return self._written[name]

    def _write(self, name: str, values: Array) -> TensorProto:
        alignment = _ALIGNMENT if values.nbytes >= _ALIGNMENT else 64
        self._stream.write(bytes(-self._stream.tell() % alignment))
        tensor = TensorProto(
            name=name,
            dims=values.shape,
            data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        place = {"location": WEIGHTS_NAME, "offset": self._stream.tell(), "length": values.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._stream.write(values.tobytes())
        return tensor


@dataclass
class Graph:
    """The BERT encoder up to one depth. Methods append nodes and return the name of what they compute.

    positions: rows of the position table, the longest text there will be. heads: depth -> head, for exits that were
    trained; without one an exit gives its hidden states.
    """

    source: Mapping[str, Floats]
    weights: WeightFile
    precision: Precision
    num_heads: int
    epsilon: float
    positions: int
    heads: Mapping[int, Head] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, TensorProto] = field(default_factory=dict)

    def pages(self, depth: int, exits: Sequence[int]) -> onnx.ModelProto:
        """Input `ids` (1, T) int64; one output `exit_d` (1, T, D) float32 for every exit up to `depth`.

        Beside them, for page compression, statistics of the attention among the n = T - 2 tokens between the marks of
        start and end: `support` (S, K, n) and `in_degree` (S, n) of the S layers that `layers` (depth,) bool selects,
        after each of `steps` () int64 steps, and `from_start` (R, n) of the R layers that `starts` (depth,) bool
        selects. These inputs may be left out: no layer is selected then, and nothing computed.
        """
        # An initializer that is an input too is that input's default.
        for selector in ("layers", "starts"):
            self.constant(selector, np.zeros(depth, np.bool_))
        self.constant("steps", np.array(1, np.int64))
        self.op("Or", ["layers", "starts"], "looked_at")
        self.nothings()
        state = self.embeddings()
        outputs = []
        for layer in range(depth):
            state = self.layer(state, layer, measure=True)
            if layer + 1 in exits:
                self.op("Identity", [self.exit(state, layer + 1)], f"exit_{layer + 1}")
                outputs.append(self.exit_output(layer + 1))
        for name, shape in _STATISTICS.items():
            self.op("Concat", [f"encoder.layer.{layer}.{name}" for layer in range(depth)], name, axis=0)
            outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        inputs = [
            helper.make_tensor_value_info("layers", TensorProto.BOOL, [depth]),
            helper.make_tensor_value_info("starts", TensorProto.BOOL, [depth]),
            helper.make_tensor_value_info("steps", TensorProto.INT64, []),
        ]
        return self.model(f"reader_depth_{depth}", inputs, outputs)

    def queries(self, depth: int) -> onnx.ModelProto:
        """Input `ids` (1, T) int64, output `exit_d` (1, T, D): vectors as long as their tokens weigh; marks have none.

        The weights of the n = T - 2 tokens have mean 1, as `budgetvdr.training.models.reader` computes them.
        """
        state = self.embeddings()
        for layer in range(depth):
            state = self.layer(state, layer)
        self.op("Identity", [self.weighted(self.exit(state, depth), state, depth)], f"exit_{depth}")
        return self.model(f"reader_query_{depth}", [], [self.exit_output(depth)])

    def model(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """All nodes so far; inputs: those beside `ids`."""
        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "T"])
        graph = helper.make_graph(self.nodes, name, [ids, *inputs], list(outputs), list(self.initializers.values()))
        opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="budgetvdr")

    def exit_output(self, depth: int) -> onnx.ValueInfoProto:
        """The output of an exit."""
        head = self.heads.get(depth)
        width = self.hidden if head is None else len(head.bias)
        return helper.make_tensor_value_info(f"exit_{depth}", TensorProto.FLOAT, [1, "T", width])

    @property
    def hidden(self) -> int:
        """Components of a hidden state."""
        size: int = self.source["embeddings.LayerNorm.weight"].shape[0]
        return size

    def exit(self, state: str, depth: int) -> str:
        """(1, T, D): hidden states, projected where the exit has a head."""
        head, name = self.heads.get(depth), f"exits.{depth}.projection"
        return state if head is None else self.affine(state, name, head.projection, head.bias)

    def weighted(self, vectors: str, state: str, depth: int) -> str:
        """(1, T, D): vectors of unit length times the weights of their tokens; zeros for the marks."""
        head, name = self.heads[depth], f"exits.{depth}.weight"
        assert head.token_weight is not None and head.token_bias is not None
        logits = self.affine(self.cut(state, 1, 1, -1, name + ".tokens"), name, head.token_weight, head.token_bias)
        shares = self.op("Softmax", [logits], name + ".shares", axis=1)
        count = self.op("Cast", [self.op("Shape", [logits], name + ".shape", start=1, end=2)], name + ".count", to=1)
        own = self.cut(vectors, 1, 1, -1, name + ".vectors")
        length = self.op("ReduceL2", [own, self.last_axis()], name + ".length", keepdims=1)
        length = self.op("Max", [length, self.constant("smallest_length", np.float32(1e-12))], name + ".divisor")
        unit = self.op("Div", [own, length], name + ".unit")
        weights = self.op("Mul", [shares, count], name + ".weights")
        ends = self.constant("one_row_each_end", np.array([0, 1, 0, 0, 1, 0], np.int64))
        return self.op("Pad", [self.op("Mul", [unit, weights], name + ".weighted"), ends], name + ".padded")

    def embeddings(self) -> str:
        """(1, T, hidden): words, positions and segment, normalised."""
        prefix = "embeddings."
        words = self.source[prefix + "word_embeddings.weight"]
        if self.precision == "int8":
            scale = np.abs(words).max(axis=1, keepdims=True) / np.float32(127)
            codes = np.rint(words / scale).astype(np.int8)
            picked = self.op("Gather", [self.constant("words.codes", codes), "ids"], "words.picked")
            picked = self.op("Cast", [picked], "words.float", to=TensorProto.FLOAT)
            scales = self.op("Gather", [self.constant("words.scale", scale), "ids"], "words.picked_scale")
            embedded = self.op("Mul", [picked, scales], "words")
        else:
            embedded = self.op("Gather", [self.constant("words.table", words), "ids"], "words")
        # Every token is of the first segment, so that its embedding is a constant beside the position's.
        table = self.source[prefix + "position_embeddings.weight"][: self.positions]
        table = table + self.source[prefix + "token_type_embeddings.weight"][0]
        length = self.op("Shape", ["ids"], "length", start=1, end=2)
        start = self.constant("zero", np.zeros(1, np.int64))
        positions = self.op("Slice", [self.constant("positions.table", table), start, length], "positions")
        return self.normalised(embedded, positions, prefix + "LayerNorm")

    def layer(self, state: str, index: int, *, measure: bool = False) -> str:
        """One transformer layer: attention, then the feed-forward part, each normalised after its residual.

        measure: whether its attention is looked at where a run selects it.
        """
        prefix = f"encoder.layer.{index}."
        names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
        weight = np.concatenate([self.source[name + ".weight"] for name in names])
        bias = np.concatenate([self.source[name + ".bias"] for name in names])
        projected = self.linear(state, prefix + "qkv", weight, bias)
        parts = [f"{prefix}{part}" for part in "qkv"]
        self.nodes.append(helper.make_node("Split", [projected], parts, name=prefix + "split", axis=-1, num_outputs=3))
        if measure:
            self.attention(prefix, index)
        attended = self.op("MultiHeadAttention", parts, prefix + "attended", _CONTRIB, num_heads=self.num_heads)
        output = self.linear(attended, prefix + "attention.output.dense")
        state = self.normalised(output, state, prefix + "attention.output.LayerNorm")

        inner = self.linear(state, prefix + "intermediate.dense", per_token=True)
        inner = self.op("Gelu", [inner], prefix + "gelu", _CONTRIB)
        output = self.linear(inner, prefix + "output.dense", per_token=True)
        return self.normalised(output, state, prefix + "output.LayerNorm")

    def attention(self, prefix: str, index: int) -> None:
        """What one layer adds to each of the statistics; where nothing of it is selected, arrays for no layer."""
        looked_at = self.picked("looked_at", index, prefix + "looked_at")
        branches = {
            "then_branch": self.subgraph(prefix + "seen.", [], lambda scope: self.seen(prefix, index, scope)),
            "else_branch": self.subgraph(prefix + "unseen.", [], lambda scope: self.nothing(scope, *_STATISTICS)),
        }
        results = [prefix + name for name in _STATISTICS]
        self.nodes.append(helper.make_node("If", [looked_at], results, name=prefix + "if_looked_at", **branches))

    def seen(self, layer: str, index: int, scope: str) -> list[str]:
        """All statistics of a layer, each where it is selected."""
        *among, start = _STATISTICS

        def where(selector: str, names: Sequence[str], fill: Callable[[str], Sequence[str]]) -> list[str]:
            branches = {
                "then_branch": self.subgraph(f"{scope}{selector}.", [], fill),
                "else_branch": self.subgraph(f"{scope}no_{selector}.", [], lambda scope: self.nothing(scope, *names)),
            }
            selected = self.picked(selector, index, f"{scope}{selector}.selected")
            results = [scope + name for name in names]
            self.nodes.append(helper.make_node("If", [selected], results, name=f"{scope}if_{selector}", **branches))
            return results

        return [
            *where("layers", among, lambda scope: self.propagated(layer, scope)),
            *where("starts", [start], lambda scope: [self.from_start(layer, scope)]),
        ]

    def propagated(self, layer: str, scope: str) -> list[str]:
        """support (1, K, n) and in_degree (1, n) of one layer.

        The graph of a head is its attention among the tokens, each row divided by its sum: that is the softmax over
        the tokens alone, without the marks (AnchorFold, section 3.2). `support` is the root mean square over heads
        after 1..K steps from the uniform distribution, `in_degree` the mean over heads after the first.
        """
        parts = []
        for part in "qk":
            tokens = self.cut(layer + part, 1, 1, -1, f"{scope}{part}.tokens")
            by_head = self.op("Reshape", [tokens, self.by_head()], f"{scope}{part}.by_head")
            parts.append(self.op("Transpose", [by_head], f"{scope}{part}", perm=[0, 2, 1, 3]))
        scale = (self.hidden // self.num_heads) ** -0.5
        logits = self.op("FusedMatMul", parts, scope + "logits", _CONTRIB, transB=1, alpha=scale)
        graph = self.op("Softmax", [logits], scope + "graph")
        states = self.states(scope, graph)
        squares = self.op("Mul", [states, states], scope + "squares")
        square = self.op("ReduceMean", [squares, self.axes(1, 2, 3)], scope + "square", keepdims=0)
        support = self.op("Unsqueeze", [self.op("Sqrt", [square], scope + "root"), self.axes(0)], scope + "support")
        first = self.cut(states, 0, 0, 1, scope + "first")
        return [support, self.op("ReduceMean", [first, self.axes(1, 2, 3)], scope + "in_degree", keepdims=0)]

    def states(self, scope: str, graph: str) -> str:
        """(K, 1, heads, 1, n): where each step leads, by a loop of as many turns."""
        state, going = scope + "loop.state", scope + "loop.going"

        def turn(scope: str) -> list[str]:
            stepped = self.op("MatMul", [state, graph], scope + "stepped")
            go_on = self.op("Identity", [going], scope + "go_on")
            return [go_on, stepped, self.op("Identity", [stepped], scope + "noted")]

        count = self.op("Shape", [graph], scope + "count", start=3, end=4)
        one_row = self.constant("one_row", np.array([1, self.num_heads, 1], np.int64))
        shape = self.op("Concat", [one_row, count], scope + "shape", axis=0)
        count = self.op("Cast", [count], scope + "count.float", to=TensorProto.FLOAT)
        uniform = self.op("Expand", [self.op("Reciprocal", [count], scope + "share"), shape], scope + "uniform")
        inputs = [
            helper.make_tensor_value_info(scope + "loop.turn", TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            helper.make_tensor_value_info(state, TensorProto.FLOAT, [1, self.num_heads, 1, "n"]),
        ]
        body = self.subgraph(scope + "loop.", inputs, turn)
        always = self.constant("always", np.array(True))
        outputs = [scope + "final", scope + "states"]
        self.nodes.append(helper.make_node("Loop", ["steps", always, uniform], outputs, scope + "loop", body=body))
        return outputs[1]

    def from_start(self, layer: str, scope: str) -> str:
        """(1, n): mean over heads of what the mark of start pays to each token, both marks within its softmax."""
        start = self.cut(layer + "q", 1, 0, 1, scope + "q")
        scale = np.float32((self.hidden // self.num_heads) ** -0.5)
        start = self.op("Mul", [start, self.constant("head_scale", scale)], scope + "scaled")
        products = self.op("Mul", [layer + "k", start], scope + "products")
        by_head = self.op("Reshape", [products, self.by_head()], scope + "by_head")
        logits = self.op("ReduceSum", [by_head, self.last_axis()], scope + "logits", keepdims=0)
        logits = self.op("Transpose", [logits], scope + "of_heads", perm=[0, 2, 1])
        paid = self.op("Softmax", [logits], scope + "paid")
        mean = self.op("ReduceMean", [paid, self.axes(1)], scope + "mean", keepdims=0)
        return self.cut(mean, 1, 1, -1, scope + "tokens")

    def nothings(self) -> None:
        """Statistics of no layer, under names that `nothing` takes them from: (0, K, n), (0, n) and (0, n)."""
        none = self.constant("zero", np.zeros(1, np.int64))
        length = self.op("Shape", ["ids"], "none.length", start=1, end=2)
        between = self.op("Sub", [length, self.constant("marks", np.array([2], np.int64))], "none.between")
        count = self.op("Max", [between, none], "none.count")
        steps = self.op("Unsqueeze", ["steps", self.axes(0)], "none.steps")
        flat, deep = [none, count], [none, steps, count]
        for name, shape in zip(_STATISTICS, (deep, flat, flat), strict=True):
            self.op("ConstantOfShape", [self.op("Concat", shape, f"none.{name}.shape", axis=0)], f"none.{name}")

    def nothing(self, scope: str, *names: str) -> list[str]:
        """Some statistics of no layer."""
        return [self.op("Identity", [f"none.{name}"], scope + name) for name in names]

    def picked(self, selector: str, index: int, name: str) -> str:
        """One layer's entry of a selector (depth,)."""
        return self.op("Gather", [selector, self.constant(f"number.{index}", np.array(index, np.int64))], name)

    def by_head(self) -> str:
        """(1, T, hidden) -> (1, T, heads, d), as a shape."""
        return self.constant("by_head", np.array([0, 0, self.num_heads, -1], np.int64))

    def subgraph(
        self, scope: str, inputs: Sequence[onnx.ValueInfoProto], fill: Callable[[str], Sequence[str]]
    ) -> onnx.GraphProto:
        """A graph inside a node. fill: appends its nodes, whose names begin with scope, and returns its outputs."""
        outside, self.nodes = self.nodes, []
        outputs = [onnx.ValueInfoProto(name=name) for name in fill(scope)]
        inside, self.nodes = self.nodes, outside
        return helper.make_graph(inside, scope.rstrip("."), list(inputs), outputs)

    def cut(self, x: str, axis: int, start: int, end: int, name: str) -> str:
        """x[start:end] along an axis."""
        bounds = [self.constant(f"at.{value}", np.array([value], np.int64)) for value in (start, end)]
        return self.op("Slice", [x, *bounds, self.axes(axis)], name)

    def axes(self, *numbers: int) -> str:
        """Axes as reductions and slices take them."""
        return self.constant("axes." + ".".join(map(str, numbers)), np.array(numbers, np.int64))

    def linear(
        self, x: str, name: str, weight: Floats | None = None, bias: Floats | None = None, *, per_token: bool = False
    ) -> str:
        """x @ weight.T + bias, quantised where the graph is; per_token: a scale for every row of x, not one for all."""
        weight = self.source[name + ".weight"] if weight is None else weight
        bias = self.source[name + ".bias"] if bias is None else bias
        if self.precision == "float32":
            return self.affine(x, name, weight, bias)
        bias_name = self.constant(name + ".bias", bias)
        codes, scale = quantise_columns(weight.T)
        stored = self.constant(name + ".codes", codes), self.constant(name + ".scale", scale)
        zeros = self.constant(f"zeros.{scale.size}", np.zeros(scale.size, np.int8))
        if not per_token:
            return self.op("DynamicQuantizeMatMul", [x, *stored, zeros, bias_name], name, _CONTRIB)
        one, middle = self.constant("one", np.float32(1)), self.constant("middle", np.uint8(128))
        step = self.token_scale(x, name)
        ratio = self.op("Div", [x, step], name + ".ratio")
        quantised = self.op("QuantizeLinear", [ratio, one, middle], name + ".quantised")
        inputs = [quantised, stored[0], one, stored[1], middle, zeros]
        product = self.op("MatMulIntegerToFloat", inputs, name + ".product", _CONTRIB)
        return self.op("Add", [self.op("Mul", [product, step], name + ".scaled"), bias_name], name)

    def affine(self, x: str, name: str, weight: Floats, bias: Floats) -> str:
        """x @ weight.T + bias in float32."""
        product = self.op("MatMul", [x, self.constant(name + ".weight", weight.T)], name + ".product")
        return self.op("Add", [product, self.constant(name + ".bias", bias)], name)

    def token_scale(self, x: str, name: str) -> str:
        """(1, T, 1): the largest magnitude of each row over the largest code; never zero."""
        magnitude = self.op("Abs", [x], name + ".magnitude")
        largest = self.op("ReduceMax", [magnitude, self.last_axis()], name + ".largest", keepdims=1)
        limit = self.constant("activation_step", np.float32(1 / _ACTIVATION_LIMIT))
        step = self.op("Mul", [largest, limit], name + ".raw_step")
        return self.op("Max", [step, self.constant("smallest_step", np.float32(1e-9))], name + ".step")

    def normalised(self, x: str, residual: str, name: str) -> str:
        """Layer normalisation of x + residual."""
        size = self.source[name + ".weight"].shape[0]
        total = self.op("Add", [x, residual], name + ".sum")
        mean = self.op("ReduceMean", [total, self.last_axis()], name + ".mean", keepdims=1)
        centred = self.op("Sub", [total, mean], name + ".centred")
        squares = self.op("ReduceSumSquare", [centred, self.last_axis()], name + ".squares", keepdims=1)
        variance = self.op("Mul", [squares, self.constant("one_over_hidden", np.float32(1 / size))], name + ".variance")
        steady = self.op("Add", [variance, self.constant("epsilon", np.float32(self.epsilon))], name + ".steady")
        unit = self.op("Div", [centred, self.op("Sqrt", [steady], name + ".deviation")], name + ".unit")
        weight = self.constant(name + ".weight", self.source[name + ".weight"])
        bias = self.constant(name + ".bias", self.source[name + ".bias"])
        return self.op("Add", [self.op("Mul", [unit, weight], name + ".scaled"), bias], name)

    def last_axis(self) -> str:
        """The axis of the hidden size, as reductions take it."""
        return self.constant("last_axis", np.array([-1], np.int64))

    def constant(self, name: str, values: Array | np.generic) -> str:
        """Adds a tensor of the weights file to the graph, once."""
        if name not in self.initializers:
            self.initializers[name] = self.weights.tensor(name, np.asarray(values))
        return name

    def op(self, kind: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        """Appends one node with one output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, domain=domain, **attributes))
        return output


def quantise_columns(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Codes (in, out) within +-64 and the scale of each column (out,): code * scale is the weight."""
    widest = np.abs(weight).max(axis=0)
    scale = np.where(widest > 0, widest / _WEIGHT_LIMIT, 1).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale
