"""LanceDB behind a narrow door: importing it, telling places apart, turning its failures into ours."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from budgetvdr.errors import IndexFormatError, StorageError

if TYPE_CHECKING:
    from lancedb.db import DBConnection

_LOG_VARIABLE = "LANCEDB_LOG"
# LanceDB's own limits are 6 GB and 1 GB, which a long series of commits fills with versions nobody reads any more.
_INDEX_CACHE = 16 << 20
_METADATA_CACHE = 64 << 20
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_PANIC = "RustPanic"
_SOURCE_LINE = re.compile(r",? ?/[^\s,]*\.rs:\d+(:\d+)?")
_WRAPPERS = re.compile(r"(lance error: |LanceError\(\w+\): |Query Execution error: |Invalid (user )?input[,:] )+")
# An object store's own words in its answer, and the cause at the bottom of a failed connection.
_ANSWER = re.compile(r"<Code>(\w+)</Code>\s*<Message>([^<]*)</Message>")
_CAUSE = re.compile(
    r'(?:message|error): "([^"]+)"|\b(TimedOut|BadScheme|status: \d{3}|Failed to get \w+ credentials)\b'
)
_REQUEST = re.compile(r"Generic \{ store:|Error performing")
_STORE_ADVICE = {
    re.compile("NoSuchBucket"): "check the name of the bucket, or create it first",
    re.compile("BadScheme"): 'an http:// endpoint needs storage_options={"allow_http": "true", ...}',
    re.compile(
        "AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|status: 40[13]|get AWS credentials"
    ): "check the credentials in storage_options or the environment, and what they allow",
    re.compile("HttpError|HTTP error"): "check the endpoint in storage_options and the network",
}
# LanceDB tries each request again and six times all of that: with its defaults of 10 retries and 180 s that is a
# quarter of an hour for a server that does not answer.
_CLIENT_DEFAULTS = {"connect_timeout": "3s", "timeout": "60s", "client_max_retries": "2", "client_retry_timeout": "30"}
_OS_ERROR = re.compile(r"\bos error (\d+)\b")
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_SYSTEM_ADVICE = (
    (_FULL, "the disk or quota is full: free space and add again, what was stored before is intact"),
    (_FORBIDDEN, "check the permissions of the folder, or open the index with read_only=True"),
    (_SCARCE, "open files or memory are at a limit: close other indexes, or raise it"),
)
_CONFLICT = re.compile(r"commit conflict|concurrent writers|concurrent transaction", re.IGNORECASE)


def local_path(uri: str | Path) -> Path | None:
    """The folder a local address names, None for an object store.

    Raises IndexFormatError for an address of LanceDB's hosted service, which stores no plain tables.
    """
    found = _SCHEME.match(str(uri))
    if found is None:
        return Path(uri).expanduser()
    scheme = found[1].lower()
    if scheme == "file":
        return Path(str(uri)[len("file://") :])
    if scheme == "db":
        raise IndexFormatError(f"{uri} is a hosted LanceDB address: expected a folder or an object store, like s3://")
    return None


def connect(uri: str, storage_options: Mapping[str, str] | None) -> DBConnection:
    """Opens a database folder, making it where it is missing.

    LanceDB takes a second to import and its Rust half logs to standard error, at a level read from an environment
    variable at import; conflicts it then reports are ones we handle. A level the user has set is kept, and so are
    limits of time and retries in storage_options.
    """
    quiet = _LOG_VARIABLE not in os.environ
    if quiet:
        os.environ[_LOG_VARIABLE] = "error"
    try:
        import lancedb  # noqa: PLC0415
    finally:
        if quiet:
            del os.environ[_LOG_VARIABLE]
    options = dict(storage_options or {})
    if local_path(uri) is None:
        options = _CLIENT_DEFAULTS | options
    return lancedb.connect(
        uri,
        storage_options=options or None,
        session=lancedb.Session(index_cache_size_bytes=_INDEX_CACHE, metadata_cache_size_bytes=_METADATA_CACHE),
    )


def is_conflict(error: BaseException) -> bool:
    """Whether a commit failed only because another writer was first."""
    return _CONFLICT.search(str(error)) is not None


def is_failure(error: BaseException) -> bool:
    """Whether an error is LanceDB's or the system's.

    LanceDB raises RuntimeError and ValueError for damaged, missing and unwritable files alike, and where its Rust half
    stumbles over a damaged one a RustPanic, which can only be known by its name.
    """
    return isinstance(error, OSError | RuntimeError | ValueError) or type(error).__name__ == _PANIC


def is_unreachable(error: BaseException) -> bool:
    """Whether an object store could not be asked, which says nothing of what it holds."""
    return _REQUEST.search(str(error)) is not None and "Not found:" not in str(error)


def is_full(error: BaseException) -> bool:
    """Whether the disk or the quota is full."""
    return _os_code(error) in _FULL


def is_refused(error: BaseException) -> bool:
    """Whether the system would not read or write, which says nothing of what is on the disk."""
    return _os_code(error) in _FULL | _FORBIDDEN | _SCARCE | {errno.EIO}


def is_storage_failure(error: BaseException) -> bool:
    """Whether an error of a filtered read came from the disk, and not from the filter."""
    text = str(error)
    return (
        isinstance(error, OSError) or type(error).__name__ == _PANIC or "LanceError(IO)" in text or "Not found:" in text
    )


def reason(error: BaseException) -> str:
    """LanceDB's message on one line, without wrappers and places in its source code; an object store's own words."""
    if "Generic { store:" in str(error):
        answer = _ANSWER.search(str(error))
        causes = [next(filter(None, found)) for found in _CAUSE.findall(str(error))]
        if answer:
            return f"{answer[1]}: {answer[2]}"
        if causes:
            return f"the object store: {causes[-1]}"
    return " ".join(_WRAPPERS.sub("", _SOURCE_LINE.sub("", str(error))).split())


@contextmanager
def storage_failures(action: str) -> Iterator[None]:
    """Raises StorageError, naming the action, for whatever LanceDB or the system refuses inside."""
    try:
        yield
    except Exception as error:
        if not is_failure(error):
            raise
        raise storage_error(action, error) from error


def storage_error(action: str, error: BaseException) -> StorageError:
    """The StorageError for a failure, with what to do where that is known."""
    return StorageError(f"cannot {action}: {reason(error)}{_advice(error)}")


def _os_code(error: BaseException) -> int | None:
    """The system's number for an error, also where LanceDB only quotes it."""
    code = getattr(error, "errno", None)
    quoted = None if isinstance(code, int) else _OS_ERROR.search(str(error))
    return int(quoted[1]) if quoted else code


def _advice(error: BaseException) -> str:
    text, code = str(error), _os_code(error)
    for codes, advice in _SYSTEM_ADVICE:
        if code in codes:
            return f"; {advice}"
    for found, advice in _STORE_ADVICE.items():
        if found.search(text):
            return f"; {advice}"
    if type(error).__name__ == _PANIC:
        return "; a file of the index may be damaged: restore it from a copy, or add the documents to a new index"
    if "Not found:" in text:
        return "; it was compacted away meanwhile (search again), or the index was deleted or made anew (open it again)"
    return ""
