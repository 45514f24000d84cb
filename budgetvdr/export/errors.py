"""Errors of exporting."""

from __future__ import annotations

from budgetvdr.errors import BudgetVDRError


class ExportError(BudgetVDRError):
    """A checkpoint that cannot be exported as asked, or whose graphs differ too much from it."""
