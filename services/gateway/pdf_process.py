"""Draws PDFs in a process of its own, because a PDF is a program that a stranger wrote.

Four kilobytes of nested forms keep pdfium busy for an hour or fill the memory of the machine, and nothing in
its interface stops it. So: one operation at a time goes to a child with an address space of `memory_mb`, and
a child that does not answer within `timeout_s` is killed. What was being drawn then has an error; documents
that lie open beside it are opened again in the next child, and lose nothing.

    python -m services.gateway.pdf_process FD       is the child; it talks through the socket FD.
"""

import contextlib
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from services.common.errors import CorruptInput, OcrError, ShuttingDown
from services.common.images import DecodedPage, ImageLimits, PdfFile
from services.common.parent import end_with_parent

_START_TIMEOUT_S = 60.0
_ENOUGH = 2
"""Pages of one document that may end the child; a hundred would stop all others for an hour."""
_ROOT = str(Path(__file__).parents[2])
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each reserves address space


class EndedChild(CorruptInput):
    """A PDF that the child did not survive."""


class _ChildDied(Exception):
    """The child ended while at work."""


class PdfProcess:
    """A child that draws PDFs, started by the first one and replaced when it dies. Any thread may use it."""

    def __init__(self, *, timeout_s: float = 30.0, memory_mb: int = 2048) -> None:
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._turn = threading.Lock()
        self._ids = itertools.count()
        # The child dies with the thread that starts it (`parent.py`), so that is one which stays.
        self._starter = ThreadPoolExecutor(1, "pdf-starter")
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._closed = False

    def pages(self, data: bytes, limits: ImageLimits) -> Iterator[DecodedPage]:
        """Like `images.pdf_pages_here`, in the child; a document that ends two children is given up."""
        name = next(self._ids)
        ended: list[EndedChild] = []
        try:
            count = self._ask("open", name, data, limits)
            for index in range(count):
                drawn = ended[-1] if len(ended) >= _ENOUGH else self._page(name, index, data, limits)
                if isinstance(drawn, EndedChild):
                    ended.append(drawn)
                yield DecodedPage(index + 1, count, drawn)
        finally:
            self._forget(name)

    @property
    def pid(self) -> int | None:
        """Of the child, if there is one."""
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """End the child, also in the middle of its work, for good."""
        self._closed = True
        if self._child is not None:
            self._child.kill()
        with self._turn:
            self._end()
        self._starter.shutdown(wait=False)

    def _page(self, name: int, index: int, data: bytes, limits: ImageLimits) -> Any:
        try:
            drawn = self._ask("page", name, index)
            if drawn is None:  # another document ended the child that knew this one
                self._ask("open", name, data, limits)
                drawn = self._ask("page", name, index)
        except OcrError as error:
            return error
        return CorruptInput("the PDF cannot be drawn") if drawn is None else drawn

    def _ask(self, *request: Any) -> Any:
        """The child's answer. A child may die of something else than this document, so it is asked twice."""
        with contextlib.suppress(_ChildDied):
            return self._ask_once(request)
        try:
            return self._ask_once(request)
        except _ChildDied as died:
            raise EndedChild(f"the PDF ended the process that drew it: {died}") from died

    def _ask_once(self, request: tuple[Any, ...]) -> Any:
        with self._turn:
            pipe = self._pipe or self._start()
            try:
                pipe.send(request)
                if not pipe.poll(self._timeout_s):
                    self._end()
                    raise EndedChild(f"the PDF takes more than {self._timeout_s:g} s to draw")
                answer = pipe.recv()
            except (EOFError, OSError) as error:
                raise _ChildDied(f"exit status {self._end()}") from error
        if isinstance(answer, OcrError):
            raise answer
        return answer

    def _forget(self, name: int) -> None:
        """Let the child close a document, unless that would start one."""
        with self._turn, contextlib.suppress(EOFError, OSError):
            if self._pipe is not None:
                self._pipe.send(("close", name))

    def _start(self) -> Connection:
        if self._closed:
            raise ShuttingDown("the gateway is closing")
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = self._starter.submit(self._spawn, theirs.fileno()).result()
        self._pipe = Connection(ours.detach())
        if not self._pipe.poll(_START_TIMEOUT_S):
            self._end()
            raise _ChildDied("it did not start")
        self._pipe.recv()
        return self._pipe

    def _spawn(self, handle: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(handle), str(self._memory_mb)],
            pass_fds=[handle],
            stdin=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join([_ROOT, *sys.path])},
        )

    def _end(self) -> int | None:
        """Kill the child if it lives; its exit status, negative for a signal."""
        if self._pipe is not None:
            self._pipe.close()
        child, self._child, self._pipe = self._child, None, None
        if child is None:
            return None
        child.kill()
        return child.wait()


# -- the child ------------------------------------------------------------------------------------


class _Child:
    """Serves one request after the other."""

    def __init__(self) -> None:
        self._files: dict[int, PdfFile] = {}

    def open(self, name: int, data: bytes, limits: ImageLimits) -> int:
        self._files[name] = PdfFile(data, limits)
        return self._files[name].count

    def page(self, name: int, index: int) -> Any:
        return self._files[name].page(index) if name in self._files else None

    def close(self, name: int) -> None:
        if name in self._files:
            self._files.pop(name).close()

    def serve(self, pipe: Connection) -> None:
        pipe.send("ready")
        with contextlib.suppress(EOFError):
            while True:
                what, *arguments = pipe.recv()
                try:
                    answer = getattr(self, what)(*arguments)
                except OcrError as error:
                    answer = error
                if what != "close":
                    pipe.send(answer)


def _main(handle: str, memory_mb: str) -> None:
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent drains first
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    limit = int(memory_mb) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _Child().serve(Connection(int(handle)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
