"""ColQwen2, ColQwen2.5 and ColQwen3 against the published models, on tiny random weights.

The references get their inputs from transformers' own processors, padded on the left as those libraries do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import linear, normalize
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    ColQwen2Config,
    ColQwen2ForRetrieval,
    ColQwen2Processor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLModel,
    Qwen3VLConfig,
    Qwen3VLModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from budgetvdr.encoders.vision import open_preprocessor, write_preprocessor
from budgetvdr.training.errors import CheckpointError, TrainingError
from budgetvdr.training.models.vision.attention import Watch
from budgetvdr.training.models.vision.inputs import limit_pages, prefix_queries
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.qwen import Qwen
from budgetvdr.training.models.vision.tiny_qwen import tiny_qwen2_5_vl, tiny_qwen2_vl, tiny_qwen3_vl
from budgetvdr.training.scores import score_grid

Folders = Callable[[str], Path]

FAMILIES = {"qwen2_vl": tiny_qwen2_vl, "qwen2_5_vl": tiny_qwen2_5_vl, "qwen3_vl": tiny_qwen3_vl}
DEPTHS = (1, 2, 3, 6)
# Landscape, portrait, square, smaller than a token; the tower of Qwen2.5-VL cuts the first two into several windows.
SIZES = [(300, 150), (150, 260), (112, 112), (9, 7)]
QUERIES = ["Who signs?", "a", "Which of the other items in the inventory was damaged on delivery?"]
# Before a query. ColQwen2 and ColQwen2.5: `query_prefix` of colpali-engine 0.3.5 to 0.3.12, by which the published
# checkpoints were trained, and of transformers' ColQwen2Processor. ColQwen3: colpali-engine 0.3.14 to 0.3.18.
PREFIXES = {"qwen2_vl": "Query: ", "qwen2_5_vl": "Query: ", "qwen3_vl": ""}
PROMPT = "<|im_start|>user\n<|vision_start|>{}<|vision_end|>Describe the image.<|im_end|><|endoftext|>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Makes the checkpoint of a family once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            FAMILIES[family](made[family])
        return made[family]

    return folder


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, folders: Folders) -> Path:
    return folders(family)


@pytest.fixture(scope="module")
def model(folder: Path) -> VisionModel:
    return load_vision(folder, depths=DEPTHS)


def pictures(sizes: Sequence[tuple[int, int]] = SIZES) -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


def kept(model: VisionModel, contents: Sequence[Any], role: Any) -> dict[int, list[Tensor]]:
    """depth -> for each content its vectors, of unit length."""
    with torch.no_grad():
        states = model(model.prepare(contents, role), role)
    return {
        depth: [normalize(rows[mask], dim=-1) for rows, mask in zip(vectors, states.mask, strict=True)]
        for depth, vectors in states.exits.items()
    }


class Reference:
    """A published model of the first `depth` layers, with its head after the final norm."""

    def __init__(self, folder: Path, depth: int) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = config.get("vlm_config", config)["text_config"]
        text["num_hidden_layers"] = depth
        if "layer_types" in text:
            text["layer_types"] = text["layer_types"][:depth]
        self.native = "vlm_config" in config
        self.prefix = PREFIXES[config.get("vlm_config", config)["model_type"]]
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        kinds: dict[str, tuple[Any, Any]] = {
            "colqwen2": (ColQwen2Config, ColQwen2ForRetrieval),
            "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLModel),
            "qwen3_vl": (Qwen3VLConfig, Qwen3VLModel),
        }
        read, build = kinds[config["model_type"]]
        self.model = build.from_pretrained(folder, config=read.from_dict(config)).eval()
        self.image_token = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def pages(self, images: Sequence[Image.Image], folder: Path, *, rotary: bool = True) -> list[Tensor]:
        batch = dict(self.images(list(images), return_tensors="pt"))
        grids = batch["image_grid_thw"]
        texts = [PROMPT.format(int(grid.prod()) // 4 * "<|image_pad|>") for grid in grids]
        batch |= self.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        kinds = (batch["input_ids"] == self.image_token).int()
        if not self.native:
            return self._vectors(batch | {"mm_token_type_ids": kinds}, folder)
        cut = torch.split(batch["pixel_values"], grids.prod(-1).tolist())
        batch["pixel_values"] = pad_sequence(list(cut), batch_first=True)
        if rotary:
            batch["position_ids"], _ = self.model.vlm.get_rope_index(
                batch["input_ids"], kinds, image_grid_thw=grids, attention_mask=batch["attention_mask"]
            )
        return self._vectors(batch, folder)

    def queries(self, texts: Sequence[str], folder: Path) -> list[Tensor]:
        end = "\n" if self.native else ""
        whole = [f"{self.prefix}{text}{10 * '<|endoftext|>'}{end}" for text in texts]
        batch = self.tokenizer(whole, padding=True, return_tensors="pt", return_token_type_ids=False)
        return self._vectors(dict(batch), folder)

    def _vectors(self, batch: dict[str, Any], folder: Path) -> list[Tensor]:
        with torch.no_grad():
            output = self.model(**batch)
            found = output.embeddings if self.native else normalize(project(output.last_hidden_state, folder), dim=-1)
        return [rows[mask > 0] for rows, mask in zip(found, batch["attention_mask"], strict=True)]


def project(states: Tensor, folder: Path) -> Tensor:
    """The head that colpali-engine puts on the model."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    return linear(states, weights["custom_text_proj.weight"], weights["custom_text_proj.bias"])


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("depth", DEPTHS)
def test_pages_are_those_of_the_published_model(folder: Path, model: VisionModel, depth: int) -> None:
    found = kept(model, pictures(), "page")[depth]
    assert_same(found, Reference(folder, depth).pages(pictures(), folder))
    # Exits and pages are told apart at this tolerance.
    assert (found[0][-1] - found[1][-1]).abs().max() > 1e-3


