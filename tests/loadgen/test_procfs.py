"""Processes as /proc shows them."""

import os
import subprocess
import sys

import pytest

from loadgen import procfs


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields() -> None:
    line = "12 (a) b (c) S 7 1 1 0 -1 4194560 5 0 0 0 100 50 25 25 20 0 1 0 33 1 2"
    parent, cpu_s = procfs.parse_stat(line)
    assert parent == 7
    assert cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["/usr/bin/python", "-P", "-m", "services.common.predictor_worker", "3"], "predictor_worker"),
        (["/usr/bin/java", "-jar"], "java"),
        (["/usr/bin/odd", "-m"], "odd"),
    ],
)
def test_a_process_is_named_after_its_module_or_program(words: list[str], name: str) -> None:
    assert procfs.module_of(words) == name


def test_a_family_has_the_process_itself_and_its_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = {process.pid: process for process in procfs.family(os.getpid())}
        assert found[child.pid].parent == os.getpid()
        assert found[os.getpid()].rss_bytes > 0
    finally:
        child.communicate(b"\n")
    assert procfs.read(child.pid) is None
