"""Apache Kafka on the loopback address, for development and tests: one broker, or several. Standard library.

    python deploy/kafka/local_kafka.py              # prints BOOTSTRAP 127.0.0.1:PORT, runs until SIGTERM
    python deploy/kafka/local_kafka.py --brokers 3  # three, of which any one may be killed

The jars come from Maven once (about 43 MB) and stay in `$XDG_CACHE_HOME/ocr-serving/kafka/VERSION`;
after that nothing tries the network. Needs Java 17 or later, and Maven for the first time. Each broker
is a controller too (KRaft). They keep their data in a temporary folder unless told otherwise, do not make
topics by themselves, and end with the process that started them.
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
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

HERE = Path(__file__).resolve().parent
JAVA_AT_LEAST = 17
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
ATTEMPTS = 3
MOST_COPIES = 3
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


@dataclass(frozen=True)
class Node:
    """One broker and its ports: for clients, for the other brokers, for the controllers.

    `advertised` is the port that clients are sent to; it differs from `port` when a proxy stands before it.
    """

    number: int
    port: int
    peer_port: int
    controller_port: int
    advertised: int


class LocalKafka:
    """Brokers that know each other, numbered from 1. Without `data_dir` the data is temporary.

    `port` is that of the first, the others follow; 0 takes free ones. `advertise` is told the port of each
    and gives the port that clients are sent to, such as that of a proxy. Topics have a copy on each of up to
    three brokers, and a write is acknowledged by all of them but one.

    Start it from the main thread: on Linux the kernel ends it when the thread that started it ends.
    """

    def __init__(
        self,
        port: int = 0,
        data_dir: Path | None = None,
        heap: str = "512m",
        brokers: int = 1,
        advertise: Callable[[int], int] = lambda port: port,
    ) -> None:
        self._port = port
        self._keep = data_dir
        self._heap = heap
        self._count = brokers
        self._advertise = advertise
        self._home: Path | None = None
        self._java: list[str] = []
        self._nodes: tuple[Node, ...] = ()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap = ""

    def start(self) -> str:
        """Start the brokers and wait until all answer; returns `127.0.0.1:PORT`, several with commas.

        Raises:
            KafkaUnavailable: Java or the jars are missing.
            KafkaDidNotStart: a broker ended or does not answer.
        """
        self._java = [find_java(), *_java_options(self._heap, fetch_jars())]
        self._home = self._keep or Path(tempfile.mkdtemp(prefix="ocr-kafka-"))
        for attempt in range(ATTEMPTS):
            self._nodes = self._new_nodes()
            self._format_missing()
            for node in self._nodes:
                self._launch(node)
            silent = [node for node in self._nodes if not self._answers(node)]
            if not silent:
                self.bootstrap = ",".join(f"127.0.0.1:{node.advertised}" for node in self._nodes)
                return self.bootstrap
            log = _tail(self._log(silent[0]).read_text(errors="replace"))
            self._end_processes()
            if "BindException" not in log or attempt == ATTEMPTS - 1:
                break
        self.stop()
        raise KafkaDidNotStart(
            f"Apache Kafka did not answer on port {silent[0].port}; the end of its log:\n{log}"
        )

    def stop(self) -> None:
        """End the brokers; temporary data goes too."""
        self._end_processes()
        if self._keep is None and self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    def wait(self, timeout: float) -> int | None:
        """Exit code of a broker that ended, or None when all still run after `timeout` seconds."""
        assert self._processes, "start() comes first"
        give_up = time.monotonic() + timeout
        for process in self._processes.values():
            try:
                return process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        return None

    def pid(self, number: int) -> int | None:
        """Process id of a broker; None when it has ended."""
        process = self._processes[number]
        return process.pid if process.poll() is None else None

    def restart(self, number: int) -> None:
        """Start a broker that has ended, on its old ports and data; `answers` tells when it is back."""
        assert self.pid(number) is None, f"broker {number} still runs"
        self._launch(self._nodes[number - 1])

    def answers(self, number: int) -> bool:
        """Whether a broker answers a request now."""
        return self.pid(number) is not None and _api_versions(self._nodes[number - 1].port)

    def __enter__(self) -> "LocalKafka":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _folder(self, node: Node) -> Path:
        """Of one broker alone the folder itself, as it always was."""
        assert self._home is not None
        return self._home if self._count == 1 else self._home / f"broker-{node.number}"

    def _log(self, node: Node) -> Path:
        return self._folder(node) / "broker.log"

    def _new_nodes(self) -> tuple[Node, ...]:
        ports = [self._port + n if self._port else free_port() for n in range(self._count)]
        return tuple(
            Node(number, port, free_port(), free_port(), self._advertise(port))
            for number, port in enumerate(ports, 1)
        )

    def _format_missing(self) -> None:
        """Write the settings, and prepare the data folders that are new, all for the same cluster."""
        cluster, formatting = _cluster_id(), []
        for node in self._nodes:
            folder = self._folder(node)
            folder.mkdir(parents=True, exist_ok=True)
            properties = folder / "server.properties"
            properties.write_text(server_properties(folder / "data", node, self._nodes))
            if not (folder / "data" / "meta.properties").exists():
                words = ["kafka.tools.StorageTool", "format", "-c", str(properties), "-t", cluster]
                formatting.append(subprocess.Popen([*self._java, *words], stdout=-1, stderr=-2, text=True))
        said = [(process.communicate()[0], process.returncode) for process in formatting]
        if failed := [text for text, code in said if code != 0]:
            raise KafkaDidNotStart(f"the data folder was not formatted: {_tail(failed[0])}")

    def _launch(self, node: Node) -> None:
        with self._log(node).open("ab") as log:
            self._processes[node.number] = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._folder(node) / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we then stop the broker in order
                preexec_fn=_end_with_parent(),
            )

    def _answers(self, node: Node) -> bool:
        """Whether the broker comes to answer a request; it opens its port a little before it does."""
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up and self.pid(node.number) is not None:
            if self.answers(node.number):
                return True
            time.sleep(0.05)
        return False

    def _end_processes(self) -> None:
        """All at once; some wait for a majority of controllers to take leave of, and are ended then."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        give_up = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = {}


