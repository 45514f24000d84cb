"""Gradient caching: a contrastive batch as large as its scores allow, whatever the encoder's memory.

The batch is encoded in chunks without a graph; the loss gives a gradient for each token vector; then chunk after
chunk is encoded again, with a graph, and takes its part of those gradients. The result is that of the whole batch at
once, for one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from budgetvdr.training.models.model import Content
from budgetvdr.training.scores import TokenStates

Encode = Callable[[Sequence[Content]], TokenStates]


class CachedStates:
    """The states of a batch encoded in chunks of `chunk` contents, as leaves that collect gradients.

    `states` goes into a loss; after its backward pass `backward` hands the gradients on to the encoder.
    """

    def __init__(self, encode: Encode, contents: Sequence[Content], chunk: int) -> None:
        self._encode = encode
        self._chunks = [contents[start : start + chunk] for start in range(0, len(contents), chunk)]
        self._random: list[_RandomState] = []
        parts = []
        with torch.no_grad():
            for part in self._chunks:
                self._random.append(_RandomState())
                parts.append(encode(part))
        whole = joined(parts)
        leaves = {depth: vectors.detach().requires_grad_() for depth, vectors in whole.exits.items()}
        self.states = TokenStates(leaves, whole.mask)

    def backward(self) -> None:
        """Adds the batch's gradients to the encoder's parameters."""
        start = 0
        for part, random in zip(self._chunks, self._random, strict=True):
            # Dropout must fall as it fell the first time.
            random.restore()
            states = self._encode(part)
            outputs, gradients = [], []
            for depth, vectors in states.exits.items():
                collected = self.states.exits[depth].grad
                # An exit that is no part of the loss has none, and a frozen one takes none.
                if collected is not None and vectors.requires_grad:
                    outputs.append(vectors)
                    gradients.append(collected[start : start + len(part), : vectors.shape[1]].to(vectors.dtype))
            torch.autograd.backward(outputs, gradients)
            start += len(part)


def encoded(encode: Encode, contents: Sequence[Content], chunk: int | None) -> TokenStates:
    """The states of all contents, encoded `chunk` at a time; all at once where it is None."""
    size = chunk or len(contents)
    return joined([encode(contents[start : start + size]) for start in range(0, len(contents), size)])


def joined(parts: Sequence[TokenStates]) -> TokenStates:
    """Batches as one, each padded to the longest."""
    longest = max(part.mask.shape[1] for part in parts)

    def filled(tensor: Tensor, dims: int) -> Tensor:
        return F.pad(tensor, (*(0, 0) * dims, 0, longest - tensor.shape[1]))

    exits = {depth: torch.cat([filled(part.exits[depth], 1) for part in parts]) for depth in parts[0].exits}
    return TokenStates(exits, torch.cat([filled(part.mask, 0) for part in parts]))


class _RandomState:
    """Where the random generators of the CPU and of the current GPU stand."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu)
