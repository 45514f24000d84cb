"""What Qwen's models are given, against transformers' own processors and index functions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import Qwen2VLConfig, Qwen2VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from budgetvdr.encoders.vision.pictures import PixelScale
from budgetvdr.encoders.vision.qwen import QwenPreprocessor, QwenSettings
from budgetvdr.encoders.vision.qwen_patches import fitted_size
from budgetvdr.encoders.vision.qwen_positions import interpolation, page_positions, patch_positions
from budgetvdr.encoders.vision.qwen_windows import image_groups, window_groups
from budgetvdr.errors import BundleError, EncodingError
from budgetvdr.training.models.vision.tiny import byte_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
IMAGE = SPECIAL.index("<|image_pad|>")
CLIP = PixelScale(1 / 255, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 3)
SETTINGS = QwenSettings(
    patch=14,
    merge=2,
    frames=2,
    least_pixels=4 * 28**2,
    most_pixels=60 * 28**2,
    window=4,
    table=6,
    scale=CLIP,
    image="<|image_pad|>",
    pad="<|endoftext|>",
    page_prompt="<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>",
    query_prefix="Query: ",
    query_suffix=3 * "<|endoftext|>",
)
# Patches of pictures: landscape, portrait, the smallest, one window exactly, several, a strip.
GRIDS = [(4, 6), (18, 10), (2, 2), (8, 8), (16, 26), (2, 30)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer(SPECIAL)


@pytest.fixture(scope="module")
def preprocessor(tokenizer: Tokenizer) -> QwenPreprocessor:
    return QwenPreprocessor("qwen2_5_vl", SETTINGS, tokenizer)


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def thw(grids: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor([[1, *grid] for grid in grids])


def test_sizes_are_those_of_the_published_processors() -> None:
    random = np.random.default_rng(0)
    compared = 0
    for _ in range(3000):
        width, height = (int(side) for side in np.exp(random.uniform(0, 9, 2)) + 1)
        step, least = int(random.choice([28, 32])), int(random.choice([56 * 56, 65536]))
        most = least * int(random.integers(2, 200))
        if max(width, height) > 200 * min(width, height):
            with pytest.raises(EncodingError, match=f"{width} x {height}.*crop it"):
                fitted_size(width, height, step=step, least=least, most=most)
        else:
            compared += 1
            expected = smart_resize(height, width, step, least, most)
            assert fitted_size(width, height, step=step, least=least, most=most) == expected[::-1]
    assert 2000 < compared < 3000


@pytest.mark.parametrize("patch", [14, 16])
def test_patches_are_those_of_the_published_processor(tokenizer: Tokenizer, patch: int) -> None:
    # A square, both orientations, a picture smaller than a token, a strip, and one that is far too large.
    pictures = [picture(*size) for size in [(64, 64), (90, 60), (50, 130), (9, 7), (400, 11), (900, 1200)]]
    pictures.append(picture(70, 80, "L"))
    settings = replace(SETTINGS, patch=patch, least_pixels=4 * (2 * patch) ** 2, most_pixels=60 * (2 * patch) ** 2)
    batch = QwenPreprocessor("qwen2_5_vl", settings, tokenizer).pages(pictures)
    size = {"shortest_edge": settings.least_pixels, "longest_edge": settings.most_pixels}
    reference = Qwen2VLImageProcessorPil(size=size, patch_size=patch)(pictures, return_tensors="np")
    ours, theirs = batch.arrays["pixel_values"], reference["pixel_values"]
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    grids = [(int(rows), int(columns)) for _, rows, columns in reference["image_grid_thw"]]
    assert (batch.arrays["patch_positions"] == patch_positions(grids, 2)).all()


def test_pixels_are_counted_after_resizing(preprocessor: QwenPreprocessor) -> None:
    for size in [(64, 64), (900, 1200), (9, 7)]:
        page = preprocessor.pages([picture(*size)])
        assert preprocessor.pixels(picture(*size)) == len(page.arrays["pixel_values"]) * 14**2


def test_patch_positions_are_those_of_transformers() -> None:
    assert (patch_positions(GRIDS, 2) == get_vision_position_ids(thw(GRIDS), 2).numpy()).all()


@pytest.mark.parametrize("side", [4, 3])
def test_windows_are_those_of_transformers(side: int) -> None:
    index, bounds = get_vision_window_index(thw(GRIDS), 2, side * 2 * 14, 14)
    groups = window_groups(GRIDS, 2, side)
    patches = (index[:, None] * 4 + torch.arange(4)).flatten().numpy()
    assert (groups.gather[groups.valid] == patches).all()
    assert (groups.valid.sum(axis=1) == np.diff(bounds.numpy())).all()
    assert groups.gather.shape[1] == window_groups([(2, 2)], 2, side).gather.shape[1] == (2 * side) ** 2
    assert (groups.gather.reshape(-1)[groups.back] == np.arange(len(patches))).all()


def test_pictures_are_groups() -> None:
    groups = image_groups(GRIDS)
    counts = [rows * columns for rows, columns in GRIDS]
    assert groups.gather.shape == (len(GRIDS), max(counts))
    assert (groups.gather[groups.valid] == np.arange(sum(counts))).all()
    assert (groups.valid.sum(axis=1) == counts).all()
    assert (groups.gather.reshape(-1)[groups.back] == np.arange(sum(counts))).all()
    assert not groups.gather[~groups.valid].any()


@pytest.mark.parametrize("side", [6, 48, 1])
def test_interpolation_is_that_of_transformers(side: int) -> None:
    rows, weights = interpolation(GRIDS, 2, side)
    expected = get_vision_interpolation_indices_and_weights(thw(GRIDS), side, "bilinear", True, 2)
    assert (rows == expected[0].numpy()).all()
    assert (weights == expected[1].numpy()).all()
    assert weights.dtype == np.float32


def test_positions_by_hand() -> None:
    positions = page_positions(2, (2, 3), 2)
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]


def test_positions_are_those_of_transformers(preprocessor: QwenPreprocessor) -> None:
    config = Qwen2VLConfig(image_token_id=IMAGE, vision_config={"spatial_merge_size": 2, "depth": 0})
    with torch.device("meta"):
        model = Qwen2VLModel(config)
    pictures = [picture(64, 64), picture(200, 60), picture(50, 130)]
    arrays = preprocessor.pages(pictures).arrays
    ids = torch.from_numpy(arrays["input_ids"])
    expected, _ = model.get_rope_index(
        ids,
        (ids == IMAGE).int(),
        image_grid_thw=thw([(2 * size[1], 2 * size[0]) for size in [(2, 2), (7, 2), (2, 5)]]),
        attention_mask=torch.from_numpy(arrays["attention_mask"]),
    )
    assert (arrays["position_ids"] == expected.numpy()).all()


def test_a_page_is_its_prompt_with_the_picture_in_it(preprocessor: QwenPreprocessor, tokenizer: Tokenizer) -> None:
    batch = preprocessor.pages([picture(56, 84), picture(56, 56)])
    ids, mask, slots = (batch.arrays[name] for name in ("input_ids", "attention_mask", "visual_slots"))
    text = "<|im_start|>user\n<|vision_start|>{}<|vision_end|>Describe the image.<|im_end|>"
    for row, count in ((0, 6), (1, 4)):
        expected = tokenizer.encode(text.format(count * "<|image_pad|>")).ids
        assert ids[row, mask[row] > 0].tolist() == expected
    assert slots[slots >= 0].tolist() == list(range(10))
    assert ((slots >= 0) == (ids == IMAGE)).all()
    assert (ids[1, -2:] == 0).all()
    assert (batch.counts == (mask > 0)).all()


def test_image_tokens_know_their_part_of_the_page(preprocessor: QwenPreprocessor) -> None:
    batch = preprocessor.pages([picture(56, 84), picture(56, 56)])
    regions = batch.regions[0]
    image = batch.arrays["visual_slots"][0][batch.counts[0]] >= 0
    assert len(regions) == batch.counts[0].sum()
    assert (regions[~image] == [0, 0, 1, 1]).all()
    # Three rows of two tokens.
    np.testing.assert_allclose(regions[image][3], [0.5, 1 / 3, 1, 2 / 3], rtol=1e-6)
    assert len(batch.regions[1]) == len(regions) - 2


def test_neighbours_change_padding_alone(preprocessor: QwenPreprocessor) -> None:
    small, large = picture(56, 56), picture(150, 200)
    alone, among = preprocessor.pages([small]).arrays, preprocessor.pages([large, small]).arrays
    kept = among["attention_mask"][1] > 0
    assert (among["input_ids"][1, kept] == alone["input_ids"][0]).all()
    assert (among["position_ids"][:, 1, kept] == alone["position_ids"][:, 0]).all()
    assert not among["position_ids"][:, 1, ~kept].any()
    for name in ("pixel_values", "patch_positions", "interpolation_rows", "interpolation_weights"):
        assert (among[name][-16:] == alone[name]).all()


def test_queries_have_their_prefix_and_room_to_think(preprocessor: QwenPreprocessor, tokenizer: Tokenizer) -> None:
    texts = ["the end", "Who signs?", "é \udc80"]
    batch = preprocessor.queries(texts)
    for row, text in enumerate(texts):
        whole = f"Query: {text}" + 3 * "<|endoftext|>"
        pieces = preprocessor.pieces(text)
        kept = batch.counts[row]
        assert len(pieces) == kept.sum()
        assert pieces[-1] == pieces[0] == ""
        expected = tokenizer.encode(whole.replace("\udc80", "?")).ids
        assert batch.arrays["input_ids"][row, kept].tolist() == expected
        assert (batch.arrays["position_ids"][:, row, kept] == np.arange(kept.sum())).all()
    assert set(batch.arrays) == {"input_ids", "attention_mask", "position_ids"}
    assert batch.regions == []
    assert "the" in preprocessor.pieces("the end")
    assert "".join(preprocessor.pieces("<|image_pad|>")) == "< |image_pad|>"
    assert not (preprocessor.queries(["<|image_pad|>"]).arrays["input_ids"] == IMAGE).any()


def test_tables_come_where_the_family_has_them(tokenizer: Tokenizer) -> None:
    def names(window: int | None, table: int | None) -> set[str]:
        settings = replace(SETTINGS, window=window, table=table)
        return set(QwenPreprocessor("qwen2_vl", settings, tokenizer).pages([picture(56, 56)]).arrays)

    plain = names(None, None)
    assert names(4, None) - plain == {"window_gather", "window_valid", "window_back"}
    assert names(None, 6) - plain == {"interpolation_rows", "interpolation_weights"}


def test_settings_survive_a_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for settings in (SETTINGS, replace(SETTINGS, window=None, table=None)):
        preprocessor = QwenPreprocessor("qwen3_vl", settings, tokenizer)
        path = tmp_path / "settings.json"
        path.write_text(json.dumps(preprocessor.to_json()), encoding="utf-8")
        assert QwenSettings.from_json(json.loads(path.read_text(encoding="utf-8"))) == settings


@pytest.mark.parametrize(
    ("name", "value"), [("patch", 0), ("merge", -2), ("window", 0), ("most_pixels", 100), ("patch", "wide")]
)
def test_settings_that_cannot_be_are_refused(name: str, value: object, tokenizer: Tokenizer) -> None:
    raw = QwenPreprocessor("qwen2_vl", SETTINGS, tokenizer).to_json() | {name: value}
    with pytest.raises(ValueError, match=r"expected|invalid"):
        QwenSettings.from_json(raw)


def test_a_prompt_without_one_picture_is_refused(tokenizer: Tokenizer) -> None:
    for prompt in ("Describe.", 2 * "<|image_pad|>"):
        with pytest.raises(BundleError, match=r"expected the token <\|image_pad\|> once"):
            QwenPreprocessor("qwen2_vl", replace(SETTINGS, page_prompt=prompt), tokenizer)
    with pytest.raises(BundleError, match="no token"):
        QwenPreprocessor("qwen2_vl", SETTINGS, byte_tokenizer(["<|endoftext|>"]))
