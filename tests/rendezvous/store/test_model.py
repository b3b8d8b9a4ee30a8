"""Every store does what a dict and deques do, whatever the calls and their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.errors import QueueEmptyError, RendezvousTimeoutError
from telegrad.rendezvous import Store
from tests.rendezvous.store.test_store import KINDS, opened

Call: TypeAlias = tuple[str, tuple[object, ...]]

KEYS = st.sampled_from(["a", "b", "a/b", "\u00fc\U0001f40d", "p/a"])
VALUES = st.sampled_from([b"", b"1", b"-7", b"x\x00\xff"])
MOMENT, ENOUGH = 1e-9, 10.0  # seconds for waits in vain, and for others


class Model:
    """A store as one would write it for one thread."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout: float) -> bytes:
        return self.multi_get([key], timeout)[0]

    def add(self, key: str, amount: int) -> int:
        self.values[key] = b"%d" % (int(self.values.get(key, b"") or b"0") + amount)
        return int(self.values[key])

    def append(self, key: str, value: bytes) -> None:
        self.values[key] = self.values.get(key, b"") + value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        return self.values.get(key, b"")

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        self.values.update(zip(keys, values, strict=True))

    def multi_get(self, keys: list[str], timeout: float) -> list[bytes]:
        if not self.check(keys):
            raise RendezvousTimeoutError("")
        return [self.values[key] for key in keys]

    def wait(self, keys: list[str], timeout: float) -> None:
        self.multi_get(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= set(self.values)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def num_keys(self, prefix: str) -> int:
        return len(self.list_keys(prefix))

    def list_keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.values if key.startswith(prefix))

    def queue_push(self, key: str, value: bytes) -> None:
        self.queues.setdefault(key, deque()).append(value)

    def queue_pop(self, key: str, block: bool, timeout: float) -> bytes:
        if not self.queues.get(key):
            raise RendezvousTimeoutError("") if block else QueueEmptyError("")
        return self.queues[key].popleft()

    def queue_len(self, key: str) -> int:
        return len(self.queues.get(key, ()))


def calls(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Call]:
    return st.tuples(st.just(name), st.tuples(*arguments))


SEVERAL = st.lists(KEYS, max_size=3)
ENTRIES = st.lists(st.tuples(KEYS, VALUES), max_size=3)
CALLS = st.one_of(
    calls("set", KEYS, VALUES),
    calls("get", KEYS, st.just(MOMENT)),
    calls("add", KEYS, st.integers(-3, 3)),
    calls("append", KEYS, VALUES),
    calls("compare_set", KEYS, VALUES, VALUES),
    ENTRIES.map(lambda pairs: ("multi_set", ([k for k, _ in pairs], [v for _, v in pairs]))),
    calls("multi_get", SEVERAL, st.just(MOMENT)),
    calls("wait", SEVERAL, st.just(MOMENT)),
    calls("check", SEVERAL),
    calls("delete_key", KEYS),
    calls("num_keys", st.sampled_from(["", "a", "p/"])),
    calls("list_keys", st.sampled_from(["", "a", "p/"])),
    calls("queue_push", KEYS, VALUES),
    calls("queue_pop", KEYS, st.booleans(), st.just(MOMENT)),
    calls("queue_len", KEYS),
)


def outcome(store: Store | Model, call: Call) -> object:
    name, arguments = call
    try:
        return getattr(store, name)(*arguments)
    except (ValueError, RendezvousTimeoutError, QueueEmptyError) as error:
        return type(error)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(sequence=st.lists(st.tuples(st.integers(0, 1), CALLS), max_size=30))
@pytest.mark.few(1)
def test_a_store_does_what_its_model_does(
    tmp_path_factory: pytest.TempPathFactory, kind: str, sequence: list[tuple[int, Call]]
) -> None:
    with opened(kind, tmp_path_factory.mktemp("model")) as open_store:
        _compare(open_store, sequence)


def _compare(open_store: Callable[[], Store], sequence: list[tuple[int, Call]]) -> None:
    handles, model = [open_store(), open_store()], Model()
    for handle, call in sequence:
        expected, (name, arguments) = outcome(model, call), call
        if expected is not RendezvousTimeoutError and MOMENT in arguments:
            call = name, (*arguments[:-1], ENOUGH)  # over a network the answer takes its time
        assert outcome(handles[handle], call) == expected, call
    assert handles[0].list_keys() == sorted(model.values)
    assert handles[1].multi_get(sorted(model.values)) == [
        model.values[key] for key in sorted(model.values)
    ]


def test_a_file_read_anew_has_all_changes(tmp_path: Path) -> None:
    with opened("file", tmp_path) as open_store:
        first = open_store()
        first.multi_set(["a", "b"], [b"1", b"2"])
        first.append("a", b"x")
        first.queue_push("q", b"1")
        first.queue_push("q", b"2")
        first.queue_pop("q")
        second = open_store()
        assert second.multi_get(["a", "b"]) == [b"1x", b"2"]
        assert second.queue_pop("q", block=False) == b"2"
