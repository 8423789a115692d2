"""Settings of the recognizer; those shared with other processes are in `services.common.settings`."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from services.common.settings import BatchSettings, EngineSettings, Positive, ServerSettings
from services.recognizer.preprocess import WIDTH_LADDER


def _numbers(value: object) -> object:
    """`160,320` and `["160", "320"]`, as flags and environment give them; anything else stays as it is."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        return value
    return tuple(part.strip() for word in words for part in str(word).split(","))


def _rising(ladder: tuple[int, ...]) -> tuple[int, ...]:
    if list(ladder) != sorted(set(ladder)):
        raise ValueError(f"the widths must rise, and these do not: {ladder}")
    return ladder


Rung = Annotated[int, Field(ge=32, le=8192, multiple_of=8)]
Ladder = Annotated[tuple[Rung, ...], NoDecode, BeforeValidator(_numbers), AfterValidator(_rising)]


class RecognizerSettings(ServerSettings, EngineSettings, BatchSettings):
    """Reads lines of text."""

    width_ladder: Ladder = Field(
        WIDTH_LADDER,
        min_length=1,
        description="Rising widths in pixels that lines are padded to; a wider line is squeezed to the last.",
    )
    max_batch_pixels: Positive = Field(
        200_000,
        description="Most pixels, padding included, in one batch. A wide line fills a CPU alone, and each"
        " batch size of each width is warmed up; a GPU wants more.",
    )
    max_image_mb: Positive = Field(8, description="Largest encoded line, in MiB.")
    max_image_pixels: Positive = Field(16_000_000, description="Most pixels of a line, as declared.")
