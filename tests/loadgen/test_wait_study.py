"""The arithmetic of the wait study, and that what it simulates is possible."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.wait_study import (
    CPU,
    GPU,
    HEIGHT,
    AdaptiveQueue,
    Cost,
    CostEstimate,
    Row,
    ShapeRate,
    adaptive_wins,
    arrivals,
    best_fixed,
    capacity,
    limits,
    measure,
    section,
    simulate,
    verdict,
    wait_that_pays,
)
from services.common.batch_queue import BatchQueue, Entry, Priority

FIXED, EACH = 0.005, 0.0005


def lines_at(*moments: float) -> list[Entry[int]]:
    return [Entry(i, 320, HEIGHT * 320, Priority.ONLINE, at) for i, at in enumerate(moments)]


def latency(waiting: int, gap: float, wait: bool) -> float:
    """Of `waiting` items and the next one together, if the next comes after exactly `gap`."""

    def cost(items: int) -> float:
        return FIXED + EACH * items

    if wait:
        return waiting * (gap + cost(waiting + 1)) + cost(waiting + 1)
    free = max(cost(waiting) - gap, 0.0)
    return waiting * cost(waiting) + free + cost(1)


@given(waiting=st.integers(1, 7), gap=st.floats(0.00001, 0.01))
def test_waiting_pays_exactly_when_the_items_together_are_answered_sooner(waiting: int, gap: float) -> None:
    sooner = latency(waiting, gap, wait=True) - latency(waiting, gap, wait=False)
    if abs(sooner) < 1e-9:
        return
    assert (wait_that_pays(waiting, gap, FIXED, EACH, value=1.0) > 0) == (sooner < 0)


def test_the_wait_that_pays_is_longer_where_the_predictor_is_worth_more() -> None:
    assert wait_that_pays(1, 0.003, FIXED, EACH, value=1.0) == 0
    assert wait_that_pays(1, 0.003, FIXED, EACH, value=2.0) == pytest.approx((0.010 - 0.0005) / 2)


@given(
    fixed=st.floats(0, 0.1), pixel=st.floats(1e-9, 1e-6), sizes=st.lists(st.integers(1, 10**6), min_size=2)
)
def test_the_cost_of_batches_is_found_from_those_that_ran(
    fixed: float, pixel: float, sizes: list[int]
) -> None:
    estimate = CostEstimate(keep=1.0)
    sizes = [size * 100 for size in sizes]
    for size in sizes:
        estimate.learn(size, fixed + pixel * size)
    seconds = estimate.fit()
    if max(sizes) > 2 * min(sizes):
        middle = (max(sizes) + min(sizes)) / 2
        assert seconds[0] + seconds[1] * middle == pytest.approx(fixed + pixel * middle, rel=1e-3, abs=1e-6)


def test_nothing_is_known_of_the_cost_before_batches_of_two_sizes_ran() -> None:
    estimate = CostEstimate()
    assert estimate.fit() == (0.0, 0.0)
    estimate.learn(1000, 0.01)
    estimate.learn(1000, 0.01)
    assert estimate.fit() == (0.0, 0.0)


def test_the_gap_between_items_of_a_shape_is_an_average_that_follows() -> None:
    rate = ShapeRate(weight=0.5)
    for moment in (1.0, 3.0, 7.0):
        rate.arrived(moment)
    assert (rate.gap, rate.last) == (3.0, 7.0)


def test_an_idle_predictor_runs_after_the_wait_and_the_next_item_after_the_batch() -> None:
    cost = Cost("test", 0.010, 0.0)
    outcome = simulate(BatchQueue(limits(2.0)), lines_at(0.0, 0.001, 0.005), cost)
    assert outcome.latencies == pytest.approx((0.012, 0.011, 0.017))
    assert (outcome.batches, outcome.end) == (2, pytest.approx(0.022))


def test_a_busy_predictor_gathers_a_batch_without_any_wait() -> None:
    cost = Cost("test", 0.010, 0.0)
    outcome = simulate(BatchQueue(limits(0.0)), lines_at(0.0, 0.001, 0.002), cost)
    assert outcome.latencies == pytest.approx((0.010, 0.019, 0.018))
    assert outcome.batches == 2


@given(seed=st.integers(0, 2**32), load=st.floats(0.2, 0.9))
@settings(max_examples=10, deadline=None)
def test_every_line_is_answered_once_never_sooner_than_it_can_be(seed: int, load: float) -> None:
    lines = arrivals(seed, load * capacity(GPU), 200)
    for queue in (BatchQueue[int](limits(2.0)), AdaptiveQueue(limits(0.0))):
        outcome = simulate(queue, lines, GPU)
        assert len(outcome.latencies) == len(lines)
        assert min(outcome.latencies) >= GPU.of(min(line.pixels for line in lines)) - 1e-9
        assert outcome.end <= lines[-1].arrival + sum(GPU.of(line.pixels) for line in lines)


def test_the_adaptive_rule_waits_where_the_predictor_is_busy_and_the_next_item_is_near() -> None:
    """Each item comes just after the one before was answered: at once, none ever shares a batch."""
    lines = lines_at(*(0.004 * i for i in range(300)))
    lines[0] = replace(lines[0], shape=640, pixels=HEIGHT * 640)  # else the costs cannot be told apart
    cost = Cost("test", 0.0035, 1e-9)
    at_once = simulate(BatchQueue(limits(0.0)), lines, cost)
    adaptive = simulate(AdaptiveQueue(limits(0.0)), lines, cost)
    assert at_once.batches == 300
    assert adaptive.batches < 300


def test_the_same_seed_gives_the_same_figures() -> None:
    assert section(7, 100) == section(7, 100)
    assert "| CPU, 1 ms + 540 ms/Mpixel | 0.9 | adaptive |" in section(7, 100).markdown


def test_capacity_is_what_full_batches_carry() -> None:
    lines = arrivals(3, 100 * capacity(CPU), 2000)  # all at once, nearly
    row = measure(CPU, 1.0, 0.0, lines)
    assert row.items_per_s == pytest.approx(capacity(CPU), rel=0.1)
    assert row.mean_batch > 7


ROW = Row("m", 0.5, "0 ms", 10.0, 50.0, 100.0, 1.0)


def rows_of(p50: float, p99: float) -> list[Row]:
    slow = replace(ROW, rule="10 ms", p50_ms=20.0, p99_ms=49.9)
    return [ROW, slow, replace(ROW, rule="adaptive", p50_ms=p50, p99_ms=p99)]


@pytest.mark.parametrize(
    ("p50", "p99", "wins"), [(10.0, 50.0, False), (9.0, 50.0, True), (10.0, 40.0, True), (9.0, 60.0, False)]
)
def test_the_adaptive_rule_wins_if_it_is_better_in_one_and_not_worse_in_the_other(
    p50: float, p99: float, wins: bool
) -> None:
    assert adaptive_wins(rows_of(p50, p99)) is wins


def test_a_difference_in_the_noise_does_not_make_a_slow_wait_the_best() -> None:
    assert best_fixed(rows_of(10.0, 50.0)) == ROW


def test_the_verdict_counts_the_loads_that_were_won() -> None:
    won, lost = rows_of(9.0, 40.0), [replace(row, load=0.7) for row in rows_of(10.0, 50.0)]
    assert "beats the best fixed wait (0 ms) at 1 of 2 loads: it does not ship." in verdict([*won, *lost])
    assert "at 1 of 1 loads: it is worth shipping." in verdict(won)
