"""Frames from the items of their heads, also those that no worker writes."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from telegrad import pb


def frame_of(head: Sequence[object], raw: bytes = b"") -> bytes:
    """Returns a frame of nothing but a head, and the bytes of buffers."""
    return pb.Frame(head=msgpack.packb(head), raw=raw).SerializeToString()
