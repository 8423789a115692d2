"""What a measurement ran on: without it no figure means anything."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadgen.report import Section, table

INSTRUCTION_SETS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
"""Those that decide how fast the models are, by their names in Linux."""
PACKAGES = ("openvino", "paddlepaddle", "grpcio", "kafka-python", "opencv-python-headless", "numpy")


@dataclass(frozen=True)
class Machine:
    """The machine, the versions, and the moment. `load` is how many processes ran in the minute before."""

    cpu: str
    instruction_sets: tuple[str, ...]
    cores: int
    memory_gib: float
    system: str
    python: str
    packages: dict[str, str]
    commit: str
    date: str
    load: float

    def section(self, commands: Sequence[str]) -> Section:
        """As a part of a report, with the commands that made it."""
        sets = ", ".join(self.instruction_sets) or "none of those that are looked for"
        rows = [
            ("processor", f"{self.cpu}, {self.cores} cores that may be used"),
            ("instruction sets", sets),
            ("memory", f"{self.memory_gib:.0f} GiB"),
            ("system", f"{self.system}, Python {self.python}"),
            ("libraries", ", ".join(f"{name} {version}" for name, version in self.packages.items())),
            ("commit", self.commit),
            ("date", self.date),
            ("load average before", f"{self.load:.2f}"),
            ("commands", "<br>".join(f"`{command}`" for command in commands)),
        ]
        return Section("Machine", table(["", ""], rows), asdict(self) | {"commands": list(commands)})


def look() -> Machine:
    """At this machine, now."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return Machine(
        cpu=cpu_name(cpuinfo),
        instruction_sets=instruction_sets(cpuinfo),
        cores=cores(),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: version for name in PACKAGES if (version := _version(name))},
        commit=_commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        load=os.getloadavg()[0],
    )


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name(cpuinfo: str) -> str:
    """The model's name in the text of /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1) if found else "unknown"


def instruction_sets(cpuinfo: str) -> tuple[str, ...]:
    """Those of `INSTRUCTION_SETS` that the text of /proc/cpuinfo names."""
    found = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = set(found.group(1).split()) if found else set()
    return tuple(name for name in INSTRUCTION_SETS if name in flags)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """Of the checkout that this file lies in, with a mark when its code was changed since."""
    here = Path(__file__).parents[1]
    try:
        found = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", "services", "loadgen")
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"
    return f"{found} with changes" if changed else found


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
