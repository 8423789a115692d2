"""What each command does. Imported when one runs, so that `--help` stays quick."""

import asyncio
import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli import dead_letters, documents, formats, logs, ports, stack
from services.cli import state as states
from services.cli.dead_letters import Filter
from services.cli.embedded_broker import BrokerUnavailable, EmbeddedBroker
from services.cli.errors import CliError, ExitCode, UsageError, printable
from services.cli.formats import Format
from services.cli.kafka_client import MAX_RESULT_BYTES, Kafka, Topics, all_answers, create_topics, new_job_id
from services.cli.kafka_client import submit_and_wait as sent_and_awaited
from services.cli.output import Reporter, echo, require_output, show
from services.cli.ports import Ports
from services.cli.stack import Broker, ExistingBroker, Services, Stack
from services.cli.state import Address, StateFile, UpState
from services.cli.supervision import Exited, shell_code
from services.common import telemetry
from services.common.pb import ocr_pb2 as pb
from services.common.topics import topics_problem

PARTITIONS = 4  # of topics that `up` makes: a few gateways can share them
notes = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Send this command's spans where the standard variables say, if they do."""
    running = telemetry.setup_traces("ocrctl")
    try:
        yield
    finally:
        running.shutdown()


# -- clients


def recognize(
    files: Sequence[Path],
    form: str,
    overlay: Path | None,
    gateway: str | None,
    max_in_flight: int,
    priority: str,
    timeout_s: float,
) -> ExitCode:
    """Through gRPC."""
    from services.cli.grpc_client import GatewayStream

    expanded = documents.expand(files)
    job_ids = [new_job_id() for _ in expanded]
    reporter = Reporter(expanded, Format(form), overlay)

    async def all_of_them() -> None:
        stream = GatewayStream(
            states.gateway_address(gateway),
            expanded,
            job_ids,
            max_in_flight=max_in_flight,
            timeout_s=timeout_s,
            priority=pb.ONLINE if priority == "ONLINE" else pb.BULK,
        )
        async for index, result in stream.results():
            reporter.add(index, result)

    with traced(), reporter.progress():
        asyncio.run(all_of_them())
    return reporter.exit_code


def submit_and_wait(
    files: Sequence[Path],
    form: str,
    overlay: Path | None,
    kafka: str | None,
    topics: Topics,
    timeout_s: float,
) -> ExitCode:
    """Through Kafka, with the results."""
    expanded = documents.expand(files)
    job_ids = [new_job_id() for _ in expanded]
    reporter = Reporter(expanded, Format(form), overlay)
    with traced(), Kafka(states.kafka_address(kafka), topics) as client, reporter.progress():
        for index, result in sent_and_awaited(client, expanded, job_ids, timeout_s=timeout_s):
            reporter.add(index, result)
    return reporter.exit_code


def submit(files: Sequence[Path], form: str, kafka: str | None, topics: Topics) -> ExitCode:
    """Through Kafka, without waiting: prints the job ids."""
    require_output()
    expanded = documents.expand(files)
    job_ids = [new_job_id() for _ in expanded]
    all_sent = True
    with traced(), Kafka(states.kafka_address(kafka), topics) as client:
        for index, refused in client.submit(expanded, job_ids):
            all_sent &= refused is None
            _show_sent(Format(form), expanded[index], job_ids[index], refused)
    return ExitCode.OK if all_sent else ExitCode.SOME_FAILED


def _show_sent(form: Format, path: Path, job_id: str, refused: pb.Result | None) -> None:
    if refused is not None:
        show(refused, form, heading=True)
    elif form is Format.JSONL:
        echo(formats.sent_as_jsonl(documents.display_name(path), job_id))
    else:
        echo(f"{job_id}  {printable(documents.display_name(path))}")


def results(form: str, kafka: str | None, topics: Topics, *, follow: bool, from_beginning: bool) -> ExitCode:
    """What the topics hold, or what comes."""
    require_output()
    all_ok = True
    with Kafka(states.kafka_address(kafka), topics) as client, contextlib.suppress(KeyboardInterrupt):
        for result in all_answers(client, follow=follow, from_beginning=from_beginning):
            all_ok &= result.status == pb.OK
            show(result, Format(form), heading=True)
    return ExitCode.OK if all_ok else ExitCode.SOME_FAILED


# -- dead letters


@dataclass(frozen=True)
class Filters:
    """What the options say of which letters are meant."""

    places: Sequence[str]
    reasons: Sequence[str]
    job_ids: Sequence[str]
    since: str | None
    until: str | None

    def checked(self) -> Filter:
        """As a filter. Raises `UsageError`."""
        now = dt.datetime.now(dt.UTC)
        return dead_letters.checked_filter(
            self.places, self.reasons, self.job_ids, self.since, self.until, now
        )


def dlq_list(kafka: str | None, topic: str, filters: Filters, limit: int | None, form: str) -> None:
    """Those that are meant."""
    from services.cli import dlq

    wanted = filters.checked()
    with Kafka(states.kafka_address(kafka), Topics(dead_letters=topic)) as client:
        dlq.show_list(client, topic, wanted, limit, Format(form))


