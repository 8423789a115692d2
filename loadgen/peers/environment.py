"""A virtual environment for each peer, made once and kept in the user's cache folder."""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from loadgen.errors import PeerUnavailable

INSTALL_TIMEOUT_S = 900.0

log = logging.getLogger(__name__)


def requirements(name: str) -> Path:
    """The file that pins all that the peer needs."""
    return Path(__file__).with_name(f"{name}.txt")


def folder(name: str) -> Path:
    """Where its environment lies: another one for other pins or another Python."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    made_from = requirements(name).read_bytes() + sys.version.encode()
    return Path(root) / "ocr-serving" / "peers" / f"{name}-{hashlib.sha256(made_from).hexdigest()[:12]}"


def python(name: str) -> Path:
    """The Python of the peer's environment, which is made when it is missing.

    Raises:
        PeerUnavailable: it cannot be made; the message has pip's reason.
    """
    place = folder(name)
    ready, found = place / ".ready", place / "bin" / "python"
    if ready.exists():
        return found
    log.info("making the environment of %s, some minutes the first time", name)
    shutil.rmtree(place, ignore_errors=True)
    try:
        venv.create(place, with_pip=True)
        _install(name, found)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerUnavailable(
            f"the environment of {name} was not made in {place}: {_reason(error)}; it needs a package index,"
            f" or leave the peer out: --peers ''"
        ) from None
    ready.touch()
    return found


def _install(name: str, python_: Path) -> None:
    command = [str(python_), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["-r", str(requirements(name))]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)


def _reason(error: Exception) -> str:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return (str(said).strip().splitlines() or [str(error)])[-1]


def version(name: str, package: str) -> str:
    """What the pins say of a package."""
    rows = (line.split(";")[0].strip(" \\") for line in requirements(name).read_text().splitlines())
    return next(row.partition("==")[2].strip() for row in rows if row.partition("==")[0] == package)
