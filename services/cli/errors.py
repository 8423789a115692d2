"""How the command ends, and the one kind of exception that a person using it may see.

0 all documents were read, 1 some were not, 2 the command was used wrongly, 3 nobody answered at the address.
The message of a `CliError` is one sentence or two: what was wrong, and what to do about it.
"""

import unicodedata
from enum import IntEnum
from typing import Any

import typer
from typer.core import TyperGroup

from services.common.errors import OcrError


class ExitCode(IntEnum):
    """Status with which `ocrctl` ends."""

    OK = 0
    SOME_FAILED = 1
    USAGE = 2
    UNREACHABLE = 3


class CliError(Exception):
    """Ends the command with a message for a person and with `exit_code`."""

    exit_code: int = ExitCode.SOME_FAILED

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(CliError):
    """The arguments do not fit: a file is missing, an option has an impossible value."""

    exit_code = ExitCode.USAGE


class Unreachable(CliError):
    """Nobody answers at the address, or the one who did went away."""

    exit_code = ExitCode.UNREACHABLE


def printable(text: str) -> str:
    """`text` on one line, and harmless to a terminal: control characters and the like as their escapes."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode()
    return character


class Commands(TyperGroup):
    """A group of commands that turns the errors meant for people into a line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except CliError as error:
            code: int = error.exit_code
            _complain(str(error))
        except OcrError as error:
            code = ExitCode.SOME_FAILED
            _complain(str(error))
        raise typer.Exit(code)


def _complain(message: str) -> None:
    typer.secho("ocrctl: ", fg="red", err=True, nl=False)
    typer.echo(message, err=True)
