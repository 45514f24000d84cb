"""The sample handbook: sixteen pages of house rules, each fact on one page only."""

from __future__ import annotations

from layout import (
    COMPANY,
    HEIGHT,
    MARGIN,
    PALE,
    SAND,
    TEAL,
    WIDTH,
    Document,
    Page,
    body,
    callout,
    caption,
    chapter,
    grid,
    section,
)
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas

EDITION = "Edition 7, valid from 1 March 2031"


def _cover(canvas: Canvas) -> None:
    canvas.setFillColor(TEAL)
    canvas.rect(0, HEIGHT * 0.42, WIDTH, HEIGHT * 0.58, stroke=0, fill=1)
    canvas.setStrokeColor(PALE)
    for step in range(9):
        # A river gauge: a staff with marks and the water line rising across the page.
        y = HEIGHT * 0.47 + step * 13 * mm
        canvas.setLineWidth(2.2 if step % 2 == 0 else 1)
        canvas.line(WIDTH - 40 * mm, y, WIDTH - (26 if step % 2 == 0 else 31) * mm, y)
    canvas.setStrokeColor(SAND)
    canvas.setLineWidth(2)
    wave = canvas.beginPath()
    wave.moveTo(0, HEIGHT * 0.5)
    for part in range(4):
        x = WIDTH / 4 * part
        wave.curveTo(x + 18 * mm, HEIGHT * 0.53, x + 34 * mm, HEIGHT * 0.47, x + WIDTH / 4, HEIGHT * 0.5)
    canvas.drawPath(wave, stroke=1, fill=0)
    canvas.setFillColor(PALE)
    canvas.setFont("Helvetica", 13)
    canvas.drawString(MARGIN, HEIGHT - 38 * mm, COMPANY)
    canvas.setFont("Helvetica-Bold", 38)
    canvas.drawString(MARGIN, HEIGHT - 82 * mm, "Staff Handbook")
    canvas.setFont("Helvetica", 14)
    canvas.drawString(MARGIN, HEIGHT - 95 * mm, "How we work, travel, rest and look after each other")
    canvas.setFillColor(TEAL)
    canvas.setFont("Helvetica-Bold", 11)
    canvas.drawString(MARGIN, HEIGHT * 0.36, EDITION)
    canvas.setFont("Helvetica", 10)
    canvas.drawString(MARGIN, HEIGHT * 0.36 - 16, "Replaces edition 6 of January 2029")
    canvas.drawString(MARGIN, HEIGHT * 0.36 - 30, "Owner: People Office, house B, second floor")


def _contents() -> Page:
    titles = (
        ("Joining us", 3),
        ("Working hours and working from home", 4),
        ("Annual leave", 5),
        ("Illness and family", 6),
        ("Business travel", 7),
        ("Expenses", 8),
        ("Information security", 9),
        ("Records and customer data", 10),
        ("Safety on site and at the water", 11),
        ("Equipment and vehicles", 12),
        ("Learning", 13),
        ("Pay and pension", 14),
        ("Gifts, conflicts and speaking up", 15),
        ("Leaving us, and whom to ask", 16),
    )
    return [
        *chapter(
            "About this handbook", "Rules are here so that nobody has to guess, and so that everyone gets the same."
        ),
        *body(
            f"{COMPANY} builds gauges that measure the level, speed and temperature of rivers. About 240 people work "
            "in three places, many of them outdoors. This handbook collects what applies to all of them. Where your "
            "contract says something better for you, your contract counts.",
            "The People Office keeps the text. Anyone may propose a change with form P-11; proposals are discussed "
            "with the staff council in February and September, and a new edition follows when enough has changed.",
        ),
        *grid([("Chapter", "Page"), *((name, str(page)) for name, page in titles)], (0.85, 0.15), right=(1,)),
    ]


