"""What the demo says of where the time went."""

import io

from rich.console import Console

from services.cli.demo import STEPS, time_tables
from services.common.pb import ocr_pb2 as pb


def result(name: str) -> pb.Result:
    stage = pb.StageTiming(queue_ms=11, model_ms=12, mean_batch_size=6.5)
    timing = pb.Timing(
        total_ms=1234.4, wait_ms=1, decode_ms=2, crop_ms=3, transport_ms=4, detect=stage, recognize=stage
    )
    return pb.Result(file=f"folder/{name}.jpg", timing=timing, lines=[pb.Line()] * 7)


def test_every_step_is_shown_for_every_document_within_80_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    names = [f"a-rather-long-name-{number}" for number in range(7)]
    for table in time_tables([result(name) for name in names]):
        console.print(table)
    text = console.export_text()
    for name, _ in STEPS:
        assert text.count(name) == 2, "one row in each of the two tables"
    assert text.count("1234") == 7
    assert text.count("6.5") == 7
    assert "…" not in text, "nothing is cut"
