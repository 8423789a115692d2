"""The brokers of tests and quick start: on loopback only, ending in order, saying what is missing."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.kafka import local_kafka
from deploy.kafka.local_kafka import KafkaUnavailable
from services.cli import embedded_broker
from services.cli.embedded_broker import BrokerUnavailable, EmbeddedBroker
from services.gateway import kafka_client
from services.gateway.kafka_ports import KafkaMisconfigured


def accepts(bootstrap):
    host, port = bootstrap.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_the_embedded_broker_listens_on_loopback_until_it_is_stopped(tmp_path):
    broker = EmbeddedBroker(log=tmp_path / "log")
    bootstrap = broker.start()
    assert bootstrap.startswith("127.0.0.1:")
    assert accepts(bootstrap)
    assert _listeners(broker.pid) <= {"0100007F"}, "on no other address"
    broker.stop()
    assert not accepts(bootstrap)
    assert broker.pid is None


def _listeners(pid):
    """Local addresses, in the kernel's hexadecimal, that the process listens on."""
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def test_a_missing_embedded_broker_says_what_to_install(monkeypatch):
    def missing(_):
        raise ModuleNotFoundError

    monkeypatch.setattr(embedded_broker.importlib.resources, "files", missing)
    monkeypatch.setattr(embedded_broker.shutil, "which", lambda _: None)
    with pytest.raises(BrokerUnavailable, match=r"ocr-serving\[local\].*--kafka"):
        EmbeddedBroker().start()


def test_missing_java_says_what_to_install(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(local_kafka.shutil, "which", lambda *_, **__: None)
    with pytest.raises(KafkaUnavailable, match="install Java 17"):
        local_kafka.find_java()


def test_an_old_java_is_refused(monkeypatch, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(KafkaUnavailable, match=r"too old.*11\.0\.2"):
        local_kafka.find_java()


def test_missing_jars_without_maven_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(local_kafka.shutil, "which", lambda _: None)
    with pytest.raises(KafkaUnavailable, match="install Maven"):
        local_kafka.fetch_jars()


def test_a_failing_maven_leaves_nothing_half_done(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(local_kafka.shutil, "which", lambda _: "/bin/false")
    with pytest.raises(KafkaUnavailable, match="Maven could not fetch"):
        local_kafka.fetch_jars()
    assert not local_kafka.cache_dir().exists()
    assert list(local_kafka.cache_dir().parent.iterdir()) == []


@pytest.mark.kafka
def test_the_local_kafka_says_where_it_is_and_ends_on_sigterm(kafka):
    if not kafka.is_apache:
        pytest.skip("no Apache Kafka on this machine")
    command = [sys.executable, "deploy/kafka/local_kafka.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        word, bootstrap = process.stdout.readline().split()
        assert (word, accepts(bootstrap)) == ("BOOTSTRAP", True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert not accepts(bootstrap)


def test_checksums_in_python_are_refused(monkeypatch):
    monkeypatch.setattr(kafka_client.kafka_record_util, "crc32c_c", None)
    with pytest.raises(KafkaMisconfigured, match=r"kafka-python\[crc32c\]"):
        kafka_client.check_installation()


def settings(brokers):
    nodes = [local_kafka.Node(n, 100 + n, 200 + n, 300 + n, 400 + n) for n in range(1, brokers + 1)]
    text = local_kafka.server_properties(Path("data"), nodes[0], nodes)
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(
    ("brokers", "copies", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")]
)
def test_any_one_of_three_brokers_can_be_missed(brokers, copies, in_sync):
    found = settings(brokers)
    assert {value for name, value in found.items() if name.endswith("replication.factor")} == {copies}
    assert found["min.insync.replicas"] == found["transaction.state.log.min.isr"] == in_sync
    assert len(found["controller.quorum.voters"].split(",")) == brokers


def test_clients_are_sent_to_the_advertised_port_and_brokers_past_it():
    found = settings(3)
    assert found["advertised.listeners"] == "CLIENTS://127.0.0.1:401,PEERS://127.0.0.1:201"
    assert found["listeners"] == "CLIENTS://127.0.0.1:101,PEERS://127.0.0.1:201,CONTROLLER://127.0.0.1:301"
