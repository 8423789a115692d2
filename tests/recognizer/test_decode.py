"""Greedy CTC: repeats collapse, blanks separate, what lies beyond the line is ignored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.recognizer.decode import ReadLine, Steps, decode, decode_all, valid_steps

CHARSET = ("", "a", "b", "中", " ")


def read(classes, probabilities=None, steps=None):
    probabilities = [0.5] * len(classes) if probabilities is None else probabilities
    return decode(np.asarray(classes, np.int32), np.asarray(probabilities, np.float32), CHARSET, steps)


@pytest.mark.parametrize(
    ("classes", "steps", "text", "why"),
    [
        ([], None, "", "no steps"),
        ([0, 0, 0], None, "", "blanks only"),
        ([1, 1, 1], None, "a", "a repeat is one character"),
        ([1, 0, 1], None, "aa", "a blank separates"),
        ([1, 2, 1], None, "aba", "another character separates"),
        ([0, 3, 3, 0, 4, 2, 2], None, "中 b", "the space is a character"),
        ([1, 0, 2, 0, 3], 3, "ab", "steps beyond the line are ignored"),
        ([1, 2], 0, "", "a line without steps"),
        ([1, 2], 9, "ab", "more steps than there are"),
    ],
)
def test_text_of_known_steps(classes, steps, text, why):
    assert read(classes, steps=steps).text == text, why


def test_confidence_is_the_mean_over_the_characters():
    got = read([0, 1, 1, 0, 2], [0.99, 0.8, 0.1, 0.99, 0.4])
    assert got == ReadLine("ab", pytest.approx(0.6, abs=1e-7))


def test_no_text_has_no_confidence():
    assert read([0, 0], [0.99, 0.99]) == ReadLine("", 0.0)


@pytest.mark.parametrize(
    ("content", "padded", "steps", "expected"),
    [(160, 160, 20, 20), (1, 160, 20, 1), (80, 160, 20, 10), (81, 160, 20, 11), (3200, 3200, 400, 400)],
)
def test_steps_that_look_at_the_line(content, padded, steps, expected):
    assert valid_steps(content, padded, steps) == expected


def slow_text(classes):
    text, before = "", None
    for index in classes:
        if index not in (before, 0):
            text += CHARSET[index]
        before = index
    return text


@given(st.lists(st.integers(0, len(CHARSET) - 1), max_size=60))
def test_decoding_equals_a_plain_loop(classes):
    assert read(classes).text == slow_text(classes)


@given(st.lists(st.integers(0, len(CHARSET) - 1), min_size=1, max_size=60), st.data())
def test_whatever_lies_in_the_padding_changes_nothing(classes, data):
    steps = data.draw(st.integers(0, len(classes)))
    other = data.draw(
        st.lists(st.integers(0, 4), min_size=len(classes) - steps, max_size=len(classes) - steps)
    )
    assert read(classes, steps=steps) == read(classes[:steps] + other, steps=steps)


@given(st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=20), st.integers(0, 25)), max_size=8))
def test_lines_decoded_together_read_as_each_alone(lines):
    steps = [
        Steps(np.asarray(classes, np.int32), np.linspace(0.1, 0.9, len(classes), dtype=np.float32), valid)
        for classes, valid in lines
    ]
    alone = [decode(line.classes, line.probabilities, CHARSET, line.valid) for line in steps]
    assert decode_all(steps, CHARSET) == alone
