"""Problems in a job's network with their remedies, derived from the measurements. Pure.

A problem keeps workers from communicating, or will do so one day; a note is about something that
only costs time. Two tables at the end list the examinations: each is a function from the facts
about the job to verdicts. One problem between the same two hosts is reported once, with all its
pairs.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias, TypeVar, final

from telegrad.doctor.facts import (
    Address,
    DoctorPair,
    DoctorWorker,
    host_in,
    is_loopback_endpoint,
    is_own_endpoint,
    port_in,
)
from telegrad.transport import Dial

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# One link between hosts is suspect below this share of the median of the others: full and half
# duplex, or two switches, differ by two; a wrong network by ten (gloo#335: by ninety).
SUSPECT_SHARE = 0.2
# An interface that is not used is worth a note if it is this many times faster than the chosen one.
FASTER_INTERFACE = 4.0
# Between hosts, in bytes a second: slower links delay training. 100 Mbit/s.
SLOW_LINK = 12.5e6
MOST_NAMED = 4  # pairs, in one sentence

NAMED_BY = "--master-addr, RpcOptions(bind=...) or RpcOptions(advertise=...)"
LOOK = "look at cable, switch and what else uses the link"


@final
@dataclass(frozen=True, slots=True)
class DoctorProblem:
    """A problem, or something that costs time.

    Attributes:
        kind: A name for programs: `silent worker`, `loopback advertised`, `cannot reach`,
            `turned away`, `no session`, `not measured`, `slow link`, `versions`, `outbound only`,
            `other interface`, `packet sizes`, `detour`.
        workers: The names of the workers that have it.
        words: The description of the problem.
        remedy: The way to fix it.

    Example:
        >>> remedy = "put them on one host"
        >>> problem = DoctorProblem("slow link", ("a", "b"), "a and b are far apart", remedy)
        >>> problem.kind, problem.remedy
        ('slow link', 'put them on one host')
    """

    kind: str
    workers: tuple[str, ...]
    words: str
    remedy: str


def judge(
    workers: Sequence[DoctorWorker], pairs: Sequence[DoctorPair]
) -> tuple[tuple[DoctorProblem, ...], tuple[DoctorProblem, ...]]:
    """Returns the problems; and notes on things that only cost time, or are as somebody wanted."""
    job = _Job(workers, pairs)
    problems = tuple(_found(job, PROBLEMS))
    job.told.update(name for each in problems for name in each.workers)
    return problems, tuple(_found(job, NOTES))


def suspects(workers: Sequence[DoctorWorker], pairs: Sequence[DoctorPair]) -> list[DoctorPair]:
    """Returns, of each link between hosts that is much slower than the others, its fastest pair."""
    return list(_Job(workers, pairs).suspects)


class _Row(NamedTuple):
    """One of a pair's two dials."""

    dialler: DoctorWorker
    listener: DoctorWorker
    dial: Dial
    pair: DoctorPair

    @property
    def here(self) -> bool:
        """True if the dial stayed on one host."""
        return self.pair.same_host or all(map(is_own_endpoint, self.dial.endpoints or ("",)))

    @property
    def misled(self) -> bool:
        """True if the listener tells another host only addresses that lead nowhere from there.

        These are addresses of loopback, and the Unix socket that a worker lists before or instead
        of them.
        """
        ends = self.dial.endpoints or self.listener.endpoints
        elsewhere = not self.pair.same_host and self.listener.host_id and self.dialler.host_id
        return bool(ends and elsewhere) and all(map(is_own_endpoint, ends))

    @property
    def failed(self) -> bool:
        """True if the dial failed for another reason than that."""
        return self.dial.failed and not self.dial.loss and not self.misled


