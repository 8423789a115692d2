"""loadgen: what the pipeline carries on this machine, beside its bare models and its peers.

Only declares commands; what they do is imported when they run.
"""

import contextlib
import logging
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.common.errors import SetupError

if TYPE_CHECKING:
    from loadgen.baseline import Plan
    from loadgen.benchmark import Report
    from loadgen.report import Section

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
        help="Other systems, of rapidocr,paddleocr; '' for none. Else both; with --quick the first.",
    ),
]
SystemsOption = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Model sets, of v6-small,v6-small-int8,v5-mobile. Else likewise."),
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
    from loadgen import benchmark, machine

    with _ended_in_words():
        here = machine.look()
        with _plan(folder, kafka, peers, systems, mix, quick=quick) as plan:
            parts = benchmark.of_baseline(plan, here, called or folder.resolve().name, _command())
            _write(benchmark.Report(out / "baseline.md", "Baseline"), parts)


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
) -> None:
    """The baseline and all studies: memory, classes, designs of the field, batch invariance."""
    from loadgen import benchmark, machine
    from loadgen.studies.context import Context

    with _ended_in_words():
        here = machine.look()
        with _plan(folder, kafka, peers, systems, mix, quick=quick) as plan:
            context = Context(plan.corpus.documents, plan.kafka or None, quick=quick, lines=lines)
            name = called or folder.resolve().name
            parts = benchmark.of_everything(plan, context, here, name, _command())
            _write(benchmark.Report(out / "benchmarks.md", "Benchmarks"), parts)


@contextlib.contextmanager
def _plan(
    folder: Path, kafka: str, peers: str | None, systems: str | None, mix: Path | None, *, quick: bool
) -> Iterator["Plan"]:
    """What was asked for, with a broker that runs as long as the block."""
    from loadgen import corpus
    from loadgen.baseline import FULL, QUICK, SYSTEMS, Plan
    from loadgen.broker import broker
    from loadgen.machine import cores
    from loadgen.peers.measure import PEERS

    chosen = _names(systems, SYSTEMS, "--systems", quick=quick)
    rivals = _names(peers, PEERS, "--peers", quick=quick)
    pages, others = corpus.load(folder), corpus.load(mix).documents if mix else ()
    with broker(kafka) as address:
        yield Plan(
            corpus=pages,
            mix=others,
            kafka=address,
            systems=tuple(SYSTEMS[name] for name in chosen),
            peers=rivals,
            scale=QUICK if quick else FULL,
            cores=cores(),
        )


def _names(asked: str | None, known: Mapping[str, object], option: str, *, quick: bool) -> tuple[str, ...]:
    """The names in a list with commas. Without a list: all that are known, or the first if `quick`."""
    if asked is None:
        return tuple(known)[: 1 if quick else None]
    names = tuple(name.strip() for name in asked.split(",") if name.strip())
    if wrong := [name for name in names if name not in known]:
        raise typer.BadParameter(
            f"{', '.join(wrong)} is not known; there are {', '.join(known)}", param_hint=option
        )
    return names


def _command() -> tuple[str, ...]:
    """The command without the folders of this machine."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return (shlex.join(["loadgen", *words]),)


def _write(report: "Report", parts: Iterable["Section"]) -> None:
    report.collect(parts)
    typer.echo(report.path.read_text(encoding="utf-8"))
    typer.echo(f"written to {report.path} and {report.path.with_suffix('.json').name}", err=True)


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
