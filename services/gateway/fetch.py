"""Fetches a document over HTTP or HTTPS from a place that the operator allowed, and from nowhere else.

A name is looked up once. All its addresses are judged, and the connection goes to one of those, so a name
that means something else a moment later gains nothing. TLS is verified against the name. One GET, no
redirect, no proxy, no cookie, no decoding of the body. The whole of it has one time limit, however slowly
bytes drip, and one limit of bytes, whatever the host says about the length.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast

from services.common.errors import (
    ChecksumMismatch,
    DocumentTooLarge,
    OcrError,
    UriNotAllowed,
    UriUnavailable,
    UriUnreadable,
)
from services.gateway.places import Address, Place, Target, refusal_of, target

Resolve = Callable[[str, int], Sequence[str]]
"""From a host name and a port to its addresses as texts. Raises `OSError`."""

_CHUNK = 64 * 1024
_BESIDE = 2**20
"""Bytes that may come beside a body."""
_PASSES = (408, 425, 429)
"""Statuses below 500 that say: later."""


@dataclass(frozen=True)
class WebLimits:
    """What may be fetched. `allowed` is empty: nothing. `private_too`: names may lead to private networks."""

    allowed: tuple[Place, ...] = ()
    private_too: bool = False
    timeout_s: float = 20.0
    max_bytes: int = 32 * 2**20


def resolve(host: str, port: int) -> list[str]:
    """What the system says about a name. Takes as long as the system's resolver does."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Fetcher:
    """Fetches documents; may be used by many threads at once."""

    def __init__(self, limits: WebLimits, resolver: Resolve = resolve) -> None:
        self._limits = limits
        self._resolve = resolver
        # Its own trusted authorities can be named by SSL_CERT_FILE; reading them takes tens of milliseconds.
        self._tls = ssl.create_default_context() if limits.allowed else None

    def fetch(self, uri: str, *, size: int = 0, deadline: float | None = None) -> bytes:
        """The bytes that lie at `uri`. Blocks: call it in a thread.

        `deadline` is in seconds of the monotonic clock; the limit of time holds beside it. What the host says
        beforehand to be of another size than `size` is not read; 0 is any size.

        Raises `UriNotAllowed`, `UriUnreadable`, `DocumentTooLarge`, `ChecksumMismatch`; and `UriUnavailable`
        where trying again can help.
        """
        where = target(uri, self._limits.allowed)
        end = time.monotonic() + self._limits.timeout_s
        end = end if deadline is None else min(end, deadline)
        try:
            limit = _Limit(where, end, self._limits.max_bytes)
            with _Connection(where, self._addresses(where), self._tls, limit) as connection:
                return self._ask(connection, where, size)
        except ssl.SSLCertVerificationError as error:
            raise UriUnreadable(f"{where}: its certificate is not valid: {error.verify_message}") from error
        except TimeoutError as error:
            raise UriUnavailable(f"{where} was not delivered in time") from error
        except OSError as error:
            raise UriUnavailable(f"{where} cannot be reached: {error.strerror or error}") from error
        except http.client.IncompleteRead as error:
            raise UriUnavailable(f"{where}: the answer broke off") from error
        except (http.client.HTTPException, ValueError) as error:  # the latter of a negative length of a chunk
            raise UriUnreadable(f"{where}: what came is not HTTP: {type(error).__name__}") from error

    def _addresses(self, where: Target) -> list[Address]:
        """Where to connect to. An address that the operator wrote himself needs no judging."""
        if where.address is not None:
            return [where.address]
        found = [ip_address(text) for text in dict.fromkeys(self._resolve(where.host, where.port))]
        for address in found:
            if why := refusal_of(address, private_too=self._limits.private_too):
                raise UriNotAllowed(f"{where}: the host has an address that is {why}; see uri_allow_private")
        return found

    def _ask(self, connection: "_Connection", where: Target, size: int) -> bytes:
        connection.putrequest("GET", where.path, skip_host=True)  # asks for no content encoding
        connection.putheader("Host", where.host_header)
        connection.putheader("User-Agent", "ocr-serving")
        connection.putheader("Connection", "close")
        connection.endheaders()
        answer = connection.getresponse()
        if problem := _problem(answer, where):
            raise problem
        return self._body(answer, where, size)

    def _body(self, answer: http.client.HTTPResponse, where: Target, size: int) -> bytes:
        most = self._limits.max_bytes
        if answer.length is not None:
            _check_length(answer.length, where, size, most)
        body = bytearray()
        while chunk := answer.read(min(_CHUNK, most + 1 - len(body))):
            body += chunk
            if len(body) > most:
                raise DocumentTooLarge(f"{where} has more than {most} bytes, which is the limit")
        if answer.length:
            raise UriUnavailable(f"{where}: the answer broke off {answer.length} bytes before its end")
        return bytes(body)


