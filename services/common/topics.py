"""Which names of topics a gateway can work with: the same rule for its settings and for `ocrctl up`."""

import itertools
import re

LONGEST_NAME = 249


def topics_problem(*, jobs: str, results: str, dlq: str) -> str | None:
    """What is wrong with the names of the three topics, in one sentence; None when nothing is."""
    names = {"jobs_topic": jobs, "results_topic": results, "dlq_topic": dlq}
    for setting, name in names.items():
        if not _is_name(name):
            return (
                f"{setting}: {name!r} is no name of a Kafka topic; use 1 to {LONGEST_NAME} of the characters"
                " a-z, A-Z, 0-9, '.', '_' and '-', but not '.' or '..'"
            )
    for (one, name), (other, same) in itertools.combinations(names.items(), 2):
        if name == same:
            return (
                f"{one} and {other} are both {name!r}; give each topic a name of its own, or the gateway"
                " endlessly reads what it wrote, and nobody can tell results from dead letters"
            )
    return None


def _is_name(name: str) -> bool:
    return re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{LONGEST_NAME}}}", name) is not None and name not in (".", "..")
