"""The recipe that trains vision-language models, from its command line, on tiny ones without a head."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from vision_training import tiny_task

from budgetvdr.bundle import load_manifest
from budgetvdr.export.__main__ import main as export
from budgetvdr.training.checkpoint import read_manifest
from budgetvdr.training.errors import CheckpointError, TrainingDataError, TrainingError
from budgetvdr.training.held_out import evaluate_pairs
from budgetvdr.training.journal import read_metrics
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.tiny import tiny_paligemma
from budgetvdr.training.models.vision.tiny_qwen import tiny_qwen2_vl

SHORT = ["--batch", "4", "--chunk", "4", "--evaluate-every", "10", "--evaluate-pairs", "6", "--temperature", "0.03"]
SHORT += ["--learning-rate", "2e-3", "--head-learning-rate", "3e-2", "--rank", "8", "--dropout", "0.05"]
EXITS = ["--depths", "3,1", "--dims", "16,4", "--cross-depth", "0.5"]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "training"))
    return importlib.import_module("train_vision")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A dozen pages of two colours, and files of the questions about them."""
    folder = tmp_path_factory.mktemp("pages")
    task = tiny_task()
    lines = []
    for pair in task.pairs[::2][:12]:
        name = pair.page.replace("/", "-") + ".png"
        task.load(pair.page).save(folder / name)  # type: ignore[union-attr]
        lines.append(json.dumps({"query": pair.query, "page": name}) + "\n")
    for file, part in (("train.jsonl", lines), ("held_out.jsonl", lines[::2])):
        (folder / file).write_text("".join(part))
    return _options({"images": folder, "pairs": folder / "train.jsonl", "held-out": folder / "held_out.jsonl"})


