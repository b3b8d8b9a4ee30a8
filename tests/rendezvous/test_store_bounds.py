"""What one client, and all of them, may take of a coordinator's store."""

from __future__ import annotations

import gc
import types
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from telegrad.errors import RendezvousError
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
from telegrad.rendezvous.memory import StoreWaits, WaitAnswer
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
    """What a store's waits answer."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.answers: list[tuple[WorkerInfo, int, object]] = []
        self.waits = StoreWaits(self.store, self.take, self.take, 1000)

    def take(self, *answer: Any) -> None:
        self.answers.append(answer)

    def wait(
        self, call: int, *keys: str, peer: WorkerInfo = ONE, wanted: WaitAnswer = WaitAnswer.NOTHING
    ) -> None:
        self.waits.wait(peer, call, list(keys), wanted)


@pytest.mark.usefixtures("few")
def test_a_line_waits_for_so_many_keys_and_no_more() -> None:
    it = Answers()
    it.wait(1, "a", "b")
    it.wait(2, "c", wanted=WaitAnswer.VALUE)
    for keys in (["d"], ["d", "e"], ["a"]):
        with pytest.raises(RendezvousError, match=r"one waits for 3 keys .* wait for fewer"):
            it.wait(3, *keys)
    it.wait(1, "d", peer=OTHER)
    it.store.set("c", b"C")
    it.wait(3, "d")
    it.store.set("a", b"")
    it.store.set("b", b"")
    assert it.answers == [(ONE, 2, b"C"), (ONE, 1, None)]
    it.waits.forget(ONE, 3)
    it.wait(4, "d", "e", "f")
    it.waits.lose(ONE)
    it.wait(5, "d", "e", "f")
    it.store.set("d", b"")
    assert it.answers[2:] == [(OTHER, 1, None)]


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
    with pytest.raises(RendezvousError, match="call 1 of one waits already"):
        it.wait(1, "b")
    it.wait(0, "b")
    with pytest.raises(TypeError):
        it.waits.wait(ONE, 2, ["a", 3], WaitAnswer.NOTHING)  # type: ignore[list-item]
    assert len(it.waits) == 1
    it.waits.forget(ONE, 2)
    it.waits.forget(OTHER, 1)
    it.waits.forget(ONE, 1)
    assert len(it.waits) == 0
    assert size_of(it) == before


def test_a_write_looks_at_nobody_who_waits_for_other_keys() -> None:
    store, looked = MemoryStore(), set[str]()

    class Looked(str):
        """A key that notes who looks at it."""

        def __hash__(self) -> int:
            looked.add(str(self))
            return super().__hash__()

    for i in range(100):
        store.watch([Looked(f"never {i}")], lambda _: None)
    looked.clear()
    store.set("k", b"")
    assert not looked
    store.set("never 3", b"")
    assert looked == {"never 3"}


class Counted(str):
    """A key that counts how often it is looked at."""

    looked = 0

    def startswith(self, *arguments: Any) -> bool:
        Counted.looked += 1
        return super().startswith(*arguments)

    def __getitem__(self, place: Any) -> str:
        Counted.looked += 1
        return super().__getitem__(place)


def test_keys_with_a_prefix_are_counted_without_a_look_at_all() -> None:
    """What one line asks for, the loop does: it has no time for all keys."""
    store = MemoryStore()
    for i in range(1000):
        store.set(Counted(f"{i % 7}/{i}"), b"")
    for i in range(0, 1000, 3):
        store.delete_key(f"{i % 7}/{i}")
    left = [f"{i % 7}/{i}" for i in range(1000) if i % 3]
    for prefix in ("", "0", "3/", "3/1", "3/17", "7", "~", "3/1\U0010ffff"):
        Counted.looked = 0
        assert store.num_keys(prefix) == sum(key.startswith(prefix) for key in left)
        assert Counted.looked < 20


def test_who_waits_for_several_keys_is_told_when_all_are_set_at_once() -> None:
    store, told = MemoryStore(), list[list[bytes] | None]()
    before = size_of(store)
    store.watch(["a", "b", "c", "a"], told.append)
    unwatch = store.watch(["a", "b"], told.append)
    store.set("a", b"1")
    store.set("c", b"3")
    store.delete_key("a")
    unwatch()
    store.set("b", b"2")
    assert not told
    store.set("a", b"4")
    assert told == [[b"4", b"2", b"3", b"4"]]
    for key in "abc":
        store.delete_key(key)
    assert size_of(store) == before


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


def test_one_request_gets_no_more_than_one_message_of_values() -> None:
    """A request that names one large key ten thousand times made an answer of that many copies."""
    it = Answers()
    it.store.set("k", bytes(400))
    it.wait(1, "k", "k", wanted=WaitAnswer.VALUES)
    it.wait(2, "k", "k", "k", wanted=WaitAnswer.VALUES)
    assert it.answers[0] == (ONE, 1, [bytes(400)] * 2)
    error = it.answers[1][2]
    assert isinstance(error, RendezvousError)
    assert "would have 1248 bytes" in str(error)
    with pytest.raises(RendezvousError, match="list them by a longer prefix"):
        waits.listed(["k" * 500] * 2, 1000)


def test_a_value_for_a_client_that_has_gone_stays_in_the_queue() -> None:
    it = Answers()
    it.wait(1, "q", wanted=WaitAnswer.QUEUED)
    it.wait(2, "q", peer=OTHER, wanted=WaitAnswer.QUEUED)
    assert it.waits.forget(ONE, 1)
    assert not it.waits.forget(ONE, 1)
    it.store.queue_push("q", b"v")
    assert it.answers == [(OTHER, 2, b"v")]
    it.wait(3, "q", wanted=WaitAnswer.QUEUED)
    it.waits.lose(ONE)
    it.store.queue_push("q", b"w")
    assert it.store.queue_pop("q", block=False) == b"w"
    assert len(it.waits) == 0


def test_a_value_that_was_taken_for_a_wait_that_ended_meanwhile_is_put_back() -> None:
    """The push had chosen the client, and the client gave up before it was told."""
    it = Answers()
    take = it.store.take

    def take_late(key: str, watcher: waits.Watcher) -> waits.Cancel:
        def late(values: list[bytes] | None) -> None:
            assert it.waits.forget(ONE, 1)
            watcher(values)

        return take(key, late)

    it.store.take = take_late  # type: ignore[method-assign]
    it.wait(1, "q", wanted=WaitAnswer.QUEUED)
    it.store.queue_push("q", b"v")
    assert it.answers == []
    assert it.store.queue_pop("q", block=False) == b"v"


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
    pending = [greedy.request(messages.STORE_GET, {"key": f"never {i}"}) for i in range(10)]
    for each in pending[3:]:
        with pytest.raises(RendezvousError, match="waits for 3 keys of the store"):
            each.wait(SECONDS)
    waiting = honest.request(messages.STORE_GET, {"key": "k"})
    greedy.ask(messages.STORE_SET, {"key": "k", "value": b"v"}, timeout=SECONDS)
    assert waiting.wait(SECONDS) == b"v"
    big = {"key": "big", "value": bytes(40_000)}
    greedy.ask(messages.STORE_SET, big, timeout=SECONDS)
    with pytest.raises(RendezvousError, match="the store is full"):
        greedy.ask(messages.STORE_SET, {**big, "key": "more"}, timeout=SECONDS)
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
