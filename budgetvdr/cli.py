"""The `budgetvdr` command. Its commands' arguments are in `subcommands`; what each does with them is in `commands`."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from importlib.metadata import version

from budgetvdr import subcommands
from budgetvdr.errors import BudgetVDRError

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
    subcommands.add_all(parsers)
    return parser
