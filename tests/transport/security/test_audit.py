"""The audit log: complete, structured, bounded, and in nobody's way."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from telegrad.testing import leaks
from telegrad.transport.security.audit import (
    BURST,
    CALL_REFUSED,
    CONNECTION_ADMITTED,
    CONNECTION_REFUSED,
    DIAL_REFUSED,
    LOST,
    MOST_FLOODS,
    MOST_TEXT,
    PER_SECOND,
    SUMMARY_SECONDS,
    Audit,
    _Flood,
    _Meter,
)
from telegrad.transport.security.handshake import DialHandshake, Identity
from telegrad.types import WorkerInfo
from tests.audit_log import AuditLog
from tests.transport.promises.hand_made import answers_to
from tests.transport.workers import SECONDS, TOKEN, Floor, ManualClock, Worker, floor_of

BIG = 1 << 20  # travels on a lane


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def audit(clock: ManualClock) -> Iterator[Audit]:
    made = Audit("host", clock)
    yield made
    made.close()


def refuse(audit: Audit, times: int = 1, **fields: object) -> None:
    for _ in range(times):
        audit.record(CONNECTION_REFUSED, **{"reason": "AUTHENTICATION", **fields})


# -- the record ---------------------------------------------------------------------------------


def test_a_record_is_one_line_of_json_and_a_dict(log: AuditLog, audit: Audit) -> None:
    refuse(audit, peer="mallory\n\x1b[31m\ud800", words="x" * 10_000, address=None, lane=False)
    (told,) = log.wait(CONNECTION_REFUSED)
    assert told["worker"] == "host"
    assert told["peer"] == "mallory\n\x1b[31m\ud800"
    assert told["words"] == "x" * MOST_TEXT + "..."
    assert "address" not in told
    assert told["time"] > 1.7e9
    line = log.records[0].getMessage()
    assert line.isascii()
    assert line.isprintable()


@pytest.mark.parametrize(
    ("event", "reason", "peer", "level"),
    [
        (CONNECTION_ADMITTED, None, "w1", logging.DEBUG),
        (CONNECTION_REFUSED, "AUTHENTICATION", "w1", logging.WARNING),
        (CONNECTION_REFUSED, "DUPLICATE", "w1", logging.DEBUG),
        (CONNECTION_REFUSED, "UNFINISHED", "w1", logging.DEBUG),
        (CONNECTION_REFUSED, "UNFINISHED", None, logging.INFO),
        (DIAL_REFUSED, "DUPLICATE", "w1", logging.DEBUG),
        (DIAL_REFUSED, "JOB", "w1", logging.WARNING),
        (CALL_REFUSED, "NOT_ALLOWED", None, logging.WARNING),
    ],
)
def test_what_honest_workers_meet_is_no_warning(
    log: AuditLog, audit: Audit, event: str, reason: str | None, peer: str | None, level: int
) -> None:
    audit.record(event, reason=reason, peer=peer)
    log.wait(event)
    assert [each.levelno for each in log.records] == [level]


def test_it_costs_no_thread_where_nobody_listens(audit: Audit) -> None:
    before = set(threading.enumerate())
    audit.record(CONNECTION_ADMITTED, peer="w1")
    assert set(threading.enumerate()) == before


# -- floods -------------------------------------------------------------------------------------


def test_a_flood_is_counted_in_one_record(log: AuditLog, audit: Audit, clock: ManualClock) -> None:
    refuse(audit, 1000)
    refuse(audit, 1, reason="JOB")  # another reason is told all the same
    log.wait(CONNECTION_REFUSED, BURST + 1)
    clock.now += SUMMARY_SECONDS
    refuse(audit, 1)
    told = log.wait(CONNECTION_REFUSED, suppressed=1000 - BURST)
    assert told[0]["reason"] == "AUTHENTICATION"
    assert told[0]["seconds"] == SUMMARY_SECONDS
    assert len(log.wait(CONNECTION_REFUSED, BURST + 3)) == BURST + 3


def test_what_was_held_back_is_told_though_nothing_follows(
    log: AuditLog, audit: Audit, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telegrad.transport.security.audit.SUMMARY_SECONDS", 0.01)
    refuse(audit, BURST)
    log.wait(CONNECTION_REFUSED, BURST)  # the thread waits for more
    refuse(audit, 3)
    clock.now += 1.0
    log.wait(CONNECTION_REFUSED, suppressed=3)


def test_one_a_second_is_told_after_a_flood(
    log: AuditLog, audit: Audit, clock: ManualClock
) -> None:
    refuse(audit, BURST + 1)
    clock.now += 3.0
    refuse(audit, 10)
    audit.close(SECONDS)
    assert len(log.found(CONNECTION_REFUSED)) == BURST + 3 + 1
    assert log.found(CONNECTION_REFUSED, suppressed=8)


def test_a_caller_floods_for_itself_alone(log: AuditLog, audit: Audit) -> None:
    for _ in range(2 * BURST):
        audit.record(CALL_REFUSED, caller="w1", reason="NOT_ALLOWED")
    audit.record(CALL_REFUSED, caller="w2", reason="NOT_ALLOWED")
    audit.close(SECONDS)
    assert log.found(CALL_REFUSED, caller="w1", suppressed=BURST)
    assert len(log.found(CALL_REFUSED, caller="w2")) == 1


def test_names_in_any_number_take_no_memory() -> None:
    def floods() -> int:
        return sum(isinstance(each, _Flood) for each in gc.get_objects())

    gc.collect()
    meter, before = _Meter(), floods()
    for i in range(10 * MOST_FLOODS):
        meter.takes((CALL_REFUSED, "NOT_ALLOWED", f"w{i}"), 0.0)
    assert floods() <= before + MOST_FLOODS + 1
    meter.takes((CALL_REFUSED, "NOT_ALLOWED", "another"), BURST / PER_SECOND)
    assert floods() == before + 2, "the calm ones are forgotten, the flood is not"
    assert [count for _, count, _ in meter.summaries(BURST / PER_SECOND)] == [
        9 * MOST_FLOODS - BURST
    ]


def test_what_was_admitted_is_recorded_whole(log: AuditLog, audit: Audit) -> None:
    for i in range(10 * BURST):
        audit.record(CONNECTION_ADMITTED, peer=f"w{i}")
    log.wait(CONNECTION_ADMITTED, 10 * BURST)


# -- slow and broken handlers ---------------------------------------------------------------------


def threads() -> list[threading.Thread]:
    """Returns the living threads that hand records over."""
    return [each for each in threading.enumerate() if each.name.startswith("telegrad-audit")]


def test_so_much_waits_for_a_slow_handler_and_no_more(
    log: AuditLog, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 100  # handlers take seconds for as many as there may really be
    monkeypatch.setattr("telegrad.transport.security.audit.MOST_WAITING", most)
    log.may_go_on.clear()
    audit.record(CONNECTION_ADMITTED, peer="first")
    log.wait(CONNECTION_ADMITTED)
    for i in range(most + 7):
        audit.record(CONNECTION_ADMITTED, peer=str(i))
    log.may_go_on.set()
    assert log.wait(LOST)[0]["suppressed"] == 7
    assert len(log.found(CONNECTION_ADMITTED)) == most + 1


def test_close_hands_over_what_is_recorded_and_ends_the_thread(log: AuditLog, audit: Audit) -> None:
    refuse(audit, BURST + 5)
    assert threads()
    audit.close(SECONDS)
    assert not threads()
    assert len(log.found(CONNECTION_REFUSED)) == BURST + 1
    refuse(audit)
    audit.close()
    assert len(log.found(CONNECTION_REFUSED)) == BURST + 1


def test_close_waits_for_no_handler(log: AuditLog, audit: Audit) -> None:
    log.may_go_on.clear()
    refuse(audit, 3)
    log.wait(CONNECTION_REFUSED)
    audit.close(0.01)
    (thread,) = threads()
    assert thread.daemon
    log.may_go_on.set()
    thread.join(20.0)
    assert not thread.is_alive()
    assert len(log.found(CONNECTION_REFUSED)) == 1, "what was left at the end is dropped"


def test_a_handler_that_fails_gets_the_next_record(
    log: AuditLog, audit: Audit, caplog: pytest.LogCaptureFixture
) -> None:
    log.error = ValueError("the disk is full")
    refuse(audit, 3)
    log.wait(CONNECTION_REFUSED, 3)
    audit.close()
    assert "a handler of the logger telegrad.audit failed" in caplog.text


def test_where_nobody_has_set_up_logging_people_read_words(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python shows warnings on stderr then: no JSON, and nothing of what an exception tells."""
    monkeypatch.setattr(logging.getLogger("telegrad.audit"), "hasHandlers", lambda: False)
    audit = Audit("host")
    audit.record(DIAL_REFUSED, reason="AUTHENTICATION", words="another token")
    refuse(audit, peer="mallory", address="grpc ipv4:10.0.0.9:4", words="another token")
    audit.close(SECONDS)
    (told,) = caplog.messages
    assert told == (
        "connection.refused: peer 'mallory', address 'grpc ipv4:10.0.0.9:4': another token"
    )


