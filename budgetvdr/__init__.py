"""budgetvdr finds the right page in a pile of PDFs, scans and slides, at the cost you choose per query."""

from budgetvdr.budget import Budget
from budgetvdr.errors import BudgetVDRError
from budgetvdr.estimate import Estimate, estimate
from budgetvdr.explain import Explanation, TokenMatch
from budgetvdr.hit import Hit
from budgetvdr.index import Index
from budgetvdr.info import IndexInfo
from budgetvdr.pages import AddReport, FileReport, Page, PageProblem, Spent, Words
from budgetvdr.recall import RecallReport
from budgetvdr.recompress import RecompressReport
from budgetvdr.store import OptimizeReport, VersionInfo

__all__ = [
    "AddReport",
    "Budget",
    "BudgetVDRError",
    "Estimate",
    "Explanation",
    "FileReport",
    "Hit",
    "Index",
    "IndexInfo",
    "OptimizeReport",
    "Page",
    "PageProblem",
    "RecallReport",
    "RecompressReport",
    "Spent",
    "TokenMatch",
    "VersionInfo",
    "Words",
    "estimate",
]

__version__ = "0.1.0"
