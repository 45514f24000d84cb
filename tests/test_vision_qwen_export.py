"""Qwen's page models as graphs: traced on one batch of pages, right for any other."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.tiny_qwen import tiny_qwen2_5_vl, tiny_qwen3_vl

DEPTHS = (1, 2)
# Pages of different sizes, the larger of several windows.
TRACED = [(150, 260), (300, 150)]
OTHERS = [[(112, 112)], [(9, 7), (260, 60), (60, 260)], [(300, 150), (56, 56), (150, 150), (400, 28)]]


class Pages(nn.Module):
    """The model with its arrays in a row."""

    def __init__(self, model: VisionModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        exits, _ = self.model.run(dict(zip(self.names, arrays, strict=True)))
        return tuple(exits.values())


def pages(model: VisionModel, sizes: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    random = np.random.default_rng(len(sizes))
    noise = [random.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in sizes]
    inputs = model.prepare([Image.fromarray(page) for page in noise], "page")
    return {name: array for name, array in inputs.items() if name != "counts"}


def traced(model: VisionModel) -> tuple[torch.export.ExportedProgram, list[str]]:
    sample = pages(model, TRACED)
    others = [pages(model, sizes) for sizes in OTHERS]
    free = tuple(
        {
            axis: torch.export.Dim.DYNAMIC
            for axis, size in enumerate(array.shape)
            if any(other[name].shape[axis] != size for other in others)
        }
        for name, array in sample.items()
    )
    module = Pages(model, list(sample)).eval()
    with torch.no_grad():
        program = torch.export.export(module, tuple(sample.values()), dynamic_shapes=(free,), strict=False)
    return program, list(sample)


def assert_right(found: Sequence[Tensor], model: VisionModel, inputs: dict[str, Tensor]) -> None:
    with torch.no_grad():
        expected, _ = model.run(inputs)
    for ours, theirs in zip(found, expected.values(), strict=True):
        kept = inputs["attention_mask"] > 0
        torch.testing.assert_close(ours[kept], theirs[kept], rtol=0, atol=1e-5)


def test_a_program_traced_on_two_pages_takes_others(tmp_path: Path) -> None:
    tiny_qwen2_5_vl(tmp_path, layers=2)
    model = load_vision(tmp_path, depths=DEPTHS)
    program, names = traced(model)
    for sizes in OTHERS:
        inputs = pages(model, sizes)
        assert_right(program.module()(*(inputs[name] for name in names)), model, inputs)


# About 15 s of one core, which a busy machine may take minutes for.
@pytest.mark.timeout(900)
def test_a_graph_traced_on_two_pages_takes_others(tmp_path: Path) -> None:
    tiny_qwen3_vl(tmp_path, layers=2)
    model = load_vision(tmp_path, depths=DEPTHS)
    program, names = traced(model)
    with warnings.catch_warnings():
        # The exporter warns of its own use of what torch has deprecated.
        warnings.simplefilter("ignore")
        exported = torch.onnx.export(
            program,
            (),
            input_names=names,
            output_names=[f"exit_{depth}" for depth in DEPTHS],
            opset_version=20,
            dynamo=True,
            optimize=True,
            verbose=False,
        )
    assert exported is not None
    exported.save(tmp_path / "page.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "page.onnx", providers=["CPUExecutionProvider"])
    for sizes in OTHERS:
        inputs = pages(model, sizes)
        found = session.run(None, {name: array.numpy() for name, array in inputs.items()})
        assert_right([torch.from_numpy(vectors) for vectors in found], model, inputs)
