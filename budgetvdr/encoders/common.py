"""What encoders of every family do alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from budgetvdr.bundle import Manifest
from budgetvdr.errors import BudgetError, BudgetVDRError, PageError
from budgetvdr.pages import Page, Vectors


def exit_name(depth: int) -> str:
    """The output of a graph with the vectors of an exit."""
    return f"exit_{depth}"


def check_depths(manifest: Manifest, depths: Sequence[int]) -> None:
    """Raises BudgetError where none is asked for, or one that is no exit of the bundle."""
    if not depths or not set(depths) <= set(manifest.depths):
        raise BudgetError(f"{manifest.name} has exits at {manifest.depths}, asked for {tuple(depths)}")


def unit_rows(rows: Vectors) -> Vectors:
    """(n, D) scaled to unit length."""
    unit: Vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return unit


def page_failure(page: Page, error: Exception) -> PageError:
    """What is said of a page whose encoding raised `error`."""
    if isinstance(error, PageError):
        return error
    what = str(error) if isinstance(error, BudgetVDRError) else f"{type(error).__name__}: {error}"
    failure = PageError(f"{page.doc_id}: page {page.page_num} cannot be encoded: {what}", page_num=page.page_num)
    failure.__cause__ = error
    return failure
