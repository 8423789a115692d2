"""The import rules of ARCHITECTURE.md, read from the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path.relative_to(ROOT)
    for top in ("services", "loadgen")
    for path in (ROOT / top).rglob("*.py")
    if "pb" not in path.parts
)
SERVICES = {"detector", "recognizer", "gateway", "cli"}

PURE = {
    "services/common/batch_queue.py",
    "services/common/errors.py",
    "services/common/images.py",
    "services/common/line_size.py",
    "services/common/normalise.py",
    "services/common/page_size.py",
    "services/common/records.py",
    "services/common/topics.py",
    "services/detector/preprocess.py",
    "services/detector/postprocess.py",
    "services/recognizer/preprocess.py",
    "services/recognizer/decode.py",
    "services/gateway/jobs.py",
    "services/gateway/deaths.py",
    "services/gateway/intake.py",
    "services/gateway/kafka_ports.py",
    "services/gateway/offsets.py",
    "services/gateway/outbox.py",
    "services/gateway/places.py",
    "services/gateway/reading_order.py",
    "services/gateway/retries.py",
    "services/gateway/stall.py",
    "services/gateway/crops.py",
    "services/cli/answers.py",
    "services/cli/calibration.py",
    "services/cli/dead_letters.py",
    "services/cli/documents.py",
    "services/cli/formats.py",
    "services/cli/logs.py",
    "loadgen/prometheus.py",
    "loadgen/report.py",
    "loadgen/samples.py",
    "loadgen/score.py",
}
IMPURE_MODULES = {
    "asyncio",
    "grpc",
    "paddle",
    "openvino",
    "kafka",
    "opentelemetry",
    "time",
    "socket",
    "subprocess",
}

ONLY_IN = {
    "paddle": {"services/common/engines/paddle.py", "loadgen/floor_worker.py"},
    "openvino": {"services/common/engines/openvino.py", "loadgen/floor_worker.py"},
    "nncf": {"services/cli/int8.py"},
    "kafka": {
        "services/gateway/kafka_client.py",
        "services/gateway/kafka_io.py",
        "services/gateway/kafka_txn.py",
        "services/cli/kafka_client.py",
        "loadgen/kafka_door.py",
    },
    "opentelemetry.sdk": {"services/common/telemetry.py"},
    "prometheus_client": {"services/common/telemetry.py"},
}


def imports(path: Path) -> set[str]:
    """Full names of all that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[0] == "services"], ids=str)
def test_no_service_imports_another_and_common_imports_none(path: Path) -> None:
    own = path.parts[1]
    forbidden = {f"services.{name}" for name in SERVICES if name != own}
    crossing = {name for name in imports(path) for package in forbidden if within(name, package)}
    assert crossing == set()


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_an_engine_or_client_library_is_imported_in_its_one_file_only(path: Path) -> None:
    for library, homes in ONLY_IN.items():
        used = any(within(name, library) for name in imports(path))
        assert not used or str(path) in homes, f"{path} imports {library}; only {sorted(homes)} may"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_nothing_imports_tests_or_deploy(path: Path) -> None:
    assert not {name for name in imports(path) if within(name, "tests") or within(name, "deploy")}


@pytest.mark.parametrize("path", sorted(PURE))
def test_a_pure_module_knows_no_clock_no_network_and_no_event_loop(path: str) -> None:
    assert not {name for name in imports(Path(path)) if name.split(".")[0] in IMPURE_MODULES}


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[0] == "loadgen"], ids=str)
def test_loadgen_imports_of_services_only_their_pure_modules(path: Path) -> None:
    pure = [name.removesuffix(".py").replace("/", ".") for name in PURE]
    of_services = {name for name in imports(path) for s in SERVICES if within(name, f"services.{s}")}
    assert not {name for name in of_services if not any(within(name, one) for one in pure)}
