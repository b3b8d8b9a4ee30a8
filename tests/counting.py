"""Counts what the workers of a cluster in one process send each other, and give to their pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from telegrad.rpc.deadlock.probe import WaitProbes
from telegrad.rpc.pool.pool import Pool
from telegrad.transport.session.connection import Connection
from telegrad.transport.session.exchange import Loopback

__all__ = ["Work", "counted"]

# On a machine with too much to do, a wait may be so long that the workers look at it, and ask each other.
KINDS = ("reply", "rpc", "rref", "autograd")
OF_WAITS = "rpc.wait"


class Work:
    """What was counted.

    Attributes:
        envelopes: By sender and kind, as `worker0 rpc.call`; replies as `worker0 reply`.
        hops: Pieces of work given to a pool, by worker.
    """

    def __init__(self) -> None:
        self.envelopes: Counter[str] = Counter()
        self.hops: Counter[str] = Counter()


@contextmanager
def counted() -> Iterator[Work]:
    """Counts in its block."""
    work = Work()
    to_peer, to_itself, enter = Connection.post, Loopback.post, Pool.submit_call

    def count(worker: str, envelope: Any) -> None:
        kind = "reply" if envelope.reply else envelope.kind
        if kind.partition(".")[0] in KINDS and not kind.startswith(OF_WAITS):
            work.envelopes[f"{worker} {kind}"] += 1

    def counted_post(connection: Connection, envelope: Any, **how: Any) -> None:
        count(connection._terms.credentials.identity.info.name, envelope)
        to_peer(connection, envelope, **how)

    def counted_post_to_itself(loopback: Loopback, envelope: Any) -> None:
        count(loopback._info.name, envelope)
        to_itself(loopback, envelope)

    def counted_enter(pool: Pool, context: Any, function: Any, *args: Any, **how: Any) -> bool:
        work.hops[pool._name] += getattr(function, "__func__", None) is not WaitProbes._look
        return enter(pool, context, function, *args, **how)

    with (
        mock.patch.object(Connection, "post", counted_post),
        mock.patch.object(Loopback, "post", counted_post_to_itself),
        mock.patch.object(Pool, "submit_call", counted_enter),
    ):
        yield work
