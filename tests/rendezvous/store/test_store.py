"""One conformance suite over every store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from telegrad.errors import QueueEmptyError, RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous import (
    Coordinator,
    FileStore,
    MemoryStore,
    PrefixStore,
    Store,
    TCPStore,
)
from telegrad.transport import GrpcTransport, InprocNetwork, InprocTransport, Transport

TOKEN = b"a token that only the tests use"


KINDS = ["memory", "inproc", "grpc", "file", "prefix of memory", "prefix of file"]
KINDS += ["prefix of inproc"]


@contextmanager
def opened(kind: str, directory: Path) -> Iterator[Callable[[], Store]]:
    """Yields a function that opens one more handle of one and the same table."""
    with ExitStack() as stack:
        plain, prefix = kind.removeprefix("prefix of "), kind.startswith("prefix")
        network = InprocNetwork()

        def transports() -> list[Transport]:
            return [InprocTransport(network) if plain == "inproc" else GrpcTransport()]

        memory, endpoint = MemoryStore(), ""
        if plain in ("inproc", "grpc"):
            coordinator = Coordinator(transports(), job="test", token=TOKEN)
            endpoint = coordinator.start()[0]
            stack.callback(coordinator.close)

        def open_plain() -> Store:
            match plain:
                case "memory":
                    return memory.clone()
                case "file":
                    return FileStore(directory / "store")
            return TCPStore.connect(endpoint, job="test", token=TOKEN, transports=transports())

        def open_() -> Store:
            found = stack.enter_context(open_plain())
            return PrefixStore("p", found) if prefix else found

        yield open_


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens one more handle of one and the same table."""
    with opened(request.param, tmp_path) as open_:
        yield open_


