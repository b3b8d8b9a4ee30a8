from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from telegrad import pb
from telegrad.transport.security.handshake import (
    AcceptHandshake,
    DialHandshake,
    Identity,
    Reason,
    RefusedError,
    Underlay,
    refusal,
)
from telegrad.transport.security.tags import UNTAGGED, BadTagError, FrameTags, PlainFrames
from telegrad.types import WorkerInfo

TOKEN = b"a token that only the tests use"
ALICE, BOB = WorkerInfo("alice", 0, 11), WorkerInfo("bob", 1, 12)


def ends(
    token: bytes | None = TOKEN, other: bytes | None = TOKEN, expected: WorkerInfo | None = BOB
) -> tuple[DialHandshake, AcceptHandshake]:
    return (
        DialHandshake(Identity("job", ALICE), token, expected=expected),
        AcceptHandshake(Identity("job", BOB), other),
    )


def shake(dial: DialHandshake, accept: AcceptHandshake) -> None:
    assert accept.takes_hello(dial.hello()) == ALICE
    assert dial.takes_answer(accept.answer()) == BOB
    assert accept.takes_proof(dial.prove(7, resumes=True)) == (7, True)
    assert dial.takes_welcome(accept.welcome(9, resumes=True)) == 9


@contextlib.contextmanager
def refuses(reason: Reason, words: str = ".") -> Iterator[pytest.ExceptionInfo[RefusedError]]:
    """Checks that the block is refused for this reason, in words that match."""
    with pytest.raises(RefusedError, match=words) as error:
        yield error
    assert error.value.reason is reason


@pytest.mark.parametrize("expected", [BOB, None, WorkerInfo("bob", 5, 0)])
def test_both_prove_themselves(expected: WorkerInfo | None) -> None:
    dial, accept = ends(expected=expected)
    shake(dial, accept)
    here, there = dial.frames(), accept.frames()
    for payload in (b"", b"one", b"x" * 100_000):
        assert there.open(here.seal(payload)) == payload
        assert here.open(there.seal(payload)) == payload


def test_without_a_token() -> None:
    dial, accept = ends(None, None)
    shake(dial, accept)
    assert isinstance(dial.frames(), PlainFrames)


@pytest.mark.parametrize("token", [b"another token, long enough", None])
def test_the_dialler_has_to_hold_the_token(token: bytes | None) -> None:
    dial, accept = ends(token=token)
    accept.takes_hello(dial.hello())
    dial.takes_answer(accept.answer())
    with refuses(Reason.AUTHENTICATION, "TELEGRAD_TOKEN") as error:
        accept.takes_proof(dial.prove(0, resumes=False))
    assert TOKEN.decode() not in error.value.words


def test_the_listener_has_to_hold_the_token() -> None:
    dial, accept = ends(other=b"another token, long enough")
    accept.takes_hello(dial.hello())
    dial.takes_answer(accept.answer())
    with refuses(Reason.AUTHENTICATION):
        dial.takes_welcome(accept.welcome(0, resumes=False))


def test_a_proof_of_another_stream_is_worth_nothing() -> None:
    dial, accept = ends()
    shake(dial, accept)
    recorded = dial.prove(0, resumes=False)
    again = AcceptHandshake(Identity("job", BOB), TOKEN)
    again.takes_hello(dial.hello())
    with refuses(Reason.AUTHENTICATION):
        again.takes_proof(recorded)


def test_what_a_side_says_that_it_holds_is_proved_too() -> None:
    """Someone on the path could have had envelopes dropped, or sent again."""
    dial, accept = ends()
    accept.takes_hello(dial.hello())
    dial.takes_answer(accept.answer())
    proof = pb.Proof.FromString(dial.prove(3, resumes=True)[1:])
    proof.received = 4
    with refuses(Reason.AUTHENTICATION):
        accept.takes_proof(b"P" + proof.SerializeToString())
    welcome = pb.Welcome.FromString(accept.welcome(3, resumes=True)[1:])
    welcome.resumes = False
    with pytest.raises(RefusedError):
        dial.takes_welcome(b"W" + welcome.SerializeToString())