@pytest.mark.parametrize("depth", [2, 6])
def test_queries_are_those_of_the_published_model(folder: Path, model: VisionModel, depth: int) -> None:
    found = kept(model, QUERIES, "query")[depth]
    assert_same(found, Reference(folder, depth).queries(QUERIES, folder))
    assert len({len(rows) for rows in found}) == 3


def test_neighbours_change_nothing(model: VisionModel) -> None:
    together = kept(model, pictures(), "page")
    asked = kept(model, QUERIES, "query")
    for depth in DEPTHS:
        for number, image in enumerate(pictures()):
            assert_same(kept(model, [image], "page")[depth], [together[depth][number]])
        for number, text in enumerate(QUERIES):
            assert_same(kept(model, [text], "query")[depth], [asked[depth][number]])


def test_a_shallow_model_is_the_deep_one_cut(folder: Path, model: VisionModel) -> None:
    shallow = load_vision(folder, depths=(2,))
    assert len(shallow.layers()) == 2
    assert_same(kept(shallow, pictures(), "page")[2], kept(model, pictures(), "page")[2])
    assert_same(kept(shallow, QUERIES, "query")[2], kept(model, QUERIES, "query")[2])


def test_every_weight_learns(folder: Path) -> None:
    model = load_vision(folder, depths=(3, 6))
    pages, queries = model.prepare(pictures(SIZES[1:3]), "page"), model.prepare(QUERIES[:2], "query")

    def loss() -> Tensor:
        pairs = [(depth, depth) for depth in model.depths]
        scores = score_grid(model(queries, "query"), model(pages, "page"), pairs, [8, model.dim])
        target = torch.arange(2)
        return torch.stack([torch.nn.functional.cross_entropy(8 * grid, target) for grid in scores.values()]).mean()

    before = loss()
    before.backward()
    # The published final norm and head are copied into the exits.
    learning = {
        name: weight for name, weight in model.named_parameters() if not name.endswith("language_model.norm.weight")
    }
    gradients = {name: weight.grad for name, weight in learning.items()}
    assert [name for name, gradient in gradients.items() if gradient is None] == []
    still = [name for name, gradient in gradients.items() if gradient is not None and not gradient.abs().max() > 0]
    assert still == []
    torch.optim.SGD(learning.values(), lr=1e-3).step()
    assert loss() < before


