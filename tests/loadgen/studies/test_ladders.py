"""The arithmetic of the study of ladders."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.score import distance
from loadgen.studies.ladders import Row, batches, difference, edits_of, geometric, judge, ladder


@given(
    least=st.integers(1, 20).map(lambda n: 16 * n),
    ratio=st.floats(1.01, 2.0),
)
def test_a_geometric_ladder_rises_to_the_widest_and_never_by_more_than_its_ratio_and_a_step(least, ratio):
    rungs = geometric(least, ratio, step=16, most=3200)
    assert rungs[0] == least
    assert rungs[-1] == 3200
    assert all(low < high <= low * ratio + 16 for low, high in pairwise(rungs))


@given(widths=st.lists(st.sampled_from([64, 96, 320]), max_size=40), most=st.integers(1, 5))
def test_batches_hold_every_line_once_among_its_equals(widths, most):
    found = list(batches(widths, most))
    assert sorted(number for _, members in found for number in members) == list(range(len(widths)))
    assert all(widths[number] == width for width, members in found for number in members)
    assert all(1 <= len(members) <= most for _, members in found)


def test_a_ladder_takes_the_next_rung_and_the_last_one_for_what_is_wider():
    rule = ladder("two", (100, 200))
    assert [rule.width(own) for own in (1, 100, 101, 500)] == [100, 100, 200, 200]
    assert rule.rungs == 2


@pytest.mark.parametrize(
    ("one", "other", "edits"), [("", "ab", 2), ("abc", "abc", 0), ("kitten", "sitting", 3)]
)
def test_the_distance_counts_edits(one, other, edits):
    assert distance(one, other) == distance(other, one) == edits


def test_edits_do_not_count_case_and_spaces():
    assert edits_of(["TOTAL 10.00", "a", "A B"], ["total10.0O", "b", "ab"]) == (1, 1, 0)


def test_a_difference_comes_with_the_error_of_the_sample():
    assert difference([1, 0, 2, 0], [1, 0, 2, 0]) == (0, 0.0)
    more, error = difference([1, 0, 0, 0], [0, 0, 0, 1])
    assert more == 0
    assert error == pytest.approx(1.96 * 2**0.5)


def test_our_padding_is_judged_against_theirs_for_each_model_set_within_the_error_of_the_sample():
    def row(models, padding, *edits):
        return Row(models, padding, None, 1.0, 1.0, 1.0, None, edits)

    rows = [
        *(row("a", "ours", 1, 0, 0), row("a", "theirs", 0, 0, 1)),
        *(row("b", "ours", 1, 0, 0, 0), row("b", "theirs", 0, 0, 0, 0)),
        *(row("c", "ours", *[1] * 9, 0), row("c", "theirs", *[0] * 10)),
    ]
    assert [verdict.holds for verdict in judge(rows, "ours", "theirs")] == [True, True, False]
