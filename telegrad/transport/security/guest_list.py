"""The allowlist of a worker: the members of its job, each with its present incarnation.

The coordinator's news of an arrival and the newcomer's dial travel separately, and the dial may be
faster. So a worker that is not known yet waits for a while, and is then told to try again. It is
refused for good only where it can never be admitted.

    the very incarnation is listed           admitted, at once
    nothing is known of it                   waits; then UNANNOUNCED: to be tried again
    a later one of its name is listed        waits, as the news of that one's loss may be late;
                                             then FENCED
    no news will come any more (`close`)     NOT_ADMITTED, at once
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import final

from telegrad.critical import critical
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.types import WorkerInfo


@final
class GuestList:
    """The allowlist of one Exchange. Any thread calls its methods, except `admits`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._guests: dict[WorkerInfo, None] = {}
        self._closed = ""
        # In the order in which they came: of two streams of one peer the later one has to stay.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __contains__(self, peer: WorkerInfo) -> bool:
        return peer in self._guests

    def add(self, guests: Iterable[WorkerInfo]) -> None:
        """Admits workers from now on; those of them that wait are admitted now."""
        with critical.section, self._lock:
            for guest in guests:
                self._guests[guest] = None
        self._look_again()

    def remove(self, guest: WorkerInfo) -> None:
        """Admits a worker no more; idempotent. A session that it has goes on."""
        with critical.section, self._lock:
            self._guests.pop(guest, None)
        self._look_again()

    def close(self, words: str) -> None:
        """Adds no worker any more; a worker that is not on the list is refused with the reason.

        Args:
            words: The reason why no news of arrivals will come.
        """
        with critical.section, self._lock:
            self._closed = self._closed or words
        self._look_again()

    async def admits(self, peer: WorkerInfo, seconds: float) -> None:
        """Returns when a peer is on the list; waits for the news of it. On the loop.

        Args:
            peer: The worker, which has proved that it holds the token.
            seconds: The longest wait.

        Raises:
            RefusedError: The peer is not on the list.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while True:
            with critical.section, self._lock:
                if peer in self._guests:
                    return
                left = 0.0 if self._closed else ends - loop.time()
                if left <= 0:
                    raise self._refusal(peer)
                news = loop.create_future()
                self._waiting[news] = None
            try:
                await asyncio.wait([news], timeout=left)
            finally:
                with critical.section, self._lock:
                    self._waiting.pop(news, None)

    def _refusal(self, peer: WorkerInfo) -> RefusedError:
        """Returns the refusal of a peer that is not on the list. Holds the lock."""
        who = f"{peer.name!r} (rank {peer.rank}, incarnation {peer.incarnation})"
        later = [
            guest
            for guest in self._guests
            if guest.name == peer.name and guest.incarnation > peer.incarnation
        ]
        if later:
            successor = f"incarnation {later[0].incarnation} has taken its place"
            return RefusedError(Reason.FENCED, f"fenced: {who} is gone, {successor}")
        if self._closed:
            return RefusedError(
                Reason.NOT_ADMITTED, f"{who} is no member of this job here: {self._closed}"
            )
        return RefusedError(
            Reason.UNANNOUNCED,
            f"{who} is no member of this job, as far as the coordinator has said so here",
        )

    def _look_again(self) -> None:
        with critical.section, self._lock:
            waiting = list(self._waiting)
        for news in waiting:
            with suppress(RuntimeError):  # its loop has ended, with the task that waited there
                news.get_loop().call_soon_threadsafe(_tell, news)


def _tell(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
