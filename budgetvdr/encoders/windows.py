"""Texts longer than the model's context, cut into windows."""

from __future__ import annotations


def windows(count: int, longest: int) -> list[slice]:
    """Cuts `count` tokens into the fewest windows of at most `longest`, of lengths that differ by one at most.

    Returns the windows in order; together they cover every token once. None for no tokens. Equal windows instead of
    full ones and a rest: no token is left with a few words of context, and attention, which grows with the square of
    a window's length, costs less.
    """
    parts = -(-count // longest)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]
