"""One Apache Kafka broker on the loopback address, for development and tests. Standard library only.

    python deploy/kafka/local_kafka.py              # prints BOOTSTRAP 127.0.0.1:PORT, runs until SIGTERM

The jars come from Maven once (about 43 MB) and stay in `$XDG_CACHE_HOME/ocr-serving/kafka/VERSION`;
after that nothing tries the network. Needs Java 17 or later, and Maven for the first time. The broker
is its own controller (KRaft), keeps its data in a temporary folder unless told otherwise, does not make
topics by itself, and ends with the process that started it.
"""

import argparse
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType

HERE = Path(__file__).resolve().parent
JAVA_AT_LEAST = 17
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
ATTEMPTS = 3
MAX_MESSAGE_BYTES = 64 << 20
"""As the largest gRPC message; Kafka's own default is 1 MiB, less than many a scan."""


class KafkaUnavailable(RuntimeError):
    """The broker cannot run on this machine; the message says what to install."""


class KafkaDidNotStart(RuntimeError):
    """Java and the jars are there, but the broker ended or did not answer; the message ends with its log."""


def kafka_version() -> str:
    """The version that pom.xml names."""
    found = re.search(r"<kafka.version>([^<]+)<", (HERE / "pom.xml").read_text())
    assert found, "pom.xml names no kafka.version"
    return found.group(1)


def find_java() -> str:
    """Path of a `java` that is new enough.

    Raises:
        KafkaUnavailable: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    hint = f"install Java {JAVA_AT_LEAST} or later (Debian: openjdk-17-jre-headless) or set JAVA_HOME"
    if java is None:
        raise KafkaUnavailable(f"Apache Kafka needs Java and there is no `java` here; {hint}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found.group(1)) < JAVA_AT_LEAST:
        raise KafkaUnavailable(f"{java} is too old or no Java (it says {said.strip()[:80]!r}); {hint}")
    return java


def cache_dir() -> Path:
    """Where the jars of this version are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ocr-serving" / "kafka" / kafka_version()


def fetch_jars() -> Path:
    """Folder with the jars; asks Maven for them the first time.

    Raises:
        KafkaUnavailable: they are not in the cache, and Maven is missing or failed.
    """
    jars = cache_dir()
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(
            f"the jars of Apache Kafka are not in {jars} and there is no `mvn` to fetch them; "
            "install Maven (Debian: apt-get install maven)"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix=".fetch-") as folder:
        _copy_dependencies(maven, Path(folder) / "jars")
        _move_into_place(Path(folder) / "jars", jars)
    return jars


