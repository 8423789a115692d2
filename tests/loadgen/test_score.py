"""Accuracy of texts against labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from loadgen.score import Score, distance_within, plain, score


def test_case_spaces_and_wide_letters_do_not_count() -> None:
    assert plain("ＡB c\u3000D") == "abcd"


def test_a_string_split_over_two_lines_is_found() -> None:
    assert score({"a.png": ["TOTAL 12.50"]}, {"a.png": ["total", "12.50"]}) == Score(1, 1.0, 0.0)


def test_edits_count_by_the_labelled_characters() -> None:
    found = score({"a.png": ["TOTAL", "12.50"]}, {"a.png": ["xx T0TAL yy", "12.50"]})
    assert found == Score(2, 0.5, pytest.approx(10.0))


def test_documents_without_labels_do_not_count_and_labels_of_other_documents_neither() -> None:
    assert score({"b.png": ["x"]}, {"a.png": ["y"]}) is None


def test_a_document_read_empty_misses_all_its_strings() -> None:
    assert score({"a.png": ["abc"]}, {"a.png": []}) == Score(1, 0.0, 100.0)


short = st.text("ab1", max_size=8)


@given(short, short)
def test_the_distance_is_that_of_the_best_piece(wanted: str, text: str) -> None:
    pieces = {text[i:j] for i in range(len(text) + 1) for j in range(i, len(text) + 1)}
    assert distance_within(wanted, text) == min(Levenshtein.distance(wanted, piece) for piece in pieces)
