"""What a client command does with each result: print it in the order of the files, draw it, count it."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from services.cli import formats
from services.cli.documents import display_name
from services.cli.errors import CliError, ExitCode, printable
from services.cli.formats import Format, InOrder
from services.common.errors import OcrError
from services.common.pb import ocr_pb2 as pb

if TYPE_CHECKING:
    from services.cli.overlay import Overlays


class Reporter:
    """Takes results in any order and prints them in that of `files`, each as soon as its turn has come."""

    def __init__(self, files: Sequence[Path], form: Format, overlay: Path | None) -> None:
        require_output()
        self._files = files
        self._form = form
        self._turn = InOrder(len(files))
        self._index = 0
        self._all_ok = True
        self._overlays = _overlays(overlay, files)
        self._progress: Progress | None = None

    @contextlib.contextmanager
    def progress(self) -> Iterator[None]:
        """Show how far it is, where there are several files and a person looks on."""
        if len(self._files) < 2 or not sys.stderr.isatty():
            yield
            return
        columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as self._progress:
            self._progress.add_task("reading", total=len(self._files))
            yield
        self._progress = None

    def add(self, index: int, result: pb.Result) -> None:
        """The result of file number `index`."""
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0])
        for ready in self._turn.add(index, result):
            self._show(self._files[self._index], ready)
            self._index += 1

    def _show(self, path: Path, result: pb.Result) -> None:
        self._all_ok &= result.status == pb.OK
        show(result, self._form, heading=len(self._files) > 1)
        if self._overlays is not None:
            self._draw(self._overlays, path, result)

    def _draw(self, overlays: "Overlays", path: Path, result: pb.Result) -> None:
        """A picture that cannot be made is said so, and the next document has its turn."""
        try:
            overlays.write(path, result)
        except (OSError, OcrError) as error:
            self._all_ok = False
            why = (isinstance(error, OSError) and error.strerror) or error
            complain(printable(f"{display_name(path)}: no picture: {why}"))

    @property
    def exit_code(self) -> ExitCode:
        """OK when every document so far was read wholly."""
        return ExitCode.OK if self._all_ok else ExitCode.SOME_FAILED


def _overlays(folder: Path | None, files: Sequence[Path]) -> "Overlays | None":
    if folder is None:
        return None
    from services.cli.overlay import Overlays

    return Overlays(folder, files)


def show(result: pb.Result, form: Format, *, heading: bool) -> None:
    """Print one result on the output and, as text, what was not read on the error output."""
    if form is Format.JSONL:
        echo(formats.as_jsonl(result))
        return
    if result.lines or result.status == pb.OK:
        echo(formats.as_text(result, heading=heading))
    if complaint := formats.complaint(result):
        complain(complaint)


def complain(line: str) -> None:
    """Print a line about one document on the error output."""
    typer.secho(line, fg="yellow", err=True)


def require_output() -> None:
    """Raise `CliError` when the command was started with its output closed: nobody would see the text."""
    if sys.stdout is None:
        raise CliError("The standard output is closed, so nothing can be printed.")


def echo(text: str) -> None:
    """Print on the output. Raises `CliError` when that is full; one who left ends the command silently."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise CliError(f"The output cannot be written: {error.strerror}.") from None


def _discard_output() -> None:
    """What is left in the buffer would fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
