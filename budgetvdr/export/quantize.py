"""Smaller weights: what `--dtype` makes of the linear layers and word embeddings of a network.

float16: products of half floats; between them states stay float32, whose range large models need.
int8, int4: weights in blocks along the inputs of a layer, each with a scale of its own and, for int4, a zero point.
    onnxruntime multiplies them as whole numbers and quantises the inputs block by block, so that neither a neighbour in
    the batch nor one large activation takes the precision from the others. Word embeddings have 8 bits and a scale a
    word.

The heads and what is no linear layer stay float32 in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from budgetvdr.export.linears import Linear, Lookup, find_linears, find_lookups, replaced, settled
from budgetvdr.export.network import Array, Constant, Network

Dtype = Literal["float32", "float16", "int8", "int4"]

_CONTRIB = "com.microsoft"
_BITS = {"int8": 8, "int4": 4}
_BLOCK = {8: 128, 4: 32}
# Integers in the products too; 0 would only store them.
_WHOLE_NUMBERS = 4
_IDS = "input_ids"

_Changed = tuple[list[onnx.NodeProto], dict[str, Constant]]


def converted(network: Network, dtype: Dtype, exits: Sequence[str]) -> Network:
    """The network with weights of another type. exits: its outputs with vectors."""
    if dtype == "float32":
        return settled(network)
    substitutes: dict[str, list[onnx.NodeProto]] = {}
    constants: dict[str, Constant] = {}
    for linear in find_linears(network, exits):
        if not linear.head:
            nodes, added = _half_linear(linear) if dtype == "float16" else _block_linear(linear, _BITS[dtype])
            substitutes[linear.output] = [*nodes, *_biased(linear)]
            constants |= added
    for lookup in find_lookups(network, _IDS):
        substitutes[lookup.output], added = _half_lookup(lookup) if dtype == "float16" else _byte_lookup(lookup)
        constants |= added
    changed = settled(replaced(network, substitutes, constants))
    if all(opset.domain != _CONTRIB for opset in changed.proto.opset_import):
        changed.proto.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
    return changed


def half(rows: Array) -> Array:
    """float16."""
    return np.ascontiguousarray(rows, dtype=np.float16)


def byte_scales(rows: Array) -> Array:
    """(n, width) -> (n, 1): the step that the largest value of a row takes 127 of."""
    return _nonzero(np.abs(rows).max(axis=1, keepdims=True) / 127)


def byte_codes(rows: Array) -> Array:
    """(n, width) int8, -127 to 127: times the row's scale it is the row."""
    return np.rint(rows / byte_scales(rows)).astype(np.int8)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of a weight (n, in) in blocks of `size` inputs, as the operator MatMulNBits takes them.

    8 bits: codes around 128, the largest magnitude at 127 steps from it. 4 bits: from the smallest value or 0, at code
    0, to the largest, at 15; `zeros` says which code is 0.
    """

    bits: int
    size: int
    part: Literal["codes", "scales", "zeros"]

    def __call__(self, rows: Array) -> Array:
        """codes: (n, blocks, size * bits / 8) uint8. scales: (n * blocks,) float32. zeros: (n * half the blocks)."""
        blocks = np.pad(rows, ((0, 0), (0, -rows.shape[1] % self.size))).reshape(len(rows), -1, self.size)
        if self.bits == 8:
            scale = _nonzero(np.abs(blocks).max(axis=2) / 127)
            zero = np.full_like(scale, 128)
        else:
            low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
            scale = _nonzero((high - low) / 15)
            zero = np.rint(-low / scale)
        if self.part == "scales":
            return scale.reshape(-1)
        if self.part == "zeros":
            return _pairs(zero.astype(np.uint8)).reshape(-1)
        codes = np.clip(np.rint(blocks / scale[..., None]) + zero[..., None], 0, 2**self.bits - 1).astype(np.uint8)
        return codes if self.bits == 8 else _pairs(codes)


def _nonzero(scale: Array) -> Array:
    return np.where(scale > 0, scale, 1).astype(np.float32)


def _pairs(codes: Array) -> Array:
    """Two 4-bit codes a byte along the last axis, the first in the lower half."""
    odd = codes.shape[-1] % 2
    even = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, odd)])
    packed: Array = even[..., 0::2] | (even[..., 1::2] << 4)
    return packed


def _half_linear(linear: Linear) -> _Changed:
    result, stored = _result(linear), f"{linear.output}.half"
    nodes = [
        helper.make_node("Cast", [linear.x], [f"{result}.x"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", [f"{result}.x", stored], [f"{result}.product"]),
        helper.make_node("Cast", [f"{result}.product"], [result], to=TensorProto.FLOAT),
    ]
    return nodes, {stored: Constant(linear.weight.T, half)}


def _block_linear(linear: Linear, bits: int) -> _Changed:
    outputs, inputs = linear.weight.shape
    # A block is a power of two from 16 on; narrow layers take one block.
    size = min(_BLOCK[bits], max(16, 1 << (inputs - 1).bit_length()))
    parts: tuple[Literal["codes", "scales", "zeros"], ...] = ("codes", "scales", "zeros")
    # The zero of 8 bits is the operator's own.
    constants = {
        f"{linear.output}.{part}": Constant(linear.weight, Blocks(bits, size, part))
        for part in parts[: 2 if bits == 8 else 3]
    }
    attributes = {"K": inputs, "N": outputs, "bits": bits, "block_size": size, "accuracy_level": _WHOLE_NUMBERS}
    node = helper.make_node("MatMulNBits", [linear.x, *constants], [_result(linear)], domain=_CONTRIB, **attributes)
    return [node], constants


def _result(linear: Linear) -> str:
    return linear.output if linear.bias is None else f"{linear.output}.unbiased"


def _biased(linear: Linear) -> list[onnx.NodeProto]:
    if linear.bias is None:
        return []
    return [helper.make_node("Add", [_result(linear), linear.bias], [linear.output])]


def _half_lookup(lookup: Lookup) -> _Changed:
    name = lookup.output
    nodes = [
        helper.make_node("Gather", [f"{name}.half", lookup.ids], [f"{name}.picked"]),
        helper.make_node("Cast", [f"{name}.picked"], [name], to=TensorProto.FLOAT),
    ]
    return nodes, {f"{name}.half": Constant(lookup.table, half)}


def _byte_lookup(lookup: Lookup) -> _Changed:
    name = lookup.output
    nodes = [
        helper.make_node("Gather", [f"{name}.codes", lookup.ids], [f"{name}.picked"]),
        helper.make_node("Cast", [f"{name}.picked"], [f"{name}.whole"], to=TensorProto.FLOAT),
        helper.make_node("Gather", [f"{name}.scales", lookup.ids], [f"{name}.scale"]),
        helper.make_node("Mul", [f"{name}.whole", f"{name}.scale"], [name]),
    ]
    constants = {
        f"{name}.codes": Constant(lookup.table, byte_codes),
        f"{name}.scales": Constant(lookup.table, byte_scales),
    }
    return nodes, constants
