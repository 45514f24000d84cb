"""What the reader tells of its attention, against the plain attention of the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tiny_bert
from test_compress_calibration import strip_attention
from test_reader import encoded, page

from budgetvdr.bundle import Window
from budgetvdr.compress.propagation import in_degree, layer_support
from budgetvdr.encoders import CalibratedEncoder
from budgetvdr.encoders.attention import Ask
from budgetvdr.encoders.reader import ReaderEncoder
from budgetvdr.errors import CompressionError, PageError
from budgetvdr.pages import EncodedPage, Page

TEXT = "the board signs off all capital spending above a limit. fish swim in cold water of page 7. "
WINDOW = 254


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reader(source: Path, tmp_path_factory: pytest.TempPathFactory) -> ReaderEncoder:
    bundle = tiny_bert.write_bundle(tmp_path_factory.mktemp("bundle"), source, precision="float32")
    return ReaderEncoder(bundle, threads=2)


@pytest.fixture(scope="module")
def without_starts(source: Path, tmp_path_factory: pytest.TempPathFactory) -> ReaderEncoder:
    """A bundle whose graphs tell everything of the layers they look at, and cannot be asked for a part of it."""
    folder = tiny_bert.write_bundle(tmp_path_factory.mktemp("older"), source, precision="float32")
    for path in folder.glob("depth_*.onnx"):
        model = onnx.load(path, load_external_data=False)
        _select_by_layers(model.graph)
        for values in (model.graph.input, model.graph.initializer):
            (starts,) = (value for value in values if value.name == "starts")
            values.remove(starts)
        path.write_bytes(model.SerializeToString())
    return ReaderEncoder(folder, threads=2)


def _select_by_layers(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.input[:] = ["layers" if name == "starts" else name for name in node.input]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _select_by_layers(attribute.g)


def attention_by_window(reader: ReaderEncoder, source: Path, text: str) -> list[list[npt.NDArray[np.float32]]]:
    """For every window of the page each layer's attention (heads, n + 2, n + 2), marks of start and end included."""
    ids = np.array(reader._pieces.page(page(1, text).words, 10_000).ids)  # type: ignore[arg-type]
    parts = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]
    return [tiny_bert.attention(source, reader._pieces.window(part)[0]) for part in parts]


