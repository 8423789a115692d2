import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.accounts import Outcome, Sent, settle

READINGS = {"slip": "a text"}


def healthy(number):
    return Sent(f"h{number}", "slip")


def poison(number):
    return Sent(f"p{number}", "bomb", "IMAGE_TOO_LARGE")


def good(job):
    return Outcome(job.job_id, "a text") if job.reason is None else Outcome(job.job_id, reason=job.reason)


@st.composite
def runs(draw):
    jobs = [healthy(n) for n in range(draw(st.integers(0, 30)))]
    jobs += [poison(n) for n in range(draw(st.integers(0, 5)))]
    return draw(st.permutations(jobs))


@given(runs())
def test_one_good_outcome_for_each_job_is_a_good_run(jobs):
    verdict = settle(jobs, [good(job) for job in jobs], READINGS)
    assert verdict.failures("exactly_once") == []
    assert (verdict.results + verdict.letters, verdict.letters) == (verdict.jobs, verdict.poison)


@given(runs(), st.data())
def test_whoever_is_missing_is_lost(jobs, data):
    missing = data.draw(st.sets(st.sampled_from(jobs))) if jobs else set()
    verdict = settle(jobs, [good(job) for job in jobs if job not in missing], READINGS)
    assert set(verdict.lost) == {job.job_id for job in missing}
    assert bool(verdict.failures("at_least_once")) == bool(missing)


@given(runs(), st.data())
def test_repetitions_are_counted_and_fail_only_exactly_once(jobs, data):
    again = data.draw(st.lists(st.sampled_from(jobs))) if jobs else []
    verdict = settle(jobs, [good(job) for job in [*jobs, *again]], READINGS)
    assert verdict.repeated == len(again)
    assert verdict.failures("at_least_once") == []
    assert bool(verdict.failures("exactly_once")) == bool(again)


BAD = {
    "wronged": (healthy(1), Outcome("h1", reason="PREDICTOR_FAILED")),
    "spared": (poison(1), Outcome("p1", "a text")),
    "misjudged": (poison(1), Outcome("p1", reason="INTERNAL")),
    "differing": (healthy(1), Outcome("h1", "half a text")),
    "strange": (healthy(1), Outcome("x1", "a text")),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_outcome_fails_the_run_also_beside_a_good_one(kind):
    job, bad = BAD[kind]
    verdict = settle([job], [good(job), bad], READINGS)
    assert [len(getattr(verdict, other)) for other in BAD] == [int(other == kind) for other in BAD]
    assert bad.job_id in verdict.failures("at_least_once")[0]


def test_many_failures_are_summed_up():
    jobs = [healthy(number) for number in range(100)]
    assert settle(jobs, [], READINGS).failures("at_least_once") == [
        "100 lost: neither a result nor a dead letter: h0, h1, h2, h3, h4, h5, h6, h7 and 92 more"
    ]
