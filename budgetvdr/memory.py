"""Memory of the process: what the machine has, and giving back what was freed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache


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
