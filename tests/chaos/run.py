"""One run: brokers and services as processes, jobs in, faults at their moments, and the books at the end."""

import contextlib
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.kafka.local_kafka import LocalKafka
from services.common.engines.simulated import CHARSET
from tests.chaos.accounts import Delivery, Verdict, settle
from tests.chaos.documents import Job, healthy, make_jobs, named
from tests.chaos.faults import Faults
from tests.chaos.plan import GATEWAYS, Durations, Event, Fault, Target, make_plan
from tests.chaos.processes import Service, Supervisor
from tests.chaos.proxy import HOST, Proxies, Proxy
from tests.chaos.topics import Feeder, Reader, create_topics

_LOOK_S = 0.05
_QUIET_S = 180.0
"""For so long nothing may come while jobs are open and nothing is broken."""
_START_S = 600.0
_BETWEEN_REPORTS_S = 15.0
_FED_SHARE = 0.9
"""Of the time of the faults; so the last ones hit a pipeline that works off its backlog."""


class ChaosFailed(Exception):
    """The run could not be carried out, or did not come to an end; not a verdict on what it found."""


@dataclass(frozen=True)
class Options:
    """What to run. `seconds` is the time in which the faults come; the start and the settling come on top."""

    documents: int
    delivery: Delivery
    seed: int
    seconds: float
    faults: int
    poison_share: float = 0.01
    real: bool = False
    durations: Durations = field(default_factory=Durations)


@dataclass(frozen=True)
class Report:
    """What came of it. `done` counts the events that were carried out by name."""

    options: Options
    verdict: Verdict
    reasons: Counter[str]
    done: Counter[str]
    restarts: Counter[str]
    seconds: float

    @property
    def failures(self) -> list[str]:
        """Why the run is not good; empty when it is."""
        return self.verdict.failures(self.options.delivery)

    def __str__(self) -> str:
        verdict, options = self.verdict, self.options
        lines = [
            f"seed {options.seed}, {options.delivery}, {'real' if options.real else 'simulated'} models",
            f"faults        {_counts(self.done)}",
            f"restarts      {_counts(self.restarts)}",
            f"jobs          {verdict.jobs}, of which poison {verdict.poison}",
            f"results       {verdict.results}",
            f"dead letters  {verdict.letters}: {_counts(self.reasons)}",
            f"repeated      {verdict.repeated}",
            f"lost          {len(verdict.lost)}",
            f"time          {self.seconds:.0f} s",
        ]
        return "\n".join([*lines, *(f"FAILED        {failure}" for failure in self.failures)])


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"


class Cluster:
    """Brokers behind proxies, and a supervisor's view of them."""

    def __init__(self, brokers: int) -> None:
        self.proxies = Proxies()
        self._made: dict[int, Proxy] = {}
        self.kafka = LocalKafka(brokers=brokers, heap="256m", advertise=self._advertise)
        self.numbers = range(1, brokers + 1)
        self.copies = min(3, brokers)

    def _advertise(self, port: int) -> int:
        self._made[port] = self.proxies.add(port)
        return self._made[port].port

    @property
    def bootstrap(self) -> list[str]:
        """HOST:PORT of the brokers' proxies."""
        return self.kafka.bootstrap.split(",")

    @property
    def networks(self) -> list[Proxy]:
        """The proxy before each broker."""
        advertised = {int(where.rpartition(":")[2]) for where in self.bootstrap}
        return [proxy for proxy in self._made.values() if proxy.port in advertised]

    def pids(self) -> list[int]:
        """Of the brokers that run."""
        return [pid for number in self.numbers if (pid := self.kafka.pid(number)) is not None]

    def whole(self) -> bool:
        """Whether every broker answers."""
        return all(self.kafka.answers(number) for number in self.numbers)


