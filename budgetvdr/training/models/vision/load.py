"""Published checkpoints -> models with exits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel
from transformers.initialization import no_init_weights

from budgetvdr.budget import is_count
from budgetvdr.encoders.vision import TOKENIZER_NAME, Preprocessor, open_preprocessor
from budgetvdr.errors import BundleError
from budgetvdr.training.checkpoint import HEADS_NAME, MANIFEST_NAME, chosen_depths, read_manifest
from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.models.vision.adapters import CONFIG_NAME, Adapter, Merged, read_adapter_config
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.modernvbert import ModernVBert
from budgetvdr.training.models.vision.paligemma import PaliGemma
from budgetvdr.training.models.vision.qwen import Qwen
from budgetvdr.training.models.vision.weights import WeightFiles, Weights, WeightsInMemory

FAMILIES: Mapping[str, type[VisionModel]] = {
    "paligemma": PaliGemma,
    "qwen2_vl": Qwen,
    "qwen2_5_vl": Qwen,
    "qwen3_vl": Qwen,
    "modernvbert": ModernVBert,
}
"""`model_type` of the plain model -> its class."""

_PROCESSOR_NAMES = ("preprocessor_config.json", "processor_config.json")
_HEADS = ("embedding_proj_layer", "custom_text_proj")
# Weights in other formats stay where they are.
_WANTED_FILES = ["*.json", "*.safetensors", "*.py"]


def load_vision(
    name: str | Path,
    *,
    depths: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    new_head: int | None = None,
) -> VisionModel:
    """A published checkpoint with exits after the layers of `depths`, the last layer where left out.

    name: a folder as Hugging Face lays them out, or the name of one on its hub (see `fetch`): a model of transformers'
    own retrieval classes, of colpali-engine's, or a LoRA adapter for one, which is merged; or what `save_vision` wrote.
    dtype: of the weights. trust_remote_code: whether a model that brings its own code may run it; where it wraps a
    known family in a known way the code is not needed. new_head: components of a random head for a model that has
    none, to be trained; always the same one. No exit of such a model counts as trained.

    Only the decoder layers for the deepest exit are kept. Every exit of a published checkpoint begins with its own
    final norm and head, so that only its last layer counts as trained (`trained_exits`); one trained here has all
    exits that it was trained for, and no others.

    Raises CheckpointError for what is no checkpoint of a known family, for weights other than safetensors, for weights
    that are missing or do not fit, and for a new head where there is one.
    """
    folder = fetch(name)
    if (folder / MANIFEST_NAME).is_file():
        if new_head is not None:
            raise CheckpointError(f"{folder} has heads of its own: leave out the new one")
        return _load_trained(folder, depths, dtype)
    folders, config, weights = _published(folder, trusted=trust_remote_code)
    kind = FAMILIES[config["model_type"]]
    total = layer_count(config)
    wanted = (total,) if depths is None else depths
    if not wanted or max(wanted) > total or min(wanted) < 1:
        raise CheckpointError(f"{name} has {total} layers, asked for exits after {wanted}")
    published = _filled(kind, with_layers(config, max(wanted)), weights, dtype, folders[-1])
    preprocessor, tokenizer = _preprocessor(kind, config, folders)
    norm = published.get_submodule(kind.norm_path)
    model = kind(
        published,
        preprocessor,
        norm=norm,
        projection=_head(weights, norm.get_parameter("weight").shape[0], dtype, folders[-1], new_head),
        depths=tuple(wanted),
        trained_exits=(total,) if total in wanted and new_head is None else (),
    )
    model.tokenizer_file = tokenizer
    return model.eval()


def _published(folder: Path, *, trusted: bool) -> tuple[Sequence[Path], dict[str, Any], Merged]:
    """A checkpoint's folder and, behind that of an adapter, its model's; the plain config; all weights."""
    folders = [folder]
    if (folder / CONFIG_NAME).is_file():
        folders.append(fetch(base_of(folder)))
    config = read_json(folders[-1] / "config.json")
    weights: Weights
    if plain_config(config).get("model_type") in FAMILIES:
        weights = WeightFiles.of_model(folders[-1])
    else:
        config, weights = _with_own_code(config, folders[-1], trusted=trusted)
    config = plain_config(config)
    renames = FAMILIES[config["model_type"]].renames
    return folders, config, Merged(weights, renames, Adapter(folder, renames) if len(folders) > 1 else None)


def _load_trained(folder: Path, depths: tuple[int, ...] | None, dtype: torch.dtype) -> VisionModel:
    """What `save_vision` wrote: every exit has a norm and head of its own."""
    manifest = read_manifest(folder)
    wanted = chosen_depths(manifest, folder, depths)
    config = read_json(folder / "config.json")
    kind = FAMILIES.get(manifest.family)
    if kind is None or config.get("model_type") != manifest.family:
        raise CheckpointError(f"{folder} is of the family {manifest.family!r}; expected one of {', '.join(FAMILIES)}")
    published = _filled(kind, with_layers(config, wanted[-1]), Merged(WeightFiles.of_model(folder), ()), dtype, folder)
    heads = load_file(folder / HEADS_NAME)
    rows, columns = heads[f"{wanted[-1]}.projection.weight"].shape
    model = kind(
        published,
        open_preprocessor(folder),
        norm=published.get_submodule(kind.norm_path),
        projection=nn.Linear(columns, rows, bias=f"{wanted[-1]}.projection.bias" in heads, dtype=dtype),
        depths=wanted,
        trained_exits=wanted,
    )
    try:
        model.heads().load_state_dict({key: finite(key, heads[key], folder) for key in model.heads().state_dict()})
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"{folder}: heads that do not fit the model: {error}") from error
    model.dims = manifest.dims
    model.query_depths = {
        page: tuple(depth for depth in queries if depth in wanted)
        for page, queries in manifest.query_depths.items()
        if page in wanted
    }
    model.tokenizer_file = folder / TOKENIZER_NAME
    return model.eval()


def _filled(
    kind: type[VisionModel], config: Mapping[str, Any], weights: Merged, dtype: torch.dtype, folder: Path
) -> nn.Module:
    try:
        with no_init_weights():
            published = kind.empty(config)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: no {config.get('model_type')} can be made of its config ({type(error).__name__}: {error}); "
            "get its config.json again"
        ) from error
    fill(published, weights, dtype, folder)
    return published


def fetch(name: str | Path) -> Path:
    """The folder itself, or that of a download of "owner/name" or "owner/name@revision".

    Raises CheckpointError where there is neither.
    """
    if Path(name).is_dir():
        return Path(name)
    repository, _, revision = str(name).partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=_WANTED_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise CheckpointError(
            f"{name} is neither a folder nor a model that could be had from the hub ({type(error).__name__}: {error})"
        ) from error


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the vision-language model inside of a wrapper for retrieval."""
    return dict(config.get("vlm_config") or config)