@final
class _Job:
    """The facts about a job, and the results that several examinations share.

    Args:
        workers: All workers.
        pairs: All pairs of them.
    """

    def __init__(self, workers: Sequence[DoctorWorker], pairs: Sequence[DoctorPair]) -> None:
        self.workers = workers
        self.pairs = pairs
        self.known = {each.name: each for each in workers}
        self.told: set[str] = set()  # the workers that have problems, for the notes
        # Two workers that do not listen cannot reach each other, but must reach one that does.
        listeners = any(each.listens and not each.silence for each in workers)
        self.silent = [each for each in workers if each.silence and (each.listens or listeners)]
        self.rows: list[_Row] = []
        for pair in pairs:
            one, other = self.both(pair)
            self.rows += _Row(one, other, pair.reach, pair), _Row(other, one, pair.reach_back, pair)
        # For each two hosts the fastest pair, whose slower direction counts.
        between = [each for each in pairs if not each.same_host and _rate(each)]
        self.links = {frozenset(self.hosts(each)): each for each in sorted(between, key=_rate)}

    def both(self, pair: DoctorPair) -> tuple[DoctorWorker, DoctorWorker]:
        """Returns the two workers of a pair."""
        return self.known[pair.one], self.known[pair.other]

    def hosts(self, pair: DoctorPair) -> list[str]:
        """Returns the hosts of a pair's workers."""
        return [each.host_key for each in self.both(pair)]

    def cut(self, pair: DoctorPair) -> bool:
        """Returns True if neither of the two listens."""
        return not any(each.listens for each in self.both(pair))

    @property
    def suspects(self) -> Mapping[DoctorPair, float]:
        """The links that are much slower than the others, with the median of these."""
        found = {}
        for pair in self.links.values():
            others = [_rate(each) for each in self.links.values() if each is not pair]
            if len(others) > 1 and _rate(pair) < SUSPECT_SHARE * statistics.median(others):
                found[pair] = statistics.median(others)
        return found


# The workers, the description of their problem, and the way to fix it.
_Verdicts: TypeAlias = Iterator[tuple[Iterable[str], str, str]]


# -- problems ------------------------------------------------------------------------------------


def _silent(job: _Job) -> _Verdicts:
    for each in job.silent:
        yield (
            [each.name],
            f"worker {each.name!r} could not be asked: {each.silence}",
            "look whether its process lives and its log; if it is busy in C code, or stopped, it "
            "answers nobody; if it lives, call the doctor there too: it sees the other side",
        )


def _loopback(job: _Job) -> _Verdicts:
    misled = _grouped((row for row in job.rows if row.misled), lambda row: row.listener.name)
    for name, rows in misled.items():
        worker, diallers = job.known[name], [row.dialler.name for row in rows]
        yield (
            [name, *diallers],
            f"worker {name!r} on {worker.host} tells the others to dial "
            f"{_listed(worker.endpoints)}, which from another host leads nowhere "
            f"({_listed(diallers)} cannot reach it)",
            f"give it RpcOptions(bind='0.0.0.0', advertise=ADDRESS) with an address of its host "
            f"({_addresses(worker)}), or name the coordinator by such an address instead of "
            "loopback (--master-addr, MASTER_ADDR), and leave bind out"
            if any(map(host_in, worker.endpoints))
            else "it has no TCP port, which workers of other hosts need: leave "
            "RpcOptions(bind='unix') out",
        )


def _turned_away(job: _Job) -> _Verdicts:
    turned = [row for row in job.rows if row.failed and row.dial.ended == "turned away"]
    for rows in _grouped(turned, lambda row: (row.listener.host_key, row.dial.words)).values():
        yield (
            _ends(rows),
            f"{_between(rows)} a connection comes up and is turned away: {_why(rows)}",
            "do what the sentence above says; docs/certificates.md and docs/security.md say who is "
            "let in",
        )


def _unreached(job: _Job) -> _Verdicts:
    failed = [row for row in job.rows if row.failed and row.dial.ended != "turned away"]
    groups = _grouped(failed, lambda row: (row.listener.host_key, row.here, row.dial.ended))
    for rows in groups.values():
        ends = list(dict.fromkeys(end for row in rows for end in row.dial.endpoints))
        words = f"{_between(rows)} nothing gets through to {_listed(ends)}: {_why(rows)}"
        if all(row.pair.ok for row in rows):
            listeners = _listed(list(dict.fromkeys(row.listener.name for row in rows)))
            words += (
                f"; calls there work over what {listeners} has opened itself, and stop when that "
                "breaks until it has dialled again"
            )
        yield _ends(rows), words, _opening(rows, ends)


