"""Where a running `ocrctl up` says which addresses it has, and how a client command finds its server.

Each `up` keeps one small file locked for as long as it lives; a file that nobody locks was left behind by one
that was killed, and is ignored (a process id alone could belong to somebody else by now).
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

DEFAULT_GATEWAY = "127.0.0.1:50051"
DEFAULT_KAFKA = "127.0.0.1:9092"
DEFAULT_ORIGIN = "the default"


@dataclass(frozen=True)
class UpState:
    """What a running `up` tells the client commands. Addresses are HOST:PORT."""

    pid: int
    started: float
    gateway: str
    detector: str
    recognizer: str
    kafka: str


def runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The user's runtime folder, or one in the cache where there is none."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "ocr-serving"
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ocr-serving" / "run"


class StateFile:
    """The file of this process, from `write` to `close`."""

    def __init__(self, folder: Path, state: UpState) -> None:
        self.path = folder / f"up-{state.pid}.json"
        self._state = state
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = self.path.open("w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        json.dump(asdict(self._state), self._file)
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self.path.unlink(missing_ok=True)
        self._file.close()


def running(folder: Path) -> UpState | None:
    """The `up` that was started last among those alive, or None."""
    found = [state for path in folder.glob("up-*.json") if (state := _read_if_alive(path)) is not None]
    return max(found, key=lambda state: state.started, default=None)


def _read_if_alive(path: Path) -> UpState | None:
    try:
        with path.open(encoding="utf-8") as file:
            if not _locked_by_other(file):
                return None
            return UpState(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None  # just removed, half written or of another version: nothing to connect to


def _locked_by_other(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


@dataclass(frozen=True)
class Address:
    """Where to connect, and who said so; the latter is for messages."""

    target: str
    origin: str


def gateway_address(flag: str | None, environment: Mapping[str, str] = os.environ) -> Address:
    """HOST:PORT of the gateway: flag, then OCR_GATEWAY, then a running `up`, then the default."""
    return _address(flag, "--gateway", "OCR_GATEWAY", "gateway", DEFAULT_GATEWAY, environment)


def kafka_address(flag: str | None, environment: Mapping[str, str] = os.environ) -> Address:
    """HOST:PORT[,…] of the broker: flag, then OCR_KAFKA, then a running `up`, then the default."""
    return _address(flag, "--kafka", "OCR_KAFKA", "kafka", DEFAULT_KAFKA, environment)


def named_kafka(flag: str | None, environment: Mapping[str, str] = os.environ) -> Address | None:
    """The broker that flag or OCR_KAFKA names, for `up`, which starts one where nobody names any."""
    if flag or environment.get("OCR_KAFKA"):
        return kafka_address(flag, environment)
    return None


def _address(
    flag: str | None, option: str, variable: str, field: str, default: str, environment: Mapping[str, str]
) -> Address:
    if flag:
        return Address(flag, option)
    if value := environment.get(variable):
        return Address(value, variable)
    if (state := running(runtime_folder(environment))) is not None:
        return Address(str(getattr(state, field)), f"`ocrctl up` with process id {state.pid}")
    return Address(default, DEFAULT_ORIGIN)
