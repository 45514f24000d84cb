"""The systems that bench_peers.py compares, one process each, spoken to in lines of JSON.

    python tests/bench/peers.py NAME FOLDER THREADS build     # prints what building took, and ends
    python tests/bench/peers.py NAME FOLDER THREADS serve     # prints what opening took, then answers line by line

FOLDER holds pages.npy (P, V, D) float16 and queries.npy (Q, n, D) float32; a system keeps its files in FOLDER/NAME. A
request is [number of the query, number of the setting], the answer {"ms", "cpu_ms", "pages"}: wall time, CPU time of
all threads, ten page numbers, best first.

Every system has settings, the library's default first and dearer ones after it. Imports are inside the classes, since
not all of these libraries can be installed together, and so that a process holds only what it measures.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

Half = npt.NDArray[np.float16]
Float = npt.NDArray[np.float32]
Setting = Mapping[str, Any]

K = 10
CHUNK = 1024


class System(Protocol):
    """One system. packages: distributions whose versions count. settings: the default first, then dearer ones."""

    packages: ClassVar[tuple[str, ...]]
    settings: ClassVar[tuple[Setting, ...]]

    def __init__(self, folder: Path, threads: int) -> None: ...

    def build(self, pages: Half) -> None:
        """Writes what it keeps on disk; does nothing for a system that keeps nothing there."""

    def open(self, pages: Half) -> None:
        """Makes ready for queries, vectors in memory where the system holds them there."""

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        """The ten best pages."""


def unit_chunks(pages: Half) -> Iterator[tuple[int, Float]]:
    """(number of the first page, unit vectors) of runs of pages."""
    for first in range(0, len(pages), CHUNK):
        chunk = pages[first : first + CHUNK].astype(np.float32)
        chunk /= np.linalg.norm(chunk, axis=-1, keepdims=True)
        yield first, chunk


def unit_pages(pages: Half) -> Float:
    """All pages as float32 unit vectors."""
    every = np.empty(pages.shape, np.float32)
    for first, chunk in unit_chunks(pages):
        every[first : first + len(chunk)] = chunk
    return every


def best(scores: Float) -> list[int]:
    """The ten best of all pages' scores."""
    top = np.argpartition(-scores, K)[:K]
    return [int(page) for page in top[np.argsort(-scores[top])]]


class Ours:
    """budgetvdr: the whole search call, from the query's vectors to hits with facts."""

    packages: ClassVar[tuple[str, ...]] = ("budgetvdr", "lancedb", "numkong", "numpy")
    settings: ClassVar[tuple[Setting, ...]] = ({"budget": "full"},)

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder, self._threads = folder, threads

    def build(self, pages: Half) -> None:
        from synthetic import SyntheticEncoder, index_settings

        from budgetvdr.store import Store

        encoder = SyntheticEncoder(collection_of(pages))
        with Store.open(self._folder, settings_if_new=index_settings(encoder)) as store:
            for first in range(0, len(pages), CHUNK):
                store.upsert(encoder.rows(first, pages[first : first + CHUNK]))
            store.optimize(timedelta(0))

    def open(self, pages: Half) -> None:
        from synthetic import SyntheticEncoder

        from budgetvdr import Index

        encoder = SyntheticEncoder(collection_of(pages))
        self._index = Index.open(self._folder, encoder=encoder, threads=self._threads, read_only=True)
        for number in range(len(np.load(self._folder.parent / "queries.npy", mmap_mode="r"))):
            encoder.encode_query(str(number), 1)
        self._index.search("0")

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        hits = self._index.search(str(number), k=K, budget=setting["budget"])
        from synthetic import page_number

        return [page_number(hit.doc_id, hit.page_num) for hit in hits]


def collection_of(pages: Half) -> Any:
    """The synthetic collection that pages.npy was made from."""
    from synthetic import Collection

    return Collection(*pages.shape)


class LanceFlat:
    """LanceDB's own multivector search without an index, which is exact; vectors stored as float16, as ours are.

    Vectors are of unit length, where its dot product ranks as its cosine does, in less time.
    """

    packages: ClassVar[tuple[str, ...]] = ("lancedb", "pyarrow")
    settings: ClassVar[tuple[Setting, ...]] = ({"metric": "dot"},)
    dtype: ClassVar[type[np.floating]] = np.float16

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder = folder
        os.environ["LANCE_CPU_THREADS"] = str(threads)
        # It warns at each search that its default columns will change.
        os.environ.setdefault("LANCE_LOG", "error")
        os.environ.setdefault("LANCEDB_LOG", "error")

    def build(self, pages: Half) -> None:
        import lancedb
        import pyarrow as pa

        _, vectors, width = pages.shape
        vector = pa.list_(pa.list_(pa.from_numpy_dtype(self.dtype), width))
        schema = pa.schema([pa.field("page", pa.int64()), pa.field("vector", vector)])
        table = lancedb.connect(self._folder).create_table("pages", schema=schema)
        for first, chunk in unit_chunks(pages):
            values = pa.FixedSizeListArray.from_arrays(pa.array(chunk.astype(self.dtype).reshape(-1)), width)
            lists = pa.ListArray.from_arrays(pa.array(np.arange(len(chunk) + 1, dtype=np.int32) * vectors), values)
            table.add(pa.table([np.arange(first, first + len(chunk)), lists.cast(vector)], schema=schema))
        table.optimize(cleanup_older_than=timedelta(milliseconds=1))
        self._build_index(table)

    def _build_index(self, table: Any) -> None:
        """Nothing: the search is exhaustive."""

    def open(self, pages: Half) -> None:
        import lancedb

        self._table = lancedb.connect(self._folder).open_table("pages")

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        search = self._table.search(query, vector_column_name="vector").distance_type(setting["metric"])
        search = search.select(["page", "_distance"]).limit(K)
        if "nprobes" in setting:
            search = search.nprobes(setting["nprobes"])
        if "refine" in setting:
            search = search.refine_factor(setting["refine"])
        return [int(page) for page in search.to_arrow()["page"].to_pylist()]


