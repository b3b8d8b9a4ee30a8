"""Health checks of gRPC are answered where only friends can ask, and say nothing of the job."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from telegrad.transport import GrpcTransport, read_certificate, self_signed_tls
from telegrad.transport.grpc.health import MOST_QUESTIONS
from telegrad.transport.grpc.options import split_address
from telegrad.transport.security.tls import trusting_context
from tests.break_in.strangers import RawStream, data, grpc_prefix, opening
from tests.transport.workers import SECONDS, Authority, Floor

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVING = b"\x08\x01"


def service_named(name: bytes) -> bytes:
    """Returns a HealthCheckRequest."""
    return b"\x0a" + bytes([len(name)]) + name


def asked(endpoint: str, request: bytes, method: str = CHECK) -> bytes:
    with grpc.insecure_channel(endpoint.removeprefix("grpc://")) as channel:
        check: Any = channel.unary_unary(method)
        answer: bytes = check(request, timeout=SECONDS)
        return answer


@pytest.mark.parametrize("request_", [b"", service_named(b""), service_named(b"telegrad.Carrier")])
def test_a_listener_on_loopback_says_that_it_serves(grpc_floor: Floor, request_: bytes) -> None:
    host = grpc_floor.worker("host")
    assert asked(host.endpoints[0], request_) == SERVING


@pytest.mark.parametrize("name", [b"host", b"job", b"telegrad", b"telegrad.Carrier "])
def test_it_knows_no_worker_by_name(grpc_floor: Floor, name: bytes) -> None:
    host = grpc_floor.worker("host")
    with pytest.raises(grpc.RpcError) as refused:
        asked(host.endpoints[0], service_named(name))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "host" not in str(refused.value.details())
    assert asked(host.endpoints[0], b"") == SERVING


def test_a_question_that_does_not_come_is_given_up(
    grpc_floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telegrad.transport.grpc.health.QUESTION_SECONDS", 0.05)
    host = grpc_floor.worker("host")
    with RawStream(split_address(host.endpoints[0])[1]) as stream:
        stream.send(opening(CHECK) + data(grpc_prefix(10) + b"\x0a"))
        stream.wait_for_end()
        assert b"the question did not come" in stream.came
    assert asked(host.endpoints[0], b"") == SERVING


def test_of_too_many_questions_the_oldest_is_given_up(grpc_floor: Floor) -> None:
    host = grpc_floor.worker("host")
    port = split_address(host.endpoints[0])[1]
    with ExitStack() as stack:
        oldest = stack.enter_context(RawStream(port))
        oldest.send(opening(CHECK) + data(grpc_prefix(10) + b"\x0a"))
        for _ in range(MOST_QUESTIONS):
            stack.enter_context(RawStream(port)).send(opening(CHECK))
        assert asked(host.endpoints[0], b"") == SERVING
        oldest.wait_for_end()
        assert b"the question did not come" in oldest.came


def test_nobody_can_watch(grpc_floor: Floor) -> None:
    host = grpc_floor.worker("host")
    with grpc.insecure_channel(host.endpoints[0].removeprefix("grpc://")) as channel:
        watch: Any = channel.unary_stream(WATCH)
        with pytest.raises(grpc.RpcError) as refused:
            list(watch(b"", timeout=SECONDS))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_listener_that_others_can_reach_does_not_answer(grpc_floor: Floor) -> None:
    everywhere = GrpcTransport("0.0.0.0", advertise="127.0.0.1", insecure=True)
    host = grpc_floor.worker("host", transport=everywhere)
    with pytest.raises(grpc.RpcError) as refused:
        asked(host.endpoints[0], b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def asked_with(endpoint: str, credentials: grpc.ChannelCredentials, name: str = "host") -> bytes:
    target = [("grpc.ssl_target_name_override", name)]
    address = endpoint.removeprefix("grpcs://")
    with grpc.secure_channel(address, credentials, target) as channel:
        check: Any = channel.unary_unary(CHECK)
        answer: bytes = check(b"", timeout=SECONDS)
        return answer


def test_under_mutual_tls_who_has_a_certificate_may_ask(grpc_floor: Floor, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    transport = GrpcTransport("0.0.0.0", advertise="127.0.0.1", tls=authority.tls("host"))
    host = grpc_floor.worker("host", transport=transport)
    friend = authority.options("friend")
    ca, key, certificate = (
        Path(each).read_bytes() for each in (friend.ca, friend.key, friend.certificate)
    )
    known = grpc.ssl_channel_credentials(ca, key, certificate)
    assert asked_with(host.endpoints[0], known) == SERVING
    with pytest.raises(grpc.RpcError) as refused:
        asked_with(host.endpoints[0], grpc.ssl_channel_credentials(ca))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_encryption_alone_proves_nothing_about_who_asks(grpc_floor: Floor) -> None:
    tls = self_signed_tls()
    transport = GrpcTransport("0.0.0.0", advertise="127.0.0.1", tls=tls)
    host = grpc_floor.worker("host", transport=transport)
    with socket.create_connection(split_address(host.endpoints[0]), SECONDS) as plain:
        with trusting_context().wrap_socket(plain) as encrypted:
            shown = encrypted.getpeercert(binary_form=True)
    assert shown is not None
    trusted = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(shown).encode())
    (name,) = read_certificate(shown).names
    with pytest.raises(grpc.RpcError) as refused:
        asked_with(host.endpoints[0], trusted, name)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, refused.value.details()
