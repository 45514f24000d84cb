"""LoRA adapters as peft publishes them, merged into the weights they adapt while these are read.

The names in an adapter are those of the class it was trained with, often an older one than today's; merging under plain
names is spared from building that class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.models.vision.weights import WeightFiles, Weights, plain_name

CONFIG_NAME, _WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_PICKLED_NAME = "adapter_model.bin"
_PART = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[AB])(?:\.[^.]+)?\.weight$")
_PEFTS_OWN = re.compile(r"\.(?:base_layer|modules_to_save(?:\.[^.]+)?|original_module)(?=\.)")


class Adapter:
    """An adapter's folder.

    Raises CheckpointError for adapters other than plain LoRA, and for pickled ones.
    """

    def __init__(self, folder: Path, renames: Sequence[tuple[str, str]]) -> None:
        self.folder = folder
        self._config = read_adapter_config(folder)
        if not (folder / _WEIGHTS_NAME).is_file():
            found = "pickled weights" if (folder / _PICKLED_NAME).is_file() else "none"
            raise CheckpointError(f"{folder}: expected the adapter's weights as {_WEIGHTS_NAME}, found {found}")
        self._weights = WeightFiles([folder / _WEIGHTS_NAME])
        # Plain name of the weight -> of its two factors, and of weights the adapter has whole.
        self._factors: dict[str, dict[str, str]] = {}
        self._whole: dict[str, str] = {}
        for name in self._weights.names:
            part = _PART.match(name)
            if part is None:
                self._whole[plain_name(_PEFTS_OWN.sub("", name), renames)] = name
            else:
                self._factors.setdefault(plain_name(f"{part['module']}.weight", renames), {})[part["part"]] = name

    @property
    def adapted(self) -> set[str]:
        """Plain names of the weights it changes."""
        return {*self._factors, *self._whole}

    def read(self, name: str) -> Tensor:
        """A weight that it has whole."""
        return self._weights.read(self._whole[name])

    def has_whole(self, name: str) -> bool:
        """Whether the adapter brings a weight instead of changing it."""
        return name in self._whole

    def applied(self, name: str, weight: Tensor) -> Tensor:
        """The weight with the product of the factors added, in float32; as it came where it is not adapted."""
        if name not in self._factors:
            return weight
        parts = self._factors[name]
        if set(parts) != {"A", "B"}:
            raise CheckpointError(f"{self.folder}: {name} has one factor of two, {sorted(parts)}")
        down, up = (self._weights.read(parts[part]).float() for part in "AB")
        if down.ndim != 2 or up.ndim != 2 or (up.shape[0], down.shape[1]) != weight.shape:
            raise CheckpointError(
                f"{self.folder}: factors {tuple(up.shape)} and {tuple(down.shape)} do not fit {name} "
                f"{tuple(weight.shape)}"
            )
        rank = down.shape[0]
        scale = self._alpha(name) / (rank**0.5 if self._config.get("use_rslora") else rank)
        return torch.addmm(weight.float(), up, down, alpha=scale)

    def _alpha(self, name: str) -> float:
        # Patterns are ends of module names, as peft matches them.
        module = name.removesuffix(".weight")
        for pattern, alpha in (self._config.get("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return float(alpha)
        return float(self._config["lora_alpha"])


class Merged:
    """The weights of a checkpoint under plain names, with an adapter's changes.

    Raises CheckpointError where the adapter changes weights that the checkpoint does not have.
    """

    def __init__(self, weights: Weights, renames: Sequence[tuple[str, str]], adapter: Adapter | None = None) -> None:
        self._weights, self._adapter = weights, adapter
        self._places = {plain_name(name, renames): name for name in weights.names}
        if adapter is not None:
            strange = {name for name in adapter.adapted - set(self._places) if not adapter.has_whole(name)}
            if strange:
                raise CheckpointError(
                    f"{adapter.folder} adapts {', '.join(sorted(strange)[:3])}, which its base model does not have"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._places or (self._adapter is not None and self._adapter.has_whole(name))

    def read(self, name: str) -> Tensor:
        """One weight."""
        if self._adapter is None:
            return self._weights.read(self._places[name])
        if self._adapter.has_whole(name):
            return self._adapter.read(name)
        return self._adapter.applied(name, self._weights.read(self._places[name]))


def read_adapter_config(folder: Path) -> Mapping[str, Any]:
    """`adapter_config.json`. Raises CheckpointError where it is not that of a plain LoRA."""
    path = folder / CONFIG_NAME
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind, base = config["peft_type"], config["base_model_name_or_path"]
        float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not that of a LoRA ({type(error).__name__}: {error}); get the adapter again"
        ) from error
    unusual = [name for name in ("use_dora", "fan_in_fan_out", "lora_bias") if config.get(name)]
    if kind != "LORA" or unusual or not isinstance(base, str):
        raise CheckpointError(f"{path}: expected a plain LoRA with the name of its base, found {kind} {unusual}")
    return config
