"""Which ports `up` gives to whom."""

import socket

import pytest

from services.cli import ports
from services.cli.errors import CliError, UsageError
from services.cli.ports import Ports


def test_fixed_ports_are_the_documented_ones() -> None:
    assert ports.parse("fixed") == Ports(50051, 50052, 50053, 9464, 9465, 9466, 9092)


def test_some_can_be_named_and_the_others_stay() -> None:
    assert ports.parse("gateway=6000, gateway-metrics=6001") == Ports(gateway=6000, gateway_metrics=6001)


def test_free_ports_are_all_different() -> None:
    found = ports.parse("free").by_name()
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    "text", ["", "gatway=1", "gateway=x", "gateway=0", "gateway=70000", "gateway", "gateway=1,gateway=2"]
)
def test_what_cannot_be_meant_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="--ports"):
        ports.parse(text)


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        number = holder.getsockname()[1]
        mine = Ports(**(ports.free().__dict__ | {"detector": number}))
        with pytest.raises(CliError, match=rf"{number} \(detector\).*--ports free"):
            ports.require_free(mine, embedded_broker=True)


@pytest.mark.parametrize("text", ["gateway=6000,detector=6000", "gateway=50052", "kafka=9464"])
def test_one_port_for_two_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match=r"--ports .*(6000|50052|9464)"):
        ports.parse(text)
