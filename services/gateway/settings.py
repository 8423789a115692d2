"""Settings of the gateway."""

from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from services.common.images import LARGEST_MAX_PIXELS, ImageLimits
from services.common.settings import CommaList, Port, Positive, ServerSettings
from services.common.topics import topics_problem
from services.gateway.fetch import WebLimits
from services.gateway.places import Place, is_web, place


class KafkaSettings(ServerSettings):
    """The Kafka side of the gateway. Without `kafka` there is none."""

    kafka: CommaList = Field((), description="HOST:PORT of one or more brokers; empty: no Kafka.")
    jobs_topic: str = Field("ocr.jobs", description="Topic that jobs are read from.")
    results_topic: str = Field("ocr.results", description="Topic that results are written to.")
    dlq_topic: str = Field("ocr.jobs.dlq", description="Topic for jobs that cannot be done, with the reason.")
    group: str = Field("ocr-gateway", description="Consumer group; gateways of one group share the jobs.")
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        "at_least_once",
        description=(
            "Whether a job may have its result twice when a gateway dies or loses its partitions. "
            "exactly_once writes results and offsets in transactions: it needs readers that see only what is "
            "committed, and a result waits for those of all jobs before it in its partition."
        ),
    )
    result_format: Literal["json", "protobuf"] = Field("json", description="Form of the results.")
    max_result_bytes: Positive = Field(1_000_000, description="Largest result that its topic accepts.")
    kafka_max_in_flight: Positive = Field(64, description="Kafka documents that are worked on at once.")
    kafka_max_in_flight_mb: Positive = Field(128, description="Their size together, in MiB.")
    kafka_max_span: Positive = Field(
        1024, description="Offsets of a partition between the oldest unfinished job and the newest taken."
    )
    kafka_max_attempts: Positive = Field(
        3,
        description=(
            "Tries of a job that kills or hangs a predictor or shows a defect, before it is a dead letter. "
            "Errors that pass, such as a backend that is away, do not count; bad input is never tried again."
        ),
    )
    kafka_assignment: Literal["range", "cooperative-sticky"] = Field(
        "range", description="How the group shares partitions; one value for all members."
    )
    kafka_group_instance_id: str | None = Field(
        None, description="A fixed name of this member: a quick restart then moves no partitions."
    )
    kafka_session_timeout_ms: Positive = Field(
        45_000, description="A member that is silent for so long loses its partitions to the others."
    )
    kafka_options: CommaList = Field(
        (), description="More options of the client, such as security_protocol=SSL,ssl_cafile=/etc/ca.pem."
    )

    @property
    def kafka_client_options(self) -> dict[str, str]:
        """`kafka_options` by name."""
        return dict(option.split("=", 1) for option in self.kafka_options)


