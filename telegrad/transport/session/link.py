"""The carrier of a connection now, and the reachability of a peer: for troubleshooting.

Looking does a session no harm. An envelope that is posted to a peer that cannot be reached would
have the peer given up after the usual silence. Here a peer is dialled and nothing is posted, so
that a dial which fails leaves everything as it was. A dial that succeeds becomes the connection's
carrier, where it has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from telegrad.errors import DecodeError
from telegrad.transport.security.handshake import RefusedError
from telegrad.transport.session.carriers import Carriers
from telegrad.transport.session.exchange import Exchange
from telegrad.types import WorkerInfo

# The ways in which a dial may end.
REACHED: Final = "reached"
REFUSED: Final = "refused"  # the host answers, nobody listens
SILENT: Final = "silent"  # no answer in time
NO_ROUTE: Final = "no route"  # the system knows no route to the host
TURNED_AWAY: Final = "turned away"  # there is a listener, and one of the two ends refuses the other
BROKE: Final = "broke"  # any other error
NOT_TRIED: Final = "not tried"  # the peer does not listen

NO_PORT: Final = "one of the two has no direct port"
NOT_COME: Final = "it does not listen, and has not come by itself"

LOOK_SECONDS = 0.02  # between checks if the dial of a peer that dials, too, has come through
LOOKS = 250  # a handshake may take 5 s
MOVE_LOOKS = 50  # a move takes milliseconds, or does not come about
# For one endpoint: to connect, and for both halves of a handshake, 5 s each. A peer that always
# dials, too, and goes first would hold a dial for ever.
DIAL_SECONDS = 15.0
ROUTE_ERRORS: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL})


@final
@dataclass(frozen=True, slots=True)
class Dial:
    """The result of one worker's dial of another, and the carrier that is then up between them.

    Attributes:
        ended: `reached`, or the failure: `refused` (the host answers, nobody listens there),
            `silent`, `no route`, `turned away` (by either end's checks), `broke`; `not tried` if
            the other does not listen, or nobody could be asked.
        words: The reason, for people.
        endpoints: The other's endpoints, as far as the dialler knows.
        transport: The transport of the carrier, opened by either side: `grpc`, `grpcs`, `tcp` or
            `tcps` (past gRPC), `local`, `inproc`; "" without a carrier.
        opened: True if the dialler has opened it.
        endpoint: The address of its other end.
        certificate: The names that the other's certificate proves; None if it was not asked for
            one.
        loss: The reason for which the other is lost to the dialler, or unreachable; "" if it is
            not.
        kept: The reason for which it has not moved past gRPC; "" if it has, or if the other has
            opened it.
    """

    ended: str = NOT_TRIED
    words: str = ""
    endpoints: tuple[str, ...] = ()
    transport: str = ""
    opened: bool = False
    endpoint: str = ""
    certificate: tuple[str, ...] | None = None
    loss: str = ""
    kept: str = ""

    @property
    def failed(self) -> bool:
        """True if a dial was tried and failed."""
        return self.ended not in (REACHED, NOT_TRIED)


def kind_of_failure(error: Exception) -> str:
    """Returns how a connection failed: `refused`, `silent`, `no route` or `broke`.

    >>> kind_of_failure(TimeoutError()), kind_of_failure(ConnectionResetError())
    ('silent', 'broke')
    """
    for each in (error, error.__cause__):
        if isinstance(each, ConnectionRefusedError):
            return REFUSED
        if isinstance(each, TimeoutError):
            return SILENT
        if isinstance(each, OSError) and each.errno in ROUTE_ERRORS:
            return NO_ROUTE
    return BROKE


def own_endpoints(exchange: Exchange) -> tuple[str, ...]:
    """Returns the endpoints of an exchange, as it tells others; none before it listens."""
    return tuple(each.endpoint for each in list(exchange._listeners) if each.endpoint)


def dial_peers(exchange: Exchange, peers: Sequence[WorkerInfo], limit: float) -> list[Dial]:
    """Dials peers, all at once, and returns the result for each; blocks for `limit` at most.

    A peer whose carrier this side has opened was reached, and is not dialled again. A dial that has
    not ended in time counts as silent, and ends by itself later.

    Args:
        exchange: The exchange of this worker; it has been told of the peers.
        peers: The peers to dial.
        limit: Seconds.

    Raises:
        BlockingCallError: On an event loop that telegrad runs.
    """
    return exchange._terms.loop.run(_dial_all(exchange, peers, limit))


async def _dial_all(exchange: Exchange, peers: Sequence[WorkerInfo], limit: float) -> list[Dial]:
    found: dict[WorkerInfo, tuple[str, str]] = {}
    different = set(peers)
    all_ended = asyncio.Event()

    async def dial(peer: WorkerInfo) -> None:
        await _dial(exchange, peer, found)
        if len(found) == len(different):
            all_ended.set()

    for peer in different:
        exchange._tasks.spawn(dial(peer))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit if different else 0):
            await all_ended.wait()
    return [_dial_of(exchange, peer, found, limit) for peer in peers]


def _dial_of(
    exchange: Exchange,
    peer: WorkerInfo,
    found: Mapping[WorkerInfo, tuple[str, str]],
    limit: float,
) -> Dial:
    carriers = exchange._peers.find(peer, False)
    late = SILENT, f"no answer within {limit:.3g} s"
    if carriers is not None and not carriers.endpoints:
        late = NOT_TRIED, NOT_COME
    elif carriers is not None and carriers.last_failure:
        late = SILENT, f"{late[1]} ({carriers.last_failure})"
    ended, words = found.get(peer, late)
    if carriers is None:
        return Dial(ended, words)
    loss = carriers.connection.loss
    told = "" if loss is None else loss.reason or str(loss)
    dial = Dial(ended, words, carriers.endpoints, loss=told)
    if (stream := carriers.stream) is None:
        return dial
    carrier = stream.carrier
    scheme = carrier.description.partition(" ")[0].partition(":")[0]
    stays = stream.dialled and not stream.lanes.way.direct and carrier.direct is None
    return replace(
        dial,
        transport=scheme.removesuffix("s") + "s" if carrier.binding else scheme,
        opened=stream.dialled,
        endpoint=carrier.description,
        certificate=None if carrier.peer_names is None else tuple(sorted(carrier.peer_names)),
        kept=carriers.direct.kept or (NO_PORT if stays else ""),
    )


async def _dial(
    exchange: Exchange, peer: WorkerInfo, found: dict[WorkerInfo, tuple[str, str]]
) -> None:
    carriers = exchange._peers.find(peer, False)
    if carriers is None:
        found[peer] = NOT_TRIED, "it is not known here"
        return
    try:
        reached = await _reached(exchange, carriers)
        await _until(lambda: not carriers.dialling, MOVE_LOOKS)  # it may move to a socket
        found[peer] = reached
    except RefusedError as error:
        found[peer] = TURNED_AWAY, error.words
    except (OSError, DecodeError) as error:  # the bases of ConnectionError and WorkerLostError
        found[peer] = kind_of_failure(error), str(error)


async def _reached(exchange: Exchange, carriers: Carriers) -> tuple[str, str]:
    if not carriers.endpoints:
        # A peer that only dials does so by itself.
        return NOT_TRIED, "it does not listen" if await _up(carriers) else NOT_COME
    if (loss := carriers.connection.loss) is not None:
        return BROKE, loss.reason or str(loss)
    # It may be dialled already, and a second dial would cross that one.
    await _until(lambda: not carriers.dialling or carriers.stream is not None)
    if carriers.stream is not None and carriers.stream.dialled:
        return REACHED, ""
    failure: OSError | None = None
    for endpoint in carriers.endpoints:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await exchange._introduce(endpoint, carriers.peer)
        except TimeoutError:
            late = f"{endpoint} answers, and no carrier came up within {DIAL_SECONDS:.3g} s"
            failure = failure or TimeoutError(late)
        except ConnectionError as error:
            failure = failure or error
        else:
            await _up(carriers)
            return REACHED, ""
    assert failure is not None
    raise failure


async def _up(carriers: Carriers) -> bool:
    """Waits for a carrier: where two dials crossed, one of them may have taken both down."""
    return await _until(lambda: carriers.stream is not None or carriers.connection.loss is not None)


async def _until(condition: Callable[[], bool], looks: int = LOOKS) -> bool:
    """Waits until a condition holds; returns False if it never did."""
    for _ in range(looks):
        if condition():
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False
