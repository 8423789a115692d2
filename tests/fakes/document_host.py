"""A host of documents on the loopback that answers whatever a test tells it to, also what is no HTTP."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

Answer = Callable[[socket.socket, threading.Event], None]
"""Writes to the connection; the event is set when the test is over."""


def says(*parts: bytes) -> Answer:
    """These bytes, and then the end."""

    def answer(connection: socket.socket, _over: threading.Event) -> None:
        connection.sendall(b"".join(parts))

    return answer


def says_for_ever(first: bytes, then: bytes, every_s: float = 0.0) -> Answer:
    """`first`, and `then` again and again until the other side leaves."""

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(first)
        while not over.wait(every_s):
            connection.sendall(then)

    return answer


def document(body: bytes, *headers: str, status: str = "200 OK") -> Answer:
    """A plain answer with a true Content-Length."""
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")
    return says("\r\n".join(lines).encode(), body)


class DocumentHost(contextlib.AbstractContextManager):
    """Listens on 127.0.0.1:`port`; `requests` are the heads of what was asked, `connections` their number."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.connections = 0
        self._tls = tls
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, path: str = "/a", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain:
            plain.settimeout(30)
            wrapped = self._tls.wrap_socket(plain, server_side=True) if self._tls else plain
            with wrapped as connection:
                head = b""
                while b"\r\n\r\n" not in head and (data := connection.recv(65536)):
                    head += data
                self.requests.append(head)
                self.answer(connection, self._over)

    def stop(self) -> None:
        """End the answers that go on for ever."""
        self._over.set()

    def __exit__(self, *_: object) -> None:
        self.stop()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)