def _opening(rows: Sequence[_Row], ends: Sequence[str]) -> str:
    """Returns instructions to make a worker reachable."""
    (first, listener, dial, _), host = rows[0], _host_words(rows[0].listener)
    if rows[0].here:
        return (
            f"both are on this one host: {listener.name!r} advertises an address at which it does "
            "not listen (RpcOptions(advertise=...)), its process is stopped, or a packet filter "
            "stands in the way; look with: ss -ltn; sudo nft list ruleset"
        )
    chosen = list(dict.fromkeys(filter(None, map(host_in, ends))))
    if dial.ended == "no route":
        return (
            f"{_host_words(first)} has no route to {_listed(chosen)}; its addresses are "
            f"{_addresses(first)}, those of {host} {_addresses(listener)}: choose one that both "
            f"networks know, by {NAMED_BY}"
        )
    what = "a firewall there rejects it, or somebody else has that address"
    if dial.ended == "silent":
        what = "its process is stopped or busy, " if listener.silence else ""
        what += "a firewall there drops it, or the address is not reached from here"
    one = len({row.dialler.host_key for row in rows}) == 1
    source = (next((each.address for each in first.addresses), "ADDRESS")) if one else "any"
    ports = [port for port in dict.fromkeys(map(port_in, ends)) if port]
    others = [each for each in listener.addresses if each.address not in chosen]
    return (
        f"{what}; let the workers' ports in (now: {_listed(ports)}): give them a range, "
        "RpcOptions(port='29501-29599'), and run there, for example: sudo ufw allow proto tcp from "
        f"{source} to any port 29501:29599; test it by telegrad doctor --port 29501-29599; where "
        "nothing may come in: RpcOptions(port=None), tested by --no-listen"
    ) + (
        f"; another address of {host}, by RpcOptions(bind=...): {_addresses(listener, others)}"
        if others
        else ""
    )


def _unexplained(job: _Job, *, up: bool) -> _Verdicts:
    """Finds the other pairs without a session (not `up`), or without a measurement of theirs."""
    explained = {row.pair for row in job.rows if row.misled or row.failed}
    silent = {each.name for each in job.silent}
    for pair in job.pairs:
        lost = pair.reach.loss or pair.reach_back.loss
        told = pair in explained and (not pair.ok or (not lost and _rate(pair)))
        fine = pair.ok and not pair.words
        unheard = not pair.ok and {pair.one, pair.other} & silent
        if told or fine or unheard or job.cut(pair) or bool(pair.transport and not lost) != up:
            continue
        yield (
            [pair.one, pair.other],
            f"{pair.one!r} and {pair.other!r}: {pair.words or 'no session came up'}",
            "a worker that is lost to another stays so: start it again (docs/membership.md)"
            if lost
            else "run the doctor again; if it says so again, look at the logs of both workers, and "
            "raise timeout= where the time was over",
        )


def _suspect(job: _Job) -> _Verdicts:
    slow = dict(job.suspects)
    links = Counter(host for link in job.links for host in link)
    for host, count in Counter(host for pair in slow for host in job.hosts(pair)).items():
        if not count == links[host] > 1:
            continue
        # All its links are slow: the cause is there, and not at other hosts.
        mine = {pair: slow.pop(pair) for pair in list(slow) if host in job.hosts(pair)}
        if not mine:  # all of them lead to hosts that are reported already
            continue
        worker = next(each for each in job.workers if each.host_key == host)
        yield (
            _names(mine),
            f"{_host_words(worker)} moves {_speed(max(map(_rate, mine)))} at best with any other "
            f"host, the others {_speed(next(iter(mine.values())))} between them",
            _another(worker),
        )
    for pair, median in slow.items():
        yield (
            [pair.one, pair.other],
            f"{_link(job, pair)}, between the other hosts {_speed(median)}: {pair.endpoint} is "
            "perhaps an address of the wrong network",
            _another(*job.both(pair)),
        )


