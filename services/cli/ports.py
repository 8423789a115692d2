"""Which ports `up` gives to whom: fixed ones, free ones, or those that were named."""

import contextlib
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from services.cli.errors import CliError, UsageError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """One port each; the metrics ports serve Prometheus, `kafka` is that of the embedded broker."""

    gateway: int = 50051
    detector: int = 50052
    recognizer: int = 50053
    gateway_metrics: int = 9464
    detector_metrics: int = 9465
    recognizer_metrics: int = 9466
    kafka: int = 9092

    def address(self, name: str) -> str:
        """HOST:PORT of one of them."""
        return f"{HOST}:{getattr(self, name)}"

    def by_name(self) -> dict[str, int]:
        """Names as they are written on the command line."""
        return {name.replace("_", "-"): port for name, port in asdict(self).items()}


def parse(text: str) -> Ports:
    """Read `fixed`, `free` or `NAME=PORT,…`; with the last the others keep their fixed ports."""
    if text == "fixed":
        return Ports()
    if text == "free":
        return free()
    named = [_named(part) for part in text.split(",")]
    chosen = replace(Ports(), **dict(named))
    _refuse_twice(text, [name for name, _ in named], "is named twice")
    _refuse_twice(text, list(chosen.by_name().values()), "would be the port of two")
    return chosen


def _refuse_twice(text: str, given: Sequence[object], what: str) -> None:
    twice = [str(one) for one, times in Counter(given).items() if times > 1]
    if twice:
        raise UsageError(f"--ports {text}: {', '.join(twice)} {what}; give each a port of its own, once.")


def _named(part: str) -> tuple[str, int]:
    name, _, number = part.strip().partition("=")
    if name not in Ports().by_name():
        names = ", ".join(Ports().by_name())
        raise UsageError(f"--ports {part}: say fixed, free or NAME=PORT,… with names {names}.")
    if not (number.isdigit() and 0 < int(number) < 65536):
        raise UsageError(f"--ports {part}: a port is a number from 1 to 65535.")
    return name.replace("-", "_"), int(number)


def free() -> Ports:
    """Ports that nobody listens on now; all are held until all are found, so that no two are the same."""
    with contextlib.ExitStack() as held:
        found = {}
        for name in asdict(Ports()):
            probe = held.enter_context(socket.socket())
            probe.bind((HOST, 0))
            found[name] = int(probe.getsockname()[1])
        return Ports(**found)


def taken(ports: Ports, *, embedded_broker: bool) -> dict[str, int]:
    """Those that somebody listens on already, by name."""
    wanted = {name: port for name, port in ports.by_name().items() if embedded_broker or name != "kafka"}
    return {name: port for name, port in wanted.items() if not _is_free(port)}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, past TIME_WAIT
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(ports: Ports, *, embedded_broker: bool) -> None:
    """Raise `CliError` when one is taken."""
    if found := taken(ports, embedded_broker=embedded_broker):
        listed = ", ".join(f"{port} ({name})" for name, port in found.items())
        raise CliError(f"In use already: port {listed}. Stop what holds it, or start with --ports free.")
