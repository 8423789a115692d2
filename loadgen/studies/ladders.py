"""Which widths lines should be padded to: accuracy, wasted pixels and speed of ladders, for each model set.

    python -m loadgen.studies.ladders DIR [--lines DIR] [--quick | --full]

DIR has pages with labelled lines (`points` and `text` in labels.jsonl), which are cut out by their labels;
`--lines` is a folder of images of one line with labels, which are all read. Every line is read at the width
that each rule gives it, in batches of equal widths as the product forms them. A rule without a closed set of
widths cannot be warmed up, so it is judged by its text only.

Speed is processor time inside of the engine, with one thread, so that other work on the machine hardly
matters; it is told as a ratio to the shipped ladder's in the same run. Takes some ten minutes of processor
time and is not a part of the benchmark; what it found is in docs/ladders.md.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen import corpus
from loadgen.corpus import Document
from loadgen.report import Section
from loadgen.score import distance, plain
from loadgen.studies import cli
from loadgen.studies.bare import laid
from loadgen.studies.context import Context
from loadgen.studies.cuttings import page_of
from loadgen.studies.figures import Verdict, table, verdict_list, with_verdicts
from services.common.engines.base import Engine, EngineSpec, Head, create_engine
from services.common.models import resolve
from services.gateway.crops import crop
from services.recognizer.decode import decode, valid_steps
from services.recognizer.preprocess import WIDTH_LADDER, padded_width, resize

log = logging.getLogger(__name__)

Line = NDArray[np.uint8]
Rule = Callable[[int], int]

MODELS = ("ppocr-v6-small", "ppocr-v5-mobile", "ppocr-v4-mobile")
ENGINE = "openvino"
SEED = 5
LINES, QUICK_LINES = 420, 40
"""How many are read: those that are alone in an image, and a sample of those of the pages."""
TIMED_LINES, ROUNDS = 80, 2
"""Speed is told by the last lines of the sample, read again and again in turn with each of the rules."""
THREADS = 1
MAX_BATCH_SIZE = 4
LEAST_WIDTH = 16
WIDEST = WIDTH_LADDER[-1]

PADDLEOCR_LEAST = 320
"""Pixels; PaddleOCR pads a line that is read alone to at least this width, and no other line."""


@dataclass(frozen=True)
class Labelled:
    """A line at 48 rows and what stands in it."""

    image: Line
    text: str
    alone: bool
    """Whether it is an image of its own, not a part of a page."""


@dataclass(frozen=True)
class Padding:
    """A rule for the padded width of a line, from its own width. `rungs` is None for an open set."""

    name: str
    width: Rule
    rungs: int | None = None


@dataclass(frozen=True)
class Row:
    """What a rule gave with a model set. CER in per cent, of all lines and of those alone in an image.

    `ms` is processor time a line, None where there was nothing to warm up; `edits` are those of each line.
    """

    models: str
    padding: str
    rungs: int | None
    valid: float
    cer_percent: float
    cer_alone_percent: float
    exact: float
    ms: float | None
    edits: tuple[int, ...]


# ---------------------------------------------------------------- pure


def geometric(least: int, ratio: float, step: int = 16, most: int = WIDEST) -> tuple[int, ...]:
    """Widths that rise by `ratio`, rounded up to `step`, and by one `step` at least."""
    rungs = [least]
    while rungs[-1] < most:
        rungs.append(min(most, max(rungs[-1] + step, math.ceil(rungs[-1] * ratio / step) * step)))
    return tuple(rungs)


def ladder(name: str, rungs: Sequence[int]) -> Padding:
    """The rule that takes the next rung."""
    return Padding(name, partial(padded_width, ladder=rungs), len(rungs))


OPEN = (
    Padding("its own width", lambda width: max(width, LEAST_WIDTH)),
    Padding("PaddleOCR's for a line alone", lambda width: max(width, PADDLEOCR_LEAST)),
)
CLOSED = (
    ladder("the shipped ladder", WIDTH_LADDER),
    ladder("steps of 32", range(32, WIDEST + 1, 32)),
    ladder("from 96 by 1.15", geometric(96, 1.15)),
    ladder("from 160 by 1.15", geometric(160, 1.15)),
)
OURS, THEIRS = CLOSED[0].name, OPEN[1].name


def batches(widths: Sequence[int], most: int) -> Iterator[tuple[int, list[int]]]:
    """Numbers of lines that run together, each with their common width."""
    for width in sorted(set(widths)):
        members = iter([number for number, own in enumerate(widths) if own == width])
        while chunk := list(islice(members, most)):
            yield width, chunk


def edits_of(labels: Sequence[str], texts: Sequence[str]) -> tuple[int, ...]:
    """Edits between the label and the text of each line, without case and white space."""
    pairs = zip(labels, texts, strict=True)
    return tuple(distance(plain(label), plain(text)) for label, text in pairs)


def cer(labels: Sequence[str], edits: Sequence[int]) -> float:
    """Edits for each hundred characters of the labels; NaN without any."""
    characters = sum(len(plain(label)) for label in labels)
    return 100 * sum(edits) / characters if characters else math.nan


def difference(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, float]:
    """By how many edits ours are more, and 1.96 standard errors of that, the lines being a random sample."""
    apart = [own - other for own, other in zip(ours, theirs, strict=True)]
    mean = sum(apart) / len(apart)
    return sum(apart), 1.96 * math.sqrt(sum((each - mean) ** 2 for each in apart))


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Whether our padding reads as well as PaddleOCR's own, by model set, as far as the lines can tell."""
    return [_verdict(found[OURS], found[THEIRS]) for found in by_models(rows).values()]


