"""Arguments of the index's methods: is each one of its choices, and what to say where it is not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex, get_args

from budgetvdr.budget import is_count
from budgetvdr.bundle import Manifest
from budgetvdr.encoders.onnx import check_names
from budgetvdr.errors import BudgetError, IndexFormatError, IndexMismatchError, QueryError
from budgetvdr.intake import IfExists
from budgetvdr.pages import ReadMode
from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, Where


def threads_or_cores(threads: int | None) -> int:
    """The number of threads asked for, or one for each core this process may use. Raises ValueError for less than 1."""
    if threads is None:
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not is_count(threads):
        raise ValueError(f"threads must be a whole number, at least 1; found {threads!r}")
    return int(threads)


def check_path(path: object) -> None:
    """Raises IndexFormatError for what cannot name an index."""
    if not isinstance(path, str | os.PathLike) or not str(path).strip():
        found = repr(path) if isinstance(path, str) else type(path).__name__
        raise IndexFormatError(f"the path of an index is a folder or an object-store URI; found {found}")


def check_open(*, encoder: object, providers: object, storage_options: object) -> None:
    """Raises ValueError for an argument of `Index.open` that is none of its choices."""
    if encoder is not None and not isinstance(encoder, str | Path) and not hasattr(encoder, "manifest"):
        raise ValueError(f"encoder is a bundle's folder, an Encoder, or None for the bundled one; found {encoder!r}")
    check_names(providers)
    if storage_options is not None and not isinstance(storage_options, Mapping):
        # Not the value: it may be a secret.
        raise ValueError(f"storage_options is a mapping of texts; found {type(storage_options).__name__}")


def settings_for(manifest: Manifest, depths: Sequence[int] | None) -> IndexSettings:
    """The settings of an index of a bundle; depths: the exits it stores, None for all.

    Raises BudgetError for depths the bundle lacks, and for none.
    """
    chosen = manifest.depths
    if depths is not None:
        asked = list(depths) if isinstance(depths, Iterable) and not isinstance(depths, str | bytes) else []
        chosen = tuple(depth for depth in manifest.depths if depth in asked)
        if not chosen or not all(depth in chosen for depth in asked):
            raise BudgetError(
                f"depths must be a list of some of {list(manifest.depths)}, the bundle's exits; found {depths!r}"
            )
    return IndexSettings(STORE_FORMAT_VERSION, manifest.fingerprint, manifest.name, chosen, manifest.dims)


def version_of(version: object) -> int | None:
    """The number of a version, or None. Raises ValueError for anything else."""
    if version is None:
        return None
    if isinstance(version, bool) or not isinstance(version, SupportsIndex):
        raise ValueError(f"version is the number of a version, or None for the latest; found {version!r}")
    return index(version)


def check_add(metadata: object, *, password: object, batch_size: object, if_exists: object, read: object) -> None:
    """Raises ValueError for an argument of `add_pages` that is none of its choices."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ValueError(f'metadata is a mapping, such as {{"year": 2024}}; found {metadata!r:.60}')
    if password is not None and not isinstance(password, str):
        raise ValueError(f"password is a text; found {type(password).__name__}")
    if not is_count(batch_size):
        raise ValueError(f"batch_size must be a whole number of pages, at least 1; found {batch_size!r}")
    for name, value, known in (("if_exists", if_exists, get_args(IfExists)), ("read", read, get_args(ReadMode))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; found {value!r}")


def check_first_stage(first_stage: object) -> None:
    """Raises ValueError for what `optimize` does not take for it."""
    if first_stage is not None and not isinstance(first_stage, bool):
        raise ValueError(f"first_stage must be True, False or None; found {first_stage!r}")


def texts_of(queries: object) -> list[str]:
    """One query or a sequence of them, as a list. Raises QueryError for anything else, naming what is at fault."""
    if isinstance(queries, str):
        queries = [queries]
    if not isinstance(queries, Sequence) or isinstance(queries, bytes | bytearray):
        raise QueryError(f"a query is a string, or a sequence of strings; found {type(queries).__name__}")
    for place, text in enumerate(queries):
        if not isinstance(text, str):
            raise QueryError(f"queries are strings; found {type(text).__name__} {text!r} at place {place} of the list")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise QueryError(f"the query {text!r:.60} holds half a character (a lone surrogate), not text") from None
    return list(queries)


def doc_ids_of(doc_id: object) -> list[str]:
    """One id or many, as a list. Raises QueryError for anything else."""
    doc_ids = _listed(doc_id, str)
    if doc_ids is None or not all(isinstance(each, str) for each in doc_ids):
        raise QueryError(f"delete(doc_id=...) takes a string or a list of strings; found {doc_id!r:.60}")
    return doc_ids


def filters_of(where: object) -> list[Where]:
    """One filter or several, as a list; what each one says is not looked at. Raises QueryError for anything else."""
    filters = _listed(where, (str, Mapping))
    if filters is None:
        raise QueryError(f"delete(where=...) takes a mapping, an SQL condition or several; found {where!r:.60}")
    return filters


def _listed(value: object, one: type | tuple[type, ...]) -> list[Any] | None:
    """A value of a kind as a list of one, several as a list, None for anything else."""
    if isinstance(value, one):
        return [value]
    return list(value) if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | str) else None


def check_k(k: object, *, name: str = "k", things: str = "hits") -> None:
    """Raises QueryError unless k is a number of hits, or of other things."""
    if not is_count(k):
        raise QueryError(f"{name} must be a whole number of {things}, at least 1; found {k!r}")


def check_settings(stored: IndexSettings, asked: IndexSettings, path: str, *, depths_given: bool) -> None:
    """Raises IndexMismatchError where an index was made with another bundle, with other depths than those given, or
    with depths or widths that the bundle has no more.

    asked: as of a new index; of all that the bundle has, unless depths were given.
    """
    if stored.fingerprint != asked.fingerprint:
        raise IndexMismatchError(
            f"{path} was made with {stored.encoder_name} ({stored.fingerprint}), and its vectors cannot be compared "
            f"with those of {asked.encoder_name} ({asked.fingerprint}); open it with encoder= (on the command line "
            "--encoder) set to that bundle, or make a new index"
        )
    if depths_given and stored.depths != asked.depths:
        raise IndexMismatchError(
            f"{path} stores depths {list(stored.depths)}, and they are fixed at creation; "
            f"found depths={list(asked.depths)}"
        )
    widths = set(stored.dims) <= set(asked.dims) and stored.dims[-1] == asked.dims[-1]
    if not widths or not set(stored.depths) <= set(asked.depths):
        raise IndexMismatchError(
            f"{path} was made with depths {list(stored.depths)} and widths {list(stored.dims)}, and the manifest of "
            f"{asked.encoder_name} now names depths {list(asked.depths)} and widths {list(asked.dims)}; open it with "
            "the bundle as it was, or make a new index"
        )