def _joining() -> Page:
    return [
        *chapter("Joining us", "The first ninety days are for looking, asking and making small mistakes."),
        *section(
            "Your first morning",
            "Come to the gatehouse at 08:30. The porter has your badge and calls your buddy, a colleague from another "
            "team who is yours for the first ninety days. Bring your tax number and, if you will drive for us, your "
            "licence.",
        ),
        *section(
            "Equipment and accounts",
            "A laptop, a headset and safety shoes in your size wait at your desk. Accounts for mail and the time clock "
            "are open on day one; access to the drawing archive follows once you have taken the security course, which "
            "must happen within ten working days.",
        ),
        *grid(
            [
                ("When", "What happens", "Who sees to it"),
                ("Day 1", "Badge, tour of the halls, fire exits, lunch with the team", "Buddy"),
                ("Week 2", "Security course and test (pass mark 80 %)", "Information Office"),
                ("Day 30", "First talk: is the job what we promised?", "Team lead"),
                ("Day 60", "Half a day in Field Service, whatever your trade", "Field Service"),
                ("Day 90", "Second talk, goals for the rest of the year", "Team lead"),
            ],
            (0.14, 0.60, 0.26),
        ),
        *section(
            "Trial period",
            "The trial period lasts six months. During it either side may end the contract with two weeks' notice. It "
            "is not extended, except by the length of an illness of more than 20 working days.",
        ),
        *callout(
            "<b>Recommend a friend.</b> If someone you recommended stays beyond the trial period you receive a "
            "thank-you of EUR 900 with the next pay."
        ),
    ]


def _hours() -> Page:
    return [
        *chapter(
            "Working hours and working from home", "We count results first and hours second, but we do count hours."
        ),
        *section(
            "The week",
            "A full week has 37.5 hours. Everyone who can be is reachable in the core time, Monday to Thursday from "
            "10:00 to 15:00; Friday has no core time. The halls are open from 06:00 to 20:00.",
        ),
        *section(
            "The hours account",
            "Time above or below the week goes to your hours account. It may stand between plus 40 and minus 15 hours "
            "at the end of a month. Whole days off from the account are agreed with the team a week ahead; four such "
            "days a quarter are normal.",
        ),
        *section(
            "Overtime",
            "Overtime is work your lead has asked for outside the halls' opening hours or on a Sunday. It is paid with "
            "a supplement of 25 %, on Sundays and public holidays 60 %. Repairs during a flood warning count as "
            "overtime from the first minute.",
        ),
        *section(
            "Working from home",
            "Desk work may be done from home on up to three days a week. Wednesday is the day on which teams meet in "
            "the house. For a chair and a screen at home we give EUR 350 once, paid against an invoice.",
        ),
        *section(
            "Working from abroad",
            "Up to 25 working days a year may be worked from another country of the European Union. Ask the People "
            "Office four weeks before, because a social security form (A1) has to be in your bag when you leave.",
        ),
        *callout(
            "<b>Breaks.</b> Thirty minutes after six hours, forty-five after nine. The time clock deducts them for you."
        ),
    ]


def _leave() -> Page:
    return [
        *chapter("Annual leave", "Rest is part of the work. Please take all of it."),
        *section(
            "How much",
            "A calendar year brings 28 days of paid leave for a five-day week, plus one day for every five years of "
            "service, up to 32 days. In the year you join or leave you get a twelfth for each full month.",
        ),
        *section(
            "Asking for it",
            "Enter your leave in the time clock. Up to three days in a row need two working days' warning, anything "
            "longer three weeks. Your lead answers within three working days; silence counts as yes.",
        ),
        *section(
            "Carrying days over",
            "At most six days can be carried into the next year, and they lapse on 31 March. Days that could not be "
            "taken because of illness or parental leave do not lapse then.",
        ),
        *section(
            "Days when the house is closed",
            "We close between 24 December and 1 January. Three days of everyone's leave are set aside for this. Field "
            "Service keeps an emergency crew of four, who choose other days instead.",
        ),
        *grid(
            [
                ("Occasion", "Extra paid days"),
                ("Own wedding or registered partnership", "2"),
                ("Moving house (once in three years)", "1"),
                ("Twenty-five years with us", "5"),
                ("Volunteer fire brigade or flood relief call-out", "as needed"),
            ],
            (0.72, 0.28),
            right=(1,),
        ),
        *callout(
            "<b>Buying and selling leave.</b> Until 30 November you may buy up to five more days for the coming year. "
            "Leave cannot be sold."
        ),
    ]


