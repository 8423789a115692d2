"""Settings: one frozen, validated record per process, the meaning beside the default.

The same name everywhere: `max_batch_size` is the flag `--max-batch-size`, the environment variable
`OCR_MAX_BATCH_SIZE` and the key `max_batch_size` in the TOML file given by `--config`. Flags win over
the environment, the environment over the file, the file over the default. Read once, in `__main__`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

Port = Annotated[int, Field(ge=-1, le=65535)]
Positive = Annotated[int, Field(ge=1)]


def _split(value: object) -> object:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    return tuple(part.strip() for item in value for part in str(item).split(",") if part.strip())


CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Several words separated by commas, in flags, environment and file alike."""

_CONFIG = SettingsConfigDict(env_prefix="OCR_", frozen=True, extra="forbid")


class ServerSettings(BaseSettings):
    """What every process of the pipeline can be told."""

    model_config = _CONFIG
    _argv: ClassVar[Sequence[str]] = ()
    _config: ClassVar[Path | None] = None
    _prog: ClassVar[str | None] = None

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(0, description="Port of the gRPC server; 0 takes a free one.")
    metrics_port: Port = Field(
        -1, description="Port of the Prometheus metrics; 0 takes a free one, -1 is off."
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="Seconds that accepted work may take to finish after SIGTERM."
    )
    max_message_mb: Positive = Field(64, description="Largest gRPC message in either direction, in MiB.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")
    log_format: Literal["json", "text"] = Field("json", description="One JSON object a line, or plain text.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: constructor, flags, environment, file."""
        flags: CliSettingsSource[Any] = CliSettingsSource(
            settings_cls,
            cli_parse_args=list(cls._argv),
            cli_prog_name=cls._prog,
            cli_kebab_case=True,
            cli_implicit_flags=True,
            cli_avoid_json=True,
        )
        file = TomlConfigSettingsSource(settings_cls, toml_file=cls._config)
        return init_settings, flags, env_settings, file


class EngineSettings(BaseSettings):
    """Which model runs on what. Shared by detector and recognizer."""

    model_config = _CONFIG

    engine: str = Field(
        "auto",
        description="openvino, paddle, simulated, or auto: paddle on a GPU, else openvino if installed.",
    )
    models: str = Field(
        "auto",
        description="A model set (`ocrctl models list`), a folder or file, det=PATH,rec=PATH, or auto.",
    )
    models_dir: Path | None = Field(
        None, description="Where model sets are kept; default: the user's cache folder."
    )
    devices: CommaList = Field(
        ("auto",),
        min_length=1,
        description="One or more of cpu, gpu:0, gpu:1 …, separated by commas; auto: a GPU where Paddle has"
        " one, else cpu.",
    )
    predictors: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Predictor processes for each device; 0: one for each core of a CPU, four at most, and"
        " one for a GPU.",
    )
    threads: Annotated[int, Field(ge=0)] = Field(
        0, description="CPU threads of each predictor; 0: its share of the cores."
    )
    run_timeout_s: float = Field(
        20.0,
        gt=0,
        description="A batch that runs longer is stuck: its process is replaced. Not ready after half of it.",
    )
    start_timeout_s: float = Field(
        600.0, gt=0, description="Loading and warm-up that take longer have failed."
    )
    gpu_memory_mb: Positive = Field(2000, description="Paddle: initial size of the GPU memory pool, in MiB.")
    gpu_fp16: bool = Field(False, description="Paddle on a GPU: compute in half precision.")
    gpu_tensorrt: bool = Field(
        False, description="Paddle on a GPU: run through TensorRT, one engine per shape set."
    )
    gpu_tensorrt_cache: Path | None = Field(
        None, description="Folder that keeps what TensorRT compiled; without, every start compiles anew."
    )
    simulated_fixed_ms: float = Field(5.0, ge=0, description="Engine simulated: milliseconds for each batch.")
    simulated_ms_per_megapixel: float = Field(
        50.0, ge=0, description="Engine simulated: milliseconds for each million pixels of a batch."
    )


class BatchSettings(BaseSettings):
    """How work is gathered. Shared by detector and recognizer; the defaults are those of the recognizer."""

    model_config = _CONFIG

    max_batch_size: Positive = Field(
        4, description="Most items in one batch. A CPU gains nothing above 4; a GPU wants more."
    )
    max_queue_delay_ms: float = Field(
        0.0,
        ge=0,
        description="Milliseconds that an idle predictor waits for more items, from the oldest arrival."
        " Batches form while predictors are busy, so waiting seldom gains anything.",
    )
    max_batch_pixels: Positive = Field(2_000_000, description="Most pixels, padding included, in one batch.")
    queue_capacity: Positive = Field(
        4096, description="Items of each class, online and bulk, that may wait; more are refused at the door."
    )
    bulk_max_age_ms: float = Field(
        2000.0, gt=0, description="However busy online work is, bulk leads a batch at least this often."
    )


S = TypeVar("S", bound=ServerSettings)


def load(settings: type[S], argv: Sequence[str], *, prog: str | None = None) -> S:
    """Read the settings of a process from flags, environment and file.

    Ends the process with a message for the user when a value is not acceptable.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path)
    known, rest = first.parse_known_args(argv)
    if known.config is not None and not known.config.is_file():
        raise SystemExit(f"--config {known.config}: no such file")
    reader: type[S] = type(
        settings.__name__, (settings,), {"_argv": tuple(rest), "_config": known.config, "_prog": prog}
    )
    reader.__doc__ = settings.__doc__
    try:
        return reader()
    except ValidationError as error:
        raise SystemExit("\n".join(_explain(problem) for problem in error.errors())) from None


def _explain(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"]) or "settings"
    flag = "--" + name.replace("_", "-")
    return f"{flag} (OCR_{name.upper()}) = {problem.get('input')!r}: {problem['msg']}"
