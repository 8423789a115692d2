"""Pictures of what was read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from services.cli import overlay
from services.cli.errors import UsageError
from services.cli.overlay import Overlays, font_for
from services.common.pb import ocr_pb2 as pb

BOX = ((20, 30), (180, 30), (180, 60), (20, 60))


@pytest.fixture
def no_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(overlay, "FONT_FOLDERS", ())
    overlay._installed_fonts.cache_clear()
    yield
    overlay._installed_fonts.cache_clear()


def result(*texts: str, pages: int = 1, size: tuple[int, int] = (300, 200)) -> pb.Result:
    corners = [pb.Point(x=x, y=y) for x, y in BOX]
    lines = [pb.Line(text=text, points=corners, page=1) for text in texts]
    numbered = [pb.Page(number=n + 1, width=size[0], height=size[1]) for n in range(pages)]
    return pb.Result(status=pb.OK, lines=lines, pages=numbered)


def page(path: Path, size: tuple[int, int] = (300, 200), **options: object) -> Path:
    Image.new("RGB", size, "#808080").save(path, **options)
    return path


def coloured(picture: Image.Image) -> int:
    """Pixels that are not grey: boxes and text."""
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    return int(((pixels.max(axis=2) - pixels.min(axis=2)) > 60).sum())


def test_boxes_are_drawn_on_the_page_and_text_beside_it(tmp_path: Path) -> None:
    (written,) = Overlays(tmp_path / "out").write(page(tmp_path / "a.png"), result("TOTAL 12.00"))
    with Image.open(written) as picture:
        assert picture.size == (600, 200)
        assert coloured(picture.crop((0, 0, 300, 200))) > 100
        assert coloured(picture.crop((300, 0, 600, 200))) > 30


@pytest.mark.usefixtures("no_fonts")
def test_without_a_font_that_has_the_characters_boxes_are_numbered_and_explained(tmp_path: Path) -> None:
    (written,) = Overlays(tmp_path / "out").write(page(tmp_path / "in.png"), result("发票号码", "总计"))
    with Image.open(written) as picture:
        assert picture.size == (300, 200)
        assert coloured(picture) > 100
    assert written.with_suffix(".txt").read_text("utf-8") == "1\t发票号码\n2\t总计\n"


@pytest.mark.usefixtures("no_fonts")
def test_latin_text_needs_no_installed_font() -> None:
    assert font_for("TOTAL 12.00") == ""
    assert font_for("发票") is None
    assert font_for("") == ""


def test_every_page_gets_its_picture(tmp_path: Path) -> None:
    pages = [Image.new("L", (300, 200), shade) for shade in (100, 200)]
    pages[0].save(tmp_path / "two.tiff", save_all=True, append_images=pages[1:])
    written = Overlays(tmp_path / "out").write(tmp_path / "two.tiff", result("x", pages=2))
    assert [path.name for path in written] == ["two-p1.jpg", "two-p2.jpg"]


def test_the_page_is_drawn_upright_as_the_result_counts_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    path = page(tmp_path / "turned.jpg", (200, 300), exif=exif.tobytes())
    (written,) = Overlays(tmp_path / "out").write(path, result("x", size=(300, 200)))
    with Image.open(written) as picture:
        assert picture.size == (600, 200)


def test_files_of_the_same_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    overlays = Overlays(tmp_path / "out")
    (tmp_path / "other").mkdir()
    first = overlays.write(page(tmp_path / "a.png"), result("x"))
    second = overlays.write(page(tmp_path / "other" / "a.png"), result("y"))
    assert first != second
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_document_that_was_not_read_gets_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no image")
    failed = pb.Result(status=pb.FAILED)
    assert Overlays(tmp_path / "out").write(tmp_path / "a.jpg", failed) == []


def test_a_slanted_box_is_drawn_as_it_is(tmp_path: Path) -> None:
    slanted = result("x")
    for point, (x, y) in zip(
        slanted.lines[0].points, ((20, 80), (150, 20), (160, 40), (30, 100)), strict=True
    ):
        point.x, point.y = x, y
    straight = Overlays(tmp_path / "s").write(page(tmp_path / "a.png"), result("x"))[0]
    other = Overlays(tmp_path / "o").write(tmp_path / "a.png", slanted)[0]
    with Image.open(straight) as one, Image.open(other) as two:
        assert ImageChops.difference(one, two).getbbox() is not None


@pytest.mark.usefixtures("no_fonts")
def test_files_of_earlier_runs_are_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "A.txt").write_text("mine")
    for _ in range(2):
        Overlays(out).write(page(tmp_path / "a.png"), result("总计"))
    assert sorted(path.name for path in out.iterdir()) == [
        "A.txt",
        "a-2.jpg",
        "a-2.txt",
        "a-3.jpg",
        "a-3.txt",
    ]
    assert (out / "A.txt").read_text() == "mine"


def test_the_folder_of_a_document_is_refused_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="choose a folder without documents"):
        Overlays(tmp_path / "link", [page(tmp_path / "a.jpg")])


def test_a_folder_that_cannot_be_made_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(UsageError, match="cannot be used"):
            Overlays(path)


def test_a_folder_that_cannot_be_written_is_wrong_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay.os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="nothing can be written"):
        Overlays(tmp_path)
