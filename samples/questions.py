"""Questions on the sample documents, each with the page that answers it and the words that prove it."""

from __future__ import annotations

from dataclasses import dataclass

HANDBOOK = "handbook.pdf"
REPORT = "annual-report.pdf"
SCAN = "scanned-papers.pdf"


@dataclass(frozen=True)
class Question:
    """A question, the one page that answers it, and a phrase that stands on that page and on no other.

    scoped: whether the question only makes sense inside its document.
    helps: pages of the same document that help without answering.
    """

    text: str
    doc: str
    page_num: int
    evidence: str
    scoped: bool = False
    helps: tuple[int, ...] = ()


QUESTIONS = (
    Question("When and where do I report on my first day?", HANDBOOK, 3, "Come to the gatehouse at 08:30"),
    Question("How long is the probation period for new staff?", HANDBOOK, 3, "The trial period lasts six months"),
    Question("What extra pay is there for working on a Sunday?", HANDBOOK, 4, "on Sundays and public holidays 60 %"),
    Question("How many days a week may I do my job from home?", HANDBOOK, 4, "on up to three days a week"),
    Question("How many vacation days can be moved to next year?", HANDBOOK, 5, "At most six days can be carried"),
    Question("From which day do I have to bring a doctor's note?", HANDBOOK, 6, "from the fourth calendar day"),
    Question("How much time off do parents of a newborn get?", HANDBOOK, 6, "gets 20 weeks at full pay"),
    Question("What is the most a hotel in a capital may cost?", HANDBOOK, 7, "EUR 185"),
    Question("Am I allowed to travel first class by train?", HANDBOOK, 7, "First class is allowed"),
    Question("How much is refunded per kilometre with my own car?", HANDBOOK, 8, "EUR 0.42 per km"),
    Question("I lost my work phone. Whom do I tell, and how fast?", HANDBOOK, 9, "within one hour", helps=(16,)),
    Question("How long are calibration certificates kept?", HANDBOOK, 10, "Calibration certificates 15 years"),
    Question("Up to which water depth may I wade?", HANDBOOK, 11, "at a depth of 0.8 m"),
    Question("Can I borrow a van for a private move?", HANDBOOK, 12, "Van, at the weekend"),
    Question("What share of my studies does the employer pay?", HANDBOOK, 13, "we pay half of the fees"),
    Question("What does a principal engineer earn?", HANDBOOK, 14, "EUR 72,000 to 88,000"),
    Question("May I keep a present from a supplier?", HANDBOOK, 15, "Gifts worth up to EUR 35"),
    Question("What is the notice period after twelve years?", HANDBOOK, 16, "10 to 20 5 months", scoped=True),
    Question("What did the managing director regret?", REPORT, 3, "The test would have cost EUR 85,000"),
    Question("Which business grew fastest, and by how much?", REPORT, 4, "+29.4 %", scoped=True),
    Question("How many customers are there in the Alpine region?", REPORT, 5, "9,870 86"),
    Question("In which month were the fewest gauges delivered?", REPORT, 6, "In June only 97 gauges", helps=(2,)),
    Question("How many apprentices work in the calibration lab?", REPORT, 7, "Hallenbruck (calibration laboratory)"),
    Question("How much gas did the company burn in 2031?", REPORT, 8, "1,480 1,390 1,275 1,120 640"),
    Question("Why was the road lamp rain sensor given up?", REPORT, 9, "Why Thimble was stopped"),
    Question("Who audited the accounts?", REPORT, 10, "Pellworth & Quill", scoped=True),
    Question("How high is the equity ratio?", REPORT, 11, "Equity covers 54.8 %", scoped=True),
    Question("What revenue is expected for 2032?", REPORT, 12, "between EUR 41 and 43 million"),
    Question("Which roofer got the order for hall 3?", SCAN, 1, "goes to Vanterpool and Sons"),
    Question("How loud are the pumps at night?", SCAN, 1, "58 decibels by day, 49 by night"),
    Question("What will the dish of the day cost in the canteen?", SCAN, 2, "to EUR 5.20"),
    Question("Which item was damaged on delivery?", SCAN, 3, "has a cracked pane"),
    Question("What is the monthly fee of the Ferrow contract?", SCAN, 4, "EUR 2,350 a month"),
    Question("What is the liability cap for slight negligence?", SCAN, 5, "EUR 180,000 a year"),
    Question("Which gauge has the serial number MP-33618?", SCAN, 6, "MP-33618"),
)
