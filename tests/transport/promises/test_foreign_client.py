"""A client that is written from docs/wire-format.md joins a real job, calls, and leaves.

Nothing of telegrad runs at its end: gRPC, msgpack and the independent readers of the vectors alone.
"""

from __future__ import annotations

import queue
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest

from telegrad import rpc
from telegrad.testing import leaks
from telegrad.types import Array
from tests.wire import independent, independent_frames

TOKEN = "a token that only the tests use"
SECONDS = 20.0
METHOD = "/telegrad.Carrier/Open"
END = object()


@rpc.expose
def scaled(x: Array, factor: float) -> Array:
    return np.multiply(x, factor, dtype=x.dtype)


@rpc.expose
def when(x: Any) -> str:
    return repr(x)


@rpc.expose
def refuses(words: str) -> None:
    raise ValueError(words)


def put(number: int, value: Any) -> bytes:
    """Writes one field of a protobuf message."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


class Client:
    """One control stream."""

    def __init__(self, endpoint: str, me: tuple[str, int, int], expected: tuple[str, int]) -> None:
        self.channel = grpc.insecure_channel(endpoint.removeprefix("grpc://"))
        self.outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        opened: Any = self.channel.stream_stream(METHOD)
        self.incoming: Iterator[bytes] = opened(iter(self.outgoing.get, END), timeout=SECONDS)
        self.sent = self.taken = self.posted = self.received = 0
        name, rank, incarnation = me
        hello = b"".join(
            [
                put(1, 2), put(2, 2), put(4, "default"), put(5, name),
                put(6, rank << 1 ^ rank >> 63), put(7, incarnation),
                put(8, secrets.token_bytes(32)), put(9, "control"),
                put(10, expected[0]), put(11, expected[1]),
            ]
        )  # fmt: skip
        self.outgoing.put(b"H" + hello)
        answer = next(self.incoming)
        assert answer[:1] == b"H", answer
        token, hellos = TOKEN.encode(), independent_frames.transcript(hello, answer[1:])
        macs = [
            independent_frames.mac(token, role, b"control", {}, hellos, b"")
            for role in (b"dialler", b"listener")
        ]
        self.outgoing.put(b"P" + put(1, macs[0]))
        welcome = next(self.incoming)
        assert independent_frames.message(independent_frames.PROOF, welcome[1:]) == {"mac": macs[1]}
        self.sending = independent_frames.stream_key(token, b"dialler", hellos)
        self.receiving = independent_frames.stream_key(token, b"listener", hellos)

    def write(self, payload: bytes, *envelope: Any) -> None:
        payload += put(8, msgpack.packb([self.received, *envelope]))
        self.outgoing.put(independent_frames.tag(self.sending, self.sent, payload) + payload)
        self.sent += 1

    def read(self) -> dict[str, Any]:
        message = next(self.incoming)
        payload = message[16:]
        assert message[:16] == independent_frames.tag(self.receiving, self.taken, payload)
        self.taken += 1
        frame = independent_frames.frame(payload)
        if beat := frame.get("heartbeat", {}).get("sent"):
            self.write(put(3, put(2, beat)))
        return frame

    def ask(self, kind: str, body: Any, externals: bytes = b"", *buffers: bytes) -> tuple[str, Any]:
        """Sends a request and returns the kind and the parts of its reply."""
        self.posted += 1
        number = self.posted
        sizes = map(len, buffers)
        self.write(
            put(9, b"".join(buffers)),
            number, kind, number, False, SECONDS, 0, msgpack.packb(body), externals,
            0, len(buffers), *sizes,
        )  # fmt: skip
        while True:
            for reply in self.read().get("envelopes", []):
                self.received += 1
                if reply.get("reply") and reply["call"] == number:
                    objects = independent.externals(
                        reply.get("externals", b""), reply.get("buffers", [])
                    )
                    return reply["kind"], (independent.document(reply["document"]), objects)

    def part(self) -> None:
        """Says goodbye and waits for the answer, and for the end of the stream."""
        self.write(put(5, put(1, "done")))
        while "goodbye" not in self.read():
            pass
        self.outgoing.put(END)
        assert list(self.incoming) == []

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.outgoing.put(END)
        self.channel.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[rpc.Agent]:
    options = rpc.RpcOptions(token=TOKEN, callables="exposed")
    job = f"file://{tmp_path}/job"
    with rpc.Agent("server", rank=0, world_size=1, init_method=job, options=options) as agent:
        yield agent


def endpoint_in(file: Path) -> str:
    lines = dict(line.split(" ", 1) for line in file.read_text().splitlines())
    return lines["endpoint"]


def test_a_client_from_the_description_joins_calls_and_leaves(
    server: rpc.Agent, tmp_path: Path
) -> None:
    number = secrets.randbits(62)
    line = (f"store.-1.{number:x}.stranger", -1, number)
    with Client(endpoint_in(tmp_path / "job"), line, ("coordinator", 0)) as coordinator:
        _, (place, _) = coordinator.ask("member.reserve", {"name": "stranger"})
        assert place == {"name": "stranger", "rank": 1, "world_size": 1}
        drawn = {"key": "telegrad/incarnation", "amount": 1}
        _, (incarnation, _) = coordinator.ask("store.add", drawn)
        told = {**place, "incarnation": incarnation, "endpoints": [], "control": []}
        _, (answer, _) = coordinator.ask("member.join", {**told, "lost_after": 10})
        (name, rank, other, endpoints), mine = answer["members"]
        endpoint = next(each for each in endpoints if each.startswith("grpc://"))
        assert (name, rank, mine) == ("server", 0, ["stranger", 1, incarnation, []])
        leaks.wait_until_gone(
            "wait",
            lambda: [] if len(server.get_worker_infos()) == 2 else ["the stranger"],
            within=SECONDS,
        )

        with Client(endpoint, ("stranger", 1, incarnation), ("server", other)) as worker:
            call_functions(worker)
            worker.part()
        assert coordinator.ask("member.leave", {"reason": "done"}) == ("control.reply", (None, []))
        coordinator.part()
    leaks.wait_until_gone("wait", lambda: server.get_worker_infos()[1:], within=SECONDS)


def call_functions(worker: Client) -> None:
    """Calls with an array, with a time as msgpack has it, and what raises or is refused."""
    external = msgpack.ExtType(1, bytes(4))
    body = {"func": f"{__name__}:scaled", "args": [external, 2], "kwargs": {}}
    metadata = msgpack.packb([["array", ["<f4", "C", 2, 1], 1]])
    kind, (value, objects) = worker.ask("rpc.call", body, metadata, struct.pack("<2f", 1, -0.5))
    assert (kind, value) == ("rpc.reply", {"$external": 0})
    doubled = {"dtype": "<f4", "order": "C", "shape": [2, 1], "items": [2.0, -1.0]}
    assert objects == [{"$array": doubled}]

    timestamp = msgpack.Timestamp(86400)
    body = {"func": f"{__name__}:when", "args": [timestamp], "kwargs": {}}
    _, (value, _) = worker.ask("rpc.call", body)
    assert value == "datetime.datetime(1970, 1, 2, 0, 0, tzinfo=datetime.timezone.utc)"

    body = {"func": f"{__name__}:refuses", "args": ["no"], "kwargs": {}}
    kind, (value, _) = worker.ask("rpc.call", body)
    assert kind == "rpc.error"
    assert (value["type"], value["message"]) == ("builtins:ValueError", "no")
    assert value["worker"] == "server"

    kind, (value, _) = worker.ask("rpc.call", {"func": "os:system", "args": ["true"], "kwargs": {}})
    assert (kind, value["type"]) == ("rpc.error", "telegrad.errors:CallRefusedError")

    body = {"args": ["no"], "kwargs": {}, "func": f"{__name__}:when"}
    kind, (value, _) = worker.ask("rpc.call", body)
    assert (kind, value["type"]) == ("rpc.error", "telegrad.errors:DecodeError")

    kind, (value, _) = worker.ask("no.such", None)
    assert (kind, value["type"]) == ("rpc.error", "telegrad.errors:DecodeError")


def test_one_that_does_not_hold_the_token_is_told_so(server: rpc.Agent, tmp_path: Path) -> None:
    channel = grpc.insecure_channel(endpoint_in(tmp_path / "job").removeprefix("grpc://"))
    hello = put(1, 2) + put(2, 2) + put(4, "default") + put(5, "mallory") + put(8, bytes(32))
    hello += put(9, "control") + put(10, "coordinator")
    messages = [b"H" + hello, b"P" + put(1, bytes(32))]
    with channel:
        opened: Any = channel.stream_stream(METHOD)
        *_, last = opened(iter(messages), timeout=SECONDS)
    refusal = independent_frames.message(independent_frames.REFUSAL, last[1:])
    assert (last[:1], refusal["reason"]) == (b"R", 5)
    assert len(server.get_worker_infos()) == 1
