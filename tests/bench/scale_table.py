"""The table of docs/scale.md: what `estimate` says for three sizes, two kinds of pages and two budgets.

    python tests/bench/scale_table.py

Arithmetic, and the same on every machine.
"""

from __future__ import annotations

from budgetvdr import estimate

SIZES = (10_000, 1_000_000, 100_000_000)
VECTORS = (420, 32)
BUDGETS = ("full", "fast")


def main() -> None:
    print("| pages | vectors a page | budget | disk | memory | pages looked at | a query |")
    print("|---|---|---|---|---|---|---|")
    for pages in SIZES:
        for vectors in VECTORS:
            for budget in BUDGETS:
                found = estimate(pages, budget, vectors_per_page=vectors, depths=[6], memory_limit="16GB", threads=2)
                cells = (
                    f"{pages:,}",
                    str(vectors),
                    budget,
                    size(found.disk_bytes),
                    size(found.memory_bytes),
                    f"{found.path}, {found.pages_scored:,}",
                    duration(found.query_ms),
                )
                print(f"| {' | '.join(cells)} |")


def size(count: int) -> str:
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= step:
            return f"{count / step:.3g} {unit}"
    return f"{count} B"


def duration(ms: float) -> str:
    for unit, step in (("h", 3.6e6), ("min", 6e4), ("s", 1e3)):
        if ms >= step:
            return f"{ms / step:.2g} {unit}"
    return f"{ms:.0f} ms"


if __name__ == "__main__":
    main()
