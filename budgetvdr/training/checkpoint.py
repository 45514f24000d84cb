"""Elastic checkpoints: a trained model as a folder that training, export and evaluation read.

    elastic.json         the `ElasticManifest`
    model.safetensors    the transformer, named as in its published weights; adapters are merged in
    heads.safetensors    "DEPTH.projection.weight" (D, hidden) and .bias, for weighted queries "DEPTH.weight.*", and for
                         vision-language models "DEPTH.norm.*"
    config.json          of the transformer
    tokenizer.json
    preprocess.json      of vision-language models: how pages and queries become inputs

The transformer's three files are what its published folder has, so that whatever reads that reads this.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.files import settle, sha256
from budgetvdr.training.lora import merge_lora
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.model import ElasticModel
from budgetvdr.training.models.reader import ReaderModel, read_shape

FORMAT_VERSION = 1
MANIFEST_NAME = "elastic.json"
MODEL_NAME, HEADS_NAME, _CONFIG, _TOKENIZER = "model.safetensors", "heads.safetensors", "config.json", "tokenizer.json"


@dataclass(frozen=True, slots=True)
class ElasticManifest:
    """What a checkpoint was trained for.

    family: which model class reads it. name: a human name. depths: trained exits, ascending. dims: trained prefix
    widths, ascending; the last is the full width. query_depths: page depth -> query depths trained to search it.
    unit_queries: False where query vectors carry weights as length. max_tokens, max_query_tokens: longest texts,
    special tokens included. steps: of training. files: name -> sha256.
    """

    format_version: int
    family: str
    name: str
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    query_depths: Mapping[int, tuple[int, ...]]
    unit_queries: bool
    max_tokens: int
    max_query_tokens: int
    steps: int
    files: Mapping[str, str]


def save_checkpoint(
    model: ReaderModel, objective: Objective, folder: Path, *, source: Path, name: str, steps: int
) -> ElasticManifest:
    """Writes the checkpoint of a trained reader; adapters are merged into `model` first.

    source: the published folder the run began from, whose config and tokenizer are copied. Depths trained are those
    whose scores the objective has: without distillation that is the last one alone.

    Raises CheckpointError where `folder` exists: a checkpoint is never written over.
    """

    def copy_rest(partial: Path) -> None:
        for file in (_CONFIG, _TOKENIZER):
            shutil.copyfile(source / file, partial / file)

    longest = (model.longest["page"], model.longest["query"])
    return write_checkpoint(model, objective, folder, name=name, steps=steps, longest=longest, write_rest=copy_rest)


def write_checkpoint(
    model: ElasticModel,
    objective: Objective,
    folder: Path,
    *,
    name: str,
    steps: int,
    longest: tuple[int, int],
    write_rest: Callable[[Path], object],
) -> ElasticManifest:
    """Writes weights, heads and manifest, and what else `write_rest` puts into the folder it is given.

    longest: tokens of a page and of a query. Everything is there or nothing. Raises CheckpointError where `folder`
    exists.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists: choose a new folder for the checkpoint")
    merge_lora(model)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file, module in ((MODEL_NAME, model.backbone()), (HEADS_NAME, model.heads())):
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in module.state_dict().items()}
        save_file(tensors, partial / file)
    write_rest(partial)
    trained = {
        page: tuple(sorted(q for q, p in objective.depth_pairs if p == page)) for _, page in objective.depth_pairs
    }
    depths = tuple(sorted(trained))
    manifest = ElasticManifest(
        format_version=FORMAT_VERSION,
        family=model.family,
        name=name,
        depths=depths,
        dims=objective.dims,
        query_depths={depth: trained[depth] for depth in depths},
        unit_queries=model.unit_queries,
        max_tokens=longest[0],
        max_query_tokens=longest[1],
        steps=steps,
        files={file.name: sha256(file) for file in sorted(partial.iterdir())},
    )
    (partial / MANIFEST_NAME).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
    settle(partial, folder)
    return manifest


