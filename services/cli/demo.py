"""The whole way of a few documents: start everything, send them through Kafka, show what came of it."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from services.cli.kafka_client import Kafka, Topics, new_job_id, submit_and_wait
from services.cli.stack import Signals, Stack
from services.cli.state import Address
from services.cli.supervision import Exited
from services.common.pb import ocr_pb2 as pb

Columns = Sequence[tuple[str, Callable[[pb.Timing], float]]]

# Milliseconds of each step on the way of a document.
STEPS: Columns = (
    ("wait", lambda timing: timing.wait_ms),
    ("decode", lambda timing: timing.decode_ms),
    ("detector\nqueue", lambda timing: timing.detect.queue_ms),
    ("detector\nmodel", lambda timing: timing.detect.model_ms),
    ("crop", lambda timing: timing.crop_ms),
    ("recognizer\nqueue", lambda timing: timing.recognize.queue_ms),
    ("recognizer\nmodel", lambda timing: timing.recognize.model_ms),
    ("transport", lambda timing: timing.transport_ms),
    ("total", lambda timing: timing.total_ms),
)


def time_table(results: Sequence[pb.Result]) -> Table:
    """Where the time of each document went, in milliseconds."""
    table = Table(title="where the time went (ms; steps overlap, so they do not add up to the total)")
    table.add_column("file", overflow="fold")
    for name in ("lines", *(name for name, _ in STEPS), "lines\na batch"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(*_row(result))
    return table


def _row(result: pb.Result) -> list[str]:
    times = [f"{read(result.timing):.0f}" for _, read in STEPS]
    batch = f"{result.timing.recognize.mean_batch_size:.1f}"
    return [Path(result.file).name, str(len(result.lines)), *times, batch]


async def run(
    stack: Stack,
    files: Sequence[Path],
    *,
    timeout_s: float,
    say: Callable[[str], None],
    take: Callable[[int, pb.Result], None],
) -> int:
    """Send `files` through a stack that is started for them and stopped after. 0, or why it ended early."""
    signals = Signals(stack.kill, say)
    began = time.monotonic()
    try:
        await stack.start()
        ended = await stack.until_ready(signals.stop)
        if ended is None and not signals.stop.is_set():
            say(f"ready in {time.monotonic() - began:.1f} s; sending {len(files)} documents through Kafka")
            work = asyncio.to_thread(_send, stack.kafka, files, timeout_s, signals.stop.is_set, take)
            ended = await _until_sent(stack, signals.stop, asyncio.create_task(work))
    finally:
        interrupted = signals.stop.is_set()
        await stack.stop()
        signals.close()
    if ended is not None:
        say(f"{ended.name} ended with status {ended.code}: {ended.reason}")
        return ended.code
    return 128 + signal.SIGINT if interrupted else 0


async def _until_sent(stack: Stack, stop: asyncio.Event, sending: "asyncio.Task[None]") -> Exited | None:
    ended = await stack.until(asyncio.shield(sending), stop.wait())
    if not sending.done():
        stop.set()  # which makes it give up
    await sending
    return ended


def _send(
    kafka: str,
    files: Sequence[Path],
    timeout_s: float,
    give_up: Callable[[], bool],
    take: Callable[[int, pb.Result], None],
) -> None:
    job_ids = [new_job_id() for _ in files]
    with Kafka(Address(kafka, "the demo"), Topics()) as client:
        for index, result in submit_and_wait(client, files, job_ids, timeout_s=timeout_s, give_up=give_up):
            take(index, result)
