"""How a client command finds its server."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.state import (
    DEFAULT_GATEWAY,
    DEFAULT_KAFKA,
    Address,
    StateFile,
    UpState,
    gateway_address,
    kafka_address,
    named_kafka,
    running,
    runtime_folder,
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def up(
    pid: int = 1, started: float = 1.0, gateway: str = "127.0.0.1:1", kafka: str = "127.0.0.1:2"
) -> UpState:
    return UpState(pid, started, gateway, "127.0.0.1:3", "127.0.0.1:4", kafka)


def test_flag_beats_environment_beats_running_up_beats_default(environment: dict[str, str]) -> None:
    assert gateway_address(None, environment).target == DEFAULT_GATEWAY
    assert kafka_address(None, environment).target == DEFAULT_KAFKA
    with StateFile(runtime_folder(environment), up()):
        assert gateway_address(None, environment).target == "127.0.0.1:1"
        assert kafka_address(None, environment).target == "127.0.0.1:2"
        said = environment | {"OCR_GATEWAY": "g:1", "OCR_KAFKA": "k:1"}
        assert gateway_address(None, said).target == "g:1"
        assert kafka_address(None, said).target == "k:1"
        assert gateway_address("flag:1", said).target == "flag:1"
        assert kafka_address("flag:2", said).target == "flag:2"
    assert gateway_address(None, environment).target == DEFAULT_GATEWAY


def test_an_address_says_where_it_came_from(environment: dict[str, str]) -> None:
    with StateFile(runtime_folder(environment), up(pid=77)):
        assert "77" in gateway_address(None, environment).origin
    assert gateway_address("a:1", environment).origin == "--gateway"


def test_the_up_that_was_started_last_wins(environment: dict[str, str]) -> None:
    folder = runtime_folder(environment)
    with StateFile(folder, up(1, 5.0, "late:1")), StateFile(folder, up(2, 4.0, "early:1")):
        found = running(folder)
        assert found is not None
        assert found.gateway == "late:1"


def test_a_file_left_by_a_killed_up_is_ignored(environment: dict[str, str]) -> None:
    folder = runtime_folder(environment)
    code = (
        "import os, sys, pathlib; from services.cli.state import *\n"
        "f = StateFile(pathlib.Path(sys.argv[1]), UpState(os.getpid(), 1.0, 'a:1', 'b:1', 'c:1', 'd:1'))\n"
        "f.__enter__(); print('held', flush=True); sys.stdin.read(); os._exit(9)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        assert running(folder) is not None
        other.stdin.close()
        other.wait()
    assert list(folder.glob("up-*.json"))  # it is there,
    assert running(folder) is None  # but nobody holds it


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_broken_state_file_is_ignored(environment: dict[str, str], content: str) -> None:
    folder = runtime_folder(environment)
    with StateFile(folder, up()) as held:
        held.path.write_text(content)
        assert running(folder) is None


def test_without_a_runtime_folder_the_cache_serves(tmp_path: Path) -> None:
    assert runtime_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "ocr-serving" / "run"


def test_the_broker_of_up_is_the_flag_then_the_variable_and_else_its_own() -> None:
    environment = {"OCR_KAFKA": "there:1"}
    assert named_kafka("here:1", environment) == Address("here:1", "--kafka")
    assert named_kafka(None, environment) == Address("there:1", "OCR_KAFKA")
    assert named_kafka(None, {"OCR_KAFKA": ""}) is None
