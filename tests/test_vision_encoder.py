"""The encoder of vision-language bundles: bad pages, batches, budgets, memory, signals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import exported
import numpy as np
import pytest
from PIL import Image
from vision_tools import pictures

from budgetvdr.bundle import Window
from budgetvdr.encoders import CalibratedEncoder, Encoder
from budgetvdr.encoders.onnx import CPU, Sessions
from budgetvdr.encoders.open import open_encoder
from budgetvdr.encoders.vision.encoder import VisionEncoder
from budgetvdr.errors import (
    BudgetError,
    BudgetVDRError,
    BundleError,
    CompressionError,
    EncodingError,
    PageError,
    ProviderError,
    QueryError,
)
from budgetvdr.index import Index
from budgetvdr.pages import EncodedPage, Page

FAMILY = "qwen2_5_vl"
DEPTHS = exported.DEPTHS


@pytest.fixture(scope="module")
def bundle() -> Path:
    return exported.bundle(FAMILY)


@pytest.fixture(scope="module")
def encoder(bundle: Path) -> VisionEncoder:
    return VisionEncoder(bundle, threads=2)


def page(number: int, image: Image.Image | None = None, **more: Any) -> Page:
    return Page(doc_id="doc", page_num=number, image=image, **more)


def good(results: Sequence[EncodedPage | BudgetVDRError]) -> list[EncodedPage]:
    assert all(isinstance(result, EncodedPage) for result in results), results
    return [result for result in results if isinstance(result, EncodedPage)]


def test_it_is_an_encoder_that_can_be_calibrated(bundle: Path) -> None:
    encoder: Encoder = open_encoder(bundle, threads=1)
    assert isinstance(encoder, VisionEncoder)
    assert isinstance(encoder, CalibratedEncoder)
    assert encoder.providers == (CPU,)


def test_a_bad_page_is_an_error_in_its_place_and_the_rest_go_on(encoder: VisionEncoder) -> None:
    portrait, landscape = pictures(["portrait", "landscape"])

    def torn(longest_side: int) -> Image.Image:
        raise OSError("disk on fire")

    asked: list[int] = []

    def draw(longest_side: int) -> Image.Image:
        asked.append(longest_side)
        return landscape

    pages = [
        page(1, portrait),
        page(2, render=torn),
        page(3),
        page(4, Image.new("RGB", (4000, 2))),
        page(5, render=draw),
    ]
    done: list[None] = []
    results = encoder.encode_pages(pages, DEPTHS, on_page=lambda: done.append(None))
    assert [isinstance(result, EncodedPage) for result in results] == [True, False, False, False, True]
    for number, says in ((2, "disk on fire"), (3, "no picture"), (4, "4000 x 2")):
        error = results[number - 1]
        assert isinstance(error, PageError) and error.page_num == number
        assert says in str(error)
    assert len(done) == 5
    assert asked == [2048]


def test_one_page_that_breaks_a_batch_does_not_take_the_others_with_it(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = VisionEncoder(bundle, threads=1, batch_pixels=1 << 30)
    images = pictures(["square", "portrait", "square"])
    real = Sessions.run
    ran: list[int] = []

    def run(self: Sessions, graph: str, inputs: Any, outputs: Any) -> Any:
        ran.append(len(inputs["input_ids"]))
        # As an activation that leaves the range of a smaller float does.
        if inputs["input_ids"].shape[1] != shortest:
            raise EncodingError("not finite")
        return real(self, graph, inputs, outputs)

    shortest = encoder._preprocessor.pages([images[0]]).counts.shape[1]
    monkeypatch.setattr(Sessions, "run", run)
    results = encoder.encode_pages([page(number, image) for number, image in enumerate(images, 1)], (2,))
    assert [isinstance(result, EncodedPage) for result in results] == [True, False, True]
    assert ran == [3, 1, 1, 1]


def test_batches_hold_as_many_pixels_as_allowed(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(["square"] * 5)
    small = VisionEncoder(bundle, threads=1)
    pixels = small._preprocessor.pixels(images[0])
    real = Sessions.run
    ran: list[int] = []

    def run(self: Sessions, graph: str, inputs: Any, outputs: Any) -> Any:
        ran.append(len(inputs["input_ids"]))
        return real(self, graph, inputs, outputs)

    monkeypatch.setattr(Sessions, "run", run)
    pages = [page(number, image) for number, image in enumerate(images, 1)]
    for most, expected in ((2 * pixels, [2, 2, 1]), (1, [1] * 5), (100 * pixels, [5])):
        ran.clear()
        good(VisionEncoder(bundle, threads=1, batch_pixels=most).encode_pages(pages, (1,)))
        assert ran == expected


def test_pages_are_drawn_a_few_ahead_and_not_all_at_once(bundle: Path) -> None:
    (image,) = pictures(["tiny"])
    drawn: list[int] = []
    done: list[int] = []

    def draw(longest_side: int) -> Image.Image:
        drawn.append(len(done))
        return image

    encoder = VisionEncoder(bundle, threads=1, batch_pixels=1)
    pages = [page(number, render=draw) for number in range(1, 13)]
    good(encoder.encode_pages(pages, (1,), on_page=lambda: done.append(len(drawn))))
    assert len(drawn) == len(done) == 12
    # Two wait for each thread, one is taken, one begins the next batch.
    assert done[0] <= 5


def test_neighbours_in_a_batch_change_a_page_by_rounding_only(bundle: Path) -> None:
    images = pictures(["portrait", "tiny", "landscape"])
    pages = [page(number, image) for number, image in enumerate(images, 1)]
    alone, together = (
        good(VisionEncoder(bundle, threads=1, batch_pixels=most).encode_pages(pages, DEPTHS)) for most in (1, 1 << 30)
    )
    for one, other in zip(alone, together, strict=True):
        for depth in DEPTHS:
            np.testing.assert_allclose(one.vectors[depth], other.vectors[depth], atol=2e-5)
        np.testing.assert_array_equal(one.regions, other.regions)


def test_every_patch_has_its_place_on_the_page(encoder: VisionEncoder) -> None:
    (found,) = good(encoder.encode_pages([page(1, pictures(["landscape"])[0])], (1,)))
    left, top, right, bottom = found.regions.T
    assert ((left >= 0) & (left < right) & (right <= 1.0001) & (top >= 0) & (top < bottom) & (bottom <= 1.0001)).all()
    whole = (found.regions == [0, 0, 1, 1]).all(axis=1)
    # The prompt's tokens stand for the page; the patches tile it.
    area = ((right - left) * (bottom - top))[~whole].sum()
    assert whole.any() and area == pytest.approx(1, abs=1e-3)
    assert (found.reader, found.text) == ("image", "")
    assert set(found.seconds) == {"render", "transformer"}


def test_signals_are_those_of_the_window_and_leave_vectors_as_they_are(encoder: VisionEncoder) -> None:
    pages = [page(1, pictures(["portrait"])[0]), page(2, pictures(["tiny"])[0])]
    plain = good(encoder.encode_pages(pages, DEPTHS))
    asked = good(encoder.encode_pages(pages, DEPTHS, attention={1: Window(0, 0, 2), 2: Window(0, 1, 3)}))
    for one, other in zip(plain, asked, strict=True):
        assert one.signals == {} and set(other.signals) == {1, 2}
        for depth in DEPTHS:
            np.testing.assert_allclose(one.vectors[depth], other.vectors[depth], atol=1e-6)
            signals = other.signals[depth]
            count = len(other.vectors[depth])
            assert signals.centrality.shape == signals.in_degree.shape == signals.from_global.shape == (count,)
            assert signals.centrality.mean() == pytest.approx(1, abs=2e-3)
            # The prompt is no part of the picture.
            whole = (other.regions == [0, 0, 1, 1]).all(axis=1)
            assert (signals.centrality[whole] == 0).all() and (signals.centrality[~whole] > 0).all()


def test_what_the_bundle_lacks_is_refused_before_any_page_is_drawn(encoder: VisionEncoder) -> None:
    def never(longest_side: int) -> Image.Image:
        raise AssertionError("drawn")

    pages = [page(1, render=never)]
    with pytest.raises(BudgetError, match="exits at"):
        encoder.encode_pages(pages, (7,))
    with pytest.raises(CompressionError):
        encoder.encode_pages(pages, (1,), attention={1: Window(0, 1)})
    with pytest.raises(BudgetError):
        encoder.encode_query("who?", 7)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_query_must_say_something(encoder: VisionEncoder, text: str) -> None:
    with pytest.raises(QueryError, match="nothing to search for"):
        encoder.encode_query(text, 1)


def test_a_query_may_be_too_long(encoder: VisionEncoder) -> None:
    with pytest.raises(QueryError, match=r"tokens and the encoder takes 512"):
        encoder.encode_query("word " * 600, 1)


def test_query_vectors_have_unit_length_and_a_token_each(encoder: VisionEncoder) -> None:
    query = encoder.encode_query("How many customers?", 2)
    np.testing.assert_allclose(np.linalg.norm(query.vectors, axis=1), 1, atol=1e-6)
    assert query.vectors.shape == (len(query.tokens), exported.DIM)
    assert "".join(query.tokens) == "How many customers?"


def test_sessions_open_when_first_used_and_mapped_weights_compute_the_same(bundle: Path, tmp_path: Path) -> None:
    folder = exported.copy_of(FAMILY, tmp_path)
    mapped = VisionEncoder(folder, threads=1, map_weights=True)
    for name in ("page_1.onnx", "page_2.onnx", "query_2.onnx"):
        (folder / name).write_bytes(b"")
    plain = VisionEncoder(bundle, threads=1)
    np.testing.assert_allclose(mapped.encode_query("who?", 1).vectors, plain.encode_query("who?", 1).vectors, atol=1e-6)
    with pytest.raises(BundleError, match=r"query_2\.onnx"):
        mapped.encode_query("who?", 2)


def test_mapped_weights_are_not_copied(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    from budgetvdr.export.network import Constant, Network
    from budgetvdr.export.weights import WeightFile, externalised

    side, layers = 1024, 12
    names = [f"w{number}" for number in range(layers)]
    nodes = [
        helper.make_node("MatMul", ["x" if number == 0 else f"y{number - 1}", name], [f"y{number}"])
        for number, name in enumerate(names)
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", side])],
        [helper.make_tensor_value_info(f"y{layers - 1}", TensorProto.FLOAT, ["n", side])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    random = np.random.default_rng(0)
    constants = {name: Constant(random.standard_normal((side, side)).astype(np.float32) / 32) for name in names}
    weights = WeightFile(tmp_path / "weights.bin")
    proto = externalised(Network(model, constants), weights, lambda size: None)
    weights.close()
    onnx.save(proto, tmp_path / "large.onnx")
    grown = {mapped: grown_by(tmp_path / "large.onnx", f"y{layers - 1}", mapped=mapped) for mapped in (True, False)}
    # 48 MB of weights.
    assert grown[True] < 16e6 and grown[False] > 40e6


def grown_by(graph: Path, output: str, *, mapped: bool) -> int:
    """Bytes of memory that is no part of a file and that the system could not take back, after a run.

    In a process of its own, which has no freed memory to use again.
    """
    script = f"""
