"""The doctor's measurements as values, the order of measurements, and a pair in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, TypeVar, final
from urllib.parse import quote

from telegrad.transport import Dial, is_loopback_address, split_host
from telegrad.types import WorkerInfo
from telegrad.wire import escaped

H = TypeVar("H", bound=Hashable)
P = TypeVar("P", bound=tuple[Any, Any])
V = TypeVar("V")
F = TypeVar("F", "Address", "DoctorWorker", "Dial", "Speed")


@final
@dataclass(frozen=True, slots=True)
class Address:
    """One address of a host.

    Attributes:
        address: The address as a number.
        interface: The network interface that has it.
        mtu: The bytes of the largest packet; 0 if the system does not tell.
        megabits: The interface's stated speed in Mbit/s; 0 if it states none.
    """

    address: str
    interface: str = ""
    mtu: int = 0
    megabits: int = 0

    def __str__(self) -> str:
        speed = f", {self.megabits:g} Mbit/s" if self.megabits > 0 else ""
        return f"{self.address} ({self.interface or '?'}{speed})"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorWorker:
    """One worker's description of itself.

    Attributes:
        info: Name, rank and incarnation.
        host: The name of its machine; "" if it did not answer.
        host_id: A text that is equal only for workers of one host: of one machine, and of one
            network namespace there.
        endpoints: The endpoints that it tells others to dial; none with `port=None`.
        listens: True if others can dial it at all.
        addresses: The addresses of its machine, without loopback.
        versions: The versions of telegrad, Python, NumPy and gRPC.
        cores: The number of cores that its process may use.
        insecure: True if it uses neither a token nor encryption.
        coordinator: The endpoint at which it found the coordinator.
        silence: The reason for which it could not be asked; "" if it answered.

    Example:
        >>> from telegrad import doctor
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:
        ...     report = cluster.call(0, doctor.examine)
        >>> [(worker.name, worker.listens) for worker in report.workers]
        [('worker0', True), ('worker1', True)]
    """

    info: WorkerInfo
    host: str = ""
    host_id: str = ""
    endpoints: tuple[str, ...] = ()
    listens: bool = True
    addresses: tuple[Address, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    cores: int = 0
    insecure: bool = False
    coordinator: str = ""
    silence: str = ""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.info.name

    @property
    def host_key(self) -> str:
        """The identity of its host; of a worker that did not tell it, one of its own."""
        return self.host_id or self.name


@final
@dataclass(frozen=True, slots=True)
class Speed:
    """One worker's measurements of its session with another.

    Attributes:
        round_trip: Seconds of an empty round trip, the median of several; None without any.
        there: Bytes a second to the other; None if not measured.
        back: Bytes a second from the other; None if not measured.
        words: The reason for which something is missing; "" if nothing is.
    """

    round_trip: float | None = None
    there: float | None = None
    back: float | None = None
    words: str = ""

    def or_better(self, other: Speed) -> Speed:
        """Returns the better of two measurements, number by number.

        >>> Speed(0.2, 5.0, None).or_better(Speed(0.1, 4.0, 3.0))
        Speed(round_trip=0.1, there=5.0, back=3.0, words='')
        """
        trips = [each for each in (self.round_trip, other.round_trip) if each is not None]
        return Speed(
            min(trips, default=None),
            max(self.there or 0.0, other.there or 0.0) or None,
            max(self.back or 0.0, other.back or 0.0) or None,
            self.words if other.words else "",
        )

    @property
    def turned(self) -> Speed:
        """The same measurements as seen by the other worker."""
        return Speed(self.round_trip, self.back, self.there, self.words)


# Another worker may send anything, and what it sends stands in reports. So each field is bounded,
# and has one of these forms: a number, a word without a space, or a text in one line.
MOST_TEXT: Final = 1000  # characters
MOST_WORD: Final = 200
MOST_ENTRIES: Final = 1000
MOST_NUMBER: Final = 2**63
_IN_WORDS: Final = "/:[]@+!*%"  # with letters, digits and _.-~; nothing that a shell reads
_WORDS: Final = frozenset({"host", "host_id", "interface", "coordinator", "transport"})


def _word(sent: Any) -> str:
    """Returns a word; what no host, address or version has stands in it as %XX.

    >>> _word("node1.lan"), _word("a b;$x")
    ('node1.lan', 'a%20b%3B%24x')
    """
    return quote(_typed(str, sent)[:MOST_WORD], safe=_IN_WORDS)


def _text(sent: Any) -> str:
    return escaped(_typed(str, sent), most=MOST_TEXT)


def _typed(cls: type[V], sent: Any) -> V:
    if type(sent) is not cls:
        raise TypeError(f"a {cls.__name__} was to come, not a {type(sent).__name__}")
    return sent


def _count(sent: Any) -> int:
    if not 0 <= _typed(int, sent) < MOST_NUMBER:
        raise ValueError("a number is too large, or negative")
    return int(sent)


def _amount(sent: Any) -> float | None:
    if sent is None:
        return None
    if not 0 <= (amount := float(sent)) < math.inf:
        raise ValueError("a measurement is no number, or negative")
    return amount


def _entries(sent: Any) -> Any:
    if len(sent) > MOST_ENTRIES:
        raise ValueError(f"{len(sent)} entries, at most {MOST_ENTRIES} are read")
    return sent


def _word_list(sent: Any) -> tuple[str, ...]:
    return tuple(map(_word, _entries(sent)))


def _endpoints(sent: Any) -> tuple[str, ...]:
    found = _word_list(sent)
    for each in found:
        host_in(each)  # raises a ValueError where there is none to be found
    return found


# Reads a field of a dataclass from the value that another worker sent, by the field's annotation.
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str": _text,
    "int": _count,
    "bool": partial(_typed, bool),
    "float | None": _amount,
    "tuple[str, ...]": _word_list,
    "tuple[str, ...] | None": lambda sent: None if sent is None else _word_list(sent),
    "tuple[Address, ...]": lambda sent: tuple(of_plain(Address, each) for each in _entries(sent)),
    "Mapping[str, str]": lambda sent: {
        _word(key): _word(value) for key, value in _entries(sent).items()
    },
}


def _reader(field: Field[Any]) -> Callable[[Any], Any]:
    if field.name == "address":
        return lambda sent: str(ip_address(_typed(str, sent)))
    if field.name == "endpoints":
        return _endpoints
    return _word if field.name in _WORDS else _READERS[str(field.type)]


def of_plain(cls: type[F], plain: Mapping[str, Any], **known: Any) -> F:
    """Reads facts from another worker, which has sent the output of `dataclasses.asdict`.

    Args:
        cls: The class of the facts.
        plain: The data that was sent.
        known: The fields that this worker knows better.

    Every text in the result is bounded and printable, and has one line.

    >>> of_plain(Speed, {"round_trip": 1, "there": None, "back": 2.0}, words="")
    Speed(round_trip=1.0, there=None, back=2.0, words='')

    Raises:
        ValueError, TypeError, LookupError, AttributeError: The data is something else.
    """
    told = [each for each in fields(cls) if each.name not in known]
    return cls(**known, **{each.name: _reader(each)(plain[each.name]) for each in told})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPair:
    """Two workers, and the state of the network between them.

    Attributes:
        one: The name of the worker with the lower rank.
        other: The name of the worker with the higher rank.
        same_host: True if both are on one host. Containers with networks of their own are hosts of
            their own.
        transport: `grpc`, `tcp` (past gRPC), these with an `s` if encrypted, `local`, `inproc`;
            "" if there is no connection.
        why: The reason for that transport, in words.
        endpoint: The endpoint that was dialled for it.
        opened_by: The worker that dialled.
        reach: The result of the dial of `other` by `one`.
        reach_back: The result of the dial of `one` by `other`.
        round_trip: Seconds of an empty round trip, the median of several; None if they cannot
            communicate.
        bandwidth: Bytes a second from `one` to `other`; None if not measured.
        bandwidth_back: Bytes a second from `other` to `one`; None if not measured.
        words: The problem of the pair; "" if there is none.

    Example:
        >>> from telegrad import doctor
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:
        ...     report = cluster.call(0, doctor.examine)
        >>> (pair,) = report.pairs
        >>> pair.one, pair.other, pair.transport
        ('worker0', 'worker1', 'inproc')
    """

    one: str
    other: str
    same_host: bool = False
    transport: str = ""
    why: str = ""
    endpoint: str = ""
    opened_by: str = ""
    reach: Dial = field(default_factory=Dial)
    reach_back: Dial = field(default_factory=Dial)
    round_trip: float | None = None
    bandwidth: float | None = None
    bandwidth_back: float | None = None
    words: str = ""

    @property
    def ok(self) -> bool:
        """True if the two can communicate."""
        return self.round_trip is not None


def rounds(pairs: Iterable[P], host_of: Callable[[Any], H]) -> list[list[P]]:
    """Puts pairs into rounds such that each host is in at most one pair of a round.

    Measurements at the same time then share no machine. Each pair goes into the first round in
    which both of its hosts are free; of pairs within one host there is one a round.

    >>> rounds([("a1", "b1"), ("a1", "c1"), ("b1", "c1"), ("c1", "d1")], lambda name: name[0])
    [[('a1', 'b1'), ('c1', 'd1')], [('a1', 'c1')], [('b1', 'c1')]]
    """
    made: list[list[P]] = []
    taken: list[set[H]] = []
    for pair in pairs:
        hosts = {host_of(pair[0]), host_of(pair[1])}
        place = next((i for i, busy in enumerate(taken) if not busy & hosts), len(made))
        if place == len(made):
            made.append([])
            taken.append(set())
        made[place].append(pair)
        taken[place] |= hosts
    return made


# -- one pair in words: its transport, the reason for that, and its problem; pure ----------------


def pair_of(
    one: DoctorWorker, other: DoctorWorker, reach: Dial, back: Dial, speed: Speed
) -> DoctorPair:
    """Returns the facts about two workers.

    Args:
        one: The worker with the lower rank.
        other: The worker with the higher rank.
        reach: The result of the dial of `other` by `one`.
        back: The result of the dial of `one` by `other`.
        speed: The measurements at `one`.
    """
    dialler, listener, first, second = one, other, reach, back
    if not reach.opened:  # whoever opened the connection knows most of it
        dialler, listener, first, second = other, one, back, reach
    carried = first if first.transport else second
    return DoctorPair(
        one=one.name,
        other=other.name,
        same_host=bool(one.host_id) and one.host_id == other.host_id,
        transport=carried.transport,
        why=_why(carried, dialler, listener) if carried.transport else "",
        endpoint=first.endpoint or next(iter(first.endpoints), ""),
        opened_by=dialler.name if carried.transport else "",
        reach=reach,
        reach_back=back,
        round_trip=speed.round_trip,
        bandwidth=speed.there,
        bandwidth_back=speed.back,
        words=_words(((one, other, reach), (other, one, back)), speed),
    )


def _why(carried: Dial, dialler: DoctorWorker, listener: DoctorWorker) -> str:
    """Returns the reason for a session's transport, in words."""
    why = {
        "inproc": "both are agents of one process",
        "local": "both are of one user on one host, and past gRPC a call is faster",
        "grpcs": f"encrypted, since {listener.name!r} listens beyond loopback; with certificates "
        "that workers made at their start"
        if carried.certificate is None
        else "both have certificates of the job's own authority (RpcOptions.tls)",
        "tcps": "they reach each other directly, past gRPC; encrypted with the same certificates",
    }.get(
        carried.transport,
        "insecure=True: nothing is encrypted"
        if listener.insecure
        else "plain, since loopback does not leave the machine",
    )
    if carried.kept:
        why += f"; not direct: {dialler.name!r} says: {carried.kept}"
    if not dialler.listens:
        why += f"; {dialler.name!r} does not listen and is called over the session that it opened"
    return why


