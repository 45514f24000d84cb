"""Picture of a page -> its words in reading order, by the models in the wheel of `rapidocr` (PP-OCR, ONNX).

Nearly all of the time goes into recognition, by the pixel: a line is read alone, so that it is not padded to the
width of a longer one, and at first a little narrower than it is. Lines are found at the lowest resolution that
shows them, which follows from the height of the letters, and cut from the whole picture along their own slope, so that
a page askew, sideways or upside down needs no turning.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from budgetvdr.encoders.letters import letter_heights
from budgetvdr.encoders.lines import Line, Points, level_boxes, sides, split, words_of
from budgetvdr.encoders.reading_order import reading_order
from budgetvdr.errors import MissingExtraError
from budgetvdr.pages import Render, Words
from budgetvdr.sources.pictures import upright_rgb

LONGEST_SIDE = 1650
"""Pixels of the longer side to read a page at: 150 dpi for a letter page. Enough where letters are 10 points high."""
LARGEST_SIDE = 4000
"""Pixels of the longer side of the largest picture that is read; larger ones are reduced."""

# Pixels. Recognition fails on small letters below the first; detection needs no more than the second (75 dpi for
# print of 11 points) and works on sides that are multiples of the third.
_READABLE, _DETECTABLE, _STEP = 8.0, 6.0, 32
_FEW_LETTERS, _PAGE_OF_LETTERS = 30, 600
_DETECTION_SIDES, _DETECTION_DEFAULT, _DETECTION_AREA = (640, 2560), 960, 3_000_000
# Detection takes 0.25 GB a million pixels while it runs: pages larger than this are searched one at a time.
_LARGE_AREA = 1_500_000
_LINE_HEIGHT, _MAX_LINE_WIDTH = 48, 3200
# A line is read narrower than it is, and again as it is where the first reading is not sure. At 0.85 ordinary pages
# take 15 % less time for 0.001 of the words; lines that are enlarged for reading by more than 1.6 bear 0.9.
_NARROW, _NARROW_SMALL, _SMALL_LINE, _SURE = 0.85, 0.9, 30, 0.95
# Of a line. Of the lines of a good scan 1 % are below, of handwriting none, of scripts the model cannot read 80 %.
_MIN_CONFIDENCE = 0.7
# Below this, the lines that were tried are read the other way round too.
_RIGHT_WAY_UP, _PROBES = 0.85, 5


class OcrReader:
    """Reads pictures of pages. One instance serves any number of threads; its models are opened by the first reading.

    threads: threads inside one operator of the models. 1, the default, suits callers that read pages side by side.

    Raises MissingExtraError where rapidocr is not installed or has no models in it.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self._models = _model_files()
        self._threads = threads
        self._lock = threading.Lock()
        self._large = threading.Lock()
        self._opened: tuple[Any, Any] | None = None

    def read(self, picture: Image.Image) -> Words:
        """Words in reading order, boxes in fractions of the picture.

        picture: any mode and size. 150 dpi suits ordinary print, see LONGEST_SIDE and `picture`.

        Pages askew, sideways and upside down are read too. Lines the model is not sure of are left out. Text without
        spaces, as Chinese, comes as one word a line.

        Raises SourceError where the picture has no pixels or cannot be decoded.
        """
        rgb = upright_rgb(picture)
        if max(rgb.size) > LARGEST_SIDE:
            rgb.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.BOX)
        quads = self._detect(rgb)
        if not len(quads):
            return Words((), np.zeros((0, 4), np.float32))
        lines, order = self._read_lines(rgb, quads)
        return words_of([lines[index] for index in order if lines[index].confidence >= _MIN_CONFIDENCE], rgb.size)

    def picture(self, render: Render) -> Image.Image:
        """Draws a page large enough to be read: at LONGEST_SIDE, or up to LARGEST_SIDE where its letters are small."""
        picture = render(LONGEST_SIDE)
        heights = letter_heights(np.asarray(picture.convert("L")))
        # A photograph has some hundred small shapes, too.
        small = len(heights) >= _PAGE_OF_LETTERS and np.percentile(heights, 25) < _READABLE
        return render(LARGEST_SIDE) if small else picture

    def _detect(self, rgb: Image.Image) -> Points:
        """(n, 4, 2) corners of lines in pixels, clockwise from the top left."""
        size = _detection_size(rgb)
        # rapidocr takes arrays as BGR.
        small = np.asarray(rgb.resize(size, Image.Resampling.BOX))[:, :, ::-1]
        with self._large if size[0] * size[1] > _LARGE_AREA else nullcontext():
            found = self._engines[0](np.ascontiguousarray(small)).boxes
        if found is None:
            return np.zeros((0, 4, 2), np.float32)
        return np.asarray(found, np.float32) * np.array([rgb.width / size[0], rgb.height / size[1]], np.float32)

    def _read_lines(self, rgb: Image.Image, quads: Points) -> tuple[list[Line], Sequence[int]]:
        """Every line as read, and the order of them."""
        width, height = sides(quads)
        # Longer than a letter, so that a lone "1" is not taken for a line that runs downwards.
        shortest = 2.5 * np.median(np.minimum(width, height))
        wide, tall = width > np.maximum(1.5 * height, shortest), height > np.maximum(1.5 * width, shortest)
        sideways = bool(height[tall].sum() > width[wide].sum())
        along, across = (tall, wide) if sideways else (wide, tall)
        if not along.any():
            along = ~across

        @cache
        def line(index: int, turn: int) -> Line:
            return self._recognise(rgb, np.roll(quads[index], turn, axis=0))

        longest = np.argsort(-np.maximum(width, height) * along)[: min(_PROBES, int(along.sum()))]
        page_turn = _best_turn(line, longest.tolist(), (1, 3) if sideways else (0, 2))
        lines = []
        for index in range(len(quads)):
            turn = page_turn
            if across[index]:
                turn = _best_turn(line, [index], ((page_turn + 1) % 4, (page_turn + 3) % 4))
            lines.append(line(index, turn))
        return lines, reading_order(level_boxes(lines, along)).tolist()

    def _recognise(self, rgb: Image.Image, corners: Points) -> Line:
        """Reads one line, from its first corner towards its second."""
        width, height = (max(1, round(float(side))) for side in sides(corners))
        # Pillow wants the corners of the source anticlockwise.
        source = corners[[0, 3, 2, 1]].ravel().tolist()
        crop = rgb.transform((width, height), Image.Transform.QUAD, source, Image.Resampling.BICUBIC)
        full = min(_MAX_LINE_WIDTH, max(_LINE_HEIGHT, round(_LINE_HEIGHT * width / height)))
        share = _NARROW if height >= _SMALL_LINE else _NARROW_SMALL
        line = self._recognise_at(crop, round(share * full), corners)
        if line.confidence < _SURE:
            line = max(line, self._recognise_at(crop, full, corners), key=lambda read: read.confidence)
        return line

    def _recognise_at(self, crop: Image.Image, width: int, corners: Points) -> Line:
        resized = np.asarray(crop.resize((width, _LINE_HEIGHT), Image.Resampling.BICUBIC))[:, :, ::-1]
        found = self._engines[1](np.ascontiguousarray(resized))
        info = found.word_results[0]
        columns = np.array([column for word in info.word_cols for column in word], np.float32)
        texts, spans = split(found.txts[0], columns, info.confs, info.line_txt_len)
        return Line(corners, texts, spans, float(found.scores[0]))

    @property
    def _engines(self) -> tuple[Any, Any]:
        with self._lock:
            if self._opened is None:
                self._opened = _open(*self._models, self._threads)
            return self._opened


