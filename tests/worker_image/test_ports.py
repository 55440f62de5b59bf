"""Ports are reserved by the kernel, not by hope."""

from __future__ import annotations

import socket

import pytest

from worker_image.child import reserved_port


def port_of(kept: socket.socket) -> int:
    return int(kept.getsockname()[1])


def test_reserved_ports_are_all_different() -> None:
    """However many workers ask at once."""
    kept = [reserved_port() for _ in range(300)]
    assert len({port_of(k) for k in kept}) == 300
    for k in kept:
        k.close()


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")])
def test_nobody_else_gets_a_reserved_port(family: int, host: str) -> None:
    """E40: another program that wants this very port is told that it is taken."""
    with reserved_port() as kept, socket.socket(family) as stranger, pytest.raises(OSError, match="Address already in use"):
        stranger.bind((host, port_of(kept)))


def test_a_server_like_tensorflows_gets_it_and_is_reached() -> None:
    """GRPC binds all interfaces with SO_REUSEADDR, and listens."""
    with reserved_port() as kept, socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("::", port_of(kept)))
        server.listen()
        with socket.create_connection(("127.0.0.1", port_of(kept)), timeout=5), server.accept()[0]:
            pass


def test_a_port_that_someone_listens_on_is_never_reserved() -> None:
    """What is taken is not given out: checked by the bind itself."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_INET6) as kept:
        kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="Address already in use"):
            kept.bind(("", port_of(taken)))