def _versions(job: _Job, *, package: str) -> _Verdicts:
    part = None if package == "telegrad" else 2  # of others the patch level does not matter
    found: dict[str, list[str]] = defaultdict(list)
    for each in job.workers:
        if package in each.versions:
            found[".".join(each.versions[package].split(".")[:part])].append(each.name)
    if len(found) > 1:
        told = ", ".join(f"{version} on {_listed(names)}" for version, names in found.items())
        yield (
            chain(*found.values()),
            f"the workers have different versions of {package}: {told}",
            f"install the same on all hosts, for example: pip install '{package}=={max(found)}'"
            if package != "python"
            else "that works; functions whose module differs between them may not",
        )


# -- notes ---------------------------------------------------------------------------------------


def _outbound(job: _Job) -> _Verdicts:
    cut = [pair for pair in job.pairs if job.cut(pair)]
    if not cut:
        return
    through = [each.name for each in job.workers if each.listens and not each.silence]
    yield (
        _names(cut),
        f"{_listed([f'{pair.one} and {pair.other}' for pair in cut])} cannot call each other, "
        "since neither listens (port=None)",
        "if they have to, let one of the two listen, or have a worker that does make the call"
        + (f" ({_listed(through)})" if through else ""),
    )


def _slow(job: _Job) -> _Verdicts:
    for pair in job.links.values():
        if _rate(pair) < SLOW_LINK and not {pair.one, pair.other} <= job.told:
            yield (
                [pair.one, pair.other],
                f"{_link(job, pair)} over {pair.endpoint}, less than 100 Mbit/s",
                _another(*job.both(pair)),
            )


def _interfaces(job: _Job) -> _Verdicts:
    """Finds hosts that communicate over a slower interface than their best one."""
    seen: set[str] = set()
    for pair in job.pairs:
        worker = job.known[pair.other if pair.opened_by == pair.one else pair.one]
        chosen = None if pair.same_host else _address_of(worker, pair.endpoint)
        if chosen is None or worker.host_id in seen or not chosen.megabits:
            continue
        faster = [a for a in worker.addresses if a.megabits >= FASTER_INTERFACE * chosen.megabits]
        if faster:
            seen.add(worker.host_id)
            yield (
                [worker.name],
                f"{_host_words(worker)} is reached at {chosen}, and has a faster interface: "
                f"{_addresses(worker, faster)}",
                f"if that network joins the hosts, name its address by {NAMED_BY}",
            )


def _packet_sizes(job: _Job) -> _Verdicts:
    seen: set[frozenset[str]] = set()
    for pair in job.pairs:
        a, b = job.both(pair)
        ends = [_address_of(each, next(iter(each.endpoints), "")) for each in (a, b)]
        mtus = sorted({0 if end is None else end.mtu for end in ends})
        hosts = frozenset(job.hosts(pair))
        if not pair.same_host and hosts not in seen and mtus[0] and len(mtus) > 1:
            seen.add(hosts)
            yield (
                [a.name, b.name],
                f"{_host_words(a)} and {_host_words(b)} differ in the MTU of the interfaces "
                f"between them ({mtus[0]}, {mtus[1]} bytes)",
                "if large arrays stand still or are slow there, set the same MTU on both, for "
                f"example: sudo ip link set dev INTERFACE mtu {mtus[0]}",
            )


def _detours(job: _Job) -> _Verdicts:
    """Finds a job on a single host that uses TCP beyond loopback without need."""
    up = [pair for pair in job.pairs if pair.transport and host_in(pair.endpoint)]
    away = [pair for pair in up if not is_loopback_endpoint(pair.endpoint)]
    certified = any(pair.reach.certificate is not None for pair in job.pairs)
    if away and not certified and len({each.host_id for each in job.workers}) == 1:
        encrypted = " and is encrypted" if away[0].transport.endswith("s") else ""
        yield (
            _names(away),
            "all workers are on one host, and what they send goes to "
            f"{away[0].endpoint}{encrypted}",
            "name the coordinator by 127.0.0.1 and leave bind and advertise out; where no TCP port "
            "is wanted, RpcOptions(bind='unix')",
        )