@contextlib.contextmanager
def cluster(brokers: int) -> Iterator[Cluster]:
    """Running brokers. Raises KafkaUnavailable, KafkaDidNotStart."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # of a client whose brokers are killed on purpose
    made = Cluster(brokers)
    try:
        made.kafka.start()
        yield made
    finally:
        made.kafka.stop()
        made.proxies.close()


class Town:
    """The services of a run, behind proxies that survive them."""

    def __init__(self, options: Options, brokers: Cluster, topic_flags: Sequence[str], folder: Path) -> None:
        self._brokers = brokers
        self._backends = {name: brokers.proxies.add() for name in ("detector", "recognizer")}
        self.services = {
            name: Service(
                name,
                f"services.{name}",
                _model_flags(name, options, folder),
                folder,
                self._moves_to(proxy),
            )
            for name, proxy in self._backends.items()
        }
        flags = [*_GATEWAY_FLAGS, "--kafka", ",".join(brokers.bootstrap), *topic_flags]
        flags += [] if options.delivery == "at_least_once" else ["--delivery", options.delivery]
        for name, proxy in self._backends.items():
            flags += [f"--{name}", f"{HOST}:{proxy.port}"]
        self.gateways = [
            Service(f"gateway-{number}", "services.gateway", flags, folder, lambda port: None)
            for number in range(1, max(GATEWAYS) + 1)
        ]

    def _moves_to(self, proxy: Proxy) -> Callable[[int], None]:
        def moved(port: int) -> None:
            proxy.target = port

        return moved

    def all(self) -> list[Service]:
        """Gateways first, as they have to end first."""
        return [*self.gateways, *self.services.values()]

    # ---- what faults hit

    def pids(self, target: Target) -> list[int]:
        """Processes of a target that run."""
        if target is Target.BROKER:
            return self._brokers.pids()
        if target is Target.GATEWAY:
            return [service.pid for service in self.gateways if service.pid is not None]
        if target in _PREDICTORS_OF:
            return self.services[_PREDICTORS_OF[target]].workers()
        pid = self.services[target.value].pid
        return [] if pid is None else [pid]

    def networks(self, target: Target) -> list[list[Proxy]]:
        """A gateway loses all brokers, and so do all gateways; of the others each has its own network."""
        if target is Target.BROKER:
            return [[proxy] for proxy in self._brokers.networks]
        if target is Target.GATEWAY:
            return [self._brokers.networks]
        return [[self._backends[target.value]]]

    def brokers_whole(self) -> bool:
        """Whether all brokers answer."""
        return self._brokers.whole()


_PREDICTORS_OF = {Target.DETECTOR_PREDICTOR: "detector", Target.RECOGNIZER_PREDICTOR: "recognizer"}
_GATEWAY_FLAGS = ["--port", "0", "--kafka-session-timeout-ms", "10000", "--pdf-timeout-s", "5"]


def _model_flags(name: str, options: Options, folder: Path) -> list[str]:
    """A process that dies often should start quickly: real models meet few shapes, in one predictor."""
    if options.real:
        engine, models, speed = "openvino", "ppocr-v6-small", ["--predictors", "1", *_FEW_SHAPES[name]]
    else:
        engine, models = "simulated", str(_nominal_models(folder / "models"))
        speed = ["--predictors", "2", "--simulated-fixed-ms", "2", "--simulated-ms-per-megapixel", "10"]
    return ["--port", "0", "--engine", f"tests.chaos.engines:{engine}", "--models", models, *speed]


_FEW_SHAPES = {"detector": ["--max-side", "480"], "recognizer": ["--max-batch-size", "2"]}


def _nominal_models(folder: Path) -> Path:
    """An engine of one's own is given a model; the simulated one needs of it no more than the dictionary."""
    for role in ("det", "rec"):
        (folder / role).mkdir(parents=True, exist_ok=True)
        (folder / role / "inference.onnx").touch()
    (folder / "rec" / "dictionary.txt").write_text("\n".join(CHARSET[1:-1]), encoding="utf-8")
    return folder


def run(options: Options, brokers: Cluster, folder: Path, say: Callable[[str], None]) -> Report:
    """Do it. `folder` takes the logs of the services.

    Raises:
        ChaosFailed: the services do not start, or no outcome comes for minutes without any fault.
    """
    with contextlib.ExitStack() as ending:
        return _Run(options, brokers, folder, say, ending).carry_out()


