"""loadgen: what the pipeline carries on this machine, beside its bare models and its peers.

Only declares commands; what they do is imported when they run.
"""

import contextlib
import logging
import shlex
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.common.errors import SetupError

if TYPE_CHECKING:
    from loadgen.baseline import Plan
    from loadgen.corpus import Document

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure the pipeline on your own pages.\n\n"
    "Exit status: 0 measured, 1 not, with the reason; 2 wrong use.",
)

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder of images, one page each; labels.jsonl in it is optional."),
]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the report is written.")]
KafkaOption = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="A broker; `local` starts Apache Kafka from the source tree. Without one: through gRPC.",
    ),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Some minutes less, and figures that are less sure.")
]
PeersOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Other systems, of rapidocr,paddleocr; '' for none. Else both; with --quick none.",
    ),
]
SystemsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Model sets, of v6-small,v6-small-int8,v5-mobile. Else all; with --quick the first.",
    ),
]
CalledOption = Annotated[
    str, typer.Option(metavar="TEXT", help="What the report calls the pages; else the name of the folder.")
]
MixOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Other pages; both together are a mixed load that shows how batches fill."
    ),
]
LinesOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Images of single lines, for the study of batch invariance."),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS",
        help="Measure these parts anew and keep the rest of the report: of baseline, cpu, waiting, memory,"
        " classes, designs, invariance.",
    ),
]


@app.callback()
def _callback() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")


@app.command()
def baseline(
    folder: Folder,
    out: OutOption = Path("out/baseline"),
    kafka: KafkaOption = "",
    quick: QuickOption = False,
    peers: PeersOption = None,
    systems: SystemsOption = None,
    called: CalledOption = "",
    mix: MixOption = None,
) -> None:
    """The pipeline beside the floor of its models and beside its peers.

    The floor is what the bare models take for the same pages in a loop, with nothing around them. Peers run
    the same weights in environments of their own, which are made in the cache folder the first time.
    """
    options = _Options(folder, kafka, peers, systems, mix, called, quick=quick)
    _measure(options, out / "baseline.md", "Baseline", ("baseline",))


@app.command()
def bench(
    folder: Folder,
    out: OutOption = Path("out/bench"),
    kafka: KafkaOption = "",
    quick: QuickOption = False,
    peers: PeersOption = None,
    systems: SystemsOption = None,
    called: CalledOption = "",
    mix: MixOption = None,
    lines: LinesOption = None,
    only: OnlyOption = None,
) -> None:
    """The baseline and all studies: memory, classes, designs of the field, batch invariance.

    Some 20 minutes on two cores; with --quick 3, which leave out the peers and most studies.
    """
    from loadgen.benchmark import PARTS, QUICK_PARTS

    options = _Options(folder, kafka, peers, systems, mix, called, lines, quick=quick)
    names = _names(only, PARTS, "--only", QUICK_PARTS if quick else PARTS)
    _measure(options, out / "benchmarks.md", "Benchmarks", names, anew=only is None)


@dataclass(frozen=True)
class _Options:
    """What both commands are told."""

    folder: Path
    kafka: str
    peers: str | None
    systems: str | None
    mix: Path | None
    called: str
    lines: Path | None = None
    quick: bool = False


def _measure(options: _Options, path: Path, title: str, names: Sequence[str], *, anew: bool = True) -> None:
    """Measure these parts into a report, `anew` or beside the other parts that it has."""
    from loadgen import benchmark, machine
    from loadgen.studies.context import Context

    with _ended_in_words():
        here, report = machine.look(), benchmark.Report(path, title)
        kept = [] if anew else report.kept(here)
        with _plan(options) as (plan, documents):
            context = Context(documents, plan.kafka or None, quick=options.quick, lines=options.lines)
            ways = benchmark.measures(plan, context, options.called or options.folder.resolve().name)
            command = _command()
            fresh = benchmark.measured(names, ways, context, here, command)
            report.collect(here.section([command]), fresh, kept)
    typer.echo(path.read_text(encoding="utf-8"))
    typer.echo(f"written to {path} and {report.data_path.name}", err=True)


@contextlib.contextmanager
def _plan(options: _Options) -> Iterator[tuple["Plan", "tuple[Document, ...]"]]:
    """The baseline that was asked for, and all pages, with a broker that runs as long as the block."""
    from loadgen import corpus
    from loadgen.baseline import FULL, QUICK, SYSTEMS, Plan
    from loadgen.broker import broker
    from loadgen.machine import cores
    from loadgen.peers.measure import PEERS

    quick, mix = options.quick, options.mix
    chosen = _names(options.systems, SYSTEMS, "--systems", tuple(SYSTEMS)[: 1 if quick else None])
    rivals = _names(options.peers, PEERS, "--peers", () if quick else tuple(PEERS))
    pages, others = corpus.load(options.folder), corpus.load(mix).documents if mix and not quick else ()
    with broker(options.kafka) as address:
        plan = Plan(
            corpus=pages.first(QUICK.counted) if quick else pages,
            mix=others,
            kafka=address,
            systems=tuple(SYSTEMS[name] for name in chosen),
            peers=rivals,
            scale=QUICK if quick else FULL,
            cores=cores(),
        )
        yield plan, pages.documents


def _names(
    asked: str | None, known: Collection[str], option: str, otherwise: Sequence[str]
) -> tuple[str, ...]:
    """The names in a list with commas; `otherwise` without a list."""
    if asked is None:
        return tuple(otherwise)
    names = tuple(name.strip() for name in asked.split(",") if name.strip())
    if wrong := [name for name in names if name not in known]:
        raise typer.BadParameter(
            f"{', '.join(wrong)} is not known; there are {', '.join(known)}", param_hint=option
        )
    return names


def _command() -> str:
    """The command without the folders of this machine."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return shlex.join(["loadgen", *words])


@contextlib.contextmanager
def _ended_in_words() -> Iterator[None]:
    """What the user must put right is a sentence, not a trace."""
    try:
        yield
    except SetupError as error:
        typer.echo(f"loadgen: {error}", err=True)
        raise typer.Exit(1) from None


def main() -> None:
    """Command line."""
    # So that the services, the broker and the peers are ended in order then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()


if __name__ == "__main__":
    main()
