"""The tensors of a checkpoint, read one at a time, under the names of today's transformers; safetensors only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from budgetvdr.training.errors import CheckpointError

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PREFIXES = re.compile(r"^(?:(?:base_model|model|vlm)\.)+")


class Weights(Protocol):
    """Named tensors."""

    @property
    def names(self) -> Sequence[str]:
        """As the checkpoint has them."""

    def read(self, name: str) -> Tensor:
        """One of them; as long as nobody writes to it, it may be mapped from its file."""


class WeightFiles:
    """The tensors of some safetensors files. Raises CheckpointError where one cannot be read."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._places: dict[str, Path] = {}
        for file in files:
            with self._open(file) as stream:
                self._places.update(dict.fromkeys(stream.keys(), file))

    @classmethod
    def of_model(cls, folder: Path) -> Self:
        """All shards of the model in a folder.

        Raises CheckpointError where there is none or one is missing, and where there are only pickled weights:
        reading those runs code.
        """
        files = [folder / _SINGLE]
        if (folder / _INDEX).is_file():
            try:
                index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
                names = sorted(set(index["weight_map"].values()))
                strange = [name for name in names if Path(name).name != name]
            except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
                raise CheckpointError(
                    f"{folder / _INDEX} is not readable ({type(error).__name__}: {error}); get the checkpoint again"
                ) from error
            if strange:
                raise CheckpointError(f"{folder / _INDEX}: expected files in its folder, found {strange[0]!r}")
            files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            return cls(files)
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLED)
        if pickled:
            raise CheckpointError(
                f"{folder} holds pickled weights ({', '.join(pickled)}), which can run code when read: expected "
                "safetensors; convert them where you trust their source"
            )
        missing = [file.name for file in files if not file.is_file()]
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}: expected the weights as safetensors")

    @property
    def names(self) -> Sequence[str]:
        """Of all files."""
        return list(self._places)

    def read(self, name: str) -> Tensor:
        """One tensor."""
        with self._open(self._places[name]) as stream:
            tensor: Tensor = stream.get_tensor(name)
        return tensor

    @staticmethod
    def _open(file: Path) -> safe_open:
        try:
            return safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} is damaged or cut short: {error}") from error


class WeightsInMemory:
    """The tensors of a model already loaded."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    @property
    def names(self) -> Sequence[str]:
        """Of all tensors."""
        return list(self._tensors)

    def read(self, name: str) -> Tensor:
        """One tensor."""
        return self._tensors[name]


def plain_name(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """A name without the prefixes of wrappers, and as the family has it today."""
    plain = _PREFIXES.sub("", name)
    for pattern, replacement in renames:
        plain = re.sub(pattern, replacement, plain)
    return plain
