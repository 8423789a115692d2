"""Whatever the bytes are, `images` answers with pages or with the one error that names what is wrong."""

import io
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from services.common import images
from services.common.errors import (
    CorruptInput,
    DocumentTooLarge,
    EmptyInput,
    ImageTooLarge,
    ImageTooSmall,
    InputError,
    OcrError,
    PasswordProtected,
    TooManyPages,
    UnsupportedFormat,
)
from services.common.images import DecodedPage, ImageLimits, decode_document, decode_image
from tests.fakes.pages import png_header
from tests.fakes.pdf import encrypted_pdf, pdf

LIMITS = ImageLimits()
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """pytest gives each test its own warning filters."""
    images.silence_decoders()


def corners(width: int = 40, height: int = 24) -> Image.Image:
    """Red, green and blue corners (top left, top right, bottom left) on white: shows any turn."""
    picture = Image.new("RGB", (width, height), WHITE)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, 11, 11), fill=RED)
    draw.rectangle((width - 12, 0, width, 11), fill=GREEN)
    draw.rectangle((0, height - 12, 11, height), fill=BLUE)
    return picture


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def rgb(page: np.ndarray, x: int, y: int) -> tuple[int, ...]:
    return tuple(int(v) for v in page[y, x, ::-1])


def near(a: tuple[int, ...], b: tuple[int, ...], slack: int = 40) -> bool:
    return all(abs(x - y) <= slack for x, y in zip(a, b, strict=True))


def shows_corners(page: np.ndarray, width: int = 40, height: int = 24) -> bool:
    return (
        page.shape == (height, width, 3)
        and page.dtype == np.uint8
        and near(rgb(page, 4, 4), RED)
        and near(rgb(page, width - 5, 4), GREEN)
        and near(rgb(page, 4, height - 5), BLUE)
        and near(rgb(page, width - 5, height - 5), WHITE)
    )


def tiff(*pictures: Image.Image, **options: object) -> bytes:
    return saved(pictures[0], "TIFF", save_all=True, append_images=pictures[1:], **options)


def pages_of(data: bytes, limits: ImageLimits = LIMITS) -> list[DecodedPage]:
    return list(decode_document(data, limits))


def test_every_format_gives_the_same_picture() -> None:
    files = {
        "JPEG": saved(corners(), "JPEG", quality=95),
        "progressive JPEG": saved(corners(), "JPEG", quality=95, progressive=True),
        "CMYK JPEG, inverted as Adobe writes it": saved(corners().convert("CMYK"), "JPEG", quality=95),
        "PNG": saved(corners(), "PNG"),
        "PNG with palette": saved(corners().quantize(8), "PNG"),
        "PNG with alpha": saved(corners().convert("RGBA"), "PNG"),
        "WebP": saved(corners(), "WEBP", lossless=True),
        "BMP": saved(corners(), "BMP"),
        "GIF": saved(corners(), "GIF"),
        "TIFF": saved(corners(), "TIFF"),
        "TIFF, LZW": saved(corners(), "TIFF", compression="tiff_lzw"),
        "TIFF, CMYK": saved(corners().convert("CMYK"), "TIFF"),
        "TIFF, JPEG in YCbCr": saved(corners(), "TIFF", compression="jpeg"),
        "TIFF, big": saved(corners(), "TIFF", big_tiff=True),
    }
    wrong = [name for name, data in files.items() if not shows_corners(decode_image(data, LIMITS))]
    assert wrong == []


def test_lab_is_shown_in_its_colours() -> None:
    lab = Image.new("LAB", (8, 8))
    lab.putdata([(136, 208, 195)] * 64)  # red: L 53, a +80, b +67, with the signed bands at offset 128
    assert near(rgb(decode_image(saved(lab, "TIFF"), LIMITS), 3, 3), RED)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_exif_says(kind: str, orientation: int) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = corners() if orientation == 1 else corners().transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert shows_corners(decode_image(saved(stored, kind, exif=exif), LIMITS))


def test_transparency_is_laid_on_white_paper() -> None:
    ink = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    ink.paste((0, 0, 0, 255), (0, 0, 10, 20))
    gray_ink = Image.new("LA", (20, 20), (0, 0))
    gray_ink.paste((0, 255), (0, 0, 10, 20))
    palette = ink.convert("RGBA").quantize(4)
    for picture in (ink, gray_ink, palette):
        page = decode_image(saved(picture, "PNG"), LIMITS)
        assert (rgb(page, 2, 2), rgb(page, 17, 2)) == ((0, 0, 0), WHITE)


