"""A small BERT with random weights, as a folder the converter reads, and its forward pass in plain numpy."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

HIDDEN, HEADS, LAYERS, INNER, POSITIONS = 32, 4, 3, 64, 256
WORDS = "the board signs off all capital spending above a limit fish swim in cold water page of ##s ##ing ##ed ? . ,"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS.split(), *"abcdefghijklmnopqrstuvwxyz0123456789"]
VOCABULARY += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]

Floats = npt.NDArray[np.float32]


def converter() -> ModuleType:
    """The recipe export/convert_reader.py, which is no part of a package."""
    folder = str(Path(__file__).parents[1] / "export")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("convert_reader")


def write_model(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)

    def normal(*shape: int, around: float = 0.0, spread: float = 0.08) -> Floats:
        return (around + spread * random.standard_normal(shape)).astype(np.float32)

    tensors = {
        "embeddings.word_embeddings.weight": normal(len(VOCABULARY), HIDDEN, spread=1.0),
        "embeddings.position_embeddings.weight": normal(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": normal(2, HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            tensors[f"{prefix}attention.self.{part}.weight"] = normal(HIDDEN, HIDDEN, spread=0.3)
            tensors[f"{prefix}attention.self.{part}.bias"] = normal(HIDDEN)
        shapes = {
            "attention.output": (HIDDEN, HIDDEN),
            "intermediate": (INNER, HIDDEN),
            "output": (HIDDEN, INNER),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.dense.weight"] = normal(*shape, spread=0.2)
            tensors[f"{prefix}{name}.dense.bias"] = normal(shape[0])
        norms += [prefix + "attention.output.LayerNorm", prefix + "output.LayerNorm"]
    for name in norms:
        tensors[name + ".weight"] = normal(HIDDEN, around=1.0)
        tensors[name + ".bias"] = normal(HIDDEN)
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "bert", "hidden_act": "gelu", "num_attention_heads": HEADS, "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordPiece({token: n for n, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # As published tokenizers do: settings of a training run that would cut and pad every text.
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_bundle(folder: Path, source: Path, *, precision: str = "int8", **promised: Any) -> Path:
    """A bundle with exits at 1, 2 and 3 that give hidden states; what is promised replaces that."""
    defaults = {"name": "tiny", "depths": (1, 2, 3), "dims": (8, 16, HIDDEN), "trained_exits": (3,)}
    recipe = converter()
    recipe.write_bundle(source, folder, recipe.Promise(**(defaults | promised)), precision=precision)
    return folder


def save_dequantised(folder: Path, tensors: dict[str, npt.NDArray[Any]], heads: int) -> None:
    """Float weights of a converted graph, for `forward`: what its integers stand for."""
    floats = {name: values for name, values in tensors.items() if name.startswith("encoder.") and values.ndim == 1}
    floats["embeddings.LayerNorm.weight"] = tensors["embeddings.LayerNorm.weight"]
    floats["embeddings.LayerNorm.bias"] = tensors["embeddings.LayerNorm.bias"]
    floats["embeddings.word_embeddings.weight"] = tensors["words.codes"] * tensors["words.scale"]
    # The converter adds the segment's embedding to the positions'.
    floats["embeddings.position_embeddings.weight"] = tensors["positions.table"]
    floats["embeddings.token_type_embeddings.weight"] = np.zeros((1, tensors["positions.table"].shape[1]))
    for name in [name for name in tensors if name.startswith("encoder.") and name.endswith(".codes")]:
        layer = name.removesuffix(".codes")
        weight = (tensors[name] * tensors[layer + ".scale"]).T
        if not layer.endswith("qkv"):
            floats[layer + ".weight"] = weight
            continue
        parts = ("query", "key", "value")
        bias = np.split(tensors[layer + ".bias"], 3)
        for part, w, b in zip(parts, np.split(weight, 3), bias, strict=True):
            at = f"{layer.removesuffix('qkv')}attention.self.{part}"
            floats[at + ".weight"], floats[at + ".bias"] = w, b
    save_file(
        {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in floats.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": heads}))


def forward(source: Path, ids: npt.NDArray[np.int64]) -> list[Floats]:
    """ids (T,) -> hidden states (T, hidden) after each layer, as the BERT paper has it (arXiv:1810.04805)."""
    return [state for state, _ in _layers(source, ids)]


def attention(source: Path, ids: npt.NDArray[np.int64]) -> list[Floats]:
    """ids (T,) -> attention (heads, T, T) of each layer."""
    return [weights for _, weights in _layers(source, ids)]


def _layers(source: Path, ids: npt.NDArray[np.int64]) -> list[tuple[Floats, Floats]]:
    p = load_file(source / "model.safetensors")
    heads = json.loads((source / "config.json").read_text())["num_attention_heads"]

    def linear(x: Floats, name: str) -> Floats:
        return x @ p[name + ".weight"].T + p[name + ".bias"]

    def norm(x: Floats, name: str) -> Floats:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * p[name + ".weight"] + p[name + ".bias"]

    x = p["embeddings.word_embeddings.weight"][ids] + p["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + p["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    states = []
    for layer in range(1 + max(int(name.split(".")[2]) for name in p if name.startswith("encoder.layer."))):
        at = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{at}attention.self.{part}").reshape(len(ids), heads, -1) for part in ("query", "key", "value")
        )
        attended = np.empty_like(q)
        attention = np.empty((heads, len(ids), len(ids)), np.float32)
        for head in range(heads):
            logits = q[:, head] @ k[:, head].T / np.sqrt(q.shape[2])
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            attention[head] = weights / weights.sum(-1, keepdims=True)
            attended[:, head] = attention[head] @ v[:, head]
        output = linear(attended.reshape(len(ids), -1), at + "attention.output.dense")
        x = norm(x + output, at + "attention.output.LayerNorm")
        inner = linear(x, at + "intermediate.dense")
        inner = inner * 0.5 * (1 + _erf(inner / np.sqrt(2)))
        x = norm(x + linear(inner, at + "output.dense"), at + "output.LayerNorm")
        states.append((x, attention))
    return states


def _erf(x: Floats) -> Floats:
    from math import erf

    return np.vectorize(erf, otypes=[np.float32])(x)
