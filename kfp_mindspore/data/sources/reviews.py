"""Product reviews with a sentiment, composed from a small grammar: a data set of texts that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects

NAME = "reviews"
_WHERE = f"{NAME} (generated)"
_COUNT = 4000
_SEED = 26
# Reviews whose writer chose the other label.
_WRONG_LABELS = 0.02
_TYPOS = 0.01
_LENGTH = 64

_PRODUCTS = {
    "kettle": ("lid", "handle", "switch", "spout"),
    "pair of headphones": ("sound", "battery", "cable", "headband"),
    "rain jacket": ("zip", "hood", "fabric", "lining"),
    "desk lamp": ("light", "arm", "switch", "base"),
    "backpack": ("strap", "zip", "front pocket", "fabric"),
    "keyboard": ("space bar", "cable", "layout", "stand"),
    "blender": ("motor", "jar", "blade", "lid"),
    "tent": ("frame", "door", "fabric", "floor"),
    "coffee grinder": ("motor", "mill", "hopper", "dial"),
    "bicycle light": ("battery", "clip", "beam", "casing"),
}
_PRAISE = (
    "great", "excellent", "solid", "reliable", "lovely", "impressive", "well made", "sturdy", "superb", "good",
    "convincing", "flawless",
)  # fmt: skip
_FAULTS = (
    "poor", "flimsy", "unreliable", "awful", "disappointing", "cheap", "badly made", "fragile", "useless", "bad",
    "annoying", "faulty",
)  # fmt: skip
_DEGREES = ("", "", "really ", "very ", "quite ", "surprisingly ")
# {a}: an adjective of the clause's own sentiment, {o}: one of the other; the order of the words decides.
_SAME = (
    "the {part} is {d}{a}",
    "the {part} feels {a} after {time}",
    "I expected it to be {o}, but the {part} is {d}{a}",
    "others call the {part} {o}; mine is {a}",
    "the {part} is not {o} at all",
    "nothing about the {part} is {o}",
    "I was told that the {part} is {o}, which is not true",
    "it is anything but {o}",
)
_POSITIVE = (
    "I have no complaints about the {part}",
    "the {part} has never failed in {time}",
    "I would buy it again",
    "it is worth every cent",
    "my {person} wants one too",
)
_NEGATIVE = (
    "I have many complaints about the {part}",
    "the {part} failed after {time}",
    "I would never buy it again",
    "it is not worth a cent",
    "my {person} sent it back",
)
_OPENINGS = (
    "Bought this {product} for my {person}.", "We have used the {product} for {time}.", "My second {product}.",
    "The {product} arrived after {number} days.", "A {product} for the holidays.", "",
)  # fmt: skip
_CLOSINGS = ("The manual has {number} pages.", "It comes in {number} colours.", "Shipping took {time}.", "", "", "")
_PEOPLE = ("sister", "father", "neighbour", "colleague", "daughter", "friend", "flatmate", "aunt")
_TIMES = ("two weeks", "a month", "one winter", "a few days", "half a year", "three trips", "a year")
_JOINTS = (". ", ", and ", "; ", "! ")


def read_reviews(request: SourceRequest) -> Source:
    """Compose 4,000 reviews, half of them `positive`, half `negative`; the same ones each time.

    Fields: `text`, one to four clauses with negations, contrasts and a few typing mistakes, and the default target
    `label`. 2 % of the labels are wrong, so no model is right about more than 98 %.

    The declared preprocessing splits the text into lower-case words: 64 ids.

    Raises:
        UserError: A field is missing.
    """
    from kfp_mindspore.transform.categories import Tokenize

    random = Random(_SEED)
    labels = [index % 2 == 0 for index in range(_COUNT)]
    columns = {
        "text": to_objects([_write_review(random, label).encode() for label in labels]),
        "label": to_objects(
            [b"positive" if label != (random.random() < _WRONG_LABELS) else b"negative" for label in labels]
        ),
    }
    names = select_fields(_WHERE, request, list(columns))
    return Source(
        "generated",
        _WHERE,
        {name: columns[name] for name in names},
        target=("label",),
        steps=(Tokenize(_LENGTH, "words", lowercase=True, column="text"),),
    )


def _write_review(random: Random, is_positive: bool) -> str:
    """Return a review; most of its clauses have its sentiment, a dissenting one is a concession."""
    product = _choose(random, tuple(_PRODUCTS))
    words = {
        "product": product,
        "person": _choose(random, _PEOPLE),
        "number": str(2 + int(random.random() * 9)),
    }
    clauses = [_write_clause(random, is_positive, product, words) for _ in range(1 + int(random.random() * 3))]
    body = clauses[0]
    for clause in clauses[1:]:
        joint = _choose(random, _JOINTS)
        body += joint + (_capitalize(clause) if joint in (". ", "! ") else clause)
    if random.random() < 0.4:
        body = f"although {_write_clause(random, not is_positive, product, words)}, {body}"
    parts = [_fill(random, _OPENINGS, words), f"{_capitalize(body)}.", _fill(random, _CLOSINGS, words)]
    return _mistype(random, " ".join(part for part in parts if part))


def _write_clause(random: Random, is_positive: bool, product: str, words: dict[str, str]) -> str:
    own, other = (_PRAISE, _FAULTS) if is_positive else (_FAULTS, _PRAISE)
    values = {
        **words,
        "part": _choose(random, _PRODUCTS[product]),
        "a": _choose(random, own),
        "o": _choose(random, other),
        "d": _choose(random, _DEGREES),
    }
    patterns = _SAME if random.random() < 0.75 else (_POSITIVE if is_positive else _NEGATIVE)
    return _fill(random, patterns, values)


def _fill(random: Random, patterns: Sequence[str], words: dict[str, str]) -> str:
    return _choose(random, patterns).format(**words, time=_choose(random, _TIMES))


def _mistype(random: Random, text: str) -> str:
    """Return the text with two letters exchanged in some words."""
    words = text.split(" ")
    for index, word in enumerate(words):
        if len(word) > 4 and random.random() < _TYPOS:
            place = 1 + int(random.random() * (len(word) - 3))
            words[index] = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    return " ".join(words)


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _choose(random: Random, values: Sequence[str]) -> str:
    # Random.random alone gives the same sequence in all versions of Python.
    return values[int(random.random() * len(values))]
