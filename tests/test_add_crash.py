"""`add_pages` killed at random moments, by two processes at once, and on a full disk.

BUDGETVDR_KILLS sets the number of kills (default 4).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import pdf_bytes

from budgetvdr import Index
from budgetvdr.encoders import Encoder
from budgetvdr.errors import StorageError

PAGES = 24
BATCH = 4
CHILD = """
import sys
from budgetvdr import Index
with Index.open(sys.argv[1], threads=1) as index:
    print("ready", flush=True)
    index.add_pages(sys.argv[2], batch_size=int(sys.argv[3]), show_progress_bar=False)
"""


def child(index: Path, source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(index), str(source), str(BATCH)], stdout=subprocess.PIPE, text=True
    )


def document(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(
        pdf_bytes([f"Page {number} of {name} is about subject number {number * 7}." for number in range(PAGES)])
    )
    return path


def contents(index: Path, encoder: Encoder) -> dict[str, tuple[str, int]]:
    """id -> (text, notes) of every stored page; reads each page's vectors on the way."""
    with Index.open(index, encoder=encoder, read_only=True) as opened:
        hits = opened.search("subject number", k=1000)
        assert len(hits) == len(opened)
        return {hit.id: (hit.text, len(hit.explain().matches)) for hit in hits}


def test_killed_at_random_moments(tmp_path: Path, encoder: Encoder) -> None:
    source, whole = document(tmp_path, "a.pdf"), tmp_path / "whole"
    process = child(whole, source)
    assert process.stdout is not None
    process.stdout.readline()
    start = time.monotonic()
    assert process.wait(timeout=120) == 0
    process.stdout.close()
    duration, expected = time.monotonic() - start, contents(whole, encoder)
    assert len(expected) == PAGES
    generator = random.Random(5)
    for kill in range(int(os.environ.get("BUDGETVDR_KILLS", "4"))):
        target = tmp_path / f"killed{kill}"
        process = child(target, source)
        assert process.stdout is not None
        # The first moments, when the table is being made, are worth a kill now and then too.
        if kill % 5:
            process.stdout.readline()
        time.sleep(generator.uniform(0, duration))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with Index.open(target, encoder=encoder) as index:
            assert len(index) % BATCH == 0
            stored = len(index)
            assert {document.pages for document in index.documents()} <= {stored}
            report = index.add_pages(source, batch_size=BATCH, show_progress_bar=False)
            assert (report.files[0].unchanged, report.pages) == (stored, PAGES - stored)
        assert contents(target, encoder) == expected


def test_two_processes_add_at_once(tmp_path: Path, encoder: Encoder) -> None:
    both, first, second = document(tmp_path, "both.pdf"), document(tmp_path, "1.pdf"), document(tmp_path, "2.pdf")
    target = tmp_path / "index"
    for pair in ((first, second), (both, both)):
        processes = [child(target, source) for source in pair]
        for process in processes:
            process.communicate(timeout=240)
            assert process.returncode == 0
    with Index.open(target, encoder=encoder) as index:
        assert {item.doc_id: item.pages for item in index.documents()} == {
            "1.pdf": PAGES,
            "2.pdf": PAGES,
            "both.pdf": PAGES,
        }
        hits = index.search("subject number 7", k=1000)
        assert len({hit.id for hit in hits}) == len(hits) == len(index) == 3 * PAGES


def test_full_disk(tmp_path: Path, encoder: Encoder) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        source = document(tmp_path, "a.pdf")
        filler = small / "filler"
        with Index.open(small / "index", encoder=encoder) as index:
            index.add_pages(pdf_bytes(["The first page was there before."]), doc_id="before")
            filler.write_bytes(b"\0" * (1 << 20))
            with pytest.raises(StorageError, match="full"):
                index.add_pages(source, batch_size=BATCH)
            stored = len(index)
            assert index.search("first page", k=1, where={"doc_id": "before"})[0].doc_id == "before"
            filler.unlink()
            index.optimize()
            subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
            report = index.add_pages(source, batch_size=BATCH)
            assert report.files[0].unchanged == stored - 1
            assert len(index) == PAGES + 1
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
