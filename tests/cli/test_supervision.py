"""Starting, watching and stopping processes, with tiny ones in the place of the services."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest

from services.cli import stack
from services.cli.commands import OwnBroker
from services.cli.stack import STOP_ORDER, ExistingBroker, Stack
from services.cli.supervision import ChildSpec, Exited, Supervisor

NAMES = ("detector", "recognizer", "gateway")

# Blocked and waited for: a handler would miss the signal that comes just before it pauses.
POLITE = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("here", flush=True)
signal.sigwait([signal.SIGTERM])
print("bye", flush=True)
"""
STUBBORN = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("here", flush=True)
while signal.sigwait([signal.SIGTERM]):
    print("no", flush=True)
"""
MORTAL = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("here", flush=True)
signal.sigwait([signal.SIGUSR1])
print("out of luck", flush=True)
"""


def child(name: str, code: str) -> ChildSpec:
    return ChildSpec(name, [sys.executable, "-c", code], os.environ.copy())


class Log:
    """What was said, in order; lets a test wait for a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._said = asyncio.Condition()
        self._hooks: dict[str, Callable[[], object]] = {}

    def __call__(self, name: str, line: str) -> None:
        self.lines.append(f"{name} {line}")
        if hook := self._hooks.pop(self.lines[-1], None):
            hook()

    def event(self, *wanted: str) -> asyncio.Event:
        """Set once all of `wanted` were said."""
        event, open_ = asyncio.Event(), set(wanted)

        def strike(line: str) -> None:
            open_.discard(line)
            if not open_:
                event.set()

        for line in wanted:
            self._hooks[line] = lambda line=line: strike(line)
        return event

    def on(self, line: str, do: Callable[[], object]) -> None:
        self._hooks[line] = do


class FakeBroker:
    def __init__(self, log: Log) -> None:
        self._log = log
        self.death: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()

    def start(self) -> str:
        self._log("broker", "start")
        return "127.0.0.1:9"

    def stop(self) -> None:
        self._log("broker", "stop")

    async def ended(self) -> Exited:
        return await asyncio.shield(self.death)


def a_stack(log: Log, code: dict[str, str] | None = None, patience_s: float = 20.0) -> Stack:
    programs = dict.fromkeys(NAMES, POLITE) | (code or {})
    here = log.event(*(f"{name} here" for name in NAMES))
    return Stack(
        FakeBroker(log),
        lambda kafka: [child(name, program) for name, program in programs.items()],
        here.wait,
        prepare=lambda kafka: log("topics", kafka),
        on_line=log,
        patience_s=patience_s,
    )


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_drains_gateway_then_the_models_then_the_broker(number: int) -> None:
    log = Log()
    code = await stack.run(a_stack(log), lambda text: None, lambda took: interrupt(number))
    assert code == 0
    assert log.lines[:2] == ["broker start", "topics 127.0.0.1:9"]
    stops = [line for line in log.lines if line.endswith((" bye", " stop"))]
    assert stops[0] == "gateway bye"
    assert set(stops[1:3]) == {"detector bye", "recognizer bye"}
    assert stops[3:] == ["broker stop"]


async def test_a_second_signal_leaves_at_once() -> None:
    log = Log()
    said: list[str] = []
    log.on("gateway no", interrupt)
    pipeline = a_stack(log, {"gateway": STUBBORN, "detector": STUBBORN})
    code = await stack.run(pipeline, said.append, lambda took: interrupt())
    assert code == 128 + signal.SIGINT
    assert "detector no" not in log.lines, "nobody is asked any more"
    assert log.lines[-1] == "broker stop"
    assert "once more" in said[0]


async def test_a_closed_terminal_may_say_so_twice_and_all_is_drained() -> None:
    log = Log()
    log.on("gateway bye", lambda: interrupt(signal.SIGHUP))
    code = await stack.run(a_stack(log), lambda text: None, lambda took: interrupt(signal.SIGHUP))
    assert code == 0
    assert {"gateway bye", "detector bye", "recognizer bye"} <= set(log.lines)


async def test_who_was_told_to_ignore_the_end_of_the_terminal_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals = stack.Signals(lambda: None, lambda text: None)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signals.close()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_signal_while_starting_stops_without_saying_ready() -> None:
    log = Log()
    never = asyncio.Event()
    pipeline = a_stack(log)
    pipeline._wait_ready = never.wait
    log.on("gateway here", interrupt)
    ready: list[float] = []
    assert await stack.run(pipeline, lambda text: None, ready.append) == 0
    assert ready == []
    assert log.lines[-1] == "broker stop"


@pytest.mark.parametrize(
    ("death", "code"),
    [("sys.exit(3)", 3), ("sys.exit(0)", 1), ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
)
async def test_a_child_that_dies_stops_all_with_its_status_and_reason(death: str, code: int) -> None:
    log = Log()
    said: list[str] = []
    pipeline = a_stack(log, {"recognizer": MORTAL + death})

    def when_ready(took: float) -> None:
        pipeline._supervisor._children["recognizer"].send(signal.SIGUSR1)

    assert await stack.run(pipeline, said.append, when_ready) == code
    assert said == [f"recognizer ended with status {code}: out of luck"]
    assert {"gateway bye", "detector bye"} <= set(log.lines)
    assert log.lines[-1] == "broker stop"


async def test_a_broker_that_dies_stops_all_with_its_status_and_reason() -> None:
    log = Log()
    said: list[str] = []
    pipeline = a_stack(log)

    def when_ready(took: float) -> None:
        broker = pipeline._broker
        assert isinstance(broker, FakeBroker)
        broker.death.set_result(Exited("broker", 137, "out of memory"))

    assert await stack.run(pipeline, said.append, when_ready) == 137
    assert said == ["broker ended with status 137: out of memory"]
    assert {"gateway bye", "detector bye", "recognizer bye"} <= set(log.lines)


async def test_the_embedded_broker_is_watched() -> None:
    broker = OwnBroker(0)
    try:
        broker.start()
        ended = asyncio.create_task(broker.ended())
        pid = broker._broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        gone = await asyncio.wait_for(ended, 10)
        assert (gone.name, gone.code) == ("broker", 128 + signal.SIGKILL)
        assert gone.reason == "it gave no reason", "that it is ready is none"
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [({}, 45.0), ({"OCR_DRAIN_TIMEOUT_S": "120"}, 135.0), ({"OCR_DRAIN_TIMEOUT_S": "soon"}, 45.0)],
)
def test_a_service_is_given_its_drain_timeout_and_more(environment: dict[str, str], seconds: float) -> None:
    assert stack.patience_s(environment) == seconds


def test_the_drain_timeout_is_that_of_the_services() -> None:
    from services.common.settings import ServerSettings

    assert ServerSettings.model_fields["drain_timeout_s"].default == stack.DRAIN_TIMEOUT_S


async def test_a_failure_to_prepare_stops_the_broker() -> None:
    log = Log()

    def refuse(kafka: str) -> None:
        raise RuntimeError("no topics")

    pipeline = Stack(FakeBroker(log), lambda kafka: [], asyncio.Event().wait, prepare=refuse, on_line=log)
    with pytest.raises(RuntimeError, match="no topics"):
        await stack.run(pipeline, lambda text: None, lambda took: None)
    assert log.lines == ["broker start", "broker stop"]


async def test_a_child_that_outlives_its_time_is_killed() -> None:
    log = Log()
    supervisor = Supervisor(log, patience_s=0.2)
    here = log.event("gateway here")
    gateway = await supervisor.start(child("gateway", STUBBORN))
    await here.wait()
    await supervisor.stop(STOP_ORDER)
    assert gateway.process.returncode == -signal.SIGKILL


async def test_a_very_long_line_does_not_end_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    supervisor = Supervisor(log)
    spec = child("gateway", "print('x' * 3_000_000); print('after')")
    after = log.event("gateway after")
    await supervisor.start(spec)
    await after.wait()
    assert await supervisor.first_exit() == Exited("gateway", 1, "after")
    await supervisor.stop(STOP_ORDER)


async def test_children_get_sigterm_when_their_parent_is_killed() -> None:
    """The kernel tells them; the parent has no time to."""
    parent = (
        "import asyncio, sys\n"
        "from services.cli.supervision import *\n"
        "async def main():\n"
        "    s = Supervisor(lambda name, line: None)\n"
        "    spec = ChildSpec('c', [sys.executable, '-c', sys.argv[1], sys.argv[2]], dict(os.environ))\n"
        "    c = await s.start(spec)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    reader, writer = os.pipe()
    # The child holds the pipe's end through /proc, says its id there, and closes it by dying.
    code = (
        "import os, signal, sys\n"
        "pipe = os.open(sys.argv[1], os.O_WRONLY)\n"
        "os.write(pipe, b'%d' % os.getpid())\n"
        "while True: signal.pause()\n"
    )
    command = [sys.executable, "-c", parent, code, f"/proc/{os.getpid()}/fd/{writer}"]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        assert int(await asyncio.to_thread(os.read, reader, 20)) > 0
    finally:
        process.kill()
        await process.wait()
        os.close(writer)
    assert await asyncio.to_thread(os.read, reader, 20) == b"", (
        "the child is gone, and its end of the pipe with it"
    )
    os.close(reader)


def test_the_services_get_their_ports_engine_and_each_other() -> None:
    from services.cli.ports import Ports
    from services.cli.stack import Services

    specs = {spec.name: list(spec.command) for spec in Services(Ports(), engine="simulated").specs("k:1")}
    assert list(specs) == ["detector", "recognizer", "gateway"]
    detector = " ".join(specs["detector"][1:])
    assert detector == (
        "-m services.detector --port 50052 --metrics-port 9465 --log-format json --engine simulated"
    )
    gateway = " ".join(specs["gateway"])
    assert "--detector 127.0.0.1:50052 --recognizer 127.0.0.1:50053 --kafka k:1" in gateway
    assert "--engine" not in gateway


async def test_a_broker_of_others_is_left_alone() -> None:
    broker = ExistingBroker("k:1")
    assert broker.start() == "k:1"
    watched = asyncio.create_task(broker.ended())
    await asyncio.sleep(0)
    assert not watched.done()
    watched.cancel()
    broker.stop()