@pytest.fixture
def store(open_store: Callable[[], Store]) -> Store:
    return open_store()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def test_get_waits_until_set(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    reader, writer = open_store(), open_store()
    waiting: Future[bytes] = pool.submit(reader.get, "late", math.inf)
    writer.set("other", b"")
    writer.set("late", b"v")
    assert waiting.result(10) == b"v"


def test_wait_for_several(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    store = open_store()
    store.set("a", b"")
    waiting = pool.submit(open_store().wait, ["a", "b", "c"], 30.0)
    store.set("b", b"")
    store.set("c", b"")
    assert waiting.result(10) is None
    store.wait([], timeout=5.0)


def test_a_wait_ends_at_its_deadline_with_words(store: Store) -> None:
    with pytest.raises(
        RendezvousTimeoutError, match=r"key '(p/)?never' was not set within 0\.02 s; ch"
    ):
        store.get("never", timeout=0.02)
    store.set("there", b"")
    with pytest.raises(RendezvousTimeoutError, match="never'") as caught:
        store.wait(["there", "never", "nor this"], timeout=0.02)
    assert [key.removeprefix("p/") for key in caught.value.missing] == ["never", "nor this"]
    store.set("never", b"v")
    assert store.get("never", timeout=5.0) == b"v"


def test_what_is_no_number_is_not_counted(store: Store) -> None:
    store.set("text", b"abc")
    with pytest.raises(ValueError, match="the store key '(p/)?text' holds no number"):
        store.add("text", 1)


def test_counting_is_atomic(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    stores = [open_store() for _ in range(4)]
    counts = list(pool.map(lambda i: stores[i % 4].add("n", 1), range(80)))
    assert sorted(counts) == list(range(1, 81))


def test_only_one_wins_a_race(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    stores = [open_store() for _ in range(4)]
    seen = set(pool.map(lambda i: stores[i].compare_set("leader", b"", b"%d" % i), range(4)))
    assert len(seen) == 1


def test_appending_is_atomic(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    stores = [open_store() for _ in range(4)]
    list(pool.map(lambda i: stores[i % 4].append("k", b"%02d" % i), range(40)))
    value = stores[0].get("k")
    assert sorted(value[i : i + 2] for i in range(0, 80, 2)) == [b"%02d" % i for i in range(40)]


def test_several_values_at_once(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    store = open_store()
    waiting = pool.submit(open_store().multi_get, ["a", "b", "a"], 30.0)
    store.multi_set(["b", "a"], [b"2", b"1"])
    assert waiting.result(10) == [b"1", b"2", b"1"]
    with pytest.raises(RendezvousTimeoutError, match="never.* not (all )?set within"):
        store.multi_get(["a", "never"], timeout=0.02)


def test_nobody_reads_a_part_of_several_values(
    open_store: Callable[[], Store], pool: ThreadPoolExecutor
) -> None:
    writer, reader = open_store(), open_store()
    writer.multi_set(["a", "b"], [b"0", b"0"])

    def write() -> None:
        for i in range(1, 40):
            writer.multi_set(["a", "b"], [b"%d" % i] * 2)

    writing = pool.submit(write)
    while not writing.done():
        first, second = reader.multi_get(["a", "b"])
        assert first == second
    writing.result()


def test_each_value_of_a_queue_goes_to_one_caller(
    open_store: Callable[[], Store], pool: ThreadPoolExecutor
) -> None:
    stores = [open_store() for _ in range(3)]
    taken = [pool.submit(stores[i % 3].queue_pop, "q", True, 30.0) for i in range(6)]
    for i in range(12):
        stores[i % 3].queue_push("q", b"%d" % i)
    taken += [pool.submit(stores[i % 3].queue_pop, "q", True, 30.0) for i in range(6)]
    assert sorted(int(future.result(30)) for future in taken) == list(range(12))
    assert stores[0].queue_len("q") == 0


@pytest.mark.few(1)
def test_a_wait_for_a_queue_that_ends_takes_nothing(
    open_store: Callable[[], Store], pool: ThreadPoolExecutor
) -> None:
    store, other = open_store(), open_store()
    with pytest.raises(RendezvousTimeoutError, match="no value came into the queue '(p/)?q' withi"):
        store.queue_pop("q", timeout=0.02)
    with pytest.raises(QueueEmptyError, match="the queue '(p/)?q' is empty; push"):
        store.queue_pop("q", block=False)
    other.queue_push("q", b"v")
    assert other.queue_len("q") == 1

    def take() -> list[bytes]:
        """Takes as long as it gets something; most waits end just when a value comes."""
        taken, last = list[bytes](), b""
        while last != b"end":
            with suppress(RendezvousTimeoutError):
                last = store.queue_pop("race", timeout=0.001)
                taken.append(last)
        return taken

    taking = pool.submit(take)
    values = [*(b"%d" % i for i in range(60)), b"end"]
    for value in values:
        other.queue_push("race", value)
        while other.queue_len("race") and not taking.done():
            pass
    assert taking.result(30) == values


def test_a_clone_is_another_handle(store: Store, pool: ThreadPoolExecutor) -> None:
    store.set("k", b"v")
    with store.clone() as clone:
        assert type(clone) is type(store)
        assert clone.get("k", timeout=5.0) == b"v"
        waiting = pool.submit(clone.get, "never", math.inf)
        popping = pool.submit(clone.queue_pop, "never", True, math.inf)
        clone.set("k", b"w")
    for future in (waiting, popping):
        with pytest.raises(RendezvousError, match="closed"):
            future.result(10)
    assert store.get("k", timeout=5.0) == b"w"
    second = store.clone()
    store.close()
    second.set("k", b"x")
    assert second.get("k", timeout=5.0) == b"x"
    second.close()
    store.close()
    for call in (store.clone, lambda: store.set("k", b"")):
        with pytest.raises(RendezvousError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.set(3, b""), r"key must be a str \(got int\)"),
        (lambda s: s.set("", b""), "must not be empty"),
        (lambda s: s.set("k" * 1001, b""), r"may have 1000 characters \(got 1001: 'kkkk"),
        (lambda s: s.wait(["k" * 1001]), "may have 1000 characters"),
        (lambda s: s.set("k", "text"), r"value must be bytes \(got str\); encode it"),
        (lambda s: s.add("k", 1.5), r"add takes an int \(got float\)"),
        (lambda s: s.wait("k"), r"write \['k'\]"),
        (lambda s: s.compare_set("k", None, b""), "value must be bytes"),
        (lambda s: s.num_keys(3), r"prefix must be a str \(got int\)"),
        (lambda s: s.list_keys(3), r"prefix must be a str \(got int\)"),
        (lambda s: s.append("k", "text"), "value must be bytes"),
        (lambda s: s.multi_set(["a", "b"], [b""]), r"\(keys: 2, values: 1\)"),
        (lambda s: s.multi_set(["a"], b"v"), r"values must be a list of bytes \(got bytes\)"),
        (lambda s: s.multi_set("a", [b"v"]), r"write \['a'\]"),
        (lambda s: s.multi_get(["a", 3]), "key must be a str"),
        (lambda s: s.multi_get(["a"], 0), "timeout must be above 0"),
        (lambda s: s.get("k", math.nan), r"timeout must be above 0 .* write math\.inf"),
        (lambda s: s.get("k", -1.0), "timeout must be above 0"),
        (lambda s: s.get("k", timedelta(seconds=1)), r"must be seconds, not .*total_seconds"),
        (lambda s: s.get("k", "1"), "timeout must be seconds"),
        (lambda s: s.get("k", True), "timeout must be seconds"),
        (lambda s: s.check("a"), r"write \['a'\]"),
        (lambda s: s.queue_push("q", 3), "value must be bytes"),
        (lambda s: s.queue_push("", b""), "must not be empty"),
        (lambda s: s.queue_pop("q", True, 0), "timeout must be above 0"),
        (lambda s: s.queue_pop(3), "key must be a str"),
        (lambda s: s.queue_len(""), "must not be empty"),
    ],
)
def test_bad_arguments(call: Callable[[object], object], words: str) -> None:
    """They are checked before a store of any kind is asked."""
    with pytest.raises((TypeError, ValueError), match=words):
        call(MemoryStore())
