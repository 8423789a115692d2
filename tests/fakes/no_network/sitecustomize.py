"""Put on PYTHONPATH, this reports every attempt of a Python process to leave the machine, and prevents it."""

import os
import socket
import sys
from pathlib import Path

LOCAL = ("127.", "::1", "localhost", "0.0.0.0")


def _refuse(what: object) -> None:
    with Path(os.environ["NETWORK_ATTEMPTS"]).open("a", encoding="utf-8") as log:
        log.write(f"{sys.argv}: {what}\n")
    raise OSError(f"no network here: {what}")


def _watch(event: str, arguments: tuple) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
    elif event == "socket.getaddrinfo":
        host = str(arguments[0] or "")
    else:
        return
    if host and not host.startswith(LOCAL) and host != socket.gethostname():
        _refuse(f"{event} {host}")


sys.addaudithook(_watch)
