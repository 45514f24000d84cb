"""What each command of `budgetvdr` does with its parsed arguments; each returns its exit status."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from PIL import Image
from tqdm import tqdm

from budgetvdr.budget import Budget, Plan
from budgetvdr.calibration import calibrate_bundle
from budgetvdr.calibration_pairs import load_pairs
from budgetvdr.compression_grid import GridOptions, run_compression_grid
from budgetvdr.demo import hit_lines, run_demo
from budgetvdr.encoders.open import open_encoder
from budgetvdr.errors import BudgetVDRError
from budgetvdr.evaluate.benchmark import Benchmark, load_benchmark
from budgetvdr.evaluate.compression import GAMMAS
from budgetvdr.evaluate.metrics import require_metrics_library
from budgetvdr.evaluate.plot import pareto_svg
from budgetvdr.evaluate.run import fill, grid_points, run_benchmark
from budgetvdr.index import Index
from budgetvdr.info_text import info_rows, recall_text, size_text
from budgetvdr.pages import MetadataValue


def add(arguments: argparse.Namespace) -> int:
    """Indexes documents; 1 where something could not be read."""
    metadata = dict(_pair(text) for text in arguments.meta)
    with Index.open(
        arguments.index,
        encoder=arguments.encoder,
        depths=arguments.depths,
        compression=arguments.compression,
        signals=arguments.signals,
    ) as index:
        report = index.add_pages(
            arguments.sources[0] if len(arguments.sources) == 1 else arguments.sources,
            doc_id=arguments.doc_id,
            metadata=metadata,
            password=arguments.password,
            read=arguments.read,
            if_exists=arguments.if_exists,
            store_images=arguments.store_images,
        )
    print(report)
    return 1 if report.failed else 0


def recompress(arguments: argparse.Namespace) -> int:
    """Makes a smaller index."""
    with _reading(arguments) as index:
        report = index.recompress(arguments.target, arguments.compression)
    print(report)
    return 0


def search(arguments: argparse.Namespace) -> int:
    """Prints the best pages, and marks up a picture of the first."""
    if arguments.picture is not None:
        _check_picture(arguments.picture)
    with _reading(arguments, version=arguments.version, memory_limit=arguments.memory_limit) as index:
        hits = index.search(arguments.query, arguments.k, budget=_budget(arguments, index), where=arguments.where)
        if arguments.picture is not None and hits:
            picture = hits[0].image(password=arguments.password)
            hits[0].explain().overlay(picture).save(arguments.picture)
    if arguments.json:
        print(json.dumps([hit.to_dict() for hit in hits], ensure_ascii=False, default=str))
        return 0
    for line in hit_lines(hits):
        print(line)
    if arguments.picture is not None and hits:
        print(f"top page with its answering regions: {arguments.picture}")
    return 0


def info(arguments: argparse.Namespace) -> int:
    """Prints what an index holds."""
    with _reading(arguments, version=arguments.version) as index:
        found, documents = index.info(), index.documents() if arguments.documents else []
    if arguments.json:
        print(json.dumps(asdict(found) | {"documents_list": [asdict(document) for document in documents]}, default=str))
        return 0
    for name, value in info_rows(found).items():
        print(f"{name:>12}  {value}")
    for document in documents:
        print(f"{document.doc_id}  {document.pages} pages  {document.source}")
    return 0


def versions(arguments: argparse.Namespace) -> int:
    """Lists the versions that can be read."""
    with _reading(arguments) as index:
        there = index.versions()
    if arguments.json:
        print(json.dumps([asdict(entry) for entry in there], default=str))
        return 0
    for entry in there:
        print(f"{entry.version:>8}  {entry.time:%Y-%m-%d %H:%M:%S} UTC  {entry.pages} pages")
    return 0


def delete(arguments: argparse.Namespace) -> int:
    """Removes documents or pages."""
    with Index.open(arguments.index, encoder=arguments.encoder, create=False) as index:
        removed = index.delete(doc_id=arguments.doc_ids or None, where=arguments.where)
    print(f"{removed} pages removed")
    return 0


def optimize(arguments: argparse.Namespace) -> int:
    """Merges files, frees space, and makes the first stage."""
    with Index.open(arguments.index, encoder=arguments.encoder, create=False) as index:
        keep = timedelta(minutes=arguments.keep_minutes)
        report = index.optimize(keep=keep, first_stage=arguments.first_stage)
    print(
        f"{size_text(report.bytes_before)} in {report.fragments_before} files before, "
        f"{size_text(report.bytes_after)} in {report.fragments_after} after"
    )
    return 0


def recall(arguments: argparse.Namespace) -> int:
    """Measures what a budget finds of the exact answer, and keeps it for `info`."""
    with Index.open(
        arguments.index, encoder=arguments.encoder, create=False, memory_limit=arguments.memory_limit
    ) as index:
        budget = _budget(arguments, index)
        report = index.check_recall(arguments.n, budget=budget, k=arguments.k, queries=arguments.query)
    print(json.dumps(asdict(report)) if arguments.json else recall_text(report))
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Scores an evaluation set."""
    _check_eval(arguments)
    require_metrics_library()
    benchmark = load_benchmark(arguments.folder)
    if arguments.only:
        benchmark = benchmark.only(arguments.only)
    if arguments.compression_grid:
        return _compression_grid(arguments, benchmark)
    with (
        tempfile.TemporaryDirectory(prefix="budgetvdr-eval-") as scratch,
        Index.open(
            arguments.index or Path(scratch) / "index.bvdr", encoder=arguments.encoder, depths=arguments.depths
        ) as index,
    ):
        added = fill(benchmark, index, arguments.read)
        if added.failed:
            print(added, file=sys.stderr)
        report = run_benchmark(benchmark, index, points=grid_points(index) if arguments.grid else ())
    if arguments.json:
        print(json.dumps(report.as_dict()))
        return 0
    for line in report.lines():
        print(line)
    return 0


