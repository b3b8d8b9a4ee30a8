"""Names and ports that lead to a listener: those published, those dialled, those of a gateway."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from telegrad.transport import GrpcTransport, split_advertised
from telegrad.transport.addresses import is_local
from telegrad.transport.grpc.options import join_address, split_address
from tests.conftest import unused_port
from tests.transport.between import Between
from tests.transport.workers import Floor, floor_of

V4, V6 = "127.0.0.1", "::1"
needs_ipv6 = pytest.mark.skipif(
    not (socket.has_ipv6 and is_local(V6)), reason="this machine has no IPv6 loopback"
)


@pytest.fixture
def two_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` means `::1` first, as on most machines."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "localhost" or kwargs.get("flags", 0) & socket.AI_NUMERICHOST:
            return look_up(host, *args, **kwargs)
        return [each for own in (V6, V4) for each in look_up(own, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@needs_ipv6
@pytest.mark.usefixtures("two_families")
def test_who_dials_localhost_never_reaches_somebody_at_the_other_family(grpc_floor: Floor) -> None:
    host = grpc_floor.worker("host", transport=GrpcTransport("localhost"))
    assert host.endpoints[0].startswith(f"grpc://{V4}:")
    port = split_address(host.endpoints[0])[1]
    alice = grpc_floor.worker("alice")
    with socket.socket(socket.AF_INET6) as other:
        other.bind((V6, port))
        other.listen()
        other.setblocking(False)
        host.endpoints = (f"grpc://localhost:{port}",)
        alice.knows(host).post(host, 1)
        host.recorder.wait_envelopes(1)
        with pytest.raises(BlockingIOError):
            other.accept()
    host.exchange.close(1.0)


@pytest.mark.parametrize("bind", [V4, pytest.param(V6, marks=needs_ipv6)])
def test_what_is_published_is_of_the_family_that_is_bound(grpc_floor: Floor, bind: str) -> None:
    host = grpc_floor.worker("host", transport=GrpcTransport(bind))
    assert split_address(host.endpoints[0])[0] == bind
    alice = grpc_floor.worker("alice").knows(host)
    alice.send(host, 1)


@pytest.mark.parametrize("kind", ["grpc", "self-signed"])
def test_a_port_that_is_forwarded(kind: str) -> None:
    """What is published is the gateway's address and port, and what passes goes through it."""
    inside = unused_port()
    scheme = "grpc" if kind == "grpc" else "grpcs"
    with floor_of(kind) as floor, Between(f"{scheme}://{V4}:{inside}") as gateway:
        outside = join_address(*split_address(gateway.endpoint))
        host = floor.worker("host", transport=floor.grpc(port=inside, advertise=outside))
        assert list(host.endpoints) == [gateway.endpoint]
        alice = floor.worker("alice").knows(host)
        alice.send(host, 1)
        assert min(gateway.passed) > 0
        alice.exchange.close(1.0)


@pytest.mark.parametrize(
    ("advertise", "endpoint"),
    [
        ("gate.example", "grpc://gate.example:{port}"),
        ("gate.example:4000", "grpc://gate.example:4000"),
        ("[fd00::7]:4000", "grpc://[fd00::7]:4000"),
        ("fd00::7", "grpc://[fd00::7]:{port}"),
    ],
)
def test_what_is_advertised_is_published(grpc_floor: Floor, advertise: str, endpoint: str) -> None:
    port = unused_port()
    host = grpc_floor.worker("host", transport=GrpcTransport(port=port, advertise=advertise))
    assert list(host.endpoints) == [endpoint.format(port=port)]


@pytest.mark.parametrize(
    "text",
    ["", ":4000", "h:0", "h:65536", "h:x", "h:", "[::1", "::1]:3", "[gate]:4:5", "a:b:c", "h:4000/",
     "grpc://h:4000", "h 1:4000", "h:٣", "[]:4000", "h:-1", "h:+1"],
)  # fmt: skip
def test_what_is_no_address_to_advertise(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        split_advertised(text)
