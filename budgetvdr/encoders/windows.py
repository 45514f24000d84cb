"""Texts longer than the model's context, cut into windows."""

from __future__ import annotations


def windows(count: int, longest: int) -> list[slice]:
    """Cuts `count` tokens into windows of `longest` tokens and one of the rest.

    Returns the windows in order; together they cover every token once. None for no tokens. Full windows and a short
    rest, not windows of one length: that way most tokens have the most context.
    """
    return [slice(start, min(start + longest, count)) for start in range(0, count, longest)]
