"""Checkpoints of all layouts, adapters, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ColPaliForRetrieval, PreTrainedTokenizerFast
from transformers.models.paligemma import PaliGemmaProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from vision_tools import QUERIES, close, pictures, reference_vectors, vectors

from budgetvdr.encoders.vision import open_preprocessor, write_preprocessor
from budgetvdr.errors import BundleError
from budgetvdr.training.errors import CheckpointError, TrainingError
from budgetvdr.training.models.vision import load
from budgetvdr.training.models.vision.inputs import limit_pages, prefix_queries
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.tiny import tiny_modernvbert, tiny_paligemma

IMAGES = ["portrait", "tiny"]


@pytest.fixture(scope="module")
def pali(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pali")
    tiny_paligemma(path, layers=3)
    return path


@pytest.fixture(scope="module")
def modern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modern")
    tiny_modernvbert(path, layers=3)
    return path


def copied(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    return folder


def edit_json(path: Path, change: Callable[[dict], Mapping]) -> None:  # type: ignore[type-arg]
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def rename(folder: Path, *changes: tuple[str, str]) -> None:
    """The same weights under the names of another library; its config has no wrapper."""
    tensors = load_file(folder / "model.safetensors")
    for pattern, replacement in changes:
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    edit_json(folder / "config.json", lambda config: config["vlm_config"])


def all_weights(model: VisionModel) -> dict[str, Tensor]:
    return {f"{part}.{name}": value for part in ("published", "exits") for name, value in _state(model, part).items()}


def _state(model: VisionModel, part: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = model.get_submodule(part).state_dict()
    return state


def same_weights(one: VisionModel, other: VisionModel) -> None:
    expected = all_weights(other)
    assert all_weights(one).keys() == expected.keys()
    for name, value in all_weights(one).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    "changes",
    [
        [
            (r"^vlm\.language_model\.model\.", "model.language_model.model."),
            (r"vision_tower\.", "vision_tower.vision_model."),
        ],
        [(r"^vlm\.language_model\.model\.", "model.model.language_model."), (r"^vlm\.", "model.model.")],
    ],
    ids=["before transformers 4.52", "since"],
)
def test_colpali_of_colpali_engine(pali: Path, tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    folder = copied(pali, tmp_path / "engine")
    rename(folder, *changes, (r"^vlm\.", "model."), ("embedding_proj_layer", "custom_text_proj"))
    model = load_vision(folder, depths=(1, 3))
    same_weights(model, load_vision(pali, depths=(1, 3)))
    # What colpali-engine up to 0.3.3 gives its processors, by which ColPali was trained up to 1.3: PaliGemma's puts one
    # <bos> before the prompt of a page.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    processor = PaliGemmaProcessor(SiglipImageProcessorPil.from_pretrained(folder), tokenizer)
    expected = processor(text=["<image>Describe the image."] * 2, images=pictures(IMAGES), return_tensors="np")
    inputs = model.prepare(pictures(IMAGES), "page")
    assert (inputs["input_ids"].numpy() == expected["input_ids"]).all()
    for text in QUERIES:
        ids = tokenizer([f"<bos>Question: {text}{10 * '<pad>'}\n"], return_tensors="pt")["input_ids"]
        assert torch.equal(model.prepare([text], "query")["input_ids"], ids)
    prefix_queries(model, "Query: ")
    ids = tokenizer([f"<bos>Query: a{10 * '<pad>'}\n"], return_tensors="pt")["input_ids"]
    assert torch.equal(model.prepare(["a"], "query")["input_ids"], ids)
    with pytest.raises(TrainingError, match="have a size of their own"):
        limit_pages(model, 9)


def test_colmodernvbert_of_colpali_engine(modern: Path, tmp_path: Path) -> None:
    folder = copied(modern, tmp_path / "engine")
    rename(folder, (r"^vlm\.", "model."), ("embedding_proj_layer", "custom_text_proj"))
    model, native = load_vision(folder), load_vision(modern)
    same_weights(model, native)
    close(vectors(model, QUERIES, "query", 3), vectors(native, QUERIES, "query", 3))


def test_weights_in_shards(pali: Path, tmp_path: Path) -> None:
    folder = copied(pali, tmp_path / "shards")
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    places = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    same_weights(load_vision(folder), load_vision(pali))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks model-00002-of-00002"):
        load_vision(folder)
    for strange, says in (("../pali/model.safetensors", "files in its folder"), (7, "not readable")):
        mapped = json.dumps({"weight_map": dict.fromkeys(names, strange)})
        (folder / "model.safetensors.index.json").write_text(mapped)
        with pytest.raises(CheckpointError, match=says):
            load_vision(folder)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's call
@pytest.mark.parametrize("rslora", [False, True])
def test_adapters_are_merged_as_peft_does(pali: Path, tmp_path: Path, rslora: bool) -> None:
    torch.manual_seed(0)
    config = LoraConfig(
        r=4,
        lora_alpha=6,
        use_rslora=rslora,
        target_modules=r".*(language_model.*(q_proj|down_proj)|vision_tower.*fc1|embedding_proj_layer)$",
        rank_pattern={"down_proj": 2},
        alpha_pattern={"layers.1.self_attn.q_proj": 20},
        modules_to_save=["multi_modal_projector"],
    )
    adapted = get_peft_model(ColPaliForRetrieval.from_pretrained(pali), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_(std=0.2)
    folder = tmp_path / "adapter"
    adapted.save_pretrained(folder)
    edit_json(folder / "adapter_config.json", lambda raw: raw | {"base_model_name_or_path": str(pali)})
    model = load_vision(folder, depths=(3,))
    reference = adapted.merge_and_unload().eval()
    for role, contents in (("query", QUERIES), ("page", pictures(IMAGES))):
        inputs = model.prepare(contents, role)
        taken = {name: inputs[name] for name in inputs if name not in ("counts", "visual_slots")}
        # Without them the reference looks back alone where a batch is padded.
        taken["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        close(vectors(model, contents, role, 3), reference_vectors(reference, taken))
    found = vectors(model, QUERIES, "query", 3)
    plain = vectors(load_vision(pali), QUERIES, "query", 3)
    assert (found[0] - plain[0]).abs().max() > 0.1
    # A shallow exit needs only the adapters of its layers.
    assert len(load_vision(folder, depths=(1,)).layers()) == 1


def test_an_adapter_beside_its_base_and_strange_ones(pali: Path, tmp_path: Path) -> None:
    copied(pali, tmp_path / "base")
    folder = tmp_path / "adapter"
    folder.mkdir()
    settings = {"peft_type": "LORA", "base_model_name_or_path": "../base", "lora_alpha": 8}
    name = "base_model.model.vlm.language_model.layers.0.self_attn.q_proj"
    factors = {f"{name}.lora_A.weight": torch.ones(2, 32), f"{name}.lora_B.weight": torch.ones(32, 2)}
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"

    def write(changed: Mapping[str, object] = {}, tensors: Mapping[str, Tensor] = factors) -> None:
        config.write_text(json.dumps(settings | changed))
        save_file(dict(tensors), weights)

    write()
    place = "published.language_model.layers.0.self_attn.q_proj.weight"
    expected = all_weights(load_vision(pali))[place] + 2 * 8 / 2
    torch.testing.assert_close(all_weights(load_vision(folder))[place], expected)
    write({"use_dora": True})
    with pytest.raises(CheckpointError, match="plain LoRA"):
        load_vision(folder)
    write({"peft_type": "IA3"})
    with pytest.raises(CheckpointError, match="plain LoRA"):
        load_vision(folder)
    write(tensors={key.replace("layers.0", "layers.9"): value for key, value in factors.items()})
    with pytest.raises(CheckpointError, match="does not have"):
        load_vision(folder)
    write(tensors={f"{name}.lora_A.weight": torch.ones(2, 32)})
    with pytest.raises(CheckpointError, match="one factor"):
        load_vision(folder)
    write(tensors={f"{name}.lora_A.weight": torch.ones(2, 31), f"{name}.lora_B.weight": torch.ones(32, 2)})
    with pytest.raises(CheckpointError, match="do not fit"):
        load_vision(folder)
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="pickled"):
        load_vision(folder)


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def changed(name: str, change: Mapping[str, object], *, alone: bool = False) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / name, lambda raw: change if alone else raw | change)


def inner(**values: object) -> Callable[[Path], None]:
    return lambda folder: edit_json(
        folder / "config.json", lambda raw: raw | {"vlm_config": raw["vlm_config"] | values}
    )


def layers(count: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = json.loads((folder / "config.json").read_text())["vlm_config"]["text_config"]
        inner(text_config=text | {"num_hidden_layers": count})(folder)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickled"),
        (gone("model.safetensors"), "lacks model.safetensors"),
        (gone("config.json"), "config.json is not readable"),
        (written("config.json", "[]"), "expected an object"),
        (gone("preprocessor_config.json"), r"no preprocessor_config\.json, expected"),
        (gone("tokenizer.json"), r"damaged has no tokenizer\.json, expected"),
        (inner(model_type="llava"), "'llava' inside of a 'colpali': expected one of paligemma"),
        (layers("many"), "whole number from 1 on for num_hidden_layers, found 'many'"),
        (layers(0), "num_hidden_layers, found 0"),
        (written("tokenizer.json", "{}"), "tokenizer"),
        (changed("preprocessor_config.json", {"do_normalize": False}), "do_normalize"),
        (changed("preprocessor_config.json", {"size": {"height": 9, "width": 9}}), "tower of 56"),
        (changed("config.json", {"model_type": "llava"}, alone=True), "'llava': expected one of paligemma"),
        (changed("config.json", {"model_type": "x", "auto_map": {}}, alone=True), "brings its own code"),
    ],
)
def test_what_is_no_checkpoint_is_refused(
    pali: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = copied(pali, tmp_path / "damaged")
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load_vision(folder)


def test_weights_that_are_missing_or_do_not_fit(pali: Path, tmp_path: Path) -> None:
    folder = copied(pali, tmp_path / "damaged")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "vlm.language_model.model.layers.0.mlp.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, file)
    with pytest.raises(CheckpointError, match="no weights for language_model"):
        load_vision(folder)
    save_file(tensors | {name: tensors[name][:5].contiguous()}, file)
    with pytest.raises(CheckpointError, match=r"is \(5, 32\), its config says \(64, 32\)"):
        load_vision(folder)
    save_file({key: value for key, value in tensors.items() if "embedding_proj" not in key}, file)
    with pytest.raises(CheckpointError, match="no projection head"):
        load_vision(folder)
    for broken, value in ((name, torch.nan), ("embedding_proj_layer.bias", torch.inf)):
        save_file(tensors | {broken: tensors[broken].index_fill(0, torch.tensor([1]), value)}, file)
        plain = broken.removeprefix("vlm.")
        with pytest.raises(CheckpointError, match=rf"{plain[:15]}.* not finite.*get the checkpoint again"):
            load_vision(folder)
    shutil.copyfile(pali / "model.safetensors", file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        load_vision(folder)
    for depths in ((0, 1), (4,), ()):
        with pytest.raises(CheckpointError, match="has 3 layers"):
            load_vision(pali, depths=depths)


def test_untrained_exits_have_the_published_head_and_are_told(pali: Path) -> None:
    model = load_vision(pali, depths=(1, 3))
    assert model.trained_exits == (3,)
    assert model.query_depths == {3: (3,)}
    weights = all_weights(model)
    for part in ("norm.weight", "projection.weight", "projection.bias"):
        assert torch.equal(weights[f"exits.1.{part}"], weights[f"exits.3.{part}"])
    shallow = load_vision(pali, depths=(1,))
    assert shallow.trained_exits == ()
    assert len(shallow.layers()) == 1
    close(vectors(shallow, pictures(IMAGES), "page", 1), vectors(model, pictures(IMAGES), "page", 1))


def test_half_precision(pali: Path) -> None:
    model = load_vision(pali, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    exact = vectors(load_vision(pali), pictures(IMAGES), "page", 3)
    for found, expected in zip(vectors(model, pictures(IMAGES), "page", 3), exact, strict=True):
        assert (found.float() * expected).sum(dim=-1).min() > 0.98


def test_names_on_the_hub(pali: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns, revision))
        return str(pali)

    monkeypatch.setattr(load, "snapshot_download", download)
    same_weights(load_vision("someone/colpali"), load_vision(pali))
    assert asked[0][::2] == ("someone/colpali", None)
    load_vision("someone/colpali@refs/pr/1", depths=(1,))
    assert asked[1][::2] == ("someone/colpali", "refs/pr/1")
    assert not any(pattern.endswith((".bin", ".pt")) for pattern in asked[0][1])

    def fail(name: str, **options: object) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(load, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match="neither a folder nor a model that could be had"):
        load_vision("someone/colpali")


CODE = """
import torch
from transformers import AutoModel, PaliGemmaConfig, PaliGemmaModel, PreTrainedConfig, PreTrainedModel

