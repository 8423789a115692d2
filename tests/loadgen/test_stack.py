"""The three services as a measurement starts them."""

import pytest

from loadgen import corpus, procfs
from loadgen.errors import BrokerFailed, StackDidNotStart
from loadgen.grpc_door import GrpcDoor
from loadgen.kafka_door import KafkaDoor, require_broker
from loadgen.stack import StackConfig, environment, flags, running
from tests.conftest import SLIPS

FAST = {"engine": "simulated", "simulated_fixed_ms": 0, "simulated_ms_per_megapixel": 0}


def test_settings_become_flags() -> None:
    given = {"max_batch_size": 4, "gpu_fp16": False, "gpu_tensorrt": True, "devices": ("cpu", "gpu:0")}
    wanted = "--max-batch-size 4 --no-gpu-fp16 --gpu-tensorrt --devices cpu,gpu:0"
    assert flags(given) == wanted.split()


def test_settings_in_the_callers_environment_do_not_reach_the_services() -> None:
    found = environment(
        {"OCR_ENGINE": "paddle", "OTEL_TRACES_EXPORTER": "otlp", "OCR_MODELS_DIR": "m", "HOME": "h"},
        {"OTEL_SERVICE_NAME": "x"},
    )
    assert found == {"OCR_MODELS_DIR": "m", "HOME": "h", "OTEL_SERVICE_NAME": "x"}


def test_a_service_that_ends_at_once_is_an_error_with_its_last_words() -> None:
    said = pytest.raises(StackDidNotStart, match=r"detector did not listen(.|\n)*--no-such-setting")
    with said, running(StackConfig(detector={"no_such_setting": 1})):
        pass


def test_a_broker_that_is_not_there_is_an_error_that_says_what_to_start() -> None:
    with pytest.raises(BrokerFailed, match="start one"):
        require_broker("127.0.0.1:1")


async def test_documents_go_through_both_doors_and_nothing_is_left_running(kafka) -> None:
    documents = corpus.load(SLIPS).documents
    alone = FAST | {"predictors": 1}
    with running(StackConfig(detector=alone, recognizer=alone, kafka=kafka.bootstrap)) as stack:
        with KafkaDoor(kafka.bootstrap, stack.topics) as door:
            run = door.run(documents * 2, in_flight=3)
        async with GrpcDoor(stack.address("gateway")) as other:
            called = await other.closed_loop(documents, concurrency=2)
        assert [sample.answer.error for sample in (*run.samples, *called.samples)] == [""] * 15
        assert run.lines_by_name().keys() == called.lines_by_name().keys()
        assert stack.metrics("gateway").total("ocr_documents_total", door="kafka") == 10
        processes = stack.processes()
        assert {"detector", "detector/predictor_worker", "recognizer", "gateway"} <= processes.keys()
        assert all(stack.rss().values())
        assert len(stack.pids()["detector"]) == 2
    assert {name for name, process in processes.items() if procfs.read(process.pid)} == set()
