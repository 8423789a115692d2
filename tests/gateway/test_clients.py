"""A backend that restarts is not the caller's trouble; one that is full or at fault is told at once."""

import asyncio
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import (
    BY_CODE,
    DeadlineExceeded,
    ImageTooSmall,
    OcrError,
    Overloaded,
    ShuttingDown,
    Unavailable,
)
from services.common.pb import ocr_pb2 as pb
from services.common.wire import raw_image
from services.gateway.clients import (
    Backend,
    DetectorClient,
    Health,
    NoAnswer,
    RecognizerClient,
    RetryLimits,
    retry_delay,
)
from services.gateway.pipeline import detect_request
from services.gateway.retries import Backoff, next_step
from tests.fakes.backends import Backends, paper

QUICK = RetryLimits(max_attempts=5, backoff=Backoff(0.01, 0.02))
_PAPER = np.asarray(paper((10, 10, 110, 30)))
PAGE = detect_request(_PAPER, _PAPER.shape[:2], 320, pb.ONLINE)


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    made = Backends()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def backend(backends: Backends) -> AsyncIterator[Backend]:
    made = Backend("detector", backends.target, max_message_mb=8, period_s=0.01)
    yield made
    await made.close()


def delay(
    error: OcrError, attempt: int = 1, *, priority: int = pb.ONLINE, left: float | None = None
) -> float | None:
    limits = RetryLimits(max_attempts=4, backoff=Backoff(0.1, 0.3))
    return retry_delay(error, attempt, priority=priority, remaining_s=left, limits=limits, jitter=1.0)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (delay(Unavailable("")), 0.1),
        (delay(ShuttingDown("")), 0.1),
        (delay(Unavailable(""), 2), 0.2),
        (delay(Unavailable(""), 3), 0.3),  # the cap
        (delay(Unavailable(""), 4), None),  # no tries left
        (delay(Unavailable(""), left=0.05), None),  # no time left
        (delay(Unavailable(""), left=0.5), 0.1),
        (delay(NoAnswer("")), None),  # it took its time already
        (delay(Overloaded("")), None),  # someone waits: say so
        (delay(Overloaded(""), priority=pb.BULK), 0.1),
        (delay(ImageTooSmall("")), None),
    ],
)
def test_when_to_try_again(case: float | None, expected: float | None) -> None:
    assert case == expected


@given(
    st.sampled_from(list(BY_CODE.values())),
    st.integers(1, 100),
    st.sampled_from([pb.ONLINE, pb.BULK]),
    st.none() | st.floats(-10, 100),
    st.floats(0, 1),
)
def test_no_wait_is_longer_than_the_cap_or_the_deadline_and_none_follows_the_last_try(
    error: type[OcrError], attempt: int, priority: int, left: float | None, jitter: float
) -> None:
    limits = RetryLimits()
    wait = retry_delay(error("x"), attempt, priority=priority, remaining_s=left, limits=limits, jitter=jitter)
    if wait is not None:
        assert error.retryable
        assert attempt < limits.max_attempts
        assert 0 <= wait <= limits.backoff.cap_s
        assert left is None or wait < left


@pytest.mark.parametrize("error", [Unavailable, ShuttingDown])
async def test_a_call_survives_a_backend_that_is_away_for_a_while(
    backends: Backends, backend: Backend, error: type[OcrError]
) -> None:
    backends.detector.errors = [error("not now"), error("not now")]
    found = await DetectorClient(backend.channel, QUICK).detect(PAGE, deadline=None)
    assert len(found.lines) == 1
    assert len(backends.detector.requests) == 3


async def test_a_call_survives_the_restart_of_the_server(backends: Backends, backend: Backend) -> None:
    client = DetectorClient(backend.channel, RetryLimits(max_attempts=50, backoff=Backoff(0.05, 0.1)))
    backends.detector.gate = _never
    call = asyncio.create_task(client.detect(PAGE, deadline=None))
    await backends.detector.arrived.wait()
    await backends.stop()
    backends.detector.gate = None
    await backends.start()
    assert len((await call).lines) == 1


