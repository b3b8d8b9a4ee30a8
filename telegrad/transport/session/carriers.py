"""The carriers of one connection, one after the other: dialled, adopted, watched, let go.

Everything here runs on the loop. Streams come from `reach` (this side dialled) or from the Door
(the peer dialled) through `adopt`. They end through `detach`, after which nothing of them is read:
only then may the peer be told the number of the last envelope held. (A copy under way may still
complete an envelope, which the peer announces again.) A lane that breaks in the middle, or stalls
while the peer lives, ends its stream; one that cannot be opened does not.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from telegrad.critical import critical
from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.channels.lanes import Lanes, LaneTries, Way
from telegrad.transport.host import out_of_descriptors
from telegrad.transport.io.pump import TaskPump
from telegrad.transport.io.socket_pump import SocketPump
from telegrad.transport.log import get_logger
from telegrad.transport.security.handshake import Handshake, RefusedError
from telegrad.transport.session.ask import dial_lane
from telegrad.transport.session.connection import Connection
from telegrad.transport.session.stream import Stream, breakage, without_carrier
from telegrad.transport.session.terms import Terms
from telegrad.types import WorkerInfo
from telegrad.wire import Frame, escaped, pack_frame

logger = get_logger(__name__)

# Carriers that come up and break before they bring one frame: an honest network does not do that
# ten times in a row, and dialling for ever would keep a processor busy.
FRUITLESS_CARRIERS = 10
# Sockets that broke soon: something in between does not like them, or alters the bytes that they
# carry. Calls stay on gRPC for a while then; one that was calm for so long says that it is well.
MOST_BROKEN_SOCKETS = 5
CALM_SECONDS = 60.0
BARRED_SECONDS = 600.0
# Until the next dial of a port that could not be reached; doubles. A network may be back in a
# second, and a firewall may be opened later.
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
# Seconds that lanes may stall while the peer lives, if that is more than `lost_after`: at 512
# kbit/s two chunks of 1 MiB take half of it, and to dial again on a link that is full takes long.
LEAST_PATIENCE = 60.0
GOODBYE_SECONDS = 0.25  # for a goodbye that has come to be read; that takes a turn of a thread
MOST_PATIENCE = 16  # times that: lanes that stalled get twice the time on the next stream


@final
class DirectTries:
    """Counts the failures of sockets past gRPC to one peer, and knows why calls stay on gRPC.

    Attributes:
        kept: The reason why calls stay on gRPC, though both ends know of a socket; empty while they
            have moved, or none has been tried.
    """

    def __init__(self, peer: str, terms: Terms) -> None:
        self.kept = ""
        self._peer = peer
        self._terms = terms
        self._broken = 0  # streams and lanes over sockets that broke
        self._pause = FIRST_RETRY_SECONDS
        self._moved_at = self._barred_until = -math.inf  # by the clock

    @property
    def may_move(self) -> bool:
        """True unless sockets broke too often, or could not be reached just now."""
        return self._terms.clock() >= self._barred_until

    def due(self, stream: Stream) -> bool:
        """Returns True if this side should dial the socket to which a stream may move."""
        return bool(stream.lanes.way.direct) and self.may_move

    def moved(self) -> None:
        """Records that a stream has moved to a socket."""
        self.kept, self._pause = "", FIRST_RETRY_SECONDS
        self._moved_at = self._terms.clock()

    def broke(self, *, given_up: bool = False, why: str = "too many sockets broke") -> None:
        """Records that a stream, or a lane, over a socket broke, or did not come up.

        Args:
            given_up: True if the next socket would fail, too: the lanes stood still, or one end
                refuses.
            why: The reason to give up.
        """
        now = self._terms.clock()
        calm = now - self._moved_at >= CALM_SECONDS
        self._broken = 1 if calm else self._broken + 1
        if given_up or self._broken >= MOST_BROKEN_SOCKETS:
            self._broken, self._barred_until, self.kept = 0, now + BARRED_SECONDS, why
            words = "all goes to %s over gRPC for %.0f s: %s"
            # A log handler may block.
            self._terms.loop.run_beside(logger.warning, words, self._peer, BARRED_SECONDS, why)

    def stays(self, where: str, why: str) -> None:
        """Records that a stream stays on gRPC, as it cannot get a socket; logs that once a peer."""
        self._barred_until = max(self._barred_until, self._terms.clock() + self._pause)
        self._pause = min(2 * self._pause, LONGEST_RETRY_SECONDS)
        known = self.kept
        self.kept = f"{where} cannot be reached: {why.removeprefix(where).lstrip()}"
        if known:
            return
        level = logging.DEBUG if self._terms.counters.kept_on_grpc else logging.WARNING
        self._terms.counters.kept_on_grpc += 1
        words = "calls to %s stay on gRPC: %s (telegrad doctor tells it of each pair)"
        self._terms.loop.run_beside(logger.log, level, words, self._peer, self.kept)


@final
class Carriers:
    """Keeps a carrier up for one connection, until one of both ends leaves or is lost.

    Args:
        dial: Dials for the connection of these carriers, where an endpoint is known.

    Attributes:
        endpoints: The addresses where the peer listens, in the order to try.
        last_failure: The reason why the last dial failed, for the message of a loss by silence.
        kept_out: True unless that dial reached somebody, or this side has too many open files.
        last_break: The time and the reason of the last break of a carrier, for the same message.
        direct: The tries of sockets past gRPC.
        came_up: The number of carriers that came up; tells a crossed dial from a redial.
        dialling: True while this side dials.
        hellos: The number of handshakes under way that this side began.
        ended: Set once there will be no more carriers.
    """

    def __init__(self, peer: WorkerInfo, terms: Terms, dial: Callable[[Carriers], None]) -> None:
        self.peer = peer
        self.connection = Connection(peer, terms, self)
        self.endpoints: tuple[str, ...] = ()
        self.last_failure, self.kept_out = "", True
        self.last_break = 0.0, ""
        self.direct = DirectTries(peer.name, terms)
        self.came_up = 0
        self.dialling = False
        self.hellos = 0
        self.ended = asyncio.Event()
        self._terms = terms
        self._dial = dial
        self._patience = max(terms.lost_after, LEAST_PATIENCE)  # with lanes that move nothing
        self._fruitless = 0  # carriers in a row that brought no frame
        self._lane_tries = LaneTries()

    # From any thread.

    @property
    def stream(self) -> Stream | None:
        """The carrier that is up now."""
        return self.connection.stream

    def learn(self, endpoints: Sequence[str]) -> None:
        """Takes the endpoints where the peer listens, in the order to try."""
        self.endpoints = tuple(endpoints)
        # The endpoints are there before this look: a thread that posts after it wakes the loop
        # itself.
        if self.connection.waits:  # envelopes that were posted before found no endpoint to dial
            self.wake()

    def wake(self) -> None:
        """Makes the loop dial the peer."""
        self._terms.loop.call_soon(self.reach)

    # On the loop.

    @property
    def wanted(self) -> bool:
        """True if there is no carrier, and one would be of use."""
        return self.stream is None and self.connection.loss is None and not self.ended.is_set()

    def reach(self) -> None:
        """Dials, where an endpoint is known; else the peer has the usual time to dial."""
        if not self.wanted:
            return
        with critical.section, self.connection.lock:
            self.connection.pulse.begin(self._terms.clock())
        if self.endpoints:
            self._dial(self)

    def adopt(
        self,
        carrier: Carrier,
        handshake: Handshake,
        way: Way,
        peer_received: int,
        preamble: bytes = b"",
    ) -> None:
        """Takes a new carrier, in place of the present one.

        Args:
            carrier: The carrier, which has proved itself.
            handshake: The handshake by which it did.
            way: The two ends of its lanes, and the endpoints to dial.
            peer_received: The number of the last envelope that the peer holds.
            preamble: The bytes to send before the first frame: a listener's welcome.

        Raises:
            DecodeError: The number that the peer says it holds is impossible; the carrier is not
                taken.
            CarrierClosedError: The carrier has ended by now, or there are too many open files.
        """
        self.detach()
        connection, terms = self.connection, self._terms

        def lane_ended(broken: Lanes, error: Exception) -> None:
            # A process that ends closes all its sockets. Its goodbye may lie in the control stream,
            # which another thread reads: it must not come second to the end of a lane.
            asyncio.get_running_loop().call_later(GOODBYE_SECONDS, self._lane_broke, broken, error)

        lanes = Lanes(
            terms.means,
            self.peer.name,
            way,
            cargo=connection.cargo,
            patience=self._patience,
            held=bool(way.direct) and self.direct.may_move,
            tries=self._lane_tries,
            dial=partial(dial_lane, terms, self.peer),
            on_broken=lane_ended,
            on_laneless=self._go_laneless,
        )
        slabs = terms.slabs.open(carrier, handshake.capabilities)
        stream = Stream(carrier, handshake.frames(), lanes, slabs)
        stream.next_message = partial(connection.next_message, stream)
        stream.written = lambda: terms.loop.call_soon(self._end_if_said, stream)
        stream.take = partial(connection.take, stream)
        stream.failed = partial(self.failed, stream)
        if (direct := carrier.direct) is None:
            spin = terms.reader.longest_spin if carrier.polled else 0.0
            stream.pump = TaskPump(carrier, stream, terms.loop, terms.spawn, spin)
        else:
            stream.pump = SocketPump(direct, stream, terms.loop, terms.reader)
        try:
            # The connection has the stream before the pump starts: it takes no message of any
            # other.
            connection.opened(stream, peer_received)
        except DecodeError:
            stream.pump.let_go(None)
            raise
        self.came_up += 1
        if carrier.takes_over:
            self.direct.moved()
        terms.counters.connections += not carrier.takes_over  # else it moved
        if direct is not None:
            direct.accept_all()
        # At level INFO, a healthy start would write the square of the workers.
        logger.debug("connected to %s by %s", self.peer.name, carrier.description)
        try:
            stream.pump.start(preamble)
        except CarrierClosedError as error:
            self.detach()
            self.gone(str(error))  # else both ends would try again and again
            raise

    def detach(self, farewell: bytes = b"") -> int:
        """Lets go of the present carrier, with a last message for it, and reads nothing more of it.

        Returns:
            The number up to which every envelope is held; now it may be told to the peer.
        """
        self.set_aside()(farewell)
        with critical.section, self.connection.lock:
            return self.connection.session.received_number

    def set_aside(self) -> Callable[[bytes], None]:
        """Stops reading the carrier; returns a function that lets go of it; see `detach`."""
        if (stream := self.stream) is not None:
            # This is the first: parts that a reader holds now will come once more, as pieces, and
            # their memory must be used for nothing else.
            stream.stop_lending()
        if (stream := self.connection.closed()) is None:
            return lambda last: None
        seal, pump = stream.frames.seal, stream.pump
        stream.lanes.close()
        return lambda last: pump.let_go(partial(seal, last) if last else None)

    def tick(self, now: float) -> None:
        """Sends the beat that is due and judges the peer; called several times per beat."""
        connection, stream, lost = self.connection, self.stream, False
        judging = not self.ended.is_set() and connection.loss is None
        chunks = None if stream is None else (stream.lanes.taken, stream.lanes.known_taken)
        with critical.section, connection.lock:
            connection.pulse.idle_frames.tick()
            if judging:
                lost = connection.pulse.tick(now, connection.session.acknowledged, chunks)
            if stream is not None:
                stream.look_for_news()
        if lost:
            connection.lose(self._silence_words(now))
        elif judging and stream is not None:
            connection.flush()
            if self.direct.due(stream):
                self._dial(self)
            if stream.lanes.stand_still(now):  # the lanes of the next stream get twice the time
                most = MOST_PATIENCE * max(self._terms.lost_after, LEAST_PATIENCE)
                self._patience = min(2 * self._patience, most)
                if stream.carrier.takes_over:
                    self.direct.broke(given_up=True, why="its lanes stood still")
                self._broke(stream, CarrierClosedError("its lanes stand still"))

    def dial_failed(self, error: Exception, words: str = "") -> None:
        """Records why a dial failed, for the message of a loss by silence."""
        self.last_failure = words or str(error)
        reached = isinstance(error, (CarrierClosedError, RefusedError))
        self.kept_out = not (reached or out_of_descriptors(error.__cause__))

    def spare(self, seconds: float) -> None:
        """Gives the peer up only after so many seconds of silence, if that is later than now."""
        with critical.section, self.connection.lock:
            self.connection.pulse.spare(seconds)

    def answered(self) -> None:
        """Records that the peer answered a dial, and lets this side in later."""
        with critical.section, self.connection.lock:
            self.connection.pulse.answered(self._terms.clock())

    def leave(self, reason: str, *, now: bool = False) -> None:
        """Sends a goodbye behind what was posted; `ended` is set when the peer has it all.

        Args:
            reason: The reason, in words, for the peer.
            now: True if this side waits no longer, and the goodbye overtakes what was posted.
        """
        connection = self.connection
        if not connection.leave(reason, now=now):
            return
        never_met = self.came_up == 0 or not self.endpoints
        if connection.loss is not None:  # the peer is out of reach
            self.end()
        elif self.stream is not None:
            connection.flush()
        elif never_met and connection.flushed:  # the peer never knew of this side, or will find out
            self.end()
        else:
            self.reach()

    def gone(self, reason: str, *, fenced: bool = False) -> None:
        """Gives up a peer that can never be reached again."""
        if self.connection.left:
            self.end()
        else:
            self.connection.lose(reason, fenced=fenced)

    def broke_protocol(self, error: DecodeError) -> None:
        """Gives up a peer that broke the protocol: it would do the same again and again."""
        if self.stream is not None and self.connection.loss is None:
            self.stream.record_cut_off(self._terms.audit, self.peer, error)
        self.gone(f"it broke the protocol: {error}")

    def lost(self) -> None:
        """Ends the carriers, since the peer was given up, and tells the layer above."""
        if self.ended.is_set():
            return
        # The stream ends before the layer above hears of the loss: a thread that reads it would
        # hand over envelopes after that.
        self.end()
        logger.debug("%s", self.connection.loss)
        self.connection.tell_loss()

    def end(self) -> None:
        """Ends the connection at once; drops messages that are still under way."""
        self.detach()
        with critical.section, self.connection.lock:
            self.connection.session.abandon()  # nobody will ask for these buffers again
        self.ended.set()

    def peer_left(self, stream: Stream, reason: str) -> None:
        """Answers a goodbye, so that the peer knows that all its messages have arrived.

        If this side leaves, too, its own goodbye is the answer, behind messages that are under way.
        """
        if self.stream is not stream:
            return
        connection, left = self.connection, self.connection.left
        with critical.section, connection.lock:
            answered = connection.session.goodbye_written
            last = Frame(receipt=connection.session.received_number, goodbye="answer")
        if left and not answered:
            # Set before the flush: the thread that writes the goodbye looks at it.
            stream.ending = True
            connection.flush()
            return
        self.detach(farewell=b"" if answered else pack_frame(last))
        if left:
            self.end()
        else:
            connection.lose(escaped(reason) or "it left", left=True)

    def failed(self, stream: Stream, error: BaseException) -> None:
        """Handles the error that ended a stream; goes on without it, or gives the peer up."""
        if self.stream is not stream:
            return
        if isinstance(error, DecodeError):
            self.broke_protocol(error)
        elif isinstance(error, Exception):
            stream.record_cut_off(self._terms.audit, self.peer, error)
            if stream.carrier.takes_over:
                self.direct.broke()
            self._broke(stream, error)

    def _end_if_said(self, stream: Stream) -> None:
        """Ends once both sides have said goodbye, this one last."""
        with critical.section, self.connection.lock:
            said = self.connection.session.goodbye_written
        if said and self.stream is stream:
            self.end()

    def _silence_words(self, now: float) -> str:
        with critical.section, self.connection.lock:
            words = self.connection.pulse.silence_words(now)
        if self.stream is None:
            words += without_carrier(
                self.endpoints, self.last_failure, ever=self.came_up > 0, kept_out=self.kept_out
            )
            words += breakage(*self.last_break, now)
        return words

    def _go_laneless(self, lanes: Lanes, error: Exception | None) -> None:
        """Sends big parts over the stream, as no lane can be opened; logs that once.

        Without an error, lanes carry them again.
        """
        # The peer is kept: calls are well, though its certificate has expired, say, or something in
        # between lets no second connection in.
        stream = self.stream
        laneless = error is not None
        if stream is None or stream.lanes is not lanes or stream.laneless is laneless:
            return
        with critical.section, self.connection.lock:
            stream.laneless = laneless
            stream.news_due = True  # the peer must hear of it
        self.connection.flush()
        if laneless and not self._lane_tries.told:
            self._lane_tries.told = True
            level = logging.DEBUG if self._terms.counters.laneless else logging.WARNING
            self._terms.counters.laneless += 1
            words = "large arrays to and from %s share the stream of calls, and are slower: %s"
            # A log handler may block.
            self._terms.loop.run_beside(logger.log, level, words, self.peer.name, str(error))

    def _lane_broke(self, lanes: Lanes, error: Exception) -> None:
        """Ends a stream of which a lane broke in the middle; goes on without it.

        Once this side has said goodbye it needs no lane: the peer that answers lets go of the lanes
        first. A peer that still sends notices the break on its own end.
        """
        stream = self.stream
        if stream is None or stream.lanes is not lanes:
            return
        with critical.section, self.connection.lock:
            done = self.connection.session.goodbye_written
        if not lanes.moved:  # something in between may not like them
            self._lane_tries.failed(self._terms.clock())
        if stream.carrier.takes_over:
            self.direct.broke()
        if isinstance(error, DecodeError):
            self.broke_protocol(error)
        elif done:
            logger.debug("a lane of %s ended: %s", self.peer.name, error)
        else:
            self._broke(stream, error)

    def _broke(self, stream: Stream, error: Exception) -> None:
        """Goes on without a stream that broke; dials again at once where that is possible."""
        if self.stream is not stream:
            return
        logger.debug("lost the carrier to %s: %s", self.peer.name, error)
        self.last_break = self._terms.clock(), str(error)
        self.detach()
        self._fruitless = 1 if stream.frames_taken else self._fruitless + 1
        if self._fruitless >= FRUITLESS_CARRIERS:
            self.gone(f"{self._fruitless} carriers in a row broke at once: {error}")
        elif self.connection.left and not self.endpoints and self.connection.flushed:
            self.end()  # no dial can tell the peer, and it may have ended itself
        else:
            self.reach()
