"""The bytes of pages really go from one process to another."""

import pytest

from loadgen import bare_grpc
from loadgen.errors import RunFailed


def test_messages_larger_than_what_grpc_takes_by_itself_cost_processor_time_at_both_ends() -> None:
    assert bare_grpc.cpu_ms([[6 * 2**20, 6 * 2**20]] * 8, in_flight=2) > 0


def test_a_receiving_end_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_grpc.sys, "executable", "/bin/true")
    with pytest.raises(RunFailed, match="did not start"):
        bare_grpc.cpu_ms([[1]], in_flight=1)
