"""What an export is made from: a folder, or a name on the Hugging Face hub, published or trained here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from budgetvdr.budget import is_count
from budgetvdr.bundle import MANIFEST_NAME as BUNDLE_NAME
from budgetvdr.encoders.hub import CHECKPOINT_NAMES
from budgetvdr.encoders.open import usual_depths
from budgetvdr.export.errors import ExportError
from budgetvdr.export.stages import sha256
from budgetvdr.training.checkpoint import MANIFEST_NAME, chosen_depths, read_manifest
from budgetvdr.training.models.vision.adapters import CONFIG_NAME
from budgetvdr.training.models.vision.inputs import limit_pages, prefix_queries
from budgetvdr.training.models.vision.load import (
    FAMILIES,
    base_of,
    fetch,
    layer_count,
    load_vision,
    plain_config,
    read_json,
)
from budgetvdr.training.models.vision.model import VisionModel


@dataclass(frozen=True, slots=True)
class Plan:
    """A checkpoint and what is wanted of it.

    name: what a person calls it. folders: the checkpoint and, of an adapter, the model it is for. depths: exits,
    ascending. dims: prefix widths, ascending; the last is the width of the vectors, what lies behind it is left out.
    None for those it was trained for, or the usual ones. image_tokens: most of a page, None for those of the
    checkpoint. query_prefix: the words before a query, None for those of its library. trust_remote_code: whether the
    checkpoint's own code may run.
    """

    name: str
    folders: tuple[Path, ...]
    depths: tuple[int, ...]
    dims: tuple[int, ...] | None
    image_tokens: int | None = None
    query_prefix: str | None = None
    trust_remote_code: bool = False

    def load(self) -> VisionModel:
        """The model in float32.

        Raises CheckpointError where it cannot be had, ExportError where it is narrower, TrainingError where its pages
        cannot have so few tokens.
        """
        model = load_vision(self.folders[0], depths=self.depths, trust_remote_code=self.trust_remote_code)
        if self.dims is not None:
            narrow(model, self.dims[-1])
        if self.image_tokens is not None:
            limit_pages(model, self.image_tokens)
        if self.query_prefix is not None:
            prefix_queries(model, self.query_prefix)
        return model

    def digest(self) -> str:
        """Hex digest of the checkpoint's files and of what is wanted of it."""
        files = sorted(
            path for folder in self.folders for kind in ("json", "safetensors") for path in folder.glob(f"*.{kind}")
        )
        found = [(path.name, sha256(path)) for path in files]
        wanted = [self.depths, self.dims and self.dims[-1], self.image_tokens, self.query_prefix]
        return hashlib.sha256(json.dumps([found, *wanted]).encode()).hexdigest()


def plan(
    checkpoint: str,
    depths: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    *,
    image_tokens: int | None = None,
    query_prefix: str | None = None,
    trust_remote_code: bool = False,
) -> Plan:
    """Finds the checkpoint and chooses what is left open.

    depths: by default those it was trained for here, or a quarter, half and all of the layers.

    Raises CheckpointError where there is no such checkpoint or it was not trained for a depth, ExportError for a bundle
    and for depths and widths that are none or that the model, as far as its config tells, does not have.
    """
    for what, values in (("--depths", depths), ("--dims", dims)):
        if values is not None and (not values or min(values) < 1):
            raise ExportError(f"{what} must be whole numbers from 1 on, found {list(values)}")
    folder = fetch(checkpoint)
    if (folder / BUNDLE_NAME).is_file() and not any((folder / each).is_file() for each in CHECKPOINT_NAMES):
        raise ExportError(f"{checkpoint} is an encoder bundle already: open an index with it, encoder={checkpoint!r}")
    folders = [folder]
    if (folder / CONFIG_NAME).is_file():
        folders.append(fetch(base_of(folder)))
    name = folder.resolve().name if Path(checkpoint).is_dir() else checkpoint
    if (folder / MANIFEST_NAME).is_file():
        trained = read_manifest(folder)
        name, depths = trained.name, chosen_depths(trained, folder, None if depths is None else tuple(depths))
        width: Any = trained.dims[-1]
    else:
        config = read_json(folders[-1] / "config.json")
        width = config.get("embedding_dim")
        depths = _published_depths(plain_config(config), depths, checkpoint)
    if dims is not None and is_count(width):
        check_width(max(dims), width)
    chosen = None if dims is None else tuple(sorted(set(dims)))
    return Plan(name, tuple(folders), tuple(sorted(set(depths))), chosen, image_tokens, query_prefix, trust_remote_code)


def _published_depths(config: Mapping[str, Any], depths: Sequence[int] | None, name: str) -> Sequence[int]:
    """Those asked for, as far as the config tells whether the model has them, or the usual ones."""
    if depths is None:
        return usual_depths(layer_count(config))
    if config.get("model_type") in FAMILIES and max(depths) > layer_count(config):
        raise ExportError(f"{name} has {layer_count(config)} layers, asked for exits after {list(depths)}")
    return depths


def check_width(wanted: int, width: int) -> None:
    """Raises ExportError for more components than the model's vectors have."""
    if wanted > width:
        raise ExportError(f"--dims up to {wanted}: the model's vectors have {width} components")


def narrow(model: VisionModel, width: int) -> None:
    """Leaves the first `width` components of every exit. Raises ExportError where there are fewer."""
    check_width(width, model.dim)
    for exit_ in model.heads().children():
        projection = exit_.get_submodule("projection")
        assert isinstance(projection, nn.Linear)
        projection.weight = nn.Parameter(projection.weight[:width].detach().clone())
        if projection.bias is not None:
            projection.bias = nn.Parameter(projection.bias[:width].detach().clone())
        projection.out_features = width
    model.dim, model.dims = width, (*(dim for dim in model.dims if dim < width), width)
