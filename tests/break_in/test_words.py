"""Words of strangers and members reach logs, errors and terminals with nothing that steers these."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import collectives, pb, rpc
from telegrad.collectives.messages import OperationId, OperationMessage, Signature, pack_call
from telegrad.doctor.worker import checked
from telegrad.errors import AuthenticationError, RendezvousError, TelegradError, WorkerLostError
from telegrad.launch.log_relay import LogRelay, Screen
from telegrad.launch.nodes import Event, share_ranks
from telegrad.rendezvous import MemoryStore, coordinator
from telegrad.rendezvous.control import ControlLine, decode_error
from telegrad.rpc.base.failure import rebuild_failure, remote_traceback
from telegrad.rpc.pool.inbox import MOST_GARBAGE_TOLD
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from telegrad.transport import GrpcTransport, shared_loop_thread
from telegrad.transport.security.handshake import Reason
from telegrad.wire import Envelope, escaped
from tests.break_in.strangers import SECONDS, listener

# Clears the screen, turns the reading direction, and looks like lines of a worker and the launcher.
EVIL = "\x1b[2J\x9b31m\u202ereversed\r\n[0] all is well\ntelegrad run: done\x00\x07"
SHOWN = "\\x1b[2J"  # how one sees it


def is_harmless(text: str, *, lines: bool = False) -> bool:
    """Whether only line ends are left of what steers a terminal, and those where there may be some."""
    return text.replace("\n", "" if lines else "\n").isprintable()


@given(st.text(), st.booleans())
def test_what_is_escaped_steers_no_terminal(text: str, lines: bool) -> None:
    found = escaped(text, lines=lines)
    assert is_harmless(found.replace("\t", "") if lines else found, lines=lines)
    if is_harmless(text):
        assert found == text


def test_a_long_text_is_cut() -> None:
    assert escaped("a" * 100, most=10) == "a" * 10 + "..."


def test_a_false_coordinator_refuses_with_words_of_its_own() -> None:
    refusal = (
        b"R"
        + pb.Refusal(
            reason=Reason.AUTHENTICATION.name,
            words=EVIL * 100,
        ).SerializeToString()
    )

    async def refuse(_: object, context: Any) -> None:
        await context.read()
        await context.write(refusal)

    loop = shared_loop_thread().acquire()
    serving = listener(refuse)
    port = loop.run(serving.__aenter__(), SECONDS)
    line = ControlLine(
        job="job", rank=-1, token=b"t" * 16, transports=[GrpcTransport()], owner="worker0"
    )
    try:
        with pytest.raises(AuthenticationError) as caught:
            line.connect(f"grpc://127.0.0.1:{port}", SECONDS)
    finally:
        line.close()
        loop.run(serving.__aexit__(None, None, None), SECONDS)
        loop.release()
    assert is_harmless(str(caught.value))
    assert SHOWN in str(caught.value)
    assert len(str(caught.value)) < 4000


TOLD: dict[str, Callable[[], BaseException]] = {
    "an answer of the coordinator": lambda: decode_error({"type": "ValueError", "message": EVIL}),
    "the error of a call": lambda: rebuild_failure(
        {"type": f"no.such:{EVIL}", "message": EVIL, "traceback": EVIL, "worker": EVIL, "pid": 1}
    ),
}


@pytest.mark.parametrize("what", TOLD)
def test_an_error_that_came_in_a_message(what: str) -> None:
    error = TOLD[what]()
    for text in (str(error), remote_traceback(error) or "", *getattr(error, "__notes__", ())):
        assert is_harmless(text, lines=True), text
        assert not text or SHOWN in text
    assert isinstance(error, TelegradError | ValueError)


def test_a_message_of_the_launcher_is_one_message() -> None:
    """It quotes errors, and lines of workers of other hosts."""
    out, err = io.BytesIO(), io.BytesIO()
    relay = LogRelay(Screen(out, terminal=False), Screen(err, terminal=False), "run")
    relay.say(f"could not start: {EVIL}")
    event = Event.read(json.dumps({"kind": "failed", "node": 1, "text": [EVIL, "text"]}).encode())
    relay.show(5, [line.encode() for line in event.text])
    lines = err.getvalue().decode().splitlines()
    assert all(is_harmless(line) for line in lines)
    begins = [line.partition(" ")[0] for line in lines]
    assert begins == ["telegrad", "", "", "[5]", "[5]"]


def test_what_stands_in_the_store_for_other_hosts() -> None:
    """Any member can write there: the doctor of the other hosts printed it as it was."""
    report = {"ok": True, "text": f"fine\n{EVIL}", "workers": [EVIL]}
    told = json.loads(checked(json.dumps(report).encode(), "worker0"))
    assert is_harmless(told["text"], lines=True)
    assert SHOWN in told["text"]
    assert told["text"].startswith("'worker0' reports:")
    store = MemoryStore()
    store.set(
        "telegrad/launch/node/0", json.dumps({"nodes": 3, "workers": 1, "host": EVIL}).encode()
    )
    for node, words in ((0, "is taken by"), (1, "was started with --nnodes 3")):
        with pytest.raises(RendezvousError, match=words) as caught:
            share_ranks(store, node, 2, 1, lambda _: None)
        assert is_harmless(str(caught.value))
    store.close()


GARBAGE: list[bytes] = [
    b"",
    b"\xff",
    b"null",
    b"[" * 100_000,
    b'{"text": 1}',
    b'{"nodes": 1.5, "workers": 1, "host": ""}',
    b'{"nodes": 2, "workers": -1, "host": ""}',
    b'{"nodes": 2, "workers": 1e999, "host": ""}',
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_in_the_store_is_named_as_such(data: bytes) -> None:
    with pytest.raises(RendezvousError, match="no report of 'worker0'"):
        checked(data, "worker0")
    store = MemoryStore()
    store.set("telegrad/launch/node/0", data)
    with pytest.raises(RendezvousError, match="does not say what node 0 starts"):
        share_ranks(store, 1, 2, 1, lambda _: None)
    store.close()


# -- the log --------------------------------------------------------------------------------------


def test_the_log_tells_of_garbage_harmlessly(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def attack() -> None:
        agent, peer = current_agent(), rpc.get_worker_info("worker0")
        agent.messages.post(peer, EVIL[:50], None)
        agent.messages.post(peer, "rref.user_delete", EVIL)
        assert rpc.rpc_sync("worker0", abs, (-1,)) == 1

    def told() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        assert all(is_harmless(each) for each in messages)
        wanted = ("is garbage: no handler for", "rref.user_delete from")
        return [each for each in wanted if not any(each in message for message in messages)]

    cluster.call(2, attack)
    wait_until_gone("words that the log does not have", told)


@pytest.mark.parametrize("honest", [True, False])
def test_a_reason_for_giving_a_worker_up(
    cluster: Cluster, honest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member writes it; the coordinator logs it, and passes it on to the one that was given up."""
    if not honest:  # a coordinator that passes the words on as they are

        def as_it_is(text: str, **_: object) -> str:
            return text

        monkeypatch.setattr(coordinator, "escaped", as_it_is)
    lines: list[str] = []  # a handler would write to pytest's file, in the loop of the sockets
    monkeypatch.setattr(coordinator.logger, "info", lambda line, *args: lines.append(line % args))

    def attack() -> None:
        victim = rpc.get_worker_info("worker0")
        error = WorkerLostError(EVIL, worker="worker0", reason=EVIL)
        membership = current_agent().life.membership
        assert membership is not None
        membership.gave_up(victim, error)

    def error_of_a_call() -> str:
        try:
            rpc.rpc_sync("worker2", abs, (-1,))
        except WorkerLostError as error:
            return str(error)
        return ""

    errors: list[str] = []

    def not_told() -> list[str]:
        errors[:] = [cluster.call(0, error_of_a_call)]
        return [] if errors[0] else ["worker0 has not heard of it"]

    cluster.call(2, attack)
    wait_until_gone("news", not_told)
    assert is_harmless(errors[0])
    assert f"it has given up this worker: {SHOWN}" in errors[0]
    logged = [line for line in lines if "worker2 has given up worker0" in line]
    assert len(logged) == 1
    assert not honest or (is_harmless(logged[0]) and SHOWN in logged[0])


