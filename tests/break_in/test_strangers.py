"""Those who do not hold the token: nothing of theirs is read beyond a handshake."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from telegrad.transport import ConnectionLimits
from telegrad.transport.grpc.health import METHOD as HEALTH
from telegrad.transport.grpc.health import MOST_QUESTIONS
from telegrad.transport.limits import MAX_MESSAGE_BYTES
from telegrad.transport.security.handshake import DialHandshake, Identity
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, Frame, pack_frame
from tests.break_in.conftest import TOKEN, Victim
from tests.break_in.strangers import (
    PREFACE,
    SECONDS,
    SETTINGS,
    Member,
    RawStream,
    client_hello,
    data,
    endless_headers,
    grpc_prefix,
    h2_frame,
    opening,
    streams,
)
from tests.loops import on_loop

CROWD = 1000
UNPROVED = ConnectionLimits().unproved
HEADER_COST = 40  # bytes of memory for one of headers without an end
HANDSHAKE_COST = 64 * 2**10  # bytes of memory for a TLS handshake without an end
MALLORY = WorkerInfo("mallory", 9, 99)
FRAME = pack_frame(Frame([Envelope("rpc.call", 1, document=b"\x80", number=1)]))


def refused(victim: Victim, reason: str) -> str:
    """Waits for the record of it; whoever goes on writing may miss what it is told itself."""
    (*_, record) = victim.told("connection.refused", reason=reason)
    assert record["worker"] == "worker1"
    return str(record["words"])


@pytest.mark.parametrize("token", [None, b"another token"], ids=["no token", "wrong token"])
def test_without_the_token(victim: Victim, token: bytes | None) -> None:
    async def attack() -> None:
        async with streams(victim.port) as (stream,):
            shake = DialHandshake(Identity(victim.job, MALLORY), token)
            await stream.send(shake.hello())
            shake.takes_answer(await stream.read() or b"")
            await stream.send(shake.prove(0, resumes=False), FRAME)
            await stream.ended()

    on_loop(attack)
    words = refused(victim, "AUTHENTICATION")
    assert ("no token" if token is None else "another token") in words


def test_a_recorded_handshake_is_replayed(victim: Victim) -> None:
    async def record(member: WorkerInfo) -> list[bytes]:
        async with streams(victim.port) as (stream,):
            shake = DialHandshake(Identity(victim.job, member), TOKEN.encode())
            said = [shake.hello()]
            await stream.send(said[0])
            shake.takes_answer(await stream.read() or b"")
            said.append(shake.prove(0, resumes=False))
            await stream.send(said[1])
            shake.takes_welcome(await stream.read() or b"")
            said.append(shake.frames().seal(FRAME))
            return said

    async def replay(said: list[bytes]) -> None:
        async with streams(victim.port) as (stream,):
            await stream.send(*said)
            await stream.ended()

    with victim.enlists("mallory") as mallory:
        said = on_loop(lambda: record(mallory))
        on_loop(lambda: replay(said))
        assert "another token" in refused(victim, "AUTHENTICATION")


def test_a_frame_of_another_connection_is_injected(victim: Victim) -> None:
    """One stream is cut off at the first frame that is not its own; the other one goes on."""

    async def attack(*infos: WorkerInfo) -> tuple[int, object]:
        async with streams(victim.port, 2) as (one, two):
            first = Member(one, victim.job, TOKEN.encode(), infos[0])
            second = Member(two, victim.job, TOKEN.encode(), infos[1])
            await first.join()
            await second.join()
            sealed = first.tags.seal(FRAME)
            await two.send(sealed)
            await two.ended()
            await one.send(sealed)
            first.posted = 1
            answer = await first.call(
                {
                    "func": "tests.break_in.remote_code:who_am_i",
                    "script": "",
                    "args": [],
                    "kwargs": {},
                }
            )
            return len(sealed), answer.kind

    with victim.enlists("first") as one, victim.enlists("second") as two:
        size, kind = on_loop(lambda: attack(one, two))
    assert kind == "rpc.reply"
    (record,) = victim.told("peer.cut_off", reason="TAG")
    assert (record["peer"], record["messages"], record["bytes"]) == ("second", 1, size)


# -- what they may take ---------------------------------------------------------------------------


def test_a_million_tiny_messages_of_a_stranger(victim: Victim) -> None:
    """The first one decides; what follows is not read."""

    async def attack() -> int:
        async with streams(victim.port) as (stream,):
            sent = 0
            while sent < 1_000_000 and not stream.call.done():
                await stream.send(b"x")
                sent += 1
            await stream.ended()
            return sent

    assert on_loop(attack) < 1_000_000
    (record,) = victim.told("connection.refused")
    assert (record["reason"], record.get("peer")) == ("MALFORMED", None)


def test_hellos_of_64_mib(victim: Victim) -> None:
    """gRPC takes none of more than 2 MiB."""
    crowd = 12

    async def attack() -> list[str]:
        async with streams(victim.port, crowd) as many:
            for stream in many:
                await stream.send(b"H" + bytes(64 * 2**20))
            return [(await stream.ended()).code.name for stream in many]

    victim.allowed = crowd * MAX_MESSAGE_BYTES
    assert set(on_loop(attack)) <= {
        "RESOURCE_EXHAUSTED",
        "OK",
        "CANCELLED",
        "INTERNAL",
        "UNAVAILABLE",
    }
    assert victim.serves()


def test_hellos_of_almost_2_mib_that_never_end(victim: Victim) -> None:
    """gRPC gathers no more than 128 of them, however many come."""
    size, most = MAX_MESSAGE_BYTES - 100, UNPROVED
    victim.allowed = most * MAX_MESSAGE_BYTES * 3 // 2  # gRPC frees a little later than it cuts off
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2 * most))
        raw = [stack.enter_context(RawStream(victim.port)) for _ in range(2 * most)]
        for stream in raw:
            stream.send(opening())
        message = grpc_prefix(size) + b"H" + bytes(size - 1)
        pushing = [pool.submit(stream.push, message[:-1]) for stream in raw]
        assert victim.serves()
        for each in pushing:
            each.result()
        # The log holds 100 of these in ten seconds.
        cut = victim.told("connection.refused", most // 2, reason="UNFINISHED")
    assert any(f"the oldest of {most + 1} streams" in each["words"] for each in cut)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="a preface"),
        pytest.param(opening(), id="a stream and no hello", marks=pytest.mark.long),
        pytest.param(
            opening() + data(grpc_prefix(300) + b"H\x08\x01"),
            id="half a hello",
            marks=pytest.mark.long,
        ),
    ],
)
def test_those_that_fall_silent(victim: Victim, said: bytes) -> None:
    """Others are served while they are silent; whoever opened a stream is cut off in the end."""
    with RawStream(victim.port) as stream:
        stream.send(said)
        assert victim.serves()
        if said.startswith(opening()):
            stream.wait_for_end()
            refused(victim, "UNFINISHED")


@pytest.mark.long
def test_a_hello_a_byte_at_a_time(victim: Victim) -> None:
    """It is the time since the stream was opened that counts, not since the last byte."""
    hello = DialHandshake(Identity(victim.job, MALLORY), None).hello()
    with RawStream(victim.port) as stream:
        stream.send(opening() + data(grpc_prefix(16_000)))
        stream.socket.settimeout(0.05)
        for octet in hello * 100:
            if not stream.drips(data(bytes([octet]))):
                break
        refused(victim, "UNFINISHED")


@pytest.mark.long
@pytest.mark.parametrize(
    "said", [b"", PREFACE + h2_frame(SETTINGS, b"")], ids=["nothing", "HTTP/2"]
)
def test_a_thousand_connections_without_a_stream(victim: Victim, said: bytes) -> None:
    """Each costs some kilobytes; all are ended, those that speak HTTP/2 after twice the time."""
    victim.allowed = CROWD * 32 * 2**10
    with ExitStack() as stack:
        crowd = [stack.enter_context(RawStream(victim.port)) for _ in range(CROWD)]
        for stranger in crowd:
            stranger.send(said)
        assert victim.serves()
        for stranger in crowd:
            stranger.wait_for_close()


@pytest.mark.long
def test_headers_that_never_end(victim: Victim) -> None:
    """gRPC keeps what it has read of them, a multiple, until it ends the connection."""
    size, most = 2**19, 4
    victim.allowed = most * size * HEADER_COST
    with ExitStack() as stack:
        raw = [stack.enter_context(RawStream(victim.port)) for _ in range(most)]
        pool = stack.enter_context(ThreadPoolExecutor(most))
        list(pool.map(lambda each: each.send(endless_headers(size)), raw))
        assert victim.serves()
        for stream in raw:
            stream.wait_for_close()


@pytest.mark.long
def test_tls_handshakes_that_never_end(encrypted_victim: Victim) -> None:
    """They cost more than a connection that says nothing, and are ended as soon."""
    encrypted_victim.allowed = CROWD * HANDSHAKE_COST
    hello = client_hello()
    with ExitStack() as stack:
        crowd = [stack.enter_context(RawStream(encrypted_victim.port)) for _ in range(CROWD)]
        for stranger in crowd:
            stranger.send(hello)
        assert encrypted_victim.serves()
        for stranger in crowd:
            stranger.wait_for_close()


def test_questions_about_its_health_that_never_end(victim: Victim) -> None:
    """Few are gathered at a time, each for a short time, and an honest one is answered meanwhile."""
    size = MAX_MESSAGE_BYTES - 100
    victim.allowed = MOST_QUESTIONS * MAX_MESSAGE_BYTES
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(3 * MOST_QUESTIONS))
        raw = [stack.enter_context(RawStream(victim.port)) for _ in range(3 * MOST_QUESTIONS)]
        for stream in raw:
            stream.send(opening(HEALTH))
        message = grpc_prefix(size) + bytes(size - 1)
        for each in [pool.submit(stream.push, message) for stream in raw]:
            each.result()
        with grpc.insecure_channel(f"127.0.0.1:{victim.port}") as channel:
            ask: Any = channel.unary_unary(HEALTH)
            assert ask(b"", timeout=SECONDS) == b"\x08\x01"
