"""Joins RRefs to an agent: the interceptor, the handlers of the counting protocol, loss, shutdown.

header "rref" of a request or reply, beside its document:
    forks      [[external's index, RRefId, ForkId, owner's [name, rank, incarnation], class, whether
               its creation failed]]
    creation   [the 3 numbers of the RRefId, the 4 of the creator's ForkId if it has one]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from telegrad.errors import (
    DecodeError,
    ValueNotFoundError,
    WorkerLostError,
)
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.interceptor import Interceptor, Message
from telegrad.rpc.future.future import Future
from telegrad.rpc.rref.calls import NAME, Creation, RRefCalls
from telegrad.rpc.rref.confirmation import when_confirmed
from telegrad.rpc.rref.leaks import Leaks
from telegrad.rpc.rref.protocol import ForkId, RRefId, fork_id, rref_id
from telegrad.rpc.rref.rref import RRef, reference_of, rref_of
from telegrad.rpc.rref.serving import RRefServing
from telegrad.rpc.rref.table import (
    CHILD_ACCEPT,
    CREATION_ABANDON,
    FORK_CONFIRM,
    FORK_REQUEST,
    USER_DELETE,
    Reference,
    RRefRegistry,
)
from telegrad.rpc.rref.value import Arrival
from telegrad.types import WorkerInfo
from telegrad.wire import (
    Buffer,
    Envelope,
    ExternalType,
    Land,
    Memory,
    escaped,
    register_external,
)

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

_INTEGERS = frozenset({int})

Entry: TypeAlias = list[object]
Id = TypeVar("Id", RRefId, ForkId)


def attach_to(agent: AgentCore) -> None:
    """Gives an agent its RRefs; its interceptor is the first of the chain."""
    registry = RRefRegistry(agent)
    agent.attachments.attach(registry)
    agent.attachments.attach(RRefCalls(registry))
    agent.attachments.attach(RRefServing(registry))
    agent.codec.add(RRefInterceptor(registry))
    agent.attachments.rref_counts = registry.counts
    _register_handlers(agent, registry)

    def lost(peer: WorkerInfo, error: WorkerLostError) -> None:
        registry.lose(peer, error)
        # G4: one full bound later, when all that the lost worker sent has arrived.
        agent.deadlines.after(agent.options.lost_after, lambda: registry.expire(peer))

    agent.inbox.on_loss(lost)
    agent.life.on_leaving(registry.settle_up)
    agent.life.before_leaving(Leaks(agent, registry).leave)
    agent.life.after_close(registry.close)


@final
class RRefInterceptor(Interceptor):
    """Forks the RRefs that leave in a message, and counts those that arrive."""

    def __init__(self, registry: RRefRegistry) -> None:
        self._registry = registry

    hears_all = False

    def speaks(self, call: CallRecord, *, reply: bool) -> bool:
        """Returns True if a request creates a value; other RRefs are externals."""
        return not reply and NAME in call.state

    @property
    def name(self) -> str:
        """The key in `Message.headers`."""
        return NAME

    def outgoing(self, message: Message) -> None:
        """Makes a fork for each RRef among the externals."""
        creation = None if message.reply else message.call.state.get(NAME)
        if not message.externals and creation is None:
            return
        forks: list[Entry] = []
        header: dict[str, object] = {}
        if isinstance(creation, Creation):
            header["creation"] = [*creation.rref, *(creation.fork or ())]
        try:
            for place, external in enumerate(message.externals):
                if isinstance(external, RRef):
                    forks.append(self._fork(place, external, message.peer))
        except BaseException:
            # An earlier external has its fork already, which will not leave.
            self._undo({"forks": forks}, message.peer)
            raise
        if forks:
            header["forks"] = forks
        if header:
            message.headers[NAME] = header

    def incoming(self, message: Message) -> None:
        """Puts RRefs in the places that were left for them."""
        if not message.externals and NAME not in message.headers:
            return
        registry, externals = self._registry, message.externals
        if NAME not in message.headers:
            _check_no_traveller(externals)
            return
        header = _header(message)
        creation = _creation(header)
        if creation is not None:
            _check_creation(creation, registry.me, message.peer)
            rref, fork = creation.rref, creation.fork
            if fork is not None:  # else this worker has asked itself, and has entered it
                registry.ask(registry.owners.create, rref, fork, message.peer)
            message.call.state[NAME] = creation
        if not externals and "forks" not in header:
            return
        arrived: list[Reference] = []
        for place, arrival in _arrivals(header, (message.peer, registry.me)):
            reference = registry.arrive(arrival, message.peer)
            if message.reply:
                reference.whence = f"the value of {message.call.function}"
            externals[_checked(place, externals)] = rref_of(reference)
            arrived.append(reference)
        _check_no_traveller(externals)
        if arrived and not message.reply:
            self._start_when_confirmed(message, arrived)

    def undelivered(self, message: Message) -> None:
        """Takes back forks that did not leave; gives back forks that nobody will decode."""
        self._undo(_header(message), message.peer, message.cause)
        registry, creation = self._registry, message.call.state.get(NAME)
        if message.call.answered and isinstance(creation, Creation) and creation.fork is not None:
            registry.event(registry.users.created, creation.fork)  # late, but the value is there

    def _start_when_confirmed(self, message: Message, arrived: list[Reference]) -> None:
        registry = self._registry
        starts_after = message.call.starts_after = when_confirmed(registry, arrived)
        creation = message.call.state.get(NAME)
        if starts_after is None or not isinstance(creation, Creation):
            return
        rref = creation.rref

        def settle(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                registry.settle(rref, None, error)  # it does not run; other requests may wait

        starts_after._when_done(settle)

    def _fork(self, place: int, rref: RRef[Any], peer: WorkerInfo) -> Entry:
        reference = reference_of(rref)
        (fork, failed), owner = self._registry.carry(reference, peer), reference.owner
        reference.hears()  # from now on its receiver is told, and not the log
        described = [owner.name, owner.rank, owner.incarnation]
        return [place, list(reference.rref), list(fork), described, reference.type_name, failed]

    def _undo(
        self, header: dict[str, object], peer: WorkerInfo, cause: BaseException | None = None
    ) -> None:
        registry = self._registry
        for _, arrival in _arrivals(header, (registry.me, peer), (peer, registry.me)):
            registry.give_back(arrival, peer)
        creation = _creation(header)
        if creation is None or creation.fork is None:
            return  # a creation of this worker's own, whose future tells
        rref, fork = creation.rref, creation.fork
        if rref.creator == registry.me.incarnation:
            registry.event(registry.users.creation_failed, fork, delivered=False)
        else:
            _check_creation(creation, registry.me, peer)
            registry.ask(registry.owners.create, rref, fork, peer)
            not_run = ValueNotFoundError("the request to create it was not run")
            registry.settle(rref, None, cause or not_run)


class _Traveller:
    """Stands for an RRef between `rebuild` and `incoming`."""

    __slots__ = ()


def _check_no_traveller(externals: Sequence[object]) -> None:
    for external in externals:
        if isinstance(external, _Traveller):
            raise DecodeError("an RRef in the message is missing from its header")


# An RRef travels in the header alone, since each destination has a fork of its own.


def _describe_nothing(rref: object, memory: Memory) -> tuple[object, Sequence[Buffer]]:
    del rref, memory
    return None, ()


def _rebuild_traveller(meta: object, buffers: Sequence[Buffer], land: Land) -> object:
    del meta, buffers, land
    return _Traveller()


register_external(ExternalType("rref", RRef, _describe_nothing, _rebuild_traveller))


# Reading and writing -------------------------------------------------------------------------


def _register_handlers(agent: AgentCore, registry: RRefRegistry) -> None:
    """Registers the handlers of the counting protocol.

    Each runs in the thread that has read the message, and is one event of the tables. It checks the
    sender by the ids: a child speaks of its own forks, an owner of its own RRefs
    (`docs/security.md` has the table).
    """
    me, owners, users = agent.info, registry.owners, registry.users

    def fork_request(peer: WorkerInfo, envelope: Envelope) -> None:
        rref, fork = _body(agent, envelope, 2)
        child = _said_by(peer, _fork_id(fork), "child")
        registry.event(owners.fork_request, _owned_by(me, _rref_id(rref), child), child, peer)

    def fork_confirm(peer: WorkerInfo, envelope: Envelope) -> None:
        fork, known, failed = _body(agent, envelope, 3)
        confirmed = _said_by(peer, _fork_id(fork), "owner")
        said = {"known": known is True, "failed": failed is True}
        registry.event(users.fork_confirm, confirmed, **said)

    def child_accept(peer: WorkerInfo, envelope: Envelope) -> None:
        forks = [_said_by(peer, _fork_id(fork), "child") for fork in _body(agent, envelope)]
        accept = users.child_accept
        registry.event(lambda: [effect for fork in forks for effect in accept(fork)])

    def user_delete(peer: WorkerInfo, envelope: Envelope) -> None:
        body = _body(agent, envelope)
        if len(body) % 2:
            raise DecodeError(f"the body of {envelope.kind} is not pairs of RRef and fork")
        pairs = [(_rref_id(body[i]), _fork_id(body[i + 1])) for i in range(0, len(body), 2)]
        for rref, fork in pairs:
            if fork.child != peer.incarnation:
                _said_by(peer, fork, "child")
            _owned_by(me, rref, fork)
        delete = owners.user_delete
        registry.event(lambda: [effect for pair in pairs for effect in delete(*pair)])

    def creation_abandon(peer: WorkerInfo, envelope: Envelope) -> None:
        (rref,) = _body(agent, envelope, 1)
        registry.event(owners.abandon, _owned_by(me, _said_by(peer, _rref_id(rref), "creator")))

    agent.inbox.register(FORK_REQUEST, fork_request, anywhere=True)
    agent.inbox.register(FORK_CONFIRM, fork_confirm, anywhere=True)
    agent.inbox.register(CHILD_ACCEPT, child_accept, anywhere=True)
    agent.inbox.register(USER_DELETE, user_delete, anywhere=True)
    agent.inbox.register(CREATION_ABANDON, creation_abandon, anywhere=True)


def _body(agent: AgentCore, envelope: Envelope, length: int | None = None) -> list[object]:
    body = agent.messages.read(envelope)
    if not isinstance(body, list) or length not in (None, len(body)):
        raise DecodeError(f"the body of {envelope.kind} is not a list of {length or 'any length'}")
    return body


def _said_by(peer: WorkerInfo, name: Id, role: str) -> Id:
    if getattr(name, role) != peer.incarnation:
        raise DecodeError(f"{peer.name!r} speaks of {name} but is not its {role}")
    return name


def _owned_by(owner: WorkerInfo, rref: RRefId, fork: ForkId | None = None) -> RRefId:
    for name in (rref,) if fork is None else (rref, fork):
        if name.owner != owner.incarnation:
            raise DecodeError(f"{name} is not owned by {owner.name!r}")
    return rref


def _check_creation(creation: Creation, me: WorkerInfo, peer: WorkerInfo) -> None:
    """Checks that a peer speaks of its own creation, and of its own fork of that value."""
    _owned_by(me, _said_by(peer, creation.rref, "creator"), creation.fork)
    if creation.fork is not None:
        _said_by(peer, _said_by(peer, creation.fork, "parent"), "child")
    elif peer != me:
        raise DecodeError(f"{peer.name!r} creates {creation.rref} and has no fork of it")


def _header(message: Message) -> dict[str, object]:
    header = message.headers.get(NAME, {})
    if not isinstance(header, dict):
        raise DecodeError("the header of RRefs is no dict")
    return header


def _arrivals(
    header: dict[str, object], *ways: tuple[WorkerInfo, WorkerInfo]
) -> Iterator[tuple[object, Arrival]]:
    """Yields the RRefs of a message, which are forks on one of these ways from parent to child."""
    forks = header.get("forks", [])
    if not isinstance(forks, list):
        raise DecodeError("the forks in the header of RRefs are no list")
    for entry in forks:
        if not isinstance(entry, list) or len(entry) != 6 or not isinstance(entry[4], str):
            raise DecodeError("a fork in the header of RRefs is not a list of 6")
        place, rref, fork, owner, type_name, failed = entry
        arrival = Arrival(
            _rref_id(rref), _fork_id(fork), _worker(owner), escaped(type_name), failed is True
        )
        _owned_by(arrival.owner, arrival.rref, arrival.fork)
        forked = arrival.fork[1:3]
        if all(forked != (parent.incarnation, child.incarnation) for parent, child in ways):
            raise DecodeError(f"the fork {arrival.fork} did not come the way of its message")
        yield place, arrival


def _creation(header: dict[str, object]) -> Creation | None:
    creation = header.get("creation")
    if creation is None:
        return None
    if not isinstance(creation, list):
        raise DecodeError("the creation in the header of RRefs is no list")
    return Creation(_rref_id(creation[:3]), _fork_id(creation[3:]) if len(creation) > 3 else None)


def _rref_id(value: object) -> RRefId:
    if type(value) is list and len(value) == 3 and _INTEGERS.issuperset(map(type, value)):
        return rref_id(value)
    raise DecodeError("an RRef's id is not a list of 3 integers")


def _fork_id(value: object) -> ForkId:
    if type(value) is list and len(value) == 4 and _INTEGERS.issuperset(map(type, value)):
        return fork_id(value)
    raise DecodeError("an RRef's id is not a list of 4 integers")


def _worker(value: object) -> WorkerInfo:
    if isinstance(value, list) and list(map(type, value)) == [str, int, int]:
        return WorkerInfo(*value)
    raise DecodeError("an RRef's owner is not [name, rank, incarnation]")


def _checked(place: object, externals: list[object]) -> int:
    if type(place) is not int or not 0 <= place < len(externals):
        raise DecodeError("the header of RRefs names an external that is not there")
    if not isinstance(externals[place], _Traveller):
        raise DecodeError("the header of RRefs names an external that is no RRef")
    return place
