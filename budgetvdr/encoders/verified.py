"""Files of large bundles that were found whole before, so that opening one again does not read gigabytes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from budgetvdr.bundle import Manifest, verify_files

# Smaller bundles are read in well under a second.
_LARGE = 256 << 20
# A file written this shortly before it is read may change once more without another time of change.
_SETTLED_NS = 2_000_000_000


def verify_once(manifest: Manifest, folder: Path) -> None:
    """As `verify_files`, but of a bundle beyond 256 MB only files that changed since they were found whole.

    What counts as the same file has the same path, size, time of change and recorded hash. That is kept in the user's
    cache folder (`$XDG_CACHE_HOME`, or where the system has it); where it cannot be, every file is read each time.

    Raises BundleError naming the first file that differs.
    """
    found = _facts(manifest, folder)
    if sum(size for size, _, _ in found.values()) < _LARGE:
        verify_files(manifest, folder)
        return
    note = _note(folder)
    known = _read(note)
    unknown = {name: digest for name, digest in manifest.files.items() if known.get(name) != found[name]}
    if not unknown:
        return
    start = time.time_ns()
    verify_files(replace(manifest, files=unknown), folder)
    after = _facts(manifest, folder)
    _write(note, {name: fact for name, fact in found.items() if fact == after[name] and fact[1] < start - _SETTLED_NS})


def _facts(manifest: Manifest, folder: Path) -> dict[str, list[Any]]:
    """Size, time of change and recorded hash of every file."""
    stats = {name: (folder / name).stat() for name in manifest.files}
    return {name: [stat.st_size, stat.st_mtime_ns, manifest.files[name]] for name, stat in stats.items()}


def _note(folder: Path) -> Path | None:
    """The file that a bundle's facts are kept in; None where the user has no folder for such."""
    cache = _cache_folder()
    if cache is None:
        return None
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return cache / "budgetvdr" / "verified" / f"{name}.json"


def _cache_folder() -> Path | None:
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


def _read(note: Path | None) -> dict[str, Any]:
    try:
        raw = {} if note is None else json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _write(note: Path | None, facts: Mapping[str, Any]) -> None:
    """All or nothing, and nothing where the folder cannot be written to: the next opening reads the files again."""
    if note is None:
        return
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=note.parent, prefix=note.stem)
    except OSError:
        return
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            json.dump(facts, stream)
        Path(new).replace(note)
    except OSError:
        Path(new).unlink(missing_ok=True)