def test_a_proof_cannot_be_reflected() -> None:
    dial, accept = ends()
    accept.takes_hello(dial.hello())
    dial.takes_answer(accept.answer())
    mac = pb.Proof.FromString(dial.prove(0, resumes=False)[1:]).mac
    with pytest.raises(RefusedError):
        dial.takes_welcome(b"W" + pb.Welcome(mac=mac).SerializeToString())


def test_a_lane_proves_that_it_belongs_to_its_stream() -> None:
    dial, accept = ends()
    shake(dial, accept)
    stream = dial.stream_id()
    assert stream == accept.stream_id()
    lane = DialHandshake(Identity("job", ALICE), TOKEN, expected=BOB, lane_of=stream)
    door = AcceptHandshake(Identity("job", BOB), TOKEN)
    shake(lane, door)
    assert door.lane_of == stream
    assert accept.lane_of == b""
    assert lane.stream_id() != stream


def test_a_lanes_proof_is_none_for_another_stream_or_purpose() -> None:
    lane = DialHandshake(Identity("job", ALICE), TOKEN, lane_of=b"s" * 32)
    for change in ({"stream": b"t" * 32}, {"purpose": "control", "stream": b""}):
        door = AcceptHandshake(Identity("job", BOB), TOKEN)
        hello = pb.Hello.FromString(lane.hello()[1:])
        for name, value in change.items():
            setattr(hello, name, value)
        door.takes_hello(b"H" + hello.SerializeToString())
        answer = pb.Hello.FromString(door.answer()[1:])
        answer.purpose = "bulk"
        lane.takes_answer(b"H" + answer.SerializeToString())
        with refuses(Reason.AUTHENTICATION):
            door.takes_proof(lane.prove(0, resumes=False))


def test_a_hello_that_is_altered_on_its_way() -> None:
    """The proof covers all that was said, so nobody in between can take a capability away."""
    for change in ({"capabilities": ["more"]}, {"newest_version": 3}, {"nonce": b"n" * 32}):
        dial, accept = ends()
        hello = pb.Hello.FromString(dial.hello()[1:])
        hello.MergeFrom(pb.Hello(**change))
        accept.takes_hello(b"H" + hello.SerializeToString())
        dial.takes_answer(accept.answer())
        with refuses(Reason.AUTHENTICATION):
            accept.takes_proof(dial.prove(0, resumes=False))


def test_an_answer_for_another_purpose() -> None:
    dial, accept = ends()
    accept.takes_hello(DialHandshake(Identity("job", ALICE), TOKEN, lane_of=b"s" * 32).hello())
    with refuses(Reason.MALFORMED):
        dial.takes_answer(accept.answer())


@pytest.mark.parametrize(
    ("identity", "expected", "reason"),
    [
        (Identity("other", BOB), BOB, Reason.JOB),
        (Identity("job", WorkerInfo("carol", 1, 12)), BOB, Reason.NAME),
        (Identity("job", WorkerInfo("bob", 1, 13)), BOB, Reason.INCARNATION),
    ],
)
def test_whom_it_does_not_want(identity: Identity, expected: WorkerInfo, reason: Reason) -> None:
    """Both ends notice, whichever speaks first."""
    dial = DialHandshake(Identity("job", ALICE), TOKEN, expected=expected)
    accept = AcceptHandshake(identity, TOKEN)
    with refuses(reason) as error:
        accept.takes_hello(dial.hello())
    with refuses(reason) as told:
        dial.takes_answer(refusal(error.value))
    assert told.value.words == error.value.words
    with refuses(reason):
        dial.takes_answer(accept.answer())


@pytest.mark.parametrize(("oldest", "newest"), [(7, 9), (0, 0)])
def test_no_version_in_common(oldest: int, newest: int) -> None:
    hello = pb.Hello.FromString(ends()[0].hello()[1:])
    hello.oldest_version, hello.newest_version = oldest, newest
    with refuses(Reason.VERSION, f"{oldest} to {newest}, here: 2 to 2"):
        ends()[1].takes_hello(b"H" + hello.SerializeToString())


@pytest.mark.parametrize("message", [b"", b"H", b"Hgarbage", b"GET / HTTP/1.1", b"P", b"R\xff\xff"])
def test_garbage(message: bytes) -> None:
    for take in (ends()[1].takes_hello, ends()[0].takes_answer):
        with refuses(Reason.MALFORMED):
            take(message)


