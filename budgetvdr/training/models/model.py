"""What the training loop asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from PIL import Image
from torch import Tensor, nn

from budgetvdr.training.scores import TokenStates

Role = Literal["query", "page"]
Inputs: TypeAlias = Mapping[str, Tensor]
Content: TypeAlias = str | Image.Image
"""A query is text; a page is text or a picture, as the model takes it."""


class ElasticModel(nn.Module, ABC):
    """An encoder with a projection head at each of its exits.

    depths: exits in transformer layers executed, ascending. dim: full width D of a token vector. unit_queries: False
    where the length of a query vector is its token's weight. family: the name its checkpoints carry.
    """

    family: str
    depths: tuple[int, ...]
    dim: int
    unit_queries: bool

    @abstractmethod
    def prepare(self, contents: Sequence[Content], role: Role) -> Inputs:
        """A batch as padded tensors on the CPU. Raises TrainingDataError for a content of a kind it does not take."""

    @abstractmethod
    def forward(self, inputs: Inputs, role: Role) -> TokenStates:
        """The states of every exit; what a batch is padded with changes none of them."""

    @abstractmethod
    def checkpoint_activations(self, on: bool) -> None:
        """Whether layers are computed again in the backward pass instead of kept: less memory for a third more time."""

    @abstractmethod
    def heads(self) -> nn.Module:
        """What was added to the published transformer; trained in full also where the transformer gets LoRA."""

    @abstractmethod
    def backbone(self) -> nn.Module:
        """The transformer, with the parameter names of its published weights."""
