"""Flags, environment and file are one set of names."""

import pytest

from services.common.engines.base import GpuOptions, SimulatedCost
from services.common.settings import BatchSettings, EngineSettings, ServerSettings, load


class Settings(ServerSettings, EngineSettings, BatchSettings):
    """A process for the tests."""


def test_defaults_need_no_source() -> None:
    assert load(Settings, []).max_batch_size == 4


def test_a_flag_beats_the_environment_and_the_environment_beats_the_file(tmp_path, monkeypatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_batch_size = 3\nmax_queue_delay_ms = 3.0\npredictors = 3\n")
    monkeypatch.setenv("OCR_MAX_BATCH_SIZE", "2")
    monkeypatch.setenv("OCR_MAX_QUEUE_DELAY_MS", "2")
    read = load(Settings, ["--config", str(file), "--max-batch-size", "1"])
    assert (read.max_batch_size, read.max_queue_delay_ms, read.predictors) == (1, 2.0, 3)


@pytest.mark.parametrize("argv", [["--devices", "gpu:0,gpu:1"], ["--devices", "gpu:0", "--devices", "gpu:1"]])
def test_several_devices_are_words_with_commas_or_flags_repeated(argv) -> None:
    assert load(Settings, argv).devices == ("gpu:0", "gpu:1")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--port", "70000"], ("--port", "OCR_PORT", "70000", "65535")),
        (["--max-batch-size", "0"], ("--max-batch-size", "0", "greater than or equal to 1")),
        (["--log-format", "xml"], ("--log-format", "xml", "json")),
    ],
)
def test_a_bad_value_ends_with_the_flag_the_variable_and_the_limit(argv, words) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Settings, argv)
    assert all(word in str(caught.value) for word in words)


def test_an_unknown_key_in_the_file_is_refused(tmp_path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_batchsize = 3\n")
    with pytest.raises(SystemExit, match="max-batchsize"):
        load(Settings, ["--config", str(file)])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SystemExit, match=r"nowhere\.toml: no such file"):
        load(Settings, ["--config", "nowhere.toml"])


def test_an_unknown_flag_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        load(Settings, ["--max-batchsize", "3"])
    assert "--max-batchsize" in capsys.readouterr().err


def test_an_engine_by_itself_has_the_defaults_of_the_settings() -> None:
    settings = load(Settings, [])
    assert GpuOptions() == GpuOptions(
        memory_pool_mb=settings.gpu_memory_mb,
        fp16=settings.gpu_fp16,
        tensorrt=settings.gpu_tensorrt,
        tensorrt_cache=settings.gpu_tensorrt_cache,
    )
    assert SimulatedCost() == SimulatedCost(
        fixed_ms=settings.simulated_fixed_ms, ms_per_megapixel=settings.simulated_ms_per_megapixel
    )


def test_without_any_device_nothing_can_run() -> None:
    with pytest.raises(SystemExit, match="--devices"):
        load(Settings, ["--devices", ""])


def test_settings_cannot_be_changed_after_they_were_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(Settings, []).port = 1