def _copy_dependencies(maven: str, into: Path) -> None:
    command = [maven, "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={into}", "-DincludeScope=runtime"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not into.is_dir():
        raise KafkaUnavailable(
            f"Maven could not fetch Apache Kafka {kafka_version()}: {_tail(done.stdout + done.stderr)}"
        )


def _move_into_place(source: Path, target: Path) -> None:
    """Rename, so that nobody ever sees half of the jars; another process may have been faster."""
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise


class LocalKafka:
    """One broker. `port` 0 takes a free one; without `data_dir` the data is temporary.

    Start it from the main thread: on Linux the kernel ends it when the thread that started it ends.
    """

    def __init__(self, port: int = 0, data_dir: Path | None = None, heap: str = "512m") -> None:
        self._port = port
        self._keep = data_dir
        self._heap = heap
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""

    def start(self) -> str:
        """Start the broker and wait until it answers; returns `127.0.0.1:PORT`.

        Raises:
            KafkaUnavailable: Java or the jars are missing.
            KafkaDidNotStart: the broker ended or does not answer.
        """
        java, jars = find_java(), fetch_jars()
        self._home = self._keep or Path(tempfile.mkdtemp(prefix="ocr-kafka-"))
        self._home.mkdir(parents=True, exist_ok=True)
        for attempt in range(ATTEMPTS):
            port, controller_port = self._port or free_port(), free_port()
            self._launch(java, jars, port, controller_port)
            if self._answers(port):
                self.bootstrap = f"127.0.0.1:{port}"
                return self.bootstrap
            log = _tail(self._log.read_text(errors="replace"))
            self._end_process()
            if "BindException" not in log or attempt == ATTEMPTS - 1:
                break
        self.stop()
        raise KafkaDidNotStart(f"Apache Kafka did not answer on port {port}; the end of its log:\n{log}")

    def stop(self) -> None:
        """End the broker; temporary data goes too."""
        self._end_process()
        if self._keep is None and self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    def wait(self, timeout: float) -> int | None:
        """Exit code of the broker, or None when it still runs after `timeout` seconds."""
        assert self._process is not None, "start() comes first"
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def __enter__(self) -> "LocalKafka":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        assert self._home is not None
        return self._home / "broker.log"

    def _launch(self, java: str, jars: Path, port: int, controller_port: int) -> None:
        assert self._home is not None
        properties = self._home / "server.properties"
        properties.write_text(server_properties(self._home / "data", port, controller_port))
        # A broker that lives for minutes earns nothing from the second compiler or a parallel collector.
        run = [java, f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        run += [f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "-Djava.awt.headless=true"]
        if not (self._home / "data" / "meta.properties").exists():
            self._format([*run, "kafka.tools.StorageTool", "format", "-c", str(properties)])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*run, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we then stop the broker in order
                preexec_fn=_end_with_parent(),
            )

    def _format(self, command: Sequence[str]) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A leading dash would be read as an option.
        cluster = "k" + cluster[1:] if cluster.startswith("-") else cluster
        done = subprocess.run([*command, "-t", cluster], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KafkaDidNotStart(f"the data folder was not formatted: {_tail(done.stdout + done.stderr)}")

    def _answers(self, port: int) -> bool:
        """Whether the broker answers a request; it opens its port a little before it does."""
        assert self._process is not None
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up and self._process.poll() is None:
            if _api_versions(port):
                return True
            time.sleep(0.05)
        return False

    def _end_process(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        if self.wait(STOP_TIMEOUT_S) is None:
            self._process.kill()
            self._process.wait()
        self._process = None


def server_properties(data: Path, port: int, controller_port: int) -> str:
    """Settings of a broker that is its own controller and keeps one copy of everything."""
    return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions=4
default.replication.factor=1
auto.create.topics.enable=false
message.max.bytes={MAX_MESSAGE_BYTES}
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
"""


def _api_versions(port: int) -> bool:
    """Ask the broker which requests it knows (ApiVersions 0, correlation id 7): a small proof of life."""
    request = b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
            peer.sendall(len(request).to_bytes(4, "big") + request)
            return peer.recv(8)[4:8] == b"\x00\x00\x00\x07"
    except OSError:
        return False


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_with_parent(sig: int = signal.SIGKILL) -> Callable[[], None] | None:
    """What a child runs before exec so as not to outlive a killed parent; None where the kernel cannot."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(1, sig)


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def run(kafka: LocalKafka) -> int:
    """Run the broker until SIGTERM, SIGINT, the parent's death or its own; exit status."""
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature is Python's
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    parent = os.getppid()
    try:
        print(f"BOOTSTRAP {kafka.start()}", flush=True)
        while not stopping and os.getppid() == parent:
            if (code := kafka.wait(0.2)) is not None:
                print(f"the broker ended by itself with status {code}", file=sys.stderr)
                return 1
    finally:
        kafka.stop()
    return 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="One Apache Kafka broker on 127.0.0.1, for tests.")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--data-dir", type=Path, help="keep the data here; default: a temporary folder")
    parser.add_argument("--heap", default="512m", help="largest Java heap (default %(default)s)")
    parser.add_argument("--fetch-only", action="store_true", help="fill the cache of jars and leave")
    options = parser.parse_args()
    try:
        if options.fetch_only:
            print(fetch_jars())
            return 0
        return run(LocalKafka(options.port, options.data_dir, options.heap))
    except (KafkaUnavailable, KafkaDidNotStart) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
