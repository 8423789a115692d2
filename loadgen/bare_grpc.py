"""What gRPC alone costs: the bytes of pages from one process to another, where nothing is done with them.

    python -m loadgen.bare_grpc

is the receiving end; `cpu_ms` starts it. It says its port, and answers until its input ends.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from loadgen import procfs
from loadgen.errors import RunFailed
from services.common import rpc

_SERVICE, _METHOD = "bare", "Send"
_MESSAGE_MB = 64
_HOME = Path(__file__).parents[1]


def cpu_ms(pages: Sequence[Sequence[int]], *, in_flight: int) -> float:
    """Milliseconds of CPU a page, both ends together; a page is the sizes of its messages in bytes.

    So many pages are on their way at a time, the messages of each one after the other. Raises RunFailed.
    """
    with _receiver() as (pid, address):
        seconds = asyncio.run(_measured(address, pid, pages, in_flight))
    return seconds * 1e3 / len(pages)


async def _measured(address: str, pid: int, pages: Sequence[Sequence[int]], in_flight: int) -> float:
    """Seconds of CPU, after a warm-up of a quarter."""
    messages = {size: b"\x7f" * size for page in pages for size in page}
    async with rpc.channel(address, max_message_mb=_MESSAGE_MB) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")

        async def send(some: Sequence[Sequence[int]]) -> None:
            left = iter(some)

            async def caller() -> None:
                for page in left:
                    for size in page:
                        await call(messages[size])

            await asyncio.gather(*(caller() for _ in range(in_flight)))

        await send(pages[: len(pages) // 4])
        before = _both_s(pid)
        await send(pages)
        return _both_s(pid) - before


def _both_s(pid: int) -> float:
    receiver = procfs.read(pid)
    if receiver is None:
        raise RunFailed("the receiving end of the bare gRPC calls has ended; see its words above")
    return time.process_time() + receiver.cpu_s


@contextmanager
def _receiver() -> Iterator[tuple[int, str]]:
    """Its process id and address. It ends with the block, or with this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.bare_grpc"],
        cwd=_HOME, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:  # which closes the pipes and waits
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RunFailed("the receiving end of the bare gRPC calls did not start; see its words above")
        yield process.pid, f"127.0.0.1:{port}"


async def _serve() -> None:
    async def answer(_message: bytes, _context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        return b"ok"

    limits = [("grpc.max_receive_message_length", _MESSAGE_MB * 2**20)]
    server = grpc.aio.server(options=limits)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        _METHOD: grpc.unary_unary_rpc_method_handler(answer)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(_serve())
