"""Whether a worker that lost its coordinator by silence was given up by it: asked until known.

A cut ends the session with the coordinator at both ends and for good, and nobody is there to tell
who was cut off that the job goes on without it. So it dials again, under another incarnation:

    refused, or another coordinator    the old one is gone: nothing to ask
    not reached, or no clear answer    again, later
    answered: no member                the coordinator gave up this worker and goes on: evicted
    answered: nobody can say           it was the coordinator that was stopped or cut off: it has
                                       learned by the question, if not before, that it is lost here
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import final

from telegrad.errors import AuthenticationError, RendezvousError
from telegrad.rendezvous import messages
from telegrad.rendezvous.control import ControlLine
from telegrad.types import WorkerInfo

__all__ = ["Standing"]

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0  # how late a worker may hear of it once the cut is healed
ATTEMPT_SECONDS = 2.0


@final
class Standing:
    """Asks in a thread of its own until it knows, or is closed.

    Args:
        line: The one that is lost; the new ones are like it.
        endpoint: Where the coordinator was.
        info: This worker.
        on_evicted: Called once, in that thread, when the coordinator goes on without this worker.
        longest_pause: Seconds between two questions at most. Well below the bound of silence: so a
            coordinator that cannot dial this worker hears of it before it gives this worker up.
    """

    def __init__(
        self,
        line: ControlLine,
        endpoint: str,
        info: WorkerInfo,
        on_evicted: Callable[[], None],
        longest_pause: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._line = line
        self._endpoint = endpoint
        self._info = info
        self._on_evicted = on_evicted
        self._longest_pause = min(longest_pause, LONGEST_PAUSE_SECONDS)
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"telegrad-standing-{info.name}", daemon=True
        )

    def start(self) -> None:
        """Begins to ask."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Stops asking; waits for the attempt that is under way, for so many seconds at most."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(min(timeout, 2 * ATTEMPT_SECONDS))

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._closed.wait(pause):
            pause = min(2 * pause, self._longest_pause)
            try:
                member = self._attempt()
            except Exception as error:  # no definite answer: no port, garbage, a line that breaks
                logger.debug("the coordinator could not be asked: %s", error)
                continue
            if member is None:
                return
            if not member:
                if not self._closed.is_set():
                    self._on_evicted()
                return

    def _attempt(self) -> bool | None:
        line = self._line.another()
        try:
            return self._ask(line)
        finally:
            line.close(reason="it has asked")

    def _ask(self, line: ControlLine) -> bool | None:
        """Returns whether this worker counts as a member; None where nobody can say any more."""
        try:
            coordinator = line.connect(self._endpoint, ATTEMPT_SECONDS)
        except (ConnectionRefusedError, AuthenticationError, RendezvousError) as error:
            logger.debug("the coordinator is not there to be asked: %s", error)
            return None
        except (ConnectionError, TimeoutError):
            return True
        if coordinator != self._line.coordinator:
            return None
        try:
            body = {"incarnation": self._info.incarnation}
            answer = line.ask(messages.STANDING, body, timeout=ATTEMPT_SECONDS)
        except (ConnectionError, TimeoutError):
            return True
        match answer:
            case {"member": None}:
                return None
            case {"member": False}:
                return False
        return True