def dlq_show(kafka: str | None, topic: str, place: str, form: str, save: Path | None) -> None:
    """One, with its headers."""
    from services.cli import dlq

    with Kafka(states.kafka_address(kafka), Topics(dead_letters=topic)) as client:
        dlq.show_one(client, topic, place, Format(form), save)


def dlq_redrive(
    kafka: str | None,
    topics: Topics,
    filters: Filters,
    *,
    limit: int | None,
    max_redrives: int,
    rate: float | None,
    dry_run: bool,
    sure: bool,
) -> ExitCode:
    """Back to the jobs topic."""
    from services.cli import dlq

    address = states.kafka_address(kafka)
    asked = dlq.Redrive(filters.checked(), limit, max_redrives, rate, dry_run, sure)
    with Kafka(address, topics) as client:
        return dlq.redrive(client, address, topics, asked)


# -- running the pipeline


def up(
    kafka: str | None,
    ports_text: str,
    engine: str | None,
    models: str | None,
    log_level: str | None,
    topics: Topics,
    *,
    offline: bool,
) -> int:
    """The whole pipeline until a signal comes."""
    chosen, named = ports.parse(ports_text), states.named_kafka(kafka)
    _require_topics(topics)
    _require_choice(engine, models)
    if ports_text != "free":
        ports.require_free(chosen, embedded_broker=named is None)
    _ensure_models(engine, models, offline=offline)
    log = Console(highlight=False, soft_wrap=True)
    services = Services(chosen, engine, models, log_level, _environment(topics, own_broker=named is None))

    def say(message: str) -> None:
        _print_line(log, logs.heading("up", message))

    for note in _notes(named, chosen):
        say(note)

    async def serve() -> int:
        pipeline = _pipeline(
            _broker(named, chosen), services, topics, lambda n, t: _print_line(log, logs.render(n, t))
        )
        with contextlib.ExitStack() as while_ready:
            return await stack.run(
                pipeline, say, lambda took: _ready(pipeline, chosen, took, say, while_ready)
            )

    return asyncio.run(serve())


def _notes(named: Address | None, chosen: Ports) -> Iterator[str]:
    """Which of the variables that all commands obey make a difference here."""
    if named is not None:
        yield f"using the Kafka broker at {named.target} (from {named.origin}), and starting none"
    gateway = os.environ.get("OCR_GATEWAY")
    if gateway and gateway != chosen.address("gateway"):
        yield (
            f"OCR_GATEWAY is {gateway}: with it `ocrctl recognize` goes there and not to the gateway started "
            f"here, {chosen.address('gateway')}; unset it, or pass --gateway"
        )


def _ready(
    pipeline: Stack, chosen: Ports, took: float, say: Callable[[str], None], while_ready: contextlib.ExitStack
) -> None:
    gateway, kafka = chosen.address("gateway"), pipeline.kafka
    now = dt.datetime.now(dt.UTC).timestamp()
    addresses = (gateway, chosen.address("detector"), chosen.address("recognizer"), kafka)
    while_ready.enter_context(StateFile(states.runtime_folder(), UpState(os.getpid(), now, *addresses)))
    say(f"ready after {took:.1f} s: gRPC {gateway}, Kafka {kafka}, metrics on {chosen.gateway_metrics}")
    say("in another terminal:  ocrctl submit --wait FILE    or    ocrctl recognize FILE    (Ctrl-C stops)")


def _pipeline(
    broker: Broker, services: Services, topics: Topics, on_line: Callable[[str, str], None]
) -> Stack:
    def prepare(kafka: str) -> None:
        create_topics(Address(kafka, "--kafka or OCR_KAFKA"), topics, partitions=PARTITIONS)

    return Stack(
        broker,
        services.specs,
        services.wait_ready,
        prepare=prepare,
        on_line=on_line,
        patience_s=stack.patience_s(services.environment),
    )


def _broker(named: Address | None, chosen: Ports) -> Broker:
    if named is not None:
        return ExistingBroker(named.target)
    return OwnBroker(chosen.kafka)


class OwnBroker:
    """The embedded broker, whose refusals end the command with a sentence."""

    def __init__(self, port: int) -> None:
        self._broker = EmbeddedBroker(port)

    def start(self) -> str:
        """Start it; gives HOST:PORT."""
        try:
            return self._broker.start()
        except BrokerUnavailable as error:
            raise CliError(str(error)) from error

    def stop(self) -> None:
        """Stop it, and forget all it held."""
        self._broker.stop()

    async def ended(self) -> Exited:
        """Wait until it ends by itself."""
        while (code := self._broker.exit_code) is None:  # noqa: ASYNC110  # a Popen sets no event
            await asyncio.sleep(stack.WATCH_PERIOD_S)
        return Exited("broker", shell_code(code), self._broker.reason)