# -- the examinations, in the order of the report ------------------------------------------------

_Table: TypeAlias = Sequence[tuple[str, Callable[[_Job], _Verdicts]]]

PROBLEMS: Final[_Table] = (
    ("silent worker", _silent),
    ("loopback advertised", _loopback),
    ("turned away", _turned_away),
    ("cannot reach", _unreached),
    ("no session", partial(_unexplained, up=False)),
    ("not measured", partial(_unexplained, up=True)),
    ("slow link", _suspect),
    ("versions", partial(_versions, package="telegrad")),
)
NOTES: Final[_Table] = (
    ("outbound only", _outbound),
    ("slow link", _slow),
    ("other interface", _interfaces),
    ("packet sizes", _packet_sizes),
    ("detour", _detours),
    ("versions", partial(_versions, package="python")),
    ("versions", partial(_versions, package="numpy")),
)


def _found(job: _Job, table: _Table) -> Iterator[DoctorProblem]:
    for kind, examine in table:
        for names, words, remedy in examine(job):
            yield DoctorProblem(kind, tuple(dict.fromkeys(names)), words, remedy)


# -- words ---------------------------------------------------------------------------------------


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> Mapping[K, Sequence[T]]:
    groups: dict[K, list[T]] = defaultdict(list)
    for each in items:
        groups[key(each)].append(each)
    return groups


def _names(pairs: Iterable[DoctorPair]) -> list[str]:
    return [name for pair in pairs for name in (pair.one, pair.other)]


def _ends(rows: Iterable[_Row]) -> list[str]:
    return [each.name for row in rows for each in (row.dialler, row.listener)]


def _between(rows: Sequence[_Row]) -> str:
    """Returns the hosts of failed dials of one host, in words."""
    diallers = {row.dialler.host_key: _host_words(row.dialler) for row in reversed(rows)}
    return f"from {_listed([*diallers.values()][::-1])} to {_host_words(rows[0].listener)}"


def _why(rows: Sequence[_Row]) -> str:
    ways = [f"{row.dialler.name} to {row.listener.name}" for row in rows]
    return f"{rows[0].dialler.name!r} says: {rows[0].dial.words} ({_listed(ways)})"


def _link(job: _Job, pair: DoctorPair) -> str:
    one, other = map(_host_words, job.both(pair))
    return f"between {one} and {other} move {_speed(_rate(pair))}"


def _another(*workers: DoctorWorker) -> str:
    """Returns advice on a slow link: to choose other addresses, if there are any."""
    has = ", ".join(f"{_host_words(each)} has {_addresses(each)}" for each in workers)
    if all(len(each.addresses) < 2 for each in workers):
        return f"there is no other address to choose ({has}): {LOOK}"
    return f"choose another address: {has}; name it by {NAMED_BY}; if it is the right one, {LOOK}"


def _address_of(worker: DoctorWorker, endpoint: str) -> Address | None:
    host = host_in(endpoint)
    return next((each for each in worker.addresses if each.address == host), None)


def _host_words(worker: DoctorWorker) -> str:
    """Returns a host's name, with an address if several hosts may share it (containers)."""
    where = next(filter(None, map(host_in, worker.endpoints)), "")
    named = worker.host or f"the host of {worker.name!r}"
    return f"{named} ({where})" if where and where != named else named


def _addresses(worker: DoctorWorker, only: Sequence[Address] | None = None) -> str:
    found = worker.addresses if only is None else only
    return ", ".join(map(str, found)) or "none but loopback"


def _rate(pair: DoctorPair) -> float:
    """Returns the bytes a second in the slower direction; 0 if not both were measured."""
    return min(pair.bandwidth or 0.0, pair.bandwidth_back or 0.0)


def _speed(rate: float) -> str:
    """Returns a speed in bytes a second, in words.

    >>> _speed(1.25e9), _speed(640_000.0)
    ('1250 MB/s', '0.64 MB/s')
    """
    return f"{rate / 1e6:.3g} MB/s" if rate < 1e9 else f"{rate / 1e6:.0f} MB/s"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
