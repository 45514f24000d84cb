"""Retrieval quality of an index on a set of questions with known answer pages, at every budget."""

from budgetvdr.evaluate.benchmark import Benchmark, BenchmarkQuery, load_benchmark
from budgetvdr.evaluate.compression import CompressionReport, CompressionRow
from budgetvdr.evaluate.metrics import Metrics, score_run
from budgetvdr.evaluate.report import Report, Row
from budgetvdr.evaluate.run import SearchIndex, grid_points, run_benchmark

__all__ = [
    "Benchmark",
    "BenchmarkQuery",
    "CompressionReport",
    "CompressionRow",
    "Metrics",
    "Report",
    "Row",
    "SearchIndex",
    "grid_points",
    "load_benchmark",
    "run_benchmark",
    "score_run",
]
