"""The three services as processes of their own, for as long as a measurement lasts.

    with running(StackConfig(recognizer={"max_batch_size": 16}, kafka="127.0.0.1:9092")) as stack:
        stack.address("gateway"), stack.topics, stack.cpu_s(), stack.rss()

They listen on free ports of the loopback address and are told their settings by flags, whatever the
environment of the caller says. Start it from a thread that lives as long as the stack does, best the main
one: Linux ends them when the thread that started them has ended.
"""

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadgen import procfs
from loadgen.errors import StackDidNotStart
from loadgen.kafka_door import Topics, own_topics
from loadgen.prometheus import Metrics
from services.common.parent import end_with_parent

SERVICES = ("detector", "recognizer", "gateway")
HOST = "127.0.0.1"
STOP_TIMEOUT_S = 45.0
"""What a service may take to finish after SIGTERM: its drain of 30 s and its workers' end."""
_KEPT_LINES = 30
_HOME = Path(__file__).parents[1]

Settings = Mapping[str, object]


@dataclass(frozen=True)
class StackConfig:
    """What the services are told: settings by name, as in `services/*/settings.py`; lists become commas.

    With `kafka` (HOST:PORT) the gateway reads topics that are made for this stack and deleted after it.
    `env` is added to the environment of all three. `ready_timeout_s` covers loading and warm-up.
    """

    detector: Settings = field(default_factory=dict)
    recognizer: Settings = field(default_factory=dict)
    gateway: Settings = field(default_factory=dict)
    kafka: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 300.0


def flags(settings: Settings) -> list[str]:
    """Command line of settings: `{"gpu_fp16": False, "devices": ("cpu",)}`: `--no-gpu-fp16 --devices cpu`."""
    words: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            parts = value if isinstance(value, list | tuple) else (value,)
            words += [f"--{flag}", ",".join(map(str, parts))]
    return words


def environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without settings of the services and of telemetry, and with `extra`."""
    kept = {
        name: value
        for name, value in base.items()
        if name == "OCR_MODELS_DIR" or not name.startswith(("OCR_", "OTEL_"))
    }
    return kept | dict(extra)


def listening(line: str) -> dict[str, Any] | None:
    """The record of a log line that says that a service listens; None for any other line."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    said = isinstance(record, dict) and record.get("message") == "listening"
    return record if said else None


