"""`ocrctl up` with the simulated engine and the embedded broker, and the client commands against it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from services.cli.__main__ import app

READY = "ready after"


class Up:
    """A running `ocrctl up`, found by the client commands through its state file."""

    def __init__(self, runtime: Path) -> None:
        self.environment = os.environ | {
            "XDG_RUNTIME_DIR": str(runtime),
            "OCR_SIMULATED_FIXED_MS": "1",
            "OCR_SIMULATED_MS_PER_MEGAPIXEL": "1",
        }
        self.log: list[str] = []
        command = [sys.executable, "-m", "services.cli", "up", "--engine", "simulated", "--ports", "free"]
        self._process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._read_until(READY)

    def _read_until(self, wanted: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.append(line)
            if wanted in line:
                return
        pytest.fail("`ocrctl up` ended early:\n" + "".join(self.log))

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        rest, _ = self._process.communicate(timeout=60)
        self.log += rest.splitlines(keepends=True)
        return self._process.returncode


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up"))
    yield running
    running.stop()


@pytest.fixture
def runner(up: Up, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("XDG_RUNTIME_DIR", up.environment["XDG_RUNTIME_DIR"])
    return CliRunner()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for number in range(3):
        page = Image.new("L", (640, 320), 255)
        pen = ImageDraw.Draw(page)
        for row in range(4):
            pen.text((40, 30 + 70 * row), f"PAGE {number} ROW {row}", fill=0, font_size=32)
        page.save(folder / f"page-{number}.png")
    (folder / "page-1b.jpg").write_bytes(b"\xff\xd8\xff no more of it")
    return folder


def rows(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_both_doors_give_the_same_text_in_the_order_of_the_files(
    runner: CliRunner, pages: Path, tmp_path: Path
) -> None:
    through_kafka = runner.invoke(app, ["submit", "--wait", "-f", "jsonl", str(pages)])
    overlay = ["--overlay", str(tmp_path / "out")]
    through_grpc = runner.invoke(app, ["recognize", "-f", "jsonl", *overlay, str(pages)])
    assert (through_kafka.exit_code, through_grpc.exit_code) == (1, 1), "one of the files is damaged"
    kafka, grpc = rows(through_kafka.stdout), rows(through_grpc.stdout)
    assert [Path(str(row["file"])).name for row in kafka] == [
        "page-0.png",
        "page-1.png",
        "page-1b.jpg",
        "page-2.png",
    ]
    assert [row | {"job_id": ""} for row in kafka] == [row | {"job_id": ""} for row in grpc]
    assert [row["status"] for row in kafka] == ["ok", "ok", "failed", "ok"]
    assert all(row["lines"] for row in kafka if row["status"] == "ok")
    assert kafka[2]["error"]["code"] == "CORRUPT_INPUT"  # type: ignore[index]
    drawn = sorted(path.name for path in (tmp_path / "out").glob("*.jpg"))
    assert drawn == ["page-0.jpg", "page-1.jpg", "page-2.jpg"]


def test_what_was_submitted_without_waiting_is_found_among_the_results(
    runner: CliRunner, pages: Path
) -> None:
    sent = runner.invoke(app, ["submit", str(pages / "page-0.png")])
    assert sent.exit_code == 0
    job_id = sent.stdout.split()[0]
    again = runner.invoke(app, ["submit", "--wait", str(pages / "page-0.png")])
    assert again.exit_code == 0
    shown = runner.invoke(app, ["results", "-f", "jsonl"])
    assert job_id in {row["job_id"] for row in rows(shown.stdout)}


def _ocrctl(up: Up, *words: str, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "services.cli", *words]
    return subprocess.Popen(command, env=up.environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_a_reader_who_goes_away_ends_the_command_without_a_word(up: Up, pages: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with _ocrctl(up, "submit", str(pages), stdout=writer) as client:
        os.close(writer)
        assert client.communicate(timeout=30)[1] == ""
        assert client.returncode == 1


def test_an_interrupted_client_ends_with_130_and_no_trace(pages: Path) -> None:
    """It waits for a gateway that accepts and never answers; that it connects says it has begun."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(30)
        gateway = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "services.cli", "recognize", "--gateway", gateway, str(pages)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            silent.accept()[0].close()
            client.send_signal(signal.SIGINT)
            out, err = client.communicate(timeout=30)
    assert (client.returncode, out, err.strip()) == (130, "", "")


def test_an_interrupt_stops_all_in_order_and_ends_with_zero(up: Up) -> None:
    assert up.stop() == 0
    stopped = [line.split()[1] for line in up.log if line.rstrip().endswith(" stopped")]
    assert stopped[0] == "gateway"
    assert set(stopped[1:]) == {"detector", "recognizer"}
    assert not list(Path(up.environment["XDG_RUNTIME_DIR"]).rglob("*.json"))
