"""Which places on the network a document may be fetched from. Pure: looks at texts and addresses alone.

A `uri` comes from a stranger, so this reads it strictly and puts nothing right: what is not plainly one of
the allowed places is refused. Two readers of one URL that disagree about its host are how such checks are
got round, so there is one reader here, and what it took apart is what is connected to.

The name of a host says nothing about where it leads. Its addresses are judged too, by `refusal_of`, and the
connection goes to an address that was judged (`fetch.py`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal, cast
from urllib.parse import unquote

from services.common.errors import UriNotAllowed

Scheme = Literal["http", "https"]
Address = IPv4Address | IPv6Address

_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/(?:[a-z0-9._~!$&'()*+,;=:@-]|%[0-9a-f]{2})*)*)"
    r"(?P<query>\?(?:[a-z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-f]{2})*)?",
    re.ASCII | re.IGNORECASE,
)
_PORTS = {"http": 80, "https": 443}
_HIDDEN = ("\\", "\x7f", *map(chr, range(32)))
_NUMBER = re.compile("[0-9]+|0x[0-9a-f]*", re.ASCII)
_PRIVATE = tuple(
    ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "fc00::/7", "::1/128")
)
_SECRETS = (IPv6Address("fd00:ec2::254"), IPv6Address("fd20:ce::254"))
"""Metadata of clouds in networks that are private otherwise; most have it at a link-local address."""
_WORLD_V6 = ip_network("2000::/3")
_TUNNELS = (ip_network("2001::/32"), ip_network("2002::/16"))
"""Teredo and 6to4: an IPv4 address within an IPv6 address."""


@dataclass(frozen=True)
class Place:
    """An entry of the operator's list. `segments`: decoded parts that the path of a document begins with."""

    scheme: Scheme
    host: str
    port: int
    segments: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """A document to be fetched: where to connect, and what to ask for, as it stood in the `uri`.

    `address`: of a host that is written as one; None for a name, which is still to be looked up.
    """

    scheme: Scheme
    host: str
    port: int
    path: str
    address: Address | None

    @property
    def host_header(self) -> str:
        """The host as HTTP names it; with its port where that is not the usual one."""
        return self.host if self.port == _PORTS[self.scheme] else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """For people: without the query, which may hold a signature."""
        return f"{self.scheme}://{self.host_header}{self.path.partition('?')[0]}"


def is_web(uri: str) -> bool:
    """Whether `uri` asks for the network, not for a file."""
    return uri[:8].lower().startswith(("http://", "https://"))


def place(entry: str) -> Place:
    """An entry `http(s)://host[:port][/prefix]`. Raises `ValueError` that says what is wrong with it."""
    scheme, host, port, path, query = _parts(entry)
    if query:
        raise ValueError("an entry has no query")
    if not 0 < port < 65536:
        raise ValueError(f"{port} is no port")
    return Place(scheme, host, port, tuple(_segments(path.rstrip("/"))))


def target(uri: str, allowed: Iterable[Place]) -> Target:
    """What `uri` asks for, if it lies at one of the allowed places; else `UriNotAllowed`."""
    try:
        scheme, host, port, path, query = _parts(uri)
        segments = tuple(_segments(path))
    except ValueError as error:
        shown = uri.partition("?")[0][:200]
        raise UriNotAllowed(f"{shown!r} is not read as a URL here: {error}") from None
    found = Target(scheme, host, port, (path or "/") + query, _literal(host))
    if not any(_within(found, segments, entry) for entry in allowed):
        raise UriNotAllowed(f"{found} lies at none of the allowed places; they are set by uri_allow")
    return found


def _within(found: Target, segments: tuple[str, ...], entry: Place) -> bool:
    same = (found.scheme, found.host, found.port) == (entry.scheme, entry.host, entry.port)
    return same and segments[: len(entry.segments)] == entry.segments


def _parts(text: str) -> tuple[Scheme, str, int, str, str]:
    """Scheme, host, port, path and query. Raises `ValueError`."""
    match = _URL.fullmatch(text)
    if match is None:
        raise ValueError(
            "write http(s)://host[:port]/path, in ASCII, without user, fragment or backslash, others as %XX"
        )
    scheme = cast("Scheme", match["scheme"].lower())
    port = int(match["port"]) if match["port"] else _PORTS[scheme]
    return scheme, _host(match["host"].lower()), port, match["path"], match["query"] or ""


def _host(text: str) -> str:
    """The host in its one spelling. Raises `ValueError` for numbers that some readers take for an address."""
    if text.startswith("["):
        return f"[{IPv6Address(text[1:-1])}]"
    if _NUMBER.fullmatch(text.rpartition(".")[2]):
        return str(IPv4Address(text))  # refuses 127.1, 2130706433, 0x7f.1 and 0177.0.0.1
    text.encode("idna")  # refuses parts that are too long for a name
    return text


def _literal(host: str) -> Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def _segments(path: str) -> list[str]:
    """The decoded parts of a path. Raises `ValueError` where a server could take it for another path.

    Decoded again and again, since a server behind a proxy may do so once more than it should.
    """
    plain, before = unquote(path), path
    while plain != before:
        plain, before = unquote(plain), plain
    if plain.count("/") != path.count("/") or any(sign in plain for sign in _HIDDEN):
        raise ValueError("its path hides a slash, a backslash or a control character behind %XX")
    if any(part.partition(";")[0] in (".", "..") for part in plain.split("/")):
        raise ValueError("its path has a part `.` or `..`")
    return unquote(path).split("/")


def refusal_of(address: Address, *, private_too: bool) -> str | None:
    """Why no document is fetched from an address that a name led to; None when it may be.

    What the world can reach is fine. Networks of one's own and this machine are so with `private_too`. The
    rest never is: link-local, multicast, unspecified and reserved addresses, those where clouds hand out
    secrets, and IPv6 addresses that hide one of IPv4.
    """
    if any(address in network for network in _PRIVATE) and address not in _SECRETS:
        return None if private_too else "of a private network or this machine"
    if isinstance(address, IPv6Address) and (
        address not in _WORLD_V6 or any(address in tunnel for tunnel in _TUNNELS)
    ):
        return "not one of the public internet"
    if address.is_multicast or not address.is_global:
        return "not one of the public internet"
    return None
