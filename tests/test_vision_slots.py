"""Vectors read out at slots (RandSlot): against one pass a slot, in mixed batches, exported and in an index."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import exported
import numpy as np
import pytest
import torch
from torch import Tensor
from vision_tools import QUERIES, SIZES, close, pictures

from budgetvdr import estimate
from budgetvdr.bundle import SLOTS_NAME, Window, load_manifest, verify_files
from budgetvdr.compress import AnchorFold, DocPruner
from budgetvdr.encoders.onnx import Sessions
from budgetvdr.encoders.vision import open_preprocessor
from budgetvdr.encoders.vision.encoder import VisionEncoder
from budgetvdr.encoders.vision.slots import INPUT, SlotPreprocessor, draw
from budgetvdr.errors import BundleError, CompressionError
from budgetvdr.export import __main__ as command
from budgetvdr.index import Index
from budgetvdr.pages import EncodedPage, Page
from budgetvdr.training.models.model import Content, Role
from budgetvdr.training.models.vision.attention import Watch
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.tiny import tiny_modernvbert, tiny_paligemma
from budgetvdr.training.models.vision.tiny_qwen import tiny_qwen2_5_vl, tiny_qwen3_vl

WRITERS = {
    "paligemma": tiny_paligemma,
    "qwen2_5_vl": tiny_qwen2_5_vl,
    "qwen3_vl": tiny_qwen3_vl,
    "modernvbert": tiny_modernvbert,
}
EXPORTED = ("paligemma", "qwen2_5_vl")
DEPTHS, HIDDEN, COUNT = (1, 3), 32, 4
# Long enough to leave the window of ModernBERT's local layers.
CONTENTS: dict[Role, Sequence[Content]] = {"page": pictures(list(SIZES)), "query": QUERIES}


@pytest.fixture(scope="module", params=WRITERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    folder = tmp_path_factory.mktemp(request.param)
    WRITERS[request.param](folder, layers=3)
    return load_vision(folder, depths=DEPTHS).eval()


def read_outs(model: VisionModel, contents: Sequence[Content], role: Role, vectors: Tensor) -> dict[int, list[Tensor]]:
    """depth -> for each content (S + 1, D)."""
    with torch.no_grad():
        exits, _ = model.run({**model.prepare(contents, role), INPUT: vectors})
    return {depth: list(exits[depth]) for depth in model.depths}


def slowly(model: VisionModel, content: Content, role: Role, vectors: Tensor, depth: int) -> Tensor:
    """(S + 1, D): one content, one pass for each read-out, which is that of the last place of the sequence."""
    inputs = model.prepare([content], role)
    with torch.no_grad():
        start = model.begin(inputs)
        own = start.state.shape[1]
        rows = []
        for more in range(len(vectors) + 1):
            state = torch.cat([start.state, vectors[None, :more]], dim=1)
            for number, layer in enumerate(model.layers()[:depth]):
                mask, rotary = explicit(model, number, inputs, state)
                state = layer(state, attention_mask=mask, position_embeddings=rotary)
                if number < len(start.additions):
                    state[:, :own] += start.additions[number]
            rows.append(model.exits[str(depth)](state[0, -1]))
    return torch.stack(rows)


def explicit(model: VisionModel, layer: int, inputs: Any, state: Tensor) -> tuple[Tensor, Any]:
    """The mask of a layer and what it rotates by, for the tokens of the inputs and the slots after them."""
    own, length = inputs["input_ids"].shape[1], state.shape[1]
    back = model.family.startswith("qwen")
    text: Any = model.published.get_submodule("text_model" if model.family == "modernvbert" else "language_model")
    near = model.family == "modernvbert" and model.kind(layer) != "full_attention"
    reach = text.config.sliding_window if near else length
    mask = torch.full((length, length), torch.finfo(torch.float32).min)
    for row in range(length):
        # The last column a place may look at.
        last = row if back or row >= own else own - 1
        mask[row, max(0, row - reach) : min(last, row + reach) + 1] = 0
    rotary = text.get_submodule("rotary_emb")
    if back:
        positions = inputs["position_ids"]
        following = positions.max() + 1 + torch.arange(length - own)
        return mask[None, None], rotary(state, torch.cat([positions, following.expand(3, 1, -1)], dim=2))
    positions = torch.arange(length)[None]
    if model.family == "modernvbert":
        return mask[None, None], rotary(state, positions, model.kind(layer))
    return mask[None, None], rotary(state, positions + 1)


@pytest.mark.parametrize("role", CONTENTS)
def test_read_outs_of_a_mixed_batch_are_those_of_one_pass_a_slot(model: VisionModel, role: Role) -> None:
    # Larger than unit, so that what slots see of each other shows.
    vectors = 3 * torch.from_numpy(draw(COUNT, HIDDEN)[0])
    found = read_outs(model, CONTENTS[role], role, vectors)
    for depth in DEPTHS:
        expected = [slowly(model, content, role, vectors, depth) for content in CONTENTS[role]]
        close(found[depth], expected)
        for rows in found[depth]:
            assert rows.shape == (COUNT, exported.DIM)
            assert torch.cdist(rows, rows)[~torch.eye(COUNT, dtype=torch.bool)].min() > 1e-2


@pytest.mark.parametrize("role", CONTENTS)
def test_neighbours_change_nothing(model: VisionModel, role: Role) -> None:
    vectors = torch.from_numpy(draw(COUNT, HIDDEN)[0])
    together = read_outs(model, CONTENTS[role], role, vectors)[3]
    alone = [read_outs(model, [content], role, vectors)[3][0] for content in CONTENTS[role]]
    close(together, alone)


@pytest.mark.parametrize("role", CONTENTS)
def test_tokens_do_not_see_slots(model: VisionModel, role: Role) -> None:
    kept: list[Tensor] = []
    handle = model.layers()[-1].register_forward_hook(lambda module, arguments, output: kept.append(output))
    inputs = model.prepare(CONTENTS[role], role)
    vectors = 3 * torch.from_numpy(draw(COUNT, HIDDEN)[0])
    try:
        with torch.no_grad():
            plain, _ = model.run(inputs)
            exits, _ = model.run({**inputs, INPUT: vectors})
    finally:
        handle.remove()
    without, with_slots = kept
    own = inputs["attention_mask"].bool()
    torch.testing.assert_close(with_slots[:, : own.shape[1]][own], without[own], atol=1e-5, rtol=1e-5)
    last = [plain[3][row, count - 1] for row, count in enumerate(own.sum(dim=1).tolist())]
    close(list(exits[3][:, 0]), last)


@pytest.mark.parametrize("role", CONTENTS)
def test_fewer_slots_give_the_first_read_outs(model: VisionModel, role: Role) -> None:
    vectors = torch.from_numpy(draw(COUNT, HIDDEN)[0])
    every = read_outs(model, CONTENTS[role], role, vectors)[3]
    for fewer in range(COUNT):
        found = read_outs(model, CONTENTS[role], role, vectors[:fewer])[3]
        close(found, [rows[: fewer + 1] for rows in every])


def test_attention_is_refused_and_gradients_reach_what_slots_look_at(model: VisionModel) -> None:
    model.preprocessor, tokens = SlotPreprocessor(model.preprocessor, draw(COUNT, HIDDEN)), model.preprocessor
    try:
        inputs = model.prepare(CONTENTS["page"], "page")
        with pytest.raises(ValueError, match="slots"):
            model.run(inputs, Watch((0,), 1))
        states = model(inputs, "page")
        assert states.mask.shape == (len(SIZES), COUNT) and states.mask.all()
        states.exits[3].square().sum().backward()
        assert all(weight.grad is not None for weight in model.layers()[0].parameters())
    finally:
        model.preprocessor = tokens


def test_slots_are_drawn_as_unit_vectors_anew_for_each_place_side_and_seed() -> None:
    tables = draw(200, 64)
    assert tables.shape == (2, 199, 64) and tables.dtype == np.float32
    flat = tables.reshape(-1, 64)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), 1, atol=1e-6)
    # Directions of a Gaussian: no component is preferred, and no two rows are alike.
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(flat.var(axis=0), 1 / 64, rtol=0.4)
    products = flat @ flat.T
    assert np.abs(products[~np.eye(len(flat), dtype=bool)]).max() < 0.8
    np.testing.assert_array_equal(draw(200, 64, 42), tables)
    assert not np.isclose(draw(200, 64, 43), tables).all(axis=-1).any()
    assert draw(1, 64).shape == (2, 0, 64)
    with pytest.raises(ValueError, match="at least one"):
        draw(0, 64)


@pytest.fixture(scope="module", params=EXPORTED)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported by the command, its seed other than the usual one."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    WRITERS[request.param](folder / "checkpoint", layers=3)
    options = ["--depths", "1,3", "--dims", "8,16", "--slots", str(COUNT), "--slot-seed", "7"]
    assert command.main([str(folder / "checkpoint"), "--out", str(folder / "bundle"), *options]) == 0
    return folder / "bundle"


def pages() -> list[Page]:
    return [Page("doc", number, image) for number, image in enumerate(pictures(list(SIZES)), 1)]


def test_a_bundle_computes_what_the_model_computes(bundle: Path) -> None:
    model = load_vision(bundle.parent / "checkpoint", depths=DEPTHS).eval()
    tables = draw(COUNT, HIDDEN, 7)
    np.testing.assert_array_equal(np.load(bundle / SLOTS_NAME), tables)
    encoder = VisionEncoder(bundle, threads=1, batch_pixels=1 << 30)
    expected = read_outs(model, CONTENTS["page"], "page", torch.from_numpy(tables[0]))
    for row, page in enumerate(encoder.encode_pages(pages(), DEPTHS)):
        assert isinstance(page, EncodedPage)
        for depth in DEPTHS:
            np.testing.assert_allclose(page.vectors[depth], expected[depth][row].numpy(), atol=2e-5)
        np.testing.assert_array_equal(page.regions, np.tile(np.array([0, 0, 1, 1]), (COUNT, 1)))
    for text in QUERIES:
        for depth in DEPTHS:
            (rows,) = read_outs(model, [text], "query", torch.from_numpy(tables[1]))[depth]
            query = encoder.encode_query(text, depth)
            np.testing.assert_allclose(query.vectors, torch.nn.functional.normalize(rows, dim=-1).numpy(), atol=2e-5)
            assert query.tokens == (text,) * COUNT


def test_a_graph_takes_any_number_of_slots(bundle: Path) -> None:
    batch = open_preprocessor(bundle).pages(pictures(list(SIZES)))
    sessions = Sessions(bundle)
    vectors = draw(9, HIDDEN)[0]
    (every,) = sessions.run("page_3.onnx", {**batch.arrays, INPUT: vectors}, ["exit_3"])
    assert every.shape == (len(SIZES), 9, exported.DIM)
    for fewer in (0, 1, 5):
        (found,) = sessions.run("page_3.onnx", {**batch.arrays, INPUT: vectors[:fewer]}, ["exit_3"])
        np.testing.assert_allclose(found, every[:, : fewer + 1], atol=2e-5)


def test_an_index_holds_so_many_vectors_a_page_and_answers(bundle: Path, tmp_path: Path) -> None:
    with Index.open(tmp_path / "index.bvdr", encoder=bundle, threads=1) as index:
        assert index.add_pages(pages()).pages == len(SIZES)
        hits = index.search("who?", k=len(SIZES), budget="full")
        assert {hit.page_num for hit in hits} == set(range(1, len(SIZES) + 1))
        explained = hits[0].explain()
        assert len(explained.matches) == COUNT
        assert {match.region for match in explained.matches} == {(0.0, 0.0, 1.0, 1.0)}


def test_the_manifest_says_so_and_the_fingerprint_knows(bundle: Path) -> None:
    manifest = load_manifest(bundle)
    assert manifest.slots == COUNT and "4 slots" in manifest.name
    verify_files(manifest, bundle)
    assert all(row.cosine > 0.99999 for row in manifest.parity)
    other = replace(manifest, files={**manifest.files, SLOTS_NAME: "0" * 64})
    assert other.fingerprint != manifest.fingerprint


def test_attention_is_nothing_that_a_bundle_with_slots_could_be_asked_for(bundle: Path, tmp_path: Path) -> None:
    encoder = VisionEncoder(bundle, threads=1)
    with pytest.raises(CompressionError, match="stand for no tokens"):
        encoder.encode_pages(pages(), (3,), attention={3: Window(1, 2)})
    with pytest.raises(CompressionError, match="stand for no tokens"):
        encoder.encode_support(pages()[0], 2)
    # Calibration, which an index would else ask for, refuses it with the same words.
    asked: list[dict[str, Any]] = [{"signals": True}, {"compression": AnchorFold(gamma=0.5)}]
    for options in [*asked, {"compression": DocPruner(threshold=0.0)}]:
        with pytest.raises(CompressionError, match="stand for no tokens"):
            Index.open(tmp_path / "index.bvdr", encoder=encoder, **options)
    assert not (tmp_path / "index.bvdr").exists()


def test_an_estimate_counts_the_vectors_that_slots_give(bundle: Path) -> None:
    assert estimate(1000, encoder=bundle) == estimate(1000, encoder=bundle, vectors_per_page=COUNT)
    assert estimate(1000, encoder=bundle).disk_bytes < estimate(1000, encoder=bundle, vectors_per_page=420).disk_bytes


def changed(bundle: Path, target: Path, **values: Any) -> Path:
    copy = Path(shutil.copytree(bundle, target / "bundle"))
    exported.edit_manifest(copy, lambda raw: raw.update(values))
    return copy


@pytest.mark.parametrize("slots", [0, -1])
def test_a_number_without_slots_beside_their_file_is_refused(bundle: Path, tmp_path: Path, slots: int) -> None:
    with pytest.raises(BundleError, match="slots must be"):
        load_manifest(changed(bundle, tmp_path, slots=slots))


def test_slots_without_their_file_are_refused(bundle: Path, tmp_path: Path) -> None:
    files = {name: digest for name, digest in load_manifest(bundle).files.items() if name != SLOTS_NAME}
    with pytest.raises(BundleError, match="slots must be"):
        load_manifest(changed(bundle, tmp_path, files=files))


def test_graphs_that_take_slots_in_a_bundle_that_has_none_are_refused(bundle: Path, tmp_path: Path) -> None:
    files = {name: digest for name, digest in load_manifest(bundle).files.items() if name != SLOTS_NAME}
    with pytest.raises(BundleError, match=r"page_1\.onnx is .* to take no slots; found"):
        VisionEncoder(changed(bundle, tmp_path, slots=0, files=files), threads=1)


def test_graphs_that_take_no_slots_in_a_bundle_that_has_some_are_refused(bundle: Path, tmp_path: Path) -> None:
    plain = exported.bundle("paligemma")
    copy = Path(shutil.copytree(plain, tmp_path / "bundle"))
    shutil.copyfile(bundle / SLOTS_NAME, copy / SLOTS_NAME)
    files = {**load_manifest(plain).files, SLOTS_NAME: load_manifest(bundle).files[SLOTS_NAME]}
    exported.edit_manifest(copy, lambda raw: raw.update(slots=COUNT, files=files))
    with pytest.raises(BundleError, match=r"page_1\.onnx is .* to take slots; found"):
        VisionEncoder(copy, threads=1)


def test_tables_of_another_number_are_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"\(2, 2, hidden\), found float32 \(2, 3, 32\)"):
        VisionEncoder(changed(bundle, tmp_path, slots=COUNT - 1))


def test_tables_that_are_no_numbers_are_refused(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    np.save(copy / SLOTS_NAME, np.full((2, COUNT - 1, HIDDEN), np.nan, np.float32))
    with pytest.raises(BundleError, match="not finite"):
        VisionEncoder(copy)
    (copy / SLOTS_NAME).write_bytes(b"\x93NUMPY")
    with pytest.raises(BundleError, match="not readable"):
        VisionEncoder(copy)


def test_a_number_below_zero_is_refused(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--slots", "--slot-seed"):
        assert command.main([str(bundle.parent / "checkpoint"), "--out", str(tmp_path / "bundle"), option, "-1"]) == 2
        assert f"{option} must be" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
