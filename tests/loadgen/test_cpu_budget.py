"""From counters of the kernel and clocks in results to milliseconds a page."""

import pytest

from loadgen.cpu_budget import PROMISED_MS, Budget, Least, budget, holds, section, value
from loadgen.samples import Answer, Run, Sample

TIMING = {"decode_ms": 8.0, "crop_ms": 2.0, "detect": {"process_ms": 3.0}, "recognize": {"process_ms": 1.0}}


def run(pages: int, lines: int) -> Run:
    found = tuple({"text": "x"} for _ in range(lines))
    return Run(tuple(Sample("a.png", 0.0, 1.0, Answer("ok", found, timing=TIMING)) for _ in range(pages)))


def made(cpu: float, lines: int = 50) -> Budget:
    return budget("gRPC", {"gateway": 1.0}, {"gateway": 1.0 + cpu}, 0.02, run(10, lines))


def test_seconds_of_a_run_become_milliseconds_a_page_for_each_process() -> None:
    before, after = {"gateway": 1.0, "detector": 2.0}, {"gateway": 1.5, "detector": 2.25}
    found = budget("gRPC", before, after, 0.05, run(10, 25))
    assert found.cpu == pytest.approx({"gateway": 50.0, "detector": 25.0})
    assert (found.pages, found.lines) == (10, 25)
    assert found.model == pytest.approx(5.0)
    assert found.total == pytest.approx(70.0)
    assert found.promised == pytest.approx(140.0)


def test_stages_are_means_over_the_pages() -> None:
    assert list(made(0.3).stages.values()) == pytest.approx([8.0, 2.0, 3.0, 1.0])


def test_a_timing_without_a_stage_counts_as_nothing() -> None:
    assert value({}, ("detect", "process_ms")) == 0.0
    assert value({"detect": 3}, ("detect", "process_ms")) == 0.0


def test_the_promise_is_for_a_page_of_fifty_lines_through_every_door() -> None:
    within, beyond = made(PROMISED_MS / 100), made(PROMISED_MS / 50)
    assert holds([within])
    assert not holds([within, beyond])
    assert not holds([made(PROMISED_MS / 100, lines=10)])


def test_the_report_has_a_row_for_each_process_and_the_verdict() -> None:
    found = section([made(0.3, lines=25)], Least(work=12.5, bytes=7.5))
    assert "| gateway | 30.0 |" in found.markdown
    assert "| **together, a page** | 28.0 |" in found.markdown
    assert "| work without services, a page | 12.5 |" in found.markdown
    assert "| the same bytes through bare gRPC calls, a page | 7.5 |" in found.markdown
    assert "| these two, a page of 50 lines | 40.0 |" in found.markdown
    assert "held: no" in found.markdown
    assert found.data["gRPC"]["total_ms"] == pytest.approx(28.0)