def _check_length(length: int, where: Target, size: int, most: int) -> None:
    if length > most:
        raise DocumentTooLarge(f"{where} has {length} bytes; the limit is {most}")
    if size and length != size:
        raise ChecksumMismatch(f"{where} has {length} bytes; the job says {size}")


def _problem(answer: http.client.HTTPResponse, where: Target) -> OcrError | None:
    """What is wrong with an answer before its body is looked at."""
    said = f"{where} answered {answer.status}"
    if answer.status >= 500 or answer.status in _PASSES:
        return UriUnavailable(said)
    if 300 <= answer.status < 400:
        return UriUnreadable(f"{said}; redirects are not followed: name the document's own place")
    if answer.status != 200:
        return UriUnreadable(said)
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        return UriUnreadable(f"{where} came as {encoding[:40]!r}, which was not asked for")
    return None


@dataclass
class _Limit:
    """What one connection may take: time until `end`, and bytes, heads and lengths of chunks beside the body.

    `http.client` reads all that comes, however much, for a chunk whose length is -1.
    """

    where: Target
    end: float
    most: int
    came: int = 0

    def left(self) -> float:
        """Seconds left. Raises `TimeoutError` when there are none."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def count(self, came: int) -> int:
        """So many more bytes came. Raises `DocumentTooLarge`."""
        self.came += came
        if self.came > self.most + _BESIDE:
            raise DocumentTooLarge(f"{self.where} sends more than {self.most} bytes, which is the limit")
        return came


class _Connection(http.client.HTTPConnection):
    """To one of the addresses given, whatever the name means by then."""

    def __init__(
        self, where: Target, addresses: Sequence[Address], tls: ssl.SSLContext | None, limit: _Limit
    ) -> None:
        super().__init__(where.host, where.port)
        self._where = where
        self._addresses = addresses
        self._tls = tls if where.scheme == "https" else None
        self._limit = limit
        self._opened: socket.socket | None = None

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._opened is not None:
            self._opened.close()

    def connect(self) -> None:
        """To the first address that takes the connection; raises what the last one did."""
        self._opened = self._first()
        if self._tls is not None:
            self._opened.settimeout(self._limit.left())
            self._opened = self._tls.wrap_socket(
                self._opened,
                server_hostname=self._where.host.strip("[]"),
                suppress_ragged_eofs=False,  # an answer that was cut off must not look whole
            )
        self.sock = cast("Any", _Socket(self._opened, self._limit))

    def _first(self) -> socket.socket:
        failed: OSError = OSError(f"{self._where.host} has no address")
        for tried, address in enumerate(self._addresses):
            try:
                share = self._limit.left() / (len(self._addresses) - tried)
                return socket.create_connection((str(address), self._where.port), share)
            except OSError as error:
                failed = error
        raise failed


class _Socket:
    """What `http.client` wants of a socket, with one limit for all that is sent and received together."""

    def __init__(self, inner: socket.socket, limit: _Limit) -> None:
        self._inner = inner
        self._limit = limit

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._inner.settimeout(self._limit.left())
        self._inner.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What comes, to be read."""
        return io.BufferedReader(_Received(self._inner, self._limit))

    def close(self) -> None:
        """Nothing: `http.client` closes before it has read the body. `_Connection` closes in the end."""


class _Received(io.RawIOBase):
    """The bytes that come. A timeout of the socket alone would begin anew with each of them."""

    def __init__(self, inner: socket.socket, limit: _Limit) -> None:
        super().__init__()
        self._inner = inner
        self._limit = limit

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Some bytes; 0 at the end."""
        self._inner.settimeout(self._limit.left())
        return self._limit.count(self._inner.recv_into(buffer))