def tags() -> tuple[FrameTags, FrameTags]:
    return FrameTags(sending=b"a", receiving=b"b"), FrameTags(sending=b"b", receiving=b"a")


def test_a_frame_that_is_changed_repeated_left_out_or_reflected() -> None:
    here, there = tags()
    first, second = here.seal(b"first"), here.seal(b"second")
    for message in (first[:-1] + b"T", second, b"", b"short", there.seal(b"first")):
        with pytest.raises(BadTagError):
            there.open(message)
    assert there.open(first) == b"first"
    with pytest.raises(BadTagError):
        there.open(first)
    assert there.open(second) == b"second"


SHOWN, ANOTHER = b"s" * 32, b"t" * 32


def bound(dialler: Underlay, listener: Underlay) -> tuple[DialHandshake, AcceptHandshake]:
    return (
        DialHandshake(Identity("job", ALICE), TOKEN, expected=BOB, underlay=dialler),
        AcceptHandshake(Identity("job", BOB), TOKEN, underlay=listener),
    )


def test_under_tls_frames_carry_no_tags() -> None:
    dial, accept = bound(Underlay(SHOWN), Underlay(SHOWN))
    shake(dial, accept)
    assert isinstance(dial.frames(), PlainFrames)
    assert isinstance(accept.frames(), PlainFrames)


@pytest.mark.parametrize(("dialler", "listener"), list(itertools.product([True, False], repeat=2)))
def test_frames_carry_no_tags_where_both_ends_know_of_their_carrier_that_they_need_none(
    *, dialler: bool, listener: bool
) -> None:
    """One end that claims it gets nothing by that: the other one goes by its own carrier."""
    dial, accept = bound(
        *[Underlay(told=(UNTAGGED,) if knows else ()) for knows in (dialler, listener)]
    )
    shake(dial, accept)
    kind = PlainFrames if dialler and listener else FrameTags
    assert isinstance(dial.frames(), kind)
    assert isinstance(accept.frames(), kind)
    assert accept.frames().open(dial.frames().seal(b"a frame")) == b"a frame"


@pytest.mark.parametrize(
    ("dialler", "listener"), [(SHOWN, ANOTHER), (SHOWN, b""), (b"", SHOWN), (ANOTHER, SHOWN)]
)
def test_proofs_cover_the_certificate_that_was_shown(dialler: bytes, listener: bytes) -> None:
    """Each end finds somebody in between by itself."""
    dial, accept = bound(Underlay(dialler), Underlay(listener))
    accept.takes_hello(dial.hello())
    dial.takes_answer(accept.answer())
    with refuses(Reason.AUTHENTICATION) as error:
        accept.takes_proof(dial.prove(0, resumes=False))
    assert ("somebody in between" in error.value.words) == bool(listener)
    with refuses(Reason.AUTHENTICATION) as error:
        dial.takes_welcome(accept.welcome(0, resumes=False))
    assert ("somebody in between" in error.value.words) == bool(dialler)


def test_a_name_must_be_in_the_certificate_in_whatever_case() -> None:
    shake(*bound(Underlay(SHOWN, frozenset({"x", "BOB"})), Underlay(SHOWN, frozenset({"Alice"}))))
    others = Underlay(SHOWN, frozenset({"carol", "bob.example", "*"}))
    dial, accept = bound(others, Underlay(SHOWN))
    accept.takes_hello(dial.hello())
    with refuses(Reason.AUTHENTICATION, "'bob' has shown the certificate of .* and 'carol'"):
        dial.takes_answer(accept.answer())
    dial, accept = bound(Underlay(SHOWN), Underlay(SHOWN, frozenset()))
    with pytest.raises(
        RefusedError, match="certificate of nobody; run: telegrad certs issue alice"
    ):
        accept.takes_hello(dial.hello())


def test_a_name_that_stands_for_another() -> None:
    """A line to the coordinator has a name of its own; its worker's is what counts."""
    names = frozenset({"worker3"})
    dial, accept = bound(Underlay(SHOWN), Underlay(SHOWN, names, lambda _: "worker3"))
    shake(dial, accept)
    dial, accept = bound(Underlay(SHOWN), Underlay(SHOWN, names, lambda _: ""))
    with pytest.raises(RefusedError, match="'alice' has shown the certificate of 'worker3'"):
        accept.takes_hello(dial.hello())
