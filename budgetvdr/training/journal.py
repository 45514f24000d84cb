"""What a run did: a JSON line a step, and a picture of the loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from budgetvdr.durable import replace_text

METRICS_NAME = "metrics.jsonl"
PLOT_NAME = "loss.svg"

_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48


class Journal:
    """Appends to `metrics.jsonl` in a folder.

    start: first step to come; lines of it and of later ones are dropped, since a killed run's are about to be redone.
    """

    def __init__(self, folder: Path, start: int) -> None:
        self._path = folder / METRICS_NAME
        kept = [line for line in read_metrics(folder) if line["step"] < start]
        replace_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, line: Mapping[str, object]) -> None:
        """Adds one line; it is on disk as far as the operating system is concerned when this returns."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run in order; a last line cut off by a kill is left out."""
    path = folder / METRICS_NAME
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def plot_losses(folder: Path) -> None:
    """Writes `loss.svg`: the total loss of every step, and its mean over a twentieth of the run as a thick line."""
    points = [(line["step"], line["loss"]) for line in read_metrics(folder) if "loss" in line]
    if not points:
        return
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    top, last = max(losses) or 1.0, max(steps) or 1

    def place(values: list[float]) -> str:
        across, up = (_WIDTH - 2 * _MARGIN) / last, (_HEIGHT - 2 * _MARGIN) / top
        pairs = zip(steps, values, strict=True)
        return " ".join(f"{_MARGIN + step * across:.1f},{_HEIGHT - _MARGIN - loss * up:.1f}" for step, loss in pairs)

    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    svg = f"""<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif">
<rect width="100%" height="100%" fill="white"/>
<path d="M{_MARGIN} {_MARGIN}V{bottom}H{right}" fill="none" stroke="black"/>
<polyline points="{place(losses)}" fill="none" stroke="#9bb8d3"/>
<polyline points="{place(_smoothed(losses))}" fill="none" stroke="#1f4e79" stroke-width="2"/>
<text x="{_MARGIN}" y="{_MARGIN - 8}">loss, up to {top:.4g}</text>
<text x="{right}" y="{bottom + 20}" text-anchor="end">step {last}</text>
</svg>
"""
    (folder / PLOT_NAME).write_text(svg, encoding="utf-8")


def _smoothed(values: list[float]) -> list[float]:
    span = max(1, len(values) // 20)
    starts = [max(0, index + 1 - span) for index in range(len(values))]
    return [sum(values[start : index + 1]) / (index + 1 - start) for index, start in enumerate(starts)]
