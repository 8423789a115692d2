"""What every client of Kafka here shares: how it is made, and what its errors mean.

The client library is synchronous and has an I/O thread of its own. One more thread owns each consumer and
each producer (`Threads` of one); it takes calls one by one and answers through the event loop, so nothing
here is shared.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import kafka
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.record import util as kafka_record_util
from kafka.structs import OffsetAndMetadata, TopicPartition

from services.gateway.jobs import Message
from services.gateway.kafka_ports import (
    BrokerUnreachable,
    KafkaMisconfigured,
    KafkaOptions,
    MessageTooLarge,
    PublishFailed,
)
from services.gateway.offsets import Commit, Partition

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_TIMEOUT_MS = 5000
"""For commits and questions to the broker; well below the session timeout, so that a poll follows in time."""
CLOSE_TIMEOUT_MS = 2000
"""To leave the group, or to send what is left; a broker that does not answer must not hold up our end."""


def check_installation() -> None:
    """Refuse to run on checksums in pure Python: 40 ms of CPU for each 200 KB, on the event loop's lock.

    Raises:
        KafkaMisconfigured: the `crc32c` wheel is missing; the client itself would not say a word.
    """
    if kafka_record_util.crc32c_c is None:
        raise KafkaMisconfigured(
            "kafka-python runs without the `crc32c` package and would compute checksums in Python, 60 times "
            "slower; install it: pip install 'kafka-python[crc32c]'"
        )


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """Options that every client of the library takes. Raises KafkaMisconfigured."""
    return {
        "bootstrap_servers": list(options.bootstrap),
        "client_id": options.client_id,
        "bootstrap_timeout_ms": CALL_TIMEOUT_MS,
        **client_options(options.security),
    }


_OURS = frozenset(
    {"bootstrap_servers", "client_id", "metrics_enabled", "allow_auto_create_topics"}
    | {"request_timeout_ms", "receive_message_max_bytes"}
)
"""Options that both clients know and that the gateway sets by itself."""
_CHOICES = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")


def client_options(written: Mapping[str, str]) -> dict[str, Any]:
    """Options of the client as it wants them: what was written as text becomes a flag or a number.

    The kind of an option is that of its default in the client; one without a default is a text.

    Raises:
        KafkaMisconfigured: an option is not known, is not for the operator to set, or has no such value.
    """
    reader, writer = kafka.KafkaConsumer.DEFAULT_CONFIG, kafka.KafkaProducer.DEFAULT_CONFIG
    known = {
        name: default
        for name, default in reader.items()
        if name in writer and name not in _OURS and (default is None or isinstance(default, bool | int | str))
    }
    for name in written:
        if name not in known:
            names = ", ".join(sorted(known))
            raise KafkaMisconfigured(f"kafka_options: there is no option {name!r}, but {names}")
    return {name: _option(name, text, known[name]) for name, text in written.items()}


def _option(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return _chosen(name, text.lower(), flags, "true or false")
    if isinstance(default, int):
        if not text.isdecimal():
            raise KafkaMisconfigured(f"kafka_options: {name}={text}: must be a number")
        return int(text)
    if name == "api_version":
        return tuple(_option(name, part, 0) for part in text.split("."))
    if name in _FILES and not Path(text).is_file():
        raise KafkaMisconfigured(f"kafka_options: {name}={text}: no such file")
    if name in _CHOICES:
        return _chosen(name, text, {choice: choice for choice in _CHOICES[name]}, ", ".join(_CHOICES[name]))
    return text


def _chosen(name: str, text: str, choices: Mapping[str, object], wanted: str) -> object:
    if text not in choices:
        raise KafkaMisconfigured(f"kafka_options: {name}={text}: must be {wanted}")
    return choices[text]


def producer_settings(options: KafkaOptions) -> dict[str, Any]:
    """Options of every producer beside them: idempotent, acknowledged by all replicas in sync."""
    return {
        "acks": "all",
        "enable_idempotence": True,
        "delivery_timeout_ms": options.delivery_timeout_ms,
        "request_timeout_ms": options.delivery_timeout_ms * 2 // 3,
        "max_request_size": options.max_message_bytes,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }


def hand_over(producer: Any, message: Message) -> Any:
    """Give a message to the producer; the client's future of its acknowledgement."""
    return producer.send(message.topic, value=message.value, key=message.key, headers=list(message.headers))


def close_producer(producer: Any, timeout_s: float) -> None:
    """Let go of a producer, sending what is left for `timeout_s` at most."""
    try:
        producer.close(timeout=timeout_s)
    except Exception as error:  # noqa: BLE001  # whoever waits for an acknowledgement is told by its callback
        log.warning("the Kafka producer did not close cleanly: %r", error)
        producer._sender.force_close()  # noqa: SLF001  # its close gives up before this when messages are left


def publish_error(message: Message, error: BaseException) -> RuntimeError:
    """What a failure to send `message` means: MessageTooLarge or PublishFailed."""
    if isinstance(error, BrokerUnreachable):
        return PublishFailed(str(error))
    kinds = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
    size = len(message.value or b"")
    found: RuntimeError
    if isinstance(error, kinds):
        found = MessageTooLarge(f"{message.topic} takes no message of {size} bytes: {error}")
    else:
        found = PublishFailed(f"a message of {size} bytes to {message.topic} was not acknowledged: {error!r}")
    found.__cause__ = error
    return found


def connect(client: Callable[..., T], **options: Any) -> T:
    """Make a client; it connects at once. One that cannot leaves its thread behind, which is ended here."""
    networks = []

    def network(**settings: Any) -> Any:
        networks.append(KafkaNetClient(**settings))
        return networks[-1]

    try:
        return client(kafka_client=network, **options)
    except Exception as error:  # noqa: BLE001  # raised below, without the frames that hold the sockets
        for left in networks:
            left._manager._net.stop(timeout_ms=CALL_TIMEOUT_MS)  # noqa: SLF001  # close() alone does not
            left.close()
        networks.clear()
        failure = _connection_error(error, ", ".join(options["bootstrap_servers"]))
    raise failure


def _connection_error(error: Exception, where: str) -> Exception:
    refused = (kafka_errors.KafkaConfigurationError, kafka_errors.SaslAuthenticationFailedError)
    # The last three are how the client itself complains of a value.
    if isinstance(error, (*refused, ValueError, TypeError, AssertionError)):
        return KafkaMisconfigured(f"Kafka at {where} refuses these settings: {error}")
    if isinstance(error, kafka_errors.KafkaError | OSError):
        return BrokerUnreachable(f"no Kafka broker answers at {where}: {error!r}")
    return error


def offsets_of(commits: Mapping[Partition, Commit]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Commits as the client wants them."""
    return {
        TopicPartition(*partition): OffsetAndMetadata(commit.offset, commit.note, commit.leader_epoch)
        for partition, commit in commits.items()
    }
