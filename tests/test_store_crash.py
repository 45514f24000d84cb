"""The index under processes that are killed, processes that write at once, and disks that refuse.

BUDGETVDR_KILLS sets how many writers are killed (10 by default).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import store_pages
from store_pages import SETTINGS, document, page_row, promised_pages

from budgetvdr.errors import StorageError
from budgetvdr.store import Store

KILLS = int(os.environ.get("BUDGETVDR_KILLS", "10"))


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, store_pages.__file__, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    """Forks writers; see `store_pages`."""
    with start("nursery") as process:
        try:
            yield process
        finally:
            # Its writers are of the same process group.
            os.killpg(process.pid, signal.SIGKILL)


def write_and_be_killed(nursery: subprocess.Popen[str], path: Path, name: str, seconds: float) -> None:
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    print(path, name, 10_000, file=nursery.stdin, flush=True)
    said = {nursery.stdout.readline().strip(), nursery.stdout.readline().strip()}
    assert "ready" in said
    (child,) = said - {"ready"}
    time.sleep(seconds)
    os.kill(int(child), signal.SIGKILL)
    assert nursery.stdout.readline() == "ended\n"


def check_whole_batches(store: Store) -> int:
    """Every document is exactly what its last batch promised, and every byte of it can be read."""
    snapshot = store.snapshot()
    documents = snapshot.documents()
    for info in documents:
        revisions = store.document_state(info.doc_id).revisions
        assert len(set(revisions.values())) == 1, (info, revisions)
        assert set(revisions) == promised_pages(next(iter(revisions.values()))), (info, revisions)
        assert info.pages == len(revisions)
    for depth in SETTINGS.depths:
        assert sum(int(slab.offsets[-1]) for slab in snapshot.scan(depth, 128)) == snapshot.vector_count()
    assert len(snapshot.facts(snapshot.matching())) == snapshot.page_count()
    return len(documents)


def test_killed_writers_leave_whole_batches(tmp_path: Path, nursery: subprocess.Popen[str]) -> None:
    path, written = tmp_path / "index", 0
    for kill in range(KILLS):
        # A few are killed while they create the index, the others somewhere in their commits.
        write_and_be_killed(nursery, path, f"doc{kill % 4}", random.uniform(0.0, 0.02 if kill < 3 else 0.3))
        store = Store.open(path, settings_if_new=SETTINGS)
        written = max(written, check_whole_batches(store))
        store.upsert(document("after", [1, 2], f"after-{kill}x2"), complete={"after": f"after-{kill}x2"})
        assert set(store.document_state("after").revisions) == {1, 2}
    assert written >= 2
    before = check_whole_batches(store)
    store.optimize(timedelta(0))
    assert check_whole_batches(store) == before
    # Nothing of what the killed writers left behind remains.
    assert len(list((path / "pages.lance" / "data").iterdir())) == store.snapshot().stats().fragments


@pytest.mark.parametrize("scheme", ["", "file-object-store://"], ids=["lock file", "retries, as on an object store"])
def test_processes_that_write_at_once_lose_and_double_nothing(tmp_path: Path, scheme: str) -> None:
    uri, batches = f"{scheme}{tmp_path}/index", 40
    (tmp_path / "index").mkdir()
    writers = [start("write", uri, name, str(batches)) for name in ("left", "right")]
    for writer in writers:
        output, errors = writer.communicate(timeout=120)
        assert (writer.returncode, output.split(), errors) == (0, ["ready", "done"], "")
    store = Store.open(uri)
    assert check_whole_batches(store) == 3
    snapshot = store.snapshot()
    pages = snapshot.facts(snapshot.matching())
    assert len({page.id for page in pages}) == len(pages)
    for name in ("left", "right"):
        assert set(store.document_state(name).revisions.values()) == {f"{name}-39x{1 + (39 * 7 + len(name)) % 6}"}
    assert {"batch", "key_0", "key_3"} <= set(snapshot.metadata_types())
    assert (tmp_path / "index" / ".budgetvdr.lock").exists() == (scheme == "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small disk: {getattr(error, 'stderr', '') or error}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return filler


def test_a_full_disk_is_a_typed_error_and_harms_nothing(small_disk: Path) -> None:
    store = Store.open(small_disk / "index", settings_if_new=SETTINGS)
    store.upsert(document("a", range(1, 4), "a-0x3"))
    stored = 0
    with pytest.raises(StorageError, match=r"No space left.*free space"):
        for stored in range(1000):
            store.upsert([page_row(f"big{stored}", 1, 500, revision="x1")])
    assert stored > 2
    filler = fill(small_disk)
    for write in (
        lambda: store.upsert([page_row("b", 1)]),
        lambda: store.upsert([page_row("b", 1, metadata={"new_key": 1})]),
        lambda: store.delete_documents(["a"]),
        store.optimize,
        lambda: Store.open(small_disk / "second", settings_if_new=SETTINGS),
    ):
        with pytest.raises(StorageError, match=r"No space left|os error 28|Errno 28|disk or quota is full"):
            write()
        with Store.open(small_disk / "index", read_only=True) as again:
            assert again.snapshot().page_count() == 3 + stored
            assert check_whole_batches(again) == 1 + stored
    filler.unlink()
    assert store.delete_documents([f"big{number}" for number in range(stored)]) == stored
    store.optimize(timedelta(0))
    store.upsert([page_row("b", 1, 500, revision="x1")])
    assert {info.doc_id for info in store.snapshot().documents()} == {"a", "b"}
    second = Store.open(small_disk / "second", settings_if_new=SETTINGS)
    second.upsert([page_row("c", 1)])
    assert second.snapshot().page_count() == 1


def test_a_read_only_disk_is_read_and_refuses_writes_with_advice(small_disk: Path) -> None:
    rows = document("a", range(1, 4))
    with Store.open(small_disk / "index", settings_if_new=SETTINGS) as store:
        store.upsert(rows)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with Store.open(small_disk / "index", settings_if_new=SETTINGS) as store:
        with pytest.raises(StorageError, match="read_only=True"):
            store.upsert([page_row("b", 1)])
        (slab,) = store.snapshot().scan(2, 32)
        np.testing.assert_array_equal(slab.slices[0][:3], rows[0].vectors[2][:, :32].astype(np.float16))
    with pytest.raises(StorageError, match="cannot open"):
        Store.open(small_disk / "other", settings_if_new=SETTINGS)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission_refuses_writes_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "index"
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert([page_row("a", 1)])
    folders = [path, *(entry for entry in path.rglob("*") if entry.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="permissions"):
            store.upsert([page_row("b", 1)])
        assert store.snapshot().page_count() == 1
    finally:
        for folder in folders:
            folder.chmod(0o755)