def read_manifest(folder: Path) -> ElasticManifest:
    """Reads the manifest of any family and checks that the folder holds what it promises.

    Raises CheckpointError where a file is missing or damaged, where the format is newer, where the manifest names
    depths or widths that the heads do not have, and where query depths are not among the depths.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = _parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is not a readable manifest ({type(error).__name__}: {error}); get the checkpoint again"
        ) from error
    for file, expected in manifest.files.items():
        if not (folder / file).is_file() or sha256(folder / file) != expected:
            raise CheckpointError(f"{folder / file} is missing or damaged: its sha256 is not the recorded one")
    _check(manifest, folder)
    return manifest


def load_manifest(folder: Path) -> ElasticManifest:
    """`read_manifest` of a reader's checkpoint.

    Raises CheckpointError as that does, for another family, and for depths that the transformer does not have.
    """
    manifest = read_manifest(folder)
    if manifest.family != ReaderModel.family:
        raise CheckpointError(f"{folder} is of the family {manifest.family!r}; this reads {ReaderModel.family!r}")
    layers = read_shape(folder).num_hidden_layers
    if manifest.depths[-1] > layers:
        raise CheckpointError(f"{folder} claims an exit after {manifest.depths[-1]} layers; it has {layers}")
    return manifest


def chosen_depths(manifest: ElasticManifest, folder: Path, depths: tuple[int, ...] | None) -> tuple[int, ...]:
    """The depths asked for, all that were trained where left out.

    Raises CheckpointError where one was not trained.
    """
    wanted = manifest.depths if depths is None else depths
    if not wanted or not set(wanted) <= set(manifest.depths):
        raise CheckpointError(f"{folder} was trained for depths {manifest.depths}, asked for {wanted}")
    return wanted


def load_checkpoint(
    folder: Path, *, depths: tuple[int, ...] | None = None, max_tokens: int | None = None
) -> ReaderModel:
    """The trained model. depths: the exits wanted, all that were trained where left out. max_tokens: longest page, as
    long as trained where left out.

    Raises CheckpointError as `load_manifest` does, and where an exit is asked for that was not trained.
    """
    manifest = load_manifest(folder)
    wanted = chosen_depths(manifest, folder, depths)
    model = ReaderModel(
        read_shape(folder),
        Tokenizer.from_file(str(folder / _TOKENIZER)),
        depths=wanted,
        dim=manifest.dims[-1],
        token_weights=not manifest.unit_queries,
        max_tokens=max_tokens or manifest.max_tokens,
        max_query_tokens=manifest.max_query_tokens,
    )
    heads = load_file(folder / HEADS_NAME)
    try:
        model.backbone().load_state_dict(load_file(folder / MODEL_NAME))
        model.heads().load_state_dict({key: heads[key] for key in model.heads().state_dict()})
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"{folder}: weights that do not fit its config: {error}") from error
    return model


def _parse(raw: Mapping[str, Any]) -> ElasticManifest:
    if int(raw["format_version"]) > FORMAT_VERSION:
        raise ValueError(f"format {raw['format_version']} is newer than this budgetvdr reads (up to {FORMAT_VERSION})")
    return ElasticManifest(
        format_version=int(raw["format_version"]),
        family=str(raw["family"]),
        name=str(raw["name"]),
        depths=tuple(int(depth) for depth in raw["depths"]),
        dims=tuple(int(dim) for dim in raw["dims"]),
        query_depths={int(page): tuple(int(d) for d in depths) for page, depths in raw["query_depths"].items()},
        unit_queries=bool(raw["unit_queries"]),
        max_tokens=int(raw["max_tokens"]),
        max_query_tokens=int(raw["max_query_tokens"]),
        steps=int(raw["steps"]),
        files={str(file): str(digest) for file, digest in raw["files"].items()},
    )


def _check(manifest: ElasticManifest, folder: Path) -> None:
    for what, values in (("depths", manifest.depths), ("dims", manifest.dims)):
        if not values or list(values) != sorted(set(values)) or values[0] < 1:
            raise CheckpointError(f"{folder}: {what} must be ascending positive numbers, found {values}")
    for page, asked in manifest.query_depths.items():
        among = page in asked and set(asked) <= set(manifest.depths)
        if page not in manifest.depths or not among or list(asked) != sorted(set(asked)):
            raise CheckpointError(
                f"{folder}: query_depths of page depth {page} must be ascending, some of {manifest.depths} with {page} "
                f"itself, found {asked}"
            )
    with safe_open(folder / HEADS_NAME, framework="pt") as heads:
        rows = {key: heads.get_slice(key).get_shape()[0] for key in heads.keys()}  # noqa: SIM118  (no mapping)
    for depth in manifest.depths:
        width = rows.get(f"{depth}.projection.weight")
        if width is None:
            raise CheckpointError(
                f"{folder} claims an exit after {depth} layers: expected a head for it, found {sorted(rows)}"
            )
        if width != manifest.dims[-1]:
            raise CheckpointError(f"{folder} claims {manifest.dims[-1]} components; the head of {depth} has {width}")
