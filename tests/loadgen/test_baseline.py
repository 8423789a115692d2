"""What the baseline counts and what it says."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from loadgen import baseline, baseline_report, benchmark, corpus, floor
from loadgen.baseline import SYSTEMS, Baseline, Beneath, Load, Measured, Plan, Scale, System, Waste, waste
from loadgen.corpus import Corpus, Document
from loadgen.errors import NoDocuments, OtherMachine, RunFailed
from loadgen.machine import Machine
from loadgen.peers.measure import Outcome, Reading
from loadgen.prometheus import Metrics
from loadgen.report import Part, Section
from loadgen.samples import Answer, Run, Sample
from loadgen.score import Score
from loadgen.studies.context import Context
from services.common.errors import SetupError
from tests.conftest import SLIPS

SCALE = Scale(counted=32, edge=4, mixed=16, choose_from=2)

MACHINE = Machine("Z80", (), 2, 4.0, "CP/M", "3.11", {}, "abc", "2026-11-30", 0.0)


def part(name: str, *sections: Section, commit: str = "abc") -> Part:
    return Part(name, sections, 12.0, commit, "2026-11-30", "loadgen")


def page(name: str) -> Document:
    return Document(Path(name), b"")


def metrics(valid: int, padding: int, batches: int, items: int) -> Metrics:
    rows = [
        f'ocr_batch_pixels_total{{kind="valid",stage="recognizer"}} {valid}',
        f'ocr_batch_pixels_total{{kind="padding",stage="recognizer"}} {padding}',
        f"ocr_batch_size_count {batches}",
        f"ocr_batch_size_sum {items}",
    ]
    return Metrics.parse("\n".join(rows))


def found(labels: dict[str, tuple[str, ...]] | None = None) -> Baseline:
    pages = Corpus(Path("x"), (page("a.png"), page("b.png")), labels or {})
    plan = Plan(pages, (), "127.0.0.1:9092", (SYSTEMS["v6-small"],), ("rapidocr",), SCALE, 2)
    load = Load(0.8, 0.7, 40, {"gateway": 50.0}, {"recognizer": Waste(0.9, 3.5)})
    passes = (floor.Pass(0.1, 0.35), floor.Pass(0.1, 0.45))
    settings = {"det": floor.Setting(1, 1, 2), "rec": floor.Setting(4, 2, 2)}
    one = Measured(SYSTEMS["v6-small"], Beneath(settings, passes), load, None, Score(10, 0.9, 1.5))
    readings = (Reading("a.png", 2.0, ({"text": "TOTAL"},)), Reading("b.png", 3.0, ()))
    outcome = Outcome("rapidocr", "as it comes", readings, {"as it comes": 2.5})
    return Baseline(plan, (one,), {"rapidocr": outcome}, ())


def test_pages_are_sent_as_often_as_gives_about_the_wanted_count() -> None:
    assert [SCALE.rounds(pages) for pages in (5, 32, 100)] == [6, 1, 1]


def test_waste_counts_only_what_came_between_two_looks() -> None:
    before, after = metrics(100, 100, 10, 10), metrics(190, 110, 12, 17)
    assert waste(before, after) == Waste(valid_share=0.9, mean_batch=3.5)


def test_a_run_with_a_failed_document_is_no_measurement() -> None:
    failed = Run((Sample("a.png", 0, 1, Answer("failed", error="CORRUPT_INPUT: cut off")),))
    with pytest.raises(RunFailed, match=r"a\.png: failed CORRUPT_INPUT: cut off"):
        baseline.answered(failed)


def test_the_ratios_are_those_of_seconds_a_page() -> None:
    section = baseline_report.speed(found({"a.png": ("TOTAL",)}), "two receipts")
    figures = section.data["v6-small"]
    assert figures["floor_seconds_a_page"] == pytest.approx(1.0)
    assert figures["share_of_floor"] == pytest.approx(0.8)
    assert figures["times_peer"] == pytest.approx(2.5 * 0.8)
    assert "| 1.250 | 0.80 | 2.00 | 0.900 | 1.50 |" in section.markdown
    assert section.data["rapidocr"]["accuracy"] == {"strings": 1, "found": 1.0, "cer_percent": 0.0}
    assert "two receipts (2 pages)" in section.markdown
    assert [verdict["holds"] for verdict in section.data["verdicts"]] == [True, False, False]


def test_batches_are_judged_by_their_padding_and_by_the_best_batch_of_the_bare_model() -> None:
    section = baseline_report.fullness(found())
    assert [verdict["holds"] for verdict in section.data["verdicts"]] == [True, True]
    assert "at least 0.7 of 4, the best of the bare model (measured: 3.50)" in section.markdown


def test_all_sections_become_a_document_and_json(tmp_path) -> None:
    report = benchmark.Report(tmp_path / "docs" / "benchmarks.md", "Benchmarks")
    sections = tuple(baseline_report.sections(found(), "two receipts"))
    report.collect(MACHINE.section(["loadgen"]), [part("baseline", *sections)])
    text = report.path.read_text()
    assert text.startswith("# Benchmarks\n\n## About these figures\n")
    assert text.index("## Machine") < text.index("## Speed")
    assert "| v6-small | the pages | recognizer | 0.900 | 3.50 |" in text
    data = json.loads(report.data_path.read_text())
    assert data["Processor time by process"] == {"v6-small": {"gateway": 50.0}}


def test_what_was_measured_is_kept_when_a_later_part_breaks(tmp_path) -> None:
    def parts():
        yield part("cpu", Section("First", "text"))
        raise KeyboardInterrupt

    report = benchmark.Report(tmp_path / "benchmarks.md", "Benchmarks")
    with pytest.raises(KeyboardInterrupt):
        report.collect(MACHINE.section([]), parts())
    assert report.path.read_text().endswith("\n\n## First\n\ntext\n")
    assert [one.name for one in report.kept(MACHINE)] == ["cpu"]


def test_a_part_that_is_measured_again_takes_its_place_and_the_others_stay_as_they_were(tmp_path) -> None:
    report = benchmark.Report(tmp_path / "benchmarks.md", "Benchmarks")
    first = [
        part("baseline", Section("Speed", "fast\n\n### More\n\n| a |", {"a": 1}), Section("Floor", "low")),
        part("memory", Section("Memory", "flat", {"b": 2}), commit="old"),
        part("classes", Section("Classes", "fair")),
    ]
    report.collect(MACHINE.section([]), first)
    assert report.kept(MACHINE) == first
    again = part("memory", Section("Memory", "flatter"), commit="new")
    report.collect(MACHINE.section([]), [again], report.kept(MACHINE))
    assert report.kept(MACHINE) == [first[0], again, first[2]]
    text = report.path.read_text()
    assert "| memory | 12 | 2026-11-30 | new |" in text
    assert "| all parts | 36 |" in text
    assert text.index("## Floor") < text.index("## Memory") < text.index("## Classes")


def test_figures_of_another_machine_are_not_mixed_with_those_of_this_one(tmp_path) -> None:
    report = benchmark.Report(tmp_path / "benchmarks.md", "Benchmarks")
    assert report.kept(MACHINE) == []
    report.collect(MACHINE.section([]), [part("memory", Section("Memory", "flat"))])
    with pytest.raises(OtherMachine, match="about 2 cores of Z80"):
        report.kept(replace(MACHINE, cores=4))


def test_parts_are_measured_in_the_order_of_the_report_and_a_quick_one_says_so() -> None:
    ran: list[str] = []

    def measure(name: str):
        return lambda: ran.append(name) or [Section(name, "text", {"a": 1})]

    ways = {name: measure(name) for name in benchmark.PARTS}
    context = Context((), None, quick=True)
    found = list(benchmark.measured(("memory", "baseline"), ways, context, MACHINE, "loadgen bench x"))
    assert ran == [one.name for one in found] == ["baseline", "memory"]
    assert found[0].sections[0].data == {"a": 1, "quick": True}
    assert found[0].command == "loadgen bench x"
    assert found[0].commit == "abc"


def test_every_part_can_be_measured() -> None:
    assert [*benchmark.measures(found().plan, Context((), None), "x")] == [*benchmark.PARTS]
    assert {*benchmark.QUICK_PARTS} < {*benchmark.PARTS}


def test_a_study_that_cannot_run_says_why_in_its_place(monkeypatch) -> None:
    def refuse(context):
        raise SetupError("no broker")

    monkeypatch.setattr("loadgen.studies.memory.run", refuse)
    section = benchmark.study("memory", Context((), None))
    assert section == Section("Memory", "Not measured: no broker", {"left_out": "no broker"})


def test_a_system_whose_models_are_missing_is_left_out_with_the_reason(monkeypatch) -> None:
    def refuse(system, plan, *, first):
        raise SetupError(f"{system.models} is not there")

    monkeypatch.setattr(baseline, "measure", refuse)
    monkeypatch.setattr(baseline, "_peer", lambda name, plan: None)
    monkeypatch.setattr(baseline, "require_broker", lambda bootstrap: None)
    with pytest.raises(RunFailed, match="v6-small: ppocr-v6-small is not there"):
        baseline.run(found().plan)


def test_documents_are_the_images_of_a_folder_with_the_labels_beside_them() -> None:
    slips = corpus.load(SLIPS)
    assert [d.name for d in slips.documents] == sorted(
        p.name for p in SLIPS.iterdir() if p.suffix in corpus.CONTENT_TYPES
    )
    assert "¥52.70" in slips.labels["vat-e-invoice.png"]


def test_labels_of_lines_and_labels_of_strings_are_read_alike() -> None:
    assert corpus.strings_of({"lines": [{"text": "a"}, {"text": "b"}]}) == corpus.strings_of(
        {"strings": ["a", "b"]}
    )


def test_an_image_of_one_line_is_labelled_by_its_text() -> None:
    assert corpus.strings_of({"file": "a.jpg", "text": "a"}) == ("a",)


def test_a_folder_without_images_is_named(tmp_path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(NoDocuments, match=str(tmp_path)):
        corpus.load(tmp_path)


def test_labels_that_cannot_be_read_are_named(tmp_path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "labels.jsonl").write_text('{"name": "a.png"}\n')
    with pytest.raises(NoDocuments, match=r"labels\.jsonl cannot be read"):
        corpus.load(tmp_path)


def test_a_mixed_load_takes_one_of_each_in_turn() -> None:
    a, b, c = map(page, "abc")
    assert list(corpus.mixed([a, b], [c], 5)) == [a, c, b, c, a]
    assert list(corpus.repeated([a, b], 3)) == [a, b, a]


class FakeFloor:
    """Bare models that take no time to load."""

    settings: ClassVar = {"det": floor.Setting(1, 1, 2), "rec": floor.Setting(4, 2, 2)}

    def __init__(self) -> None:
        self.halves: list[int] = []

    def measure(self, half: int) -> floor.Pass:
        self.halves.append(half)
        return floor.Pass(0.1, 0.2)


def test_a_system_is_measured_through_its_real_services(monkeypatch) -> None:
    given: list[floor.Inputs] = []
    fake = FakeFloor()

    @contextlib.contextmanager
    def warm(bare, inputs, **rest):
        given.append(inputs)
        yield fake

    monkeypatch.setattr(baseline.floor, "warm", warm)
    monkeypatch.setattr(baseline, "resolve", lambda models, role: None)
    slips = corpus.load(SLIPS)
    system = System("sim", "simulated", "auto", "rapidocr", 1.0)
    scale = Scale(counted=5, edge=2, mixed=6, choose_from=0)
    plan = Plan(slips, slips.documents, "", (system, system), (), scale, 2)
    one, other = baseline.run(plan).measured
    assert other.beneath is None
    assert other.of_floor is None
    assert other.load.rate > 0
    assert len(given[0].det) == len(slips.documents)
    assert len(given[0].rec) > 0
    assert one.beneath is not None
    assert fake.halves == [0, 1]
    assert one.beneath.seconds == pytest.approx(0.6)
    assert one.load.pages == 9
    assert one.load.rate > 0
    assert one.mixed is not None
    assert one.mixed.pages == 6
    assert {"detector", "recognizer", "gateway"} <= one.load.cpu_ms.keys()
    assert all(0 < stage.valid_share <= 1 and stage.mean_batch >= 1 for stage in one.load.waste.values())
