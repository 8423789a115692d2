"""What an operator may write in `kafka_options`, and what the client gets."""

import pytest

from services.gateway.kafka_client import client_options
from services.gateway.kafka_io import KafkaSink
from services.gateway.kafka_ports import KafkaMisconfigured, KafkaOptions


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ssl_check_hostname", "false", False),
        ("ssl_check_hostname", "True", True),
        ("metadata_max_age_ms", "60000", 60000),
        ("api_version", "3.9", (3, 9)),
        ("sasl_plain_password", "false", "false"),
        ("security_protocol", "SASL_SSL", "SASL_SSL"),
    ],
)
def test_options_become_what_the_client_wants(name, text, value):
    assert client_options({name: text}) == {name: value}


def test_files_must_be_there(tmp_path):
    there = tmp_path / "ca.pem"
    there.touch()
    assert client_options({"ssl_cafile": str(there)}) == {"ssl_cafile": str(there)}
    with pytest.raises(KafkaMisconfigured, match=r"ssl_cafile=/nowhere.pem: no such file"):
        client_options({"ssl_cafile": "/nowhere.pem"})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("ssl_check_hostname", "maybe", "must be true or false"),
        ("metadata_max_age_ms", "soon", "must be a number"),
        ("api_version", "new", "must be a number"),
        ("security_protocol", "TLS", "must be PLAINTEXT, SSL"),
        ("ssl_ca", "/etc/ca.pem", "no option 'ssl_ca'.*ssl_cafile"),
        ("bootstrap_servers", "b:9092", "no option"),
        ("selector", "x", "no option"),
        ("enable_auto_commit", "true", "no option"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(name, text, why):
    with pytest.raises(KafkaMisconfigured, match=why):
        client_options({name: text})


def test_they_are_looked_at_before_anything_is_connected():
    with pytest.raises(KafkaMisconfigured, match="ssl_check_hostname=maybe"):
        KafkaSink(KafkaOptions(("127.0.0.1:1",), security={"ssl_check_hostname": "maybe"}))
