"""The sample scan: six typewritten sheets, drawn, rendered to pictures and worn down as a scanner would.

The finished PDF holds pictures only. Each sheet is drawn with the standard PDF fonts and rendered at 150 dpi; skew,
paper tone, shadow, blur and noise come from a generator seeded by the page number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pypdfium2 as pdfium
from layout import COMPANY, HEIGHT, WIDTH
from PIL import Image, ImageFilter
from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas

DPI = 150
JPEG_QUALITY = 42
SKEWS = (0.9, -0.6, 1.7, -1.2, 0.6, 1.4)  # degrees, by page
TYPE_SIZE, LINE = 10.5, 15.2
LEFT, TOP = 24 * mm, HEIGHT - 28 * mm
COLUMNS = 74  # characters of Courier between the margins

Grey = npt.NDArray[np.float64]
"""(height, width) brightness, 0 black to 255 white."""

MINUTES_1 = """\
MINUTES                                                     No. 5/2031

of the meeting of the works committee
on Wednesday, 14 May 2031, 14:00 to 15:50, house B, room 204

Present: B. Orrell (chair), I. Karrenbeck, T. Dovetree, M. Anselund,
         P. Quist (minutes)
Excused: S. Halmoor


1. Minutes of the last meeting

The minutes of 9 April are accepted with one correction: the paint for
the bicycle shed is green, not grey.

2. Roof of hall 3

Ms Karrenbeck reports. Rain comes in above the winding machines. Three
offers were opened on 7 May:

     Brundle Roofing            EUR 91,750
     Vanterpool and Sons        EUR 86,400
     Oststeg Carpenters         EUR 99,120

DECISION: The order goes to Vanterpool and Sons. Work begins on 7 July
and takes three weeks. The winding machines move to hall 1 meanwhile.
Four in favour, none against, one abstention.

3. Noise at the test pumps

Measured on 29 April at the fence: 58 decibels by day, 49 by night. The
permit allows 45 by night. Mr Dovetree will have the pumps run between
06:00 and 22:00 only, until the new housing is fitted in September.
"""

MINUTES_2 = """\
Minutes of the works committee, 14 May 2031                     page 2


4. Canteen

From 2 June the canteen opens at 11:15 instead of 11:45, because the
early shift asks for it. The price of the daily dish rises from EUR 4.80
to EUR 5.20. The soup stays at EUR 2.50.

5. Car park

Twelve more charging points are wanted. The grid operator allows eight.
DECISION: Eight points along the flume, EUR 31,600 from the reserve. The
first two places beside the gate are kept free for the midwife and for
visitors in wheelchairs.

6. Any other business

  - A swarm of bees lives in the wall of house A. Mr Anselund knows a
    beekeeper and will call her.
  - The lost umbrella of the auditor was found in the climate chamber.
  - The summer party is on Friday, 18 July. Rain plan: hall 2.

7. Next meeting

Wednesday, 11 June 2031, 14:00, at the laboratory in Hallenbruck. The
bus leaves the gatehouse at 13:10.


For the minutes:                       Seen:



P. Quist                               B. Orrell
"""

DELIVERY = """\
                                                  Vanterpool and Sons
                                                  Sawmill Lane 8
                                                  Oststeg

DELIVERY NOTE                                     No. DN-20817

To:    Marlowick Instruments, hall 3              Date: 3 July 2031
Order: MI-4471 of 20 May 2031                     Driver: R. Tammsen


Item  Description                             Quantity      Weight kg
----------------------------------------------------------------------
  1   Roof sheet, aluminium, 6.20 m              148          2,146
  2   Insulation board, wood fibre, 120 mm       410          3,690
  3   Ridge cap, 2.0 m                            22             66
  4   Skylight, double glazed, 1.2 x 2.4 m         6            318
  5   Screws, stainless, box of 500               14             91
  6   Sealing tape, roll of 15 m                  40             26
----------------------------------------------------------------------
      Total                                                   6,337

Eleven pallets, returnable. Unloaded with the customer's fork lift
between 07:20 and 09:05.

Remarks on receipt:

      One skylight (item 4) has a cracked pane. Replacement promised
      for 10 July. Two rolls of sealing tape missing.


Goods received, except as remarked above:


P. Quist, 3 July 2031
"""

CONTRACT_1 = """\
                         SERVICE CONTRACT

                         No. SC-2031-118


between     Marlowick Instruments, Oststeg            ("Marlowick")
and         Ferrow Water Board, Weir House, Ferrow    ("the Board")


1. Subject

