"""The vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, over the patches of a whole batch at once.

The stock forward passes loop over pictures and windows. Here both come as padded tables from the preprocessor, so that
one graph serves batches of any pictures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from budgetvdr.training.models.model import Inputs


class _Groups(NamedTuple):
    """As in `budgetvdr.encoders.vision.qwen_windows`: gather and valid (G, W), back (N,)."""

    gather: Tensor
    valid: Tensor
    back: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(N, heads, width) each -> (N, heads, width): every patch looks at those of its group."""
        query, key, value = (part[self.gather].transpose(1, 2) for part in (query, key, value))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=self.valid[:, None, None, :])
        return attended.transpose(1, 2).flatten(0, 1)[self.back]


def see(tower: Any, inputs: Inputs, deep: int, *, checkpointing: bool) -> tuple[Tensor, list[Tensor]]:
    """N patches -> the features of N / merge**2 tokens, (n, hidden), and those for the first decoder layers.

    tower: `visual` of the transformers model. deep: most decoder layers there are to get features of their own
    (deep stack); towers without such features give none. checkpointing: whether blocks are computed again in the
    backward pass.
    """
    state = _embed(tower, inputs)
    cosine, sine = tower.rotary_pos_emb(state, inputs["patch_positions"])
    images, windows = _groups(inputs, "image"), _groups(inputs, "window")
    # Towers without windows have no such list, and no table of windows.
    whole = getattr(tower, "fullatt_block_indexes", ())
    sources = list(getattr(tower, "deepstack_visual_indexes", ()))
    additions = []
    for number, block in enumerate(tower.blocks):
        groups = images if windows is None or number in whole else windows
        if checkpointing and torch.is_grad_enabled():
            state = checkpoint(_through, block, state, cosine, sine, groups, use_reentrant=False)
        else:
            state = _through(block, state, cosine, sine, groups)
        if number in sorted(sources)[:deep]:
            additions.append(tower.deepstack_merger_list[sources.index(number)](state))
    return tower.merger(state), additions


def _embed(tower: Any, inputs: Inputs) -> Tensor:
    projection: nn.Conv3d = tower.patch_embed.proj
    # A patch is as large as the kernel, so that the convolution is a matrix product, and a fast one.
    weight = projection.weight.flatten(1)
    state = F.linear(inputs["pixel_values"].to(weight.dtype), weight, projection.bias)
    if "interpolation_rows" in inputs:
        learned = tower.pos_embed(inputs["interpolation_rows"]) * inputs["interpolation_weights"][..., None]
        state = state + learned.sum(dim=1).to(state.dtype)
    return state


def _groups(inputs: Inputs, kind: str) -> Any:
    names = [f"{kind}_{part}" for part in _Groups._fields]
    return _Groups(*(inputs[name] for name in names)) if names[0] in inputs else None


def _through(block: Any, state: Tensor, cosine: Tensor, sine: Tensor, groups: _Groups) -> Tensor:
    state = state + _attention(block.attn, block.norm1(state), cosine, sine, groups)
    after: Tensor = state + block.mlp(block.norm2(state))
    return after


def _attention(attention: Any, state: Tensor, cosine: Tensor, sine: Tensor, groups: _Groups) -> Tensor:
    query, key, value = attention.qkv(state).unflatten(-1, (3, attention.num_heads, -1)).unbind(1)
    query, key = (_rotated(part, cosine, sine) for part in (query, key))
    mixed: Tensor = attention.proj(groups.attend(query, key, value).flatten(1))
    return mixed


def _rotated(part: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(N, heads, width) by (N, width) angles, in float32 as the stock towers do it."""
    exact = part.float()
    first, second = exact.chunk(2, dim=-1)
    turned = exact * cosine[:, None].float() + torch.cat([-second, first], dim=-1) * sine[:, None].float()
    return turned.to(part.dtype)
