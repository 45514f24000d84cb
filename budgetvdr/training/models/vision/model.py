"""The decoder loop that all vision-language families share: stock layers, explicit masks, an exit after any layer.

The stock forward passes cannot be stopped between layers and hide data-dependent control flow that exporters trip over.
Here a family says how its states begin and the loop does the rest; the same module is trained, exported and what
exported graphs are compared with.
"""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from budgetvdr.encoders.vision import Preprocessor, VisionBatch
from budgetvdr.encoders.vision.pictures import PixelScale
from budgetvdr.encoders.vision.slots import INPUT as SLOTS
from budgetvdr.training.errors import TrainingDataError, TrainingError
from budgetvdr.training.models.model import Content, ElasticModel, Inputs, Role
from budgetvdr.training.models.vision.attention import Watch, Watched, watched
from budgetvdr.training.models.vision.slots import Appended
from budgetvdr.training.scores import TokenStates

FULL = "full_attention"
"""The kind of a layer whose tokens see all that the mask of the family allows."""


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """What the layers are given.

    state: (B, L, hidden). masks: kind of layer -> additive (B, 1, L, L). rotary: kind of layer -> what its attention
    rotates by. additions: (B, L, hidden) each, what is added to the states after the first layers, in order.
    """

    state: Tensor
    masks: Mapping[str, Tensor]
    rotary: Mapping[str, tuple[Tensor, Tensor]]
    additions: tuple[Tensor, ...] = ()


class VisionModel(ElasticModel):
    """A published vision-language model with exits.

    published: the transformers model without language head, of the layers needed alone. norm, projection: the
    published final norm and head, which every exit begins with a copy of. depths: exits, ascending.
    trained_exits: those of `depths` that were trained for retrieval, for a published checkpoint its last layer.

    query_depths: page depth -> query depths trained to search it. dims: prefix widths trained, ascending. A published
    checkpoint has its last depth and its full width. tokenizer_file: where the preprocessor's tokenizer came from.

    Raises TrainingError for depths that the model does not have.
    """

    unit_queries = True
    norm_path: ClassVar[str]
    """Where `published` has its final norm."""
    renames: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(pattern, replacement) on weight names of older or wrapped checkpoints, prefixes already stripped."""

    def __init__(
        self,
        published: nn.Module,
        preprocessor: Preprocessor,
        *,
        norm: nn.Module,
        projection: nn.Linear,
        depths: tuple[int, ...],
        trained_exits: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.published, self.preprocessor, self.family = published, preprocessor, preprocessor.family
        self.depths, self.dim, self.trained_exits = depths, projection.out_features, trained_exits
        layers = len(self.layers())
        if not depths or list(depths) != sorted(set(depths)) or depths[0] < 1 or depths[-1] > layers:
            raise TrainingError(f"exits must be ascending and within the {layers} layers, found {depths}")
        self.exits = nn.ModuleDict({str(depth): Exit(norm, projection) for depth in depths})
        self.query_depths: Mapping[int, tuple[int, ...]] = {depth: (depth,) for depth in trained_exits}
        self.dims: tuple[int, ...] = (self.dim,)
        self.tokenizer_file: Path | None = None
        self.checkpointing = False

    @classmethod
    @abstractmethod
    def empty(cls, config: Mapping[str, Any]) -> nn.Module:
        """The transformers model of a plain `config.json`, its weights to be filled in."""

    @classmethod
    @abstractmethod
    def preprocessor_of(cls, config: Mapping[str, Any], processor: Mapping[str, Any], folder: Path) -> Preprocessor:
        """What prepares inputs for a checkpoint as its own processor does.

        config: as for `empty`. processor: `preprocessor_config.json`. folder: has `tokenizer.json`.
        Raises KeyError, TypeError or ValueError for settings that are not of the family, BundleError for the tokenizer.
        """

    @property
    def hidden(self) -> int:
        """Width of the states between layers."""
        return int(self.exits[str(self.depths[0])].get_submodule("projection").in_features)  # type: ignore[arg-type]

    def layers(self) -> nn.ModuleList:
        """The decoder's layers, beside its final norm."""
        layers = self.published.get_submodule(f"{self.norm_path.rpartition('.')[0]}.layers")
        assert isinstance(layers, nn.ModuleList)
        return layers

    @abstractmethod
    def begin(self, inputs: Inputs) -> Beginning:
        """Embeds tokens and pictures."""

    def attention_of(self, layer: nn.Module) -> nn.Module:
        """The part of a layer that attends."""
        return layer.get_submodule("self_attn")

    def kind(self, layer: int) -> str:
        """Which of the masks a layer takes."""
        return FULL

    def prepare(self, contents: Sequence[Content], role: Role) -> Inputs:
        """The arrays of the family's preprocessor, and `counts` (B, L) bool. Pages are pictures, queries texts."""
        if role == "query":
            texts = [content for content in contents if isinstance(content, str)]
            _all_taken(texts, contents, "a query must be text")
            batch = self.preprocessor.queries(texts)
        else:
            images = [content for content in contents if isinstance(content, Image.Image)]
            _all_taken(images, contents, f"{self.family} takes pages as pictures")
            batch = self.preprocessor.pages(images)
        return as_inputs(batch)

    def forward(self, inputs: Inputs, role: Role) -> TokenStates:
        """Every exit, each (B, L, dim); inputs as `prepare` gives them, on the model's device."""
        exits, _ = self.run(inputs)
        return TokenStates(exits, inputs["counts"])

    def run(self, inputs: Inputs, watch: Watch | None = None) -> tuple[dict[int, Tensor], Watched | None]:
        """depth -> (B, L, dim) for every exit, and the attention asked for.

        With the input `slots` (S, hidden) the exits are (B, S + 1, dim): each row's last token and the slots after it.
        Takes tensors alone and branches on none, so that it can be exported as it stands.

        Raises ValueError for attention of a batch with slots: it is of use to those who fold the tokens' own vectors.
        """
        slots = Appended.to(inputs) if SLOTS in inputs else None
        if slots is not None and watch is not None:
            raise ValueError("attention is measured among tokens whose vectors are kept, and with slots none is")
        start = self.begin(inputs) if slots is None else self._begin_with(slots)
        state, exits, seen = start.state, {}, []
        for number, layer in enumerate(self.layers()[: self.depths[-1]]):
            kind = self.kind(number)
            mask, rotary = start.masks[kind], start.rotary[kind]
            if watch is not None and number in watch.layers:
                state, attention = watched(layer, self.attention_of(layer), state, mask, rotary)
                seen.append(watch.measure(attention, inputs))
            elif self.checkpointing and torch.is_grad_enabled():
                state = checkpoint(layer, state, attention_mask=mask, position_embeddings=rotary, use_reentrant=False)
            else:
                state = layer(state, attention_mask=mask, position_embeddings=rotary)
            if number < len(start.additions):
                state = state + start.additions[number]
            if number + 1 in self.depths:
                exits[number + 1] = self.exits[str(number + 1)](state if slots is None else slots.read(state))
        return exits, Watched.stack(seen) if seen else None

    def _begin_with(self, slots: Appended) -> Beginning:
        start = self.begin(slots.inputs)
        masks = {kind: slots.hide(mask) for kind, mask in start.masks.items()}
        return replace(start, state=slots.put(start.state), masks=masks)

    def checkpoint_activations(self, on: bool) -> None:
        """Decoder layers are computed again in the backward pass; the vision tower keeps its own."""
        self.checkpointing = on

    def heads(self) -> nn.Module:
        """One module a depth, named by it, each with `norm` and `projection`."""
        return self.exits

    def backbone(self) -> nn.Module:
        """The transformers model."""
        return self.published