def _illness() -> Page:
    return [
        *chapter("Illness and family", "Stay at home when you are ill, and with your family when it needs you."),
        *section(
            "When you are ill",
            "Call or write to your lead before 09:30. A doctor's certificate is needed from the fourth calendar day. "
            "Pay continues in full for eight weeks; after that the health insurance pays and we top it up to 90 % for "
            "another sixteen weeks.",
        ),
        *section(
            "Coming back slowly",
            "After more than six weeks away, the People Office offers a return plan: hours rise in steps over four to "
            "ten weeks, with full pay from the first step.",
        ),
        *section(
            "A new child",
            "Each parent, by birth or by adoption, gets 20 weeks at full pay, in at most three parts before the "
            "child's third birthday. Tell us twelve weeks before the first part. Part-time work of 15 to 30 hours can "
            "follow until the child starts school.",
        ),
        *section(
            "Ill children and care at home",
            "For an ill child under twelve there are ten paid days a year per child, fifteen for single parents. For a "
            "relative who suddenly needs care there are up to ten days, also paid.",
        ),
        *section(
            "A death in the family",
            "Five paid days for a partner, child, parent or sibling; two for a grandparent or parent-in-law. Nobody "
            "will ask for a certificate.",
        ),
        *callout(
            "<b>Someone to talk to.</b> The counselling line, 0800 555 0136, is free, anonymous and answered at night."
        ),
    ]


def _travel() -> Page:
    return [
        *chapter("Business travel", "Go when going helps. Take the train when it gets you there."),
        *section(
            "Before you book",
            "Your lead approves a trip in the travel tool. Trips above EUR 2,500 or outside Europe also need the "
            "signature of the head of department. Bookings go through the travel desk, so that we know where everyone "
            "is.",
        ),
        *section(
            "Getting there",
            "Rail is the rule for distances under 700 km. First class is allowed for journeys of more than three "
            "hours. Flights are in economy; premium economy may be booked when the flight lasts more than seven hours. "
            "Hire cars are of the compact class, electric where there is a choice.",
        ),
        *grid(
            [
                ("Zone", "Examples", "Hotel limit per night", "Day allowance"),
                ("A", "Capitals and trade-fair cities", "EUR 185", "EUR 58"),
                ("B", "Other large cities", "EUR 140", "EUR 49"),
                ("C", "Everywhere else", "EUR 105", "EUR 42"),
            ],
            (0.10, 0.40, 0.27, 0.23),
            right=(2, 3),
        ),
        *caption("Limits include breakfast. The day allowance is halved on the days of departure and return."),
        *section(
            "Travel time",
            "Time in trains and planes counts as working time up to ten hours a day. Driving counts in full, and "
            "nobody drives after more than ten hours of work.",
        ),
        *section(
            "When things go wrong",
            "The assistance number on the back of your badge is answered day and night. If a connection fails after "
            "21:00, take a hotel and a taxi first and explain later.",
        ),
        *callout("<b>Private days.</b> You may add private days to a trip if the total fare does not rise."),
    ]


def _expenses() -> Page:
    return [
        *chapter("Expenses", "You should not be out of pocket for more than two weeks."),
        *section(
            "Handing in",
            "Photograph receipts with the expense app and send the claim within 30 days of the end of the trip. Claims "
            "that arrive by Tuesday noon are paid on Friday of the same week. After 90 days a claim is no longer paid.",
        ),
        *section(
            "Receipts",
            "Every item above EUR 12 needs a receipt that shows the tax. If one is lost, a signed own receipt is "
            "accepted twice a year.",
        ),
        *grid(
            [
                ("Kind", "What we pay", "Approval"),
                ("Own car", "EUR 0.42 per km, EUR 0.05 more with a passenger", "Team lead"),
                ("Own bicycle", "EUR 0.25 per km", "none"),
                ("Meals with customers", "up to EUR 55 a head, names on the receipt", "Team lead"),
                ("Team events", "EUR 60 a person and year", "Head of department"),
                ("Phone at home", "EUR 20 a month for stand-by crews", "People Office"),
                ("Work clothing", "up to EUR 220 a year in Field Service", "Team lead"),
            ],
            (0.24, 0.50, 0.26),
        ),
        *section(
            "Company card",
            "Who travels more than twenty days a year gets a company card. Its monthly limit is EUR 4,000. Private "
            "payments with it are not allowed, not even by mistake and repaid: use your own card.",
        ),
        *section(
            "What we do not pay",
            "Fines, minibar, upgrades you chose yourself, and alcohol, except one drink with a customer meal.",
        ),
        *callout(
            "<b>Advance.</b> For trips longer than a week the cashier pays 70 % of the expected costs in advance; ask "
            "five working days before you leave."
        ),
    ]