def test_checkpointing_changes_no_gradient(folder: Path) -> None:
    gradients = []
    for on in (False, True):
        model = load_vision(folder, depths=(3,))
        model.checkpoint_activations(on)
        model(model.prepare(pictures(SIZES[2:]), "page"), "page").exits[3].square().mean().backward()
        weight = model.published.get_submodule("visual.blocks.0.attn.qkv").weight
        assert isinstance(weight, Tensor)
        gradients.append(weight.grad)
    torch.testing.assert_close(*gradients)


def test_looking_at_attention_changes_no_vector(model: VisionModel) -> None:
    inputs = model.prepare(pictures(), "page")
    with torch.no_grad():
        plain, _ = model.run(inputs)
        looked, watched = model.run(inputs, Watch((0, 2), 3))
    for depth in DEPTHS:
        torch.testing.assert_close(looked[depth][inputs["counts"]], plain[depth][inputs["counts"]], rtol=0, atol=1e-5)
    assert watched is not None
    image = inputs["visual_slots"] >= 0
    # Rows that sum to 1 hand on all there is.
    torch.testing.assert_close(watched.in_degree.sum(dim=-1), torch.ones(2, len(SIZES)))
    assert not watched.support[..., ~image].any()


def test_native_pages_need_their_positions(folders: Folders) -> None:
    """transformers' ColQwen2 counts a page's tokens in a row where it is not given their positions."""
    folder = folders("qwen2_vl")
    reference = Reference(folder, 6)
    right, wrong = (reference.pages(pictures(), folder, rotary=rotary) for rotary in (True, False))
    assert (right[0] - wrong[0]).abs().max() > 1e-2


def test_native_texts_are_those_of_transformers(folders: Folders) -> None:
    folder = folders("qwen2_vl")
    processor = ColQwen2Processor(
        Qwen2VLImageProcessorPil.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    )
    model = load_vision(folder)
    for ours, theirs in (
        (model.preprocessor.queries(QUERIES), processor.process_queries(QUERIES)),
        (model.preprocessor.pages(pictures()), processor.process_images(pictures())),
    ):
        for row, mask, expected, seen in zip(
            ours.arrays["input_ids"], ours.counts, theirs["input_ids"], theirs["attention_mask"], strict=True
        ):
            assert row[mask].tolist() == expected[seen > 0].tolist()


def test_captured_states_lack_the_deep_stack(folders: Folders) -> None:
    """Why shallow exits are compared with a model cut short, and trained in the loop."""
    folder = folders("qwen3_vl")
    model = load_vision(folder, depths=(1,))
    inputs = model.prepare(pictures(), "page")
    start = model.begin(inputs)
    assert len(start.additions) == 1
    image = inputs["visual_slots"] >= 0
    assert start.additions[0][image].abs().max() > 1e-2
    assert not start.additions[0][~image].any()
    assert len(load_vision(folder, depths=(6,)).begin(inputs).additions) == 3


def test_a_bundle_prepares_what_the_checkpoint_does(folder: Path, model: VisionModel, tmp_path: Path) -> None:
    write_preprocessor(model.preprocessor, tmp_path)
    shutil.copy(folder / "tokenizer.json", tmp_path)
    bundle = open_preprocessor(tmp_path)
    assert bundle.family == model.family
    for found, expected in (
        (bundle.pages(pictures()), model.preprocessor.pages(pictures())),
        (bundle.queries(QUERIES), model.preprocessor.queries(QUERIES)),
    ):
        assert found.arrays.keys() == expected.arrays.keys()
        assert all((found.arrays[name] == expected.arrays[name]).all() for name in found.arrays)


