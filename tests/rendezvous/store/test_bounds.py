"""What one client, and all of them, may take of a coordinator's store."""

from __future__ import annotations

import gc
import types
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from telegrad.errors import RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous import (
    Coordinator,
    MemoryStore,
    TCPStore,
)
from telegrad.rendezvous import (
    control as messages,
)
from telegrad.rendezvous import (
    memory as waits,
)
from telegrad.rendezvous.control import ControlLine
from telegrad.transport import ConnectionLimits, InprocNetwork, InprocTransport
from telegrad.types import WorkerInfo
from telegrad.wire import DecodeLimits

TOKEN = b"a token that only the tests use"
ONE, OTHER = (WorkerInfo(name, -1, 1) for name in ("one", "other"))
SECONDS = 20.0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MOST_WAITED", 3)


class Answers:
    """A store, and what it answers its clients."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.answers: list[tuple[WorkerInfo, int, object]] = []

    def wait(self, call: int, *keys: str, peer: WorkerInfo = ONE) -> None:
        self.post("wait", call, peer, {"keys": list(keys)})

    def post(self, verb: str, call: int, peer: WorkerInfo, request: dict[str, Any]) -> None:
        reply = self.store.post(verb, request, owner=peer, call=call, waits=True)
        reply.add_done_callback(lambda reply: self.answers.append((peer, call, reply.result())))


@pytest.mark.usefixtures("few")
def test_a_line_waits_for_so_many_keys_and_no_more() -> None:
    it = Answers()
    it.wait(1, "a", "b")
    it.post("get", 2, ONE, {"key": "c"})
    for keys in (["d"], ["d", "e"], ["a"]):
        with pytest.raises(RendezvousError, match=r"one waits for 3 keys .* wait for fewer"):
            it.wait(3, *keys)
    it.wait(1, "d", peer=OTHER)
    it.store.set("c", b"C")
    it.wait(3, "d")
    it.store.set("a", b"")
    it.store.set("b", b"")
    assert it.answers == [(ONE, 2, b"C"), (ONE, 1, None)]
    it.store.forget(ONE, 3)
    it.wait(4, "d", "e", "f")
    it.store.lose(ONE)
    it.wait(5, "d", "e", "f")
    it.store.set("d", b"")
    assert it.answers[2:] == [(OTHER, 1, None)]
    own = it.store.post("wait", {"keys": ["d", *"uvwxy"]}, waits=True)
    assert not own.done()  # the coordinator's own process is not bounded


def size_of(*roots: object) -> int:
    """Returns how many objects are reachable, but for classes, functions and modules."""
    seen: dict[int, object] = {}
    left = list(roots)
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(
            each, type | types.ModuleType | types.BuiltinFunctionType
        ):
            seen[id(each)] = each
            if isinstance(
                each, types.FunctionType
            ):  # what it refers to, and not where it is at home
                left.extend(each.__closure__ or ())
            else:
                left.extend(gc.get_referents(each))
    return len(seen)


def test_what_is_not_waiting_holds_nothing() -> None:
    it = Answers()
    before = size_of(it)
    it.wait(1, "a")
    assert size_of(it) > before
    with pytest.raises(RendezvousError, match="call 1 of this worker waits already"):
        it.wait(1, "b")
    assert it.store.waiting == 1
    assert not it.store.forget(ONE, 2)
    assert not it.store.forget(OTHER, 1)
    assert it.store.forget(ONE, 1)
    assert it.store.waiting == 0
    assert size_of(it) == before
    with pytest.raises(RendezvousTimeoutError):
        it.store.multi_get(["a", "b"], timeout=1e-9)
    assert size_of(it) == before


def test_a_write_looks_at_nobody_who_waits_for_other_keys() -> None:
    it, looked = Answers(), set[str]()

    class Looked(str):
        """A key that notes who looks at it."""

        def __hash__(self) -> int:
            looked.add(str(self))
            return super().__hash__()

    for i in range(100):
        it.wait(i + 1, Looked(f"never {i}"))
    looked.clear()
    it.store.set("k", b"")
    assert not looked
    it.store.set("never 3", b"")
    assert looked == {"never 3"}


def test_who_waits_for_several_keys_is_told_when_all_are_set_at_once() -> None:
    it = Answers()
    before = size_of(it)
    it.post("multi_get", 1, ONE, {"keys": ["a", "b", "c", "a"]})
    it.wait(2, "a", "b")
    it.store.set("a", b"1")
    it.store.set("c", b"3")
    it.store.delete_key("a")
    assert it.store.forget(ONE, 2)
    it.store.set("b", b"2")
    assert not it.answers
    it.store.set("a", b"4")
    assert it.answers == [(ONE, 1, [b"4", b"2", b"3", b"4"])]
    it.answers.clear()
    for key in "abc":
        it.store.delete_key(key)
    assert size_of(it) == before


def largest(store: MemoryStore) -> int:
    """Returns the bytes of the largest value that an empty store takes."""

    def takes(size: int) -> bool:
        try:
            store.set("a", bytes(size))
        except RendezvousError:
            return False
        store.delete_key("a")
        return True

    return bisect_left(range(10_000), 1, key=lambda size: not takes(size)) - 1


def test_a_table_holds_so_many_bytes_and_no_more() -> None:
    store = MemoryStore(2000)
    store.set("a", bytes(1000))
    with pytest.raises(RendezvousError, match=r"the store is full: with 'b' it would .* 2000; del"):
        store.set("b", bytes(1000))
    store.set("a", bytes(1001))
    with pytest.raises(RendezvousError, match="full"):
        store.compare_set("b", b"", bytes(1000))
    with pytest.raises(RendezvousError, match="full"):
        for i in range(100):
            store.add(f"counter {i}", 1)
    assert 3 < store.num_keys() < 20
    for i in range(100):
        store.delete_key(f"counter {i}")
    store.delete_key("never")
    store.delete_key("a")
    most = largest(MemoryStore(2000))
    assert 1000 < largest(store) == most  # as if nothing had ever been in it
    store.set("b", bytes(1000))
    assert store.get("b") == bytes(1000)


def test_appended_and_queued_values_count_as_well() -> None:
    store = MemoryStore(4000)
    with pytest.raises(RendezvousError, match="the store is full"):
        for _ in range(100):
            store.append("k", bytes(100))
    assert 20 < len(store.get("k")) / 100 < 40
    store.delete_key("k")
    with pytest.raises(RendezvousError, match="the store is full"):
        for _ in range(1000):
            store.queue_push("q", b"")
    assert 40 < store.queue_len("q") < 100
    while store.queue_len("q"):
        store.queue_pop("q")
    with pytest.raises(RendezvousError, match="the store is full"):
        for i in range(100):
            store.queue_push(f"q{i}", b"")
    assert store.queue_len("q1") == 1
    assert store.queue_len("q4") == 0
    for i in range(4):
        if store.queue_len(f"q{i}"):
            store.queue_pop(f"q{i}")
    assert largest(store) == largest(MemoryStore(4000))  # as if nothing had ever been in it


def test_several_values_are_written_all_or_none() -> None:
    store = MemoryStore(2000)
    store.set("a", b"1")
    with pytest.raises(RendezvousError, match="the store is full"):
        store.multi_set(["a", "b", "c"], [b"2", bytes(1000), bytes(1000)])
    assert store.list_keys() == ["a"]
    assert store.get("a") == b"1"


def test_a_value_for_a_client_that_has_gone_stays_in_the_queue() -> None:
    it, pop = Answers(), {"key": "q", "block": True}
    it.post("queue_pop", 1, ONE, pop)
    it.post("queue_pop", 2, OTHER, pop)
    it.post("queue_pop", 3, OTHER, pop)
    assert it.store.forget(ONE, 1)
    assert not it.store.forget(ONE, 1)
    it.store.queue_push("q", b"v")
    assert it.answers == [(OTHER, 2, b"v")]
    it.store.lose(OTHER)
    it.store.queue_push("q", b"w")
    assert it.store.queue_pop("q", block=False) == b"w"
    assert len(it.answers) == 1


@pytest.fixture
def open_line() -> Iterator[Callable[[], ControlLine]]:
    """Lines to a coordinator whose messages have at most 64 KiB."""
    network, limits = InprocNetwork(), ConnectionLimits(received=DecodeLimits(document_bytes=2**16))
    with ExitStack() as stack:
        coordinator = Coordinator([InprocTransport(network)], job="j", token=TOKEN, limits=limits)
        (endpoint,) = coordinator.start()
        stack.callback(coordinator.close)

        def open_() -> ControlLine:
            line = ControlLine(job="j", rank=-1, token=TOKEN, transports=[InprocTransport(network)])
            stack.callback(line.close)
            line.connect(endpoint, SECONDS)
            return line

        yield open_


@pytest.mark.usefixtures("few")
def test_whoever_takes_too_much_hears_of_it_and_others_are_served(
    open_line: Callable[[], ControlLine],
) -> None:
    greedy, honest = open_line(), open_line()
    pending = [greedy.request("store.get", {"key": f"never {i}"}) for i in range(10)]
    for each in pending[3:]:
        with pytest.raises(RendezvousError, match="waits for 3 keys of the store"):
            each.result(SECONDS)
    waiting = honest.request("store.get", {"key": "k"})
    greedy.ask("store.set", {"key": "k", "value": b"v"}, timeout=SECONDS)
    assert waiting.result(SECONDS) == b"v"
    big = {"key": "big", "value": bytes(40_000)}
    greedy.ask("store.set", big, timeout=SECONDS)
    with pytest.raises(RendezvousError, match="the store is full"):
        greedy.ask("store.set", {**big, "key": "more"}, timeout=SECONDS)
    store = TCPStore(honest)
    store.delete_key("big")
    store.set("more", bytes(40_000))
    assert len(store.get("more", timeout=SECONDS)) == 40_000


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (messages.RESERVE, {"name": "n" * 40_000}),
        (messages.JOIN, {"name": "n", "endpoints": ["e" * 40_000]}),
        (messages.LEAVE, {"reason": "r" * 40_000}),
        (messages.GAVE_UP, ["n", 0, 1, "r" * 40_000]),
    ],
)
def test_what_is_kept_and_told_of_workers_is_short(
    open_line: Callable[[], ControlLine],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    body: object,
) -> None:
    monkeypatch.setattr("telegrad.rendezvous.coordinator.MOST_SAID_BYTES", 2**15)
    with pytest.raises(RendezvousError, match=f"{kind}' may have 32768 bytes"):
        open_line().ask(kind, body, timeout=SECONDS)


def test_one_request_gets_no_more_than_one_message_of_values(
    open_line: Callable[[], ControlLine],
) -> None:
    """A request that names one large key ten thousand times made an answer of that many copies."""
    store = TCPStore(open_line())
    store.set("k", bytes(30_000))
    assert store.multi_get(["k", "k"]) == [bytes(30_000)] * 2
    with pytest.raises(RendezvousError, match=r"would have 90048 bytes.*at most; ask for fewer"):
        store.multi_get(["k", "k", "k"])
    store.delete_key("k")
    store.set("k", b"")
    with pytest.raises(RendezvousError, match="list them by a longer prefix"):
        for i in range(120):
            store.set("\u00fc" * 300 + str(i), b"")
            store.list_keys()