class Exit(nn.Module):
    """Normalises the states of its depth and projects them: what a checkpoint does after its last layer."""

    def __init__(self, norm: nn.Module, projection: nn.Linear) -> None:
        super().__init__()
        self.norm = copy.deepcopy(norm)
        self.projection = copy.deepcopy(projection)

    def forward(self, state: Tensor) -> Tensor:
        """(..., hidden) -> (..., dim), of no particular length."""
        projected: Tensor = self.projection(self.norm(state))
        return projected


def as_inputs(batch: VisionBatch) -> Inputs:
    """The arrays as tensors, without a copy, and `counts`."""
    return {
        **{name: torch.from_numpy(array) for name, array in batch.arrays.items()},
        "counts": torch.from_numpy(batch.counts),
    }


def additive_mask(attention_mask: Tensor, dtype: torch.dtype, allowed: Tensor | None = None) -> Tensor:
    """(B, 1, L, L): 0 where a token may look, the lowest number elsewhere.

    attention_mask: (B, L), 0 for padding, which nobody looks at. allowed: (L, L) bool, row looks at column; all where
    left out. Every token may look at itself, so that the rows of padding have something to look at.
    """
    length = attention_mask.shape[1]
    seen = attention_mask.bool()[:, None, None, :].expand(-1, 1, length, -1)
    if allowed is not None:
        seen = seen & allowed
    seen = seen | torch.eye(length, dtype=torch.bool, device=attention_mask.device)
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=attention_mask.device)
    return torch.where(seen, torch.zeros_like(lowest), lowest)


def place(features: Tensor, slots: Tensor, elsewhere: Tensor) -> Tensor:
    """(B, L, hidden): rows of `features` (N, hidden) where `slots` (B, L) is not -1, `elsewhere` for the others."""
    placed = features[slots.clamp(min=0)].to(elsewhere.dtype)
    return torch.where((slots >= 0)[..., None], placed, elsewhere)


def text_ids(inputs: Inputs) -> Tensor:
    """(B, L): the token ids with 0 for image tokens, which some vocabularies have no embedding for."""
    if "visual_slots" not in inputs:
        return inputs["input_ids"]
    return torch.where(inputs["visual_slots"] >= 0, 0, inputs["input_ids"])


def pixel_scale(processor: Mapping[str, Any]) -> PixelScale:
    """The scale that `preprocessor_config.json` describes. Raises KeyError, TypeError or ValueError for others."""
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if not processor.get(step, True):
            raise ValueError(f"pictures are taken with {step}, the checkpoint's are without")
    return PixelScale.from_json(
        {
            "factor": processor["rescale_factor"],
            "mean": processor["image_mean"],
            "std": processor["image_std"],
            "resample": processor["resample"],
        }
    )


def is_native(folder: Path) -> bool:
    """Whether transformers' own retrieval class wrote the checkpoint, not colpali-engine."""
    path = folder / "config.json"
    return path.is_file() and "vlm_config" in json.loads(path.read_text(encoding="utf-8"))


def _all_taken(taken: Sequence[object], contents: Sequence[object], expected: str) -> None:
    if len(taken) != len(contents):
        kinds = sorted({type(content).__name__ for content in contents})
        raise TrainingDataError(f"{expected}; found {', '.join(kinds)}")