def test_one_that_is_no_member_does_not_fill_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    groups: dict[int, collectives.ProcessGroup] = {}

    def make_group() -> None:
        groups[rpc.get_worker_info().rank] = collectives.new_group([0, 1])

    def attack() -> None:
        agent, members = current_agent(), sorted(rpc.get_worker_infos(), key=lambda w: w.rank)
        call = pack_call(Signature(operation="all_reduce", op="SUM", dtype="float64", shape=(2,)))
        push = OperationMessage(groups[0].key, OperationId(1), call, 0).pack()
        for _ in range(3 * MOST_GARBAGE_TOLD):
            envelope = Envelope("collectives.push", document=push)
            agent.messages.post_envelope(members[0], envelope)
        assert rpc.rpc_sync("worker0", abs, (-1,)) == 1

    def reduce() -> float:
        total = np.ones(1)
        if rpc.get_worker_info().rank < 2:
            collectives.all_reduce(total, group=groups[rpc.get_worker_info().rank])
        return float(total[0])

    def told() -> list[str]:
        lines = [each for each in caplog.messages if "and is no member" in each]
        assert len(lines) <= MOST_GARBAGE_TOLD
        return [] if len(lines) == MOST_GARBAGE_TOLD else [f"only {len(lines)} lines"]

    cluster.run(make_group)
    cluster.call(2, attack)
    wait_until_gone("lines", told)
    assert cluster.run(reduce) == [2.0, 2.0, 1.0]
