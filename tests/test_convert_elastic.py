"""Bundles of trained checkpoints compute what the trained model computes, and promise what it was trained for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_bert
import torch
from safetensors.numpy import load_file, save_file
from training_tools import OBJECTIVE, tiny_reader, write_source

from budgetvdr.bundle import Manifest, Preset, load_manifest, verify_files
from budgetvdr.encoders.reader import ReaderEncoder
from budgetvdr.pages import EncodedPage, Page, Vectors, Words
from budgetvdr.training.checkpoint import load_checkpoint, save_checkpoint
from budgetvdr.training.models.heads import start_heads
from budgetvdr.training.models.model import Role
from budgetvdr.training.models.reader import load_published

TEXTS = ("fish swim in cold water", "the board signs off all capital spending above a limit", "page")


@pytest.fixture(scope="module", params=[False, True], ids=["unit queries", "weighted queries"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    model = tiny_reader(token_weights=request.param)
    with torch.no_grad():
        for values in model.heads().parameters():
            values.add_(0.3 * torch.randn(values.shape, generator=torch.Generator().manual_seed(values.numel())))
    save_checkpoint(model, OBJECTIVE, folder / "saved", source=write_source(folder / "source"), name="tiny", steps=6)
    return folder / "saved"


def convert(checkpoint: Path, out: Path, *options: str) -> Path:
    tiny_bert.converter().main(["--weights", str(checkpoint), "--out", str(out), *options])
    return out


def exact_vectors(checkpoint: Path, role: Role) -> dict[int, list[Vectors]]:
    """depth -> (n, D) of every text, by torch, one text at a time."""
    model = load_checkpoint(checkpoint)
    found: dict[int, list[Vectors]] = {depth: [] for depth in model.depths}
    with torch.no_grad():
        for text in TEXTS:
            states = model(model.prepare([text], role), role)
            for depth, state in states.exits.items():
                found[depth].append(state[0][states.mask[0]].numpy())
    return found


def bundle_vectors(bundle: Path, role: Role) -> dict[int, list[Vectors]]:
    """The same by the runtime."""
    encoder = ReaderEncoder(bundle, threads=1)
    depths = encoder.manifest.depths
    if role == "query":
        return {depth: [encoder.encode_query(text, depth).vectors for text in TEXTS] for depth in depths}
    pages = [Page("doc", number, words=words_of(text)) for number, text in enumerate(TEXTS, start=1)]
    results = [result for result in encoder.encode_pages(pages, depths) if isinstance(result, EncodedPage)]
    return {depth: [result.vectors[depth] for result in results] for depth in depths}


def words_of(text: str) -> Words:
    texts = tuple(text.split())
    edges = np.arange(len(texts), dtype=np.float32) / len(texts)
    boxes = np.stack([edges, np.zeros_like(edges), edges + 0.01, np.ones_like(edges)], axis=1)
    return Words(texts, boxes)


def unit(rows: Vectors) -> Vectors:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("role", ["page", "query"])
def test_float_graphs_equal_the_trained_model(checkpoint: Path, tmp_path: Path, role: Role) -> None:
    bundle = convert(checkpoint, tmp_path / "exact", "--precision", "float32")
    exact, found = exact_vectors(checkpoint, role), bundle_vectors(bundle, role)
    unit_queries = load_manifest(bundle).unit_queries
    assert list(found) == list(exact) == [1, 3]
    for depth, texts in exact.items():
        for expected, vectors in zip(texts, found[depth], strict=True):
            assert vectors.shape == expected.shape and vectors.shape[1] == 16
            np.testing.assert_allclose(unit(vectors), unit(expected), atol=1e-4)
            if role == "page" or not unit_queries:
                # Pages as the head gives them, queries as long as their tokens weigh.
                np.testing.assert_allclose(vectors, expected, atol=1e-4)
            else:
                np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_weights_have_mean_one_and_are_not_all_alike(checkpoint: Path, tmp_path: Path) -> None:
    vectors = bundle_vectors(convert(checkpoint, tmp_path / "small"), "query")
    lengths = [np.linalg.norm(rows, axis=1) for texts in vectors.values() for rows in texts]
    np.testing.assert_allclose([length.mean() for length in lengths], 1, atol=1e-5)
    weighted = not load_manifest(tmp_path / "small").unit_queries
    assert any(np.ptp(length) > 0.1 for length in lengths) == weighted


@pytest.mark.parametrize("role", ["page", "query"])
def test_integers_keep_the_directions(checkpoint: Path, tmp_path: Path, role: Role) -> None:
    exact, found = exact_vectors(checkpoint, role), bundle_vectors(convert(checkpoint, tmp_path / "small"), role)
    for depth, texts in exact.items():
        for expected, vectors in zip(texts, found[depth], strict=True):
            assert (unit(vectors) * unit(expected)).sum(axis=1).min() > 0.98


def test_the_manifest_promises_what_was_trained(checkpoint: Path, tmp_path: Path) -> None:
    bundle = convert(checkpoint, tmp_path / "small")
    manifest = load_manifest(bundle)
    verify_files(manifest, bundle)
    assert (manifest.name, manifest.depths, manifest.dims) == ("tiny (int8)", (1, 3), (4, 16))
    assert manifest.trained_exits == (1, 3)
    assert manifest.query_depths == {1: (1,), 3: (1, 3)}
    assert (manifest.max_tokens, manifest.max_query_tokens) == (32, 256)
    assert {name: (p.depth, p.dim) for name, p in manifest.presets.items()} == {
        "full": (3, 16),
        "balanced": (3, 16),
        "fast": (3, 4),
    }
    raw = json.loads((checkpoint / "elastic.json").read_text())
    assert manifest.unit_queries is raw["unit_queries"]
    # Queries that carry weights have graphs of their own, which share the transformer.
    assert (manifest.query_graphs == manifest.page_graphs) is manifest.unit_queries
    assert set(manifest.files) == {path.name for path in bundle.iterdir()} - {"manifest.json"}


def test_exits_and_widths_can_be_chosen(checkpoint: Path, tmp_path: Path) -> None:
    manifest = load_manifest(convert(checkpoint, tmp_path / "shallow", "--depths", "1", "--dims", "16,8"))
    assert (manifest.depths, manifest.dims, manifest.trained_exits) == ((1,), (8, 16), (1,))
    assert manifest.query_depths == {1: (1,)}
    manifest = load_manifest(convert(checkpoint, tmp_path / "deep", "--depths", "3"))
    assert manifest.query_depths == {3: (3,)}
    with pytest.raises(SystemExit, match=r"expected 2\.projection\.weight"):
        convert(checkpoint, tmp_path / "none", "--depths", "1,2,3")
    with pytest.raises(SystemExit, match="heads 16 components wide"):
        convert(checkpoint, tmp_path / "none", "--dims", "4,8")
    with pytest.raises(SystemExit):
        convert(checkpoint, tmp_path / "none", "--depths", "0,3")
    assert not (tmp_path / "none").exists()


def test_a_bundle_is_replaced_whole(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = convert(checkpoint, tmp_path / "bundle")
    made = {path.name for path in bundle.iterdir()}
    for name in ("LICENSE", "README.md", "calibration.json", "query_9.onnx"):
        (bundle / name).write_text(name)
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}

    def fail(manifest: object) -> str:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(Manifest, "to_json", fail)
        convert(checkpoint, bundle, "--max-tokens", "64")
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    convert(checkpoint, bundle, "--max-tokens", "64")
    assert load_manifest(bundle).max_tokens == 64
    # What people wrote stays; what the old graphs had, and its calibration, goes.
    assert {path.name for path in bundle.iterdir()} == made | {"LICENSE", "README.md"}
    assert (bundle / "LICENSE").read_text() == "LICENSE"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    # Stopped between the two renames, the old one is taken up again.
    bundle.rename(tmp_path / "bundle.old")
    convert(checkpoint, bundle)
    assert (bundle / "README.md").is_file()
    (bundle / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit, match=r"holds notes\.txt"):
        convert(checkpoint, bundle)
    assert (bundle / "notes.txt").is_file()


def test_an_exit_that_keeps_its_hidden_states_has_no_product_for_it(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    model = load_published(source, depths=(1, 3), dim=tiny_bert.HIDDEN, max_tokens=32)
    start_heads(model, list(TEXTS))
    objective = replace(OBJECTIVE, dims=(8, tiny_bert.HIDDEN))
    save_checkpoint(model, objective, tmp_path / "saved", source=source, name="tiny", steps=0)
    bundle = convert(tmp_path / "saved", tmp_path / "bundle")
    graph = onnx.load(str(bundle / "depth_3.onnx"), load_external_data=False).graph
    names = {name for node in graph.node for name in node.input}
    assert any(name.startswith("exits.1.projection") for name in names)
    assert not any(name.startswith("exits.3.projection") for name in names)
    exact = exact_vectors(tmp_path / "saved", "page")[3]
    for found, expected in zip(bundle_vectors(bundle, "page")[3], exact, strict=True):
        assert found.shape == expected.shape
        assert float((unit(found) * unit(expected)).sum(axis=1).min()) > 0.98


def test_named_points_are_widths_of_the_deepest_exit() -> None:
    recipe = tiny_bert.converter()
    promise = recipe.Promise(name="", depths=(2, 4, 6), dims=(32, 64, 128, 256, 384), trained_exits=(2, 4, 6))
    assert promise.presets == {"full": Preset(6, 384), "balanced": Preset(6, 128), "fast": Preset(6, 64)}
    narrow = replace(promise, depths=(2,), dims=(16, 32))
    assert narrow.presets == {"full": Preset(2, 32), "balanced": Preset(2, 32), "fast": Preset(2, 16)}


def test_longer_windows_can_be_asked_for(checkpoint: Path, tmp_path: Path) -> None:
    short, long = convert(checkpoint, tmp_path / "short"), convert(checkpoint, tmp_path / "long", "--max-tokens", "64")
    assert load_manifest(long).max_tokens == 64
    assert load_manifest(long).fingerprint != load_manifest(short).fingerprint
    for length in ("2", "257"):
        with pytest.raises(SystemExit, match="expected 3 to 256"):
            convert(checkpoint, tmp_path / "none", "--max-tokens", length)


def test_a_checkpoint_that_is_not_what_it_says_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    manifest = checkpoint / "elastic.json"
    raw = json.loads(manifest.read_text())

    def edited(**changes: object) -> Path:
        folder = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for file in checkpoint.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / manifest.name).write_text(json.dumps(raw | changes))
        return folder

    with pytest.raises(SystemExit, match="expected a reader of format 1 or older, found 'reader' of format 2"):
        convert(edited(format_version=2), tmp_path / "out")
    with pytest.raises(SystemExit, match="found 'paligemma' of format 1"):
        convert(edited(family="paligemma"), tmp_path / "out")
    damaged = edited()
    (damaged / "model.safetensors").write_bytes(b"?")
    with pytest.raises(SystemExit, match=r"model\.safetensors is missing or damaged"):
        convert(damaged, tmp_path / "out")
    headless = edited(files={})
    heads = load_file(headless / "heads.safetensors")
    del heads["3.projection.bias"]
    save_file(heads, headless / "heads.safetensors")
    with pytest.raises(SystemExit, match=r"expected 3\.projection\.weight, 3\.projection\.bias"):
        convert(headless, tmp_path / "out")
    with pytest.raises(SystemExit, match="8 components wide"):
        convert(edited(dims=[4, 8]), tmp_path / "out")
    unreadable = edited()
    (unreadable / manifest.name).write_text("{")
    with pytest.raises(SystemExit, match="not a readable manifest"):
        convert(unreadable, tmp_path / "out")
    for missing in ("depths", "query_depths", "unit_queries", "files"):
        (unreadable / manifest.name).write_text(json.dumps({key: raw[key] for key in raw if key != missing}))
        with pytest.raises(SystemExit, match=f"not a readable manifest .*{missing}"):
            convert(unreadable, tmp_path / "out")
    # What a bundle cannot promise is found out before it takes the place of another.
    with pytest.raises(SystemExit, match="query_depths of page depth 3"):
        convert(edited(query_depths={"1": [1], "3": [1]}), tmp_path / "out")
    if raw["unit_queries"]:
        with pytest.raises(SystemExit, match=r"1\.weight\.weight"):
            convert(edited(unit_queries=False), tmp_path / "out")
    assert not (tmp_path / "out").exists()