def _model_files() -> tuple[Path, Path]:
    """Detection and recognition model inside the installed rapidocr, without importing it."""
    for module, extra in (("rapidocr", "ocr"), ("cv2", "ocr"), ("onnxruntime", "cpu")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(
                f'reading pictures needs {module}, which is not installed: pip install "budgetvdr[{extra}]"'
            )
    spec = importlib.util.find_spec("rapidocr")
    folders = [Path(folder) / "models" for folder in (spec and spec.submodule_search_locations) or []]
    found = [[file for folder in folders for file in folder.glob(f"*_{role}_*.onnx")] for role in ("det", "rec")]
    if not all(found):
        raise MissingExtraError(
            "reading pictures needs the models in rapidocr: expected *_det_*.onnx and *_rec_*.onnx in "
            f"{', '.join(map(str, folders))}, where 3.10.0 has them: pip install --force-reinstall rapidocr==3.10"
        )
    return found[0][0], found[1][0]


def _open(detection: Path, recognition: Path, threads: int) -> tuple[Any, Any]:
    """A rapidocr that only finds lines, and one that only reads a line."""
    from rapidocr import RapidOCR  # noqa: PLC0415  (an extra, and slow to import)

    common = {
        # rapidocr writes to a logger of its own with a handler for the console. What goes wrong is raised.
        "Global.log_level": "critical",
        "Global.use_cls": False,
        "Global.use_preprocess_img": False,
        "Global.use_vertical_padding": False,
        # One thread has no pool whose idle threads could spin.
        "EngineConfig.onnxruntime.intra_op_num_threads": threads,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    finds = {
        "Global.use_rec": False,
        # With a path, rapidocr never looks for a download.
        "Det.model_path": str(detection),
        # Pictures come at the size they are wanted at.
        "Det.limit_type": "max",
        "Det.limit_side_len": LARGEST_SIDE,
    }
    reads = {
        "Global.use_det": False,
        "Global.return_word_box": True,
        "Rec.model_path": str(recognition),
        "Rec.rec_batch_num": 1,
        # 2 % faster. Detection would keep the memory of its largest picture.
        "EngineConfig.onnxruntime.enable_cpu_mem_arena": True,
        # The least width a line is padded to.
        "Rec.rec_img_shape": [3, _LINE_HEIGHT, _LINE_HEIGHT],
    }
    return RapidOCR(params={**common, **finds}), RapidOCR(params={**common, **reads})


def _detection_size(rgb: Image.Image) -> tuple[int, int]:
    """(width, height) at which letters are just high enough to be found."""
    heights = letter_heights(np.asarray(rgb.convert("L")))
    longest = max(rgb.size)
    side: float = _DETECTION_DEFAULT
    if len(heights) >= _FEW_LETTERS:
        side = longest * min(1.0, _DETECTABLE / float(np.percentile(heights, 25)))
    side = float(np.clip(side, *_DETECTION_SIDES))
    scale = min(side / longest, (_DETECTION_AREA / (rgb.width * rgb.height)) ** 0.5)
    width, height = (max(_STEP, round(length * scale / _STEP) * _STEP) for length in rgb.size)
    return width, height


def _best_turn(line: Callable[[int, int], Line], indices: Sequence[int], turns: tuple[int, int]) -> int:
    """The turn, in quarters, by which these lines read better; the first one where it reads well."""
    sure = [float(np.mean([line(index, turns[0]).confidence for index in indices]))]
    if sure[0] >= _RIGHT_WAY_UP:
        return turns[0]
    sure.append(float(np.mean([line(index, turns[1]).confidence for index in indices])))
    return turns[int(np.argmax(sure))]
