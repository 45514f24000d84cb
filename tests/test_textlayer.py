from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from reportlab.lib.pagesizes import letter
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from budgetvdr.pages import Words
from budgetvdr.pdf import PdfFile
from budgetvdr.textlayer import clean, judge, unsupported_script
from budgetvdr.textlayer.ink import Ink, is_blank
from budgetvdr.textlayer.words import insert_values, words_from_chars

SENTENCE = "the quarterly report lists every capital project above the threshold that the board has set"


def chars(*lines: str, step: float = 0.01, cut: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Code points, boxes and cut marks of lines set in a fixed pitch; `cut` marks hyphens that end a line."""
    codes, boxes = [], []
    for row, line in enumerate(lines):
        for column, letter_ in enumerate(line):
            codes.append(ord(letter_))
            boxes.append((0.1 + column * step, 0.1 + row * 0.03, 0.1 + (column + 1) * step, 0.12 + row * 0.03))
        if not cut or not line.endswith(cut):
            codes += [13, 10]
            boxes += [boxes[-1]] * 2
    array = np.array(codes, np.uint32)
    hyphens = array == ord(cut) if cut else np.zeros(len(array), np.bool_)
    return array, np.array(boxes, np.float32), hyphens


def joined(*lines: str, cut: str = "") -> str:
    return " ".join(words_from_chars(*chars(*lines, cut=cut)).texts)


def page(draw: object = None, *, width: int = 618, height: int = 800, paper: int = 255) -> Image.Image:
    picture = Image.new("L", (width, height), paper)
    if callable(draw):
        draw(ImageDraw.Draw(picture))
    return picture


def text_page(lines: int, *, ink: int = 0, paper: int = 255, size: int = 12) -> Image.Image:
    font = ImageFont.load_default(size)

    def draw(pen: ImageDraw.ImageDraw) -> None:
        for row in range(lines):
            pen.text((60, 60 + row * size * 1.6), SENTENCE, fill=ink, font=font)

    return page(draw, paper=paper)


def layer_of(lines: int, *, left: float = 60 / 618, size: int = 12, right: float = 0.9) -> Words:
    """Word boxes where `text_page` draws its words, about."""
    texts, boxes = [], []
    font = ImageFont.load_default(size)
    for row in range(lines):
        x = left * 618
        for word in SENTENCE.split():
            end = x + font.getlength(word)
            y = 60 + row * size * 1.6
            texts.append(word)
            boxes.append((x / 618, y / 800, end / 618, (y + size * 1.2) / 800))
            x = end + font.getlength(" ")
    assert boxes[-1][2] <= max(right, 1.2)
    return Words(tuple(texts), np.array(boxes, np.float32))


class TestClean:
    @pytest.mark.parametrize(
        ("raw", "expected"),
        [
            ("e\x1ecient \x1crm \x1dow", "efficient firm flow"),
            ("di\x0bers o\x0ece", "differs office"),
            ("\ufb01nal o\ufb03ce", "final office"),
            ("\x93quoted\x94 it\x92s", "\u201cquoted\u201d it\u2019s"),
            ("\x10quoted\x11 1990\x151995", "\u201cquoted\u201d 1990\u20131995"),
            ("soft\u00adware zero\u200bwidth\ufeff", "software zerowidth"),
            ("cafe\u0301", "caf\u00e9"),
            ("\uff26\uff55\uff4c\uff4c", "Full"),
            ("\U0001d400\U0001d401", "AB"),
            ("m\u00b2 \u00bd \u2122 2\u2076", "m\u00b2 \u00bd \u2122 2\u2076"),
            ("\uf0b7", "\u2022"),
            ("plain text, untouched", "plain text, untouched"),
        ],
    )
    def test_repairs(self, raw: str, expected: str) -> None:
        assert clean(raw) == expected

    def test_unknown_control_codes_become_the_replacement_character(self) -> None:
        assert clean("a\x01\x02b\x81") == "a\ufffd\ufffdb\ufffd"

    def test_private_use_stays_for_the_judge(self) -> None:
        assert clean("\ue123x") == "\ue123x"

    def test_white_space_is_kept(self) -> None:
        assert clean("a\tb\nc\u00e9 d") == "a\tb\nc\u00e9 d"


class TestWords:
    def test_splits_at_spaces_and_lines_with_the_box_of_each_word(self) -> None:
        words = words_from_chars(*chars("ab  cd", "efg"))
        assert words.texts == ("ab", "cd", "efg")
        np.testing.assert_allclose(words.boxes[1], (0.14, 0.1, 0.16, 0.12), atol=1e-6)
        np.testing.assert_allclose(words.boxes[2], (0.1, 0.13, 0.13, 0.15), atol=1e-6)

    def test_control_codes_are_letters_not_spaces(self) -> None:
        assert joined("e\x1ecient o\x1cer") == "efficient ofier"

    def test_joins_a_word_cut_at_a_line_end(self) -> None:
        assert joined("we re-", "quire it") == "we require it"
        assert joined("we re\x02", "quire it", cut="\x02") == "we require it"

    def test_keeps_the_hyphen_of_two_words_the_page_has_by_themselves(self) -> None:
        assert (
            joined("a network in use", "for in\x02", "network care", cut="\x02")
            == "a network in use for in-network care"
        )

    def test_the_whole_word_elsewhere_on_the_page_decides(self) -> None:
        assert joined("in to into", "in\x02", "to it", cut="\x02") == "in to into into it"

    def test_keeps_the_hyphen_before_capitals_digits_and_in_chains(self) -> None:
        assert joined("the post-", "War era") == "the post- War era"
        assert joined("state\x02", "of-the\x02", "art", cut="\x02") == "state-of-the-art"
        assert joined("Saint\x02", "Germain", cut="\x02") == "Saint-Germain"

    def test_second_parts_are_not_taken_for_words_of_the_page(self) -> None:
        assert joined("complex with complex\x02", "ities here", cut="\x02") == "complex with complexities here"
        assert joined("AB\x02", "STRACTION", cut="\x02") == "ABSTRACTION"

    def test_a_joined_word_has_the_box_of_its_longer_part(self) -> None:
        words = words_from_chars(*chars("ab\x02", "cdefg", cut="\x02"))
        assert words.texts == ("abcdefg",)
        np.testing.assert_allclose(words.boxes[0, :2], (0.1, 0.13), atol=1e-6)

    def test_a_hyphen_inside_a_line_joins_nothing(self) -> None:
        assert joined("one - two- three") == "one - two- three"

    def test_characters_drawn_twice_are_taken_once(self) -> None:
        codes, boxes, _ = chars("bold letters ll")
        shifted = boxes + np.float32(0.0008)
        words = words_from_chars(np.repeat(codes, 2), np.stack([boxes, shifted], axis=1).reshape(-1, 4))
        assert words.texts == ("bold", "letters", "ll")

    def test_letters_of_one_ligature_glyph_all_count(self) -> None:
        codes = np.array([ord(letter) for letter in "office office"], np.uint32)
        boxes = np.array([[0.1 + 0.02 * i, 0.1, 0.118 + 0.02 * i, 0.13] for i in range(len(codes))], np.float32)
        # PDFium gives the letters of a ligature the box of its glyph; the second word lies over the first.
        boxes[1:4] = [0.12, 0.1, 0.178, 0.13]
        boxes[7:] = boxes[:6] + np.float32(0.001)
        assert words_from_chars(codes[:6], boxes[:6]).texts == ("office",)
        assert words_from_chars(codes, boxes).texts == ("office",)

    def test_a_line_drawn_twice_is_taken_once(self) -> None:
        codes, boxes, _ = chars("bold line")
        words = words_from_chars(np.tile(codes, 2), np.concatenate([boxes, boxes + np.float32(0.0005)]))
        assert words.texts == ("bold", "line")

    def test_equal_words_at_different_places_stay(self) -> None:
        assert joined("no no no", "no no no") == "no no no no no no"

    def test_leaves_out_what_lies_outside_the_page_and_clips_what_sticks_out(self) -> None:
        codes, boxes, _ = chars("in", "out")
        boxes[:2, 0] -= 0.105
        boxes[4:, [1, 3]] += 1
        words = words_from_chars(codes, boxes)
        assert words.texts == ("in",)
        assert words.boxes.min() >= 0

    def test_broken_boxes_are_left_out(self) -> None:
        codes, boxes, _ = chars("good", "bad")
        boxes[6:] = np.nan
        assert words_from_chars(codes, boxes).texts == ("good",)

    def test_no_characters(self) -> None:
        assert len(words_from_chars(np.zeros(0, np.uint32), np.zeros((0, 4), np.float32))) == 0
        assert len(words_from_chars(*chars(" "))) == 0

    def test_surrogate_pairs_and_lone_surrogates(self) -> None:
        codes, boxes, _ = chars("xyz")
        codes[:3] = 0xD835, 0xDC00, 0xD800
        assert words_from_chars(codes, boxes).texts[0].startswith("A")

    def test_form_values_follow_the_word_before_their_field(self) -> None:
        words = words_from_chars(*chars("Name", "City", "Sign here"))
        values = insert_values(
            words, ["Ada Lovelace", "London"], np.array([(0.2, 0.1, 0.4, 0.12), (0.2, 0.13, 0.4, 0.15)], np.float32)
        )
        assert values.texts == ("Name", "Ada", "Lovelace", "City", "London", "Sign", "here")
        np.testing.assert_allclose(values.boxes[1], (0.2, 0.1, 0.4, 0.12))

    def test_form_values_on_a_page_without_words(self) -> None:
        empty = Words((), np.zeros((0, 4), np.float32))
        assert insert_values(empty, ["only this"], np.array([(0.1, 0.1, 0.4, 0.2)], np.float32)).texts == (
            "only",
            "this",
        )


class TestInk:
    @pytest.mark.parametrize(("ink", "paper"), [(0, 255), (255, 0), (90, 200), (230, 60)])
    def test_finds_words_dark_on_light_and_light_on_dark(self, ink: int, paper: int) -> None:
        found = Ink.of(text_page(20, ink=ink, paper=paper))
        layer = layer_of(20)
        assert found.supports(layer.boxes).mean() > 0.9
        inside, outside = found.covered(layer.boxes)
        assert inside > 0.1
        assert outside < 0.1 * inside

    def test_larger_pictures_are_reduced_first(self) -> None:
        small = text_page(20)
        large = small.resize((small.width * 3, small.height * 3))
        layer = layer_of(20)
        assert abs(Ink.of(large).covered(layer.boxes)[0] - Ink.of(small).covered(layer.boxes)[0]) < 0.05

    def test_rules_and_frames_are_no_text(self) -> None:
        def grid(pen: ImageDraw.ImageDraw) -> None:
            for at in range(40, 600, 40):
                pen.line([(at, 40), (at, 760)], fill=0)
                pen.line([(40, at), (580, at)], fill=0, width=2)

        assert not Ink.of(page(grid)).text.any()

    @pytest.mark.parametrize("size", [(1, 1), (1, 900), (3000, 2), (7, 7)])
    def test_pictures_smaller_than_a_cell(self, size: tuple[int, int]) -> None:
        picture = Image.new("RGB", size, "white")
        assert Ink.of(picture).covered(layer_of(1).boxes) == (0.0, 0.0)
        assert is_blank(picture)


class TestBlank:
    def test_white_page(self) -> None:
        assert is_blank(page())

    @pytest.mark.parametrize("deviation", [4, 8, 12, 20])
    def test_paper_noise(self, deviation: int) -> None:
        noise = np.random.default_rng(0).normal(230, deviation, (800, 618))
        assert is_blank(Image.fromarray(noise.clip(0, 255).astype(np.uint8)))

    def test_specks(self) -> None:
        rng = np.random.default_rng(1)

        def dust(pen: ImageDraw.ImageDraw) -> None:
            for x, y, size in zip(
                rng.integers(0, 618, 300), rng.integers(0, 800, 300), rng.integers(1, 4, 300), strict=True
            ):
                pen.ellipse([x, y, x + size, y + size], fill=60)

        assert is_blank(page(dust, paper=235))

    def test_dark_border_shadow_and_skew(self) -> None:
        paper = np.random.default_rng(2).normal(235, 5, (800, 618))
        paper[:, 20:70] -= np.linspace(110, 0, 50)
        paper[:14] = paper[:, :20] = paper[-8:] = 10
        picture = Image.fromarray(paper.clip(0, 255).astype(np.uint8))
        assert is_blank(picture)
        assert is_blank(picture.rotate(1.5, fillcolor=0, resample=Image.Resampling.BICUBIC))

    def test_text_showing_through_from_behind(self) -> None:
        assert is_blank(text_page(30, ink=215, paper=235))

    @pytest.mark.parametrize("word", ["Notes", "Appendix A", "This page intentionally left blank"])
    @pytest.mark.parametrize("deviation", [0, 8])
    def test_a_single_word_is_not_blank(self, word: str, deviation: int) -> None:
        noise = np.random.default_rng(3).normal(235, deviation, (800, 618)).clip(0, 255).astype(np.uint8)
        picture = Image.fromarray(noise)
        ImageDraw.Draw(picture).text((300, 60), word, fill=40, font=ImageFont.load_default(10))
        assert not is_blank(picture)

    def test_a_photograph_without_text_is_not_blank(self) -> None:
        rows, columns = np.mgrid[0:800, 0:618]
        assert not is_blank(Image.fromarray(((rows + columns) / 6).astype(np.uint8)))


class TestJudge:
    def test_no_layer(self) -> None:
        assert judge(None, page()).reason == "none"
        assert judge(Words((), np.zeros((0, 4), np.float32)), page()).reason == "none"

    def test_a_layer_on_its_ink_is_sound(self) -> None:
        layer = layer_of(20)
        verdict = judge(layer, text_page(20))
        assert verdict.sound
        assert verdict.words is layer
        assert verdict.notes == ()

    def test_a_footer_on_a_page_full_of_text_is_too_little(self) -> None:
        layer = layer_of(20)
        footer = Words(layer.texts[-6:], layer.boxes[-6:])
        assert judge(footer, text_page(20)).reason == "too_little"

    def test_a_sound_layer_beside_a_photograph_stays_sound(self) -> None:
        picture = text_page(20)
        texture = np.random.default_rng(4).normal(120, 50, (100, 140)).clip(0, 255).astype(np.uint8)
        picture.paste(Image.fromarray(texture).resize((500, 280), Image.Resampling.BICUBIC), (60, 480))
        assert judge(layer_of(20), picture).sound

    def test_words_over_empty_paper_are_misplaced(self) -> None:
        layer = layer_of(10)
        lower = Words(layer.texts, layer.boxes + np.array([0, 0.5, 0, 0.5], np.float32))
        assert judge(lower, text_page(10)).reason == "misplaced"

    def test_text_whose_font_is_missing_is_kept_and_noted(self) -> None:
        verdict = judge(layer_of(10), page())
        assert verdict.sound
        assert verdict.notes == ("picture_empty",)

    def test_private_use_text_is_rejected(self) -> None:
        layer = layer_of(20)
        coded = tuple("".join(chr(0xE000 + ord(letter_)) for letter_ in text) for text in layer.texts)
        assert judge(Words(coded, layer.boxes), text_page(20)).reason == "private_use"

    @pytest.mark.parametrize(("signs", "notes"), [(1, ()), (60, ("private_use",))])
    def test_some_private_use_characters_are_left_out_and_many_noted(self, signs: int, notes: tuple[str, ...]) -> None:
        layer = layer_of(20)
        texts = ("\ue001" * signs, layer.texts[1] + "\ue002", *layer.texts[2:])
        verdict = judge(Words(texts, layer.boxes), text_page(20))
        assert verdict.sound
        assert verdict.notes == notes
        assert verdict.words.texts == layer.texts[1:]
        np.testing.assert_array_equal(verdict.words.boxes, layer.boxes[1:])

    def test_ocr_of_handwriting_is_garbled(self) -> None:
        layer = layer_of(20)
        noise = ("WI.GL,41.44-gta*Air.", ".A.:01.6e.e.", "0-e-el-k-", "ag,ae-1x", "ck~...thaA-aAs") * 60
        assert judge(Words(noise[: len(layer)], layer.boxes), text_page(20)).reason == "garbled"

    def test_program_text_part_numbers_and_addresses_are_not_garbled(self) -> None:
        layer = layer_of(20)
        mixed = (
            *SENTENCE.split(),
            "fact_1",
            "A-403",
            "https://example.org/a/b?c=1&d=2",
            'Verify("x")',
            "1,526.30",
        ) * 20
        assert judge(Words(mixed[: len(layer)], layer.boxes), text_page(20)).sound

    def test_doubled_letters_that_cannot_be_repaired(self) -> None:
        layer = layer_of(20)
        doubled = tuple("".join(letter_ * 2 for letter_ in text) for text in layer.texts)
        assert judge(Words(doubled, layer.boxes), text_page(20)).reason == "doubled"

    def test_hidden_wrong_layer_over_a_scanned_picture(self) -> None:
        """A scan of a text page with somebody's metadata written invisibly into its corner."""
        scan = io.BytesIO()
        text_page(24).resize((1236, 1600)).save(scan, "PNG")
        stream = io.BytesIO()
        canvas = Canvas(stream, pagesize=letter)
        canvas.drawImage(ImageReader(scan), 0, 0, *letter)
        hidden = canvas.beginText(10, 785)
        hidden.setFont("Helvetica", 6)
        hidden.setTextRenderMode(3)
        for row in range(20):
            hidden.textLine(f"REGISTRANT NAME= Office {row} DOCUMENT TYPE= Amendment STATUS= N/A")
        canvas.drawText(hidden)
        canvas.save()
        pdf = PdfFile(stream.getvalue())
        verdict = judge(pdf.words(1), pdf.render(1, 800))
        assert verdict.reason in ("misplaced", "too_little")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain English", False),
        ("na\u00efve \u0141\u00f3d\u017a \u00c6thelfl\u00e6d caf\u00e9s", False),
        ("the angle \u03b8 and \u0394x of a long formula in English text", False),
        ("12,345.67 %", False),
        ("", False),
        ("\u4e1c\u5317\u7535\u6c14\u53d1\u5c55 2018 A", True),
        ("\u0e40\u0e23\u0e35\u0e22\u0e19\u0e40\u0e25\u0e02", True),
        ("\u0634\u0631\u06a9\u062a \u0628\u0648\u0631\u0633", True),
        ("\u041f\u0440\u0438\u0432\u0435\u0442 hello", True),
    ],
)
def test_unsupported_script(text: str, expected: bool) -> None:
    assert unsupported_script(text) is expected
