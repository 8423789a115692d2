"""Starts processes, passes on what they write, and stops them in order.

The rules, the same for `up`, `demo` and tests:

1. Children live in sessions of their own, so that a Ctrl-C in the terminal reaches only us and the order of
   the stop is ours. They get SIGTERM from the kernel if we are killed.
2. A stop goes stage by stage: SIGTERM to all of a stage, and the next stage when the last of it has gone. A
   child that outlives its time is killed.
3. A second stop while the first is under way kills what is left, at once.
4. A child that ends by itself is the end of all: `first_exit` says who it was, with which status and why.

Must run in the main thread, which must outlive the children: the kernel ties them to the thread that started
them.
"""

import asyncio
import collections
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.cli import logs

LAST_WORDS_S = 2.0
KEPT_LINES = 40  # enough for a Python traceback
LONGEST_LINE = 1 << 20  # bytes; the stream's default of 64 KiB would end the reading on a long stack trace

# Becomes the child itself after it asked for SIGTERM at our death (1 = PR_SET_PDEATHSIG; Linux has it).
# A program of its own, since running Python between fork and exec is not safe where threads are.
_LAUNCHER = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 15)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(143)
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class ChildSpec:
    """A process to be run; `environment` is the whole of it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Exited:
    """A child that ended by itself; `code` is what a shell would call it (128 + signal)."""

    name: str
    code: int
    reason: str


@dataclass
class Child:
    """A running process and the last lines it wrote."""

    spec: ChildSpec
    process: asyncio.subprocess.Process
    last_lines: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=KEPT_LINES))

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.returncode is None

    def send(self, signal_number: int) -> None:
        """Signal the process if it is still there."""
        if self.running:
            self.process.send_signal(signal_number)


class Supervisor:
    """The children of one run. `on_line(name, line)` gets each line that one of them writes."""

    def __init__(self, on_line: Callable[[str, str], None], *, patience_s: float = 40.0) -> None:
        self._on_line = on_line
        self._patience_s = patience_s
        self._children: dict[str, Child] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._first_exit: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._killed = False

    async def start(self, spec: ChildSpec) -> Child:
        """Start one child; what it writes, on either stream, goes to `on_line`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-E", "-c", _LAUNCHER, str(os.getpid()), *spec.command),
            env=dict(spec.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=LONGEST_LINE,
        )
        child = self._children[spec.name] = Child(spec, process)
        self._watchers.append(asyncio.create_task(self._watch(child), name=f"watch {spec.name}"))
        return child

    async def _watch(self, child: Child) -> None:
        assert child.process.stdout is not None
        async for line in _lines(child.process.stdout):
            child.last_lines.append(line)
            self._on_line(child.spec.name, line)
        code = await child.process.wait()
        if not self._stopping and not self._first_exit.done():
            why = logs.reason(list(child.last_lines))
            self._first_exit.set_result(Exited(child.spec.name, shell_code(code), why))

    async def first_exit(self) -> Exited:
        """Wait until a child ends that nobody told to."""
        return await asyncio.shield(self._first_exit)

    async def stop(self, stages: Sequence[Sequence[str]]) -> None:
        """End the children, stage by stage; names that were never started are passed over."""
        self._stopping = True
        for stage in stages:
            await self._stop_stage([self._children[name] for name in stage if name in self._children])
        await self._finish_reading()

    async def _finish_reading(self) -> None:
        """A grandchild may hold the pipe of a killed child open; its last words are not worth waiting for."""
        if self._watchers:
            _, talking = await asyncio.wait(self._watchers, timeout=LAST_WORDS_S)
            for watcher in talking:
                watcher.cancel()

    async def _stop_stage(self, children: Sequence[Child]) -> None:
        for child in children:
            child.send(signal.SIGKILL if self._killed else signal.SIGTERM)
        ends = [asyncio.ensure_future(child.process.wait()) for child in children]
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=self._patience_s)
        if late:
            self.kill(child for child in children if child.running)
            await asyncio.wait(late)

    def kill(self, children: Iterable[Child] | None = None) -> None:
        """Kill at once, without asking; all of them unless `children` says which."""
        self._killed = self._killed or children is None
        for child in list(self._children.values() if children is None else children):
            child.send(signal.SIGKILL)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than LONGEST_LINE; the stream has thrown that part away
            continue
        if not line:
            return
        yield line.decode(errors="replace").rstrip("\r\n")


def shell_code(code: int) -> int:
    """A child that was told nothing and yet ended well has failed all the same."""
    return 128 - code if code < 0 else code or 1
