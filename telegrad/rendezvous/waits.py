"""Who waits for which keys of a coordinator's store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from telegrad.errors import RendezvousError
from telegrad.rendezvous.memory import MemoryStore
from telegrad.rendezvous.store import check_keys
from telegrad.types import WorkerInfo

__all__ = ["MOST_WAITED", "StoreWaits"]

Answer: TypeAlias = Callable[[WorkerInfo, int, object], None]

# A wait takes about a kilobyte. A client waits once for each of its threads, and for the keys of
# all workers at most, of which there may be as many.
MOST_WAITED: Final = 10_000


@dataclass(slots=True)
class _Line:
    """What one line waits for.

    Attributes:
        waits: By call: how many keys, and what takes the wait back.
        keys: How many in all of them.
    """

    waits: dict[int, tuple[int, Callable[[], None]]] = field(default_factory=dict)
    keys: int = 0


@final
class StoreWaits:
    """The requests of lines that are answered once keys are set. Called on the loop.

    Args:
        store: The table; others may set its keys from any thread.
        answer: Answers a call of a line, with the first value or with None; from any thread.
    """

    def __init__(self, store: MemoryStore, answer: Answer) -> None:
        self._store = store
        self._answer = answer
        self._lock = threading.Lock()  # guards the table of lines
        self._lines: dict[WorkerInfo, _Line] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(len(line.waits) for line in self._lines.values())

    def wait(self, peer: WorkerInfo, call: int, keys: list[str], *, single: bool) -> None:
        """Answers a call once all the keys are set: at once, later, or never.

        Args:
            peer: Whose line it is.
            call: Its number; nobody waits for an answer to 0.
            keys: What has to be set.
            single: Whether the answer is the first one's value.

        Raises:
            TypeError: A key is none.
            RendezvousError: The line waits for too much already.
        """
        wanted = check_keys(keys)
        if not call:
            return
        with self._lock:
            line = self._lines.setdefault(peer, _Line())
            if call in line.waits:
                raise RendezvousError(f"call {call} of {peer.name} waits already")
            if line.keys + len(wanted) > MOST_WAITED:
                raise RendezvousError(
                    f"{peer.name} waits for {line.keys} keys of the store, and may for no more than "
                    f"{MOST_WAITED} at once (it asks for {len(wanted)} more); wait for fewer of "
                    "them at a time, in fewer threads"
                )
            line.waits[call] = (len(wanted), lambda: None)
            line.keys += len(wanted)

        def ready(values: list[bytes] | None) -> None:
            self._take(peer, call)
            if values is not None:
                self._answer(peer, call, values[0] if single else None)

        cancel = self._store.watch(wanted, ready)
        with self._lock:
            if call in line.waits:
                line.waits[call] = (len(wanted), cancel)

    def forget(self, peer: WorkerInfo, call: int) -> None:
        """A line waits no more for one answer; it may have gone out already."""
        cancel = self._take(peer, call)
        if cancel is not None:
            cancel()

    def lose(self, peer: WorkerInfo) -> None:
        """A line has ended."""
        with self._lock:
            line = self._lines.pop(peer, _Line())
        for _, cancel in line.waits.values():
            cancel()

    def _take(self, peer: WorkerInfo, call: int) -> Callable[[], None] | None:
        with self._lock:
            line = self._lines.get(peer)
            if line is None or call not in line.waits:
                return None
            count, cancel = line.waits.pop(call)
            line.keys -= count
            if not line.waits:
                del self._lines[peer]
            return cancel