def test_a_handler_may_end_the_exchange(log: AuditLog, audit: Audit) -> None:
    """It would wait for itself."""
    closed = threading.Event()

    class Closing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            audit.close()
            closed.set()

    handler = Closing()
    logging.getLogger("telegrad.audit").addHandler(handler)
    try:
        refuse(audit)
        assert closed.wait(20.0)
    finally:
        logging.getLogger("telegrad.audit").removeHandler(handler)


# -- what connections leave -----------------------------------------------------------------------


def meet(floor: Floor) -> tuple[Worker, Worker]:
    alice, bob = floor.pair()
    alice.send(bob, 1, buffers=[np.zeros(BIG, np.uint8).data])
    return alice, bob


def test_who_was_admitted(floor: Floor, log: AuditLog) -> None:
    alice, bob = meet(floor)
    (control,) = log.wait(CONNECTION_ADMITTED, worker="bob", lane=False)
    assert (control["peer"], control["incarnation"]) == ("alice", alice.info.incarnation)
    assert floor.kind in control["address"]
    assert control["transport"] == floor.kind
    lane = log.wait(CONNECTION_ADMITTED, worker="bob", lane=True)[0]
    assert lane["peer"] == "alice"
    assert not log.found(CONNECTION_REFUSED)
    assert not log.found(DIAL_REFUSED)
    assert log.threads == {"telegrad-audit-bob"}
    bob.exchange.close(1.0)


