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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from attention_statistics import AttentionStatistics
from graph_nodes import CONTRIB, Nodes
from onnx import TensorProto, helper

_OPSETS = (("", 20), (CONTRIB, 1))
_WEIGHT_LIMIT = 64
_ACTIVATION_LIMIT = 127

Precision = Literal["int8", "float32"]
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

    @property
    def is_identity(self) -> bool:
        """Whether it gives the hidden states as they are, so that a graph needs no product for it."""
        rows, columns = self.projection.shape
        plain = rows == columns and np.array_equal(self.projection, np.eye(rows)) and not self.bias.any()
        return plain and self.token_weight is None


@dataclass
class Graph(Nodes):
    """The BERT encoder up to one depth. Methods append nodes and return the name of what they compute.

    positions: rows of the position table, the longest text there will be. heads: depth -> head, for exits that were
    trained; without one an exit gives its hidden states.
    """

    source: Mapping[str, Floats]
    precision: Precision
    num_heads: int
    epsilon: float
    positions: int
    heads: Mapping[int, Head] = field(default_factory=dict)

    def pages(self, depth: int, exits: Sequence[int]) -> onnx.ModelProto:
        """Input `ids` (1, T) int64; one output `exit_d` (1, T, D) float32 for every exit up to `depth`.

        Beside them, for page compression, the outputs and inputs of `AttentionStatistics`.
        """
        statistics = AttentionStatistics(self, depth, heads=self.num_heads, hidden=self.hidden)
        state = self.embeddings()
        outputs = []
        for layer in range(depth):
            state = self.layer(state, layer, statistics)
            if layer + 1 in exits:
                self.op("Identity", [self.exit(state, layer + 1)], f"exit_{layer + 1}")
                outputs.append(self.exit_output(layer + 1))
        outputs += statistics.outputs()
        return self.model(f"reader_depth_{depth}", statistics.inputs(), outputs)

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
            codes, scale = quantise_rows(words)
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

    def layer(self, state: str, index: int, statistics: AttentionStatistics | None = None) -> str:
        """One transformer layer: attention, then the feed-forward part, each normalised after its residual.

        statistics: those of its attention are added, to be computed where a run selects it.
        """
        prefix = f"encoder.layer.{index}."
        names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
        weight = np.concatenate([self.source[name + ".weight"] for name in names])
        bias = np.concatenate([self.source[name + ".bias"] for name in names])
        projected = self.linear(state, prefix + "qkv", weight, bias)
        parts = [f"{prefix}{part}" for part in "qkv"]
        self.nodes.append(helper.make_node("Split", [projected], parts, name=prefix + "split", axis=-1, num_outputs=3))
        if statistics is not None:
            statistics.measure(prefix, index)
        attended = self.op("MultiHeadAttention", parts, prefix + "attended", CONTRIB, num_heads=self.num_heads)
        output = self.linear(attended, prefix + "attention.output.dense")
        state = self.normalised(output, state, prefix + "attention.output.LayerNorm")

        inner = self.linear(state, prefix + "intermediate.dense", per_token=True)
        inner = self.op("Gelu", [inner], prefix + "gelu", CONTRIB)
        output = self.linear(inner, prefix + "output.dense", per_token=True)
        return self.normalised(output, state, prefix + "output.LayerNorm")

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
            return self.op("DynamicQuantizeMatMul", [x, *stored, zeros, bias_name], name, CONTRIB)
        one, middle = self.constant("one", np.float32(1)), self.constant("middle", np.uint8(128))
        step = self.token_scale(x, name)
        ratio = self.op("Div", [x, step], name + ".ratio")
        quantised = self.op("QuantizeLinear", [ratio, one, middle], name + ".quantised")
        inputs = [quantised, stored[0], one, stored[1], middle, zeros]
        product = self.op("MatMulIntegerToFloat", inputs, name + ".product", CONTRIB)
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


def quantise_rows(table: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Codes (n, width) within +-127 and the scale of each row (n, 1): code * scale is the table."""
    widest = np.abs(table).max(axis=1, keepdims=True)
    scale = np.where(widest > 0, widest / np.float32(127), 1).astype(np.float32)
    return np.rint(table / scale).astype(np.int8), scale


def quantise_columns(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Codes (in, out) within +-64 and the scale of each column (out,): code * scale is the weight."""
    widest = np.abs(weight).max(axis=0)
    scale = np.where(widest > 0, widest / _WEIGHT_LIMIT, 1).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale
