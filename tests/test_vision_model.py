"""The shared loop: attention statistics, training, and trained models saved and loaded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import vision_training
from transformers import ColModernVBertForRetrieval, ColPaliForRetrieval
from vision_tools import QUERIES, SIZES, close, pictures, vectors
from vision_training import OBJECTIVE, SETTINGS, tiny_task

from budgetvdr.compress.propagation import in_degree, layer_support
from budgetvdr.training.checkpoint import load_checkpoint, read_manifest
from budgetvdr.training.errors import CheckpointError, TrainingDataError, TrainingError
from budgetvdr.training.journal import read_metrics
from budgetvdr.training.loop import train
from budgetvdr.training.lora import Lora, add_lora
from budgetvdr.training.models.vision.attention import Watch
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.save import save_vision
from budgetvdr.training.models.vision.tiny import tiny_modernvbert, tiny_paligemma
from budgetvdr.training.models.vision.tiny_qwen import tiny_qwen2_5_vl, tiny_qwen2_vl, tiny_qwen3_vl

WRITERS = {
    "paligemma": tiny_paligemma,
    "modernvbert": tiny_modernvbert,
    "qwen2_vl": tiny_qwen2_vl,
    "qwen2_5_vl": tiny_qwen2_5_vl,
    "qwen3_vl": tiny_qwen3_vl,
}
REFERENCES = {"paligemma": ColPaliForRetrieval, "modernvbert": ColModernVBertForRetrieval}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family, write in WRITERS.items():
        made[family] = tmp_path_factory.mktemp(family)
        write(made[family], layers=3)
    return made


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


@pytest.mark.parametrize("family", REFERENCES)
def test_attention_statistics_are_those_of_the_reference(folders: dict[str, Path], family: str) -> None:
    model = load_vision(folders[family], depths=(2, 3))
    inputs = model.prepare(pictures(list(SIZES)), "page")
    with torch.no_grad():
        plain, nothing = model.run(inputs)
        exits, seen = model.run(inputs, Watch(layers=(0, 2), steps=4))
    assert nothing is None
    assert seen is not None
    for depth in (2, 3):
        torch.testing.assert_close(exits[depth], plain[depth], atol=1e-5, rtol=1e-5)
    attention = reference_attention(folders[family], family, model, inputs)
    image = (inputs["visual_slots"] >= 0).numpy()
    for place, layer in enumerate((0, 2)):
        for page, tokens in enumerate(image):
            whole = attention[layer][page]
            among = whole[:, tokens][:, :, tokens]
            support = seen.support[place, :, page].numpy()
            np.testing.assert_allclose(support[:, tokens], layer_support(among, 4), atol=1e-6)
            np.testing.assert_allclose(seen.in_degree[place, page].numpy()[tokens], in_degree(among), atol=1e-6)
            last = int(inputs["counts"][page].sum()) - 1
            paid = whole.mean(axis=0)[last]
            np.testing.assert_allclose(seen.from_start[place, page].numpy()[tokens], paid[tokens], atol=1e-6)
            for scores in (seen.support[place, :, page], seen.in_degree[place, page], seen.from_start[place, page]):
                assert (scores.numpy()[..., ~tokens] == 0).all()


def reference_attention(
    folder: Path, family: str, model: VisionModel, inputs: Mapping[str, torch.Tensor]
) -> list[np.ndarray]:
    """(B, H, L, L) of every layer, as transformers' own class tells of it."""
    reference = REFERENCES[family].from_pretrained(folder, attn_implementation="eager").eval()
    arguments = {}
    if family == "paligemma":
        arguments["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        arguments["pixel_values"] = inputs["pixel_values"]
    else:
        count = (inputs["visual_slots"] >= 0).sum(dim=1) // 4
        tiles = torch.zeros(len(count), int(count.max()), *inputs["pixel_values"].shape[1:])
        for page, part in enumerate(torch.split(inputs["pixel_values"], count.tolist())):
            tiles[page, : len(part)] = part
        arguments["pixel_values"] = tiles
    with torch.no_grad():
        out = reference(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], output_attentions=True, **arguments
        )
    return [layer.numpy() for layer in out.attentions]


def test_layers_go_back_to_what_they_were_after_being_watched(folders: dict[str, Path]) -> None:
    model = load_vision(folders["paligemma"])
    inputs = model.prepare(pictures(["square"]), "page")
    before = [layer.self_attn.config for layer in model.layers()]
    model.run(inputs, Watch((0, 1, 2), 1))
    assert all(layer.self_attn.config is config for layer, config in zip(model.layers(), before, strict=True))
    assert not any(layer.self_attn._forward_hooks for layer in model.layers())


@pytest.mark.parametrize("family", WRITERS)
def test_one_step_lowers_the_loss_and_reaches_tower_decoder_and_heads(folders: dict[str, Path], family: str) -> None:
    model = load_vision(folders[family], depths=(1, 3))
    pages, texts = pictures(["portrait", "landscape"]), QUERIES[:2]

    def loss() -> torch.Tensor:
        found = [model(model.prepare(contents, role), role) for contents, role in ((texts, "query"), (pages, "page"))]
        return sum(  # type: ignore[return-value]
            (found[0].exits[depth].mean(dim=(0, 1)) - found[1].exits[depth].mean(dim=(0, 1))).square().sum()
            for depth in (1, 3)
        )

    before = loss()
    before.backward()
    idle = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    # The published norm stays for whoever reads the checkpoint; exits have copies of it.
    assert idle == {f"published.{model.norm_path}.weight"}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(1e-3 * parameter.grad)
        assert loss() < before


