"""Dialling: from a list of endpoints to a stream that has proved itself.

Endpoints are tried in order. The next one starts when the one before has failed, or 100 ms after it
without waiting for that. The first to answer the hello wins. The failures mean:

    refused, another worker or incarnation    everywhere: the peer is gone, for good
    wrong job, version, token, not admitted   it will not get better: gone, too, in these words
    unreachable, cut off in the middle        tried again until silence gives the peer up
    the peer dials this side at the same time its stream is awaited
    it has not heard of this worker yet       tried again, and counts as a sign of its life: it
                                              hears of it, or loses its coordinator and says so

If both dialled, the stream dialled by the smaller name stays: its listener refuses none, while the
smaller name refuses the other's as a duplicate as long as its own handshake is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.session.ask import (
    Answer,
    ask,
    handshaking,
    receive_small,
    refusals_recorded,
    way_of,
)
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.moving import move
from telegrad.transport.session.stream import Stream, breakage
from telegrad.transport.session.terms import Terms

__all__ = ["Dialling", "Reach"]

STAGGER_SECONDS = 0.1  # an endpoint that does not answer must not delay the next for longer
FIRST_PAUSE_SECONDS = 0.02  # between rounds of dials; doubles
LONGEST_PAUSE_SECONDS = 0.5
# The number of bounds of silence for which a living peer may not have heard of this worker's
# arrival.
LONGEST_UNANNOUNCED = 6


@final
class Reach:
    """Gets a carrier for one connection, and moves it where both ends want that; on the loop.

    Args:
        carriers: The carriers of the connection; they say when another one is wanted.
        terms: The parts that all connections share.
    """

    def __init__(self, carriers: Carriers, terms: Terms) -> None:
        self._carriers = carriers
        self._terms = terms
        self._hellos = 0
        self._early_since: float | None = None

    @property
    def shaking_hands(self) -> bool:
        """True while a handshake that this side began is under way."""
        return self._hellos > 0

    async def run(self) -> None:
        """Dials until a carrier is up, from either side, or none is possible; then moves it."""
        carriers, pause = self._carriers, FIRST_PAUSE_SECONDS
        while True:
            while carriers.wanted and not await self._round():
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            if (stream := carriers.stream) is not None and carriers.direct.due(stream):
                await move(carriers, self._terms, stream)
            elif not carriers.wanted:
                return

    async def _round(self) -> bool:
        """Tries every endpoint once; returns True if no further round is needed."""
        failures: list[Exception] = []
        answer = await self._first_answer(self._reachable(), failures)
        if answer is not None:
            try:
                await self.prove(answer)
            except (CarrierClosedError, RefusedError, DecodeError) as error:
                failures.append(error)
            else:
                return True
        if not self._carriers.wanted:
            return True
        reasons = {each.reason for each in failures if isinstance(each, RefusedError)}
        if failures and all(_is_final(failure) for failure in failures):
            words = "; ".join(dict.fromkeys(map(_words, failures)))
            words += breakage(*self._carriers.last_break, self._terms.clock())
            fenced = bool(reasons & {Reason.FENCED, Reason.UNKNOWN_SESSION})
            self._carriers.gone(words, fenced=fenced)
            return True
        if Reason.UNANNOUNCED in reasons:  # dialled too early
            self._note_answer()
        self._carriers.last_failure = _words(failures[-1]) if failures else ""
        return False

    def _reachable(self) -> list[str]:
        """Returns the endpoints that may lead to the peer from this machine; all, if none may."""
        endpoints, transports = self._carriers.endpoints, self._terms.transports
        found = []
        for endpoint in endpoints:
            transport = transports.get(endpoint.partition("://")[0])
            if transport is not None and transport.reaches(endpoint):
                found.append(endpoint)
        return found or list(endpoints)

    def _note_answer(self) -> None:
        """Counts it as a sign of life, for a while, that the peer has not heard of this worker."""
        now = self._terms.clock()
        if self._early_since is None:
            self._early_since = now
        if now - self._early_since < LONGEST_UNANNOUNCED * self._terms.lost_after:
            self._carriers.answered()

    async def prove(self, answer: Answer) -> None:
        """Finishes a handshake and gives the connection its stream.

        Raises:
            RefusedError: The listener refuses, or does not hold the token.
            CarrierClosedError: The carrier broke, or this side has another carrier by now.
        """
        carrier, terms = answer.carrier, self._terms
        self._hellos += 1
        try:
            with (
                refusals_recorded(terms, answer.endpoint, answer.peer),
                handshaking(terms, carrier),
            ):
                await self._prove(carrier, answer)
        finally:
            self._hellos -= 1

    async def _prove(self, carrier: Carrier, answer: Answer) -> None:
        carriers, terms, shake = self._carriers, self._terms, answer.handshake
        if not carriers.wanted:
            raise CarrierClosedError("it is needed no more")
        resumes = carriers.came_up > 0
        await carrier.send(shake.prove(carriers.detach(), resumes=resumes))
        peer_received = shake.takes_welcome(await receive_small(terms, carrier))
        if not carriers.wanted:
            raise CarrierClosedError("the peer was faster")
        lanes = carriers.lanes_of(way_of(terms, answer))
        slabs = terms.slabs.open(carrier, shake.capabilities)
        carriers.adopt(Stream(carrier, shake.frames(), lanes, slabs=slabs), peer_received)

    async def _first_answer(
        self, endpoints: Sequence[str], failures: list[Exception]
    ) -> Answer | None:
        """Asks one endpoint after the other; the first answer wins, the others are let go."""
        asking: set[asyncio.Task[Answer]] = set()
        waiting = list(endpoints)
        answer: Answer | None = None
        try:
            while (waiting or asking) and answer is None and self._carriers.wanted:
                if waiting:
                    asking.add(asyncio.ensure_future(self._ask(waiting.pop(0))))
                timeout = STAGGER_SECONDS if waiting else None
                done, asking = await asyncio.wait(
                    asking, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    try:
                        found = task.result()
                    except ConnectionError as error:
                        failures.append(error)
                    else:
                        answer = self._keep(answer, found)
        finally:  # also when the exchange closes in the middle: a carrier must not stay open
            for task in asking:
                self._terms.spawn(self._let_go(task))
        return answer

    async def _ask(self, endpoint: str) -> Answer:
        self._hellos += 1
        try:
            return await ask(self._terms, endpoint, self._carriers.peer)
        finally:
            self._hellos -= 1

    def _keep(self, answer: Answer | None, found: Answer) -> Answer:
        if answer is None:
            return found
        self._terms.spawn(found.carrier.close())
        return answer

    async def _let_go(self, task: asyncio.Task[Answer]) -> None:
        with contextlib.suppress(ConnectionError):
            answer = await task
            await answer.carrier.close()


@final
class Dialling:
    """The connections of one worker that this side dials now; on the loop.

    Args:
        terms: The parts that all connections share.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._reaching: dict[Carriers, Reach] = {}

    def __contains__(self, carriers: Carriers) -> bool:
        return carriers in self._reaching

    def begin(self, carriers: Carriers) -> None:
        """Dials for a connection, unless that is under way."""
        if carriers not in self._reaching:
            reach = self._reaching[carriers] = Reach(carriers, self._terms)
            self._terms.spawn(self._run(carriers, reach))

    def shakes_hands(self, carriers: Carriers) -> bool:
        """Returns True while a handshake that this side began is under way."""
        reach = self._reaching.get(carriers)
        return reach is not None and reach.shaking_hands

    async def _run(self, carriers: Carriers, reach: Reach) -> None:
        try:
            await reach.run()
        finally:
            del self._reaching[carriers]


def _is_final(failure: Exception) -> bool:
    if isinstance(failure, RefusedError):
        return failure.reason not in (Reason.DUPLICATE, Reason.UNANNOUNCED)
    return isinstance(failure, (ConnectionRefusedError, DecodeError))


def _words(failure: Exception) -> str:
    if isinstance(failure, RefusedError):
        return failure.words
    if isinstance(failure, ConnectionRefusedError):
        return f"{failure}; its process is gone, or nothing is let in there"
    return str(failure)