def _security() -> Page:
    return [
        *chapter("Information security", "Most attacks begin with a friendly mail. So does most help."),
        *section(
            "Passwords and screens",
            "A password has at least 14 characters and lives in the password manager, never on paper. The second "
            "factor is the key on your badge ring. Screens lock after five minutes; in trains use the privacy filter.",
        ),
        *section(
            "Something lost, something odd",
            "Report a lost laptop, phone or badge within one hour to the security desk, extension 4400, at any time of "
            "day. Forward suspicious mail with the red button and do not delete it. Reporting late is a problem; "
            "having clicked is not.",
        ),
        *grid(
            [
                ("Class", "Examples", "May leave the house"),
                ("Open", "Brochures, published gauge readings", "yes"),
                ("Internal", "This handbook, phone lists, minutes", "to partners under contract"),
                ("Confidential", "Prices, drawings, personal files", "encrypted, with a named receiver"),
                ("Secret", "Keys of the alarm network", "never"),
            ],
            (0.18, 0.45, 0.37),
        ),
        *section(
            "Software and devices",
            "Install from the software shelf only. Private memory sticks are not to be plugged in; the post room lends "
            "checked ones. Updates are applied within 48 hours and may restart the machine at night.",
        ),
        *section(
            "Assistants that write",
            "Chat assistants may be used for open and internal texts. Confidential material goes only into the "
            "assistant that runs in our own server room. What you send out under your name, you have read.",
        ),
        *callout(
            "<b>Practice mails.</b> Six times a year the security desk sends a harmless fake. Finding it earns a "
            "coffee."
        ),
    ]


def _records() -> Page:
    return [
        *chapter("Records and customer data", "Keep what is needed, as long as it is needed, in one place."),
        *section(
            "How long we keep things",
            "Retention starts at the end of the calendar year in which a record was closed. When it is over, the "
            "archive deletes automatically unless Legal has placed a hold.",
        ),
        *grid(
            [
                ("Record", "Kept for", "Where"),
                ("Raw gauge readings", "30 years", "River archive"),
                ("Calibration certificates", "15 years", "Quality archive"),
                ("Invoices and delivery notes", "10 years", "Finance archive"),
                ("Job applications that were turned down", "6 months", "People Office"),
                ("Pictures from site cameras", "72 hours", "Security desk"),
                ("Visitor lists", "4 weeks", "Gatehouse"),
            ],
            (0.50, 0.20, 0.30),
        ),
        *section(
            "Personal data of customers",
            "We store names and contact details only, in the customer system and nowhere else. A request to see or "
            "delete data goes to the data protection officer on the day it arrives; the answer is due within 20 days.",
        ),
        *section(
            "A data breach",
            "If personal data went to the wrong person, tell the data protection officer at once. The authority has to "
            "be told within 72 hours, weekends included.",
        ),
        *section(
            "Paper",
            "Paper files are scanned on the third floor of house B each Thursday. Originals of contracts go to the "
            "fire-proof cabinet; everything else is shredded after four weeks.",
        ),
        *callout("<b>Names of files.</b> Date first, then customer, then subject: 2031-05-14 Ferrow weir handover."),
    ]


def _safety() -> Page:
    return [
        *chapter("Safety on site and at the water", "No reading is worth a wet lung."),
        *section(
            "At the water",
            "Work at the water is done in pairs, always. A life jacket is worn within two metres of the edge and on "
            "every boat. Wading ends at a depth of 0.8 m or at a speed of 1.2 m per second, whichever comes first. "
            "Above flood stage 2 nobody goes to a gauge without the consent of the duty engineer.",
        ),
        *section(
            "In the halls",
            "Eye protection is worn behind the yellow line. The crane in hall 2 lifts 3.2 tonnes and is driven only "
            "with the crane card. Mercury switches from old gauges go into the red drum, not into the electronics bin.",
        ),
        *section(
            "Fire",
            "The assembly point is the car park beside the flume. Hall wardens wear orange vests and count. A drill "
            "takes place in April and October.",
        ),
        *grid(
            [
                ("If this happens", "do this first", "then call"),
                ("Someone is hurt", "First aid, box by every door", "112, then extension 4112"),
                ("Fire", "Press the alarm, leave, close doors", "112 from outside"),
                ("Someone is in the water", "Throw the line, do not jump", "112, then the duty engineer"),
                ("Battery smells or swells", "Carry it out with the long tongs", "extension 4170"),
            ],
            (0.28, 0.40, 0.32),
        ),
        *section(
            "Afterwards",
            "Every accident and near miss is entered in the accident book within 24 hours. We look for causes, not "
            "culprits: no entry has ever led to a warning.",
        ),
        *callout(
            "<b>Tick season.</b> From April to October the vaccine is offered free on the first Tuesday of the month."
        ),
    ]