def _words(dials: Sequence[tuple[DoctorWorker, DoctorWorker, Dial]], speed: Speed) -> str:
    """Returns the problem of two workers in one line; "" if there is none."""
    if not any(worker.listens for worker, _, _ in dials):
        return "neither listens (port=None), so that neither can dial the other"
    parts = [
        f"{a.name!r} says that it cannot reach {b.name!r}: {dial.words or dial.ended}"
        for a, b, dial in dials
        if dial.failed and not dial.loss
    ]
    if losses := [f"{a.name!r} says: {dial.loss}" for a, _, dial in dials if dial.loss]:
        parts.append(f"lost to each other: {losses[0]}")
    elif not parts and not any(dial.transport for *_, dial in dials):
        said = [
            f"{a.name!r} says of {b.name!r}: {dial.words}" for a, b, dial in dials if dial.words
        ]
        parts += said[:1] or ["no session came up"]
    return "; ".join(dict.fromkeys(filter(None, [*parts, speed.words])))


def host_in(endpoint: str) -> str:
    """Returns the host of an endpoint; "" if it has none.

    >>> host_in("grpcs://[fd00::2]:29500"), host_in("tcp://node3:1"), host_in("local://0a1b/tmp/s")
    ('fd00::2', 'node3', '')
    """
    scheme, _, address = endpoint.partition("://")
    with_port = scheme in ("grpc", "grpcs", "tcp", "tcps")
    return split_host(address.rpartition(":")[0]) if with_port else ""


def port_in(endpoint: str) -> str:
    """Returns the port of an endpoint; "" if it has none.

    >>> port_in("grpcs://[fd00::2]:29500"), port_in("local://0a1b/tmp/x/s")
    ('29500', '')
    """
    return endpoint.rpartition(":")[2] if host_in(endpoint) else ""


def is_loopback_endpoint(endpoint: str) -> bool:
    """Returns True if an endpoint is on loopback of the machine that dials it.

    >>> is_loopback_endpoint("grpc://127.0.0.1:1"), is_loopback_endpoint("grpcs://10.0.0.5:1")
    (True, False)
    """
    host = host_in(endpoint)
    try:
        return host == "localhost" or (bool(host) and is_loopback_address(host))
    except ValueError:  # a name
        return False


def is_own_endpoint(endpoint: str) -> bool:
    """Returns True if an endpoint can only be on the host that dials it.

    >>> is_own_endpoint("local://0a1b/run/x/s"), is_own_endpoint("grpcs://10.0.0.5:1")
    (True, False)
    """
    return endpoint.startswith("local://") or is_loopback_endpoint(endpoint)
