"""The reader for training: a BERT with a projection head at each exit, over text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from budgetvdr.training.errors import CheckpointError, TrainingDataError, TrainingError
from budgetvdr.training.models.bert import Bert, BertShape
from budgetvdr.training.models.model import Content, ElasticModel, Inputs, Role
from budgetvdr.training.scores import TokenStates


class ReaderModel(ElasticModel):
    """BERT, and for each exit a linear head (hidden -> dim) and, where wanted, a weight for each query token.

    max_tokens, max_query_tokens: longest page and query with the two marks of start and end; the rest is cut off.
    token_weights: a query's vectors carry their tokens' weights as length. The weights of a query have mean 1 and
    begin as 1.
    """

    family = "reader"

    def __init__(
        self,
        shape: BertShape,
        tokenizer: Tokenizer,
        *,
        depths: tuple[int, ...],
        dim: int = 128,
        token_weights: bool = False,
        max_tokens: int = 256,
        max_query_tokens: int = 256,
    ) -> None:
        super().__init__()
        if not depths or list(depths) != sorted(set(depths)) or depths[0] < 1 or depths[-1] > shape.num_hidden_layers:
            raise TrainingError(
                f"exits must be ascending and within the {shape.num_hidden_layers} layers, found {depths}"
            )
        self.shape, self.tokenizer = shape, tokenizer
        self.depths, self.dim, self.unit_queries = depths, dim, not token_weights
        self.longest = {"page": max_tokens, "query": max_query_tokens}
        self.bert = Bert(shape)
        self.exits = nn.ModuleDict({str(depth): _Exit(shape.hidden_size, dim, token_weights) for depth in depths})
        # Cutting, padding and marks are ours, as they are in the runtime, whatever the tokenizer's file says.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._start, self._end = (_token_id(tokenizer, mark) for mark in ("[CLS]", "[SEP]"))

    def prepare(self, contents: Sequence[Content], role: Role) -> Inputs:
        """ids, attention (B, T) and counts (B, T): which tokens are the text's own."""
        texts = [content for content in contents if isinstance(content, str)]
        if len(texts) != len(contents):
            raise TrainingDataError(f"the reader trains on the text of pages; found a picture as {role}")
        own = [
            encoding.ids[: self.longest[role] - 2]
            for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False)
        ]
        for text, ids in zip(texts, own, strict=True):
            if not ids:
                raise TrainingDataError(f"a {role} must have at least one token, found {text[:40]!r}")
        lengths = torch.tensor([len(ids) for ids in own])[:, None]
        rows = [torch.tensor([self._start, *ids, self._end]) for ids in own]
        padded = pad_sequence(rows, batch_first=True)
        places = torch.arange(padded.shape[1])
        counts = (places > 0) & (places <= lengths)
        return {"ids": padded, "attention": places < lengths + 2, "counts": counts}

    def forward(self, inputs: Inputs, role: Role) -> TokenStates:
        """Every exit, each (B, T, dim)."""
        hidden = self.bert(inputs["ids"], inputs["attention"], self.depths)
        exits = {
            depth: self.exits[str(depth)](state, inputs["counts"] if role == "query" else None)
            for depth, state in hidden.items()
        }
        return TokenStates(exits, inputs["counts"])

    def checkpoint_activations(self, on: bool) -> None:
        """Layers are computed again in the backward pass."""
        self.bert.checkpointing = on

    def heads(self) -> nn.Module:
        """One module a depth, named by it."""
        return self.exits

    def backbone(self) -> nn.Module:
        """The BERT."""
        return self.bert


class _Exit(nn.Module):
    def __init__(self, hidden: int, dim: int, token_weights: bool) -> None:
        super().__init__()
        self.projection = nn.Linear(hidden, dim)
        self.weight = nn.Linear(hidden, 1) if token_weights else None
        if self.weight is not None:
            nn.init.zeros_(self.weight.weight)
            nn.init.zeros_(self.weight.bias)

    def forward(self, state: Tensor, query_counts: Tensor | None) -> Tensor:
        """query_counts: (B, T) which tokens of a query count; nothing for pages."""
        vectors: Tensor = self.projection(state)
        if self.weight is None or query_counts is None:
            return vectors
        logits = self.weight(state).squeeze(-1).float().masked_fill(~query_counts, -torch.inf)
        weights = logits.softmax(dim=-1) * query_counts.sum(dim=1, keepdim=True)
        weighted: Tensor = F.normalize(vectors.float(), dim=-1) * weights[..., None]
        return weighted


def _token_id(tokenizer: Tokenizer, mark: str) -> int:
    number: int | None = tokenizer.token_to_id(mark)
    if number is None:
        raise CheckpointError(f"the tokenizer has no token {mark}: expected one of the BERT kind")
    return number


def read_shape(folder: Path) -> BertShape:
    """The sizes in `config.json` of a BERT. Raises CheckpointError where it is none that can be run."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["model_type"] != "bert" or config["hidden_act"] != "gelu":
            raise CheckpointError(f"{path}: expected bert with gelu, found {config['model_type']}")
        return BertShape(**{size.name: config[size.name] for size in fields(BertShape)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not the config of a BERT ({type(error).__name__}: {error})") from error


def load_published(
    folder: Path, *, depths: tuple[int, ...], dim: int = 128, token_weights: bool = False, max_tokens: int = 256
) -> ReaderModel:
    """The reader over published weights: a folder with config.json, model.safetensors and tokenizer.json.

    The heads are not trained yet; `budgetvdr.training.models.heads` gives them a start that keeps the quality.
    Raises CheckpointError where files are missing or do not fit, TrainingError for exits the model lacks.
    """
    shape = read_shape(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = ReaderModel(shape, tokenizer, depths=depths, dim=dim, token_weights=token_weights, max_tokens=max_tokens)
    tensors = load_file(folder / "model.safetensors")
    wanted = model.bert.state_dict()
    missing = sorted(set(wanted) - set(tensors))
    if missing:
        raise CheckpointError(f"{folder / 'model.safetensors'} lacks {missing[0]} and {len(missing) - 1} more")
    model.bert.load_state_dict({name: tensors[name] for name in wanted})
    return model


def plain_reader(folder: Path, *, max_tokens: int = 256) -> ReaderModel:
    """The published weights as they are: one exit, the last, whose vectors are the hidden states. A teacher.

    Raises as `load_published` does.
    """
    shape = read_shape(folder)
    model = load_published(folder, depths=(shape.num_hidden_layers,), dim=shape.hidden_size, max_tokens=max_tokens)
    with torch.no_grad():
        for name, parameter in model.heads().named_parameters():
            parameter.copy_(torch.eye(shape.hidden_size) if name.endswith("weight") else torch.zeros(shape.hidden_size))
    return model
