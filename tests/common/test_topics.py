"""Which names of topics a gateway can work with."""

import pytest

from services.common.topics import topics_problem


def test_three_different_names_are_fine() -> None:
    assert topics_problem(jobs="ocr.jobs", results="r_-9", dlq="x" * 249) is None


@pytest.mark.parametrize("name", ["", ".", "..", "bad/topic", "a b", "收据", "a\n", "x" * 250])
def test_what_kafka_takes_for_no_name_is_named(name: str) -> None:
    problem = topics_problem(jobs=name, results="r", dlq="d")
    assert problem is not None
    assert problem.startswith(f"jobs_topic: {name!r} is no name")


def test_a_gateway_that_would_read_what_it_writes_is_refused() -> None:
    assert "endlessly" in (topics_problem(jobs="a", results="a", dlq="d") or "")
    assert "jobs_topic and dlq_topic" in (topics_problem(jobs="a", results="r", dlq="a") or "")
    assert "results_topic and dlq_topic" in (topics_problem(jobs="j", results="a", dlq="a") or "")