def test_early_checkpoints_have_early_settings(folders: Folders, tmp_path: Path) -> None:
    """Qwen2-VL's first files: the decoder's sizes at the top of the config, several things under other names."""
    folder = folders("qwen2_vl")
    whole = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vlm_config"]
    early = {**whole, **whole["text_config"], "model_type": "qwen2_vl"}
    del early["text_config"], early["rope_parameters"]
    early |= {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}
    shutil.copy(folder / "tokenizer.json", tmp_path)
    processor = {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 6272,
        "max_pixels": 602112,
        "size": {"min_pixels": 3136, "max_pixels": 12845056},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    settings = Qwen.preprocessor_of(early, processor, tmp_path).settings
    assert (settings.least_pixels, settings.most_pixels) == (6272, 602112)
    assert settings.scale.factor == 1 / 255
    assert settings.query_suffix == 10 * "<|endoftext|>"
    published: Any = Qwen.empty(early)
    assert published.config.text_config.hidden_size == 32
    assert published.language_model.rotary_emb.mrope_section == [2, 1, 1]
    del processor["min_pixels"], processor["max_pixels"]
    settings = Qwen.preprocessor_of(early, processor, tmp_path).settings
    assert (settings.least_pixels, settings.most_pixels) == (3136, 12845056)


@pytest.mark.parametrize("prefix", ["", "Question: "])
def test_a_checkpoint_that_says_what_is_before_a_query_is_believed(folders: Folders, prefix: str) -> None:
    folder = folders("qwen2_5_vl")
    config, processor = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "preprocessor_config.json")
    )
    found = Qwen.preprocessor_of(config, processor | {"query_prefix": prefix}, folder)
    assert found.settings.query_prefix == prefix
    whole = token_ids(folder, f"{prefix}x{10 * '<|endoftext|>'}")
    assert found.queries(["x"]).arrays["input_ids"][0].tolist() == whole


def test_pages_can_be_limited_and_queries_prefixed(folders: Folders) -> None:
    model = load_vision(folders("qwen2_5_vl"))
    before = model.preprocessor
    limit_pages(model, 9)
    prefix_queries(model, "Ask: ")
    (large,) = pictures([(300, 300)])
    slots = model.prepare([large], "page")["visual_slots"]
    assert (slots >= 0).sum() == 9 < (before.pages([large]).arrays["visual_slots"] >= 0).sum()
    assert model.prepare(["x"], "query")["input_ids"][0, :6].tolist() == token_ids(folders("qwen2_5_vl"), "Ask: x")
    assert before.to_json() | {"most_pixels": 9 * 28**2, "query_prefix": "Ask: "} == model.preprocessor.to_json()
    with pytest.raises(TrainingError, match="--image-tokens 3: the smallest page of this checkpoint has 4"):
        limit_pages(model, 3)


def token_ids(folder: Path, text: str) -> list[int]:
    ids: list[int] = PreTrainedTokenizerFast.from_pretrained(folder)(text)["input_ids"]
    return ids


def test_settings_that_disagree_are_refused(folders: Folders) -> None:
    folder = folders("qwen3_vl")
    config, processor = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "preprocessor_config.json")
    )
    with pytest.raises(ValueError, match=r"patches of \(14, 2, 2\).* tower of \(16, 2, 2\)"):
        Qwen.preprocessor_of(config, processor | {"patch_size": 14}, folder)
    with pytest.raises(ValueError, match="image token 7, the tokenizer another"):
        Qwen.preprocessor_of(config | {"image_token_id": 7}, processor, folder)


def test_sliding_windows_are_refused(folders: Folders) -> None:
    config = json.loads((folders("qwen2_5_vl") / "config.json").read_text(encoding="utf-8"))
    text = config["text_config"] | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    del text["layer_types"]
    with pytest.raises(CheckpointError, match="sliding windows"):
        Qwen.empty(config | {"text_config": text})
