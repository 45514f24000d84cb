"""Vision-language encoders at run time, without torch: pictures and queries -> the arrays a model takes.

Whatever depends on the data (where image tokens go, rotary positions, windows) is worked out here and enters the model
as plain arrays. Training, export and the runtime share this code, so that none of them can disagree with another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image
from tokenizers import Tokenizer

from budgetvdr.errors import BundleError
from budgetvdr.pages import Boxes

SETTINGS_NAME = "preprocess.json"
TOKENIZER_NAME = "tokenizer.json"


@dataclass(frozen=True, slots=True, eq=False)
class VisionBatch:
    """What a model takes for B pages or queries of up to L tokens.

    arrays: input name -> array. Always there: `input_ids` and `attention_mask` (B, L) int64, padded on the right.
    Pages also have `visual_slots` (B, L) int64, the row of the image features that goes to a token or -1, and
    `pixel_values`, float32. Families add their own.
    counts: (B, L) bool, the tokens whose vectors are kept: those of the family's reference implementation.
    regions: for each page (n, 4) float32 fractions of it (left, top, right, bottom), one row for each kept token;
    text tokens stand for the whole page. Empty for queries.
    """

    arrays: dict[str, npt.NDArray[Any]]
    counts: npt.NDArray[np.bool_]
    regions: list[Boxes]


class Preprocessor(Protocol):
    """Pictures and texts -> batches, as one family takes them. Calls may come from several threads.

    Nothing of a page's or query's own depends on its neighbours in the batch but the padding.
    """

    @property
    def family(self) -> str:
        """As in the bundle's manifest."""

    def pages(self, images: Sequence[Image.Image]) -> VisionBatch:
        """A batch of page pictures, of any mode and size. Raises EncodingError for one that the family cannot take."""

    def queries(self, texts: Sequence[str]) -> VisionBatch:
        """A batch of queries."""

    def pixels(self, image: Image.Image) -> int:
        """Pixels of a picture as the model sees it: what batches are measured in."""

    def pieces(self, text: str) -> tuple[str, ...]:
        """For each vector kept of a query the part of the text that it stands for; empty for what is put around it."""

    def to_json(self) -> dict[str, Any]:
        """The settings, without the tokenizer, as `open_preprocessor` reads them."""


def open_preprocessor(folder: Path) -> Preprocessor:
    """Reads `preprocess.json` and `tokenizer.json` of a bundle or of a checkpoint.

    Raises BundleError where one is missing, cannot be read, or is of an unknown family.
    """
    from budgetvdr.encoders.vision import prompts  # noqa: PLC0415 -- imports the contract above

    path = folder / SETTINGS_NAME
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(
            f"{path} is not readable as settings of preprocessing ({type(error).__name__}: {error}); "
            "export the bundle again"
        ) from error
    if not isinstance(settings, dict) or not isinstance(settings.get("family"), str):
        raise BundleError(f"{path}: expected an object with the name of a family; export the bundle again")
    family = settings.pop("family")
    tokenizer = prompts.open_tokenizer(folder / TOKENIZER_NAME)
    try:
        return make_preprocessor(family, settings, tokenizer)
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise BundleError(f"{path} is not right for {family} ({what}); export the bundle again") from error


def make_preprocessor(family: str, settings: Mapping[str, Any], tokenizer: Tokenizer) -> Preprocessor:
    """settings: as `to_json` gives them.

    Raises KeyError, TypeError or ValueError for settings that are not the family's, BundleError for a tokenizer that
    is not, or a family that is unknown.
    """
    # The families import the contract above.
    from budgetvdr.encoders.vision import modernvbert, paligemma, qwen  # noqa: PLC0415

    if family == "paligemma":
        return paligemma.PaliGemmaPreprocessor(paligemma.PaliGemmaSettings.from_json(settings), tokenizer)
    if family == "modernvbert":
        return modernvbert.ModernVBertPreprocessor(modernvbert.ModernVBertSettings.from_json(settings), tokenizer)
    if family in qwen.FAMILIES:
        return qwen.QwenPreprocessor(family, qwen.QwenSettings.from_json(settings), tokenizer)
    raise BundleError(f"the family {family!r} is one that this budgetvdr does not know; install a newer one")


def write_preprocessor(preprocessor: Preprocessor, folder: Path) -> None:
    """Writes `preprocess.json`; the tokenizer's file is copied by whoever knows where it is."""
    settings = {"family": preprocessor.family, **preprocessor.to_json()}
    (folder / SETTINGS_NAME).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
