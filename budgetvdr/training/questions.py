"""Questions a person might ask, from the sentences that answer them, by rules and without a model.

A rule turns the form of a sentence round: "To close a file, call ..." answers "How do I close a file?". The verbs are
learned from the corpus, as the words that follow "to", "can" and the like, so that no dictionary is needed. A sentence
that fits no rule asks nothing: few good questions are worth more than many bad ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from numpy.random import Generator

Verbs = frozenset[str]
"""Base forms."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AFTER = re.compile(r"\b(?:to|can|cannot|must|should|will|may|could|would|not) ([a-z]{2,})\b")
_NO_VERBS = _words(
    "the be have been a an this that these those its their it you your we he she they any all some one more only also "
    "us me him her do not always never just then as in on of for from with at by other another each both either such "
    "and or but"
)
_FEWEST = 3
_DETERMINERS = {"the", "a", "an", "each", "every", "all", "any", "most", "many", "both", "some", "no"}
_NO_START = _words(
    "this it that there these those you if they we he she here what when where which who why how note see as in on at "
    "by for from with without to of and or but not so then thus since because while although though until unless after "
    "before during both either neither one ones another other others such its their his her your our my i do does "
    "let please once still even just however therefore also instead otherwise currently finally example e.g. i.e. "
    "following now only like unlike using yes no none nothing something anything everything everyone more most many "
    "some all first second third last next same rather sometimes often usually perhaps maybe another"
)
_NO_INSIDE = _words(
    "is are was were be been that which who whom if when where while because since unless although though than "
    "this these those it its they them you your we our i not also only then so but can may must will should would do "
    "does did has have had there here"
)
_PEOPLE = re.compile(
    r"\b(?:employee|manager|officer|president|minister|director|administrator|operator|author|owner|tenant|customer|"
    r"member|patient|student|teacher|committee|board|council|king|queen|monarch|chairman|governor|user|person|people)s?$",
    re.IGNORECASE,
)
_BE = "is|are|was|were|can be|must be|should be|may be|will be"
_WORD_END = re.compile(r"[\s,;:.]+$")
_TAIL = re.compile(
    r"(?:\s+(?:by|using|if|when|so|because|which|whose|where|unless|until|while|but|since|and then|as|via|e\.g)\b"
    r"|[,;:.()]).*$"
)
_LEFT_HANGING = _words("the a an of in to for on at with and or and/or that from whether is are was were be not no")
_GIVES_UP = re.compile(
    r"\b(?:this|these|those|above|below|following|it|its|they|them|here|described|such|same|next)\b|that[’']s|"
    r"\b[Tt]he (?:function|method|code|value|argument|option|command|specified|given|optional|new|current|resulting)\b"
)
_YEAR = re.compile(r"\b(?:in|on|since) (?:\d{1,2} )?(?:[A-Z][a-z]+ )?(?:1[5-9]|20)\d\d\b")


