"""What a graph takes and gives, read from its ONNX file: a session of a large one takes seconds and gigabytes.

Only the path from the model to the names and shapes is followed through the protobuf messages (onnx.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from budgetvdr.errors import BundleError

_GRAPH, _INPUT, _OUTPUT = 7, 11, 12
_NAME: Final = 1
# ValueInfoProto.type, TypeProto.tensor_type, its shape, the shape's dimensions.
_SHAPE: Final = (2, 1, 2)
_DIM, _DIM_VALUE = 1, 1
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Declared:
    """inputs: names. outputs: name -> size of the last dimension, None where it varies or is not said."""

    inputs: frozenset[str]
    outputs: Mapping[str, int | None]


def declared(path: Path) -> Declared:
    """What the file says. Raises BundleError where it is no ONNX graph."""
    try:
        graphs = list(_messages(memoryview(path.read_bytes()), _GRAPH))
        if len(graphs) != 1:
            raise ValueError(f"expected one graph, found {len(graphs)}")
        graph = graphs[0]
        inputs = frozenset(_name(given) for given in _messages(graph, _INPUT))
        return Declared(inputs, {_name(given): _width(given) for given in _messages(graph, _OUTPUT)})
    except (OSError, ValueError, IndexError) as error:
        raise BundleError(f"{path} is not a readable graph ({error}); install or export the bundle again") from error


def _name(given: memoryview) -> str:
    (name,) = _messages(given, _NAME)
    return bytes(name).decode()


def _width(given: memoryview) -> int | None:
    message = given
    for number in _SHAPE:
        found = list(_messages(message, number))
        if not found:
            return None
        message = found[-1]
    dimensions = list(_messages(message, _DIM))
    values = [value for number, value in _fields(dimensions[-1]) if number == _DIM_VALUE] if dimensions else []
    return values[-1] if values and isinstance(values[-1], int) else None


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    return (value for number, value in _fields(data) if number == wanted and isinstance(value, memoryview))


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Number and value of every field, those of fixed width left out."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind, 0)
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind == _BYTES:
            size, at = _varint(data, at)
            yield key >> 3, data[at : at + size]
        elif not size:
            raise ValueError(f"no field of a message has type {kind}")
        at += size
    if at != len(data):
        raise ValueError("it ends within a message")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
