"""What a layer's attention says about a page's image tokens, for page compression (AnchorFold, section 3.2)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from budgetvdr.training.models.model import Inputs

_SMALLEST = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """S layers looked at, ascending; 0 for tokens that are no image tokens.

    support: (S, K, B, L) root mean square over heads after 1..K steps of propagation from the uniform distribution.
    in_degree: (S, B, L) mean over heads of what a token gets, rows normalised (SAP). from_start: (S, B, L) mean over
    heads of what the page's global token pays to each (DocPruner).
    """

    support: Tensor
    in_degree: Tensor
    from_start: Tensor

    @classmethod
    def stack(cls, layers: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Self:
        """One entry a layer."""
        support, in_degree, from_start = (torch.stack(part) for part in zip(*layers, strict=True))
        return cls(support, in_degree, from_start)


@dataclass(frozen=True, slots=True)
class Watch:
    """layers: zero-based. steps: K."""

    layers: tuple[int, ...]
    steps: int

    def measure(self, attention: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, L, L) attention of one layer -> support (K, B, L), in_degree and from_start (B, L)."""
        image = (inputs["visual_slots"] >= 0).to(torch.float32)
        among = attention.float() * image[:, None, None, :] * image[:, None, :, None]
        rows = among / among.sum(dim=-1, keepdim=True).clamp(min=_SMALLEST)
        uniform = image / image.sum(dim=-1, keepdim=True).clamp(min=1)
        state = uniform[:, None, None, :].expand(-1, attention.shape[1], -1, -1)
        supports, means = [], []
        for _ in range(self.steps):
            state = state @ rows
            supports.append(state.square().mean(dim=1).sqrt().squeeze(1))
            means.append(state.mean(dim=1).squeeze(1))
        return torch.stack(supports), means[0], _from_global(attention.float(), inputs) * image


def _from_global(attention: Tensor, inputs: Inputs) -> Tensor:
    """(B, L): what the last token pays, the one that has seen all of the page in models that look back alone."""
    mask = inputs["attention_mask"]
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=-1)
    rows = attention.mean(dim=1)
    return rows.gather(1, last[:, None, None].expand(-1, 1, rows.shape[2])).squeeze(1)


def watched(
    layer: nn.Module, attention: Any, state: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Runs a stock layer; its states and the (B, H, L, L) attention, which stock layers compute and drop."""
    kept: list[Tensor] = []
    usual = attention.config
    # Only the plain implementation has the probabilities; other layers keep the fused one.
    plain = copy.copy(usual)
    plain._attn_implementation_internal = "eager"
    attention.config = plain
    handle = attention.register_forward_hook(lambda module, arguments, output: kept.append(output[1]))
    try:
        state = layer(state, attention_mask=mask, position_embeddings=rotary)
    finally:
        handle.remove()
        attention.config = usual
    return state, kept[0]
