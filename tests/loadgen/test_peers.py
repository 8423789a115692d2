"""Other systems: their environments, their settings, and the process that drives them."""

import json
import subprocess
import sys

import pytest

from loadgen.corpus import Document
from loadgen.errors import PeerUnavailable
from loadgen.peers import environment, measure
from loadgen.peers.measure import PEERS, Peer, Setting
from services.common.models import ModelFiles, fetch

PAGES = ("one.png", "two.png", "three.png", "four.png")


@pytest.mark.parametrize("name", PEERS)
def test_every_requirement_of_a_peer_is_pinned(name: str) -> None:
    rows = environment.requirements(name).read_text().splitlines()
    packages = [row for row in rows if row and not row.startswith((" ", "#"))]
    assert packages
    assert all("==" in row for row in packages)
    assert PEERS[name].version.count(".") >= 4


@pytest.mark.model
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_runs_the_weights_of_ours_from_local_files(name: str) -> None:
    folder = fetch(PEERS[name].models)
    for setting in PEERS[name].settings(2):
        given = [str(value) for value in setting.values.values() if str(folder) in str(value)]
        assert len(given) == 2


def test_other_pins_make_another_environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = environment.folder("rapidocr")
    pins = tmp_path / "rapidocr.txt"
    pins.write_text("rapidocr==0\n")
    monkeypatch.setattr(environment, "requirements", lambda name: pins)
    assert environment.folder("rapidocr") != first
    assert first.parent == tmp_path / "ocr-serving" / "peers"


def test_an_environment_that_cannot_be_made_is_an_error_with_pips_reason(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(name, python):
        raise subprocess.CalledProcessError(1, "pip", stderr="looking\nno such package\n")

    monkeypatch.setattr(environment, "_install", refuse)
    monkeypatch.setattr(environment.venv, "create", lambda place, with_pip: place.mkdir(parents=True))
    with pytest.raises(PeerUnavailable, match="no such package"):
        environment.python("rapidocr")


@pytest.fixture
def driven(monkeypatch, tmp_path):
    """A peer whose pages take the seconds of its setting, driven by this Python."""
    script = tmp_path / "driver.py"
    script.write_text(
        "import json, sys\n"
        "said = json.loads(sys.argv[2])\n"
        "for line in sys.stdin:\n"
        "    if said['seconds'] < 0: sys.exit('out of paper')\n"
        "    lines = [{'text': line.strip()[-7:]}]\n"
        "    print(json.dumps({'seconds': said['seconds'], 'lines': lines}), flush=True)\n"
    )
    monkeypatch.setattr(measure, "DRIVER", script)
    monkeypatch.setattr(environment, "python", lambda name: sys.executable)
    return [Document(tmp_path / name, b"") for name in PAGES]


def peer(*seconds: float) -> Peer:
    return Peer(
        "p", "The peer", "e", "none", lambda cores: [Setting(f"at {s}", {"seconds": s}) for s in seconds]
    )


def test_the_fastest_setting_reads_all_pages(driven) -> None:
    outcome = measure.measure(peer(3.0, 1.0, 2.0), driven, cores=2, choose_from=2)
    assert outcome.setting == "at 1.0"
    assert outcome.tried == {"at 3.0": 3.0, "at 1.0": 1.0, "at 2.0": 2.0}
    assert outcome.seconds_a_page == 1.0
    assert outcome.texts() == {name: [name[-7:]] for name in PAGES}


def test_a_peer_that_ends_is_an_error_with_its_last_words(driven) -> None:
    with pytest.raises(PeerUnavailable, match="The peer ended with status 1: out of paper"):
        measure.measure(peer(-1.0), driven, cores=2, choose_from=2)


def test_settings_are_plain_values_that_pass_as_text(monkeypatch, tmp_path) -> None:
    files = ModelFiles("m", "det", "onnx", tmp_path / "m.onnx", None, "", (), (0, 0, 0), (1, 1, 1))
    monkeypatch.setattr(measure, "resolve", lambda name, role: files)
    for one in PEERS.values():
        for setting in one.settings(2):
            assert json.loads(json.dumps(setting.values)) == setting.values


def test_without_pages_to_choose_from_the_likeliest_setting_is_taken_unseen(driven) -> None:
    outcome = measure.measure(peer(3.0, 1.0), driven, cores=2, choose_from=0)
    assert outcome.setting == "at 3.0"
    assert outcome.tried == {}