class LanceFlat32(LanceFlat):
    """The same with float32, twice the bytes: its float16 arithmetic is slow on some processors."""

    dtype: ClassVar[type[np.floating]] = np.float32


class LanceIndexed(LanceFlat32):
    """LanceDB's multivector search with its default index, IVF_PQ: candidates, scored exactly where refined."""

    settings: ClassVar[tuple[Setting, ...]] = (
        {"metric": "cosine"},
        {"metric": "cosine", "refine": 10},
        {"metric": "cosine", "nprobes": 50, "refine": 30},
        {"metric": "cosine", "nprobes": 200, "refine": 100},
        {"metric": "cosine", "nprobes": 1000, "refine": 300},
    )

    def _build_index(self, table: Any) -> None:
        from lancedb.index import IvfPq

        table.create_index("vector", config=IvfPq(distance_type="cosine"))
        table.wait_for_index([index.name for index in table.list_indices()], timeout=timedelta(hours=2))


class FastPlaid:
    """fast-plaid: centroids and residuals of 4 bits, its default."""

    packages: ClassVar[tuple[str, ...]] = ("fast-plaid", "torch")
    settings: ClassVar[tuple[Setting, ...]] = (
        {"n_ivf_probe": 8, "n_full_scores": 4096},
        {"n_ivf_probe": 32, "n_full_scores": 4096},
        {"n_ivf_probe": 32, "n_full_scores": 16384},
        {"n_ivf_probe": 128, "n_full_scores": 65536},
    )

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder, self._threads = folder, threads

    def build(self, pages: Half) -> None:
        import torch

        # Views of one array: the library wants a tensor a page.
        every = torch.from_numpy(unit_pages(pages).astype(np.float16))
        self._engine().create(documents_embeddings=list(every.unbind()))

    def open(self, pages: Half) -> None:
        self._plaid = self._engine()

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        import torch

        found = self._plaid.search(torch.from_numpy(query)[None], top_k=K, show_progress=False, **setting)
        return [int(page) for page, _ in found[0]]

    def _engine(self) -> Any:
        import torch
        from fast_plaid import search

        torch.set_num_threads(self._threads)
        return search.FastPlaid(index=str(self._folder), device="cpu")


class QdrantLocal:
    """qdrant-client's local mode, in memory, which scores page by page with numpy."""

    packages: ClassVar[tuple[str, ...]] = ("qdrant-client", "numpy")
    settings: ClassVar[tuple[Setting, ...]] = ({},)

    def __init__(self, folder: Path, threads: int) -> None:
        self._threads = threads

    def build(self, pages: Half) -> None:
        pass

    def open(self, pages: Half) -> None:
        from qdrant_client import QdrantClient, models

        self._client = QdrantClient(":memory:")
        # Vectors are of unit length: the dot product spares the library their normalisation at every query.
        vectors = models.VectorParams(
            size=pages.shape[2],
            distance=models.Distance.DOT,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
        )
        self._client.create_collection("pages", vectors_config=vectors)
        for first, chunk in unit_chunks(pages):
            for start in range(0, len(chunk), 64):
                part = chunk[start : start + 64]
                points = [models.PointStruct(id=first + start + i, vector=v.tolist()) for i, v in enumerate(part)]
                self._client.upsert("pages", points)

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        found = self._client.query_points("pages", query=query.tolist(), limit=K, with_payload=False)
        return [int(point.id) for point in found.points]