async def test_a_backend_that_stays_away_is_unavailable_after_some_tries(
    backends: Backends, backend: Backend
) -> None:
    await backends.stop()
    with pytest.raises(Unavailable, match="detector"):
        await DetectorClient(backend.channel, QUICK).detect(PAGE, deadline=None)


async def test_a_full_queue_is_told_at_once_to_someone_who_waits_and_waited_for_in_bulk(
    backends: Backends, backend: Backend
) -> None:
    client = RecognizerClient(backend.channel, QUICK)
    line = raw_image(np.zeros((20, 50, 3), np.uint8))
    backends.recognizer.errors = [Overloaded("full"), Overloaded("full")]
    with pytest.raises(Overloaded):
        await client.recognize(pb.RecognizeLinesRequest(lines=[line], priority=pb.ONLINE), deadline=None)
    read = await client.recognize(pb.RecognizeLinesRequest(lines=[line], priority=pb.BULK), deadline=None)
    assert read.lines[0].text == "50x20"


async def test_an_error_of_the_input_arrives_as_the_same_class(backends: Backends, backend: Backend) -> None:
    backends.detector.errors = [ImageTooSmall("2 x 2")]
    with pytest.raises(ImageTooSmall, match="2 x 2"):
        await DetectorClient(backend.channel, QUICK).detect(PAGE, deadline=None)
    assert len(backends.detector.requests) == 1


async def test_the_deadline_travels_and_ends_the_call(backends: Backends, backend: Backend) -> None:
    backends.detector.gate = _never
    client = DetectorClient(backend.channel, QUICK)
    with pytest.raises(DeadlineExceeded):
        await client.detect(PAGE, deadline=time.monotonic() + 0.05)
    with pytest.raises(DeadlineExceeded, match="before"):
        await client.detect(PAGE, deadline=time.monotonic() - 1)
    assert len(backends.detector.requests) == 1


async def test_a_backend_without_an_answer_failed_on_this_work_and_is_not_asked_again(
    backends: Backends, backend: Backend
) -> None:
    backends.detector.gate = _never
    client = DetectorClient(backend.channel, RetryLimits(timeout_s=0.05))
    with pytest.raises(NoAnswer) as caught:
        await client.detect(PAGE, deadline=time.monotonic() + 60)
    assert (caught.value.code, caught.value.retryable) == ("PREDICTOR_FAILED", False)
    assert len(backends.detector.requests) == 1


def test_a_backend_without_an_answer_is_a_failed_try_for_kafka_and_not_one_for_ever() -> None:
    error = NoAnswer("the detector gave no answer in 120 s")
    assert [next_step(error, attempts, 3) for attempts in (1, 2, 3)] == ["retry", "retry", "dead-letter"]


async def test_the_longest_side_is_asked_once(backends: Backends, backend: Backend) -> None:
    client = DetectorClient(backend.channel, QUICK)
    assert [await client.max_side(deadline=None) for _ in range(3)] == [320] * 3
    assert backends.detector.described == 1


def test_one_bad_check_after_good_ones_is_forgiven_and_two_are_not() -> None:
    health = Health("detector")
    seen = []
    for problem in (None, "down", None, "down", "down", None):
        health.saw(problem)
        seen.append(health.not_ready() is None)
    assert seen == [True, True, True, True, False, True]


def test_a_backend_is_not_ready_until_it_was_asked_and_at_the_first_bad_answer() -> None:
    health = Health("detector")
    assert health.not_ready() == "the detector is not ready: not asked yet"
    health.saw("down")
    assert health.not_ready() == "the detector is not ready: down"


async def test_readiness_follows_the_backend(backends: Backends, backend: Backend) -> None:
    await backend.start()
    await _until(lambda: backend.not_ready() is None)
    await backends.serving(False)
    await _until(lambda: "NOT_SERVING" in (backend.not_ready() or ""))
    await backends.serving(True)
    await _until(lambda: backend.not_ready() is None)
    await backends.stop()
    await _until(lambda: "UNAVAILABLE" in (backend.not_ready() or ""))
    await backends.start()
    await _until(lambda: backend.not_ready() is None)


async def _until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def _never(_: object) -> None:
    await asyncio.Event().wait()
