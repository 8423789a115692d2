"""A document is fetched from the host that was allowed, whole and within its limits, or not at all."""

import gzip
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.common.errors import (
    ChecksumMismatch,
    DocumentTooLarge,
    OcrError,
    UriNotAllowed,
    UriUnavailable,
    UriUnreadable,
)
from services.gateway.fetch import Fetcher, WebLimits
from services.gateway.places import place
from tests.fakes.document_host import Answer, DocumentHost, document, says, says_for_ever

LIMIT = 1000
OK = b"HTTP/1.1 200 OK\r\n"
TLS = Path(__file__).parents[1] / "data" / "tls"
PUBLIC = "93.184.216.34"


@pytest.fixture
def host() -> Iterator[DocumentHost]:
    with DocumentHost(document(b"slip")) as running:
        yield running


def fetcher(*entries: str, resolver: Callable[[str, int], list[str]] | None = None, **limits: Any) -> Fetcher:
    allowed = tuple(place(entry) for entry in entries)
    web = WebLimits(allowed, **{"max_bytes": LIMIT, "timeout_s": 20.0, **limits})
    return Fetcher(web) if resolver is None else Fetcher(web, resolver)


def fetch(host: DocumentHost, path: str = "/a", size: int = 0, **limits: Any) -> bytes:
    return fetcher(host.url("/"), **limits).fetch(host.url(path), size=size)


def local(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


# -- what is asked, and where


def test_a_document_is_asked_for_plainly(host: DocumentHost) -> None:
    assert fetch(host, "/in%20box/a.png?sig=x") == b"slip"
    (head,) = host.requests
    lines = head.decode().split("\r\n")
    assert lines[0] == "GET /in%20box/a.png?sig=x HTTP/1.1"
    assert sorted(lines[1:-2]) == [
        "Accept-Encoding: identity",
        "Connection: close",
        f"Host: 127.0.0.1:{host.port}",
        "User-Agent: ocr-serving",
    ]


def test_proxies_and_passwords_of_the_environment_are_not_used(
    host: DocumentHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetch(host) == b"slip"
    assert b"Authorization" not in host.requests[0]


def test_nothing_is_asked_of_a_host_that_is_not_allowed(host: DocumentHost) -> None:
    for uri in (host.url(), "http://localhost/", f"http://docs.test@127.0.0.1:{host.port}/"):
        with pytest.raises(UriNotAllowed):
            fetcher("http://docs.test", private_too=True).fetch(uri)
    assert host.connections == 0


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"], ["::1"], ["0.0.0.0"], ["::ffff:127.0.0.1"], ["169.254.169.254"], ["10.0.0.1"],
        [PUBLIC, "127.0.0.1"], ["127.0.0.1", PUBLIC],
    ],
)  # fmt: skip
def test_a_name_that_leads_home_is_refused_before_anything_is_connected(
    host: DocumentHost, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "create_connection", None)
    web = fetcher(host.url("/", "docs.test"), resolver=lambda _host, _port: addresses)
    with pytest.raises(UriNotAllowed, match="uri_allow_private"):
        web.fetch(host.url("/a", "docs.test"))