def layer_count(config: Mapping[str, Any]) -> int:
    """Of the decoder, from a plain config. Early ones have the decoder's sizes at the top.

    Raises CheckpointError where it says of none.
    """
    count: Any = {**config, **(config.get("text_config") or {})}.get("num_hidden_layers")
    if not is_count(count):
        raise CheckpointError(
            f"the config of this {config.get('model_type')} does not say how many layers its decoder has: expected a "
            f"whole number from 1 on for num_hidden_layers, found {count!r}; get the checkpoint's config.json again"
        )
    return int(count)


def with_layers(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A copy of a plain config whose decoder has the first `count` layers."""
    inner = "num_hidden_layers" in (config.get("text_config") or {})
    text = dict(config["text_config"] if inner else config)
    text["num_hidden_layers"] = count
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:count]
    return {**config, "text_config": text} if inner else text


def fill(published: nn.Module, weights: Merged, dtype: torch.dtype, folder: Path) -> None:
    """Puts the weights in place, one at a time.

    Raises CheckpointError where one is missing, of another shape or not finite.
    """
    found = {}
    for name, expected in published.state_dict().items():
        if name not in weights:
            raise CheckpointError(f"{folder} has no weights for {name}")
        tensor = weights.read(name)
        if tensor.shape != expected.shape:
            raise CheckpointError(f"{folder}: {name} is {tuple(tensor.shape)}, its config says {tuple(expected.shape)}")
        found[name] = finite(name, tensor, folder).to(dtype)
    published.load_state_dict(found, assign=True)


def finite(name: str, tensor: Tensor, folder: Path) -> Tensor:
    """The tensor itself. Raises CheckpointError where it holds infinities or what is no number."""
    if not torch.isfinite(tensor).all():
        raise CheckpointError(
            f"{folder}: {name} has values that are not finite, expected numbers only; get the checkpoint again, or one "
            "of an earlier step of its training"
        )
    return tensor


def read_json(path: Path) -> dict[str, Any]:
    """Raises CheckpointError where the file is no JSON object."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not readable ({type(error).__name__}: {error}); get the checkpoint again"
        ) from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected an object, found a {type(raw).__name__}")
    return raw


