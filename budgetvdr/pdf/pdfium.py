"""PDFium and the lock around it. The only importer of pypdfium2.

PDFium keeps global state and is not thread-safe, so one lock guards every call into it, for all files of the
process. Its raw functions are used, not the helper classes of pypdfium2: those close what they hold from the
garbage collector, in whatever thread that runs.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pypdfium2 as pdfium

# The functions are made by ctypes when pypdfium2 is imported and carry no types.
c: Any = pdfium.raw

_lock = threading.RLock()
_left_open: deque[tuple[Any, Any, object]] = deque()


@contextmanager
def alone() -> Iterator[None]:
    """Holds the lock; every call into `c` belongs in such a block. Nests."""
    with _lock:
        _shut_left_open()
        yield


def shut(document: Any, form: Any) -> None:
    """Closes a document and its form environment, either of which may be None. To be called under the lock."""
    # At exit pypdfium2 destroys the library, which frees every document; touching one after that is a crash.
    if not pdfium.internal.bases.LIBRARY_AVAILABLE:
        return
    if form:
        c.FPDFDOC_ExitFormFillEnvironment(form)
    if document:
        c.FPDF_CloseDocument(document)


def shut_when_possible(document: Any, form: Any, needed: object) -> None:
    """Closes a document now or at the next call of `alone`; never waits, so that a finalizer may call it.

    needed: what the document has pointers into, kept alive until then.
    """
    _left_open.append((document, form, needed))
    if _lock.acquire(blocking=False):
        try:
            _shut_left_open()
        finally:
            _lock.release()


def utf16(function: Any, *arguments: Any) -> str:
    """Calls one of PDFium's functions that fill a UTF-16 buffer: asks for the length first, both in bytes."""
    length = int(function(*arguments, None, 0))
    if length <= 2:
        return ""
    buffer = (ctypes.c_ushort * (length // 2 + 1))()
    function(*arguments, buffer, length)
    return bytes(buffer)[: length - 2].decode("utf-16-le", errors="ignore")


def _shut_left_open() -> None:
    while _left_open:
        document, form, _ = _left_open.popleft()
        shut(document, form)
