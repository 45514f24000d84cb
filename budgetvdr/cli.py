"""The `budgetvdr` command: add, search, info, delete, optimize, eval, demo."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias, get_args

from PIL import Image

from budgetvdr.budget import Budget
from budgetvdr.demo import hit_lines, run_demo
from budgetvdr.errors import BudgetVDRError
from budgetvdr.evaluate.benchmark import load_benchmark
from budgetvdr.evaluate.metrics import require_metrics_library
from budgetvdr.evaluate.run import grid_points, run_benchmark
from budgetvdr.index import Index
from budgetvdr.intake import IfExists
from budgetvdr.pages import MetadataValue, ReadMode

_EXAMPLES = """examples:
  budgetvdr add reports.bvdr annual-report.pdf scans/ --meta year=2024
  budgetvdr search reports.bvdr "Who signs off capital spending?" --budget balanced
  budgetvdr search reports.bvdr "travel policy" --where "year >= 2023" --picture top.png
  budgetvdr delete reports.bvdr annual-report.pdf
  budgetvdr eval my-benchmark/ --grid
  budgetvdr demo

Every command has its own --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 done in part, 2 refused, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a letter shows its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except BudgetVDRError as error:
        print(f"budgetvdr: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("budgetvdr: interrupted; what was committed is kept, run the same command to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe (head, less) has had enough.
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"budgetvdr: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="budgetvdr",
        description="Finds the right page in a pile of PDFs, scans and slides, at the cost you choose.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"budgetvdr {version('budgetvdr')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_parser(commands)
    _search_parser(commands)
    _info_parser(commands)
    _delete_parser(commands)
    _optimize_parser(commands)
    _eval_parser(commands)
    _demo_parser(commands)
    return parser


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_parser(commands: _Commands) -> None:
    parser = commands.add_parser(
        "add",
        help="index PDFs and pictures",
        description="Adds documents to an index, making it where there is none. A document is replaced when its "
        "content has changed and left alone when it has not. What cannot be read is listed at the end; the exit status "
        "is then 1.",
    )
    _index_argument(parser)
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="PDF, picture, folder or quoted glob pattern")
    parser.add_argument("--doc-id", help="name of the document; the file name by default")
    parser.add_argument(
        "--meta", action="append", default=[], metavar="KEY=VALUE", help="value to filter on; may be repeated"
    )
    parser.add_argument("--password", help="password of protected PDFs")
    parser.add_argument(
        "--read", choices=get_args(ReadMode), default="auto", help="how pages are read (default: each page decides)"
    )
    parser.add_argument(
        "--if-exists", choices=get_args(IfExists), default="update", help="what to do with a known document"
    )
    parser.add_argument("--store-images", action="store_true", help="keep a picture of each page in the index")
    parser.add_argument(
        "--depths", type=_numbers, help="encoder exits to store, e.g. 6 or 2,6; fixed when the index is made"
    )
    parser.set_defaults(run=_add)


def _search_parser(commands: _Commands) -> None:
    parser = commands.add_parser(
        "search", help="find pages", description="Prints the best pages for a question, with what the search cost."
    )
    _index_argument(parser)
    parser.add_argument("query", metavar="QUESTION")
    parser.add_argument("-k", type=int, default=10, help="number of pages (default 10)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--budget", default="full", help="full, balanced or fast (default full)")
    budget.add_argument("--point", type=_point, metavar="DEPTH,DIM", help="an exact point of the grid, e.g. 6,128")
    parser.add_argument("--where", help="SQL condition on your metadata and doc_id, page_num, source, reader")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="write the top page with its answering regions marked"
    )
    parser.add_argument("--password", help="password to draw a protected PDF with")
    parser.add_argument("--json", action="store_true", help="print one JSON array of hits")
    parser.set_defaults(run=_search)


def _info_parser(commands: _Commands) -> None:
    parser = commands.add_parser("info", help="what an index holds", description="Counts, sizes, budgets, documents.")
    _index_argument(parser)
    parser.add_argument("--documents", action="store_true", help="list every document")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_info)


def _delete_parser(commands: _Commands) -> None:
    parser = commands.add_parser(
        "delete", help="remove documents", description="Removes documents by id, or pages by filter."
    )
    _index_argument(parser)
    parser.add_argument("doc_ids", nargs="*", metavar="DOC_ID")
    parser.add_argument("--where", help="SQL condition; removes the pages that meet it")
    parser.set_defaults(run=_delete)


def _optimize_parser(commands: _Commands) -> None:
    parser = commands.add_parser(
        "optimize",
        help="merge small files, free space",
        description="Merges small files and frees the space of old versions. Worth it after many small additions.",
    )
    _index_argument(parser)
    parser.add_argument(
        "--keep-minutes", type=float, default=15, help="versions younger than this stay (default 15); 0 frees all"
    )
    parser.set_defaults(run=_optimize)


