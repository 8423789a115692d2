"""A `uri` reads what the operator allowed, and nothing else on the machine."""

import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import ChecksumMismatch, DocumentTooLarge, UriNotAllowed, UriUnreadable
from services.common.pb import ocr_pb2 as pb
from services.gateway import source
from services.gateway.fetch import Fetcher, WebLimits
from services.gateway.places import place
from tests.fakes.document_host import DocumentHost, document

LIMIT = 100


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """in/: allowed, with a document; out/: not allowed, with a secret; and ways from one to the other."""
    for name in ("in", "in/deep", "in-too", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "in/slip.png").write_bytes(b"slip")
    (tmp_path / "in/deep/ä ?#.png").write_bytes(b"deep")
    (tmp_path / "in/large").write_bytes(bytes(LIMIT + 1))
    (tmp_path / "in-too/secret").write_bytes(b"secret")
    (tmp_path / "out/secret").write_bytes(b"secret")
    (tmp_path / "in/inner-link").symlink_to(tmp_path / "in/slip.png")
    (tmp_path / "in/link").symlink_to(tmp_path / "out/secret")
    (tmp_path / "in/folder-link").symlink_to(tmp_path / "out")
    os.mkfifo(tmp_path / "in/fifo")
    return tmp_path


def read(disk: Path, uri: str, *allowed: str) -> bytes:
    return source.read(pb.Job(uri=uri), [str(disk / name) for name in allowed or ("in",)], LIMIT)


@pytest.mark.parametrize(
    ("uri", "content"),
    [
        ("file://{}/in/slip.png", b"slip"),
        ("file://localhost{}/in/slip.png", b"slip"),
        ("FILE://{}/in/slip.png", b"slip"),
        ("file:{}/in/slip.png", b"slip"),
        ("file://{}/in/%73lip.png", b"slip"),
        ("file://{}/in/deep/" + quote("ä ?#.png"), b"deep"),
        ("file://{}/in/inner-link", b"slip"),
        ("file://{}/in//deep/./" + quote("ä ?#.png"), b"deep"),
    ],
)
def test_a_file_inside_an_allowed_folder_is_read(disk: Path, uri: str, content: bytes) -> None:
    assert read(disk, uri.format(disk)) == content


@pytest.mark.parametrize(
    "uri",
    [
        "file://{}/out/secret",
        "file://{}/in/../out/secret",
        "file://{}/in/%2e%2e/out/secret",
        "file://{}/in/..%2Fout/secret",
        "file://{}/in/deep/../slip.png",
        "file://{}/in/link",
        "file://{}/in/folder-link/secret",
        "file://{}/in-too/secret",
        "file://{}/in/slip.png%00",
        "file://{}/in/slip.png?x",
        "file://{}/in/slip.png#x",
        "file://elsewhere{}/in/slip.png",
        "file://127.0.0.1{}/in/slip.png",
        "http://localhost{}/in/slip.png",
        "s3://bucket/slip.png",
        "{}/in/slip.png",
        "file:in/slip.png",
        "file://{}/out/does-not-exist",
        "file:///proc/self/environ",
        "file:///",
        "file://[",
        "",
    ],
)
def test_anything_else_is_not_allowed_and_the_answer_does_not_tell_what_exists(disk: Path, uri: str) -> None:
    with pytest.raises(UriNotAllowed):
        read(disk, uri.format(disk))


def test_nothing_is_allowed_when_no_folder_is(disk: Path) -> None:
    with pytest.raises(UriNotAllowed):
        source.read(pb.Job(uri=f"file://{disk}/in/slip.png"), [], LIMIT)


@pytest.mark.parametrize("name", ["missing", "deep", "fifo", "slip.png/inside"])
def test_what_is_no_regular_file_is_unreadable(disk: Path, name: str) -> None:
    with pytest.raises(UriUnreadable):
        read(disk, f"file://{disk}/in/{name}")


def test_a_device_is_unreadable_even_where_it_is_allowed() -> None:
    with pytest.raises(UriUnreadable, match="regular"):
        source.read(pb.Job(uri="file:///dev/zero"), ["/dev"], LIMIT)


