"""Elastic checkpoints: what is saved comes back, and what they do not hold is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_bert
import torch
from PIL import Image
from training_tools import OBJECTIVE, SETTINGS, tiny_reader, tiny_task, write_source

from budgetvdr.encoders.onnx import Sessions
from budgetvdr.training import checkpoint
from budgetvdr.training.checkpoint import load_checkpoint, load_manifest, save_checkpoint
from budgetvdr.training.errors import CheckpointError, TrainingDataError, TrainingError
from budgetvdr.training.loop import train
from budgetvdr.training.lora import Lora, add_lora
from budgetvdr.training.models.reader import ReaderModel, load_published, read_shape

TEXTS = ["fish swim in cold water", "the board signs off all capital spending above a limit", "page"]


def save(tmp_path: Path, model: ReaderModel, name: str = "saved") -> Path:
    source = write_source(tmp_path / "source")
    save_checkpoint(model, OBJECTIVE, tmp_path / name, source=source, name="tiny", steps=6)
    return tmp_path / name


@pytest.mark.parametrize("token_weights", [False, True])
def test_a_trained_model_comes_back(tmp_path: Path, token_weights: bool) -> None:
    model = tiny_reader(token_weights=token_weights)
    add_lora(model, Lora(("query", "value"), rank=2))
    train(model, tiny_task(), OBJECTIVE, SETTINGS, tmp_path / "run")
    folder = save(tmp_path, model)
    manifest = load_manifest(folder)
    assert (manifest.depths, manifest.dims) == ((1, 3), (4, 16))
    assert manifest.query_depths == {1: (1,), 3: (1, 3)}
    assert manifest.unit_queries is not token_weights
    loaded = load_checkpoint(folder)
    for role in ("query", "page"):
        expected = model.eval()(model.prepare(TEXTS, role), role)
        found = loaded(loaded.prepare(TEXTS, role), role)
        for depth in (1, 3):
            torch.testing.assert_close(found.exits[depth], expected.exits[depth])


def test_a_part_of_the_exits(tmp_path: Path) -> None:
    model = tiny_reader()
    loaded = load_checkpoint(save(tmp_path, model), depths=(1,))
    inputs = model.prepare(TEXTS, "page")
    assert list(loaded(inputs, "page").exits) == [1]
    torch.testing.assert_close(loaded(inputs, "page").exits[1], model(inputs, "page").exits[1])


def test_depths_that_were_not_trained_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, tiny_reader())
    for depths in ((2,), (1, 2, 3), ()):
        with pytest.raises(CheckpointError, match=r"trained for depths \(1, 3\)"):
            load_checkpoint(folder, depths=depths)


def test_without_layer_loss_only_the_last_exit_is_trained(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    objective = OBJECTIVE.without_layer_loss()
    manifest = save_checkpoint(tiny_reader(), objective, tmp_path / "c", source=source, name="tiny", steps=1)
    assert manifest.depths == (3,)
    with pytest.raises(CheckpointError, match="trained for depths"):
        load_checkpoint(tmp_path / "c", depths=(1,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depths": [1, 2, 3]}, "claims an exit after 2 layers"),
        ({"depths": [1, 3, 9]}, "claims an exit after 9 layers"),
        ({"dims": [4, 16, 32]}, "claims 32 components"),
        ({"depths": [3, 1]}, "ascending"),
        ({"family": "colpali"}, "family"),
        ({"format_version": 99}, "newer"),
        ({"depths": None}, "not a readable manifest"),
        ({"depths": [3], "query_depths": {"3": [1, 3]}}, "query_depths of page depth 3"),
        ({"query_depths": {"3": [1]}}, "query_depths of page depth 3"),
        ({"query_depths": {"2": [1, 2]}}, "query_depths of page depth 2"),
        ({"query_depths": {"3": [3, 1]}}, "query_depths of page depth 3"),
        ({"files": {"model.safetensors": "0" * 64}}, "damaged"),
    ],
)
def test_manifests_that_promise_too_much(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = save(tmp_path, tiny_reader())
    path = folder / checkpoint.MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_damage_and_absence_are_noticed(tmp_path: Path) -> None:
    folder = save(tmp_path, tiny_reader())
    with pytest.raises(CheckpointError, match="exists"):
        save(tmp_path, tiny_reader())
    weights = (folder / "heads.safetensors").read_bytes()
    (folder / "heads.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="heads"):
        load_checkpoint(folder)
    (folder / "heads.safetensors").unlink()
    with pytest.raises(CheckpointError, match="heads"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="manifest"):
        load_manifest(tmp_path)


def test_the_transformer_of_a_checkpoint_can_be_exported(tmp_path: Path) -> None:
    model = tiny_reader(seed=3)
    bundle = tiny_bert.write_bundle(tmp_path / "bundle", save(tmp_path, model), precision="float32")
    ids = np.array([[2, 6, 7, 8, 3]])
    names = [f"exit_{depth}" for depth in (1, 2, 3)]
    found = Sessions(bundle).run("depth_3.onnx", {"ids": ids}, names)
    mask = torch.ones(1, 5).bool()
    expected = model.bert(torch.from_numpy(ids), mask, (1, 2, 3))
    for depth, states in zip((1, 2, 3), found, strict=True):
        np.testing.assert_allclose(states, expected[depth].detach().numpy(), atol=1e-4)


def test_the_reader_equals_plain_bert_whatever_the_padding(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    model = load_published(source, depths=(1, 2, 3), dim=8)
    inputs = model.prepare(TEXTS, "page")
    states = model(inputs, "page")
    for row, text in enumerate(TEXTS):
        ids = inputs["ids"][row][inputs["attention"][row]].numpy()
        assert len(ids) == 2 + len(text.split())
        for depth, plain in enumerate(tiny_bert.forward(source, ids), start=1):
            head = model.exits[str(depth)].projection
            expected = head(torch.from_numpy(plain).float())
            torch.testing.assert_close(states.exits[depth][row, : len(ids)], expected, atol=1e-4, rtol=1e-4)
            # The two marks and the padding do not count.
            assert states.mask[row].tolist() == [0 < at < len(ids) - 1 for at in range(inputs["ids"].shape[1])]


def test_query_weights_begin_as_one_and_have_mean_one() -> None:
    model = tiny_reader(token_weights=True)
    inputs = model.prepare(TEXTS, "query")
    mask = inputs["counts"]
    lengths = model(inputs, "query").exits[3].norm(dim=-1)
    torch.testing.assert_close(lengths[mask], torch.ones(int(mask.sum())))
    torch.nn.init.normal_(model.exits["3"].weight.weight)
    lengths = model(inputs, "query").exits[3].norm(dim=-1)
    assert lengths[mask].std() > 0.1
    torch.testing.assert_close((lengths * mask).sum(1) / mask.sum(1), torch.ones(3))


def test_what_the_reader_does_not_take(tmp_path: Path) -> None:
    model = tiny_reader()
    with pytest.raises(TrainingDataError, match="picture"):
        model.prepare([Image.new("L", (4, 4))], "page")
    with pytest.raises(TrainingDataError, match="at least one token"):
        model.prepare(["fish", " "], "query")
    assert model.prepare(["fish " * 100], "page")["ids"].shape == (1, 32)
    source = write_source(tmp_path / "source")
    for depths in ((), (3, 1), (1, 4), (0, 3)):
        with pytest.raises(TrainingError, match="exits"):
            load_published(source, depths=depths)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(CheckpointError, match="gelu"):
        read_shape(source)
