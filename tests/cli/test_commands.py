"""The command line itself: what it refuses, how it says so, how it ends."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from services.cli import commands, doctor, grpc_client, kafka_client, model_sets
from services.cli.__main__ import app
from services.cli.doctor import Check, Verdict
from services.cli.errors import CliError, Unreachable
from services.cli.formats import failure
from services.common.pb import ocr_pb2 as pb

NOBODY = "127.0.0.1:1"  # a port that nobody listens on


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def slip(tmp_path: Path) -> Path:
    path = tmp_path / "slip.png"
    Image.new("L", (64, 64), 255).save(path)
    return path


@pytest.mark.parametrize("command", ["recognize", "submit"])
def test_a_missing_file_is_wrong_use_said_in_one_line(command: str) -> None:
    code, out, err = run(command, "none.jpg")
    assert (code, out) == (2, "")
    assert err == "ocrctl: none.jpg: no such file or folder.\n"


def test_an_unknown_option_is_wrong_use(slip: Path) -> None:
    assert run("recognize", slip, "--colour")[0] == 2
    assert run("recognize", slip, "--format", "xml")[0] == 2
    assert run("up", "--ports", "gatway=1")[0] == 2


def test_an_unreachable_gateway_is_named_with_what_to_do(slip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_client, "CONNECT_TIMEOUT_S", 0.2)
    code, out, err = run("recognize", slip, "--gateway", NOBODY)
    assert (code, out) == (3, "")
    assert NOBODY in err
    assert "ocrctl up" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [["submit"], ["submit", "--wait"], ["results"]])
def test_an_unreachable_broker_is_named_with_what_to_do(command: list[str], slip: Path) -> None:
    files = [slip] if command[0] == "submit" else []
    code, out, err = run(*command, *files, "--kafka", NOBODY)
    assert (code, out) == (3, "")
    assert NOBODY in err
    assert len(err.splitlines()) == 1


class FakeStream:
    """Answers in reverse order; the file `bad.png` fails."""

    def __init__(self, address: object, files: list[Path], job_ids: list[str], **options: object) -> None:
        self._jobs = list(zip(files, job_ids, strict=True))

    async def results(self) -> AsyncIterator[tuple[int, pb.Result]]:
        for index, (path, job_id) in reversed(list(enumerate(self._jobs))):
            yield index, self._result(path, job_id)

    def _result(self, path: Path, job_id: str) -> pb.Result:
        if path.name == "bad.png":
            return failure(str(path), job_id, "CORRUPT_INPUT", "it is damaged")
        return pb.Result(job_id=job_id, file=str(path), status=pb.OK, lines=[pb.Line(text=path.stem, page=1)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a", "bad", "c"):
        (tmp_path / f"{name}.png").touch()
    monkeypatch.setattr(grpc_client, "GatewayStream", FakeStream)
    return tmp_path


def test_results_are_printed_in_the_order_of_the_files(folder: Path) -> None:
    code, out, err = run("recognize", folder)
    assert code == 1
    assert out.splitlines() == [f"== {folder}/a.png ==", "a", f"== {folder}/c.png ==", "c"]
    assert err == f"{folder}/bad.png: not read: CORRUPT_INPUT: it is damaged\n"


def test_one_file_is_printed_without_heading_and_ends_with_zero(folder: Path) -> None:
    assert run("recognize", folder / "a.png") == (0, "a\n", "")


def test_jsonl_has_a_line_for_every_file_also_the_failed_ones(folder: Path) -> None:
    code, out, err = run("recognize", folder, "--format", "jsonl")
    assert (code, err) == (1, "")
    assert [line[:20] for line in out.splitlines()] == ['{"file": "' + str(folder)[:10]] * 3


def test_when_the_gateway_goes_away_what_was_read_is_printed_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(FakeStream):
        async def results(self) -> AsyncIterator[tuple[int, pb.Result]]:
            async for numbered in super().results():
                yield numbered
            raise Unreachable("it went away")

    monkeypatch.setattr(grpc_client, "GatewayStream", Gone)
    code, out, err = run("recognize", folder / "a.png")
    assert (code, out, err) == (3, "a\n", "ocrctl: it went away\n")


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.OK, 0), (Verdict.NOTE, 0), (Verdict.MISSING, 1)])
def test_doctor_fails_only_for_what_up_needs(
    verdict: Verdict, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda **_: [Check("thing", verdict, "found", "do this")])
    done, out, _ = run("doctor")
    assert done == code
    assert "do this" in out


def test_doctor_looks_at_this_machine() -> None:
    by_name = {check.name: check for check in doctor.examine(engine="simulated", kafka=NOBODY)}
    assert by_name["models"].verdict is Verdict.OK
    assert by_name["broker"].verdict is Verdict.MISSING
    assert by_name["engine openvino"].verdict is Verdict.OK
    assert by_name["crc32c"].verdict is Verdict.OK


def test_up_names_the_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        code, _, err = run("up", "--ports", f"gateway={holder.getsockname()[1]}")
    assert code == 1
    assert "(gateway)" in err


def test_up_offline_without_models_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_MODELS_DIR", str(tmp_path))
    code, _, err = run("up", "--ports", "free", "--offline", "--engine", "openvino")
    assert code == 1
    assert "ocrctl models fetch ppocr-v6-small" in err


def test_models_that_are_missing_are_fetched_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_MODELS_DIR", str(tmp_path))
    fetched: list[str] = []
    monkeypatch.setattr(model_sets.models, "fetch", fetched.append)
    with pytest.raises(CliError, match="not in"):  # since nothing really was
        model_sets.ensure(
            "det=ppocr-v4-mobile,rec=ppocr-v6-small", offline=False, fetching=commands._fetching
        )
    assert fetched == ["ppocr-v4-mobile", "ppocr-v6-small"]


def test_a_folder_that_does_not_exist_is_no_reason_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_sets.models, "fetch", lambda name: pytest.fail(f"fetched {name}"))
    with pytest.raises(CliError, match="/nowhere"):
        model_sets.ensure("/nowhere", offline=False, fetching=commands._fetching)


def test_unknown_model_sets_are_refused_with_the_names_there_are() -> None:
    code, _, err = run("models", "fetch", "ppocr-v9")
    assert code == 1
    assert "ppocr-v6-small" in err


def test_help_imports_no_engine_no_client_and_no_image_library() -> None:
    heavy = ["cv2", "paddle", "openvino", "kafka", "grpc", "numpy", "PIL", "pypdfium2", "opentelemetry"]
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from services.cli.__main__ import app\n"
        "for words in (['--help'], ['up', '--help'], ['models', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_option_has_a_help_text() -> None:
    from typer.main import get_command

    group = get_command(app)
    parts = [*group.commands.values(), *group.commands["models"].commands.values()]
    for command in parts:
        assert command.help, command.name
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{command.name} {parameter.name}"


def test_a_new_trace_begins_with_the_command_when_nobody_records_one() -> None:
    ((name, value),) = kafka_client.trace_headers()
    version, trace, span, flags = value.decode().split("-")
    assert (name, version, flags) == ("traceparent", "00", "01")
    assert (len(trace), len(span)) == (32, 16)


def test_up_uses_the_broker_that_the_variable_names_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCR_KAFKA", NOBODY)
    monkeypatch.setenv("OCR_GATEWAY", "elsewhere:1")
    monkeypatch.setattr(commands, "OwnBroker", lambda port: pytest.fail("it started one"))
    code, out, err = run("up", "--ports", "free", "--engine", "simulated")
    assert code == 3
    assert f"using the Kafka broker at {NOBODY} (from OCR_KAFKA)" in out
    assert "OCR_GATEWAY is elsewhere:1" in out
    assert NOBODY in err


def test_results_may_be_as_large_as_the_topics_that_up_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = kafka_client.Topics()
    monkeypatch.delenv("OCR_MAX_RESULT_BYTES", raising=False)
    assert commands._environment(topics, own_broker=True)["OCR_MAX_RESULT_BYTES"] == "66060288"
    assert "OCR_MAX_RESULT_BYTES" not in commands._environment(topics, own_broker=False)
    monkeypatch.setenv("OCR_MAX_RESULT_BYTES", "5")
    assert commands._environment(topics, own_broker=True)["OCR_MAX_RESULT_BYTES"] == "5"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--jobs-topic", "a", "--results-topic", "a", "--dlq-topic", "a"], "'a'"),
        (["--jobs-topic", "bad/topic"], "'bad/topic'"),
        (["--ports", "gateway=50051,detector=50051"], "50051"),
        (["--engine", "nope"], "'nope'"),
        (["--engine", "no.such.module:create"], "no.such.module"),
        (["--engine", "openvino", "--models", "nope"], "ppocr-v6-small"),
        (["--engine", "paddle", "--models", "ppocr-v6-small"], "ppocr-v5-mobile"),
        (["--engine", "paddle", "--models", "det=ppocr-v5-mobile,rec=ppocr-v6-small"], "ppocr-v6-small"),
    ],
)
def test_what_up_cannot_mean_is_refused_before_anything_is_started(
    words: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "OwnBroker", lambda port: pytest.fail("it started one"))
    monkeypatch.setattr(model_sets.models, "fetch", lambda name: pytest.fail(f"fetched {name}"))
    code, _, err = run("up", *words)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert reason in err


@pytest.mark.parametrize("words", [["models", "fetch", "ppocr-v6-small"], ["up", "--ports", "free"]])
def test_a_cache_that_cannot_be_written_is_one_sentence(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCR_MODELS_DIR", str(tmp_path / "file" / "models"))
    code, _, err = run(*words)
    assert (code, len(err.splitlines())) == (1, 1), err
    assert str(tmp_path / "file" / "models") in err
    assert "OCR_MODELS_DIR" in err


def test_a_terminal_that_has_gone_does_not_end_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "no terminal")

    commands._print_line(Console(file=Gone()), Text("a line"))


def test_pictures_never_replace_the_documents(slip: Path) -> None:
    before = slip.read_bytes()
    for command in (["recognize"], ["submit", "--wait"]):
        code, out, err = run(*command, slip.parent, "--overlay", slip.parent)
        assert (code, out) == (2, "")
        assert "choose a folder without documents" in err
    assert slip.read_bytes() == before


def test_pictures_without_results_are_wrong_use(slip: Path, tmp_path: Path) -> None:
    code, _, err = run("submit", slip, "--overlay", tmp_path / "out")
    assert code == 2
    assert "--wait" in err


def test_a_picture_that_cannot_be_made_is_said_and_the_next_has_its_turn(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithPages(FakeStream):
        def _result(self, path: Path, job_id: str) -> pb.Result:
            result = super()._result(path, job_id)
            result.pages.add(number=1, width=10, height=10)
            return result

    monkeypatch.setattr(grpc_client, "GatewayStream", WithPages)
    code, out, err = run("recognize", folder / "a.png", folder / "c.png", "--overlay", tmp_path / "out")
    assert code == 1
    assert out.splitlines()[1::2] == ["a", "c"]
    assert [line.rpartition(": no picture")[0] for line in err.splitlines()] == [
        f"{folder}/a.png",
        f"{folder}/c.png",
    ]


def test_control_characters_in_names_are_shown_escaped(folder: Path) -> None:
    strange = folder / "new\nline\x1b[31m.png"
    strange.touch()
    code, out, _ = run("recognize", strange, folder / "a.png")
    assert code == 0
    assert out.splitlines()[0] == f"== {folder}/new\\nline\\x1b[31m.png =="
    assert run("recognize", "no\nne")[2] == "ocrctl: no\\nne: no such file or folder.\n"


WITH_FAKE_STREAM = (
    "import sys\n"
    "from services.cli import grpc_client\n"
    "from services.cli.__main__ import main\n"
    "from services.common.pb import ocr_pb2 as pb\n"
    "class Stream:\n"
    "    def __init__(self, address, files, job_ids, **_): pass\n"
    "    async def results(self):\n"
    "        yield 0, pb.Result(status=pb.OK)\n"
    "grpc_client.GatewayStream = Stream\n"
    "main()\n"
)


@pytest.mark.parametrize(("where", "said"), [("> /dev/full", "No space left"), (">&-", "closed")])
def test_an_output_that_takes_nothing_is_a_failure_in_one_line(where: str, said: str, slip: Path) -> None:
    script = f'"$0" -c "$1" recognize "$2" {where}'
    words = ["sh", "-c", script, sys.executable, WITH_FAKE_STREAM, str(slip)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
