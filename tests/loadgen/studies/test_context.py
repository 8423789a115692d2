from pathlib import Path

from loadgen.corpus import Document
from loadgen.report import Section
from loadgen.studies.context import QUICK_NOTE, SMALL_PAGES, SMALL_SIDE, Context
from loadgen.studies.cuttings import BANDS, SLIPS

PAGES = (Document(Path("a.png"), b""),)


def test_a_measured_pipeline_has_the_defaults_of_the_product_and_what_is_asked():
    config = Context(PAGES, "broker:1").stack(both={"predictors": 2}, env={"A": "b"})
    assert config.detector == config.recognizer == {"predictors": 2}
    assert (config.kafka, config.env) == ("", {"A": "b"})


def test_a_broker_is_used_where_it_is_asked_for_and_named():
    assert Context(PAGES, "broker:1").stack(kafka=True).kafka == "broker:1"
    assert Context(PAGES, None).stack(kafka=True).kafka == ""


def test_a_quick_run_warms_up_less_and_says_so():
    context = Context(PAGES, None, quick=True)
    config = context.stack(both={"predictors": 2})
    assert config.detector == {**SMALL_PAGES, "predictors": 2}
    assert len(config.recognizer["width_ladder"]) == 5
    marked = context.marked(Section("T", "text", {"a": 1}))
    assert marked.markdown.startswith(QUICK_NOTE)
    assert marked.data == {"a": 1, "quick": True}
    assert context.marked(marked) is marked


def test_small_documents_leave_the_recognizer_as_it_is():
    config = Context(PAGES, None).stack(small=True)
    assert (config.detector, config.recognizer) == (SMALL_PAGES, {})


def test_no_small_document_is_larger_than_the_detector_is_told():
    for sizes in (SLIPS, BANDS):
        assert max(*sizes.widths, *sizes.heights) <= SMALL_SIDE


def test_any_other_section_stays_as_it_is():
    section = Section("T", "text", {})
    assert Context(PAGES, None).marked(section) is section