@pytest.mark.parametrize("address", ["0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "fe80::1%eth0"])
def test_private_names_do_not_open_the_way_to_addresses_of_a_meaning_of_their_own(address: str) -> None:
    web = fetcher("http://docs.test", resolver=lambda _host, _port: [address], private_too=True)
    with pytest.raises(UriNotAllowed):
        web.fetch("http://docs.test/")


def test_a_name_may_lead_to_a_private_address_where_the_operator_says_so(host: DocumentHost) -> None:
    web = fetcher(host.url("/", "docs.test"), resolver=local, private_too=True)
    assert web.fetch(host.url("/a", "docs.test")) == b"slip"
    assert f"Host: docs.test:{host.port}".encode() in host.requests[0]


def test_a_name_that_changes_its_mind_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public when it is judged, the loopback from then on."""
    asked, connected = [], []

    def resolver(name: str, _port: int) -> list[str]:
        asked.append(name)
        return [PUBLIC] if len(asked) == 1 else ["127.0.0.1"]

    def connect(address: tuple[str, int], _timeout: float) -> None:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(UriUnavailable):
        fetcher("http://docs.test", resolver=resolver).fetch("http://docs.test/a")
    assert (asked, connected) == (["docs.test"], [(PUBLIC, 80)])


def test_the_next_address_is_tried_where_one_does_not_answer(host: DocumentHost) -> None:
    web = fetcher(
        host.url("/", "docs.test"), resolver=lambda _h, _p: ["127.0.0.2", "127.0.0.1"], private_too=True
    )
    assert web.fetch(host.url("/a", "docs.test")) == b"slip"


def test_a_name_that_nobody_knows_may_be_known_later() -> None:
    def resolver(_host: str, _port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(UriUnavailable, match="not known"):
        fetcher("http://docs.test", resolver=resolver).fetch("http://docs.test/a")


# -- TLS


@pytest.fixture
def tls_host() -> Iterator[DocumentHost]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(TLS / "host.pem", TLS / "host.key")
    with DocumentHost(document(b"slip"), server) as running:
        yield running


def https(host: DocumentHost, name: str) -> bytes:
    web = fetcher(host.url("/", name, "https"), resolver=local, private_too=True)
    return web.fetch(host.url("/a", name, "https"))


def test_a_certificate_counts_for_the_name_although_the_connection_goes_to_an_address(
    tls_host: DocumentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "host.pem"))
    assert https(tls_host, "docs.test") == b"slip"


@pytest.mark.parametrize("name", ["other.test", "127.0.0.1"])
def test_a_certificate_of_another_name_is_refused(
    tls_host: DocumentHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "host.pem"))
    with pytest.raises(UriUnreadable, match="certificate"):
        https(tls_host, name)
    assert tls_host.requests == []


def test_a_certificate_of_nobody_we_trust_is_refused(tls_host: DocumentHost) -> None:
    with pytest.raises(UriUnreadable, match="certificate"):
        https(tls_host, "docs.test")


def test_a_host_without_tls_is_no_host_with_it(host: DocumentHost) -> None:
    with pytest.raises(UriUnavailable):
        https(host, "docs.test")


# -- what comes back


@pytest.mark.parametrize("status", ["300 A", "301 A", "302 A", "303 A", "304 A", "307 A", "308 A"])
def test_a_redirect_is_an_error_and_not_followed(host: DocumentHost, status: str) -> None:
    with DocumentHost(document(b"secret")) as other:
        host.answer = document(b"", f"Location: {other.url()}", status=status)
        with pytest.raises(UriUnreadable, match="redirects are not followed"):
            fetch(host)
        assert (len(host.requests), other.connections) == (1, 0)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_a_host_in_trouble_is_worth_another_try(host: DocumentHost, status: int) -> None:
    host.answer = document(b"later", status=f"{status} x")
    with pytest.raises(UriUnavailable, match=str(status)):
        fetch(host)


@pytest.mark.parametrize("status", [103, 201, 204, 206, 400, 401, 403, 404, 410, 418])
def test_any_other_status_is_final(host: DocumentHost, status: int) -> None:
    host.answer = document(b"", status=f"{status} x")
    with pytest.raises(UriUnreadable, match=str(status)):
        fetch(host)


@pytest.mark.parametrize(
    "answer",
    [
        says(b"220 smtp.test ESMTP\r\n"),
        says(b"HTTP/1.1 2oo OK\r\n\r\n"),
        says(OK, b"X: " + b"x" * 100_000, b"\r\n\r\n"),
        says(OK, b"X: x\r\n" * 200, b"\r\n"),
        says(OK, b"Transfer-Encoding: chunked\r\n\r\n", b"1" * 100_000),
    ],
)
def test_what_is_not_http_is_final(host: DocumentHost, answer: Answer) -> None:
    host.answer = answer
    with pytest.raises(UriUnreadable, match="not HTTP"):
        fetch(host)


@pytest.mark.parametrize(
    "answer",
    [
        says(),
        says(OK, b"Content-Length: 9\r\n\r\n", b"12345678"),
        says(OK, b"Content-Length: 9\r\n\r\n"),
        says(OK, b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\n123"),
        says(OK, b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\n12345\r\n"),
    ],
)
def test_an_answer_that_breaks_off_is_not_taken_for_the_document(host: DocumentHost, answer: Answer) -> None:
    host.answer = answer
    with pytest.raises(UriUnavailable):
        fetch(host)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (says(OK, b"\r\n", b"to the end"), b"to the end"),
        (says(OK, b"Content-Length: 4\r\n\r\n", b"slip and more"), b"slip"),
        (says(OK, b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nsl\r\n2\r\nip\r\n0\r\nX: y\r\n\r\n"), b"slip"),
        (says(b"HTTP/1.1 100 Continue\r\n\r\n", OK, b"Content-Length: 4\r\n\r\n", b"slip"), b"slip"),
        (document(b""), b""),
        (document(b"x" * LIMIT), b"x" * LIMIT),
        (document(gzip.compress(b"x" * 10_000)), gzip.compress(b"x" * 10_000)),
    ],
)  # fmt: skip
def test_a_body_is_taken_as_it_comes(host: DocumentHost, answer: Answer, body: bytes) -> None:
    host.answer = answer
    assert fetch(host) == body


@pytest.mark.parametrize("headers", [("Connection: close",), ("Connection: keep-alive",), ()])
def test_a_large_document_comes_whole_whoever_closes_the_connection(
    host: DocumentHost, headers: tuple[str, ...]
) -> None:
    body = bytes(range(256)) * 20_000
    host.answer = document(body, *headers)
    assert fetch(host, max_bytes=len(body)) == body
    host.answer = says(OK, b"\r\n", body)
    assert fetch(host, max_bytes=len(body)) == body


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "identity, gzip"])
def test_a_body_that_would_have_to_be_decoded_is_refused(host: DocumentHost, encoding: str) -> None:
    host.answer = document(gzip.compress(bytes(10 * LIMIT)), f"Content-Encoding: {encoding}")
    with pytest.raises(UriUnreadable, match="not asked for"):
        fetch(host)


CHUNK = b"40\r\n" + b"x" * 64 + b"\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        says(OK, b"Content-Length: 1001\r\n\r\n"),
        says(OK, b"Content-Length: 99999999999999999999\r\n\r\n"),
        says_for_ever(OK + b"\r\n", b"x" * 64),
        says_for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK),
        says_for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", b"x" * 64),
        says_for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", b"x" * 65536),
        says_for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 9999),
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999),
        says_for_ever(OK + b"Content-Length: -1\r\n\r\n", b"x" * 64),
    ],
)
def test_no_more_is_read_than_the_limit_whatever_the_host_says(host: DocumentHost, answer: Answer) -> None:
    host.answer = answer
    with pytest.raises(DocumentTooLarge, match="1000"):
        fetch(host)


def test_a_document_of_another_size_than_the_job_says_is_not_read(host: DocumentHost) -> None:
    host.answer = says_for_ever(OK + b"Content-Length: 9\r\n\r\n", b"", every_s=0.01)
    with pytest.raises(ChecksumMismatch, match="9 bytes; the job says 4"):
        fetch(host, size=4)


PARTS = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.1 302 Found", b"HTTP/1.0 200", b"HTTP/9.9 200 OK", b"HTTP/1.1 100 Continue",
     b"\r\n", b"\r\n\r\n", b"\n", b"Content-Length: ", b"Transfer-Encoding: ", b"chunked", b"gzip",
     b"Content-Encoding: ", b"Connection: close", b": ", b"5", b"-5", b"ffffffffff", b"0",
     b"4\r\nslip\r\n", b"slip", b"\x00", b"\xff", b" "]
)  # fmt: skip


@given(st.lists(st.one_of(PARTS, st.binary(max_size=8)), max_size=14).map(b"".join))
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nslip\r\n0\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nslip")
def test_whatever_a_host_says_is_a_document_or_a_typed_error(said: bytes) -> None:
    def connect(_address: tuple[str, int], _timeout: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        ends.append(theirs)
        return ours

    ends: list[socket.socket] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", connect)
        try:
            assert len(fetcher("http://127.0.0.1").fetch("http://127.0.0.1/")) <= LIMIT
        except OcrError as error:
            assert str(error).startswith("http://127.0.0.1/")
    for end in ends:
        end.close()


# -- time


@pytest.mark.parametrize(
    "answer",
    [
        says_for_ever(b"", b"", every_s=0.01),
        says_for_ever(b"", b"H", every_s=0.01),
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0.01),
        says_for_ever(OK, b"X", every_s=0.01),
        says_for_ever(OK + b"Content-Length: 900\r\n\r\n", b"x", every_s=0.05),
        says_for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0", every_s=0.01),
        says_for_ever(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n", every_s=0.01),
    ],
)
def test_a_host_that_drips_has_the_time_of_one_document_in_all(host: DocumentHost, answer: Answer) -> None:
    host.answer = answer
    with pytest.raises(UriUnavailable, match="in time"):
        fetch(host, timeout_s=0.3)


def test_a_host_that_does_not_speak_tls_in_time_is_given_up(host: DocumentHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(UriUnavailable, match="in time"):
            fetcher(url, timeout_s=0.2).fetch(url)


def test_the_deadline_of_the_caller_holds_too(host: DocumentHost) -> None:
    host.answer = says_for_ever(b"", b"", every_s=0.01)
    web = fetcher(host.url("/"), timeout_s=1000.0)
    for deadline in (time.monotonic() + 0.1, 0.0):
        with pytest.raises(UriUnavailable, match="in time"):
            web.fetch(host.url(), deadline=deadline)


def test_a_port_where_nobody_listens_may_be_listened_to_later(host: DocumentHost) -> None:
    host.__exit__()
    with pytest.raises(UriUnavailable, match="refused"):
        fetch(host)
