"""Options that several commands share, and what the texts given for options mean."""

from __future__ import annotations

import argparse

from budgetvdr.compress.record import Method, from_text
from budgetvdr.errors import BudgetError
from budgetvdr.memory import parse_bytes


def add_index(parser: argparse.ArgumentParser) -> None:
    """INDEX, and the encoder it was made with."""
    parser.add_argument("index", metavar="INDEX", help="folder or object-store URI of the index")
    add_encoder(parser)


def add_encoder(parser: argparse.ArgumentParser) -> None:
    """--encoder; a text, as the name of a repository would not survive being taken for a path."""
    parser.add_argument(
        "--encoder",
        metavar="BUNDLE",
        help="encoder bundle: a folder, or owner/name[@revision] on the Hugging Face hub (default: the one in the "
        "package); an index is opened with the bundle it was made with",
    )


def add_budget(parser: argparse.ArgumentParser, default: str) -> None:
    """A named budget or a point, candidates, and the memory limit."""
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
        type=_byte_count,
        metavar="BYTES",
        help="most bytes of vectors kept in memory, e.g. 512MB (default: a quarter of the machine's)",
    )


def add_version(parser: argparse.ArgumentParser) -> None:
    """--version of the index."""
    parser.add_argument("--version", type=int, metavar="N", help="read the index as it was; see budgetvdr versions")


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, found {text!r}") from None


def shares(text: str) -> tuple[float, ...]:
    """Numbers above 0 and below 1, separated by commas."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 < share < 1 for share in found):
        raise argparse.ArgumentTypeError(f"expected shares between 0 and 1, separated by commas, found {text!r}")
    return found


def method(text: str) -> Method:
    """A method of compression and its settings, such as NAME:GAMMA."""
    try:
        return from_text(text)
    except BudgetError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def minutes(text: str) -> float:
    """Minutes from 0."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1e6:  # a million minutes are two years
        raise argparse.ArgumentTypeError(f"expected minutes from 0 to a million, found {text!r}")
    return found


def _point(text: str) -> tuple[int, ...]:
    found = numbers(text)
    if len(found) not in (2, 3):
        raise argparse.ArgumentTypeError(f"expected DEPTH,DIM such as 6,128, or DEPTH,DIM,PAGE_DEPTH, found {text!r}")
    return found


def _byte_count(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
