"""Apache Kafka for the time of a measurement, started by the script that comes with the source."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from loadgen.errors import BrokerFailed

SCRIPT = Path(__file__).parents[1] / "deploy" / "kafka" / "local_kafka.py"
LOCAL = "local"
"""What stands for HOST:PORT when the broker is to be started here."""
_SAID = "BOOTSTRAP "


@contextlib.contextmanager
def broker(asked: str) -> Iterator[str]:
    """HOST:PORT of the broker that was asked for; empty when none was.

    Raises:
        BrokerFailed: it cannot be started; the message has the script's reason.
    """
    if asked != LOCAL:
        yield asked
        return
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith(_SAID):
            _, errors = process.communicate()
            raise BrokerFailed(f"{errors.strip()}; or name a broker that runs with --kafka HOST:PORT")
        yield said.removeprefix(_SAID).strip()
    finally:
        process.terminate()
        process.communicate()
