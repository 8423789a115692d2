"""`python -m tests.chaos`: documents through the whole pipeline while it is killed, stopped and cut off.

Prints the seed, the plan, what happens when, and the books; ends with status 1 when anything is lost or
wrong. The logs of the services are in `--out`.
"""

import argparse
import random
import sys
from pathlib import Path

from tests.chaos.run import ChaosFailed, Options, cluster, run


def main() -> int:
    """Command line."""
    options, brokers, folder = _options()
    print(f"seed {options.seed}: {options}", flush=True)
    try:
        with cluster(brokers) as kafka:
            report = run(options, kafka, folder, lambda text: print(text, flush=True))
    except ChaosFailed as error:
        print(f"error: {error} ({folder})", file=sys.stderr)
        return 2
    print(report, flush=True)
    return 1 if report.failures else 0


def _options() -> tuple[Options, int, Path]:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--documents", type=int, help="jobs in all; default 10000, of real models 300")
    parser.add_argument("--delivery", choices=["at_least_once", "exactly_once"], default="at_least_once")
    parser.add_argument(
        "--seed", type=int, help="the same seed, the same plan and jobs; default: a random one"
    )
    parser.add_argument("--brokers", type=int, default=3, help="how many (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=6.0, help="time of the faults (default %(default)s)")
    parser.add_argument("--faults", type=int, help="how many; default 32, of real models 16")
    parser.add_argument("--real", action="store_true", help="real models in place of the simulated engine")
    parser.add_argument("--out", type=Path, default=Path("out/chaos"), help="folder for logs")
    asked = parser.parse_args()
    options = Options(
        documents=asked.documents or (300 if asked.real else 10_000),
        delivery=asked.delivery,
        seed=random.SystemRandom().randrange(2**32) if asked.seed is None else asked.seed,
        seconds=asked.minutes * 60,
        faults=(16 if asked.real else 32) if asked.faults is None else asked.faults,
        real=asked.real,
    )
    kind = f"{options.seed}-{options.delivery}{'-real' if options.real else ''}"
    return options, asked.brokers, asked.out / kind


if __name__ == "__main__":
    sys.exit(main())
