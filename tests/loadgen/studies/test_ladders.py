"""The arithmetic of the study of ladders."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.score import distance
from loadgen.studies.ladders import (
    OURS,
    THEIRS,
    Labelled,
    Row,
    batches,
    by_models,
    cells,
    cer,
    difference,
    edits_of,
    geometric,
    judge,
    ladder,
    sample,
)


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
    rows = [
        *(row("a", OURS, 1, 0, 0), row("a", THEIRS, 0, 0, 1)),
        *(row("b", OURS, 1, 0, 0, 0), row("b", THEIRS, 0, 0, 0, 0)),
        *(row("c", OURS, *[1] * 9, 0), row("c", THEIRS, *[0] * 10)),
    ]
    assert [verdict.holds for verdict in judge(rows)] == [True, True, False]


def row(models, padding, *edits, ms=None):
    return Row(models, padding, None, 1.0, 1.0, 2.0, 0.5, ms, edits)


def test_a_row_tells_its_edits_beside_theirs_and_its_speed_beside_ours():
    rows = [row("a", OURS, 0, 0, ms=30.0), row("a", THEIRS, 0, 0), row("a", "wide", 1, 1, ms=40.0)]
    shown = [cells(one, by_models(rows)["a"])[-4:] for one in rows]
    assert shown == [
        ("+0 ± 0", "0.500", "30.0", "1.00"),
        ("", "0.500", "", ""),
        ("+2 ± 0", "0.500", "40.0", "0.75"),
    ]


def test_edits_are_told_for_a_hundred_characters_without_spaces():
    assert cer(["ab cd", "efgh"], [1, 1]) == 25.0


def test_lines_that_are_alone_come_first_and_others_fill_the_sample():
    alone = [Labelled(None, str(n), alone=True) for n in range(3)]
    others = [Labelled(None, str(n), alone=False) for n in range(9)]
    found = sample(alone, others, 7)
    assert [line.alone for line in found] == [True] * 3 + [False] * 4
    assert len({id(line) for line in found}) == 7
    assert len(sample(alone, others, 2)) == 2
    assert sample(alone, others, None) == [*alone, *others]
