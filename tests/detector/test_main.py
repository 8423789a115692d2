"""The detector as a process: ready after warm-up, and what it says when it cannot start."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.detector.__main__ import main
from tests.fakes.processes import child


def test_it_gets_ready_answers_and_ends_with_0_on_sigterm():
    with child("services.detector", "--engine", "simulated", "--max-side", 320) as process:
        port = process.wait_for("listening")["port"]
        process.wait_for("ready")
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(service="ocr.v1.Detector"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            info = ocr_pb2_grpc.DetectorStub(channel).Describe(pb.DescribeRequest())
        assert (info.engine, info.max_side) == ("simulated", 320)
        assert process.terminate() == 0


def test_a_missing_model_ends_it_with_the_command_that_fetches_it(tmp_path, capsys):
    assert main(["--engine", "openvino", "--models", "ppocr-v6-small", "--models-dir", str(tmp_path)]) == 1
    assert "ocrctl models fetch ppocr-v6-small" in capsys.readouterr().err


def test_an_engine_that_cannot_be_loaded_ends_it_with_what_to_install(tmp_path):
    (tmp_path / "inference.onnx").touch()
    flags = ("--engine", "tests.fakes.engines:not_here", "--models", tmp_path)
    with child("services.detector", *flags) as process:
        process.wait_for("cannot start: install the thing")
        assert process.wait() == 1
