"""Trains a vision-language model for several depths and widths, by MM-Matryoshka.

    torchrun --standalone --nproc-per-node 8 training/train_vision.py paligemma \\
        --folder runs/paligemma --out checkpoints/paligemma
    torchrun ... training/train_vision.py vidore/colqwen2-v1.0 --depths 4,7,14,21,28 ...
    python training/train_vision.py qwen2-vl --images pages --pairs train.jsonl --held-out test.jsonl ...

MODEL is one of the paper's backbones (paligemma, qwen2-vl, qwen2.5-vl: its layers are trained, a new head is begun), or
a folder or name on the hub with --depths: a retriever with a head, or with --new-head a model without one. Started
again with the same arguments, a run goes on where it was stopped. What each step did is in FOLDER/metrics.jsonl, with
nDCG@5 on held-out pairs as "query depth/page depth/width".

The paper states depths, widths and training set, not the rest. Rank, alpha, dropout, what is adapted, temperature and
the size of pages are those that ColPali and ColQwen were trained with; one epoch of batches of 128 is our choice.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from train_reader import report, sample

from budgetvdr.training.data import COLPALI_SET, colpali_set, pictures
from budgetvdr.training.errors import CheckpointError, TrainingError
from budgetvdr.training.loop import TrainSettings, train
from budgetvdr.training.lora import Lora, add_lora
from budgetvdr.training.mm_matryoshka import Objective, biased_weights
from budgetvdr.training.models.vision.inputs import limit_pages
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.save import save_vision
from budgetvdr.training.pairs import TrainingSet
from budgetvdr.training.processes import join_processes


@dataclass(frozen=True, slots=True)
class Backbone:
    """A model without a head for retrieval.

    name: on the hub (paper, Table 7). depths: those of Tables 2 and 3. image_tokens: most of a page, None where the
    family has no choice.
    """

    name: str
    depths: tuple[int, ...]
    image_tokens: int | None


BACKBONES: Mapping[str, Backbone] = {
    "paligemma": Backbone("google/paligemma-3b-mix-448", (2, 4, 9, 14, 18), None),
    "qwen2-vl": Backbone("Qwen/Qwen2-VL-2B-Instruct", (4, 7, 14, 21, 28), 768),
    "qwen2.5-vl": Backbone("Qwen/Qwen2.5-VL-3B-Instruct", (6, 9, 18, 36), 768),
}


def objective_of(options: argparse.Namespace, depths: tuple[int, ...]) -> Objective:
    """The objective, whole or as in the paper's ablations and its sweep of weights."""
    axis, _, towards = options.bias.partition("-")
    objective = Objective(
        depths,
        options.dims,
        alpha=biased_weights(options.dims, towards) if axis == "dim" else {},
        depth_weights=biased_weights(depths[:-1], towards) if axis == "layer" else {},
        distil=options.distil,
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
        learning_rate=options.learning_rate,
        head_learning_rate=options.head_learning_rate,
        warmup=max(1, options.steps // 20),
        chunk=options.chunk,
        bf16=True,
        checkpointing=not options.keep_activations,
        seed=options.seed,
        save_every=options.evaluate_every,
        evaluate_every=options.evaluate_every,
    )


def chosen(options: argparse.Namespace) -> dict[str, str | int | float | bool | None]:
    """What decides the losses beside settings, objective and pairs."""
    names = ("model", "image_tokens", "all_weights", "rank", "alpha", "dropout")
    pages = options.dataset if options.images is None else options.images
    return {name: getattr(options, name) for name in names} | {"weights": str(options.weights), "pages": str(pages)}


def data_of(options: argparse.Namespace) -> tuple[TrainingSet, TrainingSet | None]:
    """Pairs to train on and pairs held out."""
    if options.images is None:
        return colpali_set(options.dataset), colpali_set(options.dataset, split=options.held_out or "test")
    held_out = pictures(options.images, Path(options.held_out)) if options.held_out else None
    return pictures(options.images, options.pairs), held_out


def model_of(options: argparse.Namespace) -> VisionModel:
    """The model with exits and, unless all weights are trained, adapters; the same in every process of every run.

    Raises TrainingError where the head is not as wide as the widest of --dims, or pages have a size of their own.
    """
    backbone = BACKBONES.get(options.model)
    width = options.dims[-1]
    model = load_vision(
        options.weights or (backbone.name if backbone else options.model),
        depths=depths_of(options),
        # Frozen weights are only read, under autocast: half of the memory. Those that are trained need their digits.
        dtype=torch.float32 if options.all_weights else torch.bfloat16,
        trust_remote_code=options.trust_remote_code,
        new_head=width if backbone or options.new_head else None,
    )
    if model.dim != width:
        raise TrainingError(f"the head of {options.model} is {model.dim} wide: expected --dims up to that, not {width}")
    image_tokens = options.image_tokens or (backbone.image_tokens if backbone else None)
    if image_tokens is not None:
        limit_pages(model, image_tokens)
    if not options.all_weights:
        torch.manual_seed(options.seed)
        add_lora(model, Lora(decoder_linears(model), options.rank, options.alpha, options.dropout))
    return model


def depths_of(options: argparse.Namespace) -> tuple[int, ...]:
    """Those asked for, or the paper's."""
    backbone = BACKBONES.get(options.model)
    depths: tuple[int, ...] | None = options.depths or (backbone.depths if backbone else None)
    if depths is None:
        raise TrainingError(f"{options.model} is none of {', '.join(BACKBONES)}: expected --depths for it")
    return depths


def decoder_linears(model: VisionModel) -> list[str]:
    """Names of all linear layers of the decoder; the vision tower stays as it is."""
    layers = model.layers()
    (path,) = (name for name, module in model.backbone().named_modules() if module is layers)
    return [f"{path}.{name}" for name, module in layers.named_modules() if isinstance(module, nn.Linear)]


def numbers(text: str) -> tuple[int, ...]:
    """ "128,64,32" -> (32, 64, 128)."""
    return tuple(sorted(int(part) for part in text.split(",")))


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults and leaves the description's lines as they are."""


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("model", help=f"{', '.join(BACKBONES)}, a folder, or a name on the hub")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the run: metrics, states, loss.svg")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint, new")
    parser.add_argument("--weights", type=Path, help="a copy of the backbone on this machine")
    parser.add_argument("--depths", type=numbers, help="exits in layers; left out: the paper's for its backbones")
    parser.add_argument("--dims", type=numbers, default=(32, 64, 128), help="widths; the largest is that of the head")
    parser.add_argument("--new-head", action="store_true", help="MODEL has no head for retrieval: begin one")
    parser.add_argument("--image-tokens", type=int, help="most of a page, Qwen only; 768 for the paper's backbones")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that MODEL brings; read it first")
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", default=COLPALI_SET, help="for `datasets`, with the columns query and image")
    data.add_argument("--images", type=Path, help="folder of pages, instead of --dataset")
    data.add_argument("--pairs", type=Path, help="JSONL of query, page (a file in --images) and maybe negatives")
    data.add_argument("--held-out", help="split of --dataset, `test` where left out; or another JSONL for --images")
    data.add_argument("--evaluate-pairs", type=int, default=200, help="so many of the held-out pairs are evaluated")
    losses = parser.add_argument_group("objective")
    losses.add_argument("--distil", type=float, default=1.0, help="weight of the distillation into shallow exits")
    losses.add_argument("--cross-depth", type=float, default=0.0, help="weight of shallow queries on deep pages; ours")
    losses.add_argument("--temperature", type=float, default=0.02, help="of the cross entropy")
    losses.add_argument("--distil-temperature", type=float, default=0.1, help="of the distillation")
    losses.add_argument("--ablation", choices=("none", "dim", "layer"), default="none", help="leaves out a loss")
    biases = ("none", "dim-lower", "dim-upper", "layer-lower", "layer-upper")
    losses.add_argument("--bias", choices=biases, default="none", help="weights that rise towards one end")
    steps = parser.add_argument_group("training")
    steps.add_argument("--steps", type=int, default=923, help="923 of 128 pairs are ColPali's training set once")
    steps.add_argument("--batch", type=int, default=128, help="pairs a step, of all processes together")
    steps.add_argument("--negatives", type=int, default=0, help="further pages a pair, of --pairs")
    steps.add_argument("--chunk", type=int, default=4, help="contents encoded at a time, with gradient caching")
    steps.add_argument("--keep-activations", action="store_true", help="more memory, less time")
    steps.add_argument("--all-weights", action="store_true", help="train all weights, in float32, without adapters")
    steps.add_argument("--rank", type=int, default=32, help="of the adapters of the decoder")
    steps.add_argument("--alpha", type=int, default=32, help="scale of the adapters")
    steps.add_argument("--dropout", type=float, default=0.1, help="before the adapters")
    steps.add_argument("--learning-rate", type=float, default=2e-4, help="of the adapters, at its highest")
    steps.add_argument("--head-learning-rate", type=float, default=1e-3, help="of the heads, at its highest")
    steps.add_argument("--evaluate-every", type=int, default=100, help="steps; states are written as often")
    steps.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if (options.images is None) != (options.pairs is None):
        parser.error("--images and --pairs go together")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line.

    Raises CheckpointError where the folder of the checkpoint exists, before anything is trained.
    """
    options = read_options(arguments)
    if options.out.exists():
        raise CheckpointError(f"{options.out} exists: choose a new folder for the checkpoint")
    objective = objective_of(options, depths_of(options))
    state = join_processes()
    # What has to be downloaded is downloaded once.
    with state.main_process_first():
        train_set, held_out = data_of(options)
        model = model_of(options)
    train(
        model,
        train_set,
        objective,
        settings_of(options),
        options.folder,
        held_out=None if held_out is None else sample(held_out, options.evaluate_pairs),
        evaluated_depths=depths_of(options),
        evaluated_dims=options.dims,
        chosen=chosen(options),
        on_step=report if state.is_main_process else None,
    )
    if state.is_main_process:
        name = f"{options.model} trained for {options.steps} steps"
        save_vision(model, objective, options.out, name=name, steps=options.steps)
        print(options.out)


if __name__ == "__main__":
    main()
