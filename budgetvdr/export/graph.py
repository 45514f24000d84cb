"""A model in torch -> one ONNX graph a role, with every exit as an output."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import optimizer
from PIL import Image
from torch import Tensor, nn

from budgetvdr.encoders.common import exit_name
from budgetvdr.encoders.vision.slots import INPUT as SLOTS
from budgetvdr.export.errors import ExportError
from budgetvdr.export.network import Constant, Network
from budgetvdr.training.models.model import Content, Inputs, Role
from budgetvdr.training.models.vision.attention import Watch
from budgetvdr.training.models.vision.model import VisionModel

OPSET = 20
# Constants below this many bytes stay in the graph, where shape inference can read them.
_SMALLEST = 1024
# Shapes whose batches differ in every dimension that any batch can differ in.
_SHAPES = (((210, 297), (297, 210)), ((256, 256),), ((600, 90),), ((40, 56),), ((120, 480), (400, 320), (300, 424)))
_SAMPLES: Mapping[Role, tuple[tuple[Content, ...], ...]] = {
    "page": tuple(tuple(Image.new("RGB", size) for size in sizes) for sizes in _SHAPES),
    "query": (
        ("How many customers are there?", "Who signs?"),
        ("Which item was damaged on delivery, and by whom?",),
        ("a", "b c", "d e f"),
    ),
}


def attention_name(layer: int) -> str:
    """The value with the attention (B, H, L, L) of a layer, counted from 0."""
    return f"attention_{layer}"


def trace(model: VisionModel, role: Role) -> Network:
    """Outputs: every exit (B, L, D) and, of pages whose tokens' vectors are kept, the attention of every layer.

    Batch, length, picture sizes and the number of slots stay free. Raises ExportError where they cannot.
    """
    batches = [_arrays(model, contents, role, number + 2) for number, contents in enumerate(_SAMPLES[role])]
    sample = batches[0]
    layers = tuple(range(model.depths[-1])) if role == "page" and SLOTS not in sample else ()
    outputs = [*map(exit_name, model.depths), *map(attention_name, layers)]
    module = _Traced(model, tuple(sample), layers).eval()
    with torch.no_grad(), _quiet():
        try:
            program = torch.export.export(
                module, tuple(sample.values()), dynamic_shapes=(_free_dimensions(batches),), strict=False
            )
            exported = torch.onnx.export(
                program,
                (),
                input_names=list(sample),
                output_names=outputs,
                opset_version=OPSET,
                optimize=False,
                verbose=False,
            )
        except (RuntimeError, ValueError, torch.onnx.errors.OnnxExporterError) as error:
            raise ExportError(f"{model.family}: the {role} graph cannot be traced: {error}") from error
    assert exported is not None
    optimizer.optimize_ir(exported.model, should_fold=_keeps_weights)
    return _split(exported.model)


@dataclass(frozen=True, slots=True)
class _Keep(Watch):
    """Keeps the attention itself instead of measuring it."""

    kept: list[Tensor] = field(default_factory=list)

    def measure(self, attention: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        self.kept.append(attention)
        nothing = attention.new_zeros(0)
        return nothing, nothing, nothing


class _Traced(nn.Module):
    """The model with its inputs in a row, as graphs have them."""

    def __init__(self, model: VisionModel, names: Sequence[str], layers: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.names, self.layers = model, names, layers

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        watch = _Keep(self.layers, 1)
        exits, _ = self.model.run(dict(zip(self.names, arrays, strict=True)), watch if self.layers else None)
        return (*(exits[depth] for depth in self.model.depths), *watch.kept)


def _arrays(model: VisionModel, contents: Sequence[Content], role: Role, slots: int) -> dict[str, Tensor]:
    arrays = {name: tensor for name, tensor in model.prepare(contents, role).items() if name != "counts"}
    if SLOTS in arrays:
        # As many as asked: the number is to differ as well, and not to be one that tracers take for a special case.
        arrays[SLOTS] = torch.zeros(slots, arrays[SLOTS].shape[1])
    return arrays


def _free_dimensions(batches: Sequence[Mapping[str, Tensor]]) -> tuple[dict[int, Any], ...]:
    """For each input the dimensions that are not the same in all batches."""
    free = []
    for name in batches[0]:
        sizes = zip(*(batch[name].shape for batch in batches), strict=True)
        free.append({axis: torch.export.Dim.DYNAMIC for axis, found in enumerate(sizes) if len(set(found)) > 1})
    return tuple(free)


def _keeps_weights(node: ir.Node) -> bool | None:
    """A transposed copy of every weight would take the memory of the model once more."""
    return False if node.op_type == "Transpose" else None


def _split(model: ir.Model) -> Network:
    constants = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes >= _SMALLEST:
            constants[name] = Constant(tensor.numpy())
            del model.graph.initializers[name]
    proto = ir.to_proto(model)
    # What tracing noted of this machine and of shapes seen by chance.
    for field_name in ("metadata_props", "doc_string"):
        proto.ClearField(field_name)
        proto.graph.ClearField(field_name)
        for node in (*proto.graph.node, *proto.graph.input, *proto.graph.output, *proto.graph.initializer):
            node.ClearField(field_name)
    proto.graph.ClearField("value_info")
    proto.producer_name, proto.producer_version = "budgetvdr", ""
    return Network(proto, constants)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of packages it could use and of its own outdated calls."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
