"""The whole pipeline as its users run it: real processes, real models, Apache Kafka."""

import contextlib
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.models import fetch
from services.common.pb import ocr_pb2_grpc
from tests.fakes.processes import Child, child
from tests.fakes.topics import create_topics

MESSAGE_LIMIT = [("grpc.max_receive_message_length", 2**26), ("grpc.max_send_message_length", 2**26)]
REAL = {"v6-openvino": ("openvino", "ppocr-v6-small"), "v5-paddle": ("paddle", "ppocr-v5-mobile")}
START_S = 180
"""Loading and warm-up of all shapes, on a machine that does other things too."""


@dataclass
class Pipeline:
    """Three running services and channels to them."""

    detector: Child
    recognizer: Child
    gateway: Child
    ports: dict[str, int]
    metrics_ports: dict[str, int]

    def metrics(self, name: str) -> str:
        """The Prometheus page of a service."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_ports[name]}/metrics") as page:
            return page.read().decode()

    def metric(self, name: str, metric: str) -> float:
        """The sum of a metric of a service over its attributes; 0 while there is none."""
        rows = [line for line in self.metrics(name).splitlines() if re.match(rf"{metric}[{{ ]", line)]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    def channel(self, name: str) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.ports[name]}", options=MESSAGE_LIMIT)

    @contextlib.contextmanager
    def ocr(self) -> Iterator[ocr_pb2_grpc.OcrStub]:
        with self.channel("gateway") as channel:
            yield ocr_pb2_grpc.OcrStub(channel)

    def wait_ready(self) -> None:
        for name in self.ports:
            with self.channel(name) as channel:
                wait_for_status(channel, health_pb2.HealthCheckResponse.SERVING)


def wait_for_status(channel: grpc.Channel, status: int, timeout: float = START_S) -> None:
    """Until the readiness of a server is `status`."""
    stub = health_pb2_grpc.HealthStub(channel)
    call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=timeout, wait_for_ready=True)
    assert any(update.status == status for update in call)
    call.cancel()


@contextlib.contextmanager
def pipeline(
    engine: str,
    models: str = "auto",
    *,
    kafka: str = "",
    gateway: tuple[str, ...] = (),
    model_service: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> Iterator[Pipeline]:
    """Start detector, recognizer and gateway on free ports; ready when the block begins."""
    with ExitStack() as stack:
        common = ("--port", 0, "--metrics-port", 0)
        chosen = ("--engine", engine, "--models", models, *model_service)
        detector = stack.enter_context(child("services.detector", *common, *chosen, env=env))
        recognizer = stack.enter_context(child("services.recognizer", *common, *chosen, env=env))
        heard = {
            "detector": detector.wait_for("listening"),
            "recognizer": recognizer.wait_for("listening"),
        }
        ports = {name: record["port"] for name, record in heard.items()}
        backends = [word for name, port in ports.items() for word in (f"--{name}", f"127.0.0.1:{port}")]
        broker = ("--kafka", kafka) if kafka else ()
        front = stack.enter_context(child("services.gateway", *common, *backends, *broker, *gateway, env=env))
        heard["gateway"] = front.wait_for("listening")
        ports = {name: record["port"] for name, record in heard.items()}
        metrics_ports = {name: record["metrics_port"] for name, record in heard.items()}
        running = Pipeline(detector, recognizer, front, ports, metrics_ports)
        running.wait_ready()
        yield running


@pytest.fixture(scope="module", params=REAL)
def real(request, kafka) -> Iterator[tuple[Pipeline, str, dict[str, str]]]:
    """A pipeline with real models, its broker and topics of its own; once for each engine."""
    engine, models = REAL[request.param]
    fetch(models)
    bootstrap, topics = kafka.bootstrap, create_topics(kafka.bootstrap)
    flags = tuple(word for name, topic in topics.items() for word in (f"--{name}-topic", topic))
    group = ("--group", f"e2e-{request.param}")
    with pipeline(engine, models, kafka=bootstrap, gateway=(*flags, *group)) as running:
        yield running, bootstrap, topics
