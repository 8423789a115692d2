"""The command line."""

import pytest
from typer.testing import CliRunner

from loadgen.__main__ import app

run = CliRunner().invoke


def test_a_folder_without_pages_ends_with_a_sentence(tmp_path) -> None:
    found = run(app, ["baseline", str(tmp_path)])
    assert found.exit_code == 1
    assert found.output.startswith(f"loadgen: {tmp_path}: no such folder, or no images")


def test_a_broker_that_is_not_there_ends_with_a_sentence(tmp_path) -> None:
    (tmp_path / "a.png").touch()
    found = run(app, ["baseline", str(tmp_path), "--kafka", "127.0.0.1:1", "--peers", ""])
    assert found.exit_code == 1
    assert "no Kafka broker answers at 127.0.0.1:1" in found.output


@pytest.mark.parametrize(
    ("command", "option"), [("baseline", "--peers"), ("baseline", "--systems"), ("bench", "--only")]
)
def test_a_name_that_is_not_known_is_wrong_use_and_the_known_ones_are_listed(
    command: str, option: str, tmp_path
) -> None:
    found = run(app, [command, str(tmp_path), option, "nobody"])
    assert found.exit_code == 2
    assert "nobody" in found.output
