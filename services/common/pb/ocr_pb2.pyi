from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    ONLINE: _ClassVar[Priority]
    BULK: _ClassVar[Priority]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    EMPTY_INPUT: _ClassVar[ErrorCode]
    UNSUPPORTED_FORMAT: _ClassVar[ErrorCode]
    CORRUPT_INPUT: _ClassVar[ErrorCode]
    IMAGE_TOO_SMALL: _ClassVar[ErrorCode]
    IMAGE_TOO_LARGE: _ClassVar[ErrorCode]
    DOCUMENT_TOO_LARGE: _ClassVar[ErrorCode]
    TOO_MANY_PAGES: _ClassVar[ErrorCode]
    PASSWORD_PROTECTED: _ClassVar[ErrorCode]
    INVALID_JOB: _ClassVar[ErrorCode]
    URI_NOT_ALLOWED: _ClassVar[ErrorCode]
    URI_UNREADABLE: _ClassVar[ErrorCode]
    RESULT_TOO_LARGE: _ClassVar[ErrorCode]
    OVERLOADED: _ClassVar[ErrorCode]
    DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    CANCELLED: _ClassVar[ErrorCode]
    UNAVAILABLE: _ClassVar[ErrorCode]
    SHUTTING_DOWN: _ClassVar[ErrorCode]
    PREDICTOR_FAILED: _ClassVar[ErrorCode]
    INTERNAL: _ClassVar[ErrorCode]
    CHECKSUM_MISMATCH: _ClassVar[ErrorCode]
    URI_UNAVAILABLE: _ClassVar[ErrorCode]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    OK: _ClassVar[Status]
    PARTIAL: _ClassVar[Status]
    FAILED: _ClassVar[Status]