import numpy as np, psutil
from pathlib import Path
from budgetvdr.encoders.onnx import Sessions
def own():
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared
sessions = Sessions(Path({str(graph.parent)!r}), map_weights={mapped})
before = own()
sessions.run({graph.name!r}, {{"x": np.ones((1, 1024), np.float32)}}, [{output!r}])
print(own() - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(result.stdout)


def test_a_provider_that_is_not_there_is_refused(bundle: Path) -> None:
    with pytest.raises(ProviderError):
        VisionEncoder(bundle, providers=("ImaginaryExecutionProvider",))


def test_an_index_of_pictures_survives_a_page_that_cannot_be_read(bundle: Path, tmp_path: Path) -> None:
    images = pictures(["portrait", "landscape"])
    pages = [Page("a", 1, images[0]), Page("a", 2), Page("a", 3, images[1])]
    with Index.open(tmp_path / "index.bvdr", encoder=bundle, threads=1) as index:
        report = index.add_pages(pages)
        assert report.pages == 2
        (file,) = report.files
        assert [problem.page_num for problem in file.problems] == [2]
        assert file.readers == {"image": 2}
        hits = index.search("who?", budget="full")
        assert {hit.page_num for hit in hits} == {1, 3}
        found, white = hits[0].explain(), Image.new("RGB", (300, 300), "white")
        # The prompt's tokens stand for all of the page, and some of the query for nothing in it: parts are marked.
        assert "".join(match.token for match in found.matches) == "who?"
        marked = (np.asarray(found.overlay(white)) < 255).any(axis=2).mean()
        parts = [match for match in found.matches if match.token.isalnum() and match.region != (0, 0, 1, 1)]
        assert (marked > 0) == bool(parts) and marked < 0.9