class _Service:
    """One process, and the end of its log."""

    def __init__(self, name: str, words: list[str], env: Mapping[str, str]) -> None:
        self.name = name
        self.command = [sys.executable, "-m", f"services.{name}", "--log-format", "json", *words]
        self._tail: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._listening: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.process = subprocess.Popen(
            self.command, cwd=_HOME, env=env, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                self._tail.append(line)
                if record := listening(line):
                    self._listening.put(record)
        self._listening.put(None)

    def ports(self, timeout_s: float) -> tuple[int, int]:
        """Of gRPC and of the metrics, once it listens."""
        try:
            record = self._listening.get(timeout=timeout_s)
        except queue.Empty:
            record = None
        if record is None:
            raise self.failed("did not listen")
        return int(record["port"]), int(record["metrics_port"])

    def failed(self, what: str) -> StackDidNotStart:
        """The error for a service that did not start, with the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
            self._reader.join(1)
        log = "".join(list(self._tail)[-8:]).strip() or "(it logged nothing)"
        return StackDidNotStart(
            f"the {self.name} {what}; it was started as {' '.join(self.command[1:])}\n{log}"
        )

    def stop(self) -> None:
        """Ask, and after `STOP_TIMEOUT_S` insist."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)


class Stack:
    """Three running, ready services. `topics` is None without Kafka."""

    def __init__(self, config: StackConfig, topics: Topics | None) -> None:
        self.config = config
        self.topics = topics
        self.ports: dict[str, int] = {}
        self.metrics_ports: dict[str, int] = {}
        self._services: dict[str, _Service] = {}

    def address(self, service: str) -> str:
        """HOST:PORT of its gRPC server."""
        return f"{HOST}:{self.ports[service]}"

    def processes(self) -> dict[str, procfs.Process]:
        """All processes by a name that stays the same: `detector`, `detector/predictor_worker`, `….2`."""
        named: dict[str, procfs.Process] = {}
        for service, running_ in self._services.items():
            for process in procfs.family(running_.process.pid):
                root = process.pid == running_.process.pid
                name = service if root else f"{service}/{process.module}"
                same = sum(other.partition(".")[0] == name for other in named)
                named[f"{name}.{same + 1}" if same else name] = process
        return named

    def pids(self) -> dict[str, tuple[int, ...]]:
        """Process ids by service, its own first, then those of its workers."""
        found = self.processes()
        return {
            service: tuple(
                process.pid for name, process in found.items() if name.partition("/")[0] == service
            )
            for service in self._services
        }

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds since the start by process, names as in `processes`."""
        return {name: process.cpu_s for name, process in self.processes().items()}

    def rss(self) -> dict[str, int]:
        """Resident bytes by process, names as in `processes`."""
        return {name: process.rss_bytes for name, process in self.processes().items()}

    def metrics(self, service: str) -> Metrics:
        """What its Prometheus page says now."""
        with urllib.request.urlopen(
            f"http://{HOST}:{self.metrics_ports[service]}/metrics", timeout=30
        ) as page:
            return Metrics.parse(page.read().decode())

    # -- starting and stopping, by `running` alone

    def _start(self) -> None:
        base = {"port": 0, "metrics_port": 0}
        self._launch("detector", base | dict(self.config.detector))
        self._launch("recognizer", base | dict(self.config.recognizer))
        for name in ("detector", "recognizer"):
            self._listens(name)
        backends = {name: self.address(name) for name in ("detector", "recognizer")}
        kafka = self.topics.settings(self.config.kafka) if self.topics else {}
        self._launch("gateway", base | backends | kafka | dict(self.config.gateway))
        self._listens("gateway")
        deadline = time.monotonic() + self.config.ready_timeout_s
        for name in SERVICES:
            self._wait_ready(name, deadline - time.monotonic())

    def _launch(self, name: str, settings: Settings) -> None:
        self._services[name] = _Service(name, flags(settings), environment(os.environ, self.config.env))

    def _listens(self, name: str) -> None:
        found = self._services[name].ports(self.config.ready_timeout_s)
        self.ports[name], self.metrics_ports[name] = found

    def _wait_ready(self, name: str, timeout_s: float) -> None:
        with grpc.insecure_channel(self.address(name)) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=max(timeout_s, 0.1))
            try:
                ready = any(update.status == health_pb2.HealthCheckResponse.SERVING for update in watch)
            except grpc.RpcError:
                ready = False
            watch.cancel()
        if not ready:
            raise self._services[name].failed(f"was not ready within {self.config.ready_timeout_s:g} s")

    def _stop(self) -> None:
        """The one who takes work in goes first."""
        for names in (("gateway",), ("detector", "recognizer")):
            stopping = [self._services[name] for name in names if name in self._services]
            for service in stopping:
                service.terminate()
            for service in stopping:
                service.stop()


@contextlib.contextmanager
def running(config: StackConfig) -> Iterator[Stack]:
    """Start the three services; the block begins when all are ready, and ends with them gone.

    Raises:
        StackDidNotStart: one ended or was not ready in time; the message has the end of its log.
        BrokerFailed: with `kafka`, when the broker does not answer or makes no topics.
    """
    with contextlib.ExitStack() as ending:
        topics = ending.enter_context(own_topics(config.kafka)) if config.kafka else None
        stack = Stack(config, topics)
        ending.callback(stack._stop)  # noqa: SLF001  # the two belong together; users must not stop it
        stack._start()  # noqa: SLF001
        yield stack
