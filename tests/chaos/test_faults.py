import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import Faults
from tests.chaos.plan import Fault, Kind, Target

WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


class Town:
    """One process that plays all parts, and two networks."""

    def __init__(self, process):
        self.process = process
        self.cut = [object(), object()]
        self.whole = True

    def pids(self, target):
        return [self.process.pid] if self.process.poll() is None else []

    def networks(self, target):
        return [[proxy] for proxy in self.cut]

    def brokers_whole(self):
        return self.whole


class Proxies:
    def __init__(self):
        self.now_cut = []

    def cut(self, proxy):
        self.now_cut.append(proxy)

    def mend(self, proxy):
        self.now_cut.remove(proxy)


@pytest.fixture
def town():
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield Town(process)
        process.kill()


@pytest.fixture
def proxies():
    return Proxies()


@pytest.fixture
def faults(town, proxies):
    return Faults(town, proxies, lambda text: None)


def fault(kind, target=Target.DETECTOR, for_s=5.0, draw=0.0):
    return Fault(0.0, target, kind, 0.0 if kind is Kind.KILL else for_s, draw)


def state(process):
    """`T` is stopped; asked until the kernel has got round to it."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_process_is_gone_and_then_there_is_nobody_to_hit(faults, town):
    assert faults.begin(fault(Kind.KILL), 0.0)
    assert town.process.wait(10) == -9
    assert not faults.begin(fault(Kind.KILL), 1.0)


def test_a_stopped_process_goes_on_when_its_time_is_over(faults, town):
    assert faults.begin(fault(Kind.STOP), 0.0)
    while state(town.process) != "T":
        pass
    assert not faults.over
    faults.mend(4.9)
    assert state(town.process) == "T"
    faults.mend(5.0)
    assert faults.over
    assert town.process.communicate(b"", timeout=10) == (b"", None), "it ends by itself"


def test_who_is_stopped_is_not_stopped_again(faults):
    assert faults.begin(fault(Kind.STOP), 0.0)
    assert not faults.begin(fault(Kind.STOP), 1.0)
    faults.mend(5.0)
    assert faults.begin(fault(Kind.STOP), 5.0)
    faults.mend(10.0)


def test_a_stopped_process_can_be_killed_and_its_end_of_stop_hurts_nobody(faults, town):
    assert faults.begin(fault(Kind.STOP), 0.0)
    town.process.kill()
    town.process.wait(10)
    faults.mend(5.0)
    assert faults.over


def test_a_cut_network_is_mended_when_its_time_is_over(faults, town, proxies):
    assert faults.begin(fault(Kind.CUT, draw=0.99), 0.0)
    assert proxies.now_cut == [town.cut[1]]
    assert not faults.begin(fault(Kind.CUT, draw=0.99), 1.0), "it is cut already"
    assert faults.begin(fault(Kind.CUT), 2.0)
    faults.mend(5.0)
    assert proxies.now_cut == [town.cut[0]]
    faults.mend(7.0)
    assert (proxies.now_cut, faults.over) == ([], True)


@pytest.mark.parametrize("kind", list(Kind))
def test_no_second_broker_is_hit_while_one_is_away(faults, town, kind):
    town.whole = False
    assert not faults.begin(fault(kind, Target.BROKER), 0.0)
    town.whole = True
    assert faults.begin(fault(Kind.CUT, Target.BROKER), 0.0)
    assert not faults.begin(fault(kind, Target.BROKER, draw=0.99), 1.0)
    faults.mend(5.0)
    assert faults.begin(fault(kind, Target.BROKER), 5.0)
    faults.mend(10.0)
