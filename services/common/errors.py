"""What can go wrong with a request, one class for each thing the reader should do about it.

Raised deep inside, turned into a status in exactly one place for gRPC (`rpc.py`) and one for
Kafka (`services/gateway/consumer.py`). Each class carries the `ErrorCode` of the contract by
name, whether it is worth trying for as long as it takes, and whose fault it is: `InputError` is the
caller's, `Overloaded`, `Unavailable` and `ShuttingDown` pass, the rest is ours or a document host's.
"""

from typing import ClassVar


class SetupError(Exception):
    """Something the operator has to put right before a process can start; `str(error)` says how."""


class OcrError(Exception):
    """Base of all errors that a caller may see; `str(error)` is written for that caller."""

    code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False


class InputError(OcrError):
    """The input is at fault. Not worth a second try; in Kafka it becomes a dead letter at once."""


class EmptyInput(InputError):
    """No bytes at all."""

    code = "EMPTY_INPUT"


class UnsupportedFormat(InputError):
    """Not a format that is read here."""

    code = "UNSUPPORTED_FORMAT"


class CorruptInput(InputError):
    """A known format, but truncated or damaged."""

    code = "CORRUPT_INPUT"


class ImageTooSmall(InputError):
    """A side is too short to hold text."""

    code = "IMAGE_TOO_SMALL"


class ImageTooLarge(InputError):
    """Declares more pixels than the limit; refused before decoding."""

    code = "IMAGE_TOO_LARGE"


class DocumentTooLarge(InputError):
    """More bytes than the limit."""

    code = "DOCUMENT_TOO_LARGE"


class TooManyPages(InputError):
    """More pages than the limit."""

    code = "TOO_MANY_PAGES"


class PasswordProtected(InputError):
    """An encrypted PDF."""

    code = "PASSWORD_PROTECTED"


class InvalidJob(InputError):
    """The job or request does not follow the contract."""

    code = "INVALID_JOB"


class UriNotAllowed(InputError):
    """The `uri` is outside what the operator allowed."""

    code = "URI_NOT_ALLOWED"


class UriUnreadable(InputError):
    """The `uri` is allowed, but nothing could be read there."""

    code = "URI_UNREADABLE"


class ChecksumMismatch(InputError):
    """The document is not the one that the job describes: its size or sha256 differs."""

    code = "CHECKSUM_MISMATCH"


class ResultTooLarge(InputError):
    """The result does not fit its topic."""

    code = "RESULT_TOO_LARGE"


class Overloaded(OcrError):
    """A queue is full. Refused at the door, nothing was begun: try again later."""

    code = "OVERLOADED"
    retryable = True


class ShuttingDown(OcrError):
    """The service is draining: try another replica."""

    code = "SHUTTING_DOWN"
    retryable = True


class Unavailable(OcrError):
    """A backend cannot be reached or is not ready: try again later."""

    code = "UNAVAILABLE"
    retryable = True


class UriUnavailable(OcrError):
    """The host of a `uri` cannot be reached, is busy or too slow: try again later.

    Not `retryable`, which would be for as long as it takes: documents whose host is gone would hold every
    place. In Kafka it has `max_attempts` tries and is a dead letter then, to be sent back when the host
    is up.
    """

    code = "URI_UNAVAILABLE"


class DeadlineExceeded(OcrError):
    """The caller's deadline passed before the work was done."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(OcrError):
    """The caller went away."""

    code = "CANCELLED"


class PredictorFailed(OcrError):
    """The predictor process died or hung on this item, also when the item ran alone."""

    code = "PREDICTOR_FAILED"


class Internal(OcrError):
    """A defect of ours; the log has the stack trace."""

    code = "INTERNAL"


def _all_errors(base: type[OcrError]) -> list[type[OcrError]]:
    return [base, *(found for sub in base.__subclasses__() for found in _all_errors(sub))]


BY_CODE: dict[str, type[OcrError]] = {
    "INTERNAL": Internal,
    **{error.code: error for error in _all_errors(OcrError) if error.code != "INTERNAL"},
}
"""Error classes by the name of their `ErrorCode`, to rebuild an error that came over the wire."""