def _equipment() -> Page:
    return [
        *chapter("Equipment and vehicles", "Treat it as if you had to explain it to the next person."),
        *section(
            "Laptops and phones",
            "Laptops are replaced after 48 months, phones after 36. The old device may be bought for its book value. "
            "Small private use is allowed; streaming over the mobile plan is not.",
        ),
        *section(
            "Measuring gear",
            "Flow meters, levels and drones are booked in the tool room, at the latest at 16:00 the day before. "
            "Anything that measures goes to the calibration laboratory every twelve months; the sticker shows the "
            "month. Gear without a valid sticker stays on the shelf.",
        ),
        *section(
            "Pool cars and vans",
            "There are nine pool cars and fourteen vans. Keys come from the cabinet at the gatehouse with your badge. "
            "Charge above 80 % before returning a car, and write the kilometres into the log. Winter tyres are on from "
            "15 October to Easter.",
        ),
        *section(
            "Damage",
            "Report damage on the same day, with three pictures. For slight negligence you pay nothing; for gross "
            "negligence at most one month's pay. A parking ticket is yours.",
        ),
        *grid(
            [
                ("May I borrow it privately?", "Answer", "Fee"),
                ("Van, at the weekend", "yes, booked by Thursday", "EUR 30 a day"),
                ("Tools", "yes, up to five days", "none"),
                ("Drone", "no", "-"),
                ("Boat and trailer", "only with the boat licence", "EUR 45 a day"),
            ],
            (0.42, 0.36, 0.22),
        ),
        *callout(
            "<b>Keys.</b> A lost key to a gauge cabinet means changing 61 locks. Tell the tool room straight away."
        ),
    ]


def _learning() -> Page:
    return [
        *chapter("Learning", "Whoever measures rivers should not stand still."),
        *section(
            "Time and money",
            "Everyone has EUR 1,600 and six working days a year for learning. Money that is not spent can be saved for "
            "one further year; days cannot. Courses the company asks for do not count against either.",
        ),
        *section(
            "Degrees and long courses",
            "For a part-time degree we pay half of the fees and give ten more days in a year with examinations. If you "
            "leave within 24 months of finishing, you repay a share that shrinks by one twenty-fourth each month.",
        ),
        *section(
            "Languages",
            "Evening classes in English, Polish and sign language are held on Mondays in the canteen and are free. "
            "With fewer than five people a class becomes a voucher for an online course.",
        ),
        *section(
            "Passing it on",
            "Thursday at 15:00 is the hour of short talks in the flume hall: twenty minutes, a cake, no slides needed. "
            "Mentors and mentees find each other through the list in the canteen and meet for nine months.",
        ),
        *grid(
            [
                ("Certificate", "For", "Renewed every"),
                ("First aid", "one in eight people per team", "2 years"),
                ("Boat licence", "Field Service", "5 years"),
                ("Work at height", "mast crews", "12 months"),
                ("Drone pilot A2", "survey group", "5 years"),
                ("Crane card", "hall 2", "3 years"),
            ],
            (0.34, 0.42, 0.24),
        ),
        *callout("<b>Conferences.</b> Give a talk and the fee, the fare and the days come out of the company's purse."),
    ]