def test_a_file_over_the_limit_is_refused_before_it_is_read(disk: Path) -> None:
    with pytest.raises(DocumentTooLarge, match="101 bytes"):
        read(disk, f"file://{disk}/in/large")


def test_the_allowed_folder_may_itself_be_a_link(disk: Path) -> None:
    (disk / "alias").symlink_to(disk / "in")
    assert read(disk, f"file://{disk}/alias/slip.png", "alias") == b"slip"


def test_a_job_may_carry_its_document() -> None:
    assert source.read(pb.Job(content=b"x"), [], LIMIT) == b"x"


def test_the_head_of_a_file_is_read_by_the_same_rules(disk: Path) -> None:
    allowed = [str(disk / "in")]
    assert source.head(pb.Job(uri=f"file://{disk}/in/slip.png"), allowed, LIMIT) == b"slip"
    assert source.head(pb.Job(uri=f"file://{disk}/in/large"), allowed, 10 * LIMIT) == bytes(LIMIT + 1)
    (disk / "in/large").write_bytes(bytes(3000))
    assert source.head(pb.Job(uri=f"file://{disk}/in/large"), allowed, 9000) == bytes(source.HEAD_BYTES)
    with pytest.raises(DocumentTooLarge):
        source.head(pb.Job(uri=f"file://{disk}/in/large"), allowed, LIMIT)
    with pytest.raises(UriNotAllowed):
        source.head(pb.Job(uri=f"file://{disk}/in/link"), allowed, LIMIT)


@given(st.text(max_size=40))
def test_whatever_the_path_says_it_stays_inside(path: str) -> None:
    try:
        found = source.allowed_path(f"file:///srv/in/{path}", ["/srv/in"])
    except UriNotAllowed:
        return
    assert found.is_relative_to("/srv/in")


SHA256 = hashlib.sha256(b"slip").hexdigest()


@pytest.mark.parametrize(
    "said", [{"sha256": SHA256}, {"sha256": SHA256.upper()}, {"size": 4}, {"sha256": SHA256, "size": 4}]
)
def test_a_document_that_is_as_described_is_read(disk: Path, said: dict[str, Any]) -> None:
    for given_as in ({"uri": f"file://{disk}/in/slip.png"}, {"content": b"slip"}):
        assert source.read(pb.Job(**given_as, **said), [str(disk / "in")], LIMIT) == b"slip"


@pytest.mark.parametrize(
    "said", [{"sha256": SHA256[:-1] + "0"}, {"size": 5}, {"size": 3}, {"sha256": SHA256, "size": 5}]
)
def test_another_document_than_described_is_refused(disk: Path, said: dict[str, Any]) -> None:
    for given_as in ({"uri": f"file://{disk}/in/slip.png"}, {"content": b"slip"}):
        with pytest.raises(ChecksumMismatch, match="the job says"):
            source.read(pb.Job(**given_as, **said), [str(disk / "in")], LIMIT)


@pytest.mark.parametrize(
    ("job", "on_network"),
    [
        (pb.Job(uri="https://docs.example/a"), True),
        (pb.Job(uri="HTTP://x"), True),
        (pb.Job(uri="file:///a"), False),
        (pb.Job(uri="ftp://a"), False),
        (pb.Job(content=b"http://x"), False),
    ],
)
def test_what_must_be_fetched_first_is_known_by_its_uri(job: pb.Job, on_network: bool) -> None:
    assert source.on_network(job) is on_network


def test_a_fetched_job_carries_its_document_and_the_wishes() -> None:
    with DocumentHost(document(b"slip")) as host:
        web = Fetcher(WebLimits((place(host.url("/")),)))
        asked = pb.Job(uri=host.url("/a?sig=x"), sha256=SHA256, options=pb.Options(min_confidence=0.5))
        assert source.fetched(asked, web, None) == pb.Job(content=b"slip", options=asked.options)
        assert asked.uri
        asked.sha256 = "0" * 64
        with pytest.raises(ChecksumMismatch) as refused:
            source.fetched(asked, web, None)
        assert "sig" not in str(refused.value)
