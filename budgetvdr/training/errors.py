"""Errors of training, for whoever prepares data, checkpoints and settings."""

from __future__ import annotations

from budgetvdr.errors import BudgetVDRError


class TrainingError(BudgetVDRError):
    """Settings that contradict each other or the model."""


class CheckpointError(TrainingError):
    """A checkpoint that is missing, damaged, or not trained for what is asked of it."""


class TrainingDataError(TrainingError):
    """Training data that is missing or malformed."""
