"""How the lines of several processes become one log."""

import json

from services.cli import logs


def test_a_json_line_becomes_a_short_line_that_says_who_speaks() -> None:
    record = {
        "time": "2026-01-01T00:00:00Z",
        "level": "info",
        "service": "gateway",
        "logger": "x.y",
        "message": "listening",
        "port": 50051,
        "trace_id": "0" * 32,
    }
    assert logs.render("gateway", json.dumps(record)).plain == "gateway     listening  port=50051"


def test_any_other_line_is_passed_on_as_it_is() -> None:
    assert logs.render("detector", "Traceback (most recent call last):").plain.endswith("last):")
    assert logs.render("detector", '{"half": ').plain.endswith('{"half": ')
    assert logs.render("detector", "[bold]x").plain.endswith("[bold]x")


def test_the_reason_of_a_death_is_the_last_error_that_was_logged() -> None:
    lines = [
        json.dumps({"level": "error", "message": "cannot listen on 50051"}),
        json.dumps({"level": "info", "message": "stopped"}),
    ]
    assert logs.reason(lines) == "cannot listen on 50051"


def test_the_reason_of_a_crash_is_the_last_line_of_its_stack_trace() -> None:
    lines = [
        json.dumps({"level": "error", "message": "old"}),
        "Traceback",
        "  File",
        "ValueError: no such model",
    ]
    assert logs.reason(lines) == "ValueError: no such model"
    assert logs.reason([]) == "it gave no reason"


def test_an_ordinary_line_is_no_reason() -> None:
    ready = json.dumps({"level": "info", "message": "ready"})
    warning = json.dumps({"level": "warning", "message": "nobody answers"})
    assert logs.reason(["a library's chatter", ready]) == "it gave no reason"
    assert logs.reason([warning, ready]) == "nobody answers"