@pytest.mark.parametrize(
    ("picture", "kind"),
    [
        (Image.fromarray(np.array([[0, 65535] * 4] * 8, np.uint16)), "PNG"),
        (Image.fromarray(np.array([[0, 65535] * 4] * 8, np.uint16)), "TIFF"),
        (Image.fromarray(np.array([[-5, 70000] * 4] * 8, np.int32)), "TIFF"),
        (Image.fromarray(np.array([[0.0, 1.0] * 4] * 8, np.float32)), "TIFF"),
        (Image.fromarray(np.array([[0, 255] * 4] * 8, np.uint8)).convert("1"), "PNG"),
        (Image.fromarray(np.array([[0, 255] * 4] * 8, np.uint8)).convert("1"), "TIFF"),
    ],
    ids=["png16", "tiff16", "tiff32", "float", "png1", "tiff1"],
)
def test_every_depth_is_brought_to_8_bits(picture: Image.Image, kind: str) -> None:
    page = decode_image(saved(picture, kind), LIMITS)
    assert page.shape == (8, 8, 3)
    assert (rgb(page, 0, 0), rgb(page, 1, 0)) == ((0, 0, 0), WHITE)


def test_an_animation_gives_its_first_frame() -> None:
    first, second = Image.new("RGB", (20, 20), RED), Image.new("RGB", (20, 20), BLUE)
    for kind in ("GIF", "PNG", "WEBP"):
        pages = pages_of(saved(first, kind, save_all=True, append_images=[second]))
        assert [near(rgb(page.image, 9, 9), RED) for page in pages] == [True], kind


def test_a_tiff_gives_all_its_pages_and_one_image_the_first() -> None:
    data = tiff(corners(), Image.new("RGB", (30, 20), GREEN), Image.new("L", (10, 50), 255))
    assert [(p.number, p.of, p.image.shape) for p in pages_of(data)] == [
        (1, 3, (24, 40, 3)),
        (2, 3, (20, 30, 3)),
        (3, 3, (50, 10, 3)),
    ]
    assert shows_corners(decode_image(data, LIMITS))


def test_a_damaged_tiff_page_does_not_take_the_others_with_it() -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = bytearray(tiff(corners(), noise, corners(), compression="tiff_adobe_deflate"))
    at = data.find(saved(noise, "TIFF", compression="tiff_adobe_deflate")[200:240])
    assert at > 0
    data[at : at + 2000] = bytes(2000)
    pages = pages_of(bytes(data))
    assert [p.number for p in pages] == [1, 2, 3]
    assert isinstance(pages[1].image, CorruptInput)
    assert shows_corners(pages[0].image)
    assert shows_corners(pages[2].image)


def test_a_tiff_page_that_declares_too_much_is_refused_and_the_others_are_read() -> None:
    limits = ImageLimits(max_pixels=2_000)
    pages = pages_of(tiff(corners(), Image.new("1", (100, 100)), corners()), limits)
    assert isinstance(pages[1].image, ImageTooLarge)
    assert shows_corners(pages[2].image)


def test_page_directories_that_run_in_circles_are_counted_once() -> None:
    data = bytearray(saved(Image.new("L", (8, 8)), "TIFF"))
    (first,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, first)
    struct.pack_into("<I", data, first + 2 + 12 * entries, first)
    assert images.count_tiff_pages(bytes(data), 100) == 1


def test_a_pdf_page_is_drawn_with_the_dots_per_inch_asked_for() -> None:
    pages = pages_of(pdf((144, 72), (72, 144)), ImageLimits(pdf_dpi=100))
    assert [p.image.shape for p in pages] == [(100, 200, 3), (200, 100, 3)]
    assert rgb(pages[0].image, 10, 90) == RED
    assert rgb(pages[0].image, 190, 10) == WHITE


def test_a_large_pdf_sheet_is_drawn_with_fewer_dots() -> None:
    (page,) = pages_of(pdf((14_400, 7_200)), ImageLimits(max_pdf_side=1_000))
    assert page.image.shape == (500, 1_000, 3)


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_a_drawn_pdf_page_never_exceeds_the_limits(width: float, height: float) -> None:
    limits = ImageLimits(max_pixels=1_000_000, max_pdf_side=3_000)
    scale = images.pdf_scale(width, height, limits)
    assert max(width, height) * scale <= 3_000 * 1.001
    assert width * scale * height * scale <= 1_000_000
    assert scale <= 200 / 72


def test_a_pdf_picture_that_declares_gigabytes_is_refused_before_it_is_decoded() -> None:
    bomb = (
        "5 0 obj<</Type/XObject/Subtype/Image/Width 60000/Height 60000/ColorSpace/DeviceRGB"
        "/BitsPerComponent 8/Filter/FlateDecode/Length 8>>stream\n12345678\nendstream endobj"
    )
    (page,) = pages_of(pdf((100, 100), content="q 100 0 0 100 0 0 cm /P Do Q", objects=bomb))
    assert isinstance(page.image, ImageTooLarge)


