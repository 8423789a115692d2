"""The life of a server, seen from outside: a real process, real calls, real signals."""

import signal
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.common import errors, rpc
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from tests.fakes.processes import child

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def echo(tmp_path):
    with child("tests.fakes.echo_service", tmp_path, "--metrics-port", 0) as process:
        listening = process.wait_for("listening")
        process.port, process.metrics_port = listening["port"], listening["metrics_port"]
        yield process


@pytest.fixture
def channel(echo):
    with grpc.insecure_channel(f"127.0.0.1:{echo.port}") as opened:
        yield opened


def detect(channel, what: int, timeout: float | None = 30.0):
    return ocr_pb2_grpc.DetectorStub(channel).Detect(pb.DetectRequest(source_width=what), timeout=timeout)


def health(channel, name: str = ""):
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=30).status


def watch_until(channel, status, name: str = "") -> None:
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name), timeout=30)
    assert any(update.status == status for update in call)
    call.cancel()


def test_a_call_is_answered_and_counted(echo, channel) -> None:
    assert detect(channel, 1).lines[0].score == 0.5
    with urllib.request.urlopen(f"http://127.0.0.1:{echo.metrics_port}/metrics") as page:
        text = page.read().decode()
    assert "rpc_server_call_duration_seconds_count" in text
    assert 'rpc_method="ocr.v1.Detector/Detect"' in text


def test_an_error_is_counted_under_the_stage_of_its_service(echo, channel) -> None:
    with pytest.raises(grpc.RpcError):
        detect(channel, 2)
    with urllib.request.urlopen(f"http://127.0.0.1:{echo.metrics_port}/metrics") as page:
        [line] = [text for text in page.read().decode().splitlines() if text.startswith("ocr_errors_total{")]
    assert 'code="CORRUPT_INPUT"' in line
    assert 'stage="detector"' in line
    assert line.endswith(" 1.0")


@pytest.mark.parametrize(
    ("service", "stage"), [("Detector", "detector"), ("Recognizer", "recognizer"), ("Ocr", "gateway")]
)
def test_every_service_of_the_contract_is_a_stage(service: str, stage: str) -> None:
    assert service in pb.DESCRIPTOR.services_by_name
    assert rpc.stage_of(f"/ocr.v1.{service}/Recognize") == stage


def test_bad_input_ends_with_its_status_its_words_and_its_code(channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        detect(channel, 2)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "the JPEG ends early"
    assert isinstance(rpc.error_from(caught.value), errors.CorruptInput)


def test_a_defect_is_internal_and_tells_the_caller_no_secret_while_the_log_has_the_trace(
    echo, channel
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        detect(channel, 3)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert "secret" in echo.wait_for("/ocr.v1.Detector/Detect failed")["exception"]


def test_readiness_follows_the_service_and_liveness_does_not(tmp_path, channel) -> None:
    watch_until(channel, SERVING)
    (tmp_path / "broken").touch()
    watch_until(channel, NOT_SERVING)
    assert health(channel, "ocr.v1.Detector") == NOT_SERVING
    assert health(channel, rpc.LIVENESS) == SERVING
    (tmp_path / "broken").unlink()
    watch_until(channel, SERVING, "ocr.v1.Detector")


def test_reflection_lists_the_service(channel) -> None:
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    answer = next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, timeout=30))
    names = {service.name for service in answer.list_services_response.service}
    assert {"ocr.v1.Detector", "grpc.health.v1.Health"} <= names


def test_sigterm_finishes_what_was_accepted_and_exits_with_0(tmp_path, echo, channel) -> None:
    pending = ocr_pb2_grpc.DetectorStub(channel).Detect.future(pb.DetectRequest(source_width=4), timeout=30)
    wait_until_exists(tmp_path / "entered", echo)
    echo.signal(signal.SIGTERM)
    echo.wait_for("draining")
    assert health(channel) == NOT_SERVING
    (tmp_path / "release").touch()
    assert pending.result(30).lines[0].score == 0.5
    assert echo.wait() == 0
    assert (tmp_path / "closed").exists()


