"""What a graph's file declares, against the onnx library; and bundles whose manifest says something else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from conftest import MakePdf
from onnx import TensorProto, helper

from budgetvdr.bundle import MANIFEST_NAME
from budgetvdr.encoders.graph_file import declared
from budgetvdr.encoders.open import bundled_folder
from budgetvdr.errors import BundleError, IndexMismatchError
from budgetvdr.index import Index


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_folder(), tmp_path / "bundle"))


def edit(bundle: Path, **values: Any) -> None:
    path = bundle / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def presets(depth: int, dim: int) -> dict[str, dict[str, int]]:
    return {name: {"depth": depth, "dim": dim} for name in ("full", "balanced", "fast")}


@pytest.mark.parametrize("path", sorted(bundled_folder().glob("*.onnx")), ids=lambda path: path.name)
def test_it_reads_what_the_onnx_library_reads(path: Path) -> None:
    graph = onnx.load(path, load_external_data=False).graph
    found = declared(path)
    assert found.inputs == {given.name for given in graph.input}
    widths = {given.name: given.type.tensor_type.shape.dim[-1].dim_value or None for given in graph.output}
    assert found.outputs == widths and 384 in widths.values() and None in widths.values()


def test_shapes_may_be_missing_or_empty(tmp_path: Path) -> None:
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("none", None), ("empty", []), ("large", ["n", 70_000]), ("varies", [3, "n"]))
    ]
    nodes = [helper.make_node("Identity", ["x"], [given.name]) for given in outputs]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)], outputs)
    onnx.save(helper.make_model(graph), tmp_path / "graph.onnx")
    found = declared(tmp_path / "graph.onnx")
    assert found.inputs == {"x"}
    assert found.outputs == {"none": None, "empty": None, "large": 70_000, "varies": None}


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-7], lambda data: b"not a graph" * 9])
def test_what_is_no_graph_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(damage((bundled_folder() / "depth_2.onnx").read_bytes()))
    with pytest.raises(BundleError, match=r"graph\.onnx is not a readable graph"):
        declared(path)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"dims": [8, 16], "presets": presets(6, 16)}, "give 16 components after layer 2; found 384"),
        ({"page_graphs": {"2": "depth_2.onnx", "4": "depth_2.onnx", "6": "depth_6.onnx"}}, "layer 4; found no such"),
        ({"query_graphs": {"2": "depth_2.onnx", "4": "depth_6.onnx", "6": "depth_6.onnx"}}, "after layer 6"),
    ],
)
def test_a_bundle_whose_graphs_are_others_leaves_no_index_behind(
    bundle: Path, tmp_path: Path, values: dict[str, Any], says: str
) -> None:
    edit(bundle, **values)
    with pytest.raises(BundleError, match=says):
        Index.open(tmp_path / "index.bvdr", encoder=bundle)
    assert not (tmp_path / "index.bvdr").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"depths": [4, 6], "trained_exits": [6], "compression": {}, "query_depths": {}, **{
            f"{role}_graphs": {"4": "depth_4.onnx", "6": "depth_6.onnx"} for role in ("page", "query")
        }},
        {"dims": [64, 128, 384], "presets": presets(6, 64)},
    ],
    ids=["depth", "width"],
)  # fmt: skip
def test_an_index_is_not_opened_with_a_bundle_that_lost_a_depth_or_width_of_it(
    bundle: Path, tmp_path: Path, make_pdf: MakePdf, values: dict[str, Any]
) -> None:
    path = tmp_path / "index.bvdr"
    with Index.open(path, encoder=bundle) as index:
        index.add_pages(make_pdf("one.pdf", "capital spending"), show_progress_bar=False)
    before = (bundle / MANIFEST_NAME).read_text()
    edit(bundle, **values)
    with pytest.raises(IndexMismatchError, match=r"was made with depths \[2, 4, 6\].*now names.*bundle as it was"):
        Index.open(path, encoder=bundle)
    (bundle / MANIFEST_NAME).write_text(before)
    with Index.open(path, encoder=bundle) as index:
        assert index.search("capital", budget="fast")