Marlowick keeps the Board's nineteen river gauges and two rain stations
on the Ferrow and its side streams in working order. Annex A lists them
with their places and serial numbers.

2. Service

Each gauge is visited twice a year, in March and in September, cleaned
and compared with a staff reading. A difference of more than 10 mm is
corrected on the spot.

3. Faults

Marlowick begins repair within eight working hours of a report. While a
flood warning is in force, within three hours, also by night and on
holidays. If this is missed, the fee of that month is reduced by 15 per
cent for each full day of delay.

4. Fee

The Board pays EUR 2,350 a month, in advance, by the fifth working day.
Spare parts up to EUR 150 a piece are included. The fee follows the
index of wages in the metal trade, once a year on 1 January.
"""

CONTRACT_2 = """\
Service contract SC-2031-118                                    page 2


5. Data

The readings belong to the Board. Marlowick may use them, without names
of places, to improve its forecasts. The Board may end this permission
at any time with a letter of one line.

6. Liability

Marlowick is liable without limit for intent and for harm to persons.
For slight negligence its liability ends at EUR 180,000 a year. Marlowick
does not owe a correct forecast, only a careful one.

7. Term and notice

The contract begins on 1 August 2031 and runs for 48 months. It is then
renewed by a year at a time unless one side gives notice four months
before the end. If the Board misses two monthly fees, Marlowick may end
the contract at once.

8. Court

Disputes go to mediation first. If that fails within sixty days, the
court in Hallenbruck decides.

Ferrow, 24 June 2031                   Oststeg, 26 June 2031



Adela Brightmoor                       Henrike Solbrandt
Chair of the Board                     Managing Director
"""

ANNEX = """\
Annex A to service contract SC-2031-118

Gauges and stations, northern section


No.  Place                        Type        Serial number  Built
----------------------------------------------------------------------
 1   Ferrow, Weir House           radar       MR-70412       2029
 2   Ferrow, Tannery Bridge       float       MF-21187       2014
 3   Upper Lyde, mill             pressure    MP-33560       2022
 4   Lyde Ford                    radar       MR-70455       2029
 5   Stone Acre, culvert          ultrasonic  MU-15022       2019
 6   Sallow Brook, railway        float       MF-21203       2015
 7   Heron Meadow                 pressure    MP-33618       2023
 8   Old Lock, upper gate         radar       MR-70530       2030
 9   Old Lock, lower gate         radar       MR-70531       2030
10   Cobble Bridge                float       MF-20954       2011
R1   Weir House, rain station     weighing    MW-08841       2027


The float gauges no. 2, 6 and 10 are replaced by radar gauges before
31 October 2032, at the cost of the Board: EUR 6,900 each, fitted.

