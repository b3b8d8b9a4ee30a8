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

A stream may then move from gRPC to a TCP socket, which any thread reads and writes itself. The
listener has a direct port and says so in its hello (`sockets/tcp`). The worker that dialled a
stream over gRPC dials that port as soon as the stream is up. The handshake there names the stream
whose place it takes; the session goes on from there, as after any break.

    gRPC   hello, hello, proof, welcome, frames ─────┐ let go
    TCP                    [TLS] hello, hello, proof, welcome, frames

Each end proves the token again, over both hellos, of which the dialler's names the first stream.
The socket is under TLS if the stream was, with the same certificates. A socket that cannot be had
leaves the stream where it is; a socket that breaks returns it to gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import final

from telegrad.errors import DecodeError
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.channels.lanes import Way
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.session.ask import Answer, ask, proving, receive_small, way_of
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.stream import Stream, breakage
from telegrad.transport.session.terms import Terms

STAGGER_SECONDS = 0.1  # an endpoint that does not answer must not delay the next for longer
FIRST_PAUSE_SECONDS = 0.02  # between rounds of dials; doubles
LONGEST_PAUSE_SECONDS = 0.5
# The number of bounds of silence for which a living peer may not have heard of this worker's
# arrival.
LONGEST_UNANNOUNCED = 6
LOOK_SECONDS = 0.05  # between checks if a stream is still there, while a socket does not answer
# Big parts wait so long for a socket that answers. A firewall that drops what it does not let in
# must not delay them for longer; lanes over gRPC are let go if the stream moves after all.
HELD_SECONDS = 0.25


def dial(carriers: Carriers, terms: Terms) -> None:
    """Dials for a connection, unless that is under way; on the loop."""
    if not carriers.dialling:
        # Set here and not by the task: others may ask again before the task begins.
        carriers.dialling = True
        terms.spawn(Reach(carriers, terms).run())


@final
class Reach:
    """Gets a carrier for one connection, and moves it where both ends want that; on the loop."""

    def __init__(self, carriers: Carriers, terms: Terms) -> None:
        self._carriers = carriers
        self._terms = terms
        self._early_since: float | None = None

    async def run(self) -> None:
        """Dials until a carrier is up, from either side, or none is possible; then moves it."""
        carriers, pause = self._carriers, FIRST_PAUSE_SECONDS
        try:
            while True:
                while carriers.wanted and not await self._round():
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                # Looked at again after each step: a stream may break while it moves.
                if (stream := carriers.stream) is not None and carriers.direct.due(stream):
                    await self._move(stream)
                elif not carriers.wanted:
                    return
        finally:
            carriers.dialling = False

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
        # The peer's own dial may have come through, and ended this one.
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
        if failures:
            self._carriers.dial_failed(failures[-1], _words(failures[-1]))
        else:
            self._carriers.last_failure = ""
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
        carriers = self._carriers
        with self._shaking_hands(answer):
            if not carriers.wanted:
                raise CarrierClosedError("it is needed no more")
            await self._take_up(answer, way_of(self._terms, answer))

    @contextlib.contextmanager
    def _shaking_hands(self, answer: Answer) -> Iterator[None]:
        self._carriers.hellos += 1
        try:
            with proving(self._terms, answer):
                yield
        finally:
            self._carriers.hellos -= 1

    async def _take_up(self, answer: Answer, way: Way) -> None:
        """Finishes a handshake, and takes the carrier in place of the one that is up, if any."""
        carriers, carrier, shake = self._carriers, answer.carrier, answer.handshake
        let_go = carriers.set_aside()  # before the number of the last envelope held is told
        try:
            await carrier.send(shake.prove(carriers.detach(), resumes=carriers.came_up > 0))
            peer_received = shake.takes_welcome(await receive_small(self._terms, carrier))
        finally:
            let_go(b"")  # not before the peer knows the reason: it would dial
        if not carriers.wanted:
            raise CarrierClosedError("the peer was faster")
        carriers.adopt(carrier, shake, way, peer_received)

    async def _first_answer(
        self, endpoints: Sequence[str], failures: list[Exception]
    ) -> Answer | None:
        """Asks one endpoint after the other; the first answer wins, the others are let go."""
        started: list[asyncio.Task[Answer]] = []
        asking: set[asyncio.Task[Answer]] = set()
        first: asyncio.Task[Answer] | None = None
        try:
            while first is None and self._carriers.wanted:
                if len(started) < len(endpoints):
                    started.append(asyncio.ensure_future(self._ask(endpoints[len(started)])))
                    asking.add(started[-1])
                elif not asking:
                    return None
                timeout = STAGGER_SECONDS if len(started) < len(endpoints) else None
                done, asking = await asyncio.wait(
                    asking, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if isinstance(error := task.exception(), ConnectionError):
                        failures.append(error)
                    else:
                        first = first or task
            return None if first is None else first.result()
        finally:  # also when the exchange closes in the middle: a carrier must not stay open
            for task in started:
                if task is not first:
                    self._terms.spawn(self._let_go(task))

    async def _ask(self, endpoint: str) -> Answer:
        self._carriers.hellos += 1
        try:
            return await ask(self._terms, endpoint, self._carriers.peer)
        finally:
            self._carriers.hellos -= 1

    async def _let_go(self, task: asyncio.Task[Answer]) -> None:
        with contextlib.suppress(ConnectionError):
            answer = await task
            await answer.carrier.close()

    async def _move(self, stream: Stream) -> None:
        """Moves a stream that this side dialled and both ends want to move, if that is possible.

        Args:
            stream: The stream that is up; its lanes are held until the move is decided.
        """
        carriers, way = self._carriers, stream.lanes.way
        try:
            answer = await self._ask_to_move(stream)
            if answer is None:
                return
            with self._shaking_hands(answer):
                # The stream may have ended while the listener answered, and another have come up.
                if carriers.stream is not stream:
                    raise CarrierClosedError("it is needed no more")
                try:
                    await self._take_up(answer, way.moved(answer.handshake.stream_id()))
                except RefusedError as error:
                    # Somebody in between may have shown another certificate.
                    given_up = error.reason is Reason.AUTHENTICATION
                    carriers.direct.broke(given_up=given_up, why=error.words)
                    raise
                except BaseException:
                    carriers.direct.broke()
                    raise
        except (ConnectionError, DecodeError) as error:
            if carriers.stream is stream:
                carriers.direct.stays(way.direct, str(error))
        finally:
            stream.lanes.release()

    async def _ask_to_move(self, stream: Stream) -> Answer | None:
        """Returns the answer of the socket's listener; None once the stream is over.

        A stream that is over is dialled anew.
        """
        carriers, way = self._carriers, stream.lanes.way
        asking = asyncio.ensure_future(
            ask(self._terms, way.direct, carriers.peer, lane_of=way.stream_id, moves=True)
        )
        release = asyncio.get_running_loop().call_later(HELD_SECONDS, stream.lanes.release)
        try:
            while carriers.stream is stream and not asking.done():
                await asyncio.wait({asking}, timeout=LOOK_SECONDS)
            return asking.result() if asking.done() else None
        finally:
            release.cancel()
            asking.cancel()


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
