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

Step = tuple[str, Callable[[pb.Timing], float]]

STEPS: Sequence[Step] = (
    ("waiting for a place", lambda timing: timing.wait_ms),
    ("decoding", lambda timing: timing.decode_ms),
    ("detector: queue", lambda timing: timing.detect.queue_ms),
    ("detector: model", lambda timing: timing.detect.model_ms),
    ("cutting lines out", lambda timing: timing.crop_ms),
    ("recognizer: queue", lambda timing: timing.recognize.queue_ms),
    ("recognizer: model", lambda timing: timing.recognize.model_ms),
    ("transport", lambda timing: timing.transport_ms),
    ("total", lambda timing: timing.total_ms),
)
"""Milliseconds of each step on the way of a document, in its order."""

FILES_IN_A_TABLE = 5  # which fits 80 columns


def time_tables(results: Sequence[pb.Result]) -> list[Table]:
    """Where the time of each document went; a column a document, a few of them in each table."""
    starts = range(0, len(results), FILES_IN_A_TABLE)
    return [_time_table(results[start : start + FILES_IN_A_TABLE]) for start in starts]


def _time_table(results: Sequence[pb.Result]) -> Table:
    table = Table(title="where the time went, ms (steps overlap and do not add up)", title_justify="left")
    table.add_column("step", no_wrap=True)
    for result in results:
        table.add_column(Path(result.file).stem, justify="right", overflow="fold")
    for name, read in STEPS:
        table.add_row(name, *(f"{read(result.timing):.0f}" for result in results))
    table.add_section()
    table.add_row("lines", *(str(len(result.lines)) for result in results))
    sizes = (f"{result.timing.recognize.mean_batch_size:.1f}" for result in results)
    table.add_row("lines in a batch", *sizes)
    return table


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
