"""Seconds a page and texts of a peer, at the best of a few settings that its own documents name."""

import contextlib
import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from loadgen.corpus import Document
from loadgen.errors import PeerUnavailable
from loadgen.peers import environment
from services.common.models import resolve

DRIVER = Path(__file__).with_name("driver.py")
WARM_UP = 3
"""Pages that are read before anything counts; one where settings are compared."""
QUIET_ENVIRONMENT = {
    "PADDLE_PDX_DISABLE_MODEL_SOURCE_CHECK": "True",  # all models are local files
    "GLOG_minloglevel": "2",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    """What a peer is told, and how a person would say it."""

    label: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """Another system: its package, the package of its engine, and the model set whose weights it runs."""

    name: str
    title: str
    engine: str
    models: str
    settings: Callable[[int], Sequence[Setting]]

    @property
    def version(self) -> str:
        """Of its package and of its engine's."""
        both = (
            f"{package} {environment.version(self.name, package)}" for package in (self.name, self.engine)
        )
        return ", ".join(both)


def _rapidocr_settings(cores: int) -> tuple[Setting, ...]:
    """The engine and the weights are fixed; threads, batches and the page's size are the user's to choose."""
    files = {role: str(resolve("ppocr-v6-small", role).model) for role in ("det", "rec")}
    base = {
        "Det.engine_type": "openvino",
        "Rec.engine_type": "openvino",
        "Cls.engine_type": "openvino",
        "Det.model_path": files["det"],
        "Rec.model_path": files["rec"],
        "Global.use_cls": False,
    }
    threads = {"EngineConfig.openvino.inference_num_threads": cores}
    hint = {"EngineConfig.openvino.performance_hint": "LATENCY"}
    page = {"Det.limit_side_len": 960, "Det.limit_type": "max"}
    small = f"no line direction, longest side 960, {cores} threads"
    return (
        Setting(
            f"{small}, latency hint, rec_batch_num 8", base | threads | hint | page | {"Rec.rec_batch_num": 8}
        ),
        Setting(f"{small}, rec_batch_num 6", base | threads | page),
        Setting("no line direction, else as it comes", base),
    )


def _paddleocr_settings(cores: int) -> tuple[Setting, ...]:
    """Without the models for orientation and unwarping, which have no counterpart here."""
    base: dict[str, Any] = {"device": "cpu", "enable_mkldnn": True, "cpu_threads": cores}
    for role, task in (("det", "detection"), ("rec", "recognition")):
        base[f"text_{task}_model_name"] = f"PP-OCRv5_mobile_{role}"
        base[f"text_{task}_model_dir"] = str(
            resolve("ppocr-v5-mobile", "det" if role == "det" else "rec").model.parent
        )
    for part in ("doc_orientation_classify", "doc_unwarping", "textline_orientation"):
        base[f"use_{part}"] = False
    page = {"text_det_limit_side_len": 960, "text_det_limit_type": "max"}
    small = f"longest side 960, {cores} threads"
    return (
        Setting(f"{small}, text_recognition_batch_size 8", base | page | {"text_recognition_batch_size": 8}),
        Setting(f"{small}, text_recognition_batch_size 1", base | page),
        Setting(f"{cores} threads, else as it comes", base),
    )


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("rapidocr", "RapidOCR in process, OpenVINO", "openvino", "ppocr-v6-small", _rapidocr_settings),
        Peer(
            "paddleocr",
            "PaddleOCR in process, oneDNN",
            "paddlepaddle",
            "ppocr-v5-mobile",
            _paddleocr_settings,
        ),
    )
}


@dataclass(frozen=True)
class Reading:
    """One page as a peer read it."""

    name: str
    seconds: float
    lines: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Outcome:
    """A peer over all pages at its best setting; `tried` has the seconds a page of each setting on a few."""

    peer: str
    setting: str
    readings: tuple[Reading, ...]
    tried: Mapping[str, float]

    @property
    def seconds_a_page(self) -> float:
        """Mean over all pages."""
        return mean(reading.seconds for reading in self.readings)

    def texts(self) -> dict[str, list[str]]:
        """The texts of the lines by document."""
        return {reading.name: [line["text"] for line in reading.lines] for reading in self.readings}


class Driven:
    """A peer at work in its own process."""

    def __init__(self, peer: Peer, setting: Setting) -> None:
        self._peer = peer
        words = [str(DRIVER), peer.name, json.dumps(setting.values)]
        command = [str(environment.python(peer.name)), "-I", *words]
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            command, env=os.environ | QUIET_ENVIRONMENT, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip

    def read(self, document: Document) -> Reading:
        """Have one page read."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{document.path.absolute()}\n")
            self._process.stdin.flush()
        if not (said := self._process.stdout.readline()):
            raise self._ended()
        found = json.loads(said)
        return Reading(document.name, found["seconds"], tuple(found["lines"]))

    def _ended(self) -> PeerUnavailable:
        self._process.communicate()
        self._log.seek(0)
        why = (self._log.read().strip().splitlines() or ["it said nothing"])[-1]
        return PeerUnavailable(f"{self._peer.title} ended with status {self._process.returncode}: {why}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


@contextlib.contextmanager
def warm(peer: Peer, setting: Setting, documents: Sequence[Document]) -> Iterator[Driven]:
    """A peer that has read these pages already."""
    with contextlib.closing(Driven(peer, setting)) as driven:
        for document in documents:
            driven.read(document)
        yield driven


def best_setting(peer: Peer, documents: Sequence[Document], cores: int) -> tuple[Setting, dict[str, float]]:
    """The setting with the fewest seconds a page on these documents, and what each took.

    Without documents the likeliest, which is the first.
    """
    tried: dict[str, float] = {}
    settings = {setting.label: setting for setting in peer.settings(cores)}
    for label, setting in settings.items() if documents else ():
        with warm(peer, setting, documents[:1]) as driven:
            tried[label] = mean(driven.read(document).seconds for document in documents)
        log.info("%s, %s: %.3f s a page", peer.title, label, tried[label])
    return settings[min(tried or settings, key=lambda label: tried.get(label, 0.0))], tried


def measure(peer: Peer, documents: Sequence[Document], *, cores: int, choose_from: int) -> Outcome:
    """All pages at the setting that is fastest on the first `choose_from`.

    Raises:
        PeerUnavailable: its environment cannot be made, or it failed.
    """
    setting, tried = best_setting(peer, documents[:choose_from], cores)
    with warm(peer, setting, documents[:WARM_UP]) as driven:
        outcome = Outcome(peer.name, setting.label, tuple(map(driven.read, documents)), tried)
    log.info("%s: %.3f s a page", peer.title, outcome.seconds_a_page)
    return outcome