def learn_verbs(texts: Iterable[str]) -> Verbs:
    """Base forms of the verbs in some texts: what follows "to", "can" and the like three times or more."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_AFTER.findall(text))
    return frozenset(word for word, count in counts.items() if count >= _FEWEST and word not in _NO_VERBS)


def question(sentence: str, verbs: Verbs, random: Generator) -> str:
    """A question that the sentence answers; an empty string where no rule fits."""
    sentence = " ".join(sentence.split())
    asked = [found for rule in _RULES if (found := rule(sentence, verbs)) and _is_clear(found)]
    return asked[int(random.integers(len(asked)))] if asked else ""


def from_gerund(heading: str, verbs: Verbs) -> str:
    """ "Changing passwords" -> "How do I change passwords?"; an empty string for other headings."""
    first, _, rest = heading.partition(" ")
    base = _base(first.lower(), "ing", verbs)
    return f"How do I {base} {_to_asker(rest)}?" if base and rest else ""


def _purpose(sentence: str, verbs: Verbs) -> str:
    found = re.match(r"To (?P<act>[a-z]+ [^,;:()]{4,70}), ", sentence)
    return _how("How do I", found["act"], verbs) if found else ""


def _ability(sentence: str, verbs: Verbs) -> str:
    found = re.search(
        r"\b(?:[Yy]ou (?:can|may)|[Ii]t is (?:also )?possible to|allows? (?:you|users) to|(?:is|are|be) used to|way to|"
        r"(?:you|users) (?:want|wish|need) to) (?P<act>[a-z]+ [^;()]{5,90})",
        sentence,
    )
    return _how("How can I", found["act"], verbs) if found else ""


def _duty(sentence: str, verbs: Verbs) -> str:
    found = re.search(r"\b[Yy]ou (?P<how>must|should|need to|have to) (?P<act>[a-z]+ [^;()]{5,90})", sentence)
    if not found:
        return ""
    asks = {"must": "When must I", "should": "When should I"}
    return _how(asks.get(found["how"], "Do I have to"), found["act"], verbs)


def _condition(sentence: str, verbs: Verbs) -> str:
    found = re.match(r"(?P<word>If|When) (?P<clause>[^,;:()]{12,90}), (?P<rest>.{15,})", sentence)
    if not found or found["clause"].split()[0].lower() in _NO_START - _DETERMINERS - {"you"}:
        return ""
    return f"What happens {found['word'].lower()} {_to_asker(found['clause'])}?"


def _definition(sentence: str, verbs: Verbs) -> str:
    found = re.match(r"(?P<subject>[^,;:()]{3,60}?) (?P<be>is|are|was|were) (?:an?|the|one of|any) \w", sentence)
    subject = _noun_phrase(found["subject"]) if found else ""
    if not found or not subject:
        return ""
    who = "Who" if _PEOPLE.search(subject) and found["be"] in {"is", "was"} else "What"
    return f"{who} {found['be']} {subject}?"


def _meaning(sentence: str, verbs: Verbs) -> str:
    found = re.match(r"(?P<subject>[^,;:()]{3,60}?) (?:means|stands for|refers to) ", sentence)
    subject = _noun_phrase(found["subject"]) if found else ""
    return f"What does {subject} mean?" if subject else ""


def _passive(sentence: str, verbs: Verbs) -> str:
    pattern = (
        rf"(?P<subject>[^,;:()]{{3,60}}?) (?P<be>{_BE}) (?P<done>[a-z]+ed|made|built|written|sent|held|known|set|kept)"
    )
    found = re.match(rf"{pattern} (?P<rest>.{{8,}})", sentence)
    subject = _noun_phrase(found["subject"]) if found else ""
    if not found or not subject:
        return ""
    auxiliary, _, verb = found["be"].partition(" ")
    verb = f"{verb} " if verb else ""
    if found["rest"].startswith("by "):
        return f"What {auxiliary} {subject} {verb}{found['done']} by?"
    if _YEAR.search(found["rest"]) and auxiliary in {"was", "were"}:
        return f"When {auxiliary} {subject} {found['done']}?"
    rest = _short(found["rest"])
    return f"What {found['be']} {found['done']} {rest}?" if len(rest.split()) >= 3 else ""


def _reason(sentence: str, verbs: Verbs) -> str:
    found = re.match(
        r"(?P<subject>[^,;:()]{3,60}?) (?P<be>is|are|was|were|can|cannot) (?P<rest>[^,;:()]{8,80}?) because ", sentence
    )
    subject = _noun_phrase(found["subject"]) if found else ""
    return f"Why {found['be']} {subject} {found['rest']}?" if found and subject else ""


def _deed(sentence: str, verbs: Verbs) -> str:
    """ "The parser returns a tree" asks what the parser returns; with a long object, what or who does it."""
    words = sentence.split()
    for place in range(1, min(8, len(words) - 2)):
        base = _base(words[place], "s", verbs)
        if base and words[place + 1].lower() in _DETERMINERS | {"whether", "how"}:
            subject = _noun_phrase(" ".join(words[:place]))
            if not subject:
                return ""
            rest = _short(" ".join(words[place + 1 :]))
            if len(rest.split()) >= 5:
                return f"{'Who' if _PEOPLE.search(subject) else 'What'} {words[place]} {rest}?"
            return f"What does {subject} {base}?"
    return ""


def _modal(sentence: str, verbs: Verbs) -> str:
    found = re.match(
        r"(?P<subject>[^,;:()]{3,60}?) (?P<modal>can|must|should|may|will) (?P<verb>[a-z]+) (?P<rest>.{8,})", sentence
    )
    subject = _noun_phrase(found["subject"]) if found else ""
    if not found or not subject or found["verb"] not in verbs:
        return ""
    if _PEOPLE.search(subject):
        return f"Who {found['modal']} {found['verb']} {_short(found['rest'])}?"
    return f"{found['modal'].capitalize()} {subject} {found['verb']} {_short(found['rest'])}?"


_RULES: tuple[Callable[[str, Verbs], str], ...] = (
    _purpose, _ability, _duty, _condition, _definition, _meaning, _passive, _reason, _deed, _modal,
)  # fmt: skip


def _how(asks: str, act: str, verbs: Verbs) -> str:
    """What the tail of the act says, how it is done, is the answer and stays out of the question."""
    verb, _, rest = act.partition(" ")
    rest = _short(rest)
    return f"{asks} {verb} {rest}?" if verb in verbs and len(rest.split()) >= 2 else ""


def _short(text: str) -> str:
    """The first words of a clause, as the asker would say them."""
    words = _TAIL.sub("", f" {text}").split()[:10]
    while words and words[-1].lower() in _LEFT_HANGING:
        words.pop()
    return _to_asker(" ".join(words))


def _to_asker(text: str) -> str:
    text = re.sub(r"\b[Yy]ou(?: are|[’']re)\b", "I am", text)
    text = re.sub(r"\b[Yy]our\b", "my", text)
    return _WORD_END.sub("", re.sub(r"\b[Yy]ou\b", "I", text))


def _noun_phrase(text: str) -> str:
    """The text where it can be the subject of a question, its article in small letters; else an empty string."""
    words = text.split()
    first = words[0].lower()
    if len(words) > 7 or first in _NO_START - _DETERMINERS or first.endswith("ly"):
        return ""
    if (first in _DETERMINERS and len(words) < 2) or {word.lower() for word in words} & _NO_INSIDE:
        return ""
    return " ".join([first if first in _DETERMINERS else words[0], *words[1:]])


def _base(word: str, ending: str, verbs: Verbs) -> str:
    """The base form of a verb with "s" or "ing"; an empty string for another word."""
    if not word.endswith(ending) or len(word) <= len(ending) + 1:
        return ""
    stem = word.removesuffix(ending)
    candidates = [stem, f"{stem}e", stem.removesuffix("e"), re.sub(r"ie$", "y", stem)]
    if ending == "ing" and len(stem) > 2 and stem[-1] == stem[-2]:
        candidates.insert(0, stem[:-1])
    return next((base for base in candidates if base in verbs), "")


def _is_clear(asked: str) -> bool:
    """Whether a question makes sense without its page before one's eyes."""
    return not _GIVES_UP.search(asked) and 4 <= len(asked.split()) <= 20
