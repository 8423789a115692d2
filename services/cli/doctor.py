"""What this machine has of what `ocrctl up` and the tests need, and how to get what is missing."""

import concurrent.futures
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from services.cli import ports, state
from services.cli.errors import CliError
from services.cli.ports import Ports

PROBE_TIMEOUT_S = 60
JAVA_AT_LEAST = 17


class Verdict(StrEnum):
    """How a check ended. Only MISSING keeps `up` from working."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `remedy` says what to do when it is not as it should be."""

    name: str
    verdict: Verdict
    finding: str
    remedy: str = ""


# Loaded in a process of its own: an engine that was built for another processor ends its process.
_PROBES = {
    "openvino": "import openvino as o; print(json.dumps([o.__version__, o.Core().available_devices]))",
    "paddle": "import paddle as p; print(json.dumps([p.__version__, ['CPU'] + "
    "[f'gpu:{i}' for i in range(p.device.cuda.device_count() if p.is_compiled_with_cuda() else 0)]]))",
}


def examine(*, engine: str | None = None, models: str | None = None, kafka: str | None = None) -> list[Check]:
    """All checks, the slow ones side by side."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        engines = [pool.submit(_engine, name) for name in _PROBES]
        java = pool.submit(_java)
        rest = [_python(), _processor(), _model_files(engine, models), _crc32c(), _broker(kafka), _ports()]
        loaded = [probe.result() for probe in engines]
        return [
            *rest[:2],
            *loaded,
            _chosen_engine(engine, models, loaded),
            *rest[2:],
            java.result(),
            _maven(),
        ]


def verdict(checks: Iterable[Check]) -> int:
    """Exit status: 1 when something that `up` needs is missing."""
    return int(any(check.verdict is Verdict.MISSING for check in checks))


def _python() -> Check:
    version = _distribution("ocr-serving") or "not installed as a package"
    return Check("ocr-serving", Verdict.OK, f"{version}, Python {platform.python_version()}")


def _processor() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Check("processor", Verdict.OK, f"{cores} cores, {platform.machine()}{_gpus()}")


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return ", no NVIDIA GPU"
    listed = _run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return "".join(f", {name}" for name in (listed or "").splitlines())


def _engine(name: str) -> Check:
    install = f"pip install 'ocr-serving[{name}]'"
    if importlib.util.find_spec(name) is None:
        return Check(f"engine {name}", Verdict.NOTE, "not installed", install)
    said = _run([sys.executable, "-c", f"import json; {_PROBES[name]}"])
    try:
        version, devices = json.loads((said or "").strip().splitlines()[-1])
    except (IndexError, ValueError):
        return Check(f"engine {name}", Verdict.NOTE, "installed, but cannot be loaded", f"again: {install}")
    return Check(f"engine {name}", Verdict.OK, f"{version.split('-')[0]}, devices {', '.join(devices)}")


def _chosen_engine(engine: str | None, models: str | None, loaded: Iterable[Check]) -> Check:
    """Whether the engine that the services would choose can be loaded."""
    from services.cli import model_sets

    try:
        choice = model_sets.choice(models, engine)
    except CliError as error:
        return Check("engine", Verdict.MISSING, "none can be chosen", str(error))
    found = {check.name: check for check in loaded}.get(f"engine {choice.engine}")
    if found is not None and found.verdict is not Verdict.OK:
        why = f"the services would use {choice.engine}: {found.finding}"
        return Check("engine", Verdict.MISSING, why, found.remedy)
    return Check("engine", Verdict.OK, f"the services use {choice.engine} on {', '.join(choice.devices)}")


def _model_files(engine: str | None, models: str | None) -> Check:
    from services.cli import model_sets

    try:
        choice = model_sets.choice(models, engine)
    except CliError as error:
        return Check("models", Verdict.NOTE, "unknown without an engine", str(error))
    if (asked := choice.models) is None:
        return Check("models", Verdict.OK, "the simulated engine needs none")
    try:
        model_sets.require_known(choice)
    except CliError as error:
        return Check("models", Verdict.MISSING, f"{asked} cannot be used", str(error))
    if why := model_sets.missing(asked):
        return _missing_models(asked, why)
    return Check("models", Verdict.OK, f"{asked} is here and unchanged")


def _missing_models(asked: str, why: str) -> Check:
    """Only a note where `up` would fetch them."""
    from services.cli import model_sets

    if not model_sets.can_be_fetched(asked):
        return Check("models", Verdict.MISSING, why, model_sets.how_to_get(asked))
    if problem := model_sets.cache_problem():
        return Check("models", Verdict.MISSING, why, problem)
    names = " ".join(model_sets.parts(asked))
    return Check("models", Verdict.NOTE, why, f"`ocrctl up` fetches them, or: ocrctl models fetch {names}")


def _crc32c() -> Check:
    if importlib.util.find_spec("crc32c") is not None:
        return Check("crc32c", Verdict.OK, f"{_distribution('crc32c')}, in C")
    why = "missing: the gateway refuses Kafka without it, for checksums in Python cost 40 ms for each 200 KB"
    return Check("crc32c", Verdict.MISSING, why, "pip install crc32c")


def _broker(flag: str | None) -> Check:
    from services.cli.embedded_broker import BrokerUnavailable, find_binary
    from services.cli.kafka_client import require_broker

    address = state.kafka_address(flag)
    if address.origin != state.DEFAULT_ORIGIN:
        try:
            require_broker(address)
        except CliError as error:
            return Check("broker", Verdict.MISSING, f"none answers at {address.target}", str(error))
        return Check("broker", Verdict.OK, f"answers at {address.target} (from {address.origin})")
    try:
        return Check("broker", Verdict.OK, f"embedded, {find_binary().name}")
    except BrokerUnavailable as error:
        return Check("broker", Verdict.MISSING, "no embedded broker", str(error))


def _ports() -> Check:
    found = ports.taken(Ports(), embedded_broker=True)
    if not found:
        return Check("ports", Verdict.OK, "the fixed ones are free")
    listed = ", ".join(f"{port} ({name})" for name, port in found.items())
    if running := state.running(state.runtime_folder()):
        return Check("ports", Verdict.OK, f"`ocrctl up` runs with process id {running.pid}; taken: {listed}")
    return Check(
        "ports", Verdict.NOTE, f"taken: {listed}", "stop what holds them, or: ocrctl up --ports free"
    )


def _java() -> Check:
    need = f"Java {JAVA_AT_LEAST} or later lets the tests use Apache Kafka (Debian: openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    said = _run([java, "-version"]) if java else None
    version = re.search(r'version "(\d+)', said or "")
    if version is None:
        return Check("java (tests)", Verdict.NOTE, "none found", need)
    enough = int(version[1]) >= JAVA_AT_LEAST
    return Check("java (tests)", Verdict.OK if enough else Verdict.NOTE, version[1], "" if enough else need)


def _maven() -> Check:
    found = shutil.which("mvn")
    if found:
        return Check("maven (tests)", Verdict.OK, found)
    need = "Maven fetches Apache Kafka for the tests (Debian: maven)"
    return Check("maven (tests)", Verdict.NOTE, "none found", need)


def _run(command: list[str]) -> str | None:
    """What a command prints, on both streams (`java -version` uses the other one); None when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr + done.stdout if done.returncode == 0 else None


def _distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
