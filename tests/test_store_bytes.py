"""A scan reads the columns of its width and nothing else, by the system's own count of bytes read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, PageRow, Store

SETTINGS = IndexSettings(STORE_FORMAT_VERSION, "0" * 16, "bytes", depths=(2, 6), dims=(32, 64, 128, 384))
PAGES, VECTORS = 128, 300
# Counts every byte that read, pread and their kin return to this process, from disk or from the page cache.
READER = """
import sys
from pathlib import Path
from budgetvdr.store import Store

def read_so_far():
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])

uri, dim = sys.argv[1], int(sys.argv[2])
snapshot = Store.open(uri, read_only=True).snapshot()
opened = read_so_far()
vectors = sum(int(slab.offsets[-1]) for slab in snapshot.scan(6, dim)) if dim else len(snapshot.matching())
print(vectors, read_so_far() - opened)
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bytes") / "index"
    rng = np.random.default_rng(0)
    with Store.open(path, settings_if_new=SETTINGS) as store:
        for first in range(0, PAGES, 32):
            store.upsert(
                [
                    PageRow(
                        doc_id="a",
                        page_num=number,
                        regions=rng.random((VECTORS, 4), np.float32),
                        vectors={depth: rng.standard_normal((VECTORS, 384), np.float32) for depth in SETTINGS.depths},
                        text="word " * 400,
                    )
                    for number in range(first, first + 32)
                ]
            )
    return str(path)


def read_by_a_fresh_process(index: str, dim: int) -> tuple[int, int]:
    """Vectors and bytes read by a scan at a width, 0 for one without vectors."""
    done = subprocess.run(
        [sys.executable, "-c", READER, index, str(dim)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        capture_output=True,
        text=True,
    )
    vectors, count = done.stdout.split()
    return int(vectors), int(count)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc/self/io to count bytes read")
def test_a_narrow_scan_reads_a_narrow_share_of_the_bytes(index: str) -> None:
    pages, without_vectors = read_by_a_fresh_process(index, 0)
    assert (pages, without_vectors < 64_000) == (PAGES, True)
    counted = {}
    for dim in SETTINGS.dims:
        vectors, counted[dim] = read_by_a_fresh_process(index, dim)
        assert vectors == PAGES * VECTORS
        payload = vectors * dim * 2
        # Beside the payload: where each page begins, and the footers of four files.
        assert payload <= counted[dim] < 1.02 * payload + 64_000, dim
    assert counted[384] / counted[32] == pytest.approx(12, rel=0.1)
