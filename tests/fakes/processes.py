"""Child processes of tests: started, watched through their logs, ended by id."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Child:
    """A process of ours whose log is JSON lines on standard error."""

    def __init__(self, module: str, *argv: object, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, argv)],
            cwd=ROOT,
            env=os.environ | (env or {}),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self.lines.put(line)
        self.process.stderr.close()
        self.lines.put(None)

    def wait_for(self, message: str, timeout: float = 60.0) -> dict[str, Any]:
        """The first log record from here on with this message."""
        while True:
            line = self.lines.get(timeout=timeout)
            assert line is not None, f"ended before {message!r}:\n" + "".join(self.log)
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and record.get("message") == message:
                    return record

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def terminate(self, timeout: float = 60.0) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(timeout)


@contextlib.contextmanager
def child(module: str, *argv: object, env: dict[str, str] | None = None) -> Iterator[Child]:
    """A process that is gone when the block is left, however it is left."""
    started = Child(module, *argv, env=env)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait(30)
