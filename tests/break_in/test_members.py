"""Those who hold the token, and mean harm: what they send is refused, or they are cut off."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgpack
import pytest

from telegrad.rendezvous import control as messages
from telegrad.rendezvous.control import ControlLine
from telegrad.transport import GrpcTransport
from telegrad.transport.security.handshake import Reason
from telegrad.transport.session.liveness import MOST_IDLE_FRAMES
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, Frame, encode, encode_exception
from telegrad.wire.document import MARKERS, Tag
from tests.break_in import remote_code
from tests.break_in.conftest import LIMITS, TOKEN, Victim
from tests.break_in.members import SECONDS
from tests.break_in.strangers import Ended, Member, error_of, streams
from tests.loops import on_loop
from tests.wire.heads import frame_of

T = TypeVar("T")
HERE = "tests.break_in.remote_code"
PRIME = 2**61 - 1  # every multiple of it has the hash 0


def request(function: str, *args: object) -> dict[str, object]:
    return {"func": function, "script": "", "args": list(args), "kwargs": {}}


def raw_request(argument: bytes) -> bytes:
    """A call of `give_back` whose argument is these bytes of a document."""
    document = encode(request(f"{HERE}:give_back", 0)).document
    assert document.count(b"\x91\x00") == 1
    return document.replace(b"\x91\x00", b"\x91" + argument)


def call(victim: Victim, body: object) -> Envelope:
    return attacked(victim, lambda member: member.call(body))


def attacked(victim: Victim, attack: Callable[[Member], Coroutine[Any, Any, T]]) -> T:
    """Has a member of the job attack its victim."""

    async def begin(info: WorkerInfo) -> T:
        async with streams(victim.port) as (stream,):
            member = Member(stream, victim.job, TOKEN.encode(), info)
            await member.join()
            return await attack(member)

    with victim.enlists("mallory") as mallory:
        return on_loop(lambda: begin(mallory))


# -- who is a member ------------------------------------------------------------------------------


def comes_as(victim: Victim, claimed: WorkerInfo) -> Ended:
    """Proves the token to the victim under a name; returns how that ended."""

    async def attack() -> Ended:
        async with streams(victim.port) as (stream,):
            member = Member(stream, victim.job, TOKEN.encode(), claimed)
            await stream.send(member.shake.hello())
            member.shake.takes_answer(await stream.read() or b"")
            await stream.send(member.shake.prove(0, resumes=False))
            return await stream.ended()

    return on_loop(attack)


@pytest.mark.parametrize("name", ["worker0", "nobody"])
def test_a_name_that_the_coordinator_has_not_given(victim: Victim, name: str) -> None:
    """Whoever dials a worker has to be a member; a later incarnation of a living one is none."""
    (living,) = [each for each in victim.members() if each.name == "worker0"]
    claimed = WorkerInfo(name, living.rank, living.incarnation + 1)

    ended = comes_as(victim, claimed)
    reason, words = ended.refusal
    assert (reason, len(ended.received)) == (Reason.UNANNOUNCED, 2)
    assert f"incarnation {claimed.incarnation}) is no member of this job" in words
    (record,) = victim.told("connection.refused", peer=name, incarnation=claimed.incarnation)
    assert record["reason"] == "UNANNOUNCED"
    assert living in victim.members()
    assert claimed not in victim.members()


def test_the_name_and_incarnation_of_the_victim_itself(victim: Victim) -> None:
    """Whom it calls over no connection it takes none from, nor is it lost to itself by one."""
    (itself,) = [each for each in victim.members() if each.name == "worker1"]

    reason, words = comes_as(victim, itself).refusal
    assert reason is Reason.NAME
    assert "is this worker, and dials nobody here" in words
    assert itself in victim.members()


def test_the_coordinator_gives_no_living_incarnation_twice(victim: Victim) -> None:
    (living,) = [each for each in victim.members() if each.name == "worker0"]
    line = ControlLine(
        job=victim.job, rank=-1, token=TOKEN.encode(), transports=[GrpcTransport()], owner="mallory"
    )
    try:
        line.connect(victim.coordinator, SECONDS)
        place = line.ask(messages.RESERVE, {"name": "mallory"}, timeout=SECONDS)
        assert isinstance(place, dict)
        body = {"incarnation": living.incarnation, "endpoints": [], "control": [], "start_when": 1}
        with pytest.raises(ValueError, match=f"{living.incarnation} is that of 'worker0'"):
            line.ask(messages.JOIN, {**place, **body}, timeout=SECONDS)
    finally:
        line.close()


# -- what may be called ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        "os:system", "posix:system", "subprocess:run", "subprocess:Popen", "builtins:eval",
        "builtins:exec", "builtins:__import__", "builtins:open", "pickle:loads", "numpy:load",
        "ctypes:CDLL", "importlib:import_module", "shutil:rmtree", "code:interact", "os:_exit",
        f"{HERE}:os.system", f"{HERE}:Path.touch", f"{HERE}:_sing", f"{HERE}:Eager.__init__",
        f"{HERE}:Eager.__class__.__bases__", f"{HERE}:who_am_i.__globals__", f"{HERE}:rpc.shutdown",
        "telegrad.rpc:shutdown", "..os:system", "os.path:os.system", "os:system\x00", "", ":", "os",
    ],
)  # fmt: skip
def test_what_may_not_be_called(victim: Victim, function: str) -> None:
    kind, _ = error_of(call(victim, request(function, f"touch {victim.canary}")))
    refusals = ("CallRefusedError", "FunctionNotFoundError", "DecodeError")
    assert kind in {f"telegrad.errors:{each}" for each in refusals}
    if kind.endswith("CallRefusedError"):
        (record, *_) = victim.told("call.refused", caller="mallory")
        assert record["function"] == function


def test_what_may_not_be_called_stands_among_the_arguments(victim: Victim) -> None:
    value = msgpack.packb(msgpack.ExtType(Tag.FUNCTION, b"os:system"))
    kind, _ = error_of(call(victim, raw_request(value)))
    assert kind == "telegrad.errors:DecodeError"
    (record, *_) = victim.told("call.refused", caller="mallory")
    assert (record["function"], record["reason"]) == ("os:system", "NOT_ALLOWED_AS_VALUE")


def test_classes_with_code_of_their_own(victim: Victim) -> None:
    """They arrive as the objects that they are; nothing of theirs has run."""
    eager = [MARKERS[Tag.DATACLASS], f"{HERE}:Eager", "x", 5]
    error = {**encode_exception(ValueError(1)), "type": f"{HERE}:EagerError"}
    both = msgpack.packb([eager, [MARKERS[Tag.EXCEPTION], error]])
    answer = call(victim, raw_request(both))
    assert answer.kind == "rpc.reply"
    told = msgpack.unpackb(answer.document, strict_map_key=False)
    assert told[0][1:] == [f"{HERE}:Eager", "x", 5]
    assert told[1][1]["type"] == f"{HERE}:EagerError"


# -- bombs ----------------------------------------------------------------------------------------


BOMBS = {
    "a length that lies": (b"\xdd\xff\xff\xff\xff", "unread|Unpack|incomplete|exceeds"),
    "lengths in lengths": (b"\xdd\x00\x00\xff\xff" * 300, ""),
    "a string that lies": (b"\xdb\x7f\xff\xff\xff", ""),
    "an extension that lies": (b"\xc9\xff\xff\xff\xff\x02", ""),
    "depth": (b"\x91" * 300 + b"\xc0", "deeper than 256 levels"),
    "more depth than msgpack takes": (b"\x91" * 60_000 + b"\xc0", "deeper than 256 levels"),
    "elements": (b"\xdd" + struct.pack(">I", 200_000) + bytes(200_000), "100000 elements"),
    "elements of many lists": (b"\xdc\x00\x64" + (b"\xdc\x07\xd0" + bytes(2000)) * 100, "100000 elements"),
    "keys that are bytes": (b"\x81\xc4\x01a\x00", ""),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(victim: Victim, bomb: str) -> None:
    document, words = BOMBS[bomb]
    answer = call(victim, raw_request(document))
    if bomb == "keys that are bytes":  # harmless: their hashes cannot be foreseen
        assert answer.kind == "rpc.reply"
        return
    kind, told = error_of(answer)
    assert kind == "telegrad.errors:DecodeError"
    assert not words or any(each in told for each in words.split("|")), told


def colliding(count: int) -> list[object]:
    """Numbers as they are written, all of one hash."""
    numbers = (k * PRIME for k in range(8, count + 8))
    return [
        msgpack.ExtType(Tag.BIG_INT, each.to_bytes(each.bit_length() // 8 + 1, "little"))
        for each in numbers
    ]


@pytest.mark.parametrize("tag", [Tag.SET, Tag.DICT])
def test_keys_that_collide(victim: Victim, tag: Tag) -> None:
    """A hundred thousand of them would keep a processor busy for minutes."""
    keys = colliding(45_000)
    if tag is Tag.DICT:
        keys = [each for key in keys for each in (key, 1)]
    kind, words = error_of(call(victim, raw_request(msgpack.packb([MARKERS[tag], *keys]))))
    assert kind == "telegrad.errors:DecodeError"
    assert "keys that collide" in words


# -- floods ---------------------------------------------------------------------------------------


def cut_off(victim: Victim, words: str) -> dict[str, Any]:
    (record,) = victim.told("peer.cut_off", peer="mallory", reason="PROTOCOL")
    assert words in record["words"]
    return record


async def flood(member: Member, frames: int, make: Any) -> int:
    """Writes until all is written or the stream is over; returns how many were written."""
    sent = 0
    while sent < frames and not member.stream.call.done():
        await make(member)
        sent += 1
        if sent % 100 == 0:
            await asyncio.sleep(0)
    await member.stream.ended()
    return sent


def test_a_million_tiny_frames(victim: Victim) -> None:
    """A thousand with nothing new in them are more than an honest worker writes in minutes."""

    async def attack(member: Member) -> int:
        return await flood(member, 1_000_000, lambda m: m.write(Frame()))

    sent = attacked(victim, attack)
    record = cut_off(victim, "a flood")
    assert MOST_IDLE_FRAMES < record["messages"] <= sent < 1_000_000
    assert record["bytes"] == 20 * record["messages"]  # the tag and a receipt of nothing


def test_a_million_tiny_calls_whose_answers_nobody_reads(victim: Victim) -> None:
    """Answers wait for whoever asked; of those that nobody takes there is an end."""

    async def post(member: Member) -> None:
        await member.post(Envelope("no.such", member.posted + 1))

    async def attack(member: Member) -> int:
        return await flood(member, 1_000_000, post)

    sent = attacked(victim, attack)
    record = cut_off(victim, "it takes no replies")
    most = 2 * LIMITS.served_calls_per_peer
    assert most < record["messages"] <= sent < 1_000_000


def test_calls_beyond_what_one_peer_may_have(victim: Victim) -> None:
    async def attack(member: Member) -> list[str]:
        body = encode(request(f"{HERE}:hold")).document
        for number in range(1, LIMITS.served_calls_per_peer + 1):
            await member.post(Envelope("rpc.call", number, depth=1, document=body))
        answer = await member.call(request(f"{HERE}:who_am_i"))
        return list(error_of(answer))

    kind, words = attacked(victim, attack)
    victim.cluster.call(1, remote_code.let_go)
    assert kind == "telegrad.errors:PoolExhaustedError"
    assert "Limits.served_calls_per_peer" in words


def test_a_call_that_comes_again_while_it_is_served_is_served_once(victim: Victim) -> None:
    """A second one would hide the first from the end of the worker, which waits for its calls."""

    async def attack(member: Member) -> None:
        body = encode(request(f"{HERE}:hold")).document
        await member.post(Envelope("rpc.call", 1, depth=1, document=body))
        await member.call(request(f"{HERE}:wait_for_hold"))
        for _ in range(2):
            await member.post(Envelope("rpc.call", 1, depth=1, document=body))
        await member.call(request(f"{HERE}:who_am_i"))  # by then all of them have been taken

    attacked(victim, attack)
    assert victim.cluster.call(1, remote_code.held) == 1
    victim.cluster.call(1, remote_code.let_go)


def test_a_message_that_announces_more_than_may_come(victim: Victim) -> None:
    async def attack(member: Member) -> None:
        announced = [1, "rpc.call", 1, False, 0, 0, 2**40, b"", 0, 0]
        await member.write(frame_of([0, *announced]))
        await member.stream.ended()

    attacked(victim, attack)
    assert cut_off(victim, "Limits.document_bytes")["messages"] == 1
