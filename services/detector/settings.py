"""Settings of the detector; those shared with other processes are in `services.common.settings`."""

from typing import Annotated

from pydantic import Field

from services.common.page_size import GRID
from services.common.settings import BatchSettings, EngineSettings, Positive, ServerSettings

Probability = Annotated[float, Field(gt=0, lt=1)]


class DetectorSettings(ServerSettings, EngineSettings, BatchSettings):
    """Finds the lines of text on a page."""

    max_batch_size: Positive = Field(
        1, description="Most pages in one batch. A CPU gains nothing above 1, a GPU does."
    )
    max_batch_pixels: Positive = Field(8_000_000, description="Most pixels, padding included, in one batch.")
    queue_capacity: Positive = Field(256, description="Pages of each class, online and bulk, that may wait.")

    max_side: int = Field(
        960,
        ge=10 * GRID,
        multiple_of=GRID,
        description="Longest side, in pixels, that the model sees; a larger page is shrunk to it.",
    )
    threshold: Probability = Field(0.3, description="A pixel of this text probability belongs to a region.")
    box_threshold: Probability = Field(0.6, description="Least mean probability of a region.")
    unclip_ratio: float = Field(1.5, gt=0, description="How far a region is grown to hold its whole text.")
    max_candidates: Positive = Field(1000, description="Most regions looked at on one page.")
    max_image_mb: Positive = Field(32, description="Largest encoded image, in MiB.")
    max_image_pixels: Positive = Field(64_000_000, description="Most pixels of an image, as declared.")
