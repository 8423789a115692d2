"""The services as processes, and what starts them again when they die, as systemd or Kubernetes would."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from loadgen import procfs
from services.common.parent import end_with_parent
from tests.chaos.plan import Durations

ROOT = Path(__file__).parents[2]
STOP_TIMEOUT_S = 60.0


class Service:
    """One place for a process of a service. `listens` is told the port each time one has come up."""

    def __init__(
        self, name: str, module: str, flags: Sequence[str], logs: Path, listens: Callable[[int], None]
    ) -> None:
        self.name = name
        self.starts = 0
        self._command = [sys.executable, "-m", module, "--log-format", "json", *flags]
        self._log = logs / f"{name}.log"
        self._listens = listens
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. The kernel ends it with the thread that called this."""
        self.starts += 1
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )
        threading.Thread(target=self._follow, args=(self._process,), daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Of the process that runs, None when there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def workers(self) -> list[int]:
        """Ids of its predictor processes."""
        family = procfs.family(self.pid) if self.pid is not None else []
        return [process.pid for process in family if process.module == "predictor_worker"]

    def terminate(self) -> None:
        """Ask it to finish what it has."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()

    def end(self) -> int:
        """See it out; its exit status."""
        assert self._process is not None
        self.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _follow(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        with process.stderr, self._log.open("ab") as log:
            for line in process.stderr:
                log.write(line)
                log.flush()
                if (port := listening_port(line)) is not None:
                    self._listens(port)


def listening_port(line: bytes) -> int | None:
    """The port in a log line that says that a service listens; None for any other line."""
    if b'"listening"' not in line:
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return int(record["port"]) if record.get("message") == "listening" else None


def _environment() -> dict[str, str]:
    """Ours without settings of the services and of telemetry."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "OCR_MODELS_DIR" or not name.startswith(("OCR_", "OTEL_"))
    }


class Supervisor:
    """Keeps what should run running: what died starts again after a random pause. Told the time."""

    def __init__(self, durations: Durations, random_: random.Random, say: Callable[[str], None]) -> None:
        self._durations = durations
        self._random = random_
        self._say = say
        self._wanted: dict[str, tuple[Callable[[], bool], Callable[[], None]]] = {}
        self._due: dict[str, float] = {}

    def watch(self, name: str, alive: Callable[[], bool], start: Callable[[], None]) -> None:
        """From now on it should run."""
        self._wanted[name] = (alive, start)

    def watches(self, name: str) -> bool:
        """Whether it should run."""
        return name in self._wanted

    def forget(self, name: str) -> None:
        """From now on it may end."""
        self._wanted.pop(name, None)
        self._due.pop(name, None)

    def tick(self, now: float) -> None:
        """Note deaths, and start what is due."""
        for name, (alive, start) in self._wanted.items():
            if name in self._due:
                if now >= self._due[name]:
                    del self._due[name]
                    self._say(f"{name} is started again")
                    start()
            elif not alive():
                least, most = self._durations.restart_least_s, self._durations.restart_most_s
                self._due[name] = now + self._random.uniform(least, most)