Keys: gauge cabinets no. 1 to 9 open with key F-3. Cobble Bridge has its
own padlock; the key hangs in the office of the lock keeper.
"""


def _signature(canvas: Canvas, x: float, y: float, swings: Sequence[float]) -> None:
    """A quick name in ink: one stroke of connected loops."""
    path = canvas.beginPath()
    path.moveTo(x, y)
    for number, swing in enumerate(swings):
        left = x + number * 11
        path.curveTo(left + 2, y + swing, left + 9, y + swing * 0.8, left + 7, y - 2)
        path.curveTo(left + 6, y - swing * 0.4, left + 10, y - 3, left + 11, y + (number % 2) * 2)
    canvas.setLineWidth(1.3)
    canvas.drawPath(path, stroke=1, fill=0)


def _above(text: str, name: str) -> float:
    """Height of the blank line above the typed name."""
    row = next(row for row, line in enumerate(text.splitlines()) if line.startswith(name))
    return float(TOP - (row - 0.9) * LINE)


def _stamp(canvas: Canvas, x: float, y: float, angle: float, lines: Sequence[str]) -> None:
    canvas.saveState()
    canvas.translate(x, y)
    canvas.rotate(angle)
    canvas.setStrokeGray(0.3)
    canvas.setFillGray(0.3)
    canvas.setLineWidth(2)
    canvas.roundRect(0, 0, 46 * mm, 8 + 15 * len(lines), 4)
    canvas.setFont("Helvetica-Bold", 12)
    for row, text in enumerate(reversed(lines)):
        canvas.drawCentredString(23 * mm, 9 + 15 * row, text)
    canvas.restoreState()


def _sign_minutes(canvas: Canvas) -> None:
    y = _above(MINUTES_2, "P. Quist")
    _signature(canvas, LEFT + 4, y, (18, 9, 12, 7, 10))
    _signature(canvas, LEFT + 250, y, (22, 6, 8, 14))


def _stamp_delivery(canvas: Canvas) -> None:
    _signature(canvas, LEFT + 4, _above(DELIVERY, "P. Quist"), (18, 9, 12, 7, 10))
    _stamp(canvas, 130 * mm, 48 * mm, 9, ("RECEIVED", "03 JUL 2031", "STORES HALL 3"))


def _sign_contract(canvas: Canvas) -> None:
    y = _above(CONTRACT_2, "Adela Brightmoor")
    _signature(canvas, LEFT + 4, y, (15, 20, 8, 11, 9, 6))
    _signature(canvas, LEFT + 250, y, (24, 12, 7, 16, 8))


def _head_of_contract(canvas: Canvas) -> None:
    canvas.setLineWidth(1.2)
    canvas.rect(LEFT - 8, TOP - 2.5 * LINE, WIDTH - 2 * LEFT + 16, 3.6 * LINE)


def _nothing(_: Canvas) -> None:
    """A sheet with nothing but type on it."""


SHEETS: tuple[tuple[str, Callable[[Canvas], None]], ...] = (
    (MINUTES_1, _nothing),
    (MINUTES_2, _sign_minutes),
    (DELIVERY, _stamp_delivery),
    (CONTRACT_1, _head_of_contract),
    (CONTRACT_2, _sign_contract),
    (ANNEX, _nothing),
)


def typed() -> bytes:
    """The sheets before they are scanned, as a PDF with text. Raises ValueError where a line runs over the margin."""
    buffer = BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=1)
    for text, extras in SHEETS:
        for row, line in enumerate(text.splitlines()):
            if len(line) > COLUMNS:
                raise ValueError(f"expected at most {COLUMNS} characters, found {len(line)}: {line!r}")
            canvas.setFont("Courier", TYPE_SIZE)
            canvas.drawString(LEFT, TOP - row * LINE, line)
        extras(canvas)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def scan() -> bytes:
    """The scanned PDF: one grey JPEG a page and no text; the same bytes every time."""
    document = pdfium.PdfDocument(typed())
    pictures = [
        _worn(document[number].render(scale=DPI / 72, grayscale=True).to_pil().convert("L"), number)
        for number in range(len(document))
    ]
    document.close()
    buffer = BytesIO()
    written = time.gmtime(0)
    pictures[0].save(
        buffer,
        "PDF",
        save_all=True,
        append_images=pictures[1:],
        resolution=DPI,
        quality=JPEG_QUALITY,
        title="Scanned papers",
        author=COMPANY,
        creationDate=written,
        modDate=written,
    )
    return buffer.getvalue()


def _worn(sheet: Image.Image, number: int) -> Image.Image:
    """A sheet as the scanner saw it."""
    random = np.random.default_rng(2031 + number)
    height, width = sheet.height, sheet.width
    # A ribbon does not print evenly: the strength of the type drifts slowly over the page.
    strength = 0.84 + 0.16 * _clouds(random, height, width, 40)
    ink = strength * (1 - np.asarray(sheet, dtype=np.float64) / 255)
    paper = 240 - 9 * _clouds(random, height, width, 6)
    picture = _picture(paper * (1 - ink) + 30 * ink)
    picture = picture.rotate(SKEWS[number], resample=Image.Resampling.BICUBIC, fillcolor=214)
    picture = picture.filter(ImageFilter.GaussianBlur(0.6))
    seen = np.asarray(picture, dtype=np.float64) * _shadow(height, width, left=number % 2 == 0)
    seen += random.normal(0, 4, seen.shape)
    seen[random.random(seen.shape) < 1.5e-5] = 70  # dust
    return _picture(seen)


def _picture(grey: Grey) -> Image.Image:
    return Image.fromarray(grey.clip(0, 255).astype(np.uint8))


def _clouds(random: np.random.Generator, height: int, width: int, cells: int) -> Grey:
    """Smooth noise in 0..1, (height, width); `cells` bumps across the page."""
    coarse = _picture(random.random((cells, cells)) * 255)
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64) / 255


def _shadow(height: int, width: int, *, left: bool) -> Grey:
    """Brightness in 0..1, (height, width): darker towards one edge, where the binding lifts the sheet off the glass."""
    distance = np.arange(width) / width
    bend = 0.045 + 0.012 * np.sin(np.pi * np.arange(height) / height)
    shade: Grey = 1 - 0.5 * np.exp(-distance[None, :] / bend[:, None])
    return shade if left else shade[:, ::-1]
