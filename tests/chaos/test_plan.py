from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.plan import COMBINATIONS, GATEWAYS, Durations, Fault, Kind, Scale, covered, make_plan

SEEDS = st.integers(0, 2**32)
DURATIONS = Durations()


def plan(seed, faults=20, seconds=60.0):
    return make_plan(seed, seconds=seconds, faults=faults, durations=DURATIONS)


@given(SEEDS, st.integers(0, 60))
def test_the_same_seed_gives_the_same_plan(seed, faults):
    assert plan(seed, faults) == plan(seed, faults)


def test_other_seeds_give_other_plans():
    assert len({plan(seed) for seed in range(20)}) == 20


@given(SEEDS, st.integers(len(COMBINATIONS), 60))
def test_everything_goes_wrong_at_least_once_when_there_are_faults_enough(seed, faults):
    assert covered(plan(seed, faults)) == set(COMBINATIONS)


@given(SEEDS, st.integers(0, 60), st.floats(1, 1000))
def test_events_are_in_order_and_within_the_time(seed, faults, seconds):
    moments = [event.at_s for event in plan(seed, faults, seconds)]
    assert moments == sorted(moments)
    assert all(0 <= at <= seconds for at in moments)


@given(SEEDS, st.integers(0, 60))
def test_there_are_as_many_faults_as_asked_for(seed, faults):
    assert sum(isinstance(event, Fault) for event in plan(seed, faults)) == faults


@given(SEEDS)
def test_what_is_killed_stays_killed_and_all_else_ends(seed):
    for event in plan(seed):
        if isinstance(event, Fault) and event.kind is Kind.KILL:
            assert event.for_s == 0
        elif isinstance(event, Fault):
            assert DURATIONS.least_s <= event.for_s <= DURATIONS.most_s


@given(SEEDS)
def test_gateways_grow_and_shrink_again(seed):
    assert tuple(event.gateways for event in plan(seed) if isinstance(event, Scale)) == GATEWAYS[1:]