def test_pdfs_may_be_drawn_in_many_threads_at_once() -> None:
    data = pdf((144, 72), (72, 144))
    shapes: list[list[tuple[int, ...]]] = []
    threads = [
        threading.Thread(target=lambda: shapes.append([p.image.shape for p in pages_of(data)]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shapes == [[(200, 400, 3), (400, 200, 3)]] * 8


BAD: dict[str, tuple[bytes, type[OcrError]]] = {
    "no bytes": (b"", EmptyInput),
    "text": (b"Dear Sir or Madam", UnsupportedFormat),
    "zeros": (bytes(1000), UnsupportedFormat),
    "ico": (b"\0\0\1\0\1\0" + bytes(100), UnsupportedFormat),
    "truncated JPEG": (saved(corners(400, 300), "JPEG")[:2000], CorruptInput),
    "truncated PNG": (saved(corners(400, 300), "PNG")[:300], CorruptInput),
    "truncated GIF": (saved(corners(), "GIF")[:15], CorruptInput),
    "truncated WebP": (saved(corners(), "WEBP")[:60], CorruptInput),
    "truncated BMP": (saved(corners(), "BMP")[:500], CorruptInput),
    "truncated TIFF": (saved(corners(), "TIFF")[:6], CorruptInput),
    "JPEG magic only": (b"\xff\xd8\xff", CorruptInput),
    "truncated PDF": (b"%PDF-1.7\n", CorruptInput),
    "JPEG of endless scans": (b"\xff\xd8\xff" + b"\xff\xda\0" * 600, CorruptInput),
    "1 x 1": (saved(Image.new("RGB", (1, 1)), "PNG"), ImageTooSmall),
    "3 x 400": (saved(Image.new("RGB", (3, 400)), "PNG"), ImageTooSmall),
    "20,000 x 20,000": (png_header(20_000, 20_000), ImageTooLarge),
    "8,001 x 8,001": (png_header(8_001, 8_001), ImageTooLarge),
    "2 billion x 2 billion": (png_header(2**31 - 1, 2**31 - 1), ImageTooLarge),
    "many bytes": (b"\xff\xd8\xff" + bytes(LIMITS.max_bytes), DocumentTooLarge),
    "pages": (tiff(*[Image.new("1", (8, 8))] * 101), TooManyPages),
    "PDF pages": (pdf(*[(72.0, 72.0)] * 101), TooManyPages),
    "PDF with a password": (encrypted_pdf(), PasswordProtected),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_the_error_that_names_it(name: str) -> None:
    data, expected = BAD[name]
    with pytest.raises(OcrError) as caught:
        _first_error(decode_document(data, LIMITS))
    assert type(caught.value) is expected
    assert len(str(caught.value)) > 10


def _first_error(pages: Iterator[DecodedPage]) -> None:
    for page in pages:
        if isinstance(page.image, OcrError):
            raise page.image


def with_scans(image: Image.Image, scans: int) -> bytes:
    """A progressive JPEG whose last scan is repeated until there are so many."""
    data = saved(image, "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - images.jpeg_outline(data).scans + 1) + data[-2:]


def test_scans_of_a_jpeg_are_counted_and_bytes_that_only_look_like_them_are_not() -> None:
    plain, progressive = saved(corners(), "JPEG"), saved(corners(), "JPEG", progressive=True)
    assert images.jpeg_outline(plain).scans == 1
    assert 2 < images.jpeg_outline(progressive).scans <= 12
    marks = b"\xff\xda" * 500
    comment = b"\xff\xfe" + (len(marks) + 2).to_bytes(2, "big") + marks
    video_after_the_photograph = plain[:2] + comment + plain[2:] + marks
    assert images.jpeg_outline(video_after_the_photograph).scans == 1
    assert decode_image(video_after_the_photograph, LIMITS).shape == decode_image(plain, LIMITS).shape


def test_a_jpeg_of_many_scans_is_refused_before_it_costs_anything() -> None:
    assert decode_image(with_scans(corners(), images.MAX_JPEG_SCANS), LIMITS).shape == (24, 40, 3)
    with pytest.raises(CorruptInput, match="61 scans"):
        decode_image(with_scans(corners(), images.MAX_JPEG_SCANS + 1), LIMITS)


def test_a_large_jpeg_may_have_fewer_scans_than_a_small_one() -> None:
    limits = ImageLimits(max_pixels=40 * 24)
    assert decode_image(with_scans(corners(), 20), limits).shape == (24, 40, 3)
    with pytest.raises(ImageTooLarge, match="21 scans of 40 x 24 pixels"):
        decode_image(with_scans(corners(), 21), limits)


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"keep_rgb": True}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_has_the_pixels_that_pillow_decodes(mode: str, options: dict[str, object], scale: int) -> None:
    data = saved(corners(330, 190).convert(mode), "JPEG", **options)
    with Image.open(io.BytesIO(data)) as opened:
        opened.draft(None, (330 // scale, 190 // scale))
        wanted = np.asarray(opened.convert("RGB"))[..., ::-1]
    [page] = pages_of(data, ImageLimits(kept_jpeg_side=330 // scale))
    assert np.array_equal(page.image, wanted)


def test_the_outline_of_a_jpeg_tells_its_size_and_whether_its_end_is_there() -> None:
    data = saved(corners(330, 190), "JPEG")
    assert images.jpeg_outline(data) == images.JpegOutline(1, (330, 190), complete=True)
    assert images.jpeg_outline(data[:-2]) == images.JpegOutline(1, (330, 190), complete=False)


@pytest.mark.parametrize("end", [b"", b"\xff\xd9"])
def test_a_jpeg_with_two_frame_headers_is_decoded_at_no_size_that_was_not_checked(end: bytes) -> None:
    data = saved(corners(330, 190), "JPEG")
    at = data.index(b"\xff\xc0")
    frame = data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]
    large = frame[:5] + (20_000).to_bytes(2, "big") * 2 + frame[9:]
    with pytest.raises(InputError):
        decode_image(data[:at] + large + data[at:-2] + end, ImageLimits(max_pixels=330 * 190))


@given(st.binary(max_size=300))
def test_scans_are_counted_in_any_bytes(data: bytes) -> None:
    assert 0 <= images.jpeg_outline(b"\xff\xd8" + data).scans <= 150


def test_a_pdf_is_not_an_image() -> None:
    with pytest.raises(UnsupportedFormat, match="PDF"):
        decode_image(pdf((72, 72)), LIMITS)


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"max_pages": 0},
        {"pdf_dpi": 0.0},
        {"max_pixels": 10**9},
        {"min_side": 100, "max_pixels": 99},
    ):
        with pytest.raises(ValueError, match=r"max_pixels|positive"):
            ImageLimits(**wrong)


SEEDS = [saved(corners(), kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")] + [pdf((72, 72))]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SEEDS), st.data())
def test_flipped_and_cut_files_never_raise_anything_but_an_ocr_error(
    seed: bytes, draw: st.DataObject
) -> None:
    data = bytearray(seed)
    for at in draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=8)):
        data[at] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(data)))
    limits = ImageLimits(max_pixels=100_000, max_pages=5)
    try:
        for page in decode_document(bytes(data[:cut]), limits):
            assert isinstance(page.image, OcrError) or page.image.shape[2] == 3
    except OcrError:
        pass


def test_the_decoders_write_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(saved(corners(), "TIFF", compression="tiff_lzw"))
    data[10:200] = bytes(190)
    pages_of(bytes(data))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("width", "height", "kept", "scale"),
    [
        (4961, 7016, 3000, 2),
        (4000, 3000, 3000, 1),
        (5999, 100, 3000, 1),
        (6000, 100, 3000, 2),
        (12_000, 9_000, 3000, 4),
        (60_000, 500, 3000, 8),
        (60_000, 500, None, 1),
    ],
)
def test_by_how_much_a_jpeg_is_decoded_smaller(width: int, height: int, kept: int | None, scale: int) -> None:
    assert images.jpeg_scale(width, height, kept) == scale


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_jpeg_that_is_decoded_smaller_says_how_large_it_is_as_displayed(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    large = saved(corners(160, 96).resize((320, 192)), "JPEG", exif=exif)
    small = ImageLimits(kept_jpeg_side=100)
    (whole,), (page,) = decode_document(large, LIMITS), decode_document(large, small)
    assert not isinstance(whole.image, OcrError)
    assert not isinstance(page.image, OcrError)
    assert page.displayed == whole.image.shape[:2]
    assert (page.image.shape[0] * 2, page.image.shape[1] * 2) == page.displayed
    assert whole.displayed is None


def test_a_jpeg_is_refused_by_the_size_that_it_declares_however_it_is_decoded() -> None:
    limits = ImageLimits(max_pixels=1_000, kept_jpeg_side=10)
    with pytest.raises(ImageTooLarge, match="320 x 192"):
        list(decode_document(saved(corners(320, 192), "JPEG"), limits))


def test_a_jpeg_so_flat_that_nothing_is_left_at_an_eighth_has_a_typed_error() -> None:
    flat = saved(Image.new("CMYK", (3200, 4)), "JPEG")
    with pytest.raises(ImageTooSmall):
        pages_of(flat, ImageLimits(kept_jpeg_side=400))
