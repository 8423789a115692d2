import random

from tests.chaos.plan import Durations
from tests.chaos.processes import Supervisor, listening_port

DURATIONS = Durations(restart_least_s=1.0, restart_most_s=2.0)


class Thing:
    def __init__(self, supervisor, name):
        self.alive, self.starts = True, 0
        supervisor.watch(name, lambda: self.alive, self.start)

    def start(self):
        self.alive, self.starts = True, self.starts + 1


def supervisor():
    return Supervisor(DURATIONS, random.Random(1), lambda text: None)


def test_what_runs_is_left_alone():
    watcher = supervisor()
    thing = Thing(watcher, "it")
    for now in range(100):
        watcher.tick(now)
    assert thing.starts == 0


def test_what_died_starts_again_after_a_pause_and_each_time():
    watcher = supervisor()
    thing = Thing(watcher, "it")
    for death in range(1, 4):
        now = 10.0 * death
        thing.alive = False
        watcher.tick(now)
        watcher.tick(now + 0.99)
        assert thing.starts == death - 1, "not before the least pause"
        watcher.tick(now + 2.0)
        assert thing.starts == death


def test_what_may_end_is_not_started():
    watcher = supervisor()
    thing = Thing(watcher, "it")
    watcher.forget("it")
    thing.alive = False
    watcher.tick(0.0)
    watcher.tick(10.0)
    assert thing.starts == 0


def test_one_death_leaves_the_others_alone():
    watcher = supervisor()
    dead, other = Thing(watcher, "dead"), Thing(watcher, "other")
    dead.alive = False
    watcher.tick(0.0)
    watcher.tick(10.0)
    assert (dead.starts, other.starts) == (1, 0)


def test_the_port_is_read_from_the_line_that_names_it():
    assert listening_port(b'{"message": "listening", "port": 4711}\n') == 4711
    assert listening_port(b'{"message": "not \\"listening\\"", "port": 1}\n') is None
    assert listening_port(b'half a line, "listening"') is None
