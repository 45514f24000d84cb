"""What page graphs are asked of their attention, and how their answer is shared out among exits.

A graph has the inputs `layers`, which it looks at, and `steps`, how far it propagates. Its outputs are `support`
(S, K, n), `in_degree` and `from_start` (S, n) of the S layers looked at, ascending. Each layer is looked at once,
whatever the number of exits whose windows hold it.

What the global token pays is that of the last layer an exit executes, wherever its window lies (AnchorFold, appendix
A.3). A graph with a third input, `starts`, gives `from_start` of the layers selected there, and so need not look at all
of the attention in those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from budgetvdr.bundle import Manifest, Window
from budgetvdr.compress import Attention
from budgetvdr.compress.signals import without_tokens
from budgetvdr.encoders.onnx import Sessions
from budgetvdr.errors import CompressionError
from budgetvdr.pages import Scores

INPUTS = ("layers", "steps")
STARTS = "starts"
OUTPUTS = ("support", "in_degree", "from_start")


@dataclass(frozen=True, slots=True)
class Ask:
    """The windows of some exits, in one run.

    windows: depth -> window. layers: all that are looked at, ascending. steps: the most that any window takes.
    starts: layers whose `from_start` is given, ascending. apart: whether the graph has the input `starts`.
    """

    windows: Mapping[int, Window]
    layers: tuple[int, ...]
    steps: int
    starts: tuple[int, ...]
    apart: bool

    @classmethod
    def of(cls, windows: Mapping[int, Window], depths: Sequence[int], *, apart: bool = False) -> Self:
        """depths: those encoded. apart: whether the graph has the input `starts`.

        Raises CompressionError for a window that is not within the layers of its exit.
        """
        for depth, window in windows.items():
            if depth not in depths or window.last >= depth:
                raise CompressionError(
                    f"attention of layers {window.first} to {window.last} was asked for at depth {depth}: expected one "
                    f"of the depths encoded, {list(depths)}, and layers that it executes, counted from 0"
                )
        layers = {layer for window in windows.values() for layer in range(window.first, window.last + 1)}
        starts = {depth - 1 for depth in windows}
        if not apart:
            layers |= starts
            starts = layers
        steps = max((window.steps for window in windows.values()), default=1)
        return cls(windows, tuple(sorted(layers)), steps, tuple(sorted(starts)), apart)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs to take; none where nothing is asked."""
        return OUTPUTS if self.layers else ()

    def inputs(self, depth: int) -> dict[str, npt.NDArray[Any]]:
        """What a graph of `depth` layers is given beside the tokens; nothing where nothing is asked."""
        if not self.layers:
            return {}
        every = np.arange(depth)
        asked = {"layers": np.isin(every, self.layers), "steps": np.array(self.steps, np.int64)}
        return asked | {STARTS: np.isin(every, self.starts)} if self.apart else asked

    def answer(self, outputs: Sequence[Scores]) -> dict[int, Attention]:
        """Depth -> the attention in its window; outputs as `outputs` names them."""
        found = {}
        for depth, window in self.windows.items():
            support, in_degree, from_start = outputs
            first = self.layers.index(window.first)
            rows = slice(first, first + len(window))
            last = self.starts.index(depth - 1)
            paid = from_start[last : last + 1]
            found[depth] = Attention(support[rows, window.steps - 1], in_degree[rows], paid)
        return found


def require_attention(manifest: Manifest, sessions: Sessions, depth: int) -> None:
    """Raises CompressionError where the page graph of a depth tells nothing of its attention, and where that would say
    nothing of the page's vectors.
    """
    if manifest.slots:
        raise CompressionError(without_tokens(manifest))
    if not set(INPUTS) <= sessions.inputs(manifest.page_graphs[depth]):
        raise CompressionError(
            f"{manifest.name} tells nothing of its attention, which this compression needs; export the bundle again, "
            "or use a method that looks at vectors alone (WardFold, Clustering, Pooling)"
        )
