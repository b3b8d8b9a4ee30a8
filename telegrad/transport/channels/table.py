"""The channels of one worker: its table of kinds, and the lanes for all other parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from telegrad.transport.base import Carrier
from telegrad.transport.channels.base import Channel, ChannelKind, Means
from telegrad.transport.channels.shared_memory import SlabPool
from telegrad.wire import Land

__all__ = ["Channels"]


@final
class Channels:
    """The kinds of channels that one worker has.

    Args:
        means: The parts that all channels share.

    Attributes:
        means: The parts that all channels share.
        kinds: The table: for each part, the kinds are asked in this order.
        land: As `wire.land`, for arrays of GPUs that peers share.
    """

    def __init__(self, means: Means) -> None:
        self.means = means
        memory = SlabPool(means.clock, moved=means.moved)
        self.kinds: tuple[ChannelKind, ...] = (memory,)
        self.land: Land = memory.devices.land

    def open(self, carrier: Carrier, capabilities: Sequence[str]) -> tuple[Channel, ...]:
        """Opens the channels of a stream that lend; see `ChannelKind.open`."""
        opened = [kind.open(carrier, capabilities) for kind in self.kinds]
        return tuple(each for each in opened if each is not None)

    def tick(self) -> None:
        """Releases memory that was unused for a while; on the loop."""
        for kind in self.kinds:
            kind.tick()

    def close(self) -> None:
        """Ends the kinds that all streams shared, once the streams have ended; not on the loop."""
        self.means.bulk.close()
        for kind in self.kinds:
            kind.close()