def _compression_grid(arguments: argparse.Namespace, benchmark: Benchmark) -> int:
    """Compares compression methods; tables for people go to standard error where JSON is asked for."""
    encoder = open_encoder(arguments.encoder)
    depths, dims = arguments.depths or encoder.manifest.depths[-1:], arguments.dims or encoder.manifest.dims[-1:]
    points = [Plan(depth, dim) for depth in sorted({*depths}, reverse=True) for dim in sorted({*dims}, reverse=True)]
    options = GridOptions(tuple(points), arguments.gammas or GAMMAS, arguments.read, arguments.index)
    report = run_compression_grid(benchmark, encoder, options)
    for line in report.lines():
        print(line, file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(report.as_dict()), flush=True)
    if arguments.plot is not None:
        arguments.plot.write_text(pareto_svg(report), encoding="utf-8")
    return 0


def calibrate(arguments: argparse.Namespace) -> int:
    """Calibrates a bundle for page compression; 1 where pairs were of no use."""
    pairs = load_pairs(arguments.pairs)
    with tqdm(total=min(len(pairs), arguments.most), unit="pair", desc="pairs", disable=None) as bar:
        report = calibrate_bundle(arguments.bundle, pairs, most=arguments.most, read=arguments.read, on_pair=bar.update)
    if arguments.json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        for line in report.lines():
            print(line)
    return 1 if report.left_out else 0


def demo(arguments: argparse.Namespace) -> int:
    """Indexes and searches samples, or a file of the user's."""
    return run_demo(arguments.pdf, arguments.query or [], arguments.index)


def _reading(arguments: argparse.Namespace, *, version: int | None = None, memory_limit: int | None = None) -> Index:
    return Index.open(
        arguments.index, encoder=arguments.encoder, read_only=True, version=version, memory_limit=memory_limit
    )


def _budget(arguments: argparse.Namespace, index: Index) -> Budget | str:
    """The preset, or the point, that was asked for, with the candidates that were."""
    name: str = arguments.budget
    if arguments.point is not None:
        depth, dim, *page_depth = arguments.point
        return Budget(
            depth=depth, page_depth=page_depth[0] if page_depth else None, dim=dim, candidates=arguments.candidates
        )
    if arguments.candidates is None or name not in index.presets:
        return name
    preset = index.presets[name]
    return Budget(depth=preset.depth, dim=preset.dim, candidates=arguments.candidates)


def _check_picture(path: Path) -> None:
    """Refuses before the search what could not be written after it."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise BudgetVDRError(f"--picture {path}: expected a picture's file name such as top.png, found {path.suffix!r}")
    _check_folder(path, "--picture")


def _check_eval(arguments: argparse.Namespace) -> None:
    """Refuses options that would say nothing, and before the run a plot that could not be written after it."""
    if arguments.compression_grid and arguments.grid:
        raise BudgetVDRError("--grid does not go with --compression-grid, whose points --depths and --dims choose")
    if not arguments.compression_grid:
        for option in ("gammas", "dims", "plot"):
            if getattr(arguments, option) is not None:
                raise BudgetVDRError(f"--{option} goes with --compression-grid")
    if arguments.plot is not None:
        if arguments.plot.suffix.lower() != ".svg":
            raise BudgetVDRError(f"--plot {arguments.plot}: expected a file name ending in .svg")
        _check_folder(arguments.plot, "--plot")


def _check_folder(path: Path, option: str) -> None:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise BudgetVDRError(f"{option} {path}: the folder {folder} does not exist")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BudgetVDRError(f"{option} {path}: expected a file that can be written")


def _pair(text: str) -> tuple[str, MetadataValue]:
    """KEY=VALUE with the value read as true/false, whole number, number, or text."""
    key, mark, value = text.partition("=")
    if not mark or not key:
        raise BudgetVDRError(f"--meta takes KEY=VALUE, found {text!r}")
    if value in ("true", "false"):
        return key, value == "true"
    if re.fullmatch(r"[+-]?\d+", value):
        return key, int(value)
    if re.fullmatch(r"[+-]?\d*\.\d+([eE][+-]?\d+)?", value):
        return key, float(value)
    return key, value
