"""Damages documents as disks, networks and attackers do. Pure: the same numbers give the same document."""

import random
import re
import struct
import zlib
from collections.abc import Callable

from tests.fuzz.seeds import KINDS, seeds

MAX_GROWTH = 1 << 16
"""Bytes that a mutation may add; what a document of megabytes costs is known without a fuzzer."""

_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_NUMBER = re.compile(rb"\d+")
_NUMBERS = (b"0", b"-1", b"1e400", b"0.0001", b"65536", b"2147483648", b"4294967295", b"99999999999999999999")


def document(seed: int, index: int) -> tuple[str, bytes]:
    """Kind and bytes of mutated document `index` of the run `seed`."""
    chance = random.Random(f"{seed}/{index}")
    kind = KINDS[index % len(KINDS)]
    data = chance.choice(seeds()[kind])
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        data = chance.choice(MUTATIONS)(data, kind, chance)
    return kind, _with_checksums(data) if kind == "png" and chance.random() < 0.7 else data


def flip_bits(data: bytes, _: str, chance: random.Random) -> bytes:
    """One to sixteen bits change."""
    changed = bytearray(data)
    for _n in range(chance.randint(1, 16) if data else 0):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(data: bytes, _: str, chance: random.Random) -> bytes:
    """The end is missing, as after a broken transfer."""
    return data[: chance.randint(0, len(data))]


def leave_out(data: bytes, _: str, chance: random.Random) -> bytes:
    """A piece in the middle is missing."""
    start, end = _piece(data, chance)
    return data[:start] + data[end:]


def splice(data: bytes, kind: str, chance: random.Random) -> bytes:
    """The beginning of this and the end of another document, mostly of the same kind."""
    other_kind = kind if chance.random() < 0.8 else chance.choice(KINDS)
    other = chance.choice(seeds()[other_kind])
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


def repeat(data: bytes, _: str, chance: random.Random) -> bytes:
    """A piece stands there many times: scans, chunks, pages, nested brackets."""
    start, end = _piece(data, chance)
    times = min(chance.choice((2, 3, 10, 100, 3000)), MAX_GROWTH // max(end - start, 1))
    return data[:start] + data[start:end] * max(times, 1) + data[end:]


def lie_about_a_number(data: bytes, _: str, chance: random.Random) -> bytes:
    """Two or four bytes anywhere, mostly near the beginning, become a number that is hard to bear."""
    width, order = chance.choice("BHI"), chance.choice("<>")
    size = struct.calcsize(order + width)
    if len(data) < size:
        return data
    within = len(data) if chance.random() < 0.5 else min(len(data), 128)
    at = chance.randrange(max(within - size, 0) + 1)
    number = chance.choice(_EXTREMES) & (256**size - 1)
    return data[:at] + struct.pack(order + width, number) + data[at + size :]


def lie_about_size(data: bytes, kind: str, chance: random.Random) -> bytes:
    """The header declares another width or height than there are pixels."""
    place = _SIZES.get(kind, lambda _: None)(data)
    if place is None:
        return change_text(data, kind, chance)
    at, layout = place
    at += struct.calcsize(layout) * chance.randrange(2)
    number = chance.choice((0, 1, 3, 4, 97, 5_000, 8_000, 65_535, 2**31 - 1)) & (
        256 ** struct.calcsize(layout) - 1
    )
    return data[:at] + struct.pack(layout, number & 0x7FFFFFFF) + data[at + struct.calcsize(layout) :]


def change_text(data: bytes, _: str, chance: random.Random) -> bytes:
    """One decimal number becomes another: a size, a count, a reference to another object."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    place = chance.choice(found)
    number = chance.choice(found)[0] if chance.random() < 0.5 else chance.choice(_NUMBERS)
    return data[: place.start()] + number + data[place.end() :]


def insert(data: bytes, _: str, chance: random.Random) -> bytes:
    """Noise, zeros or brackets in the middle."""
    at = chance.randint(0, len(data))
    what = chance.choice((chance.randbytes(8), b"\0", b"\xff", b"[", b'{"a":', b"<<", b"\xe2\x80\xae"))
    return data[:at] + what * chance.choice((1, 1, 4, 64, 2000)) + data[at:]


Mutation = Callable[[bytes, str, random.Random], bytes]
MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    cut,
    leave_out,
    splice,
    repeat,
    lie_about_a_number,
    lie_about_a_number,
    lie_about_size,
    change_text,
    insert,
)


def _piece(data: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randint(0, len(data))
    return start, min(start + chance.choice((1, 2, 4, 12, 64, 1000)), len(data))


def _jpeg_size(data: bytes) -> tuple[int, str] | None:
    frame = re.search(rb"\xff[\xc0-\xc2]", data)
    return (frame.start() + 5, ">H") if frame and frame.start() + 9 <= len(data) else None


def _tiff_size(data: bytes) -> tuple[int, str] | None:
    """The values of width and height lie twelve bytes apart; the first is enough, and the other is next."""
    tag = re.search(rb"\x00\x01[\x03\x04]\x00\x01\x00\x00\x00", data)
    return (tag.start() + 8, "<H") if tag and tag.start() + 12 <= len(data) else None


def _fixed(at: int, layout: str) -> Callable[[bytes], tuple[int, str] | None]:
    return lambda data: (at, layout) if len(data) >= at + 2 * struct.calcsize(layout) else None


_SIZES: dict[str, Callable[[bytes], tuple[int, str] | None]] = {
    "jpeg": _jpeg_size,
    "png": _fixed(16, ">I"),
    "tiff": _tiff_size,
    "gif": _fixed(6, "<H"),
    "bmp": _fixed(18, "<I"),
    "webp": _fixed(26, "<H"),
}
"""Where width and height stand side by side, and how they are written."""


def _with_checksums(data: bytes) -> bytes:
    """A PNG whose chunks have the right checksums again: else nothing behind them is ever reached."""
    changed, at = bytearray(data), 8
    while at + 12 <= len(changed):
        end = at + 8 + int.from_bytes(changed[at : at + 4], "big")
        if end + 4 > len(changed):
            break
        changed[end : end + 4] = zlib.crc32(changed[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(changed)
