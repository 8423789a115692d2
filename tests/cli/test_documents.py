"""Which files a command line means."""

from pathlib import Path

import pytest

from services.cli.documents import content_type, expand
from services.cli.errors import UsageError


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