def base_of(adapter: Path) -> str | Path:
    """The model an adapter is for: a folder, or a name on the hub. Raises CheckpointError for one that is no LoRA."""
    base = str(read_adapter_config(adapter)["base_model_name_or_path"])
    beside = adapter / base
    return beside if beside.is_dir() else base


def _preprocessor(
    kind: type[VisionModel], config: Mapping[str, Any], folders: Sequence[Path]
) -> tuple[Preprocessor, Path]:
    """From the first folder that has what a processor needs, adapters mostly do; and its tokenizer's file."""
    for folder in folders:
        files = [folder / file for file in _PROCESSOR_NAMES]
        present = [file for file in files if file.is_file()]
        if not present or not (folder / TOKENIZER_NAME).is_file():
            continue
        settings: dict[str, Any] = {}
        for file in present:
            # Newer files nest the settings for pictures in those of the processor.
            raw = read_json(file)
            settings |= raw.pop("image_processor", None) or {}
            settings |= raw
        try:
            return kind.preprocessor_of(config, settings, folder), folder / TOKENIZER_NAME
        except (KeyError, TypeError, ValueError, BundleError) as error:
            raise CheckpointError(
                f"{folder}: inputs cannot be prepared as {' and '.join(file.name for file in present)} and "
                f"{TOKENIZER_NAME} say ({type(error).__name__}: {error}); get these files again"
            ) from error
    there = {file for file in (*_PROCESSOR_NAMES, TOKENIZER_NAME) if (folders[-1] / file).is_file()}
    missing = [] if there & set(_PROCESSOR_NAMES) else [_PROCESSOR_NAMES[0]]
    missing += [] if TOKENIZER_NAME in there else [TOKENIZER_NAME]
    raise CheckpointError(
        f"{folders[-1]} has no {' and no '.join(missing)}, expected beside the weights to say how pages and queries "
        "enter; get the checkpoint again with all of its files"
    )


def _head(weights: Merged, hidden: int, dtype: torch.dtype, folder: Path, new: int | None) -> nn.Linear:
    """The checkpoint's, or a new one of so many components where it has none."""
    for head in _HEADS:
        if f"{head}.weight" in weights:
            if new is not None:
                raise CheckpointError(f"{folder} has a head of its own: leave out the new one")
            weight = finite(f"{head}.weight", weights.read(f"{head}.weight"), folder)
            with_bias = f"{head}.bias" in weights
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=with_bias, dtype=dtype)
            with torch.no_grad():
                linear.weight.copy_(weight)
                if with_bias:
                    linear.bias.copy_(finite(f"{head}.bias", weights.read(f"{head}.bias"), folder))
            return linear
    if new is not None:
        return _random_head(hidden, new, dtype)
    raise CheckpointError(
        f"{folder} has no projection head ({' or '.join(_HEADS)}): it is not trained for late interaction; "
        "to train it, begin with a new head (new_head=128)"
    )


def _random_head(hidden: int, width: int, dtype: torch.dtype) -> nn.Linear:
    """A projection that nearly keeps angles. The same each time: resumed runs and all processes must begin alike."""
    linear = nn.Linear(hidden, width, dtype=dtype)
    with torch.no_grad():
        weight = torch.randn(width, hidden, generator=torch.Generator().manual_seed(0))
        linear.weight.copy_(weight / hidden**0.5)
        linear.bias.zero_()
    return linear


def _with_own_code(config: Mapping[str, Any], folder: Path, *, trusted: bool) -> tuple[dict[str, Any], Weights]:
    """A model whose wrapper only its own code knows: built by that code, then taken out of it."""
    outer, inner = config.get("model_type"), plain_config(config).get("model_type")
    kind = f"{inner!r}" if inner == outer else f"{inner!r} inside of a {outer!r}"
    if "auto_map" not in config:
        raise CheckpointError(f"{folder} is a {kind}: expected one of {', '.join(FAMILIES)}, plain or wrapped")
    if not trusted:
        raise CheckpointError(
            f"{folder} is a {kind} that brings its own code, which is not run unless asked for "
            "(trust_remote_code=True): read it first"
        )
    WeightFiles.of_model(folder)  # pickled weights are refused here too
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    for inner in _configs(model.config.to_dict()):
        if inner.get("model_type") in FAMILIES:
            return inner, WeightsInMemory(model.state_dict())
    raise CheckpointError(f"{folder}: there is none of {', '.join(FAMILIES)} inside of {type(model).__name__}")


def _configs(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield dict(config)
    for value in config.values():
        if isinstance(value, dict):
            yield from _configs(value)
