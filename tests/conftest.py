"""Fixtures for all tests: model sets fetched once, real slips, no telemetry unless a test asks."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.brokers import Broker, start_broker
from tests.fakes.topics import create_topics

SLIPS = Path(__file__).parent / "data" / "slips"


# Property tests judge behaviour; how long an example takes on a busy machine says nothing about it.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_configure() -> None:
    """A developer's own collector must not receive the spans of tests."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "OCR_")) and name != "OCR_MODELS_DIR":
            del os.environ[name]


@pytest.fixture(scope="session")
def slips() -> dict[str, Path]:
    """Real slips by file name."""
    return {path.name: path for path in sorted(SLIPS.iterdir()) if path.suffix in {".png", ".jpg", ".jpeg"}}


@pytest.fixture(scope="session")
def expected() -> dict[str, list[str]]:
    """Strings that stand on each slip, by file name."""
    lines = (SLIPS / "expected.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["file"]: row["strings"] for row in map(json.loads, lines)}


_NOTES: list[str] = []


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """Apache Kafka; where Java or Maven is missing the embedded broker, but never in CI."""
    broker = start_broker()
    if broker.note:
        _NOTES.append(broker.note)
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def kafka_topics(kafka) -> tuple[str, dict[str, str]]:
    """The broker's HOST:PORT, and topics that no other module uses."""
    return kafka.bootstrap, create_topics(kafka.bootstrap)


def pytest_terminal_summary(terminalreporter) -> None:
    for note in _NOTES:
        terminalreporter.write_line(f"Kafka tests ran {note}", yellow=True, bold=True)
