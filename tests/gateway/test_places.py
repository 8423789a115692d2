"""A `uri` leads to an allowed place or nowhere."""

from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import UriNotAllowed
from services.gateway.places import is_web, place, refusal_of, target

ALLOWED = [
    place("https://docs.example/slips"),
    place("http://10.0.0.7:9000"),
    place("http://[fd00::7]:80/a/"),
]


@pytest.mark.parametrize(
    ("uri", "host_header", "path", "address"),
    [
        ("https://docs.example/slips/1.png", "docs.example", "/slips/1.png", None),
        ("HTTPS://Docs.Example:443/slips", "docs.example", "/slips", None),
        ("https://docs.example/%73lips/1", "docs.example", "/%73lips/1", None),
        ("https://docs.example/slips/a%20b%25.png", "docs.example", "/slips/a%20b%25.png", None),
        (
            "https://docs.example/slips/%E6%94%B6%E3%80%80.png",
            "docs.example",
            "/slips/%E6%94%B6%E3%80%80.png",
            None,
        ),
        ("https://docs.example/slips/1?sig=a/../b&x=%2F", "docs.example", "/slips/1?sig=a/../b&x=%2F", None),
        ("https://docs.example/slips/...", "docs.example", "/slips/...", None),
        ("http://10.0.0.7:9000", "10.0.0.7:9000", "/", "10.0.0.7"),
        ("http://[FD00:0::0007]/a/b", "[fd00::7]", "/a/b", "fd00::7"),
    ],
)
def test_a_document_at_an_allowed_place_is_asked_for_as_written(uri, host_header, path, address):
    found = target(uri, ALLOWED)
    assert (found.host_header, found.path) == (host_header, path)
    assert found.address == (address and ip_address(address))


@pytest.mark.parametrize(
    "uri",
    [
        "http://docs.example/slips/1",  # another scheme
        "https://docs.example:8443/slips/1",
        "https://docs.example:0/slips/1",
        "https://docs.example:99999/slips/1",
        "https://docs.example:/slips/1",
        "https://docs.example:٤٤٣/slips/1",
        "https://docs.example./slips/1",
        "https://docs.example.evil/slips/1",
        "https://evil.docs.example/slips/1",
        "https://docs。example/slips/1",
        "https://docs.example\n/slips/1",
        " https://docs.example/slips/1",
        "https://docs.example/slips/1\n",
        "https:docs.example/slips/1",
        "https:/docs.example/slips/1",
        "https:///docs.example/slips/1",
        "https://docs.example@evil/slips/1",
        "https://evil@docs.example/slips/1",
        "https://docs.example:443@evil/slips/1",
        "https://docs.example%40evil/slips/1",
        "https://docs.example\\@evil/slips/1",
        "https://docs.example\\slips/1",
        "https://docs.example#@evil/slips/1",
        "https://docs.example/slips/1#x",
        "https://docs.example?/slips/1",
        "https://docs.example",
        "https://docs.example/",
        "https://docs.example/slip",
        "https://docs.example/slips-secret/1",
        "https://docs.example/SLIPS/1",
        "https://docs.example//slips/1",
        "https://docs.example/slips/../secret",
        "https://docs.example/slips/..",
        "https://docs.example/./slips/1",
        "https://docs.example/slips/%2e%2e/secret",
        "https://docs.example/slips/%2E./secret",
        "https://docs.example/slips/.%2e/secret",
        "https://docs.example/slips/%252e%252e/secret",
        "https://docs.example/slips/..;x/secret",
        "https://docs.example/slips/%2e%2e%3bx/secret",
        "https://docs.example/slips/..%2fsecret",
        "https://docs.example/slips/a%2Fb",
        "https://docs.example/slips/a%252fb",
        "https://docs.example/slips/..%5csecret",
        "https://docs.example/slips/..\\secret",
        "https://docs.example/slips/a%00.png",
        "https://docs.example/slips/a%0d%0aHost:%20evil",
        "https://docs.example/slips/a b",
        "https://docs.example/slips/a\r\nHost: evil",
        "https://docs.example/slips/%",
        "https://docs.example/slips/%zz",
        "https://docs.example/slips/1?a b",
        "https://docs.example/slips/收.png",
        "http://167772167:9000/",  # 10.0.0.7 in other spellings
        "http://0x0a000007:9000/",
        "http://0x0a.0.0.7:9000/",
        "http://012.0.0.7:9000/",
        "http://10.0.0.07:9000/",
        "http://10.7:9000/",
        "http://10.0.0.7.:9000/",
        "http://[::ffff:10.0.0.7]:9000/",
        "http://[fd00::7%25eth0]/a/b",
        "http://[fd00::7/a/b",
        "http://fd00::7/a/b",
        "http://127.0.0.1/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://169.254.169.254/latest/meta-data",
        "ftp://docs.example/slips/1",
        "file:///etc/passwd",
        "",
    ],
)  # fmt: skip
def test_whatever_is_not_plainly_an_allowed_place_is_refused(uri):
    with pytest.raises(UriNotAllowed):
        target(uri, ALLOWED)


