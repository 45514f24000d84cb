"""Exported bundles of every family: they compute what the model computes, and serve where there is no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import exported
import numpy as np
import onnx
import pytest
import torch
from vision_tools import MIXES, QUERIES, pictures

from budgetvdr.bundle import load_manifest, verify_files
from budgetvdr.encoders.vision.encoder import VisionEncoder
from budgetvdr.errors import BudgetVDRError
from budgetvdr.export.weights import referenced_bytes
from budgetvdr.pages import EncodedPage, Page
from budgetvdr.training.models.vision.attention import Watch
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel

DEEPEST = exported.DEPTHS[-1]

# Runs where importing torch fails, as where it is not installed.
_WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "safetensors", "onnx", "onnxscript"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import json
from importlib.resources import files
import budgetvdr

with budgetvdr.Index.open(sys.argv[1], encoder=sys.argv[2], threads=1) as index:
    report = index.add_pages(str(files("budgetvdr") / "samples"))
    hits = {
        depth: index.search("Who signs?", k=3, budget=budgetvdr.Budget(depth=depth, dim=16)) for depth in index.depths
    }
    print(json.dumps({
        "pages": report.pages, "failed": len(report.failed), "documents": len(report.files),
        "hits": {depth: [[hit.doc_id, hit.page_num, hit.score] for hit in found] for depth, found in hits.items()},
        "torch": "torch" in sys.modules,
    }))
"""


@pytest.fixture(scope="module", params=exported.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str) -> VisionModel:
    return load_vision(exported.checkpoint(family), depths=exported.DEPTHS)


def encoded(results: list[EncodedPage | BudgetVDRError]) -> list[EncodedPage]:
    pages = [result for result in results if isinstance(result, EncodedPage)]
    assert len(pages) == len(results), results
    return pages


def exact(model: VisionModel, contents: list[object], role: str) -> list[Mapping[int, np.ndarray]]:
    """For each page or query: depth -> (n, D)."""
    inputs = model.prepare(contents, role)  # type: ignore[arg-type]
    with torch.no_grad():
        exits, _ = model.run(inputs)
    counts = inputs["counts"].numpy()
    return [{depth: exits[depth][row].numpy()[kept] for depth in model.depths} for row, kept in enumerate(counts)]


@pytest.mark.parametrize("mix", MIXES)
def test_pages_of_any_size_alone_and_together_have_the_vectors_of_the_model(
    family: str, model: VisionModel, mix: str
) -> None:
    images = pictures(MIXES[mix])
    encoder = VisionEncoder(exported.bundle(family), threads=1, batch_pixels=1 << 30)
    pages = [Page(doc_id=str(number), page_num=1, image=image) for number, image in enumerate(images)]
    for page, expected in zip(
        encoded(encoder.encode_pages(pages, exported.DEPTHS)), exact(model, list(images), "page"), strict=True
    ):
        assert set(page.vectors) == set(exported.DEPTHS)
        for depth, vectors in page.vectors.items():
            np.testing.assert_allclose(vectors, expected[depth], atol=2e-5)
        assert page.regions.shape == (len(page.vectors[1]), 4)


def test_queries_of_any_length_have_the_vectors_of_the_model(family: str, model: VisionModel) -> None:
    encoder = VisionEncoder(exported.bundle(family), threads=1)
    for text in QUERIES:
        (expected,) = exact(model, [text], "query")
        for depth in exported.DEPTHS:
            query = encoder.encode_query(text, depth)
            unit = expected[depth] / np.linalg.norm(expected[depth], axis=1, keepdims=True)
            np.testing.assert_allclose(query.vectors, unit, atol=2e-5)
            assert len(query.tokens) == len(query.vectors)


def test_attention_is_measured_in_the_graph_as_in_torch(family: str, model: VisionModel) -> None:
    (image,) = pictures(["portrait"])
    encoder = VisionEncoder(exported.bundle(family), threads=1)
    support = encoder.encode_support(Page(doc_id="a", page_num=1, image=image), 3)
    inputs = model.prepare([image], "page")
    with torch.no_grad():
        exits, seen = model.run(inputs, Watch(tuple(range(DEEPEST)), 3))
    assert seen is not None
    kept = inputs["counts"][0].numpy()
    np.testing.assert_allclose(support.support, seen.support[:, :, 0].numpy()[..., kept], atol=1e-6)
    assert support.support.shape[:2] == (DEEPEST, 3)
    np.testing.assert_allclose(support.vectors[DEEPEST], exits[DEEPEST][0].numpy()[kept], atol=2e-5)


