"""The mailbox under every order of messages; nothing is lost, nothing is mixed up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.collectives.mailbox import (
    ALLOWANCE_BYTES,
    MESSAGE_BYTES,
    Mailbox,
    MessageAllowance,
)
from telegrad.collectives.messages import (
    ENTERED,
    PUSH,
    READY,
    AbortMessage,
    Channel,
    FormMessage,
    GroupKey,
    LeftMessage,
    OperationId,
    OperationMessage,
    Signature,
    UnformedMessage,
    pack_call,
)
from telegrad.errors import CollectiveMismatchError, DecodeError
from telegrad.wire import decode, encode

KEY = GroupKey("abc", 1)
REDUCE = Signature(operation="all_reduce", op="SUM", dtype="float32", shape=(3,))
BARRIER = Signature(operation="barrier")


def mailbox() -> Mailbox:
    return Mailbox("world", 0, lambda r: f"rank {r}")


def message(
    sequence: int, signature: Signature = REDUCE, number: int = 0, channel: Channel = None
) -> OperationMessage:
    return OperationMessage(KEY, OperationId(sequence, channel), pack_call(signature), number)


@given(st.permutations(list(itertools.product((1, 2, 3), (1, 2), (0, 1)))), st.data())
def test_data_of_several_operations_in_any_order(
    arrivals: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Two ranks push twice in each of three operations, which are entered in between."""
    box = mailbox()
    slots = []
    events = data.draw(st.permutations(["enter"] * 3 + ["message"] * len(arrivals)))
    waiting = iter(arrivals)
    for event in events:
        if event == "enter":
            slots.append(box.enter(None, REDUCE))
        else:
            sequence, source, step = next(waiting)
            content = bytes([sequence, source, step])
            slot = box.deliver(source, PUSH, message(sequence, number=step), content)
            assert (slot is not None) == (sequence <= len(slots))
    for sequence, slot in enumerate(slots, 1):
        assert slot.id == OperationId(sequence)
        assert slot.heard == {1, 2}
        for source, step in itertools.product((1, 2), (0, 1)):
            assert slot.arrived.pop((source, step)) == bytes([sequence, source, step])
    assert box.early == 0


def test_what_comes_too_late_is_dropped() -> None:
    box = mailbox()
    slot = box.enter(None, REDUCE)
    box.leave(slot)
    assert box.deliver(1, ENTERED, message(1), b"") is None
    assert box.early == 0


def test_who_is_ready_and_who_asks() -> None:
    box = mailbox()
    box.deliver(1, ENTERED, message(1, number=1), b"")
    slot = box.enter(None, REDUCE)
    assert (slot.wanting, slot.ready, slot.asked) == ({1}, set(), False)
    box.deliver(2, READY, message(1), b"")
    assert (slot.ready, slot.asked) == ({2}, False)
    box.deliver(3, ENTERED, message(1), b"")
    assert slot.asked
    assert slot.heard == {1, 2, 3}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", [PUSH, READY, ENTERED])
def test_a_mismatch_shows_whatever_comes_and_whenever(early: bool, kind: str) -> None:
    box = mailbox()
    words = r"rank 0 called all_reduce\(op=SUM, dtype=float32, shape=\(3,\)\), but rank 2 called"
    if early:
        box.deliver(2, kind, message(1, BARRIER), b"")
        with pytest.raises(CollectiveMismatchError, match=words):
            box.enter(None, REDUCE)
        return
    box.enter(None, REDUCE)
    with pytest.raises(CollectiveMismatchError, match=words):
        box.deliver(2, kind, message(1, BARRIER), b"")


def test_channels_are_counted_apart() -> None:
    box = mailbox()
    assert box.enter((1, 0, 5), REDUCE).id.sequence == 1
    assert box.enter((1, 0, 6), REDUCE).id.sequence == 1
    assert box.enter((1, 0, 5), REDUCE).id.sequence == 2
    assert box.entered(None) == 0
    assert box.counts(1, 0) == {5: 2, 6: 1}
    box.deliver(1, PUSH, message(3, channel=(1, 0, 5)), b"x")
    box.deliver(1, PUSH, message(2), b"x")
    box.drop(lambda operation_id: operation_id.channel is not None)
    assert box.early == 1


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        (REDUCE, REDUCE, True),
        (Signature(operation="send", shape=(2,)), Signature(operation="recv", shape=(2,)), True),
        (Signature(operation="send", shape=(2,)), Signature(operation="recv", shape=(3,)), False),
        (
            Signature(operation="all_gather", dtype="int8", shape=(1,)),
            Signature(operation="all_gather", dtype="int8", shape=(2, 2)),
            True,
        ),
        (REDUCE, Signature(operation="all_reduce", op="SUM", dtype="float32", shape=()), False),
    ],
)
def test_what_fits(one: Signature, other: Signature, fits: bool) -> None:
    assert one.fits(other) is fits
    assert other.fits(one) is fits


