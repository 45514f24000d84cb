"""The recipe that trains the reader, from its command line, on a tiny model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import tiny_bert
from training_tools import WORDS, write_source

from budgetvdr import bundle as bundles
from budgetvdr.training.checkpoint import load_checkpoint, load_manifest
from budgetvdr.training.data import text_set, write_text_set
from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.journal import read_metrics
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.text_pairs import TextPage, TextPair


def corpus(folder: Path) -> Path:
    """Each page is six words; its query is two of them."""
    for part, count in (("train", 30), ("held_out", 6)):
        pages, pairs = [], []
        for number in range(count):
            words = [WORDS[(number * 7 + place * 5) % len(WORDS)] for place in range(6)]
            text = " ".join(words)
            pages.append(TextPage(f"p{number}", "d", "t", "", "h", text, text))
            near = (f"p{(number + 1) % count}", f"p{(number + 2) % count}")
            pairs.append(TextPair("words", " ".join(words[:2]), f"p{number}", near, f"p{number}", "d"))
        write_text_set(folder / part, pages, pairs)
    return folder


@pytest.mark.parametrize(("ablation", "depths", "dims"), [("dim", (1, 3), (16,)), ("layer", (3,), (4, 16))])
def test_an_ablation_is_measured_at_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ablation: str, depths: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "training"))
    recipe = importlib.import_module("train_reader")
    monkeypatch.setattr(recipe, "OBJECTIVE", Objective(depths=(1, 3), dims=(4, 16), cross_depth=1.0))
    paths = {"corpus": corpus(tmp_path / "corpus"), "folder": tmp_path / "run", "out": tmp_path / "out"}
    paths["weights"] = write_source(tmp_path / "published")
    words = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    words += ["--steps", "1", "--batch", "4", "--held-out", "3", "--temperature", "0.1"]
    recipe.main([*words, "--ablation", ablation])
    lines = [line["held_out"] for line in read_metrics(paths["folder"]) if "held_out" in line]
    assert [set(line) for line in lines] == [{f"{d}/{w}" for d in ("1/1", "3/3", "1/3") for w in (4, 16)}] * 2
    # The manifest says what was trained; the bundle may have all that there are heads for.
    trained = load_manifest(paths["out"])
    assert (trained.depths, trained.dims) == (depths, dims)
    command = ["--weights", str(paths["out"]), "--out", str(tmp_path / "bundle"), "--depths", "3,1", "--dims", "4,16"]
    tiny_bert.converter().main(command)
    bundle = bundles.load_manifest(tmp_path / "bundle")
    assert (bundle.depths, bundle.dims, bundle.trained_exits) == ((1, 3), (4, 16), depths)
    assert bundle.query_depths == {1: (1,)} | dict(trained.query_depths)


def test_a_run_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "training"))
    recipe = importlib.import_module("train_reader")
    monkeypatch.setattr(recipe, "OBJECTIVE", Objective(depths=(1, 3), dims=(4, 16), cross_depth=1.0))
    source = write_source(tmp_path / "published")
    options = [
        "--corpus",
        str(corpus(tmp_path / "corpus")),
        "--folder",
        str(tmp_path / "run"),
        "--weights",
        str(source),
    ]
    options += ["--steps", "4", "--batch", "4", "--evaluate-every", "2", "--held-out", "3", "--temperature", "0.1"]
    recipe.main([*options, "--out", str(tmp_path / "out")])
    manifest = load_manifest(tmp_path / "out")
    assert (manifest.depths, manifest.dims, manifest.steps) == ((1, 3), (4, 16), 4)
    assert dict(manifest.query_depths) == {1: (1,), 3: (1, 3)}
    assert load_checkpoint(tmp_path / "out").depths == (1, 3)
    held_out = [line["step"] for line in read_metrics(tmp_path / "run") if "held_out" in line]
    assert held_out == [0, 2, 4]
    state = json.loads((tmp_path / "run/state/step-00000004/run.json").read_text())["run"]
    assert state["objective"]["temperature"] == "0.1"
    # Done already: the run is found finished, and the checkpoint is not written over.
    with pytest.raises(CheckpointError, match="exists"):
        recipe.main([*options, "--out", str(tmp_path / "out")])


def test_the_sample_is_spread_and_has_one_negative_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "training"))
    recipe = importlib.import_module("train_reader")

    whole = text_set(corpus(tmp_path) / "train")
    part = recipe.sample(whole, 10)
    assert [pair.page for pair in part.pairs] == [f"p{number}" for number in range(0, 30, 3)]
    assert all(len(pair.negatives) == 1 for pair in part.pairs)
