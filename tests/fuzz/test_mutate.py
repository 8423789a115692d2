"""The fuzzer's own parts: what it begins with is valid, and each document can be made again."""

import random
import time
import unittest.mock

import pytest

from tests.fuzz import mutate
from tests.fuzz.mutate import MAX_GROWTH, MUTATIONS, document
from tests.fuzz.seeds import KINDS, seeds


def test_a_document_is_a_function_of_seed_and_number() -> None:
    first = [document(3, n) for n in range(60)]
    assert first == [document(3, n) for n in range(60)]
    assert first != [document(4, n) for n in range(60)]


def test_the_documents_are_those_that_earlier_runs_had() -> None:
    """Or a finding could not be made again: a PDF writer puts the time of day into its files."""
    seeds.cache_clear()
    first = [document(3, n) for n in range(60)]
    real, later = time.gmtime, time.gmtime(10**9)
    with unittest.mock.patch("time.gmtime", lambda *at: real(*at) if at else later):
        seeds.cache_clear()
        assert [document(3, n) for n in range(60)] == first
    seeds.cache_clear()


def test_every_kind_has_its_turn() -> None:
    assert [document(1, n)[0] for n in range(len(KINDS))] == list(KINDS)


@pytest.mark.parametrize("mutation", set(MUTATIONS), ids=lambda mutation: mutation.__name__)
def test_a_mutation_changes_documents_and_bears_what_others_left(mutation: mutate.Mutation) -> None:
    chance = random.Random(1)
    for kind in KINDS:
        data = seeds()[kind][0]
        assert any(mutation(data, kind, chance) != data for _ in range(20)), kind
        for remains in (b"", b"\0", data[:9]):
            assert len(mutation(remains, kind, chance)) <= MAX_GROWTH + len(remains) + len(data) + 10


def test_a_png_gets_its_checksums_back() -> None:
    whole = seeds()["png"][0]
    damaged = bytearray(whole)
    damaged[29:33] = b"\0\0\0\0"  # the checksum of the header
    assert mutate._with_checksums(bytes(damaged)) == whole
