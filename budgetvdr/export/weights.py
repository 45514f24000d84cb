"""The one file that all graphs of a bundle take their tensors from, through ONNX external data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import TensorProto, helper

from budgetvdr.export.network import Array, Constant, Network

WEIGHTS_NAME = "weights.bin"
# Page-aligned starts let the runtime map a tensor instead of copying it.
_ALIGNMENT = 4096


class Place(NamedTuple):
    """Where a tensor is in the file, in bytes."""

    offset: int
    length: int


class WeightFile:
    """Appends tensors; equal ones are kept once, whatever graph they come from.

    path: made where missing; what lies behind the last of `places` is cut off. places: digest of a tensor written
    before -> where it is.
    """

    def __init__(self, path: Path, places: Mapping[str, Place] | None = None) -> None:
        self.places = {digest: Place(*place) for digest, place in (places or {}).items()}
        self._same: dict[Hashable, tuple[Constant, Place]] = {}
        path.touch()
        self._stream = path.open("r+b")
        self._end = max((place.offset + place.length for place in self.places.values()), default=0)
        self._stream.truncate(self._end)

    def flush(self) -> None:
        """Brings everything to the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Closes the file; what was not flushed may be lost."""
        self._stream.close()

    def add(self, constant: Constant) -> Place:
        """Where the tensor is from now on."""
        if constant.key not in self._same:
            # The constant is kept so that no other array takes its place in memory and passes for it.
            self._same[constant.key] = constant, self._append(constant)
        return self._same[constant.key][1]

    def _append(self, constant: Constant) -> Place:
        start = self._end + -self._end % _ALIGNMENT
        self._stream.seek(start)
        head = constant.head()
        digest = hashlib.blake2b(f"{head.dtype}{constant.shape()}".encode(), digest_size=16)
        for block in constant.blocks():
            data = _flat(block).data
            digest.update(data)
            self._stream.write(data)
        place = Place(start, self._stream.tell() - start)
        known = self.places.setdefault(digest.hexdigest(), place)
        if known == place:
            self._end = place.offset + place.length
        else:
            self._stream.truncate(self._end)
        return known


def _flat(block: Array) -> Array:
    return block.reshape(-1).view("u1")


def externalised(network: Network, weights: WeightFile, on_bytes: Callable[[int], object]) -> onnx.ModelProto:
    """The model with its constants in the file. on_bytes: called with the size of each as it is done."""
    proto = onnx.ModelProto()
    proto.CopyFrom(network.proto)
    for name, constant in network.constants.items():
        place = weights.add(constant)
        tensor = TensorProto(
            name=name,
            dims=constant.shape(),
            data_type=helper.np_dtype_to_tensor_dtype(constant.head().dtype),
            data_location=TensorProto.EXTERNAL,
        )
        values = {"location": WEIGHTS_NAME, "offset": place.offset, "length": place.length}
        for key, value in values.items():
            tensor.external_data.add(key=key, value=str(value))
        proto.graph.initializer.append(tensor)
        on_bytes(constant.source.nbytes)
    return proto


def referenced_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of the weights file that a graph takes, each tensor counted once."""
    places = set()
    for tensor in proto.graph.initializer:
        values = {entry.key: entry.value for entry in tensor.external_data}
        if values:
            places.add((int(values["offset"]), int(values["length"])))
    return sum(length for _, length in places)
