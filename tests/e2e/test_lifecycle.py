"""What a caller sees while parts of the pipeline die, hang, stop and come back."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.models import fetch
from services.common.pb import ocr_pb2 as pb
from tests.e2e.conftest import START_S, pipeline, wait_for_status
from tests.fakes.pages import page, png
from tests.fakes.processes import Child, child

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
DOCUMENT = png(page(["TOTAL 46.62", "CASH 50.00", "CHANGE 3.38"]))


def predictor_pids(service: Child) -> list[int]:
    """Ids of the predictor processes of a service: its children that run the worker module."""
    children = Path(f"/proc/{service.process.pid}/task").glob("*/children")
    pids = [int(word) for file in children for word in file.read_text().split()]
    return [pid for pid in pids if "predictor_worker" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.model
def test_predictors_killed_in_the_middle_of_load_cost_no_caller_an_error(slips) -> None:
    fetch("ppocr-v6-small")
    content = slips["lab-table.jpg"].read_bytes()
    with pipeline("openvino", "ppocr-v6-small") as running, running.ocr() as ocr:
        alone = [line.text for line in ocr.Recognize(pb.Job(content=content), timeout=START_S).lines]
        first = {service: predictor_pids(service) for service in (running.detector, running.recognizer)}
        assert all(first.values())
        with ThreadPoolExecutor(8) as callers:
            calls = [
                callers.submit(ocr.Recognize, pb.Job(content=content), timeout=START_S) for _ in range(24)
            ]
            done = as_completed(calls)
            for service in (running.recognizer, running.detector):
                next(done)  # so the load is in full flow
                for pid in first[service]:
                    os.kill(pid, signal.SIGKILL)
            results = [call.result() for call in calls]
        assert all([line.text for line in result.lines] == alone for result in results)
        running.wait_ready()
        assert running.metric("recognizer", "ocr_predictor_restarts_total") >= 1
        for service, pids in first.items():
            assert not set(predictor_pids(service)) & set(pids)


@pytest.mark.model
def test_health_is_answered_while_paddle_holds_its_own_process_busy(slips) -> None:
    """Paddle keeps the GIL for a whole batch; in the service's process that would make it deaf."""
    fetch("ppocr-v4-mobile")
    content = slips["lab-table.jpg"].read_bytes()
    with pipeline("paddle", "ppocr-v4-mobile") as running, running.ocr() as ocr:
        enough = threading.Event()
        models_ms: list[float] = []

        def load() -> int:
            documents = 0
            while not enough.is_set():
                result = ocr.Recognize(pb.Job(content=content), timeout=START_S)
                recognize = result.timing.recognize
                models_ms.append(recognize.model_ms / max(recognize.batches, 1))
                documents += 1
            return documents

        with ThreadPoolExecutor(4) as callers:
            busy = [callers.submit(load) for _ in range(4)]
            took = {name: health_times(running, name, 1000) for name in ("detector", "recognizer")}
            enough.set()
            assert sum(call.result() for call in busy) > 0
    batch = sorted(models_ms)[len(models_ms) // 2]
    for name, times in took.items():
        p99 = sorted(times)[989]
        print(f"{name}: 1,000 health calls, P99 {p99:.1f} ms; median recognizer batch {batch:.0f} ms")
        # Not a stopwatch but a ratio within the run: a deaf server would answer after a batch or more.
        assert p99 < batch


def health_times(running, name: str, calls: int) -> list[float]:
    """Milliseconds of each of so many health calls to a service, all of which must be answered."""
    took = []
    with running.channel(name) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for _ in range(calls):
            start = time.monotonic()
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=5).status == SERVING
            took.append((time.monotonic() - start) * 1000)
    return took


def test_the_gateway_is_not_ready_while_a_backend_is_gone_but_alive_all_the_time() -> None:
    with pipeline("simulated") as running, running.channel("gateway") as channel:
        assert running.recognizer.terminate() == 0
        wait_for_status(channel, NOT_SERVING)
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5).status == SERVING


def test_a_gateway_told_to_stop_finishes_what_it_accepted_and_refuses_the_rest() -> None:
    slow = ("--simulated-fixed-ms", "300")
    with pipeline("simulated", model_service=slow) as running, running.ocr() as ocr:
        calls = [ocr.Recognize.future(pb.Job(content=DOCUMENT), timeout=60) for _ in range(4)]
        wait_until_in_flight(running, 4)
        running.gateway.signal(signal.SIGTERM)
        running.gateway.wait_for("draining")
        results = [call.result(60) for call in calls]
        assert [len(result.lines) for result in results] == [3] * 4
        assert running.gateway.wait() == 0
        with pytest.raises(grpc.RpcError) as caught:
            ocr.Recognize(pb.Job(content=DOCUMENT), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def wait_until_in_flight(running, documents: int) -> None:
    """Asks the gateway's own gauge; documents are accepted when it counts them."""
    deadline = time.monotonic() + 30
    while running.metric("gateway", "ocr_gateway_in_flight") < documents:
        assert time.monotonic() < deadline, f"the gateway never had {documents} documents in flight"


@pytest.mark.model
@pytest.mark.parametrize(
    ("engine", "models"), [("openvino", "ppocr-v6-small"), ("paddle", "ppocr-v4-mobile")]
)
def test_with_the_models_present_nothing_tries_the_network(engine, models, tmp_path) -> None:
    fetch(models)
    attempts = tmp_path / "attempts"
    watched = {
        "PYTHONPATH": str(Path(__file__).parents[1] / "fakes" / "no_network"),
        "NETWORK_ATTEMPTS": str(attempts),
    }
    with child("services.recognizer", "--engine", engine, "--models", models, env=watched) as service:
        service.wait_for("ready", timeout=START_S)
        assert service.terminate() == 0
    assert not attempts.exists(), attempts.read_text()


def test_the_watch_for_network_attempts_sees_one(tmp_path) -> None:
    """Guards the test above, which would pass if nothing were watched."""
    attempts = tmp_path / "attempts"
    env = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1] / "fakes" / "no_network"),
        "NETWORK_ATTEMPTS": str(attempts),
    }
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "no network here" in run.stderr
    assert "192.0.2.1" in attempts.read_text()
