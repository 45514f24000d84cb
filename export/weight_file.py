"""The one file that holds the tensors of all graphs of a bundle."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

WEIGHTS_NAME = "weights.bin"

# Page-aligned starts let the runtime map the larger tensors instead of copying them.
_ALIGNMENT = 4096
_SMALLEST = 64

Array = npt.NDArray[Any]


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
