import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.studies.figures import (
    Verdict,
    growth,
    per_second,
    poisson_schedule,
    rate_within,
    table,
    verdict_list,
)


def test_growth_is_a_part_of_the_earlier_value():
    assert growth(200, 206) == pytest.approx(0.03)
    assert growth(200, 190) == pytest.approx(-0.05)


def test_a_schedule_depends_on_its_seed_alone_and_ends_in_time():
    schedule = poisson_schedule(5, 40, seed=1)
    assert schedule == poisson_schedule(5, 40, seed=1) != poisson_schedule(5, 40, seed=2)
    assert list(schedule) == sorted(schedule)
    assert schedule[-1] < 40
    assert 150 < len(schedule) < 250


def test_a_rate_counts_what_lies_within():
    assert rate_within([0.5, 1.0, 2.0, 3.0, 3.1], 1.0, 3.0) == 1.0


@given(st.lists(st.floats(-5, 25), max_size=50))
def test_seconds_add_up_to_what_lies_within(moments):
    counts = per_second(moments, 2.0, 12.5)
    assert len(counts) == 10
    assert sum(counts) == sum(2.0 <= moment < 12.0 for moment in moments)


def test_a_second_without_events_is_seen():
    assert per_second([0.1, 0.2, 2.5], 0, 3) == (2, 0, 1)


def test_a_claim_that_does_not_hold_stands_out():
    text = verdict_list([Verdict("grows < 3 %", "1 %", True), Verdict("ratio <= 3", "3.4", False)])
    assert text.splitlines() == [
        "- holds: grows < 3 % (measured: 1 %)",
        "- **does not hold**: ratio <= 3 (measured: 3.4)",
    ]


def test_a_table_has_a_line_for_each_row_and_rounds_floats():
    assert table(["what", "ms"], [["a", 12.3456], ["b", 3]]).splitlines() == [
        "| what | ms |",
        "| --- | --- |",
        "| a | 12.3 |",
        "| b | 3 |",
    ]
