"""The recipe that trains the reader, from its command line, on a tiny model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import tiny_bert
import torch
from training_tools import WORDS, write_source

from budgetvdr import bundle as bundles
from budgetvdr.training.checkpoint import load_checkpoint, load_manifest
from budgetvdr.training.data import text_set, write_text_set
from budgetvdr.training.errors import CheckpointError, TrainingDataError, TrainingError
from budgetvdr.training.files import sha256
from budgetvdr.training.journal import read_metrics
from budgetvdr.training.loop import train
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.reader import ReaderModel, load_published, plain_reader
from budgetvdr.training.text_pairs import TextPage, TextPair


def corpus(folder: Path) -> Path:
    """Each page is six words; its query is two of them."""
    for part, count in (("train", 30), ("held_out", 6), ("other_kinds", 6)):
        pages, pairs = [], []
        for number in range(count):
            words = [WORDS[(number * 7 + place * 5) % len(WORDS)] for place in range(6)]
            text = " ".join(words)
            pages.append(TextPage(f"p{number}", "d", "t", "", "h", text, text))
            near = (f"p{(number + 1) % count}", f"p{(number + 2) % count}")
            pairs.append(TextPair("words", " ".join(words[:2]), f"p{number}", near, f"p{number}", "d"))
        write_text_set(folder / part, pages, pairs)
    return folder


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "training"))
    recipe = importlib.import_module("train_reader")
    monkeypatch.setattr(recipe, "OBJECTIVE", Objective(depths=(1, 3), dims=(4, 16)))
    return recipe


def command(folder: Path) -> list[str]:
    """A run of one step without evaluation; later options win."""
    paths = {"corpus": corpus(folder / "corpus"), "weights": write_source(folder / "published")}
    paths |= {"folder": folder / "run", "out": folder / "out"}
    paths |= {"train": "all", "cross-depth": "1"}
    words = [word for name, value in paths.items() for word in (f"--{name}", str(value))]
    return [*words, "--steps", "1", "--batch", "4", "--held-out", "0", "--temperature", "0.1"]


@pytest.mark.parametrize(("ablation", "depths", "dims"), [("dim", (1, 3), (16,)), ("layer", (3,), (4, 16))])
def test_an_ablation_is_measured_at_every_point(
    recipe: ModuleType, tmp_path: Path, ablation: str, depths: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    recipe.main([*command(tmp_path), "--held-out", "3", "--ablation", ablation])
    lines = [line["held_out"] for line in read_metrics(tmp_path / "run") if "held_out" in line]
    assert [set(line) for line in lines] == [{f"{d}/{w}" for d in ("1/1", "3/3", "1/3") for w in (4, 16)}] * 2
    # The manifest says what was trained; the bundle may have all that there are heads for.
    trained = load_manifest(tmp_path / "out")
    assert (trained.depths, trained.dims) == (depths, dims)
    words = ["--weights", str(tmp_path / "out"), "--out", str(tmp_path / "bundle"), "--depths", "3,1", "--dims", "4,16"]
    tiny_bert.converter().main(words)
    bundle = bundles.load_manifest(tmp_path / "bundle")
    assert (bundle.depths, bundle.dims, bundle.trained_exits) == ((1, 3), (4, 16), depths)
    assert bundle.query_depths == {1: (1,)} | dict(trained.query_depths)


def test_a_run_from_the_command_line(recipe: ModuleType, tmp_path: Path) -> None:
    options = [*command(tmp_path), "--steps", "4", "--evaluate-every", "2", "--held-out", "3"]
    recipe.main(options)
    manifest = load_manifest(tmp_path / "out")
    assert (manifest.depths, manifest.dims, manifest.steps) == ((1, 3), (4, 16), 4)
    assert dict(manifest.query_depths) == {1: (1,), 3: (1, 3)}
    assert load_checkpoint(tmp_path / "out").depths == (1, 3)
    held_out = [line["step"] for line in read_metrics(tmp_path / "run") if "held_out" in line]
    assert held_out == [0, 2, 4]
    state = json.loads((tmp_path / "run/state/step-00000004/run.json").read_text())["run"]
    assert state["objective"]["temperature"] == "0.1"
    assert state["chosen"]["max_tokens"] == 256
    # Other pages under the same names, and another length, are another run.
    with pytest.raises(CheckpointError, match="other settings or data"):
        recipe.main([*options, "--max-tokens", "8", "--out", str(tmp_path / "again")])
    pages = tmp_path / "corpus/train/pages.jsonl"
    pages.write_text(pages.read_text().replace("fish", "cold", 1))
    with pytest.raises(CheckpointError, match="other settings or data"):
        recipe.main([*options, "--out", str(tmp_path / "again")])


def test_heads_alone_leave_the_last_exit_as_published(recipe: ModuleType, tmp_path: Path) -> None:
    recipe.main([*command(tmp_path), "--train", "heads", "--steps", "3", "--head-learning-rate", "0.01"])
    manifest = load_manifest(tmp_path / "out")
    assert (manifest.depths, dict(manifest.query_depths)) == ((1, 3), {1: (1,), 3: (1, 3)})
    trained, published = load_checkpoint(tmp_path / "out"), plain_reader(tmp_path / "published")
    inputs = trained.prepare([" ".join(WORDS[:9])], "page")
    with torch.no_grad():
        expected = published(inputs, "page").exits[3][..., :16]
        torch.testing.assert_close(trained(inputs, "page").exits[3], expected, atol=1e-6, rtol=0)
    started = load_published(tmp_path / "published", depths=(1, 3), dim=16)
    recipe.start_heads(started, [str(text_set(tmp_path / "corpus/train").load("p0"))])
    weights = [model.heads().state_dict()["1.projection.weight"] for model in (trained, started)]
    assert float((weights[0] - weights[1]).abs().max()) > 1e-3


def test_heads_alone_are_the_same_with_gradient_caching(recipe: ModuleType, tmp_path: Path) -> None:
    words = [*command(tmp_path), "--train", "heads", "--steps", "2"]
    recipe.main(words)
    recipe.main([*words, "--chunk", "2", "--folder", str(tmp_path / "cached"), "--out", str(tmp_path / "other")])
    whole, cached = (load_checkpoint(tmp_path / name).heads().state_dict() for name in ("out", "other"))
    for name, tensor in whole.items():
        torch.testing.assert_close(cached[name], tensor, atol=2e-3, rtol=0)


def test_a_run_that_would_train_nothing_is_refused(recipe: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="add --train all"):
        recipe.main([*command(tmp_path), "--train", "heads", "--ablation", "layer"])
    words = [*command(tmp_path), "--held-out", "3"]
    (tmp_path / "corpus/other_kinds/pairs.jsonl").write_text("")
    with pytest.raises(TrainingDataError, match="--evaluate-on"):
        recipe.main(words)


def test_a_checkpoint_that_is_there_stops_a_run_before_its_first_step(recipe: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="exists"):
        recipe.main(command(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_a_checkpoint_with_its_heads(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe.main(command(tmp_path))
    first = tmp_path / "out"
    started: list[dict[str, torch.Tensor]] = []

    def seen(model: ReaderModel, *rest: object, **named: object) -> None:
        started.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        train(model, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(recipe, "train", seen)
    further = ["--weights", str(first), "--folder", str(tmp_path / "more"), "--out", str(tmp_path / "second")]
    recipe.main([*command(tmp_path), *further, "--teacher-weights", str(tmp_path / "published"), "--max-tokens", "9"])
    trained = load_checkpoint(first).state_dict()
    assert started[0].keys() == trained.keys()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in started[0].items())
    manifest = load_manifest(tmp_path / "second")
    assert (manifest.steps, manifest.max_tokens) == (2, 9)
    assert manifest.name == "all-MiniLM-L6-v2 trained for 2 steps"
    # The teacher is the published model, not the trained one.
    chosen = json.loads((tmp_path / "more/state/step-00000001/run.json").read_text())["run"]["chosen"]
    assert chosen["teacher"] == sha256(tmp_path / "published/model.safetensors")
    with pytest.raises(TrainingError, match="no --token-weights"):
        recipe.main([*command(tmp_path), *further, "--out", str(tmp_path / "third"), "--token-weights"])


def test_the_defaults_are_the_bundled_readers(recipe: ModuleType) -> None:
    options = recipe.read_options(["--corpus", "c", "--folder", "f", "--out", "o"])
    settings, objective = recipe.settings_of(options), recipe.objective_of(options)
    assert (settings.steps, settings.batch, settings.evaluate_every, settings.save_every) == (700, 16, 200, 200)
    assert (options.train, options.max_tokens, options.held_out, objective.cross_depth) == ("heads", 256, 150, 0.0)
    assert (objective.teacher, set(objective.alpha.values())) == (1.0, {0.3})


def test_the_sample_is_spread_and_has_one_negative_a_pair(recipe: ModuleType, tmp_path: Path) -> None:
    whole = text_set(corpus(tmp_path) / "train")
    part = recipe.sample(whole, 10)
    assert [pair.page for pair in part.pairs] == [f"p{number}" for number in range(0, 30, 3)]
    assert all(len(pair.negatives) == 1 for pair in part.pairs)
    assert recipe.sample(whole, 0) is None