@pytest.mark.parametrize("repeats", [1, 12, 40])
@pytest.mark.parametrize("bundle", ["reader", "without_starts"])
def test_signals_are_those_of_the_attention(
    request: pytest.FixtureRequest, source: Path, bundle: str, repeats: int
) -> None:
    reader: ReaderEncoder = request.getfixturevalue(bundle)
    windows = {3: Window(1, 2, 4), 2: Window(0, 0, 2), 1: Window(0, 0, 1)}
    text = TEXT * repeats
    (result,) = encoded(reader.encode_pages([page(1, text)], (1, 2, 3), attention=windows))
    parts = attention_by_window(reader, source, text)
    assert len(parts) == -(-len(result.regions) // WINDOW)
    for depth, window in windows.items():
        among = [[layer[:, 1:-1, 1:-1] for layer in part[window.first : window.last + 1]] for part in parts]
        # Tokens of a window share n / N of the page; in units of 1 / N that is n times their share of the window.
        support = [[layer_support(layer, window.steps)[-1] for layer in part] for part in among]
        sizes = [part[0].shape[-1] for part in among]
        layers = [
            np.concatenate([size * part[layer] for size, part in zip(sizes, support, strict=True)])
            for layer in range(len(window))
        ]
        centrality = np.mean([layer / layer.sum() for layer in layers], axis=0) * len(result.regions)
        degrees = np.concatenate([len(p[0][0]) * np.mean([in_degree(layer) for layer in p], axis=0) for p in among])
        # Of the last layer executed, wherever the window lies.
        last = [part[depth - 1] for part in parts]
        starts = np.concatenate([(layer.shape[-1] - 2) * layer[:, 0, 1:-1].mean(axis=0) for layer in last])
        found = result.signals[depth]
        np.testing.assert_allclose(found.centrality, centrality, rtol=3e-3)
        np.testing.assert_allclose(found.in_degree, degrees, rtol=3e-3)
        np.testing.assert_allclose(found.from_global, starts, rtol=3e-3, atol=1e-5)
        assert found.centrality.mean() == pytest.approx(1, abs=1e-3)


def test_asking_changes_no_vector_and_not_asking_gives_no_signals(reader: ReaderEncoder) -> None:
    (plain,) = encoded(reader.encode_pages([page(1, TEXT * 30)], (1, 3)))
    (empty,) = encoded(reader.encode_pages([page(1, TEXT * 30)], (1, 3), attention={}))
    (asked,) = encoded(reader.encode_pages([page(1, TEXT * 30)], (1, 3), attention={3: Window(0, 2, 6)}))
    assert plain.signals == empty.signals == {} and set(asked.signals) == {3}
    for depth in (1, 3):
        np.testing.assert_array_equal(plain.vectors[depth], asked.vectors[depth])


def test_signals_do_not_depend_on_what_else_is_asked(reader: ReaderEncoder) -> None:
    pages = [page(1, TEXT * 20), page(2, TEXT)]
    every = {1: Window(0, 0, 3), 2: Window(1, 1, 7), 3: Window(0, 1, 2)}
    together = encoded(reader.encode_pages(pages, (1, 2, 3), attention=every))
    for depth, window in every.items():
        for number, one in enumerate(pages):
            (alone,) = encoded(reader.encode_pages([one], (depth,), attention={depth: window}))
            for name in ("centrality", "in_degree", "from_global"):
                expected = getattr(alone.signals[depth], name)
                np.testing.assert_array_equal(getattr(together[number].signals[depth], name), expected)


def test_a_page_without_tokens_has_signals_without_tokens(reader: ReaderEncoder) -> None:
    (result,) = encoded(reader.encode_pages([page(1, "")], (3,), attention={3: Window(0, 1, 2)}))
    assert result.signals[3].centrality.shape == result.signals[3].in_degree.shape == (0,)


def test_damaged_attention_is_the_error_of_its_page(reader: ReaderEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = reader._sessions.run

    def damaged(graph: str, inputs: dict[str, npt.NDArray[np.int64]], outputs: list[str]) -> list[np.ndarray]:
        found = real(graph, inputs, outputs)
        if inputs["ids"].shape[1] > 100 and "support" in outputs:
            found[outputs.index("support")] -= 1
        return found

    monkeypatch.setattr(reader._sessions, "run", damaged)
    pages = [page(1, TEXT * 20), page(2, TEXT)]
    bad, good = reader.encode_pages(pages, (3,), attention={3: Window(0, 1, 2)})
    assert isinstance(bad, PageError) and "support to be finite and not negative" in str(bad)
    assert isinstance(good, EncodedPage)


@pytest.mark.parametrize("attention", [{3: Window(1, 3, 2)}, {1: Window(0, 1, 1)}, {2: Window(0, 0, 1)}])
def test_windows_beyond_the_layers_executed_are_refused(reader: ReaderEncoder, attention: dict[int, Window]) -> None:
    with pytest.raises(CompressionError, match=r"expected one of the depths encoded, \[1, 3\]"):
        reader.encode_pages([], (1, 3), attention=attention)


def test_a_bundle_without_attention_says_so_before_any_page_is_read(source: Path, tmp_path: Path) -> None:
    bundle = tiny_bert.write_bundle(tmp_path / "bundle", source)
    strip_attention(bundle)
    encoder = ReaderEncoder(bundle)
    with pytest.raises(CompressionError, match=r"tiny .int8. tells nothing of its attention"):
        encoder.encode_pages([Page("doc", 1)], (2,), attention={2: Window(0, 1, 2)})
    with pytest.raises(CompressionError, match=r"tiny .int8. tells nothing of its attention"):
        encoder.encode_support(page(1, TEXT), 3)
    assert encoder.encode_query("fish", 1).vectors.shape == (1, tiny_bert.HIDDEN)
    (result,) = encoded(encoder.encode_pages([page(1, TEXT)], (2,)))
    assert len(result.vectors[2])


@pytest.mark.parametrize("repeats", [1, 20])
def test_support_of_every_layer_and_step(reader: ReaderEncoder, source: Path, repeats: int) -> None:
    assert isinstance(reader, CalibratedEncoder)
    text = TEXT * repeats
    found = reader.encode_support(page(1, text), 5)
    (plain,) = encoded(reader.encode_pages([page(1, text)], (1, 2, 3)))
    for depth in (1, 2, 3):
        np.testing.assert_array_equal(found.vectors[depth], plain.vectors[depth])
    count = len(plain.regions)
    parts = attention_by_window(reader, source, text)
    for layer in range(3):
        expected = [layer_support(part[layer][:, 1:-1, 1:-1], 5) for part in parts]
        joined = np.concatenate([part * (part.shape[1] / count) for part in expected], axis=1)
        np.testing.assert_allclose(found.support[layer], joined, rtol=2e-3, atol=1e-7)
    assert reader.encode_support(page(1, ""), 5).support.shape == (3, 5, 0)


def test_layers_that_several_windows_hold_are_asked_for_once() -> None:
    ask = Ask.of({6: Window(2, 4, 3), 4: Window(3, 3, 7), 2: Window(0, 0, 1)}, (2, 4, 6))
    # The last layer of each exit comes on top, for what the global token pays.
    assert ask.layers == ask.starts == (0, 1, 2, 3, 4, 5) and ask.steps == 7
    assert ask.inputs(6).keys() == {"layers", "steps"} and ask.inputs(6)["layers"].all()
    support = np.arange(6 * 7 * 2, dtype=np.float32).reshape(6, 7, 2)
    flat = np.arange(12, dtype=np.float32).reshape(6, 2)
    answer = ask.answer([support, flat, flat + 100])
    np.testing.assert_array_equal(answer[6].support, support[2:5, 2])
    np.testing.assert_array_equal(answer[4].support, support[3:4, 6])
    np.testing.assert_array_equal(answer[2].in_degree, flat[:1])
    np.testing.assert_array_equal(answer[4].from_global, flat[3:4] + 100)
    np.testing.assert_array_equal(answer[2].from_global, flat[1:2] + 100)
    apart = Ask.of({6: Window(2, 4, 3), 4: Window(2, 3, 7)}, (2, 4, 6), apart=True)
    assert (apart.layers, apart.starts) == ((2, 3, 4), (3, 5))
    inputs = apart.inputs(6)
    assert inputs["layers"].tolist() == [False, False, True, True, True, False] and inputs["steps"] == 7
    assert inputs["starts"].tolist() == [False, False, False, True, False, True]
    answer = apart.answer([support[:3], flat[:3], flat[:2] + 100])
    np.testing.assert_array_equal(answer[4].support, support[:2, 6])
    np.testing.assert_array_equal(answer[4].from_global, flat[:1] + 100)
    np.testing.assert_array_equal(answer[6].from_global, flat[1:2] + 100)
    nothing = Ask.of({}, (2,))
    assert nothing.inputs(2) == {} and nothing.outputs == ()
