"""Processor time and memory of processes, from Linux's /proc."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process at one moment.

    `module` is the last part of what followed `-m` in its command line. `cpu_s` is user and system time in
    seconds, children that have ended included; `rss_bytes` is resident memory, shared pages included.
    """

    pid: int
    parent: int
    module: str
    cpu_s: float
    rss_bytes: int


def read(pid: int) -> Process | None:
    """The process with this id; None when there is none any more."""
    folder = _PROC / str(pid)
    try:
        stat = parse_stat((folder / "stat").read_text())
        words = (folder / "cmdline").read_bytes().split(b"\0")
        pages = int((folder / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return Process(
        pid, stat[0], module_of([word.decode(errors="replace") for word in words]), stat[1], pages * _PAGE
    )


def parse_stat(line: str) -> tuple[int, float]:
    """Parent's id and seconds of processor time in a line of `/proc/PID/stat`.

    The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    """
    fields = line.rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:15])) * _TICKS_S


def module_of(words: list[str]) -> str:
    """`worker` of `python -m services.common.worker 3`; the program's name without `-m`."""
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1].rpartition(".")[2]
    return Path(words[0]).name


def family(root: int) -> list[Process]:
    """The process with this id and all its descendants, parents before children, elders first."""
    ids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    children: dict[int, list[int]] = {}
    for pid in sorted(ids):
        with contextlib.suppress(OSError):
            children.setdefault(parse_stat((_PROC / str(pid) / "stat").read_text())[0], []).append(pid)
    found, open_ = [], [root]
    while open_:
        pid = open_.pop(0)
        found.append(read(pid))
        open_ += children.get(pid, [])
    return [process for process in found if process is not None]