class _Run:
    def __init__(
        self,
        options: Options,
        brokers: Cluster,
        folder: Path,
        say: Callable[[str], None],
        ending: contextlib.ExitStack,
    ) -> None:
        self._options, self._brokers = options, brokers
        self._began = time.monotonic()
        self._tell = say
        folder.mkdir(parents=True, exist_ok=True)
        topics = create_topics(brokers.bootstrap, brokers.copies)
        self._town = Town(options, brokers, topics.flags, folder)
        self._feeder = Feeder(brokers.bootstrap, topics.jobs)
        ending.callback(self._feeder.close)
        self._reader = Reader(brokers.bootstrap, topics)
        ending.callback(self._reader.close)
        ending.callback(self._end_services)
        self._faults = Faults(self._town, brokers.proxies, self._say)
        ending.callback(self._faults.mend, math.inf)
        random_ = random.Random(f"supervisor {options.seed}")
        self._supervisor = Supervisor(options.durations, random_, self._say)
        self._restarts: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._documents = healthy()
        self._first = [named("alone", document) for document in self._documents]
        self._jobs = make_jobs(
            options.seed, options.documents - len(self._first), options.poison_share, self._documents
        )

    def carry_out(self) -> Report:
        self._start_services()
        readings = self._read_in_peace()
        self._let_it_go_wrong()
        self._settle_down()
        sent = [job.sent for job in (*self._first, *self._jobs)]
        outcomes = list(self._reader.outcomes)
        return Report(
            self._options,
            settle(sent, outcomes, readings),
            Counter(outcome.reason for outcome in outcomes if outcome.reason is not None),
            self._done,
            self._restarts,
            time.monotonic() - self._began,
        )

    # ---- the services

    def _start_services(self) -> None:
        for service in self._town.services.values():
            self._launch(service)
        self._launch(self._town.gateways[0])
        for number in self._brokers.numbers if self._brokers.copies > 1 else ():
            self._supervisor.watch(
                f"broker {number}",
                lambda number=number: self._brokers.kafka.pid(number) is not None,
                self._counted(f"broker {number}", lambda number=number: self._brokers.kafka.restart(number)),
            )

    def _launch(self, service: Service) -> None:
        service.start()
        self._supervisor.watch(
            service.name, lambda: service.pid is not None, self._counted(service.name, service.start)
        )

    def _counted(self, name: str, start: Callable[[], None]) -> Callable[[], None]:
        def again() -> None:
            self._restarts[name] += 1
            start()

        return again

    def _scale(self, count: int) -> None:
        for number, service in enumerate(self._town.gateways, 1):
            if number <= count and not self._supervisor.watches(service.name):
                self._until_ended(service)
                self._launch(service)
            elif number > count:
                self._supervisor.forget(service.name)
                service.terminate()

    def _until_ended(self, service: Service) -> None:
        """One that still finishes what it had would be two."""
        if service.starts:
            service.end()

    def _end_services(self) -> None:
        for service in self._town.all():
            self._supervisor.forget(service.name)
            self._until_ended(service)

    # ---- the three acts

    def _read_in_peace(self) -> dict[str, str]:
        """Each healthy document once, without faults: what it reads."""
        self._feeder.start(self._first, 0.0)
        self._until(
            lambda: self._all_of(self._first), _START_S, "the services did not read the first documents"
        )
        self._say(f"{len(self._first)} healthy documents were read without faults")
        read = {outcome.job_id: outcome for outcome in self._reader.outcomes}
        if bad := [outcome for outcome in read.values() if outcome.reason is not None]:
            raise ChaosFailed(f"healthy documents became dead letters without any fault: {bad}")
        return {job.document.name: read[job.sent.job_id].text for job in self._first}

    def _let_it_go_wrong(self) -> None:
        options = self._options
        plan = make_plan(
            options.seed, seconds=options.seconds, faults=options.faults, durations=options.durations
        )
        for event in plan:
            self._say(f"planned at {event.at_s:.1f} s: {event}")
        self._feeder.start(self._jobs, options.seconds * _FED_SHARE / max(1, len(self._jobs)))
        started, due = time.monotonic(), list(plan)
        while due or not self._faults.over or not self._feeder.done:
            now = time.monotonic() - started
            self._faults.mend(now)
            self._supervisor.tick(time.monotonic())
            due = [event for event in due if event.at_s > now or not self._happens(event, now)]
            if now > options.seconds + _QUIET_S:
                raise ChaosFailed(f"these found nobody to hit, or the jobs are not sent: {due}")
            self._report_now_and_then()
            time.sleep(_LOOK_S)

    def _happens(self, event: Event, now: float) -> bool:
        if isinstance(event, Fault):
            if not self._faults.begin(event, now):
                return False
            self._done[f"{event.target} {event.kind}"] += 1
            return True
        self._say(str(event))
        self._scale(event.gateways)
        self._done["scale"] += 1
        return True

    def _settle_down(self) -> None:
        """Until nothing more can come: all is accounted for and committed, the gateway gone, all read."""
        self._say("no more faults")
        jobs, seen, quiet_since = [*self._first, *self._jobs], 0, time.monotonic()
        while not (self._all_of(jobs) and self._reader.jobs_done()):
            if (came := len(self._reader.outcomes)) != seen:
                seen, quiet_since = came, time.monotonic()
            if time.monotonic() - quiet_since > _QUIET_S:
                self._say(f"nothing came for {_QUIET_S:.0f} s; the rest counts as lost")
                break
            self._supervisor.tick(time.monotonic())
            self._report_now_and_then()
            time.sleep(_LOOK_S)
        self._until(self._brokers.whole, _START_S, "the brokers did not all come back")
        self._end_services()
        self._until(self._reader.caught_up, _START_S, "the results could not be read to their end")

    # ---- small things

    def _all_of(self, jobs: Sequence[Job]) -> bool:
        accounted = self._reader.accounted
        return len(accounted) >= len(jobs) and all(job.sent.job_id in accounted for job in jobs)

    def _until(self, condition: Callable[[], bool], timeout_s: float, why: str) -> None:
        give_up = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up:
                raise ChaosFailed(f"{why} within {timeout_s:.0f} s; see their logs")
            self._supervisor.tick(time.monotonic())
            time.sleep(_LOOK_S)

    _reported = 0.0

    def _report_now_and_then(self) -> None:
        if (now := time.monotonic()) - self._reported >= _BETWEEN_REPORTS_S:
            self._reported = now
            sent = len(self._first) + self._feeder.sent
            self._say(f"{sent} jobs sent, {len(self._reader.accounted)} accounted for")

    def _say(self, text: str) -> None:
        self._tell(f"[{time.monotonic() - self._began:6.1f} s] {text}")
