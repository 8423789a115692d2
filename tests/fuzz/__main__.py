"""`python -m tests.fuzz --count 20000 --seed 1`: mutated documents, and nothing may crash, hang or swell.

Prints counts by outcome; ends with status 1 and keeps the documents when something was found.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.fuzz.watch import fuzz, report, save


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="folder for what was found")
    options = parser.parse_args()
    verdicts = list(fuzz(options.seed, options.count, options.workers))
    print(report(options.seed, verdicts))
    found = [verdict for verdict in verdicts if verdict.bad]
    for verdict in found:
        print(f"kept {save(options.seed, verdict, options.out)}")
    return 1 if found or len(verdicts) != options.count else 0


if __name__ == "__main__":
    sys.exit(main())