def _eval_parser(commands: _Commands) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure retrieval on questions with known answers",
        description="Indexes DIR/pdfs, asks every question of DIR/queries.jsonl and scores the answers against "
        "DIR/qrels.tsv: nDCG@5 (linear gain), recall, mAP, and what each budget costs.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--grid", action="store_true", help="every depth and width, not the full budget alone")
    parser.add_argument("--index", type=Path, help="keep the index here and reuse it; a temporary one by default")
    parser.add_argument("--read", choices=get_args(ReadMode), default="auto", help="how pages are read")
    parser.add_argument("--only", nargs="+", metavar="DOC_ID", help="score only questions answered by these documents")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_eval)


def _demo_parser(commands: _Commands) -> None:
    parser = commands.add_parser(
        "demo", help="see it work", description="Indexes the sample documents, or your own file, and searches them."
    )
    parser.add_argument("pdf", nargs="?", type=Path, help="your own PDF, picture or folder")
    parser.add_argument("--query", action="append", help="your question; may be repeated")
    parser.add_argument(
        "--index", type=Path, default=Path("demo.bvdr"), help="where the index goes (default demo.bvdr)"
    )
    parser.set_defaults(run=lambda arguments: run_demo(arguments.pdf, arguments.query or [], arguments.index))


def _index_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder or object-store URI of the index")
    parser.add_argument(
        "--encoder", type=Path, metavar="FOLDER", help="encoder bundle; the one in the package by default"
    )


def _add(arguments: argparse.Namespace) -> int:
    metadata = dict(_pair(text) for text in arguments.meta)
    with Index.open(arguments.index, encoder=arguments.encoder, depths=arguments.depths) as index:
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


def _search(arguments: argparse.Namespace) -> int:
    if arguments.picture is not None:
        _check_picture(arguments.picture)
    budget = arguments.budget if arguments.point is None else Budget(depth=arguments.point[0], dim=arguments.point[1])
    with Index.open(arguments.index, encoder=arguments.encoder, read_only=True) as index:
        hits = index.search(arguments.query, arguments.k, budget=budget, where=arguments.where)
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


def _info(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index, encoder=arguments.encoder, read_only=True) as index:
        info, documents = index.info(), index.documents() if arguments.documents else []
    if arguments.json:
        print(json.dumps(asdict(info) | {"documents_list": [asdict(document) for document in documents]}, default=str))
        return 0
    for name, value in asdict(info).items():
        print(f"{name:>14}  {value}")
    for document in documents:
        print(f"{document.doc_id}  {document.pages} pages  {document.source}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index, encoder=arguments.encoder, create=False) as index:
        removed = index.delete(doc_id=arguments.doc_ids or None, where=arguments.where)
    print(f"{removed} pages removed")
    return 0


def _optimize(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index, encoder=arguments.encoder, create=False) as index:
        report = index.optimize(keep=timedelta(minutes=max(0.0, arguments.keep_minutes)))
    before, after = report.bytes_before / 1e6, report.bytes_after / 1e6
    print(
        f"{before:.1f} MB in {report.fragments_before} files before, {after:.1f} MB in {report.fragments_after} after"
    )
    return 0


def _eval(arguments: argparse.Namespace) -> int:
    require_metrics_library()
    benchmark = load_benchmark(arguments.folder)
    if arguments.only:
        benchmark = benchmark.only(arguments.only)
    with (
        tempfile.TemporaryDirectory(prefix="budgetvdr-eval-") as scratch,
        Index.open(arguments.index or Path(scratch) / "index.bvdr") as index,
    ):
        added = index.add_pages(benchmark.pdfs, read=arguments.read)
        if added.failed:
            print(added, file=sys.stderr)
        report = run_benchmark(benchmark, index, points=grid_points(index) if arguments.grid else ())
    if arguments.json:
        print(json.dumps(report.as_dict()))
        return 0
    for line in report.lines():
        print(line)
    return 0


def _check_picture(path: Path) -> None:
    """Refuses before the search what could not be written after it."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise BudgetVDRError(f"--picture {path}: expected a picture's file name such as top.png, found {path.suffix!r}")
    if not path.absolute().parent.is_dir():
        raise BudgetVDRError(f"--picture {path}: the folder {path.absolute().parent} does not exist")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, found {text!r}") from None


def _point(text: str) -> tuple[int, ...]:
    numbers = _numbers(text)
    if len(numbers) != 2:
        raise argparse.ArgumentTypeError(f"expected DEPTH,DIM such as 6,128, found {text!r}")
    return numbers


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
