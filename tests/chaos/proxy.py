"""TCP proxies that can fall silent, as a network does that is cut: nothing passes, nobody is told.

What was on its way waits and passes when the cut ends, as TCP would send it again. Connections that the
far side refuses are closed at once. One thread with one event loop serves all proxies.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
HOST = "127.0.0.1"
_CHUNK = 1 << 18


class Proxy:
    """One listening port, `port`; `target` is the port behind it, 0 while there is none."""

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.port = 0
        self.open = asyncio.Event()
        self.open.set()

    async def serve(self, connection: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        with contextlib.suppress(OSError):
            async with _ending(back):
                await self.open.wait()
                from_target, to_target = await asyncio.open_connection(HOST, self.target)
                async with _ending(to_target):
                    await self._both(
                        self._pass(connection, to_target),
                        self._pass(from_target, back),
                    )

    async def _both(self, *ways: Coroutine[Any, Any, None]) -> None:
        tasks = {asyncio.create_task(way) for way in ways}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            await self.open.wait()
            sink.write(data)
            await sink.drain()
        await self.open.wait()  # also of an end nobody hears while the network is cut


@contextlib.asynccontextmanager
async def _ending(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Send what is left and close; at once when the whole proxy ends."""
    try:
        yield
        writer.close()
        await writer.wait_closed()
    finally:
        writer.transport.abort()


class Proxies:
    """All proxies of a run, and the thread that serves them. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def add(self, target: int = 0) -> Proxy:
        """A proxy on a free port, before `target`."""
        return self._call(self._add(target))

    def cut(self, proxy: Proxy) -> None:
        """Let nothing pass."""
        self._loop.call_soon_threadsafe(proxy.open.clear)

    def mend(self, proxy: Proxy) -> None:
        """Let everything pass that has waited, and all to come."""
        self._loop.call_soon_threadsafe(proxy.open.set)

    def close(self) -> None:
        """End all connections."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _add(self, target: int) -> Proxy:
        proxy = Proxy(target)
        server = await asyncio.start_server(proxy.serve, HOST, 0)
        proxy.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        return proxy

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # for the aborted connections to be taken down

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
