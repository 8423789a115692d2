import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import (
    CorruptInput,
    DeadlineExceeded,
    Internal,
    Overloaded,
    PredictorFailed,
    ShuttingDown,
    Unavailable,
    UriUnavailable,
)
from services.gateway.retries import Backoff, RetryBudget, next_step


@pytest.mark.parametrize(
    ("error", "attempts", "step"),
    [
        (CorruptInput(), 1, "dead-letter"),
        (DeadlineExceeded(), 1, "dead-letter"),
        (Unavailable(), 10_000, "retry"),
        (Overloaded(), 10_000, "retry"),
        (ShuttingDown(), 10_000, "retry"),
        (PredictorFailed(), 2, "retry"),
        (PredictorFailed(), 3, "dead-letter"),
        (Internal(), 3, "dead-letter"),
        (UriUnavailable(), 2, "retry"),
        (UriUnavailable(), 3, "dead-letter"),
    ],
)
def test_what_becomes_of_a_failure(error, attempts, step):
    assert next_step(error, attempts, max_attempts=3) == step


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_the_wait_between_tries_is_spread_and_capped(attempt, draw):
    assert 0 <= Backoff(0.1, 10).wait(attempt, draw) <= min(10, 0.1 * 2 ** min(attempt - 1, 20))


@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1), st.integers(1, 20))
def test_second_tries_are_at_most_a_share_of_the_first_and_the_reserve(wanted, share, reserve):
    budget, second = RetryBudget(share, reserve), 0
    for first, again in enumerate(wanted, 1):
        budget.first_try()
        second += again and budget.spend()
        assert second <= reserve + share * first + 1e-6


def test_a_backend_that_stays_away_is_asked_hardly_more_often_than_its_callers_ask():
    budget, second = RetryBudget(share=0.2, reserve=10), 0
    for _ in range(1000):
        budget.first_try()
        while budget.spend():
            second += 1
    assert 200 <= second <= 210


def test_what_was_spent_is_earned_again():
    budget = RetryBudget(share=0.5, reserve=1)
    assert [budget.spend(), budget.spend()] == [True, False]
    budget.first_try()
    assert not budget.spend()
    budget.first_try()
    assert budget.spend()