def test_the_manifest_says_what_is_trained_and_how_near_the_graphs_are(family: str) -> None:
    folder = exported.bundle(family)
    manifest = load_manifest(folder)
    verify_files(manifest, folder)
    assert (manifest.family, manifest.depths, manifest.dims) == (family, exported.DEPTHS, (8, exported.DIM))
    # The last layer of a published checkpoint is trained, an exit before it is not.
    assert manifest.trained_exits == (exported.LAYERS,)
    assert {preset.depth for preset in manifest.presets.values()} == {exported.LAYERS}
    # The page graph of a depth has every exit up to it, the query graph its own.
    rows = {(row.role, row.depth, row.exit) for row in manifest.parity}
    assert rows == {("page", 1, 1), ("page", 2, 1), ("page", 2, 2), ("query", 1, 1), ("query", 2, 2)}
    assert all(row.cosine > 0.99999 and row.lowest > 0.9999 and row.difference < 1e-4 for row in manifest.parity)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*manifest.files, "manifest.json"])


def test_a_shallow_graph_takes_fewer_weights_and_no_trace_of_where_it_was_made(family: str) -> None:
    folder = exported.bundle(family)
    sizes = {}
    for path in folder.glob("*.onnx"):
        proto = onnx.load(path, load_external_data=False)
        sizes[path.stem] = referenced_bytes(proto)
        assert str(Path(__file__).parents[1]).encode() not in path.read_bytes()
        assert all(not node.metadata_props and not node.doc_string for node in proto.graph.node)
    assert sizes["query_1"] < sizes["query_2"] < sizes["page_2"] <= (folder / "weights.bin").stat().st_size
    assert sizes["query_1"] < sizes["page_1"] < sizes["page_2"]


def test_it_indexes_the_sample_documents_and_answers_where_there_is_no_torch(family: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(tmp_path / "index.bvdr"), str(exported.bundle(family))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["documents"], result["failed"], result["torch"]) == (3, 0, False)
    assert result["pages"] >= 3
    for hits in result["hits"].values():
        assert len(hits) == 3
        assert all(np.isfinite(score) for _, _, score in hits)
    assert set(result["hits"]) == {str(depth) for depth in exported.DEPTHS}


@pytest.mark.parametrize(
    ("kind", "least", "operator"),
    [
        (("modernvbert", "int8"), 0.98, "MatMulNBits"),
        (("paligemma", "float16"), 0.999, "Cast"),
        (("modernvbert", "int4"), 0.85, "MatMulNBits"),
    ],
)
def test_the_recipe_makes_tiny_bundles_of_each_type_and_prints_the_report_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: tuple[str, str], least: float, operator: str
) -> None:
    family, dtype = kind
    arguments = ["--family", family, "--out", str(tmp_path), "--layers", "1", "--depths", "1", "--dtype", dtype]
    assert exported.recipe().main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["family"], report["dtype"], report["depths"], report["trained_exits"]) == (family, dtype, [1], [1])
    assert {(row["role"], row["exit"]) for row in report["parity"]} == {("page", 1), ("query", 1)}
    # Fewer digits are near, and not the same.
    assert all(least < row["cosine"] < 0.9999999 for row in report["parity"])
    bundle = tmp_path / "bundle"
    assert report["bytes"]["weights.bin"] == (bundle / "weights.bin").stat().st_size
    assert operator in {node.op_type for node in onnx.load(bundle / "page_1.onnx", load_external_data=False).graph.node}
    model, encoder = load_vision(tmp_path / "checkpoint"), VisionEncoder(bundle, threads=1)
    (expected,) = exact(model, [QUERIES[2]], "query")
    found = encoder.encode_query(QUERIES[2], 1).vectors
    unit = expected[1] / np.linalg.norm(expected[1], axis=1, keepdims=True)
    assert least < (found * unit).sum(axis=1).mean()
    assert np.abs(found - unit).max() > 1e-5
    assert exported.recipe().main(arguments) == 2
    assert "exists" in capsys.readouterr().err