class QdrantEdge:
    """Qdrant's engine inside the process: float16 on disk, int8 copy in memory, the first of which may rescore.

    Without a graph, as its documentation advises for late interaction.
    """

    packages: ClassVar[tuple[str, ...]] = ("qdrant-edge-py",)
    settings: ClassVar[tuple[Setting, ...]] = (
        {"ignore": False, "oversampling": None},
        {"ignore": False, "oversampling": 4.0},
        {"ignore": True, "oversampling": None},
    )

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder, self._threads = folder, threads

    def build(self, pages: Half) -> None:
        import qdrant_edge as edge

        self._folder.mkdir()
        vectors = edge.EdgeVectorParams(
            size=pages.shape[2],
            distance=edge.Distance.Dot,
            multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim),
            datatype=edge.VectorStorageDatatype.Float16,
            hnsw_config=edge.HnswIndexConfig(m=0, ef_construct=0, full_scan_threshold=0),
            quantization_config=edge.ScalarQuantizationConfig(edge.ScalarType.Int8, always_ram=True),
        )
        # A thread searches a segment at a time.
        config = edge.EdgeConfig(
            vectors=vectors,
            max_search_threads=self._threads,
            optimizers=edge.EdgeOptimizersConfig(default_segment_number=self._threads),
        )
        shard = edge.EdgeShard.create(str(self._folder), config)
        for first, chunk in unit_chunks(pages):
            for start in range(0, len(chunk), 64):
                part = chunk[start : start + 64]
                points = [edge.Point(first + start + i, v.tolist()) for i, v in enumerate(part)]
                shard.update(edge.UpdateOperation.upsert_points(points))
        shard.flush()
        shard.optimize()
        shard.close()

    def open(self, pages: Half) -> None:
        import qdrant_edge as edge

        self._shard = edge.EdgeShard.load(str(self._folder))

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        import qdrant_edge as edge

        quantization = edge.QuantizationSearchParams(
            ignore=setting["ignore"], rescore=True, oversampling=setting["oversampling"]
        )
        request = edge.QueryRequest(
            limit=K,
            query=edge.Query.Nearest(query.tolist()),
            params=edge.SearchParams(exact=setting["ignore"], quantization=quantization),
        )
        return [int(point.id) for point in self._shard.query(request)]


class MaxSimCpu:
    """maxsim-cpu on float32 vectors in memory."""

    packages: ClassVar[tuple[str, ...]] = ("maxsim-cpu",)
    settings: ClassVar[tuple[Setting, ...]] = ({},)

    def __init__(self, folder: Path, threads: int) -> None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)

    def build(self, pages: Half) -> None:
        pass

    def open(self, pages: Half) -> None:
        self._pages = unit_pages(pages)

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        import maxsim_cpu

        return best(maxsim_cpu.maxsim_scores(query, self._pages))


class Numpy:
    """numpy on float32 vectors in memory: 64 pages a product, a thread a core, BLAS with one thread each."""

    packages: ClassVar[tuple[str, ...]] = ("numpy",)
    settings: ClassVar[tuple[Setting, ...]] = ({},)

    def __init__(self, folder: Path, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)

    def build(self, pages: Half) -> None:
        pass

    def open(self, pages: Half) -> None:
        self._pages = unit_pages(pages)

    def search(self, number: int, query: Float, setting: Setting) -> list[int]:
        _, vectors, width = self._pages.shape
        columns = np.ascontiguousarray(query.T)

        def score(first: int) -> Float:
            products = self._pages[first : first + 64].reshape(-1, width) @ columns
            scores: Float = products.reshape(-1, vectors, len(query)).max(axis=1).mean(axis=1)
            return scores

        return best(np.concatenate(list(self._pool.map(score, range(0, len(self._pages), 64)))))


SYSTEMS: Mapping[str, type[System]] = {
    "budgetvdr": Ours,
    "lancedb-flat": LanceFlat,
    "lancedb-flat-float32": LanceFlat32,
    "lancedb-indexed": LanceIndexed,
    "fast-plaid": FastPlaid,
    "qdrant-local": QdrantLocal,
    "qdrant-edge": QdrantEdge,
    "maxsim-cpu": MaxSimCpu,
    "numpy": Numpy,
}


def bytes_under(folder: Path) -> int:
    """What a system's files take."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def resident_mb() -> int:
    """Resident memory of this process without what it maps from files, 0 where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) // 1024


def main() -> None:
    name, folder, threads, task = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # Libraries print what they like; only answers go where the caller listens.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(answer: Mapping[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    pages = np.load(folder / "pages.npy", mmap_mode="r")
    queries = np.load(folder / "queries.npy")
    system = SYSTEMS[name](folder / name, threads)
    start = perf_counter()
    if task == "build":
        system.build(pages)
        tell({"build_s": perf_counter() - start, "bytes": bytes_under(folder / name)})
        return
    system.open(pages)
    opened = perf_counter() - start
    versions = {package: version(package) for package in system.packages}
    tell({"open_s": opened, "memory_mb": resident_mb(), "settings": list(system.settings), "versions": versions})
    for line in sys.stdin:
        number, setting = json.loads(line)
        start, cpu = perf_counter(), process_time()
        found = system.search(number, queries[number], system.settings[setting])
        tell({"ms": (perf_counter() - start) * 1e3, "cpu_ms": (process_time() - cpu) * 1e3, "pages": found})


if __name__ == "__main__":
    main()