def _environment(topics: Topics, *, own_broker: bool) -> dict[str, str]:
    """Ours, with the topics that may have been named by flags."""
    names = {
        "OCR_JOBS_TOPIC": topics.jobs,
        "OCR_RESULTS_TOPIC": topics.results,
        "OCR_DLQ_TOPIC": topics.dead_letters,
        "PYTHONUNBUFFERED": "1",
    }
    # The embedded broker lets the first member of a group wait for half of its session: 3 s, not 22.
    # Its topics are made here, so how much they take is known.
    own = {"OCR_KAFKA_SESSION_TIMEOUT_MS": "6000", "OCR_MAX_RESULT_BYTES": str(MAX_RESULT_BYTES)}
    return {**(own if own_broker else {}), **os.environ, **names}


def _print_line(log: Console, line: Text) -> None:
    """A terminal that was closed, or a pipe whose reader has gone, must not stop the drain."""
    try:
        log.print(_stamped(line))
    except (OSError, SystemExit):  # Rich makes the latter of a broken pipe
        log.quiet = True


def _stamped(line: Text) -> Text:
    clock = dt.datetime.now().astimezone().strftime("%H:%M:%S ")
    return Text(clock, style="dim").append_text(line)


def _require_topics(topics: Topics) -> None:
    if why := topics_problem(jobs=topics.jobs, results=topics.results, dlq=topics.dead_letters):
        raise UsageError(why)


def _require_choice(engine: str | None, models: str | None) -> None:
    from services.cli import model_sets

    model_sets.settled(models, engine)


def _ensure_models(engine: str | None, models: str | None, *, offline: bool) -> None:
    from services.cli import model_sets

    asked = model_sets.settled(models, engine).models
    if asked is not None:
        model_sets.ensure(asked, offline=offline, fetching=_fetching)


def _fetching(name: str) -> contextlib.AbstractContextManager[object]:
    return notes.status(f"fetching model set {name} (about 30 MB, once)")


def demo(
    files: Sequence[Path],
    out: Path,
    engine: str | None,
    models: str | None,
    timeout_s: float,
    *,
    offline: bool,
) -> int:
    """Everything once, on free ports."""
    from services.cli import demo as demonstration

    expanded = documents.expand(files)
    _ensure_models(engine, models, offline=offline)
    reporter = Reporter(expanded, Format.TEXT, out)
    read: dict[int, pb.Result] = {}

    def take(index: int, result: pb.Result) -> None:
        read[index] = result
        reporter.add(index, result)

    def say(message: str) -> None:
        notes.print(logs.heading("demo", message), soft_wrap=True)

    chosen = ports.free()
    services = Services(chosen, engine, models, None, _environment(Topics(), own_broker=True))
    with (out / "services.log").open("w", encoding="utf-8") as log:

        async def serve() -> int:
            pipeline = _pipeline(
                _broker(None, chosen), services, Topics(), lambda name, text: _write(log, name, text)
            )
            return await demonstration.run(pipeline, expanded, timeout_s=timeout_s, say=say, take=take)

        say("starting broker, detector, recognizer and gateway")
        code = asyncio.run(serve())
    if code == 0:
        for table in demonstration.time_tables([result for _, result in sorted(read.items())]):
            Console().print(table)
        say(f"pictures with boxes and text, and the log of the services, are in {out}")
    return code or reporter.exit_code


def _write(log: TextIO, name: str, text: str) -> None:
    log.write(f"{_stamped(logs.render(name, text)).plain}\n")


# -- telling


def doctor(engine: str | None, models: str | None, kafka: str | None) -> int:
    """A table of all checks."""
    from services.cli import doctor as examination

    checks = examination.examine(engine=engine, models=models, kafka=kafka)
    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for check in checks:
        verdict = Text(check.verdict, style=colours[check.verdict])
        table.add_row(check.name, verdict, Text(check.finding), Text(check.remedy))
    Console().print(table)
    return examination.verdict(checks)


def list_models() -> None:
    """A table of the named model sets."""
    from services.cli import model_sets

    table = Table(box=None, pad_edge=False)
    for title in ("name", "state", "engines", "what it is"):
        table.add_column(title, overflow="fold")
    for row in model_sets.rows():
        table.add_row(*row)
    Console().print(table)


def fetch_models(names: Sequence[str]) -> None:
    """Fetch, one after the other."""
    from services.cli import model_sets

    for name in names:
        with _fetching(name):
            folder = model_sets.fetch(name)
        typer.echo(f"{name}  {folder}")


def quantize_models(*, force: bool) -> None:
    """Make the INT8 set, and tell its files, what they are, and whether this processor is one for it."""
    from services.cli import model_sets, quantize

    with model_sets.said_plainly():
        folder = quantize.run(typer.echo, force=force)
    for line in quantize.report(folder):
        typer.echo(line)


def verify_models(names: Sequence[str]) -> ExitCode:
    """Say what differs."""
    from services.cli import model_sets

    problems = model_sets.verify(names)
    for problem in problems or ["all files are as pinned"]:
        typer.echo(problem)
    return ExitCode.SOME_FAILED if problems else ExitCode.OK
