"""Models trained here: every exit with its own head, and the query depths and widths they were trained for."""

from __future__ import annotations

from pathlib import Path

import exported
import numpy as np
import pytest
import torch
from vision_tools import QUERIES

from budgetvdr.bundle import Preset, load_manifest
from budgetvdr.encoders.open import open_encoder
from budgetvdr.export.checkpoints import plan
from budgetvdr.export.errors import ExportError
from budgetvdr.export.pipeline import Wanted, export_bundle
from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.save import save_vision


@pytest.fixture(scope="module")
def trained() -> VisionModel:
    model = load_vision(exported.checkpoint("paligemma"), depths=(1, 2))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.heads().parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def folder(trained: VisionModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("elastic") / "checkpoint"
    objective = Objective(depths=(1, 2), dims=(4, 16), cross_depth=0.5)
    save_vision(trained, objective, made, name="elastic paligemma", steps=3)
    return made


def test_the_bundle_has_what_was_trained_and_computes_it(trained: VisionModel, folder: Path, tmp_path: Path) -> None:
    export_bundle(plan(str(folder)), tmp_path / "bundle", Wanted(), lambda line: None)
    manifest = load_manifest(tmp_path / "bundle")
    assert manifest.name == "elastic paligemma (float32)"
    assert (manifest.depths, manifest.trained_exits, manifest.dims) == ((1, 2), (1, 2), (4, 16))
    assert dict(manifest.query_depths) == dict(trained_query_depths(folder))
    assert manifest.presets["fast"] == Preset(1, 4) and manifest.presets["full"] == Preset(2, 16)
    encoder = open_encoder(tmp_path / "bundle", threads=1)
    inputs = trained.prepare([QUERIES[0]], "query")
    with torch.no_grad():
        exits, _ = trained.run(inputs)
    for depth in (1, 2):
        exact = exits[depth][0].numpy()
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
        np.testing.assert_allclose(encoder.encode_query(QUERIES[0], depth).vectors, exact, atol=2e-5)


def trained_query_depths(folder: Path) -> dict[int, tuple[int, ...]]:
    found = dict(load_vision(folder).query_depths)
    # Pages of the deepest exit are searched by shallower queries too.
    assert found[2] == (1, 2)
    return found


def test_an_exit_that_was_not_trained_is_refused(folder: Path, tmp_path: Path) -> None:
    save = tmp_path / "bundle"
    with pytest.raises(CheckpointError, match="trained for depths"):
        export_bundle(plan(str(folder), (1, 3)), save, Wanted(), lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_vectors_may_end_at_a_narrower_width(trained: VisionModel, folder: Path, tmp_path: Path) -> None:
    narrow = plan(str(folder), (1,), (2, 4))
    model = narrow.load()
    inputs = model.prepare([QUERIES[1]], "query")
    with torch.no_grad():
        (found,), (exact,) = model.run(inputs)[0].values(), [trained.run(inputs)[0][1]]
    torch.testing.assert_close(found, exact[..., :4])
    export_bundle(narrow, tmp_path / "bundle", Wanted(), lambda line: None)
    manifest = load_manifest(tmp_path / "bundle")
    assert (manifest.depths, manifest.dims) == ((1,), (2, 4))
    assert set(manifest.presets.values()) == {Preset(1, 4), Preset(1, 2)}
    query = open_encoder(tmp_path / "bundle", threads=1).encode_query(QUERIES[1], 1)
    assert query.vectors.shape[1] == 4


def test_a_width_beyond_the_models_is_refused(folder: Path) -> None:
    with pytest.raises(ExportError, match="have 16 components"):
        plan(str(folder), (1,), (64,)).load()
