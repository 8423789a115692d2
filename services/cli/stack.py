"""The whole pipeline on one machine: a broker and the three services, started and stopped together."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.cli.ports import Ports
from services.cli.supervision import ChildSpec, Exited, Supervisor

STOP_ORDER = (("gateway",), ("detector", "recognizer"))
"""Who takes work in stops first, so that those behind can finish what was taken in. The broker is last."""

DRAIN_TIMEOUT_S = 30.0
"""How long a service finishes what it took in when nobody says otherwise."""
DRAIN_MARGIN_S = 15.0
"""What a service may take beyond its drain before it is killed: to leave Kafka, and to end its workers."""
WATCH_PERIOD_S = 0.25
"""Between looks at the broker, which is not asyncio's child."""


def patience_s(environment: Mapping[str, str]) -> float:
    """Seconds until a service of this environment that was told to stop is killed."""
    try:
        return max(0.0, float(environment.get("OCR_DRAIN_TIMEOUT_S", DRAIN_TIMEOUT_S))) + DRAIN_MARGIN_S
    except ValueError:
        return DRAIN_TIMEOUT_S + DRAIN_MARGIN_S  # no service starts with such a value; it says so


class Broker(Protocol):
    """Somewhere to connect to; `start` gives HOST:PORT, `ended` comes back when it has died."""

    def start(self) -> str: ...  # noqa: D102
    def stop(self) -> None: ...  # noqa: D102
    async def ended(self) -> Exited: ...  # noqa: D102


@dataclass(frozen=True)
class ExistingBroker:
    """A broker that others run."""

    address: str

    def start(self) -> str:
        """Nothing to do."""
        return self.address

    def stop(self) -> None:
        """Nothing to do."""

    async def ended(self) -> Exited:
        """Never: the gateway reconnects when it comes back."""
        never: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        return await never


@dataclass(frozen=True)
class Services:
    """What the three services are told. What is None is left to the environment and their defaults."""

    ports: Ports
    engine: str | None = None
    models: str | None = None
    log_level: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def specs(self, kafka: str) -> list[ChildSpec]:
        """The command of each service, those that others call first."""
        return [
            self._spec("detector", *self._model_flags()),
            self._spec("recognizer", *self._model_flags()),
            self._spec(
                "gateway",
                *("--detector", self.ports.address("detector")),
                *("--recognizer", self.ports.address("recognizer")),
                *("--kafka", kafka),
            ),
        ]

    def _spec(self, name: str, *flags: str) -> ChildSpec:
        ports = self.ports.by_name()
        command = [sys.executable, "-m", f"services.{name}", "--port", str(ports[name])]
        command += ["--metrics-port", str(ports[f"{name}-metrics"]), "--log-format", "json", *flags]
        if self.log_level is not None:
            command += ["--log-level", self.log_level]
        return ChildSpec(name, command, self.environment)

    def _model_flags(self) -> list[str]:
        said = {"--engine": self.engine, "--models": self.models}
        return [word for flag, value in said.items() if value is not None for word in (flag, value)]

    async def wait_ready(self) -> None:
        """Wait until all three say that they serve."""
        from services.cli.grpc_client import until_serving

        names = ("detector", "recognizer", "gateway")
        await asyncio.gather(*(until_serving(self.ports.address(name)) for name in names))


class Stack:
    """Broker and children of one run.

    `specs(kafka)` and `wait_ready()` are those of `Services` but in tests; `prepare(kafka)` makes the topics
    and may block. The broker is started from the calling thread, as the kernel ties children to that.
    """

    def __init__(
        self,
        broker: Broker,
        specs: Callable[[str], Sequence[ChildSpec]],
        wait_ready: Callable[[], Awaitable[None]],
        *,
        prepare: Callable[[str], object],
        on_line: Callable[[str, str], None],
        patience_s: float = DRAIN_TIMEOUT_S + DRAIN_MARGIN_S,
    ) -> None:
        self._broker = broker
        self._specs = specs
        self._wait_ready = wait_ready
        self._prepare = prepare
        self._supervisor = Supervisor(on_line, patience_s=patience_s)
        self.kafka = ""

    async def start(self) -> None:
        """Start all; they are not ready yet."""
        self.kafka = self._broker.start()
        await asyncio.to_thread(self._prepare, self.kafka)
        for spec in self._specs(self.kafka):
            await self._supervisor.start(spec)

    async def until_ready(self, stop: asyncio.Event) -> Exited | None:
        """Wait until all serve, `stop` is set, or a child or the broker has ended, which is given back."""
        return await self.until(self._wait_ready(), stop.wait())

    async def until(self, *events: Awaitable[object]) -> Exited | None:
        """Wait for the first of `events`, or the end of a child or the broker, which is given back.

        Cancels the rest of the events.
        """
        # In this order: without a broker a child may end as well, but is not the one to blame.
        ends = [asyncio.ensure_future(end) for end in (self._broker.ended(), self._supervisor.first_exit())]
        others = [asyncio.ensure_future(event) for event in events]
        await asyncio.wait({*ends, *others}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*ends, *others):
            task.cancel()
        await asyncio.wait({*ends, *others})
        for task in others:
            if not task.cancelled():
                task.result()
        return next((end.result() for end in ends if not end.cancelled()), None)

    async def stop(self) -> None:
        """Drain the children in order, then stop the broker."""
        try:
            await self._supervisor.stop(STOP_ORDER)
        finally:
            self._broker.stop()

    def kill(self) -> None:
        """End the children at once; `stop`, which is under way, then has nothing left to wait for."""
        self._supervisor.kill()


class Signals:
    """The first SIGINT or SIGTERM sets `stop`, a later one calls `kill`. Needs the main thread.

    SIGHUP sets `stop` as well, but never kills: shell and kernel may both send it when a terminal is closed.
    Under nohup it stays ignored.
    """

    def __init__(self, kill: Callable[[], None], say: Callable[[str], None]) -> None:
        self.stop = asyncio.Event()
        self.forced: int | None = None
        self._kill = kill
        self._say = say
        hears_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._numbers = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hears_hangup else ()))
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if not self.stop.is_set():
            self.stop.set()
            self._say("stopping: finishing what was taken in (once more to leave at once)")
            return
        if number == signal.SIGHUP:
            return
        self.forced = number
        self._say("leaving at once")
        self._kill()

    def close(self) -> None:
        """Give the signals back."""
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)


async def run(stack: Stack, say: Callable[[str], None], on_ready: Callable[[float], None]) -> int:
    """Start, call `on_ready(seconds)`, serve until a signal or a death, stop. The exit status."""
    began = time.monotonic()
    signals = Signals(stack.kill, say)
    ended: Exited | None = None
    try:
        await stack.start()
        ended = await stack.until_ready(signals.stop)
        if ended is None and not signals.stop.is_set():
            on_ready(time.monotonic() - began)
            ended = await stack.until(signals.stop.wait())
        if ended is not None:
            say(f"{ended.name} ended with status {ended.code}: {ended.reason}")
            signals.stop.set()
    finally:
        await stack.stop()
        signals.close()
    if signals.forced is not None:
        return 128 + signals.forced
    return 0 if ended is None else ended.code
