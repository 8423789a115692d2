"""One study from the command line."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen import corpus
from loadgen.report import Section
from loadgen.studies.context import Context
from services.common.errors import SetupError


def main(run: Callable[[Context], Section], argv: Sequence[str] | None = None) -> None:
    """Run a study on the pages of a folder and print its section.

    What the user must put right is one sentence, and status 1.
    """
    asked = _parser(run).parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        documents = corpus.load(asked.folder).documents
        context = Context(documents, asked.kafka, asked.quick, asked.full, asked.lines)
        section = context.marked(run(context))
    except SetupError as error:
        sys.exit(f"loadgen: {error}")
    sys.stdout.write(f"## {section.title}\n\n{section.markdown}\n")


def _parser(run: Callable[[Context], Section]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of page images")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="broker; without one, what needs it is left out")
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--full", action="store_true", help="every line instead of a sample")
    parser.add_argument("--lines", type=Path, metavar="DIR", help="folder of images of one line, to read too")
    return parser