def test_who_does_not_hold_the_token_is_named_at_both_ends(floor: Floor, log: AuditLog) -> None:
    host = floor.worker("host")
    guest = floor.worker("guest", token=b"a token of somebody else's").knows(host)
    guest.post(host, 1)
    guest.recorder.wait_lost()
    (told,) = log.wait(CONNECTION_REFUSED)
    expected = {
        "worker": "host",
        "peer": "guest",
        "rank": 1,
        "incarnation": 1,
        "lane": False,
        "reason": "AUTHENTICATION",
    }
    assert expected.items() <= told.items()
    assert "another token" in told["words"]
    (dialled,) = log.wait(DIAL_REFUSED)
    assert dialled["worker"] == "guest"
    assert (dialled["peer"], dialled["endpoint"]) == ("host", host.endpoints[0])
    assert dialled["reason"] == "AUTHENTICATION"
    assert "telegrad-loop" not in log.threads


@pytest.mark.parametrize(
    ("message", "reason", "named"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "MALFORMED", False),
        (b"x" * 20_000, "MALFORMED", False),
        (
            DialHandshake(Identity("other", WorkerInfo("mallory", 9, 99)), TOKEN).hello(),
            "JOB",
            True,
        ),
        (None, "UNFINISHED", False),
    ],
    ids=["http", "too big", "wrong job", "silent"],
)
def test_strangers(
    floor: Floor, log: AuditLog, message: bytes | None, reason: str, named: bool
) -> None:
    silent: dict[str, Any] = {"prove_within": 0.2} if message is None else {}
    host = floor.worker("host", **silent)
    answers_to(floor, host, *([] if message is None else [message]))
    (told,) = log.wait(CONNECTION_REFUSED)
    assert told["reason"] == reason
    assert told.get("peer") == ("mallory" if named else None)
    assert told["address"]


def test_a_flood_of_strangers_fills_no_disk(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Audit.close, "__defaults__", (SECONDS,))  # the floor's end tells the rest
    strangers = 3 * BURST
    with floor_of("inproc") as floor:  # so many connections at once are too much for a busy kernel
        host = floor.worker("host")
        for _ in range(strangers):
            answers_to(floor, host, b"nonsense")
    told = log.found(CONNECTION_REFUSED)
    counted = sum(each["suppressed"] for each in told if "suppressed" in each)
    single = sum("suppressed" not in each for each in told)
    assert counted + single == strangers
    assert counted > 0, "it took longer than a second for each"


def test_a_slow_handler_holds_up_no_connection(floor: Floor, log: AuditLog) -> None:
    log.may_go_on.clear()
    alice, bob = meet(floor)
    log.wait(CONNECTION_ADMITTED, worker="bob")
    for call in range(2, 5):
        alice.post(bob, call)
    bob.recorder.wait_envelopes(4)
    carol = floor.worker("carol").knows(bob)
    carol.send(bob, 7)
    assert len(log.records) == 1, "the handler is still at the first"
    log.may_go_on.set()
    log.wait(CONNECTION_ADMITTED, worker="bob", peer="carol")


def test_the_thread_ends_when_there_is_nothing_to_do(
    log: AuditLog, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telegrad.transport.security.audit.IDLE_SECONDS", 0.01)
    for count in range(1, 4):
        refuse(audit)
        log.wait(CONNECTION_REFUSED, count)
        leaks.wait_until_gone("threads", threads)


def test_the_thread_ends_with_the_exchange(
    floor: Floor, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telegrad.transport.security.audit.IDLE_SECONDS", 600.0)
    alice, bob = meet(floor)
    log.wait(CONNECTION_ADMITTED)
    assert [thread.name for thread in threads()] == ["telegrad-audit-bob"]
    for worker in (alice, bob):
        worker.exchange.close(1.0)
    leaks.wait_until_gone("threads", threads)
