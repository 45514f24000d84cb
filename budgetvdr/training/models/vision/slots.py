"""RandSlot in the model: vectors of no token at the end of a page or query, and the read-outs there.

All of them enter at once. What is read out at a slot is what a pass for this slot alone would give, with the slots
before it at the end of the page: the inputs do not depend on what is read out. Models that look back alone see to that
themselves; in others tokens are kept from seeing slots, and slots from seeing later ones.

The vectors take the place of embeddings in what the first layer is given; ModernBERT's norm of embeddings lies before
that and does not touch them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from budgetvdr.encoders.vision.slots import INPUT
from budgetvdr.training.models.model import Inputs


@dataclass(frozen=True, slots=True, eq=False)
class Appended:
    """A batch with S slots after the tokens of each row, where a shorter row has padding.

    inputs: of length L + S, without the slots' vectors. vectors: (S, hidden). counts: (B, 1), tokens of a row's own.
    numbers: (B, L + S), which slot stands there, from 0 on; -1 for none.
    """

    inputs: Inputs
    vectors: Tensor
    counts: Tensor
    numbers: Tensor

    @classmethod
    def to(cls, inputs: Inputs) -> Self:
        """inputs: padded on the right, with `slots` (S, hidden). The slots' positions follow those of the row."""
        vectors, mask = inputs[INPUT], inputs["attention_mask"]
        more = vectors.shape[0]
        counts = mask.sum(dim=1, keepdim=True)
        after = torch.arange(mask.shape[1] + more, device=mask.device) - counts
        longer = {name: value for name, value in inputs.items() if name not in (INPUT, "counts")}
        # Any token will do: its embedding is replaced.
        longer["input_ids"] = pad(inputs["input_ids"], (0, more))
        longer["attention_mask"] = (after < more).to(mask.dtype)
        if "visual_slots" in inputs:
            longer["visual_slots"] = pad(inputs["visual_slots"], (0, more), value=-1)
        if "position_ids" in inputs:
            positions = inputs["position_ids"]
            following = positions.amax(dim=(0, 2))[:, None] + 1 + after
            longer["position_ids"] = torch.where(after >= 0, following, pad(positions, (0, more)))
        return cls(longer, vectors, counts, torch.where((after >= 0) & (after < more), after, -1))

    def put(self, state: Tensor) -> Tensor:
        """(B, L + S, hidden) with the vectors in their places."""
        # A row of zeros before them, so that there is something to take where no slot is.
        rows = pad(self.vectors, (0, 0, 1, 0)).to(state.dtype)
        return torch.where((self.numbers >= 0)[..., None], rows[self.numbers + 1], state)

    def hide(self, mask: Tensor) -> Tensor:
        """An additive mask (B, 1, L + S, L + S) in which slots are seen by themselves and by later slots alone."""
        columns = torch.arange(mask.shape[-1], device=mask.device)
        seen = (self.numbers < 0)[:, None, None, :] | (columns[:, None] >= columns)
        return torch.where(seen, mask, torch.finfo(mask.dtype).min)

    def read(self, state: Tensor) -> Tensor:
        """(B, S + 1, hidden): of each row's last token, and of the slots."""
        places = self.counts - 1 + torch.arange(self.vectors.shape[0] + 1, device=state.device)
        return state.gather(1, places[..., None].expand(-1, -1, state.shape[2]))
