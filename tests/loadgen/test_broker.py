"""A broker for the time of a measurement."""

import pytest

from loadgen import broker as module
from loadgen.broker import LOCAL, broker
from loadgen.errors import BrokerFailed


@pytest.mark.parametrize("asked", ["", "127.0.0.1:9092"])
def test_a_broker_of_others_is_taken_as_it_is(asked: str) -> None:
    with broker(asked) as address:
        assert address == asked


def test_the_local_broker_ends_with_the_block(monkeypatch, tmp_path) -> None:
    script, ended = tmp_path / "local.py", tmp_path / "ended"
    script.write_text(
        "import pathlib, signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(ended)!r}).touch(), sys.exit()))\n"
        "print('BOOTSTRAP 127.0.0.1:7', flush=True)\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(module, "SCRIPT", script)
    with broker(LOCAL) as address:
        assert address == "127.0.0.1:7"
        assert not ended.exists()
    assert ended.exists()


def test_a_broker_that_does_not_start_is_an_error_with_the_scripts_words(monkeypatch, tmp_path) -> None:
    script = tmp_path / "local.py"
    script.write_text("import sys\nsys.exit('error: there is no java here')\n")
    monkeypatch.setattr(module, "SCRIPT", script)
    with pytest.raises(BrokerFailed, match="no java here; or name a broker"), broker(LOCAL):
        pass