def test_a_second_signal_leaves_at_once(tmp_path, echo, channel) -> None:
    pending = ocr_pb2_grpc.DetectorStub(channel).Detect.future(pb.DetectRequest(source_width=4), timeout=30)
    wait_until_exists(tmp_path / "entered", echo)
    echo.signal(signal.SIGTERM)
    echo.wait_for("draining")
    echo.signal(signal.SIGINT)
    assert echo.wait() == 130
    assert isinstance(pending.exception(30), grpc.RpcError)
    assert not (tmp_path / "closed").exists()


def test_a_service_that_cannot_start_says_why_and_exits_with_1(tmp_path) -> None:
    (tmp_path / "unstartable").touch()
    with child("tests.fakes.echo_service", tmp_path) as process:
        message = "cannot start: the weights are missing; run `ocrctl models fetch`"
        assert process.wait_for(message)["level"] == "error"
        assert process.wait() == 1


def test_a_port_that_is_taken_is_named_and_the_process_exits_with_1(tmp_path, echo) -> None:
    with child("tests.fakes.echo_service", tmp_path, "--port", echo.port) as second:
        assert second.wait() == 1
        assert any(f":{echo.port}" in line and "taken" in line for line in second.log)


def test_a_metrics_port_that_is_taken_is_named_and_the_process_exits_with_1(tmp_path, echo) -> None:
    with child("tests.fakes.echo_service", tmp_path, "--metrics-port", echo.metrics_port) as second:
        assert second.wait() == 1
        [line] = second.log
        assert f":{echo.metrics_port}" in line
        assert "taken" in line


def test_calls_beyond_the_bound_are_refused_before_they_are_received(tmp_path) -> None:
    with (
        child("tests.fakes.echo_service", tmp_path, env={"ECHO_MAX_CONCURRENT_CALLS": "1"}) as process,
        grpc.insecure_channel(f"127.0.0.1:{process.wait_for('listening')['port']}") as opened,
    ):
        process.wait_for("ready")
        held = ocr_pb2_grpc.DetectorStub(opened).Detect.future(pb.DetectRequest(source_width=4), timeout=30)
        wait_until_exists(tmp_path / "entered", process)
        with pytest.raises(grpc.RpcError) as caught:
            detect(opened, 1)
        assert isinstance(rpc.error_from(caught.value), errors.Overloaded)
        (tmp_path / "release").touch()
        assert held.result(30).lines[0].score == 0.5
        assert detect(opened, 1).lines[0].score == 0.5


def test_a_call_beyond_the_message_limit_is_a_document_too_large_and_not_an_overload(channel) -> None:
    stub = ocr_pb2_grpc.DetectorStub(channel)
    huge = pb.DetectRequest(image=pb.Image(encoded=bytes(65 * 2**20)))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Detect(huge, timeout=30)
    assert isinstance(rpc.error_from(caught.value), errors.DocumentTooLarge)


def every_error() -> list[type[errors.OcrError]]:
    return sorted(set(errors.BY_CODE.values()), key=lambda error: error.code)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.code)
def test_every_error_has_a_code_of_the_contract_and_a_status(kind) -> None:
    assert kind.code in list(pb.ErrorCode.keys())
    assert rpc.status_of(kind("why")) is not grpc.StatusCode.OK


def test_every_code_of_the_contract_has_an_error() -> None:
    assert set(pb.ErrorCode.keys()) - {"ERROR_CODE_UNSPECIFIED"} == set(errors.BY_CODE)


def wait_until_exists(path: Path, process) -> None:
    """The fake service shows by a file where it is; there is no event across processes."""
    import time

    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        assert process.process.poll() is None, "".join(process.log)
        time.sleep(0.005)
