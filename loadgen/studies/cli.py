"""One study from the command line."""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen.report import Section
from loadgen.studies.context import Context, NoPages, pages_in
from services.common.errors import SetupError


def main(run: Callable[[Context], Section], argv: Sequence[str] | None = None) -> None:
    """Run a study on the pages of a folder and print its section.

    What the user must put right is one sentence, and status 1.
    """
    asked = _arguments(run).parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with tempfile.TemporaryDirectory(prefix="loadgen-") as scratch:
            context = Context(pages_in(asked.folder), asked.kafka, asked.quick, Path(scratch), asked.lines)
            section = run(context)
    except (NoPages, SetupError) as error:
        sys.exit(f"loadgen: {error}")
    sys.stdout.write(f"## {section.title}\n\n{section.markdown}\n")


def _arguments(run: Callable[[Context], Section]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {run.__module__}", description=run.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of page images")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="broker; without one, what needs it is left out")
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--lines", type=Path, metavar="DIR", help="folder of images of one line, to read too")
    return parser
