"""Which files a command line means."""

import os
import threading
from pathlib import Path

import pytest

from services.cli import documents
from services.cli.documents import content_type, display_name, expand
from services.cli.errors import UsageError
from services.common.errors import DocumentTooLarge


def test_a_folder_becomes_its_documents_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.pdf", "notes.md", ".hidden.png", "deep/c.tiff", ".git/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in expand([tmp_path])]
    assert found == ["a.pdf", "b.JPG", "deep/c.tiff"]


def test_a_named_file_is_taken_whatever_its_suffix_and_order_is_kept(tmp_path: Path) -> None:
    first, second = tmp_path / "z.scan", tmp_path / "a.jpg"
    first.touch()
    second.touch()
    assert expand([first, second]) == [first, second]


def test_what_does_not_exist_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        expand([tmp_path / "none.jpg"])
    with pytest.raises(UsageError, match="no documents"):
        expand([tmp_path])
    with pytest.raises(UsageError, match="No files"):
        expand([])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.JPEG", "image/jpeg"), ("a.pdf", "application/pdf"), ("a", "application/octet-stream")],
)
def test_content_type_goes_by_the_suffix(name: str, kind: str) -> None:
    assert content_type(Path(name)) == kind


def test_a_folder_that_cannot_be_listed_stays_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    (tmp_path / "a.png").touch()
    listed = os.scandir

    def scandir(folder: str) -> object:  # permissions do not stop root, who may run the tests
        if Path(folder) == locked:
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert expand([tmp_path]) == [tmp_path / "a.png", locked]


def test_what_may_not_be_looked_at_stays_in_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    assert expand([tmp_path / "x.jpg"]) == [tmp_path / "x.jpg"]


def test_a_name_that_is_no_utf8_can_be_shown() -> None:
    assert display_name(Path(os.fsdecode(b"bad\xff.jpg"))) == "bad\ufffd.jpg"


def test_a_size_over_the_limit_is_refused_before_reading(tmp_path: Path) -> None:
    large = tmp_path / "large.jpg"
    with large.open("wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(DocumentTooLarge, match="max_document_mb") as refusal:
        documents.read(large)
    assert "ocrctl" not in str(refusal.value)


def test_devices_and_folders_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="neither a file nor a pipe"):
        documents.read(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        documents.read(tmp_path)


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False)])
def test_a_pipe_is_read_up_to_the_limit(size: int, fits: bool, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(bytes(size),))
    writer.start()
    if fits:
        assert documents.read(pipe, 100) == bytes(100)
    else:
        with pytest.raises(DocumentTooLarge):
            documents.read(pipe, 100)
    writer.join()