PIECES = st.sampled_from(
    ["https://", "http://", "docs.example", "10.0.0.7", "evil", "@", ":", "443", "9000", "/", "\\", "//",
     "slips", "..", ".", "%2e", "%2f", "%5c", "%25", "?", "#", ";", "[", "]", "\t", "\n", "x"]
)  # fmt: skip


@given(
    st.one_of(
        st.lists(PIECES, max_size=12).map("".join), st.text(max_size=40).map("https://docs.example".__add__)
    )
)
def test_what_is_accepted_leads_where_another_reader_of_urls_would_go_too(uri):
    try:
        found = target(uri, ALLOWED)
    except UriNotAllowed:
        return
    other = urlsplit(uri)
    assert (other.scheme, other.hostname, other.username) == (found.scheme, found.host.strip("[]"), None)
    assert (other.port or {"http": 80, "https": 443}[found.scheme]) == found.port
    assert (found.scheme, found.host, found.port) in {(p.scheme, p.host, p.port) for p in ALLOWED}
    assert found.path.isascii()
    assert found.path.isprintable()
    assert " " not in found.path


@given(st.text(max_size=60))
def test_no_text_whatever_gives_anything_but_a_target_or_not_allowed(text):
    with pytest.raises(UriNotAllowed):
        target(text, ALLOWED)


@pytest.mark.parametrize(
    "entry",
    [
        "https://",
        "https://user@docs.example/",
        "https://docs.example/a?b",
        "https://docs.example/a#b",
        "https://docs.example/a/../b",
        "https://docs.example:0/",
        "https://docs.example:65536/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://017700000001/",
        "http://1.2.3.0x4/",
        "http://[::1/",
        "http://[1:2]/",
        "https://*.example/",
        f"https://{'a' * 64}.example/",
    ],
)
def test_an_entry_that_is_not_plain_is_refused(entry):
    with pytest.raises(ValueError):  # noqa: PT011  # what it says differs with what is wrong
        place(entry)


def test_the_signature_of_a_url_is_not_shown():
    assert str(target("https://docs.example/slips/1?sig=secret", ALLOWED)) == "https://docs.example/slips/1"
    for uri in ("https://evil.example/slips/1?sig=secret", "https://docs.example/slips/..?sig=secret"):
        with pytest.raises(UriNotAllowed) as refused:
            target(uri, ALLOWED)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "web"),
    [("http://a", True), ("HTTPS://a", True), ("file:///a", False), ("http:/a", False), ("", False)],
)
def test_a_file_and_the_network_are_told_apart(uri, web):
    assert is_web(uri) is web


PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1"]
OWN = ["127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "::1", "fd12::1"]
NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200", "192.0.0.1",
    "192.0.2.1", "198.18.0.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8",
    "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "2001:0:7f00:1::1", "2001:db8::1", "100::1",
    "fd00:ec2::254", "fd20:ce::254",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_public_internet_may_be_asked(address):
    assert refusal_of(ip_address(address), private_too=False) is None


@pytest.mark.parametrize("address", OWN)
def test_a_private_address_may_be_asked_only_when_the_operator_says_so(address):
    assert "private" in refusal_of(ip_address(address), private_too=False)
    assert refusal_of(ip_address(address), private_too=True) is None


@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize("private_too", [False, True])
def test_no_name_leads_to_an_address_with_a_meaning_of_its_own(address, private_too):
    assert refusal_of(ip_address(address), private_too=private_too) is not None


@given(st.ip_addresses(v=4))
def test_no_address_of_version_4_gets_through_within_one_of_version_6(address):
    number = int(address)
    hidden = [number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80]
    for inner in hidden:
        assert inner == 1 or refusal_of(ip_address(inner.to_bytes(16)), private_too=True) is not None
