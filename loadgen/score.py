"""How much of what stands on the documents was read. Pure.

Text is compared without white space, in one case and in Unicode's compatibility form: labels of receipts are
all capitals, and nobody agrees on spaces.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """Accuracy over all labelled strings.

    `found` is the share that stands in the text of its document as a whole. `cer_percent` is the character
    error rate: the edits between each label and the piece of the text that is most like it, in per cent of
    the labelled characters.
    """

    strings: int
    found: float
    cer_percent: float


def plain(text: str) -> str:
    """The form in which texts are compared."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(folded.split())


def score(labels: Mapping[str, Sequence[str]], texts: Mapping[str, Iterable[str]]) -> Score | None:
    """Compare the texts of lines by document with the labels of those documents; None without any label.

    A labelled document without texts counts as read empty, unless it is no key of `texts`: then it was no
    part of the measurement.
    """
    strings = found = characters = edits = 0
    for name, lines in texts.items():
        read = "".join(map(plain, lines))
        for wanted in filter(None, map(plain, labels.get(name, ()))):
            missed = 0 if wanted in read else distance_within(wanted, read)
            strings, characters = strings + 1, characters + len(wanted)
            found, edits = found + (missed == 0), edits + missed
    return Score(strings, found / strings, 100 * edits / characters) if strings else None


def distance_within(wanted: str, text: str) -> int:
    """Least number of edits that turn some piece of `text`, perhaps an empty one, into `wanted`."""
    # A piece may begin anywhere at no cost, and end anywhere.
    return min(_last_row(wanted, text, [0] * (len(text) + 1)))


def distance(one: str, other: str) -> int:
    """Edits that turn one text into the other."""
    return _last_row(one, other, list(range(len(other) + 1)))[-1]


def _last_row(wanted: str, text: str, row: list[int]) -> list[int]:
    """Edits from all of `wanted` to each beginning of `text`; `row` is what none of `wanted` costs."""
    for count, character in enumerate(wanted, start=1):
        above, row = row, [count]
        for index, other in enumerate(text):
            row.append(min(above[index] + (character != other), above[index + 1] + 1, row[index] + 1))
    return row