@pytest.mark.parametrize("role", ["query", "page"])
def test_layers_computed_again_change_no_gradient(folders: dict[str, Path], role: str) -> None:
    contents = QUERIES if role == "query" else pictures(["portrait", "tiny"])
    gradients = []
    for again in (False, True):
        model = load_vision(folders["modernvbert"], depths=(1, 3))
        model.checkpoint_activations(again)
        states = model(model.prepare(contents, role), role)  # type: ignore[arg-type]
        sum(exit_.square().sum() for exit_ in states.exits.values()).backward()  # type: ignore[union-attr]
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


def test_the_loss_falls_and_a_killed_run_goes_on_as_it_would_have(folders: dict[str, Path], tmp_path: Path) -> None:
    source = folders["paligemma"]
    vision_training.run(source, tmp_path / "whole")
    found = losses(tmp_path / "whole")
    assert len(found) == 20
    assert sum(found[-5:]) < 0.7 * sum(found[:5])
    worker = [sys.executable, vision_training.__file__, str(source), str(tmp_path / "killed")]
    killed = subprocess.run(worker, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=200, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(losses(tmp_path / "killed")) == 13
    vision_training.run(source, tmp_path / "killed")
    assert losses(tmp_path / "killed") == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("family", WRITERS)
def test_a_trained_model_is_saved_with_adapters_merged_and_comes_back(
    folders: dict[str, Path], family: str, tmp_path: Path
) -> None:
    model = load_vision(folders[family], depths=(1, 3))
    targets = ("Wqkv",) if family == "modernvbert" else ("q_proj", "v_proj")
    add_lora(model, Lora(targets, rank=2))
    settings = replace(SETTINGS, steps=2, chunk=2, checkpointing=True, bf16=True)
    train(model, tiny_task(), OBJECTIVE, settings, tmp_path / "run")
    expected = {
        (role, depth): vectors(model.eval(), contents, role, depth)  # type: ignore[arg-type]
        for role, contents in (("query", QUERIES), ("page", pictures(list(SIZES))))
        for depth in (1, 3)
    }
    folder = tmp_path / "saved"
    manifest = save_vision(model, OBJECTIVE, folder, name="tiny", steps=2)
    assert (manifest.family, manifest.depths, manifest.dims) == (family, (1, 3), (4, 16))
    assert manifest == read_manifest(folder)
    loaded = load_vision(folder)
    assert (loaded.trained_exits, loaded.dims) == ((1, 3), (4, 16))
    assert loaded.query_depths == {1: (1,), 3: (1, 3)}
    for (role, depth), found in expected.items():
        contents = QUERIES if role == "query" else pictures(list(SIZES))
        close(vectors(loaded, contents, role, depth), found)  # type: ignore[arg-type]
    shallow = load_vision(folder, depths=(1,))
    assert len(shallow.layers()) == 1
    assert shallow.query_depths == {1: (1,)}
    close(vectors(shallow, QUERIES, "query", 1), expected["query", 1])
    # The exits have grown apart, so that one head for all would have shown.
    weights = [loaded.get_submodule(f"exits.{depth}.projection").weight for depth in (1, 3)]
    assert not torch.allclose(weights[0], weights[1])  # type: ignore[arg-type]


def test_what_a_saved_model_does_not_hold_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    model = load_vision(folders["paligemma"], depths=(1, 3))
    saved = tmp_path / "saved"
    save_vision(model, OBJECTIVE, saved, name="tiny", steps=1)
    with pytest.raises(CheckpointError, match="exists"):
        save_vision(model, OBJECTIVE, saved, name="tiny", steps=1)
    with pytest.raises(CheckpointError, match=r"trained for depths \(1, 3\), asked for \(2,\)"):
        load_vision(saved, depths=(2,))
    with pytest.raises(CheckpointError, match="'paligemma'; this reads 'reader'"):
        load_checkpoint(saved)
    for file in ("model.safetensors", "heads.safetensors", "config.json", "preprocess.json", "tokenizer.json"):
        broken = tmp_path / f"broken-{file}"
        shutil.copytree(saved, broken)
        with (broken / file).open("ab") as stream:
            stream.write(b" ")
        with pytest.raises(CheckpointError, match=f"{file} is missing or damaged"):
            load_vision(broken)
    path = saved / "elastic.json"
    manifest = json.loads(path.read_text())
    for change, message in (
        ({"family": "modernvbert"}, "family 'modernvbert'"),
        ({"depths": [1, 2, 3]}, "claims an exit after 2"),
        ({"dims": [4, 32]}, "claims 32 components"),
    ):
        path.write_text(json.dumps(manifest | change))
        with pytest.raises(CheckpointError, match=message):
            load_vision(saved)
    model.tokenizer_file = tmp_path / "gone.json"
    with pytest.raises(CheckpointError, match="tokenizer"):
        save_vision(model, OBJECTIVE, tmp_path / "other", name="tiny", steps=1)
    assert not (tmp_path / "other").exists()


def test_contents_and_depths_that_do_not_fit(folders: dict[str, Path]) -> None:
    model = load_vision(folders["paligemma"])
    with pytest.raises(TrainingDataError, match="pages as pictures; found str"):
        model.prepare(["text"], "page")
    with pytest.raises(TrainingDataError, match="a query must be text; found Image"):
        model.prepare(pictures(["square"]), "query")
    with pytest.raises(TrainingError, match="ascending"):
        load_vision(folders["paligemma"], depths=(3, 1))
