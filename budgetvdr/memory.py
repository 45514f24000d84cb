"""Memory of the process: what the machine has, amounts of it, and giving back what was freed."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from functools import cache
from operator import index
from typing import SupportsIndex

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_bytes(amount: SupportsIndex | str) -> int:
    """A number of bytes from a number, or from a text such as "256MB", "1.5 GiB" or "64k"; numpy's numbers are as well.

    MB and M are 1000 * 1000 bytes, MiB and Mi 1024 * 1024. Raises ValueError for anything else.
    """
    if isinstance(amount, SupportsIndex) and not isinstance(amount, bool) and index(amount) >= 0:
        return index(amount)
    found = _AMOUNT.fullmatch(amount.strip()) if isinstance(amount, str) else None
    if found is None:
        raise ValueError(f'expected bytes as a whole number from 0, or a text such as "256MB"; found {amount!r}')
    step = 1024 if found[3] else 1000
    return int(float(found[1]) * step ** " kmgt".index(found[2].lower() or " "))


def quarter_of_machine() -> int:
    """A quarter of the machine's memory, in bytes; 2 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, ValueError, OSError):
        return 2 << 30


def give_back() -> None:
    """Returns freed memory to the system where the C library knows how (glibc); does nothing elsewhere.

    glibc keeps what each thread has freed for that thread's next use. With the threads of an encoder and of LanceDB
    that comes to most of a gigabyte while pages are added.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if os.name != "posix":
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
