"""Arguments of the index's methods: is each one of its choices, and what to say where it is not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import get_args

from budgetvdr.budget import is_count
from budgetvdr.bundle import Manifest
from budgetvdr.errors import BudgetError, IndexMismatchError, QueryError
from budgetvdr.intake import IfExists
from budgetvdr.pages import ReadMode
from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings


def threads_or_cores(threads: int | None) -> int:
    """The number of threads asked for, or one for each core this process may use. Raises ValueError for less than 1."""
    if threads is None:
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not is_count(threads):
        raise ValueError(f"threads must be a whole number, at least 1; found {threads!r}")
    return int(threads)


def settings_for(manifest: Manifest, depths: Sequence[int] | None) -> IndexSettings:
    """The settings of an index of a bundle; depths: the exits it stores, None for all.

    Raises BudgetError for depths the bundle lacks, and for none.
    """
    chosen = manifest.depths if depths is None else tuple(depth for depth in manifest.depths if depth in depths)
    if depths is not None and (not chosen or len(chosen) < len(set(depths))):
        raise BudgetError(f"depths must be some of {list(manifest.depths)}, the bundle's exits; found {depths!r}")
    return IndexSettings(STORE_FORMAT_VERSION, manifest.fingerprint, manifest.name, chosen, manifest.dims)


def check_version(version: object) -> None:
    """Raises ValueError for what is neither the number of a version nor None."""
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise ValueError(f"version is the number of a version, or None for the latest; found {version!r}")


def check_add(*, password: object, batch_size: object, if_exists: object, read: object) -> None:
    """Raises ValueError for an argument of `add_pages` that is none of its choices."""
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
        return [queries]
    if not isinstance(queries, Sequence) or isinstance(queries, bytes | bytearray):
        raise QueryError(f"a query is a string, or a sequence of strings; found {type(queries).__name__}")
    for place, text in enumerate(queries):
        if not isinstance(text, str):
            raise QueryError(f"queries are strings; found {type(text).__name__} {text!r} at place {place} of the list")
    return list(queries)


def check_k(k: object, *, name: str = "k", things: str = "hits") -> None:
    """Raises QueryError unless k is a number of hits, or of other things."""
    if not is_count(k):
        raise QueryError(f"{name} must be a whole number of {things}, at least 1; found {k!r}")


def check_settings(stored: IndexSettings, asked: IndexSettings, path: str, *, depths_given: bool) -> None:
    """Raises IndexMismatchError where an index was made with another bundle, or with other depths than those given."""
    if stored.fingerprint != asked.fingerprint:
        raise IndexMismatchError(
            f"{path} was made with {stored.encoder_name} ({stored.fingerprint}), and its vectors cannot be compared "
            f"with those of {asked.encoder_name} ({asked.fingerprint}); open it with encoder= set to that bundle, or "
            "make a new index"
        )
    if depths_given and stored.depths != asked.depths:
        raise IndexMismatchError(
            f"{path} stores depths {list(stored.depths)}, and they are fixed at creation; "
            f"found depths={list(asked.depths)}"
        )