PRIORITY_UNSPECIFIED: Priority
ONLINE: Priority
BULK: Priority
ERROR_CODE_UNSPECIFIED: ErrorCode
EMPTY_INPUT: ErrorCode
UNSUPPORTED_FORMAT: ErrorCode
CORRUPT_INPUT: ErrorCode
IMAGE_TOO_SMALL: ErrorCode
IMAGE_TOO_LARGE: ErrorCode
DOCUMENT_TOO_LARGE: ErrorCode
TOO_MANY_PAGES: ErrorCode
PASSWORD_PROTECTED: ErrorCode
INVALID_JOB: ErrorCode
URI_NOT_ALLOWED: ErrorCode
URI_UNREADABLE: ErrorCode
RESULT_TOO_LARGE: ErrorCode
OVERLOADED: ErrorCode
DEADLINE_EXCEEDED: ErrorCode
CANCELLED: ErrorCode
UNAVAILABLE: ErrorCode
SHUTTING_DOWN: ErrorCode
PREDICTOR_FAILED: ErrorCode
INTERNAL: ErrorCode
CHECKSUM_MISMATCH: ErrorCode
URI_UNAVAILABLE: ErrorCode
STATUS_UNSPECIFIED: Status
OK: Status
PARTIAL: Status
FAILED: Status

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class RawImage(_message.Message):
    __slots__ = ("height", "width", "data")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    data: bytes
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("encoded", "raw")
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    encoded: bytes
    raw: RawImage
    def __init__(self, encoded: _Optional[bytes] = ..., raw: _Optional[_Union[RawImage, _Mapping]] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("x", "y")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    x: float
    y: float
    def __init__(self, x: _Optional[float] = ..., y: _Optional[float] = ...) -> None: ...

class Quad(_message.Message):
    __slots__ = ("points",)
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(self, points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class DetectedLine(_message.Message):
    __slots__ = ("quad", "score")
    QUAD_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    quad: Quad
    score: float
    def __init__(self, quad: _Optional[_Union[Quad, _Mapping]] = ..., score: _Optional[float] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model_set", "weights_sha256", "engine", "engine_version", "settings", "max_side")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_SET_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIDE_FIELD_NUMBER: _ClassVar[int]
    model_set: str
    weights_sha256: str
    engine: str
    engine_version: str
    settings: _containers.ScalarMap[str, str]
    max_side: int
    def __init__(self, model_set: _Optional[str] = ..., weights_sha256: _Optional[str] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., max_side: _Optional[int] = ...) -> None: ...

class StageTiming(_message.Message):
    __slots__ = ("queue_ms", "model_ms", "process_ms", "total_ms", "batches", "mean_batch_size")
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    MODEL_MS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MEAN_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    queue_ms: float
    model_ms: float
    process_ms: float
    total_ms: float
    batches: int
    mean_batch_size: float
    def __init__(self, queue_ms: _Optional[float] = ..., model_ms: _Optional[float] = ..., process_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., batches: _Optional[int] = ..., mean_batch_size: _Optional[float] = ...) -> None: ...

class DetectRequest(_message.Message):
    __slots__ = ("image", "priority", "source_width", "source_height")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    image: Image
    priority: Priority
    source_width: int
    source_height: int
    def __init__(self, image: _Optional[_Union[Image, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ..., source_width: _Optional[int] = ..., source_height: _Optional[int] = ...) -> None: ...

class DetectResponse(_message.Message):
    __slots__ = ("lines", "model", "timing")
    LINES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[DetectedLine]
    model: ModelInfo
    timing: StageTiming
    def __init__(self, lines: _Optional[_Iterable[_Union[DetectedLine, _Mapping]]] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., timing: _Optional[_Union[StageTiming, _Mapping]] = ...) -> None: ...

class RecognizeLinesRequest(_message.Message):
    __slots__ = ("lines", "priority")
    LINES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[Image]
    priority: Priority
    def __init__(self, lines: _Optional[_Iterable[_Union[Image, _Mapping]]] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class RecognizedLine(_message.Message):
    __slots__ = ("text", "confidence", "error")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    text: str
    confidence: float
    error: Error
    def __init__(self, text: _Optional[str] = ..., confidence: _Optional[float] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class RecognizeLinesResponse(_message.Message):
    __slots__ = ("lines", "model", "timing")
    LINES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[RecognizedLine]
    model: ModelInfo
    timing: StageTiming
    def __init__(self, lines: _Optional[_Iterable[_Union[RecognizedLine, _Mapping]]] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., timing: _Optional[_Union[StageTiming, _Mapping]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Options(_message.Message):
    __slots__ = ("priority", "min_confidence", "deadline_ms")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MIN_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    priority: Priority
    min_confidence: float
    deadline_ms: int
    def __init__(self, priority: _Optional[_Union[Priority, str]] = ..., min_confidence: _Optional[float] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "file", "content", "uri", "options", "sha256", "size", "content_type")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    file: str
    content: bytes
    uri: str
    options: Options
    sha256: str
    size: int
    content_type: str
    def __init__(self, job_id: _Optional[str] = ..., file: _Optional[str] = ..., content: _Optional[bytes] = ..., uri: _Optional[str] = ..., options: _Optional[_Union[Options, _Mapping]] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., content_type: _Optional[str] = ...) -> None: ...

class Line(_message.Message):
    __slots__ = ("text", "confidence", "points", "page")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    text: str
    confidence: float
    points: _containers.RepeatedCompositeFieldContainer[Point]
    page: int
    def __init__(self, text: _Optional[str] = ..., confidence: _Optional[float] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ..., page: _Optional[int] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("number", "width", "height", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    width: int
    height: int
    error: Error
    def __init__(self, number: _Optional[int] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("total_ms", "wait_ms", "decode_ms", "detect", "crop_ms", "recognize", "transport_ms")
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    DETECT_FIELD_NUMBER: _ClassVar[int]
    CROP_MS_FIELD_NUMBER: _ClassVar[int]
    RECOGNIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_MS_FIELD_NUMBER: _ClassVar[int]
    total_ms: float
    wait_ms: float
    decode_ms: float
    detect: StageTiming
    crop_ms: float
    recognize: StageTiming
    transport_ms: float
    def __init__(self, total_ms: _Optional[float] = ..., wait_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., detect: _Optional[_Union[StageTiming, _Mapping]] = ..., crop_ms: _Optional[float] = ..., recognize: _Optional[_Union[StageTiming, _Mapping]] = ..., transport_ms: _Optional[float] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("job_id", "file", "status", "lines", "pages", "error", "detector", "recognizer", "timing", "service_version", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    RECOGNIZER_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    file: str
    status: Status
    lines: _containers.RepeatedCompositeFieldContainer[Line]
    pages: _containers.RepeatedCompositeFieldContainer[Page]
    error: Error
    detector: ModelInfo
    recognizer: ModelInfo
    timing: Timing
    service_version: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, job_id: _Optional[str] = ..., file: _Optional[str] = ..., status: _Optional[_Union[Status, str]] = ..., lines: _Optional[_Iterable[_Union[Line, _Mapping]]] = ..., pages: _Optional[_Iterable[_Union[Page, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., detector: _Optional[_Union[ModelInfo, _Mapping]] = ..., recognizer: _Optional[_Union[ModelInfo, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., service_version: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...
