"""The pages and lines of a document put together into its result. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from services.common.errors import BY_CODE, InputError, Internal, OcrError
from services.common.pb import ocr_pb2 as pb
from services.common.wire import error_message

try:
    SERVICE_VERSION = metadata.version("ocr-serving")
except metadata.PackageNotFoundError:  # run from a checkout that was not installed
    SERVICE_VERSION = "0+unknown"


@dataclass
class Spent:
    """Where time went, in milliseconds, for one page; sums make a document's."""

    decode_ms: float = 0.0
    crop_ms: float = 0.0
    transport_ms: float = 0.0
    detect: list[pb.StageTiming] = field(default_factory=list)
    recognize: list[pb.StageTiming] = field(default_factory=list)


@dataclass
class PageRead:
    """What became of one page. `width` and `height` are 0 when it could not be decoded."""

    number: int
    width: int = 0
    height: int = 0
    lines: list[pb.Line] = field(default_factory=list)
    error: OcrError | None = None
    unread: list[OcrError] = field(default_factory=list)
    """One for each line that was found but could not be read."""
    found: int = 0
    """Lines sent to the recognizer."""
    detector: pb.ModelInfo | None = None
    recognizer: pb.ModelInfo | None = None
    spent: Spent = field(default_factory=Spent)

    def why(self) -> OcrError | None:
        """Why the page was not read in full; None when it was."""
        if self.error is not None or not self.unread:
            return self.error
        first = self.unread[0]
        text = f"{len(self.unread)} of {self.found} lines could not be read, the first because: {first}"
        return type(first)(text)

    def failed(self) -> bool:
        """Nothing was read although there was something to read."""
        return self.error is not None or (self.found > 0 and len(self.unread) == self.found)


def from_error(message: pb.Error) -> OcrError:
    """The error that a service put into its answer."""
    return BY_CODE.get(pb.ErrorCode.Name(message.code), Internal)(message.message)


def failed_result(job: pb.Job, error: OcrError) -> pb.Result:
    """The result of a document of which nothing was read."""
    return pb.Result(
        job_id=job.job_id,
        file=job.file,
        status=pb.FAILED,
        error=error_message(error),
        service_version=SERVICE_VERSION,
    )


def assemble(
    job_id: str, file: str, pages: Iterable[PageRead], settings: Mapping[str, str] | None = None
) -> pb.Result:
    """The result of a document; without its waiting and total times, which only the caller knows.

    `settings`: what shaped the text beside the models. Raises the error of the first page when nothing could
    be read on any page.
    """
    ordered = sorted(pages, key=lambda page: page.number)
    whys = [why for page in ordered if (why := page.why()) is not None]
    if whys and all(page.failed() for page in ordered):
        raise _of_the_document(whys)
    return pb.Result(
        job_id=job_id,
        file=file,
        status=pb.PARTIAL if whys else pb.OK,
        lines=[line for page in ordered for line in page.lines],
        pages=[_page(page) for page in ordered],
        detector=next((page.detector for page in ordered if page.detector), None),
        recognizer=next((page.recognizer for page in ordered if page.recognizer), None),
        timing=_timing([page.spent for page in ordered]),
        service_version=SERVICE_VERSION,
        settings=settings,
    )


def _of_the_document(whys: Sequence[OcrError]) -> OcrError:
    """Of several errors the first, but one that is ours before one that is the caller's: it may hide text."""
    return next((why for why in whys if not isinstance(why, InputError)), whys[0])


def _page(page: PageRead) -> pb.Page:
    why = page.why()
    error = None if why is None else error_message(why)
    return pb.Page(number=page.number, width=page.width, height=page.height, error=error)


def _timing(spent: Sequence[Spent]) -> pb.Timing:
    return pb.Timing(
        decode_ms=sum(s.decode_ms for s in spent),
        crop_ms=sum(s.crop_ms for s in spent),
        transport_ms=sum(s.transport_ms for s in spent),
        detect=add_up([stage for s in spent for stage in s.detect]),
        recognize=add_up([stage for s in spent for stage in s.recognize]),
    )


def add_up(stages: Sequence[pb.StageTiming]) -> pb.StageTiming:
    """The sum over calls; the mean batch size is that over all their batches."""
    batches = sum(stage.batches for stage in stages)
    items = sum(stage.batches * stage.mean_batch_size for stage in stages)
    return pb.StageTiming(
        queue_ms=sum(stage.queue_ms for stage in stages),
        model_ms=sum(stage.model_ms for stage in stages),
        process_ms=sum(stage.process_ms for stage in stages),
        total_ms=sum(stage.total_ms for stage in stages),
        batches=batches,
        mean_batch_size=items / batches if batches else 0.0,
    )
