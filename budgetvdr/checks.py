"""Arguments of the index's methods: is each one of its choices, and what to say where it is not."""

from __future__ import annotations

import os
from typing import get_args

from budgetvdr.budget import is_count
from budgetvdr.errors import IndexMismatchError, QueryError
from budgetvdr.intake import IfExists
from budgetvdr.pages import ReadMode
from budgetvdr.store import IndexSettings


def threads_or_cores(threads: int | None) -> int:
    """The number of threads asked for, or one for each core this process may use. Raises ValueError for less than 1."""
    if threads is None:
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not is_count(threads):
        raise ValueError(f"threads must be a whole number, at least 1; found {threads!r}")
    return int(threads)


def check_add(*, password: object, batch_size: object, if_exists: object, read: object) -> None:
    """Raises ValueError for an argument of `add_pages` that is none of its choices."""
    if password is not None and not isinstance(password, str):
        raise ValueError(f"password is a text; found {type(password).__name__}")
    if not is_count(batch_size):
        raise ValueError(f"batch_size must be a whole number of pages, at least 1; found {batch_size!r}")
    for name, value, known in (("if_exists", if_exists, get_args(IfExists)), ("read", read, get_args(ReadMode))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; found {value!r}")


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
