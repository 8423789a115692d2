"""The process is put together from its settings."""

import asyncio
from pathlib import Path

import pytest

from services.common.errors import SetupError
from services.common.settings import load
from services.gateway import __main__ as gateway
from services.gateway.__main__ import build, pipeline_limits
from services.gateway.consumer import JobConsumer
from services.gateway.delivery import AtLeastOnce, ExactlyOnce
from services.gateway.fetch import WebLimits
from services.gateway.places import place
from services.gateway.settings import GatewaySettings


def settings(*flags: str) -> GatewaySettings:
    return load(GatewaySettings, flags)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--max-document-mb", "64"), "max_message_mb must exceed max_document_mb"),
        (("--max-request-mb", "64"), "max_request_mb must be below max_message_mb"),
        (("--uri-allow", "relative/folder"), "not an absolute path"),
        (("--uri-allow", "/does/not/exist"), "not an absolute path of a folder"),
        (("--uri-allow", "https://user@host/"), "uri_allow: https://user@host/: write http"),
        (("--uri-allow", "http://127.1/docs"), "uri_allow: http://127.1/docs: "),
        (("--max-pixels", "1000000000"), "less than or equal"),
        (("--kafka-options", "ssl"), "is not name=value"),
        (("--delivery", "at_most_once"), "delivery"),
        (("--jobs-topic", "ocr.results"), "jobs_topic and results_topic are both 'ocr.results'"),
        (("--dlq-topic", "ocr.jobs"), "jobs_topic and dlq_topic are both 'ocr.jobs'"),
        (("--dlq-topic", "ocr.results"), "results_topic and dlq_topic are both"),
        (("--results-topic", "bad/topic"), "results_topic: 'bad/topic' is no name of a Kafka topic"),
        (("--max-in-flight", "0"), "greater than or equal to 1"),
        (("--backend-timeout-s", "20"), "greater than or equal to 30"),
        (("--backend-timeout-s", "inf"), "finite"),
        (("--max-concurrent-calls", "64"), "max_concurrent_calls must exceed max_in_flight"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_reason(flags: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(SystemExit, match=complaint):
        settings(*flags)


def test_limits_reach_the_pipeline(tmp_path: Path) -> None:
    limits = pipeline_limits(
        settings(
            *("--max-document-mb", "3", "--max-pages", "7", "--pdf-dpi", "150", "--max-request-mb", "5"),
            *("--uri-allow", f"{tmp_path},https://docs.example/slips,/tmp", "--uri-timeout-s", "3"),
        )
    )
    assert (limits.images.max_bytes, limits.images.max_pages, limits.images.pdf_dpi) == (3 * 2**20, 7, 150)
    assert limits.max_request_bytes == 5 * 2**20
    assert limits.uri_allow == (str(tmp_path), "/tmp")
    assert limits.web == WebLimits((place("https://docs.example/slips"),), False, 3.0, 3 * 2**20)


async def test_without_backends_the_gateway_is_not_ready_and_says_which_is_missing() -> None:
    service = build(settings("--detector", "127.0.0.1:1", "--recognizer", "127.0.0.1:1"))
    await service.start()
    try:
        async with asyncio.timeout(10):
            while "UNAVAILABLE" not in (reason := service.not_ready() or ""):
                await asyncio.sleep(0.005)
    finally:
        await service.drain()
        await service.close()
    assert reason.startswith("the detector at 127.0.0.1:1 is not ready")


def test_the_bound_of_calls_leaves_room_beside_the_documents_at_work() -> None:
    assert settings().concurrent_calls == 4 * 64 + 64
    assert settings("--max-in-flight", "2").concurrent_calls == 72
    assert settings("--max-concurrent-calls", "100").concurrent_calls == 100


def test_what_the_operator_has_to_put_right_is_one_sentence_and_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: GatewaySettings) -> None:
        raise SetupError("Kafka needs the crc32c wheel; install it")

    monkeypatch.setattr(gateway, "build", broken)
    assert gateway.main([]) == 1
    assert capsys.readouterr().err == "ocr-gateway: Kafka needs the crc32c wheel; install it\n"


async def test_kafka_is_a_part_when_it_is_set() -> None:
    service = build(settings("--kafka", "127.0.0.1:1", "--kafka-options", "security_protocol=SSL"))
    try:
        assert any(isinstance(part, JobConsumer) for part in service._parts)
    finally:
        await service.close()


@pytest.mark.parametrize(
    ("flags", "mode"), [((), AtLeastOnce), (("--delivery", "exactly_once"), ExactlyOnce)], ids=str
)
async def test_the_delivery_is_what_the_operator_chose(flags: tuple[str, ...], mode: type) -> None:
    service = build(settings("--kafka", "127.0.0.1:1", *flags))
    try:
        (part,) = (part for part in service._parts if isinstance(part, JobConsumer))
        assert type(part._delivery) is mode
    finally:
        await service.close()