@pytest.fixture(scope="module")
def pali(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pali")
    tiny_paligemma(folder, layers=3)
    return without_head(folder)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many layers as Qwen2-VL 2B has."""
    folder = tmp_path_factory.mktemp("qwen")
    tiny_qwen2_vl(folder, layers=28)
    return without_head(folder)


def without_head(folder: Path) -> Path:
    """Makes a backbone, as it is published, of a retriever."""
    tensors = {
        name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if "proj_layer" not in name
    }
    plain = {re.sub(r"^vlm\.(model\.)?", "", name): tensor for name, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text())["vlm_config"]))
    return folder


def _options(named: Mapping[str, object]) -> list[str]:
    return [word for name, value in named.items() for word in (f"--{name}", str(value))]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


def stop_at_13(step: int, metrics: Mapping[str, float]) -> None:
    if step == 13:
        raise KeyboardInterrupt


def test_a_backbone_becomes_a_retriever_of_several_depths(
    recipe: ModuleType, data: list[str], pali: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: str, out: str) -> None:
        paths = {"weights": pali, "folder": tmp_path / folder, "out": tmp_path / out, "steps": 20}
        recipe.main(["paligemma", *_options(paths), *data, *SHORT, *EXITS])

    run("whole", "trained")
    found = losses(tmp_path / "whole")
    assert len(found) == 20
    assert sum(found[-5:]) < 0.8 * sum(found[:5])
    torch.manual_seed(99)  # what came before a run must not matter to it
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(recipe, "report", stop_at_13)
        run("stopped", "again")
    assert len(losses(tmp_path / "stopped")) == 13
    run("stopped", "again")
    assert losses(tmp_path / "stopped") == pytest.approx(found, rel=1e-5)

    folder = tmp_path / "trained"
    manifest = read_manifest(folder)
    assert (manifest.family, manifest.depths, manifest.dims, manifest.steps) == ("paligemma", (1, 3), (4, 16), 20)
    assert manifest.files == read_manifest(tmp_path / "again").files
    with pytest.raises(CheckpointError, match=r"trained for depths \(1, 3\), asked for \(2,\)"):
        load_vision(folder, depths=(2,))
    with pytest.raises(CheckpointError, match="heads of its own"):
        load_vision(folder, new_head=16)
    with pytest.raises(CheckpointError, match="exists"):
        run("whole", "trained")

    # What the checkpoint holds is what the run measured last.
    held_out = recipe.pictures(Path(data[1]), Path(data[5]))
    model = load_vision(folder)
    measured = evaluate_pairs(
        lambda contents, role: model(model.prepare(contents, role), role), held_out, [(1, 3), (3, 3)], (4, 16)
    )
    last = [line["held_out"] for line in read_metrics(tmp_path / "whole") if "held_out" in line][-1]
    assert isinstance(last, dict)
    assert measured == pytest.approx({name: last[name] for name in measured}, abs=0.1)

    assert export([str(folder), "--out", str(tmp_path / "bundle")]) == 0
    bundle = load_manifest(tmp_path / "bundle")
    assert bundle.trained_exits == (1, 3)
    assert dict(bundle.query_depths) == {1: (1,), 3: (1, 3)}
    assert (bundle.depths, bundle.dims) == ((1, 3), (4, 16))


def test_the_loss_of_a_qwen_falls(recipe: ModuleType, data: list[str], qwen: Path, tmp_path: Path) -> None:
    paths = {"folder": tmp_path / "run", "out": tmp_path / "out", "steps": 20, "image-tokens": 9}
    recipe.main([str(qwen), "--new-head", *_options(paths), *data, *SHORT, *EXITS])
    found = losses(tmp_path / "run")
    assert sum(found[-5:]) < 0.8 * sum(found[:5])
    assert load_vision(tmp_path / "out", depths=(1,)).query_depths == {1: (1,)}
    # Pages stay as small at search time as they were trained.
    settings = json.loads((tmp_path / "out/preprocess.json").read_text())
    assert settings["most_pixels"] == 9 * 28 * 28


def model_of(recipe: ModuleType, words: list[str]) -> Any:
    return recipe.model_of(recipe.read_options([*words, *_options({"folder": "f", "out": "o"})]))


def test_a_backbone_has_the_papers_exits_and_adapters_in_its_decoder_alone(recipe: ModuleType, qwen: Path) -> None:
    words = ["qwen2-vl", "--weights", str(qwen)]
    torch.manual_seed(1)
    model = model_of(recipe, words)
    assert model.depths == (4, 7, 14, 21, 28)
    assert (model.dim, model.trained_exits) == (128, ())
    assert model.preprocessor.settings.most_pixels == 768 * 28 * 28
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    adapters = {name for name in trained if "lora_" in name}
    assert all(name.startswith("published.language_model.layers.") for name in adapters)
    assert len(adapters) == 28 * 7 * 2
    assert {name for name in trained if not name.startswith("exits.")} == adapters
    assert {parameter.dtype for parameter in trained.values()} == {torch.float32}
    frozen = {parameter.dtype for parameter in model.parameters() if not parameter.requires_grad}
    assert frozen == {torch.bfloat16}
    # Each process of a run builds the model for itself, whatever its random numbers.
    torch.manual_seed(2)
    other = dict(model_of(recipe, words).named_parameters())
    assert all(torch.equal(parameter, other[name]) for name, parameter in trained.items())
    # The new head hardly changes angles.
    states = torch.randn(200, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        projected = model.get_submodule("exits.4.projection")(states)
    cosines = [nn.functional.cosine_similarity(rows[:100], rows[100:]) for rows in (states, projected)]
    assert (cosines[0] - cosines[1]).abs().mean() < 0.1


def test_all_weights_may_be_trained(recipe: ModuleType, pali: Path) -> None:
    model = model_of(recipe, ["paligemma", "--weights", str(pali), "--depths", "1,3", "--all-weights"])
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_ablations_and_biases_are_the_papers(recipe: ModuleType) -> None:
    def objective(*words: str) -> Any:
        options = recipe.read_options(["qwen2.5-vl", *_options({"folder": "f", "out": "o"}), *words])
        return recipe.objective_of(options, recipe.depths_of(options))

    plain = objective()
    assert (plain.depths, plain.dims, plain.cross_depth) == ((6, 9, 18, 36), (32, 64, 128), 0.0)
    assert objective("--ablation", "dim").dims == (128,)
    assert objective("--ablation", "layer").depth_pairs == ((36, 36),)
    assert objective("--bias", "dim-upper").alpha == {32: 0.5, 64: 1.0, 128: 1.5}
    assert objective("--bias", "layer-lower").depth_weights == {6: 1.5, 9: 1.0, 18: 0.5}
    assert objective("--distil-temperature", "0.3").distil_temperature == 0.3


def test_a_dataset_is_held_out_by_its_test_split(recipe: ModuleType, data: list[str], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    page = Path(data[1], "red-green.png").read_bytes()
    for split, queries in (("train", ["one", "two"]), ("test", ["three"])):
        names = [f"{query}.png" for query in queries]
        rows = {"query": queries, "image_filename": names, "image": [{"bytes": page, "path": None}] * len(queries)}
        stored = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        stored.to_parquet(tmp_path / "set" / f"{split}.parquet")

    def queries_of(*words: str) -> list[list[str]]:
        paths = _options({"folder": "f", "out": "o", "dataset": tmp_path / "set"})
        return [
            [pair.query for pair in part.pairs] for part in recipe.data_of(recipe.read_options(["m", *paths, *words]))
        ]

    assert queries_of() == [["one", "two"], ["three"]]
    assert queries_of("--held-out", "train") == [["one", "two"], ["one", "two"]]


def test_what_does_not_fit_is_refused_before_anything_is_trained(
    recipe: ModuleType, pali: Path, tmp_path: Path, data: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match="new head"):
        model_of(recipe, [str(pali), "--depths", "1,3"])
    with pytest.raises(TrainingError, match="--depths"):
        model_of(recipe, [str(pali)])
    with pytest.raises(TrainingError, match="--image-tokens"):
        model_of(recipe, ["paligemma", "--weights", str(pali), "--depths", "3", "--image-tokens", "9"])
    tiny_paligemma(tmp_path / "retriever", layers=1)
    retriever = [str(tmp_path / "retriever"), "--depths", "1"]
    with pytest.raises(TrainingError, match="is 16 wide"):
        model_of(recipe, retriever)
    with pytest.raises(CheckpointError, match="head of its own"):
        model_of(recipe, [*retriever, "--new-head"])
    assert model_of(recipe, [*retriever, "--dims", "8,16"]).trained_exits == (1,)
    paths = _options({"folder": tmp_path / "run", "out": tmp_path / "out"})
    with pytest.raises(SystemExit):
        recipe.main([*retriever, *paths, "--images", str(tmp_path)])
    assert "--images and --pairs go together" in capsys.readouterr().err
    with pytest.raises(TrainingDataError, match="cannot be read"):
        recipe.main([*retriever, *paths, "--images", str(tmp_path), "--pairs", str(tmp_path / "none.jsonl")])
    assert not (tmp_path / "out").exists()
