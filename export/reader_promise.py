"""What the reader's weights are good for: published ones, and those of an elastic checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reader_graph import Head
from safetensors import SafetensorError
from safetensors.numpy import load_file

from budgetvdr.bundle import Preset
from budgetvdr.training.files import sha256
from budgetvdr.training.published import PUBLISHED_NAME

ELASTIC_NAME = "elastic.json"
_ELASTIC_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the weights are good for, as the manifest will say it.

    depths, dims: ascending; trained_exits: those of the depths that were trained. query_depths: page depth -> query
    depths trained for it. heads: depth -> head, none for an exit that gives its hidden states. Query vectors are of
    unit length unless the heads weigh tokens. max_tokens, max_query_tokens: longest texts, both marks included.
    """

    name: str
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    trained_exits: tuple[int, ...]
    query_depths: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    heads: Mapping[int, Head] = field(default_factory=dict)
    max_tokens: int = 256
    max_query_tokens: int = 256

    @property
    def unit_queries(self) -> bool:
        """Whether query vectors carry no weights."""
        return all(head.token_weight is None for head in self.heads.values())

    @property
    def presets(self) -> dict[str, Preset]:
        """Named points, all of the deepest exit: a query's layers are a small part of its search, width is not."""
        # The narrowest of several widths saves a millisecond in twenty more and costs a fifth of the quality
        # (docs/results.md).
        narrow = self.dims[1 if len(self.dims) > 2 else 0]
        widths = {"full": self.dims[-1], "balanced": self.dims[len(self.dims) // 2], "fast": narrow}
        return {name: Preset(self.depths[-1], dim) for name, dim in widths.items()}


PUBLISHED = Promise(name=PUBLISHED_NAME, depths=(2, 4, 6), dims=(32, 64, 128, 256, 384), trained_exits=(6,))


def published_promise(depths: tuple[int, ...] | None, dims: tuple[int, ...] | None) -> Promise:
    """The published weights with other exits and widths, ascending; ends the run where they have no such."""
    depths, dims = depths or PUBLISHED.depths, dims or PUBLISHED.dims
    deepest, width = PUBLISHED.depths[-1], PUBLISHED.dims[-1]
    if depths[-1] > deepest or dims[-1] != width:
        raise SystemExit(
            f"expected exits up to {deepest} and widths up to {width}, the last of them that, found {depths} and {dims}"
        )
    trained = tuple(depth for depth in PUBLISHED.trained_exits if depth in depths)
    return replace(PUBLISHED, depths=depths, dims=dims, trained_exits=trained)


def elastic_promise(
    folder: Path, *, depths: tuple[int, ...] | None = None, dims: tuple[int, ...] | None = None
) -> Promise:
    """What an elastic checkpoint was trained for, with its heads.

    depths, dims: ascending exits and widths wanted, trained or not; left out: those that were trained.

    Ends the run where a file is missing or damaged, where the heads are not those that its manifest names, and where
    an exit or a width is wanted that they do not have.
    """
    try:
        raw = json.loads((folder / ELASTIC_NAME).read_text(encoding="utf-8"))
        _check(raw, folder)
        trained = Promise(
            name=str(raw["name"]),
            depths=tuple(int(depth) for depth in raw["depths"]),
            dims=tuple(int(dim) for dim in raw["dims"]),
            trained_exits=tuple(int(depth) for depth in raw["depths"]),
            query_depths={int(page): tuple(asked) for page, asked in raw["query_depths"].items()},
            max_tokens=int(raw["max_tokens"]),
            max_query_tokens=int(raw["max_query_tokens"]),
        )
        width, weighted = trained.dims[-1], not raw["unit_queries"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise SystemExit(
            f"{folder / ELASTIC_NAME} is not a readable manifest ({type(error).__name__}: {error})"
        ) from error
    depths, dims = depths or trained.depths, dims or trained.dims
    if dims[-1] != width:
        raise SystemExit(f"{folder} has heads {width} components wide: expected widths up to that, found {dims}")
    return replace(
        trained,
        depths=depths,
        dims=dims,
        trained_exits=_among(trained.depths, depths),
        query_depths={page: _among(asked, depths) for page, asked in trained.query_depths.items() if page in depths},
        heads=_heads(folder, depths, width, weighted=weighted),
    )


def _among(values: tuple[int, ...], allowed: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value for value in values if value in allowed)


def _check(raw: Mapping[str, Any], folder: Path) -> None:
    if raw["format_version"] > _ELASTIC_VERSION or raw["family"] != "reader":
        raise SystemExit(
            f"{folder / ELASTIC_NAME}: expected a reader of format {_ELASTIC_VERSION} or older, found "
            f"{raw['family']!r} of format {raw['format_version']}"
        )
    for file, expected in raw["files"].items():
        if not (folder / file).is_file() or sha256(folder / file) != expected:
            raise SystemExit(f"{folder / file} is missing or damaged: its sha256 is not the one in {ELASTIC_NAME}")


def _heads(folder: Path, depths: tuple[int, ...], width: int, *, weighted: bool) -> dict[int, Head]:
    path = folder / "heads.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise SystemExit(f"{path} cannot be read: {error}") from error
    heads = {}
    for depth in depths:
        parts = [f"{depth}.projection.weight", f"{depth}.projection.bias"]
        parts += [f"{depth}.weight.weight", f"{depth}.weight.bias"] if weighted else []
        missing = [part for part in parts if part not in tensors]
        if missing or len(tensors[parts[0]]) != width:
            raise SystemExit(
                f"{path}: expected {', '.join(parts)}, {width} components wide, found "
                f"{ {name: values.shape for name, values in sorted(tensors.items())} }"
            )
        head = Head(*(tensors[part] for part in parts))
        if not head.is_identity:
            heads[depth] = head
    return heads