# -- the messages as bytes -------------------------------------------------------------------

MESSAGES = [
    LeftMessage(KEY, 4, {0: 1, 9: 3}, {2: 5}),
    FormMessage(0, 3, "abc", (0, 2), 4, (3, 4)),
    FormMessage(0, 3, "abc", (0, 2), 4, (), (1, 3)),
]


@pytest.mark.parametrize("original", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_arrives_as_it_was(
    original: LeftMessage | FormMessage,
) -> None:
    body = decode(encode(original.to_wire()).document, [])
    assert type(original).from_wire(body) == original


def test_a_cause_arrives_as_it_was() -> None:
    abort = AbortMessage(KEY, 3, CollectiveMismatchError("a and b"))
    body = decode(encode(abort.to_wire()).document, [])
    cause = AbortMessage.from_wire(body).cause
    assert type(cause) is CollectiveMismatchError
    assert str(cause) == "a and b"
    unformed = UnformedMessage(2, "w0:1", cause)
    again = UnformedMessage.from_wire(decode(encode(unformed.to_wire()).document, []))
    assert (again.place, again.failure, str(again.cause)) == (2, "w0:1", "a and b")
    garbled = AbortMessage.from_wire([["abc", 1], 0, {"type": 3}])
    assert "nothing readable" in str(garbled.cause)


@pytest.mark.parametrize("kind", [AbortMessage, LeftMessage, FormMessage, UnformedMessage])
@pytest.mark.parametrize("body", [None, [], {}, ["abc"], ["abc", 1, 2, [1], [], None, "x"], "text"])
def test_garbage_is_refused(kind: type[AbortMessage], body: object) -> None:
    with pytest.raises(DecodeError):
        kind.from_wire(body)


@given(
    st.integers(1, 2**62),
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2**63 - 1)),
    st.sampled_from([REDUCE, BARRIER, Signature(operation="send", shape=(), label="\u00e9")]),
    st.integers(-(2**62), 2**62),
    st.binary(max_size=99),
)
def test_a_message_of_an_operation_arrives_as_it_was(
    sequence: int, channel: Channel, called: Signature, number: int, data: bytes
) -> None:
    original = message(sequence, called, number, channel)
    again, rest = OperationMessage.unpack(bytearray(original.pack() + data))
    assert again == original
    assert again.signature == called
    assert rest == data


@given(st.binary(max_size=200))
def test_other_bytes_are_no_message_of_an_operation(packed: bytes) -> None:
    with pytest.raises(DecodeError):
        OperationMessage.unpack(packed)


@given(st.integers(0, 200))
def test_a_part_of_a_message_of_an_operation_is_none(length: int) -> None:
    whole = message(1, REDUCE, channel=(0, 1, 2)).pack()
    with pytest.raises(DecodeError):
        OperationMessage.unpack(whole[: min(length, len(whole) - 1)])


@pytest.mark.parametrize("body", [None, [], {}, ["abc"], [["x"], None, None], "text"])
def test_a_message_with_a_bad_call_or_group_is_refused(body: object) -> None:
    good: dict[str, Any] = dict(zip(OperationMessage.__match_args__, message(1), strict=True))
    call = encode(body).document
    for bad in ({"call": call}, {"group": GroupKey("\u00e9", 1)}):
        with pytest.raises(DecodeError):
            OperationMessage.unpack(OperationMessage(**{**good, **bad}).pack())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**19), st.booleans()), max_size=60))
def test_unrequested_data_of_operations_stays_within_the_allowance(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Of an operation that pushes `nbytes`, or is over; what is refused would exceed the limit."""
    allowance = MessageAllowance()
    pushed = dict.fromkeys(range(4), 0)  # by operation, all to one rank
    for operation, nbytes, over in steps:
        if over:
            allowance.give_back({7: pushed[operation]})
            pushed[operation] = 0
            continue
        cost = allowance.take(7, nbytes)
        whole = sum(pushed.values()) + nbytes + MESSAGE_BYTES
        assert (cost > 0) is (whole <= ALLOWANCE_BYTES)
        pushed[operation] += cost
        assert sum(pushed.values()) <= ALLOWANCE_BYTES
    allowance.give_back({7: sum(pushed.values())})
    assert allowance.take(7, ALLOWANCE_BYTES // 2)