class GatewaySettings(KafkaSettings):
    """The gateway takes documents from gRPC and Kafka, and has their lines found and read."""

    port: Port = Field(50051, description="Port of the gRPC server; 0 takes a free one.")
    detector: str = Field("127.0.0.1:50052", description="HOST:PORT of the detectors, or any gRPC target.")
    recognizer: str = Field("127.0.0.1:50053", description="HOST:PORT of the recognizers, likewise.")

    max_in_flight: Positive = Field(
        64, description="Documents of single calls at once, more are refused; of streams, more must wait."
    )
    max_concurrent_calls: int = Field(
        0,
        ge=0,
        description=(
            "gRPC calls of all kinds at once, health checks too; more are refused before their document is "
            "received. 0: four times max_in_flight, and 64."
        ),
    )
    max_pages_in_flight: Positive = Field(
        16, description="Decoded pages in memory at once, for each of the two classes of priority."
    )
    max_pages_per_document: Positive = Field(4, description="Pages of one document worked on side by side.")
    cpu_threads: int = Field(
        0, ge=0, description="Threads that decode and crop, for each class of priority; 0: one per core."
    )

    max_document_mb: Positive = Field(32, description="Largest document, in MiB.")
    max_pixels: int = Field(
        ImageLimits.max_pixels,
        ge=16,
        le=LARGEST_MAX_PIXELS,
        description="Most pixels that a page may declare.",
    )
    min_side: Positive = Field(ImageLimits.min_side, description="Shortest side of a page, in pixels.")
    max_pages: Positive = Field(ImageLimits.max_pages, description="Most pages of one document.")
    pdf_dpi: float = Field(
        ImageLimits.pdf_dpi, gt=0, description="Dots per inch that PDF pages are drawn with."
    )
    max_pdf_side: Positive = Field(
        ImageLimits.max_pdf_side, description="Longest side of a drawn PDF page, in pixels."
    )
    pdf_timeout_s: float = Field(
        30.0, gt=0, description="Seconds for a page of a PDF; one that takes longer cannot be read."
    )
    pdf_memory_mb: int = Field(
        2048, ge=1024, description="Address space, in MiB, of the process that draws PDFs."
    )
    uri_allow: CommaList = Field(
        (),
        description=(
            "Where a job's `uri` may lead, separated by commas: folders, and places such as "
            "https://host[:port]/prefix; nowhere by default."
        ),
    )
    uri_allow_private: bool = Field(
        False,
        description=(
            "Names of hosts in uri_allow may lead to private networks and to this machine; without it only "
            "addresses that are written there themselves may."
        ),
    )
    uri_timeout_s: float = Field(20.0, gt=0, description="Seconds for a document to come from its host.")

    max_request_mb: Positive = Field(
        32, description="Lines of a page are sent to the recognizer in requests of about this size, in MiB."
    )
    backend_timeout_s: float = Field(
        120.0,
        ge=30,
        allow_inf_nan=False,
        description=(
            "Seconds after which a call to a detector or recognizer has failed; far above their "
            "run_timeout_s, so that they can say themselves which line or page hung."
        ),
    )
    backend_max_attempts: Positive = Field(
        6, description="Tries of a call to a detector or recognizer that is gone or restarting."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_message_mb <= self.max_document_mb:
            raise ValueError("max_message_mb must exceed max_document_mb, or a document fits no message")
        if self.max_request_mb >= self.max_message_mb:
            raise ValueError("max_request_mb must be below max_message_mb")
        if 0 < self.max_concurrent_calls <= self.max_in_flight:
            raise ValueError("max_concurrent_calls must exceed max_in_flight, or health checks are refused")
        if why := topics_problem(jobs=self.jobs_topic, results=self.results_topic, dlq=self.dlq_topic):
            raise ValueError(why)
        for option in self.kafka_options:
            if "=" not in option:
                raise ValueError(f"kafka_options: {option!r} is not name=value")
        for folder in self.allowed_folders:
            if not Path(folder).is_absolute() or not Path(folder).is_dir():
                raise ValueError(f"uri_allow: {folder} is not an absolute path of a folder, or http(s)://…")
        _ = self.web_limits
        return self

    @property
    def allowed_folders(self) -> tuple[str, ...]:
        """The folders of `uri_allow`."""
        return tuple(entry for entry in self.uri_allow if not is_web(entry))

    @cached_property
    def web_limits(self) -> WebLimits:
        """What may be fetched from hosts. Raises `ValueError` for an entry of `uri_allow` that is wrong."""
        return WebLimits(
            allowed=tuple(_place(entry) for entry in self.uri_allow if is_web(entry)),
            private_too=self.uri_allow_private,
            timeout_s=self.uri_timeout_s,
            max_bytes=self.max_document_mb * 2**20,
        )

    @property
    def concurrent_calls(self) -> int:
        """`max_concurrent_calls`, or what 0 stands for.

        gRPC counts every call, so the bound must leave room for health checks and for calls that are being
        refused by `max_in_flight`; but each of them may hold a message, so there must be one.
        """
        return self.max_concurrent_calls or 4 * self.max_in_flight + 64

    @cached_property
    def image_limits(self) -> ImageLimits:
        """What documents are refused."""
        return ImageLimits(
            max_bytes=self.max_document_mb * 2**20,
            max_pixels=self.max_pixels,
            min_side=self.min_side,
            max_pages=self.max_pages,
            pdf_dpi=self.pdf_dpi,
            max_pdf_side=self.max_pdf_side,
        )


def _place(entry: str) -> Place:
    try:
        return place(entry)
    except ValueError as error:
        raise ValueError(f"uri_allow: {entry}: {error}") from None
