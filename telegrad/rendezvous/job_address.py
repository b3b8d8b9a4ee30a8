"""The address of a job, as every init method gives it, and the settings that it is read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from telegrad.rendezvous.membership import check_job, place_problem
from telegrad.rendezvous.multicast import MulticastGroup
from telegrad.transport import HIGHEST_PORT

DEFAULT_JOB = "default"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobAddress:
    """The address of a job, and this worker's place in it; also what a plug-in returns.

    Attributes:
        rank: This worker's place, from 0.
        world_size: The number of workers in the job.
        hosts_store: True if this worker runs the coordinator.
        host: The coordinator's host.
        port: The coordinator's port; 0 for a job of one, whose port the kernel chooses.
        job: The job's name; workers of another job are refused.
        name: The name that the environment gives this worker, if any.
        endpoint: The endpoint to dial if it is not `grpc://host:port`, as with the in-process
            transport.
        file: The file in which rank 0 writes the endpoint; "" if host and port are known.
        multicast: The group in which rank 0 makes the endpoint known; None for none.
        late: True if this worker joins a job that has already started. The coordinator then gives
            it its rank, the world size and, if it has none, its name.
        several_hosts: True if workers are known to be on other hosts than rank 0: it listens beyond
            loopback then, even if its host's name means loopback there.

    Example:
        >>> from telegrad.rendezvous import JobAddress
        >>> address = JobAddress.at("10.0.0.1", 29500, rank=1, world_size=2)
        >>> address.coordinator_endpoint, address.hosts_store
        ('grpc://10.0.0.1:29500', False)
    """

    rank: int
    world_size: int
    hosts_store: bool
    host: str = ""
    port: int = 0
    job: str = DEFAULT_JOB
    name: str | None = None
    endpoint: str = ""
    file: str = ""
    multicast: MulticastGroup | None = None
    late: bool = False
    several_hosts: bool = False

    @classmethod
    def at(
        cls,
        host: str,
        port: int,
        *,
        rank: int,
        world_size: int,
        job: str = DEFAULT_JOB,
        name: str | None = None,
    ) -> JobAddress:
        """Returns the address of a job whose rank 0 hosts the coordinator, as most jobs' does.

        Args:
            host: The host of rank 0.
            port: The port on which rank 0 listens.
            rank: This worker's rank.
            world_size: The number of workers.
            job: The job's name.
            name: This worker's name; None for `worker` and its rank.

        Raises:
            ValueError: The rank, the world size or the name of the job is invalid.

        Example:
            >>> from telegrad.rendezvous import JobAddress
            >>> JobAddress.at("10.0.0.1", 29500, rank=0, world_size=2).hosts_store
            True
        """
        return cls(
            host=host,
            port=port,
            rank=rank,
            world_size=world_size,
            job=job,
            hosts_store=rank == 0,
            name=name,
        )

    def __post_init__(self) -> None:
        check_job(self.job)
        if not self.late:
            check_place(self.rank, self.world_size)

    @property
    def coordinator_endpoint(self) -> str:
        """The endpoint to dial; "" if a file or group has it.

        >>> JobAddress.at("::1", 29500, rank=0, world_size=2).coordinator_endpoint
        'grpc://[::1]:29500'
        """
        if self.endpoint or self.file or self.multicast:
            return self.endpoint
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc://{host}:{self.port}"


def check_place(rank: int, world_size: int) -> None:
    """Checks rank and world size; raises ValueError with the reason."""
    for what, value in (("rank", rank), ("world_size", world_size)):
        if type(value) is not int:  # a bool is no rank
            raise ValueError(f"{what} must be an int (got {value!r})")
    problem = place_problem(rank, world_size)
    if problem is not None:
        raise ValueError(problem)


def read_place(
    url: str,
    query: Mapping[str, str],
    rank: int | None,
    world_size: int | None,
    *,
    known: frozenset[str] = frozenset(),
) -> JobAddress:
    """Reads what the parameters of an address say of the job; arguments take precedence.

    Args:
        url: The address.
        query: Its parameters.
        rank: The rank that the program gives, if any.
        world_size: The world size that the program gives, if any.
        known: The parameters that the address may have besides.
    """
    reader = SettingsReader(query, what="parameter ", where=f" of init_method {url!r}")
    reader.refuse_unknown({"rank", "world_size", "job", "late", *known})
    job = query.get("job", DEFAULT_JOB)
    if reader.flag("late"):
        if rank is not None or world_size is not None or {"rank", "world_size"} & set(query):
            reader.problem(
                "who comes late gives no rank and no world_size, since the job does that"
            )
        reader.finish()
        return JobAddress(rank=-1, world_size=0, hosts_store=False, job=job, late=True)
    found_rank = reader.integer("rank") if rank is None else rank
    found_size = reader.integer("world_size") if world_size is None else world_size
    reader.finish()
    return JobAddress(rank=found_rank, world_size=found_size, hosts_store=found_rank == 0, job=job)


# -- settings -----------------------------------------------------------------------------------


@final
class SettingsReader:
    """A reader of settings that collects all problems, to report them in one error."""

    def __init__(
        self, settings: Mapping[str, str], *, what: str = "", where: str = " in the environment"
    ) -> None:
        self._settings = settings
        self._what = what
        self._where = where
        self._missing: list[str] = []
        self._problems: list[str] = []

    def text(self, name: str) -> str:
        """Returns a setting; "" if it is missing."""
        value = self._settings.get(name, "").strip()
        if not value:
            self._missing.append(name)
        return value

    def integer(self, name: str) -> int:
        """Returns an integer; 0 if it is missing or malformed."""
        value = self.text(name)
        if not value:
            return 0
        try:
            return int(value)
        except ValueError:
            self._problems.append(f"{name} must be an integer (got {value!r})")
            return 0

    def port(self, name: str) -> int:
        """Returns a port."""
        problems = len(self._problems)
        port = self.integer(name)
        malformed = name in self._missing or len(self._problems) > problems
        if not malformed and not 1 <= port <= HIGHEST_PORT:
            self._problems.append(f"{name} must be from 1 to {HIGHEST_PORT} (got {port})")
        return port

    def flag(self, name: str) -> bool:
        """Returns True for 1; False for 0 and if it is missing."""
        value = self._settings.get(name, "0")
        if value not in ("0", "1"):
            self.problem(f"{name} must be 0 or 1 (got {value!r})")
        return value == "1"

    def problem(self, words: str) -> None:
        """Adds a problem."""
        self._problems.append(words)

    def refuse_unknown(self, known: set[str]) -> None:
        """Adds a problem for each setting that is not known."""
        for name in sorted(set(self._settings) - known):
            self._problems.append(f"{name!r} is not known, known are {', '.join(sorted(known))}")

    def finish(self, remedy: str = "") -> None:
        """Raises ValueError with all problems, if there are any, and with a remedy."""
        found = list(self._problems)
        if self._missing:
            found.insert(0, f"{self._what}{', '.join(self._missing)} not set")
        if found:
            if not remedy and self._what:
                remedy = "give them to init_rpc or write '?rank=0&world_size=2'"
            remedy = remedy or "start the workers with `telegrad run`, or set what is missing"
            raise ValueError(f"{'; '.join(found)}{self._where}; {remedy}")
