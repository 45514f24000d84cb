"""The tensors of a checkpoint folder, read one at a time; safetensors only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from budgetvdr.training.errors import CheckpointError

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PREFIXES = re.compile(r"^(?:(?:base_model|model|vlm)\.)+")


class Weights:
    """Name -> tensor, over the safetensors files of a folder.

    Raises CheckpointError where there is none, and where there are pickled weights instead: reading those runs code.
    """

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        self.folder = folder
        self._places: dict[str, Path] = {}
        for file in files:
            with self._open(file) as stream:
                self._places.update(dict.fromkeys(stream.keys(), file))

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """All shards of a model."""
        files = sorted(folder.glob("model*.safetensors"))
        if files:
            return cls(folder, files)
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLED)
        if pickled:
            raise CheckpointError(
                f"{folder} holds pickled weights ({', '.join(pickled)}), which can run code when read: expected "
                "safetensors; convert them where you trust their source"
            )
        raise CheckpointError(f"{folder} has no model*.safetensors")

    @property
    def names(self) -> Mapping[str, Path]:
        """Every tensor's name, with its file."""
        return self._places

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own."""
        with self._open(self._places[name]) as stream:
            tensor: Tensor = stream.get_tensor(name)
        return tensor

    @staticmethod
    def plain_name(name: str, renames: Sequence[tuple[str, str]]) -> str:
        """A name without the prefixes of wrappers, and as the family has it today."""
        plain = _PREFIXES.sub("", name)
        for pattern, replacement in renames:
            plain = re.sub(pattern, replacement, plain)
        return plain

    @staticmethod
    def _open(file: Path) -> safe_open:
        try:
            return safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} is damaged or truncated: {error}") from error
