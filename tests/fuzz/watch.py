"""Watches processes that judge documents: one that dies, hangs or swells has found something."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from tests.fuzz.mutate import document

MAX_SECONDS = 10.0
MAX_MEGABYTES = 1024
_START_SECONDS = 60.0
_ROOT = Path(__file__).parents[2]
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}


@dataclass(frozen=True)
class Verdict:
    """What came of one document. Seconds of wall time; megabytes are the most that its process ever held."""

    name: str
    outcome: str
    seconds: float
    megabytes: int

    @property
    def bad(self) -> str:
        """Why it is a finding; empty when it is none."""
        if self.outcome.startswith(("untyped:", "crash:", "hang")):
            return self.outcome
        if self.seconds > MAX_SECONDS:
            return f"took {self.seconds:.1f} s"
        return f"held {self.megabytes} MB" if self.megabytes > MAX_MEGABYTES else ""


def judged(arguments: list[str], judge: str = "tests.fuzz.judge") -> Iterator[Verdict]:
    """The verdicts of one process over its documents; ends early, with a finding, if the process does.

    `judge` is the module that the process runs.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", judge, *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        env=os.environ | _ONE_THREAD,
    )
    lines, at_work = _lines(process), ""
    try:
        while (line := lines.get(timeout=MAX_SECONDS + 2.0 if at_work else _START_SECONDS)) is not None:
            at_work = line[1] if line[0] == "?" else ""
            if line[0] == "=":
                yield Verdict(*line[1:])
        status = process.wait(_START_SECONDS)
    except Empty:
        yield Verdict(at_work, "hang", MAX_SECONDS, 0)
        return
    finally:
        process.kill()
        process.wait()
    if at_work:
        yield Verdict(at_work, f"crash: exit status {status}", 0.0, 0)
    elif status:
        raise RuntimeError(f"the judge ended with status {status} beside its documents {arguments}")


def _lines(process: "subprocess.Popen[bytes]") -> "Queue[Any]":
    """Lines as they come, and None after the last; in a thread, since a pipe has no patience of its own."""
    found: Queue[Any] = Queue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                found.put(json.loads(line))
        found.put(None)

    Thread(target=read, daemon=True).start()
    return found


def fuzz(seed: int, count: int, workers: int) -> Iterator[Verdict]:
    """All verdicts of a run, in no order; after a death the next process goes on behind that document."""
    found: Queue[Verdict | None] = Queue()

    def work(worker: int) -> None:
        first = worker
        try:
            while first < count:
                for verdict in judged([str(n) for n in (seed, first, count, workers)]):
                    found.put(verdict)
                    first = int(verdict.name) + workers
                    if verdict.bad:
                        break  # the next document gets a process that nothing has happened to
        finally:
            found.put(None)

    with ThreadPoolExecutor(workers) as pool:
        ends = [pool.submit(work, n) for n in range(workers)]
        for _ in ends:
            yield from iter(found.get, None)
        for end in ends:
            end.result()


def report(seed: int, verdicts: list[Verdict]) -> str:
    """Counts by outcome, and the findings."""
    counts = Counter(v.outcome.partition(": ")[0] for v in verdicts)
    lines = [f"seed {seed}: {len(verdicts)} documents"]
    lines += [f"{number:7d}  {name}" for name, number in counts.most_common()]
    slowest, largest = max(verdicts, key=lambda v: v.seconds), max(v.megabytes for v in verdicts)
    lines.append(f"slowest {slowest.seconds:.1f} s (document {slowest.name}), most memory {largest} MB")
    lines += [f"FOUND    document {v.name}: {v.bad}" for v in verdicts if v.bad]
    return "\n".join(lines)


def save(seed: int, verdict: Verdict, folder: Path) -> Path:
    """The document behind a finding, as a file that `judge` reads as well."""
    kind, data = document(seed, int(verdict.name))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}-{verdict.name}.{kind}"
    path.write_bytes(data)
    return path