def _java_options(heap: str, jars: Path) -> list[str]:
    """A broker that lives for minutes earns nothing from the second compiler or a parallel collector."""
    options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    return [*options, f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "-Djava.awt.headless=true"]


def _cluster_id() -> str:
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # A leading dash would be read as an option.
    return "k" + cluster[1:] if cluster.startswith("-") else cluster


def server_properties(data: Path, node: Node, nodes: Sequence[Node]) -> str:
    """Settings of a broker that is a controller too. Copies: one on each of up to three brokers."""
    copies = min(len(nodes), MOST_COPIES)
    in_sync = max(1, copies - 1)
    voters = ",".join(f"{one.number}@127.0.0.1:{one.controller_port}" for one in nodes)
    listeners = {"CLIENTS": node.port, "PEERS": node.peer_port, "CONTROLLER": node.controller_port}
    return f"""\
process.roles=broker,controller
node.id={node.number}
controller.quorum.voters={voters}
listeners={",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())}
advertised.listeners=CLIENTS://127.0.0.1:{node.advertised},PEERS://127.0.0.1:{node.peer_port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PEERS
listener.security.protocol.map={",".join(f"{name}:PLAINTEXT" for name in listeners)}
log.dirs={data}
num.partitions=4
default.replication.factor={copies}
min.insync.replicas={in_sync}
auto.create.topics.enable=false
message.max.bytes={MAX_MESSAGE_BYTES}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={copies}
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
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
    """Run the brokers until SIGTERM, SIGINT, the parent's death or its own; exit status."""
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
                print(f"a broker ended by itself with status {code}", file=sys.stderr)
                return 1
    finally:
        kafka.stop()
    return 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Apache Kafka on 127.0.0.1, for tests.")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--brokers", type=int, default=1, help="how many (default %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="keep the data here; default: a temporary folder")
    parser.add_argument("--heap", default="512m", help="largest Java heap of each (default %(default)s)")
    parser.add_argument("--fetch-only", action="store_true", help="fill the cache of jars and leave")
    options = parser.parse_args()
    try:
        if options.fetch_only:
            print(fetch_jars())
            return 0
        return run(LocalKafka(options.port, options.data_dir, options.heap, options.brokers))
    except (KafkaUnavailable, KafkaDidNotStart) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
