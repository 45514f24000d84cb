"""The `budgetvdr` command: its arguments. What each command does with them is in `commands`."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias, get_args

from budgetvdr import commands
from budgetvdr.compress.record import Method, from_text
from budgetvdr.errors import BudgetError, BudgetVDRError
from budgetvdr.intake import IfExists
from budgetvdr.memory import parse_bytes
from budgetvdr.pages import ReadMode

_EXAMPLES = """examples:
  budgetvdr add reports.bvdr annual-report.pdf scans/ --meta year=2024
  budgetvdr search reports.bvdr "Who signs off capital spending?" --budget balanced
  budgetvdr search reports.bvdr "travel policy" --where "year >= 2023" --picture top.png
  budgetvdr delete reports.bvdr annual-report.pdf
  budgetvdr recompress reports.bvdr small.bvdr --compression WardFold:0.2
  budgetvdr recall reports.bvdr --budget fast
  budgetvdr eval my-benchmark/ --grid
  budgetvdr demo

Every command has its own --help."""

_Parsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


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
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_parser(parsers)
    _recompress_parser(parsers)
    _search_parser(parsers)
    _info_parser(parsers)
    _versions_parser(parsers)
    _delete_parser(parsers)
    _optimize_parser(parsers)
    _recall_parser(parsers)
    _eval_parser(parsers)
    _calibrate_parser(parsers)
    _demo_parser(parsers)
    return parser


def _add_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "add",
        help="index PDFs and pictures",
        description="Adds documents to an index, making it where there is none. A document is replaced when its "
        "content has changed and left alone when it has not. What cannot be read is listed at the end; the exit status "
        "is then 1.",
    )
    _index_arguments(parser)
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
    fewer = parser.add_mutually_exclusive_group()
    fewer.add_argument(
        "--compression",
        type=_method,
        metavar="NAME:GAMMA",
        help="keep fewer vectors a page, e.g. WardFold:0.2 for a fifth; fixed when the index is made",
    )
    fewer.add_argument(
        "--signals",
        action="store_true",
        help="keep what recompress may need of the attention, 6 bytes a token and depth; fixed when the index is made",
    )
    parser.set_defaults(run=commands.add)


def _recompress_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "recompress",
        help="make a smaller index of a full one",
        description="Makes an index with fewer vectors a page of one that keeps all of them, without encoding its "
        "pages again. AnchorFold, StructuralPruning and DocPruner need an index made with add --signals. Interrupted, "
        "the same command goes on.",
    )
    parser.add_argument("index", metavar="SRC", help="folder or object-store URI of the full index")
    parser.add_argument("target", metavar="DST", help="where the smaller one goes")
    _encoder_argument(parser)
    parser.add_argument(
        "--compression", type=_method, required=True, metavar="NAME:GAMMA", help="e.g. WardFold:0.2 for a fifth"
    )
    parser.set_defaults(run=commands.recompress)


def _search_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "search", help="find pages", description="Prints the best pages for a question, with what the search cost."
    )
    _index_arguments(parser)
    parser.add_argument("query", metavar="QUESTION")
    parser.add_argument("-k", type=int, default=10, help="number of pages (default 10)")
    _budget_arguments(parser, "full")
    _version_argument(parser)
    parser.add_argument("--where", help="SQL condition on your metadata and doc_id, page_num, source, reader")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="write the top page with its answering regions marked"
    )
    parser.add_argument("--password", help="password to draw a protected PDF with")
    parser.add_argument("--json", action="store_true", help="print one JSON array of hits")
    parser.set_defaults(run=commands.search)


def _info_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser("info", help="what an index holds", description="Counts, sizes, budgets, documents.")
    _index_arguments(parser)
    _version_argument(parser)
    parser.add_argument("--documents", action="store_true", help="list every document")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=commands.info)


def _versions_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "versions",
        help="states of an index that can still be read",
        description="Lists the versions that search --version and info --version can read, oldest first. Every commit "
        "makes one; old ones go with optimize.",
    )
    _index_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(run=commands.versions)


def _delete_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "delete", help="remove documents", description="Removes documents by id, or pages by filter."
    )
    _index_arguments(parser)
    parser.add_argument("doc_ids", nargs="*", metavar="DOC_ID")
    parser.add_argument("--where", help="SQL condition; removes the pages that meet it")
    parser.set_defaults(run=commands.delete)


def _optimize_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "optimize",
        help="merge small files, free space, prepare a large index",
        description="Merges small files and frees the space of old versions. Makes the first stage of a large index, "
        "which proposes pages to budgets with candidates, or brings it up to date.",
    )
    _index_arguments(parser)
    parser.add_argument(
        "--keep-minutes", type=_minutes, default=15, help="versions younger than this stay (default 15); 0 frees all"
    )
    parser.add_argument(
        "--first-stage",
        action=argparse.BooleanOptionalAction,
        help="make one, or remove it (default: make one from 4 million vectors on, and keep up one that is there)",
    )
    parser.set_defaults(run=commands.optimize)


def _recall_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "recall",
        help="measure what a budget finds of the exact answer",
        description="Compares searches at a budget with scoring every stored vector at the same depth and width, by "
        "queries made of words from the index's own pages. Needs no known answers; what depth and width cost in "
        "quality is measured by eval.",
    )
    _index_arguments(parser)
    parser.add_argument("-n", type=int, default=50, help="number of queries (default 50)")
    parser.add_argument("-k", type=int, default=10, help="number of pages compared (default 10)")
    parser.add_argument("--query", action="append", help="your own query instead; may be repeated")
    _budget_arguments(parser, "fast")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=commands.recall)


def _eval_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "eval",
        help="measure retrieval on questions with known answers",
        description="Indexes DIR/pdfs, asks every question of DIR/queries.jsonl and scores the answers against "
        "DIR/qrels.tsv: nDCG@5 (linear gain), recall, mAP, and what each budget costs.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path)
    _encoder_argument(parser)
    parser.add_argument(
        "--grid",
        action="store_true",
        help="every depth and width, and every pair of depths the bundle was trained for, not the full budget alone",
    )
    parser.add_argument(
        "--compression-grid",
        action="store_true",
        help="every compression method at every gamma instead, each from the same vectors; takes minutes",
    )
    parser.add_argument(
        "--gammas", type=_shares, metavar="LIST", help="shares of vectors for that (default 0.5,0.2,0.1,0.05)"
    )
    parser.add_argument(
        "--depths", type=_numbers, metavar="LIST", help="depths to store (default: all; for that grid the deepest)"
    )
    parser.add_argument("--dims", type=_numbers, metavar="LIST", help="widths for that (default: the full one)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw bytes a page against nDCG@5 of that")
    parser.add_argument(
        "--index",
        type=Path,
        help="keep the index here (of a compression grid: folder) and reuse it; a temporary one by default",
    )
    parser.add_argument("--read", choices=get_args(ReadMode), default="auto", help="how pages are read")
    parser.add_argument("--only", nargs="+", metavar="DOC_ID", help="score only questions answered by these documents")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=commands.evaluate)


def _calibrate_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "calibrate",
        help="prepare an encoder bundle for page compression",
        description="Chooses, for every exit of a bundle, the layers and steps by which AnchorFold finds the tokens of "
        "a page that matter, and records them in its manifest; the report goes into calibration.json beside it. Takes "
        "pairs of a query and the page that answers it, no other labels. Take pages that no evaluation uses.",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of the bundle, which is written to")
    parser.add_argument(
        "--pairs",
        type=Path,
        required=True,
        metavar="FILE|DIR",
        help='JSON lines {"query": ..., "pdf" or "image": ..., "page": ...}, or a folder as eval takes it',
    )
    parser.add_argument("--most", type=int, default=500, metavar="N", help="take at most N pairs, by lot (default 500)")
    parser.add_argument("--read", choices=get_args(ReadMode), default="auto", help="how pages are read")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=commands.calibrate)


def _demo_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "demo", help="see it work", description="Indexes the sample documents, or your own file, and searches them."
    )
    parser.add_argument("pdf", nargs="?", type=Path, help="your own PDF, picture or folder")
    parser.add_argument("--query", action="append", help="your question; may be repeated")
    parser.add_argument(
        "--index", type=Path, default=Path("demo.bvdr"), help="where the index goes (default demo.bvdr)"
    )
    parser.set_defaults(run=commands.demo)


def _index_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder or object-store URI of the index")
    _encoder_argument(parser)


def _encoder_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--encoder", type=Path, metavar="FOLDER", help="encoder bundle; the one in the package by default"
    )


def _budget_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    point = parser.add_mutually_exclusive_group()
    point.add_argument("--budget", default=default, help=f"full, balanced or fast (default {default})")
    point.add_argument(
        "--point",
        type=_point,
        metavar="DEPTH,DIM[,PAGE_DEPTH]",
        help="an exact point of the grid, e.g. 6,128; 2,128,6 asks pages of depth 6 with a query of depth 2",
    )
    parser.add_argument(
        "--candidates",
        type=int,
        metavar="N",
        help="look only at the N pages that the first stage of a large index proposes (default: what the budget says)",
    )
    parser.add_argument(
        "--memory-limit",
        type=_bytes,
        metavar="BYTES",
        help="most bytes of vectors kept in memory, e.g. 512MB (default: a quarter of the machine's)",
    )


def _version_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", type=int, metavar="N", help="read the index as it was; see budgetvdr versions")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, found {text!r}") from None


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share < 1 for share in shares):
        raise argparse.ArgumentTypeError(f"expected shares between 0 and 1, separated by commas, found {text!r}")
    return shares


def _method(text: str) -> Method:
    try:
        return from_text(text)
    except BudgetError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _point(text: str) -> tuple[int, ...]:
    numbers = _numbers(text)
    if len(numbers) not in (2, 3):
        raise argparse.ArgumentTypeError(f"expected DEPTH,DIM such as 6,128, or DEPTH,DIM,PAGE_DEPTH, found {text!r}")
    return numbers


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes <= 1e6:  # a million minutes are two years
        raise argparse.ArgumentTypeError(f"expected minutes from 0 to a million, found {text!r}")
    return minutes
