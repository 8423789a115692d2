"""Rates and percentiles of runs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.samples import Answer, Run, Sample, percentile

OK = Answer("ok")


def run(*done: float) -> Run:
    return Run(tuple(Sample("a.png", 0.0, at, OK) for at in done))


def test_the_steady_rate_leaves_filling_and_emptying_out() -> None:
    slow_start_and_end = run(5.0, 6.0, 7.0, 8.0, 9.0, 20.0)
    assert slow_start_and_end.steady_rate(1) == pytest.approx(4 / 4)


def test_the_whole_rate_counts_from_the_first_document_sent() -> None:
    assert run(5.0, 10.0).whole_rate() == pytest.approx(0.2)


@given(st.integers(1, 5), st.integers(1, 5), st.floats(0.01, 10))
def test_an_even_flow_has_its_rate_whatever_the_edges(edge: int, between: int, gap: float) -> None:
    even = run(*(gap * (n + 1) for n in range(2 * edge + between)))
    assert even.steady_rate(edge) == pytest.approx(1 / gap)


def test_a_run_of_edges_only_has_no_steady_rate() -> None:
    with pytest.raises(ValueError, match="2 samples"):
        run(1.0, 2.0).steady_rate(1)


def test_failed_documents_have_no_latency_but_are_listed() -> None:
    failed = Sample("b.png", 1.0, 2.0, Answer("failed", error="CORRUPT_INPUT: x"))
    mixed = Run((Sample("a.png", 1.0, 4.0, OK), failed))
    assert mixed.latencies_s() == [3.0]
    assert mixed.failures() == [failed]


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile([3.0, 1.0, 2.0], p) for p in (0, 50, 99, 100)] == [1.0, 2.0, 3.0, 3.0]
    assert math.isnan(percentile([], 50))
