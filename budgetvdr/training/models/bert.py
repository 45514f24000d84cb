"""BERT's encoder in torch with an exit after any layer; parameters are named as in published BERT checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class BertShape:
    """The sizes in a BERT `config.json`, under the names they have there."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    layer_norm_eps: float


class Bert(nn.Module):
    """ids (B, T) and mask (B, T) -> hidden states (B, T, hidden) after the layers asked for.

    Without dropout: a run of small batches gains nothing from it and every state can be computed again exactly.
    """

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        hidden = shape.hidden_size
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(shape.vocab_size, hidden),
                "position_embeddings": nn.Embedding(shape.max_position_embeddings, hidden),
                "token_type_embeddings": nn.Embedding(2, hidden),
                "LayerNorm": nn.LayerNorm(hidden, eps=shape.layer_norm_eps),
            }
        )
        layers = nn.ModuleList(_Layer(shape) for _ in range(shape.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.checkpointing = False

    def forward(self, ids: Tensor, mask: Tensor, depths: Collection[int]) -> dict[int, Tensor]:
        """The states after each of `depths` layers; layers past the deepest are not run."""
        part = self.embeddings
        positions = part.get_parameter("position_embeddings.weight")[: ids.shape[1]]
        # Every token is of the first segment.
        segment = part.get_parameter("token_type_embeddings.weight")[0]
        state = part["LayerNorm"](part["word_embeddings"](ids) + positions + segment)
        attend = mask.bool()[:, None, None, :]
        states = {}
        for depth, layer in enumerate(self.encoder["layer"].children(), start=1):
            if depth > max(depths):
                break
            if self.checkpointing and torch.is_grad_enabled():
                state = checkpoint(layer, state, attend, use_reentrant=False)
            else:
                state = layer(state, attend)
            if depth in depths:
                states[depth] = state
        return states


class _Layer(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        hidden, inner, epsilon = shape.hidden_size, shape.intermediate_size, shape.layer_norm_eps
        self.heads = shape.num_attention_heads
        attention = {name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")}
        self.attention = nn.ModuleDict({"self": nn.ModuleDict(attention), "output": _Residual(hidden, hidden, epsilon)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden, inner)})
        self.output = _Residual(inner, hidden, epsilon)

    def forward(self, state: Tensor, attend: Tensor) -> Tensor:
        own = self.attention["self"]
        assert isinstance(own, nn.ModuleDict)
        query, key, value = (own[name](state).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in own)
        attended = _attention(query, key, value, attend)
        state = self.attention["output"](attended.transpose(1, 2).flatten(2), state)
        inner = F.gelu(self.intermediate["dense"](state))
        result: Tensor = self.output(inner, state)
        return result


def _attention(query: Tensor, key: Tensor, value: Tensor, attend: Tensor) -> Tensor:
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attend)
    # The CPU's own operator takes three times as long in the backward pass of bfloat16.
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    attended: Tensor = scores.masked_fill(~attend, -torch.inf).softmax(dim=-1).to(value.dtype) @ value
    return attended


class _Residual(nn.Module):
    """A linear layer whose result is added to what came before and normalised."""

    def __init__(self, inner: int, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=epsilon)

    def forward(self, inner: Tensor, state: Tensor) -> Tensor:
        result: Tensor = self.LayerNorm(state + self.dense(inner))
        return result