def by_models(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The rows by model set and by name of the padding."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.models, {})[row.padding] = row
    return found


def _verdict(ours: Row, theirs: Row) -> Verdict:
    more, error = difference(ours.edits, theirs.edits)
    return Verdict(
        f"{ours.models}: our padding reads no worse than PaddleOCR's for a line alone, as far as the sample"
        " tells",
        f"CER {ours.cer_percent:.2f} % and {theirs.cer_percent:.2f} %, {more:+d} edits with a 95 % error of"
        f" {error:.0f}",
        more <= error,
    )


HEADER = (
    "models",
    "padding",
    "widths",
    "own pixels",
    "CER % of single lines",
    "CER % of all",
    "edits more than PaddleOCR's",
    "exact",
    "ms of CPU a line, warm",
    "speed",
)


def cells(row: Row, of_models: Mapping[str, Row]) -> tuple[str, ...]:
    """A row of the table, with its ratios to PaddleOCR's padding and to the shipped ladder."""
    more, error = difference(row.edits, of_models[THEIRS].edits)
    ours = of_models[OURS].ms
    return (
        row.models,
        f"**{row.padding}**" if row.padding == OURS else row.padding,
        "open" if row.rungs is None else str(row.rungs),
        f"{row.valid:.3f}",
        f"{row.cer_alone_percent:.2f}",
        f"{row.cer_percent:.2f}",
        "" if row.padding == THEIRS else f"{more:+d} ± {error:.0f}",
        f"{row.exact:.3f}",
        "" if row.ms is None else f"{row.ms:.1f}",
        "" if row.ms is None or ours is None else f"{ours / row.ms:.2f}",
    )


def section(rows: Sequence[Row], lines: Sequence[Labelled]) -> Section:
    """What was found, for the document."""
    verdicts, found = judge(rows), by_models(rows)
    text = (
        f"{len(lines)} labelled lines, {sum(line.alone for line in lines)} of them single and the rest a"
        f" sample of those of the pages (seed {SEED}); engine {ENGINE}, batches of up to {MAX_BATCH_SIZE}"
        f" lines of equal width, {THREADS} thread. `own pixels` is the share of the pixels run that are the"
        " lines' own. `exact` is the share of lines without an edit. `±` is the 95 % error of a difference,"
        " the lines being a sample. `speed` is the shipped ladder's processor time divided by"
        f" the row's, both by {TIMED_LINES} of the lines read in turn with each rule; a rule without a closed"
        " set of widths cannot be warmed up and is judged by its text only."
    )
    figures = [{name: value for name, value in vars(row).items() if name != "edits"} for row in rows]
    data = {"rows": figures, "lines": len(lines)}
    shown = table(HEADER, [cells(row, found[row.models]) for row in rows])
    return Section(
        "Which widths", "\n\n".join([text, shown, verdict_list(verdicts)]), with_verdicts(data, verdicts)
    )


# ---------------------------------------------------------------- measuring


def run(context: Context) -> Section:
    """Measure. Raises SetupError for a model set that is not there, NoDocuments for a damaged page."""
    most = QUICK_LINES if context.quick else None if context.full else LINES
    lines = sample([*_alone(context.lines)], [*_cut_out(context.documents)], most)
    if not lines:
        return Section("Which widths", "Nothing to measure: no line of these documents has a label.")
    models = MODELS[:1] if context.quick else MODELS
    rows = [row for name in models for row in _of_models(name, lines)]
    return section(rows, lines)


def sample(alone: Sequence[Labelled], others: Sequence[Labelled], most: int | None) -> list[Labelled]:
    """`most` lines, None for all: those that are alone first, then others by chance."""
    if most is None or len(alone) + len(others) <= most:
        return [*alone, *others]
    draw, first = random.Random(SEED), min(most, len(alone))
    return [*draw.sample(alone, first), *draw.sample(others, most - first)]


def _cut_out(documents: Sequence[Document]) -> Iterator[Labelled]:
    labels = corpus.label_rows(documents[0].path.parent)
    for document in documents:
        found = [line for line in labels.get(document.name, {}).get("lines", ()) if line.get("points")]
        page = page_of(document) if found else None
        for line in found:
            assert page is not None
            cut = crop(page, np.asarray(line["points"], np.float32))
            yield Labelled(resize(cut), line["text"], alone=False)


def _alone(folder: Path | None) -> Iterator[Labelled]:
    if folder is None:
        return
    for name, row in corpus.label_rows(folder).items():
        image = page_of(Document(folder / name, (folder / name).read_bytes()))
        yield Labelled(resize(image), row["text"], alone=True)


def _of_models(models: str, lines: Sequence[Labelled]) -> Iterator[Row]:
    files = resolve(models, "rec")
    engine = create_engine(EngineSpec(engine=ENGINE, model=files, head=Head.CTC, threads=THREADS))
    reader = Reader(engine, files.charset, lines)
    times = timed(Reader(engine, files.charset, lines[-TIMED_LINES:]))
    for padding in (*OPEN, *CLOSED):
        row = _row(models, padding, reader, times.get(padding.name))
        log.info("%s, %s: CER %.2f %%, %.3f own pixels", models, padding.name, row.cer_percent, row.valid)
        yield row


def timed(reader: "Reader") -> dict[str, float]:
    """Processor milliseconds a line of each closed rule, all shapes warm: the least of some rounds."""
    rules = {padding.name: reader.widths(padding) for padding in CLOSED}
    for widths in rules.values():
        reader.read(widths)
    rounds = [{name: reader.read(widths)[1] for name, widths in rules.items()} for _ in range(ROUNDS)]
    return {name: 1000 * min(one[name] for one in rounds) / len(reader.lines) for name in rules}


def _row(models: str, padding: Padding, reader: "Reader", ms: float | None) -> Row:
    own, widths = reader.own, reader.widths(padding)
    texts, _ = reader.read(widths)
    labels = [line.text for line in reader.lines]
    edits = edits_of(labels, texts)
    singles = [number for number, line in enumerate(reader.lines) if line.alone]
    return Row(
        models=models,
        padding=padding.name,
        rungs=padding.rungs,
        valid=sum(own) / sum(widths),
        cer_percent=cer(labels, edits),
        cer_alone_percent=cer([labels[n] for n in singles], [edits[n] for n in singles]),
        exact=edits.count(0) / len(edits),
        ms=ms,
        edits=edits,
    )


class Reader:
    """Reads all lines at given widths."""

    def __init__(self, engine: Engine, charset: Sequence[str], lines: Sequence[Labelled]) -> None:
        self.lines = lines
        self.own = [line.image.shape[1] for line in lines]
        self._engine = engine
        self._charset = charset

    def widths(self, padding: Padding) -> list[int]:
        """The width of each line by a rule."""
        return [min(padding.width(width), WIDEST) for width in self.own]

    def read(self, widths: Sequence[int]) -> tuple[list[str], float]:
        """The text of each line, and the processor seconds inside the engine."""
        texts, seconds = [""] * len(self.lines), 0.0
        for width, members in batches(widths, MAX_BATCH_SIZE):
            pixels, sizes = laid([self.lines[number].image for number in members], width)
            began = time.process_time()
            classes, probabilities = self._engine.run(pixels, sizes)
            seconds += time.process_time() - began
            for number, *read in zip(members, classes, probabilities, strict=True):
                own = self.lines[number].image.shape[1]
                steps = valid_steps(own, width, len(read[0]))
                texts[number] = decode(read[0], read[1], self._charset, steps).text
        return texts, seconds


if __name__ == "__main__":
    cli.main(run)