def _pay() -> Page:
    return [
        *chapter("Pay and pension", "Open bands, few exceptions, paid on time."),
        *section(
            "When pay arrives",
            "Pay is on your account on the 26th of the month, or on the working day before. Supplements and overtime "
            "follow one month later. Questions about a pay slip go to extension 4225.",
        ),
        *section(
            "Bands",
            "Each job belongs to one of seven bands. The bands are reviewed with the staff council every May and "
            "changes take effect on 1 July.",
        ),
        *grid(
            [
                ("Band", "Typical job", "Yearly pay, full time"),
                ("1", "Assembly, first year", "EUR 33,000 to 37,500"),
                ("2", "Assembly, skilled", "EUR 37,000 to 43,500"),
                ("3", "Field technician", "EUR 42,000 to 50,000"),
                ("4", "Engineer, buyer, accountant", "EUR 49,000 to 61,000"),
                ("5", "Senior engineer, team lead", "EUR 60,000 to 74,000"),
                ("6", "Principal engineer", "EUR 72,000 to 88,000"),
                ("7", "Head of department", "EUR 86,000 to 112,000"),
            ],
            (0.12, 0.48, 0.40),
            right=(2,),
        ),
        *section(
            "Bonus",
            "Half of the bonus depends on the company's result, half on on-time delivery. It is the same share for "
            "everyone: up to 7 % of yearly pay, paid in April.",
        ),
        *section(
            "Pension",
            "You pay 3 % of your gross pay into the works pension and we add 5 %. Our part is yours for good after two "
            "years. Once a year, in June, the fund sends a statement.",
        ),
        *callout("<b>Stand-by.</b> Flood stand-by is paid with EUR 280 a week, plus every hour actually worked."),
    ]


def _conduct() -> Page:
    return [
        *chapter("Gifts, conflicts and speaking up", "If it would look odd in the newspaper, ask first."),
        *section(
            "Gifts",
            "Gifts worth up to EUR 35 may be accepted from the same giver once a year. Anything above goes into the "
            "raffle for the children's hospice in December. Cash is always refused. While a tender is open nothing is "
            "accepted, not even a pen.",
        ),
        *section(
            "Invitations",
            "A meal during work is fine. Tickets, weekends and travel are not, unless the head of department has "
            "agreed in writing.",
        ),
        *section(
            "Second jobs and own interests",
            "A second job is announced with form P-04 four weeks before it begins; it is refused only for a competitor "
            "or when the hours together exceed 48 a week. Whoever holds more than 5 % of a supplier takes no part in "
            "orders from it.",
        ),
        *section(
            "Respect",
            "Bullying and harassment end careers here; complaints about them do not. The two trust persons, "
            "elected for three years, listen in confidence.",
        ),
        *section(
            "Speaking up",
            "Suspicions of fraud, bribery or danger can be sent to the outside ombudswoman, without a name if you "
            "like, at 0800 555 0177. She confirms receipt within seven days and reports the outcome within three "
            "months. Who reports in good faith is protected, also when the suspicion proves wrong.",
        ),
        *callout("<b>Orders.</b> Four eyes on every order above EUR 1,000; three written offers above EUR 10,000."),
    ]


def _leaving() -> Page:
    return [
        *chapter("Leaving us, and whom to ask", "We try to part the way we would like to meet again."),
        *section(
            "Notice", "Notice is given in writing, to the end of a month. The periods are the same for both sides."
        ),
        *grid(
            [
                ("Years of service", "Notice"),
                ("up to 2, after the trial period", "1 month"),
                ("2 to 5", "2 months"),
                ("5 to 10", "3 months"),
                ("10 to 20", "5 months"),
                ("more than 20", "7 months"),
            ],
            (0.65, 0.35),
            right=(1,),
        ),
        *section(
            "The last weeks",
            "Badge, keys, laptop and clothing go back to the gatehouse on the last day. The hours account and "
            "remaining leave are used up or paid out with the last pay. The reference letter is ready within ten "
            "working days.",
        ),
        *section(
            "Retiring",
            "Who retires may work half time in the last year at 70 % of pay, and keeps the canteen card.",
        ),
        *grid(
            [
                ("Question", "Office", "Extension"),
                ("Contracts, leave, parents", "People Office", "4210"),
                ("Pay slips", "Payroll", "4225"),
                ("Trips and hotels", "Travel desk", "4260"),
                ("Passwords, odd mail", "Security desk", "4400"),
                ("Tools, vans, calibration", "Tool room", "4170"),
                ("Staff council", "House A, room 12", "4190"),
            ],
            (0.42, 0.36, 0.22),
            right=(2,),
        ),
    ]


HANDBOOK = Document(
    title="Staff Handbook",
    subject=EDITION,
    cover=_cover,
    pages=(
        _contents(),
        _joining(),
        _hours(),
        _leave(),
        _illness(),
        _travel(),
        _expenses(),
        _security(),
        _records(),
        _safety(),
        _equipment(),
        _learning(),
        _pay(),
        _conduct(),
        _leaving(),
    ),
)
