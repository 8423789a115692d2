import contextlib
import socket
import threading

import pytest

from deploy.kafka.local_kafka import free_port
from tests.chaos.proxy import Proxies


class Echo:
    """A server that sends back what it gets, until the client ends."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self.socket.accept()[:1], daemon=True).start()

    def _serve(self, peer):
        with peer, contextlib.suppress(OSError):
            while data := peer.recv(1 << 16):
                peer.sendall(data)


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.socket.close()


@pytest.fixture
def proxies():
    made = Proxies()
    yield made
    made.close()


def connect(proxy):
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def exchange(peer, data):
    peer.sendall(data)
    return read(peer, len(data))


def read(peer, size):
    got = b""
    while len(got) < size and (more := peer.recv(size - len(got))):
        got += more
    return got


def silent(peer):
    peer.settimeout(0.1)
    with pytest.raises(TimeoutError):
        peer.recv(1)
    peer.settimeout(10)
    return True


def test_all_bytes_pass_in_both_directions(proxies, echo):
    data = bytes(range(256)) * 4096
    with connect(proxies.add(echo.port)) as peer:
        sender = threading.Thread(target=peer.sendall, args=(data,))
        sender.start()
        assert read(peer, len(data)) == data
        sender.join()


def test_nothing_passes_while_it_is_cut_and_what_waited_passes_after(proxies, echo):
    proxy = proxies.add(echo.port)
    with connect(proxy) as peer:
        assert exchange(peer, b"before") == b"before"
        proxies.cut(proxy)
        peer.sendall(b"during")
        assert silent(peer)
        proxies.mend(proxy)
        assert read(peer, 6) == b"during"


def test_a_connection_made_during_a_cut_works_after_it(proxies, echo):
    proxy = proxies.add(echo.port)
    proxies.cut(proxy)
    with connect(proxy) as peer:
        peer.sendall(b"early")
        assert silent(peer)
        proxies.mend(proxy)
        assert read(peer, 5) == b"early"


def test_a_client_is_told_when_nobody_listens_behind_it(proxies):
    with connect(proxies.add(free_port())) as peer:
        assert peer.recv(1) == b""


def test_a_client_is_told_when_the_far_side_ends(proxies):
    server = socket.create_server(("127.0.0.1", 0))
    with server, connect(proxies.add(server.getsockname()[1])) as peer:
        server.accept()[0].close()
        assert peer.recv(1) == b""


def test_it_follows_a_service_to_its_new_port(proxies, echo):
    proxy = proxies.add(0)
    with connect(proxy) as peer:
        assert peer.recv(1) == b""
    proxy.target = echo.port
    with connect(proxy) as peer:
        assert exchange(peer, b"again") == b"again"


def test_one_cut_proxy_leaves_the_others_alone(proxies, echo):
    cut, whole = proxies.add(echo.port), proxies.add(echo.port)
    proxies.cut(cut)
    with connect(whole) as peer:
        assert exchange(peer, b"as ever") == b"as ever"
