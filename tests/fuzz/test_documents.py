"""Whatever a stranger sends is read or refused with a typed error, within ten seconds and a gigabyte."""

from pathlib import Path

import pytest

from tests.fuzz import watch
from tests.fuzz.seeds import seeds
from tests.fuzz.watch import MAX_MEGABYTES, MAX_SECONDS, Verdict, fuzz, judged, report, save

CORPUS = Path(__file__).parent / "corpus"
AWKWARD = Path(__file__).parents[1] / "data" / "awkward"


def _verdicts(paths: list[Path]) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in judged([str(path) for path in paths])}


def test_a_few_hundred_mutated_documents_crash_and_hang_nothing() -> None:
    verdicts = list(fuzz(seed=20, count=450, workers=2))
    assert [v for v in verdicts if v.bad] == [], report(20, verdicts)
    assert sorted(int(v.name) for v in verdicts) == list(range(450))
    assert {"read", "CORRUPT_INPUT", "INVALID_JOB"} < {v.outcome for v in verdicts}


def test_what_the_fuzzer_begins_with_is_read(tmp_path: Path) -> None:
    paths = []
    for kind, documents in seeds().items():
        for number, data in enumerate(documents):
            paths.append(tmp_path / f"{number}.{kind}")
            paths[-1].write_bytes(data)
    refused = {name: v.outcome for name, v in _verdicts(paths).items() if v.outcome != "read"}
    assert refused == {
        "1.pdf": "PASSWORD_PROTECTED",
        "1.json": "URI_NOT_ALLOWED",
        "2.json": "fetched",
        "1.protobuf": "URI_NOT_ALLOWED",
    }


def test_the_corpus_ends_as_its_names_say() -> None:
    """A file is called after its outcome: `CORRUPT_INPUT-anything.jpeg`; `page-` stands for `page:`."""
    paths = sorted(CORPUS.iterdir())
    verdicts = _verdicts(paths)
    assert {name: v.bad for name, v in verdicts.items() if v.bad} == {}
    assert {name: v.outcome.replace(":", "-") for name, v in verdicts.items()} == {
        path.name: path.name.rpartition("-")[0] for path in paths
    }


def test_awkward_files_are_read_or_refused() -> None:
    paths = sorted(path for path in AWKWARD.iterdir() if path.suffix != ".md")
    verdicts = _verdicts(paths)
    assert list(verdicts) == [path.name for path in paths]
    assert {name: v.bad for name, v in verdicts.items() if v.bad} == {}


@pytest.mark.parametrize(("what", "outcome"), [("crash", "crash: exit status -6"), ("hang", "hang")])
def test_a_judge_that_dies_or_hangs_is_a_finding(
    what: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MAX_SECONDS", 0.5)
    verdicts = list(judged([what], judge="tests.fuzz.fake_judge"))
    assert [(v.name, v.outcome) for v in verdicts] == [("0", "read"), ("1", outcome)]
    assert [bool(v.bad) for v in verdicts] == [False, True]


def test_time_memory_and_other_exceptions_are_findings() -> None:
    assert not Verdict("1", "CORRUPT_INPUT", MAX_SECONDS, MAX_MEGABYTES).bad
    assert Verdict("1", "read", MAX_SECONDS + 0.1, 1).bad
    assert Verdict("1", "read", 0.1, MAX_MEGABYTES + 1).bad
    assert Verdict("1", "untyped:KeyError: 7", 0.1, 1).bad


def test_a_finding_is_kept_as_a_file_that_can_be_judged(tmp_path: Path) -> None:
    path = save(1, Verdict("3", "hang", 10.0, 0), tmp_path)
    assert path.name == "1-3.pdf"
    (verdict,) = judged([str(path)])
    assert verdict.name == path.name
