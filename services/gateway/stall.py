"""Notices a Kafka client that reads nothing although there is something to read."""

from collections.abc import Mapping

from services.gateway.kafka_ports import Progress
from services.gateway.offsets import Partition


class Stalled(RuntimeError):
    """The client reads nothing although there is something to read."""


class StallWatch:
    """Notices partitions whose reading position stands still before the end. Told the time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seen: dict[Partition, tuple[int, float]] = {}

    def stuck(
        self, progress: Mapping[Partition, Progress], paused: frozenset[Partition], now: float
    ) -> list[Partition]:
        """Partitions that had something to read, were not paused, and have not moved for the timeout."""
        for partition in paused | (self._seen.keys() - progress.keys()):
            self._seen.pop(partition, None)
        found = []
        for partition, at in progress.items():
            position, since = self._seen.get(partition, (-1, now))
            if partition in paused:
                continue
            if at.position != position or at.position >= at.end:
                self._seen[partition] = (at.position, now)
            elif now - since >= self._timeout_s:
                found.append(partition)
        return found
