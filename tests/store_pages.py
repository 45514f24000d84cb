"""Small pages for tests of the store, and a writer to run as a process of its own.

    python tests/store_pages.py write URI NAME BATCHES

writes batches until it has done them or is killed: every second one to a document of its own, the others to
one that all writers share. A batch replaces its whole document, and says in its revision how many pages the document
then has.

    python tests/store_pages.py nursery

does the same for each line "URI NAME BATCHES" of its input, in a process that is forked when LanceDB has been
imported, and tells its number and when it has ended. So a writer costs no second of imports.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

import numpy as np

from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, PageRow, Store

SETTINGS = IndexSettings(STORE_FORMAT_VERSION, "0123456789abcdef", "test encoder", depths=(2, 6), dims=(32, 64, 128))


def page_row(doc_id: str, page_num: int, count: int = 3, seed: int = 0, **facts: object) -> PageRow:
    """A page with random vectors that depend on the seed, equal for equal arguments."""
    rng = np.random.default_rng((seed, page_num, count, *doc_id.encode("utf-8", "surrogatepass")))
    return PageRow(
        doc_id=doc_id,
        page_num=page_num,
        regions=rng.random((count, 4), np.float32),
        vectors={depth: rng.standard_normal((count, 128), np.float32) for depth in SETTINGS.depths},
        **facts,  # type: ignore[arg-type]
    )


def document(doc_id: str, pages: Iterable[int], revision: str = "r1", **facts: object) -> list[PageRow]:
    """Rows of a document, all of one revision."""
    return [page_row(doc_id, number, revision=revision, **facts) for number in pages]


def promised_pages(revision: str) -> set[int]:
    """The pages a document must have according to the revision the writer gave it."""
    return set(range(1, int(revision.split("x")[1]) + 1))


def tell(word: str) -> None:
    """One line in one write, which those of other processes cannot interrupt."""
    os.write(sys.stdout.fileno(), f"{word}\n".encode())


def write(uri: str, name: str, batches: int) -> None:
    """Writes, telling when it begins and when it has ended."""
    tell("ready")
    store = Store.open(uri, settings_if_new=SETTINGS)
    for batch in range(batches):
        doc_id = name if batch % 2 else "shared"
        size = 1 + (batch * 7 + len(name)) % 6
        revision = f"{name}-{batch}x{size}"
        metadata = {"batch": batch} | ({f"key_{batch // 10}": name} if batch % 10 == 5 else {})
        rows = document(doc_id, range(1, size + 1), revision, metadata=metadata)
        store.upsert(rows, complete={doc_id: revision})
    tell("done")


def nursery() -> None:
    """Forks a writer for each line of input."""
    # LanceDB starts afresh in a forked process, and says that this is experimental.
    warnings.simplefilter("ignore", RuntimeWarning)
    for line in sys.stdin:
        uri, name, batches = line.split()
        child = os.fork()
        if child == 0:
            write(uri, name, int(batches))
            os._exit(0)
        tell(str(child))
        os.waitpid(child, 0)
        tell("ended")


if __name__ == "__main__":
    import lancedb  # noqa: F401  # before the clock of whoever kills this starts

    if sys.argv[1] == "nursery":
        nursery()
    else:
        write(sys.argv[2], sys.argv[3], int(sys.argv[4]))
