"""ocrctl: the operator's command. Only declares commands; what they do is imported when they run."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import Commands, UsageError

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Read the text of scanned slips, receipts and forms.\n\n"
    "Start with `ocrctl up` in one terminal and `ocrctl submit --wait FILE` in another; "
    "`ocrctl doctor` says what is missing.\n\n"
    "Exit status: 0 all documents were read, 1 some were not, 2 wrong use, 3 nobody answers.",
)
models_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, fetch, make and verify model sets.",
)
app.add_typer(models_app, name="models")
dlq_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at dead letters, the jobs that could not be done, and send them back.",
)
app.add_typer(dlq_app, name="dlq")


class Format(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSONL = "jsonl"


class Priority(StrEnum):
    """Classes of service."""

    ONLINE = "online"
    BULK = "bulk"


Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES…", help="Documents (JPEG, PNG, WebP, BMP, GIF, TIFF, PDF), or folders of them."
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option("--format", "-f", help="text: the text, for reading. jsonl: one JSON object for each file."),
]
OverlayOption = Annotated[
    Path | None,
    typer.Option(
        "--overlay",
        metavar="DIR",
        help="Also draw each page with its boxes and text into this folder, which must not be that of a "
        "document. No file there is overwritten: a name that is taken gets a number. The text needs a font "
        "of this computer; without one that fits, the boxes carry numbers and a .txt file explains them.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=0.1, metavar="SECONDS", help="Give up the files still open after so long without any answer."
    ),
]
GatewayOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The gateway. Else OCR_GATEWAY, a running `up`, or 127.0.0.1:50051."
    ),
]
KafkaOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The broker. Else OCR_KAFKA, a running `up`, or 127.0.0.1:9092."),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        help="openvino, paddle, simulated or auto. Else OCR_ENGINE, or auto: the fastest that is installed."
    ),
]
ModelsOption = Annotated[
    str | None,
    typer.Option(help="A model set (see `ocrctl models list`), folder or file. Else OCR_MODELS, or auto."),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Fetch nothing; fail when models are missing.")
]
JobsTopic = Annotated[str, typer.Option(envvar="OCR_JOBS_TOPIC", help="Topic of the documents.")]
ResultsTopic = Annotated[str, typer.Option(envvar="OCR_RESULTS_TOPIC", help="Topic of the results.")]
DeadLetterTopic = Annotated[
    str, typer.Option(envvar="OCR_DLQ_TOPIC", help="Topic of what could not be read.")
]
InFlightOption = Annotated[int, typer.Option(min=1, max=64, help="Documents on their way at once.")]
PriorityOption = Annotated[
    Priority, typer.Option(help="online: someone waits. bulk: fills the places that online work leaves free.")
]


@app.command()
def up(
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Use this broker. Else OCR_KAFKA. Else one is started, which forgets all at the end.",
        ),
    ] = None,
    ports: Annotated[
        str,
        typer.Option(
            metavar="fixed|free|NAME=PORT,…",
            help="fixed: gateway 50051, detector 50052, recognizer 50053, kafka 9092, gateway-metrics 9464, "
            "detector-metrics 9465, recognizer-metrics 9466. free: any that are free. Or name some of them.",
        ),
    ] = "fixed",
    engine: EngineOption = None,
    models: ModelsOption = None,
    offline: OfflineOption = False,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    jobs_topic: JobsTopic = "ocr.jobs",
    results_topic: ResultsTopic = "ocr.results",
    dlq_topic: DeadLetterTopic = "ocr.jobs.dlq",
) -> None:
    """Start the pipeline: a broker, detector, recognizer and gateway, with one log. Ctrl-C stops it in order.

    Every other setting of the services is taken from the environment (OCR_MAX_BATCH_SIZE=16, and so on;
    `ocr-recognizer --help` lists them). What was taken in is finished before the end; a second Ctrl-C leaves
    at once. If a service or the broker dies, all stop, with its exit status.

    Client commands find a running `up` by themselves, but OCR_GATEWAY and OCR_KAFKA come first. So `up` uses
    the broker that OCR_KAFKA names, and says so when OCR_GATEWAY names another gateway than its own.
    """
    from services.cli import commands
    from services.cli.kafka_client import Topics

    topics = Topics(jobs_topic, results_topic, dlq_topic)
    raise typer.Exit(commands.up(kafka, ports, engine, models, log_level, topics, offline=offline))


@app.command()
def recognize(
    files: Files,
    form: FormatOption = Format.TEXT,
    overlay: OverlayOption = None,
    gateway: GatewayOption = None,
    max_in_flight: InFlightOption = 8,
    priority: PriorityOption = Priority.ONLINE,
    timeout: TimeoutOption = 60.0,
) -> None:
    """Read documents through gRPC and print what they say, in the order given.

    For someone who waits. `ocrctl submit` sends them through Kafka instead.
    """
    from services.cli import commands

    raise typer.Exit(
        commands.recognize(files, form, overlay, gateway, max_in_flight, priority.upper(), timeout)
    )


@app.command()
def submit(
    files: Files,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the results and print them.")] = False,
    form: FormatOption = Format.TEXT,
    overlay: OverlayOption = None,
    kafka: KafkaOption = None,
    timeout: TimeoutOption = 120.0,
    jobs_topic: JobsTopic = "ocr.jobs",
    results_topic: ResultsTopic = "ocr.results",
    dlq_topic: DeadLetterTopic = "ocr.jobs.dlq",
) -> None:
    """Send documents through Kafka; print their job ids, or with --wait what they say, in the order given.

    Results are read without a consumer group, so no other reader of the topics is disturbed.
    """
    from services.cli import commands
    from services.cli.kafka_client import Topics

    if overlay is not None and not wait:
        raise UsageError("--overlay draws what was read: it needs --wait.")
    topics = Topics(jobs_topic, results_topic, dlq_topic)
    if wait:
        raise typer.Exit(commands.submit_and_wait(files, form, overlay, kafka, topics, timeout))
    raise typer.Exit(commands.submit(files, form, kafka, topics))


@app.command()
def results(
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="With --follow: begin with what the topics hold already.")
    ] = False,
    form: FormatOption = Format.TEXT,
    kafka: KafkaOption = None,
    results_topic: ResultsTopic = "ocr.results",
    dlq_topic: DeadLetterTopic = "ocr.jobs.dlq",
) -> None:
    """Print the results in Kafka, dead letters among them: all that are there, or with --follow what comes.

    The exit status says whether all of them were read.
    """
    from services.cli import commands
    from services.cli.kafka_client import Topics

    topics = Topics(results=results_topic, dead_letters=dlq_topic)
    raise typer.Exit(commands.results(form, kafka, topics, follow=follow, from_beginning=from_beginning))


@app.command()
def doctor(engine: EngineOption = None, models: ModelsOption = None, kafka: KafkaOption = None) -> None:
    """Look at versions, devices, engines, models, ports and broker; say what is missing and how to get it.

    The exit status is 1 when something that `ocrctl up` needs is missing.
    """
    from services.cli import commands

    raise typer.Exit(commands.doctor(engine, models, kafka))


@app.command()
def demo(
    files: Files,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the pictures and the log.")] = Path(
        "out/demo"
    ),
    engine: EngineOption = None,
    models: ModelsOption = None,
    offline: OfflineOption = False,
    timeout: TimeoutOption = 120.0,
) -> None:
    """Start everything on free ports, read FILES through Kafka, show text, times and pictures, and stop.

    Everything is its own: OCR_KAFKA and OCR_GATEWAY are not looked at.
    """
    from services.cli import commands

    raise typer.Exit(commands.demo(files, out, engine, models, timeout, offline=offline))


LetterFilter = Annotated[
    list[str] | None, typer.Option("--letter", metavar="P:O", help="This letter, as `dlq list` names it.")
]
ReasonFilter = Annotated[
    list[str] | None,
    typer.Option("--reason", metavar="CODE", help="Error code, such as CORRUPT_INPUT; may be repeated."),
]
JobFilter = Annotated[list[str] | None, typer.Option("--job-id", help="Of this job; may be repeated.")]
SinceFilter = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Written since: 90s, 30m, 2h, 7d ago, or ISO 8601 (UTC)."),
]
UntilFilter = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Written before.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="No more than so many, the oldest first.")
]


@dlq_app.command("list")
def list_letters(
    letter: LetterFilter = None,
    reason: ReasonFilter = None,
    job_id: JobFilter = None,
    since: SinceFilter = None,
    until: UntilFilter = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TEXT,
    kafka: KafkaOption = None,
    dlq_topic: DeadLetterTopic = "ocr.jobs.dlq",
) -> None:
    """The dead letters, the oldest first, and which of them were sent back."""
    from services.cli import commands

    filters = commands.Filters(letter or (), reason or (), job_id or (), since, until)
    commands.dlq_list(kafka, dlq_topic, filters, limit, form)


@dlq_app.command("show")
def show_letter(
    letter: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="As `dlq list` names it.")],
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the original document to this new file.")
    ] = None,
    form: FormatOption = Format.TEXT,
    kafka: KafkaOption = None,
    dlq_topic: DeadLetterTopic = "ocr.jobs.dlq",
) -> None:
    """One dead letter: why, from where, all headers, and how its document begins."""
    from services.cli import commands

    commands.dlq_show(kafka, dlq_topic, letter, form, save)


@dlq_app.command("redrive")
def redrive_letters(
    letter: LetterFilter = None,
    reason: ReasonFilter = None,
    job_id: JobFilter = None,
    since: SinceFilter = None,
    until: UntilFilter = None,
    limit: LimitOption = None,
    max_redrives: Annotated[
        int, typer.Option(min=1, help="A job that was sent back so often and failed again stays.")
    ] = 3,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="No more than so many a second.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    kafka: KafkaOption = None,
    jobs_topic: JobsTopic = "ocr.jobs",
    dlq_topic: DeadLetterTopic = "ocr.jobs.dlq",
) -> None:
    """Send dead letters back to the topic they came from: value, key, headers and job id as they were.

    The header `redrive-count` goes up each time. Letters that were sent back before are passed over; they are
    noted in the topic DLQ.redriven, which is made when it is missing. The exit status is 1 when some stay.
    """
    from services.cli import commands
    from services.cli.kafka_client import Topics

    filters = commands.Filters(letter or (), reason or (), job_id or (), since, until)
    code = commands.dlq_redrive(
        kafka, Topics(jobs=jobs_topic, dead_letters=dlq_topic), filters, limit=limit,
        max_redrives=max_redrives, rate=rate, dry_run=dry_run, sure=yes,
    )  # fmt: skip
    raise typer.Exit(code)


@models_app.command("list")
def list_models() -> None:
    """The named model sets, whether they are here, and which engines can run them."""
    from services.cli import commands

    commands.list_models()


@models_app.command("fetch")
def fetch_models(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Model sets, or official PaddleOCR model names.")
    ],
) -> None:
    """Download model sets into the cache (OCR_MODELS_DIR, or the user's cache folder), hashes checked."""
    from services.cli import commands

    commands.fetch_models(names)


@models_app.command("quantize")
def quantize_models(
    force: Annotated[bool, typer.Option("--force", help="Make it again, though it is there.")] = False,
) -> None:
    """Make ppocr-v6-small-int8 out of ppocr-v6-small: 8-bit integers, for CPUs with VNNI or AMX.

    Takes some minutes and needs `pip install 'ocr-serving[quantize]'`. Uses nothing but shipped and drawn
    pages, and no network. The same versions of the tools give the same files on the same kind of processor.
    """
    from services.cli import commands

    commands.quantize_models(force=force)


@models_app.command("verify")
def verify_models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Model sets; without a name all in the cache.")
    ] = None,
) -> None:
    """Compare the files in the cache with their pinned hashes. The exit status is 1 when one differs."""
    from services.cli import commands

    raise typer.Exit(commands.verify_models(names or []))


@app.command()
def version() -> None:
    """Print the version."""
    import importlib.metadata

    typer.echo(importlib.metadata.version("ocr-serving"))


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="ocrctl")


if __name__ == "__main__":
    main()