class StrangeConfig(PreTrainedConfig):
    model_type = "strange"
    sub_configs = {"inner": PaliGemmaConfig}
    inner: dict | None = None

    def __post_init__(self, **kwargs):
        self.inner = PaliGemmaConfig(**self.inner) if isinstance(self.inner, dict) else self.inner or PaliGemmaConfig()
        super().__post_init__(**kwargs)

class Strange(PreTrainedModel):
    config_class = StrangeConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = PaliGemmaModel(config.inner)
        self.custom_text_proj = torch.nn.Linear(config.inner.text_config.hidden_size, 16)
        self.post_init()
"""


def test_models_with_code_of_their_own(pali: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = copied(pali, tmp_path / "strange")
    native = load_vision(pali)
    head = native.get_submodule("exits.3.projection").state_dict()
    weights = {f"model.{name}": tensor for name, tensor in native.backbone().state_dict().items()}
    weights |= {f"custom_text_proj.{name}": tensor for name, tensor in head.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "strange_code.py").write_text(textwrap.dedent(CODE))
    edit_json(
        folder / "config.json",
        lambda raw: {
            "model_type": "strange",
            "inner": raw["vlm_config"],
            "auto_map": {"AutoConfig": "strange_code.StrangeConfig", "AutoModel": "strange_code.Strange"},
        },
    )
    with pytest.raises(CheckpointError, match="brings its own code, which is not run"):
        load_vision(folder)
    assert not (tmp_path / "modules").exists()
    same_weights(load_vision(folder, trust_remote_code=True), native)


@pytest.mark.parametrize("kind", ["pali", "modern"])
def test_preprocessors_are_written_and_opened(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(kind)
    own = load_vision(source).preprocessor
    write_preprocessor(own, tmp_path)
    shutil.copyfile(source / "tokenizer.json", tmp_path / "tokenizer.json")
    opened = open_preprocessor(tmp_path)
    assert opened.to_json() == own.to_json()
    for one, other in (
        (opened.pages(pictures(IMAGES)), own.pages(pictures(IMAGES))),
        (opened.queries(QUERIES), own.queries(QUERIES)),
    ):
        assert one.arrays.keys() == other.arrays.keys()
        assert all((one.arrays[name] == other.arrays[name]).all() for name in one.arrays)
    path = tmp_path / "preprocess.json"
    for change, message in (
        ({"family": "other"}, "does not know"),
        ({"scale": {}}, "not right for"),
        ({"image": "<nowhere>"}, "no token|once in a page"),
    ):
        write_preprocessor(own, tmp_path)
        edit_json(path, lambda raw, change=change: raw | change)
        with pytest.raises(BundleError, match=message):
            open_preprocessor(tmp_path)
    for text, message in (
        ("{", "not readable"),
        ("[]", "an object with the name of a family"),
        ('{"family": 7}', "an object with the name of a family"),
        ('{"family": "paligemma"}', r"not right for paligemma \(no 'side'\)"),
        ('{"family": "qwen2_vl", "patch": Infinity}', "not right for qwen2_vl"),
    ):
        path.write_text(text)
        with pytest.raises(BundleError, match=message):
            open_preprocessor(tmp_path)
