"""The interface of a place where rank 0 makes its coordinator's endpoint known, and others read it.

What they read may be of an earlier job, or of somebody else: any failure with an endpoint from a
source is followed by another look.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Published:
    """What rank 0 has made known.

    Attributes:
        endpoint: The endpoint at which the coordinator listens, or once did.
        by: The writer, in words.
    """

    endpoint: str
    by: str


class EndpointSource(ABC):
    """A file, or a multicast group. Blocking; for one worker, which writes it or reads it.

    Attributes:
        name: The source, in words.
        waiting: The event that a worker waits for which has read nothing, in words.
        unread: What rank 0 has not done, for a worker that has read nothing in all its time.
        remedy: What to do then.
    """

    name: str
    waiting: str
    unread: str
    remedy: str

    @abstractmethod
    def publish(self, endpoint: str) -> None:
        """Makes the coordinator's endpoint known, until `withdraw`.

        Raises:
            RendezvousError: That is impossible; the message has the remedy.
        """

    @abstractmethod
    def read(self) -> Published | None:
        """Returns an endpoint that was made known; None if there is none yet.

        Raises:
            RendezvousError: The source cannot be read; the message has the remedy.
        """

    @abstractmethod
    def withdraw(self) -> None:
        """Takes back what `publish` made known, and ends the use of the source; idempotent."""

    @abstractmethod
    def unreached(self, published: Published, problem: str) -> str:
        """Returns what to say of an endpoint from here that has a problem, and the remedy."""
