"""The arguments of every command, and the function of `commands` that takes them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias, get_args

from budgetvdr import commands, options
from budgetvdr.intake import IfExists
from budgetvdr.pages import ReadMode

_METHOD = (
    "NAME:GAMMA, e.g. WardFold:0.2 for a fifth; DocPruner:THRESHOLD; or settings by name, e.g. "
    "AnchorFold:cap=64,refinements=0"
)

_Parsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_all(parsers: _Parsers) -> None:
    """Adds every command, in the order in which --help lists them."""
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


def _add_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "add",
        help="index PDFs and pictures",
        description="Adds documents to an index, making it where there is none. A document is replaced when its "
        "content has changed and left alone when it has not. What cannot be read is listed at the end; the exit status "
        "is then 1.",
    )
    options.add_index(parser)
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
        "--depths", type=options.numbers, help="encoder exits to store, e.g. 6 or 2,6; fixed when the index is made"
    )
    fewer = parser.add_mutually_exclusive_group()
    fewer.add_argument(
        "--compression",
        type=options.method,
        metavar="METHOD",
        help=f"keep fewer vectors a page: {_METHOD}; fixed when the index is made",
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
    options.add_encoder(parser)
    parser.add_argument("--compression", type=options.method, required=True, metavar="METHOD", help=_METHOD)
    parser.set_defaults(run=commands.recompress)


def _search_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "search", help="find pages", description="Prints the best pages for a question, with what the search cost."
    )
    options.add_index(parser)
    parser.add_argument("query", metavar="QUESTION")
    parser.add_argument("-k", type=int, default=10, help="number of pages (default 10)")
    options.add_budget(parser, "full")
    options.add_version(parser)
    parser.add_argument("--where", help="SQL condition on your metadata and doc_id, page_num, source, reader")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="write the top page with its answering regions marked"
    )
    parser.add_argument("--password", help="password to draw a protected PDF with")
    parser.add_argument("--json", action="store_true", help="print one JSON array of hits")
    parser.set_defaults(run=commands.search)


def _info_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser("info", help="what an index holds", description="Counts, sizes, budgets, documents.")
    options.add_index(parser)
    options.add_version(parser)
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
    options.add_index(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(run=commands.versions)


def _delete_parser(parsers: _Parsers) -> None:
    parser = parsers.add_parser(
        "delete", help="remove documents", description="Removes documents by id, or pages by filter."
    )
    options.add_index(parser)
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
    options.add_index(parser)
    parser.add_argument(
        "--keep-minutes",
        type=options.minutes,
        default=15,
        help="versions younger than this stay (default 15); 0 frees all",
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
    options.add_index(parser)
    parser.add_argument("-n", type=int, default=50, help="number of queries (default 50)")
    parser.add_argument("-k", type=int, default=10, help="number of pages compared (default 10)")
    parser.add_argument("--query", action="append", help="your own query instead; may be repeated")
    options.add_budget(parser, "fast")
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
    options.add_encoder(parser)
    parser.add_argument(
        "--grid",
        action="store_true",
        help="every depth and width, and every pair of depths the bundle was trained for, not the full budget alone",
    )
    parser.add_argument(
        "--depths",
        type=options.numbers,
        metavar="LIST",
        help="depths to store (default: all; of a compression grid the deepest)",
    )
    parser.add_argument(
        "--index",
        type=Path,
        help="keep the index here (of a compression grid: folder) and reuse it; a temporary one by default",
    )
    parser.add_argument("--read", choices=get_args(ReadMode), default="auto", help="how pages are read")
    parser.add_argument("--only", nargs="+", metavar="DOC_ID", help="score only questions answered by these documents")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    compressed = parser.add_argument_group("page compression")
    compressed.add_argument(
        "--compression-grid",
        action="store_true",
        help="every compression method at every gamma instead, each from the same vectors; takes minutes",
    )
    compressed.add_argument(
        "--gammas", type=options.shares, metavar="LIST", help="shares of vectors (default 0.5,0.2,0.1,0.05)"
    )
    compressed.add_argument("--dims", type=options.numbers, metavar="LIST", help="widths (default: the full one)")
    compressed.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw bytes a page against nDCG@5")
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
