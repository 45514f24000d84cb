"""A bundle's folder, made anew beside the old one and put in its place when it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from budgetvdr.bundle import MANIFEST_NAME
from budgetvdr.durable import to_disk
from budgetvdr.training.files import settle

# Written by people, about the weights: a conversion neither makes nor outdates them.
_KEPT = ("LICENSE", "README.md")
_MADE = (MANIFEST_NAME, "weights.bin", "tokenizer.json", "calibration.json")


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """OUT.partial to write a bundle to; at the end it takes the place of `out`, but for what people wrote there.

    Where the block fails, `out` stays as it was. Calibration of the old bundle goes: it is not of the new graphs.
    Ends the run where `out` holds anything that no bundle has.
    """
    out = out.resolve()
    partial, old = (out.with_name(f"{out.name}.{kind}") for kind in ("partial", "old"))
    if old.is_dir() and not out.exists():
        # Stopped between the two renames below.
        old.rename(out)
    for stale in (partial, old):
        shutil.rmtree(stale, ignore_errors=True)
    foreign = [path.name for path in out.iterdir() if not _of_a_bundle(path)] if out.exists() else []
    if foreign:
        raise SystemExit(f"{out} holds {', '.join(sorted(foreign)[:3])}, which no bundle has: choose a new folder")
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise
    if out.exists():
        for name in _KEPT:
            if (out / name).is_file():
                shutil.copyfile(out / name, partial / name)
        out.rename(old)
    settle(partial, out)
    shutil.rmtree(old, ignore_errors=True)
    to_disk(out.parent)


def _of_a_bundle(path: Path) -> bool:
    return path.is_file() and (path.name in (*_KEPT, *_MADE) or path.suffix == ".onnx")
