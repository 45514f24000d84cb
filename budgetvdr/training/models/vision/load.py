"""Published checkpoints -> models with exits."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from budgetvdr.errors import BundleError
from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.paligemma import PaliGemma
from budgetvdr.training.models.vision.weights import Weights

_HEADS = ("embedding_proj_layer", "custom_text_proj")


def load_vision(
    name: str | Path, *, depths: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32
) -> VisionModel:
    """A published checkpoint with exits after the layers of `depths`, the last layer where left out.

    name: a folder as Hugging Face lays them out. Only the layers needed for the deepest exit are read. Every exit
    begins with the checkpoint's own final norm and head; `trained_exits` has only its last layer.

    Raises CheckpointError for what is no checkpoint of a known family, for weights other than safetensors, and where
    weights are missing.
    """
    folder = Path(name)
    raw = _read_json(folder / "config.json")
    kind = family_of(raw, folder)
    config = plain_config(raw)
    total = int(config["text_config"]["num_hidden_layers"])
    wanted = (total,) if depths is None else depths
    if not wanted or max(wanted) > total or min(wanted) < 1:
        raise CheckpointError(f"{name} has {total} layers, asked for exits after {wanted}")
    config = with_layers(config, max(wanted))
    try:
        preprocessor = kind.preprocessor_of(config, processor_settings(folder), folder)
    except (KeyError, TypeError, ValueError, BundleError) as error:
        raise CheckpointError(f"{folder}: cannot prepare inputs ({type(error).__name__}: {error})") from error
    with no_init_weights():
        published = kind.empty(config)
    weights = Weights.of_folder(folder)
    fill(published, weights, kind, dtype)
    return kind(
        published.eval(),
        preprocessor,
        norm=copy.deepcopy(published.get_submodule(kind.norm_path)),
        projection=_head(weights, dtype),
        depths=tuple(wanted),
        trained_exits=(total,) if total in wanted else (),
    )


def family_of(config: Mapping[str, Any], folder: Path) -> type[VisionModel]:
    """The class for a `config.json`, of the plain model or of a wrapper."""
    families = {"paligemma": PaliGemma}
    kind = plain_config(config).get("model_type")
    if kind not in families:
        raise CheckpointError(
            f"{folder} is a {config.get('model_type')!r}: expected one of {', '.join(families)}, plain or wrapped"
        )
    return families[kind]


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the vision-language model inside of a wrapper for retrieval."""
    return dict(config.get("vlm_config") or config)


def processor_settings(folder: Path) -> dict[str, Any]:
    """What `preprocessor_config.json` and `processor_config.json` say, flat; newer files nest the former in the latter.

    Raises CheckpointError where there is neither.
    """
    found: dict[str, Any] = {}
    for file in ("preprocessor_config.json", "processor_config.json"):
        if (folder / file).is_file():
            settings = _read_json(folder / file)
            found |= settings.pop("image_processor", None) or {}
            found |= settings
    if not found:
        raise CheckpointError(f"{folder} has no preprocessor_config.json, which says how pictures enter the model")
    return found


def with_layers(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A copy whose decoder has the first `count` layers."""
    text = dict(config["text_config"])
    text["num_hidden_layers"] = count
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:count]
    return {**config, "text_config": text}


def fill(published: nn.Module, weights: Weights, kind: type[VisionModel], dtype: torch.dtype) -> None:
    """Puts the weights in place, one at a time. Raises CheckpointError where one is missing or of another shape."""
    places = kind_places(weights, kind)
    found: dict[str, Tensor] = {}
    for name, expected in published.state_dict().items():
        if name not in places:
            raise CheckpointError(f"{weights.folder} has no weights for {name}")
        tensor = weights.read(places[name])
        if tensor.shape != expected.shape:
            raise CheckpointError(
                f"{weights.folder}: {places[name]} is {tuple(tensor.shape)}, its config says {tuple(expected.shape)}"
            )
        found[name] = tensor.to(dtype)
    published.load_state_dict(found, assign=True)


def kind_places(weights: Weights, kind: type[VisionModel]) -> dict[str, str]:
    """Name in the transformers model -> name in the checkpoint."""
    return {weights.plain_name(name, kind.renames): name for name in weights.names}


def _head(weights: Weights, dtype: torch.dtype) -> nn.Linear:
    names = {weights.plain_name(name, ()): name for name in weights.names}
    for head in _HEADS:
        if f"{head}.weight" in names:
            weight = weights.read(names[f"{head}.weight"])
            bias = names.get(f"{head}.bias")
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=dtype)
            with torch.no_grad():
                linear.weight.copy_(weight)
                if bias is not None:
                    linear.bias.copy_(weights.read(bias))
            return linear
    raise CheckpointError(
        f"{weights.folder} has no projection head ({' or '.join(_HEADS)}): it is not trained for late interaction"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable ({type(error).__name__}: {error})") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected an object, found a {type(raw).__name__}")
    return raw
