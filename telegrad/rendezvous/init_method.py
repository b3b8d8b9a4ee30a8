"""Init methods: parses them into the address of a job and this worker's place in it.

    env://                              RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TELEGRAD_JOB, TELEGRAD_NAME
    tcp://host:port?rank=&world_size=   the host and port of rank 0
    file:///path?rank=&world_size=      a file that all workers see, with the address of rank 0
    ...?late=1                          either of them, for a worker that joins a started job, which
                                        gives it its rank
    None                                env:// if RANK is set, else a job of one on loopback

The coordinator is `telegrad run` itself if TELEGRAD_JOB is in the environment, else rank 0.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, final
from urllib.parse import parse_qsl, unquote, urlsplit

from telegrad.rendezvous.membership import check_job
from telegrad.transport import address_of, is_loopback_address

__all__ = [
    "JobAddress",
    "parse_init_method",
    "secured",
]


DEFAULT_JOB = "default"
LOOPBACK = "127.0.0.1"
_ALONE = ((None, 1), (0, 1))  # rank and world size that mean a job of one
KNOWN = "'env://', 'tcp://host:port' or 'file:///path'"
# Where other launchers tell a process its rank and the number of processes. Of two names for the
# number the first that is set holds: `srun -n 1` inside a job of four tasks starts one process.
# PMIx tells the rank alone (Open MPI and Slurm set it beside their own): only a rank above 0 shows
# that there are others, and their error ends the job.
_OTHER_LAUNCHERS = (
    ("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    ("Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",)),
    ("MPI", "PMI_RANK", ("PMI_SIZE",)),  # MPICH, Intel MPI, Cray MPI
    ("PMIx", "PMIX_RANK", ()),
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobAddress:
    """The address of a job, and this worker's place in it.

    Attributes:
        host: The coordinator's host.
        port: The coordinator's port; 0 for a job of one, whose port the kernel chooses.
        rank: This worker's place, from 0.
        world_size: The number of workers in the job.
        job: The job's name; workers of another job are refused.
        hosts_store: True if this worker runs the coordinator.
        name: The name that the environment gives this worker, if any.
        endpoint: The endpoint to dial if it is not `grpc://host:port`, as with the in-process
            transport.
        file: The file in which rank 0 writes the endpoint; "" if host and port are known.
        late: True if this worker joins a job that has already started. The coordinator then gives
            it its rank, the world size and, if it has none, its name.
    """

    host: str
    port: int
    rank: int
    world_size: int
    job: str
    hosts_store: bool
    name: str | None = None
    endpoint: str = ""
    file: str = ""
    late: bool = False

    def __post_init__(self) -> None:
        check_job(self.job)
        if not self.late:
            check_place(self.rank, self.world_size)

    @property
    def coordinator_endpoint(self) -> str:
        """The endpoint to dial; "" if a file contains it.

        >>> parse_init_method("tcp://[::1]:29500", rank=0, world_size=2).coordinator_endpoint
        'grpc://[::1]:29500'
        """
        if self.endpoint or self.file:
            return self.endpoint
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc://{host}:{self.port}"


def parse_init_method(
    init_method: str | None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> JobAddress:
    """Parses an init method into the address of the job.

    Args:
        init_method: `env://`, `tcp://host:port`, `file:///path` or None.
        rank: This worker's rank; overrides the environment and the address.
        world_size: The job's size; overrides the environment and the address.
        environ: The environment to read; empty when not given.

    Raises:
        ValueError: Something is missing or malformed; the message names each such thing.

    >>> parse_init_method("tcp://10.0.0.1:29500", rank=1, world_size=2).hosts_store
    False
    >>> parse_init_method("tcp://10.0.0.1:29500?late=1").late
    True
    >>> parse_init_method(None).world_size
    1
    """
    environment = {} if environ is None else environ
    if init_method is None:
        if "RANK" in environment:
            return _from_environment(environment, rank, world_size)
        if _is_of_several(environment) and (rank, world_size) not in _ALONE:
            _check_rank_is_said(environment, rank)
            return _from_environment(environment, rank, world_size)
        if (rank, world_size) not in _ALONE:
            _check_started_alone(environment)
        return _alone(rank, world_size)
    if not isinstance(init_method, str):
        raise ValueError(
            f"init_method must be a str (got {type(init_method).__name__}); write {KNOWN}"
        )
    scheme = init_method.partition("://")[0]
    if scheme == "env":
        if init_method != "env://":
            raise ValueError(f"init_method {init_method!r} is not known; write 'env://' alone")
        return _from_environment(environment, rank, world_size)
    if scheme == "tcp":
        return _from_url(init_method, rank, world_size, environment)
    if scheme == "file":
        return _from_file(init_method, rank, world_size)
    raise ValueError(f"init_method {init_method!r} is not known; write {KNOWN}")


def check_place(rank: int, world_size: int) -> None:
    """Checks rank and world size; raises ValueError with the reason."""
    for what, value in (("rank", rank), ("world_size", world_size)):
        if type(value) is not int:  # a bool is no rank
            raise ValueError(f"{what} must be an int (got {value!r})")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1 (got {world_size})")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank {rank} is out of range for a world size of {world_size}; "
            f"ranks go from 0 to {world_size - 1}"
        )


def _is_of_several(environ: Mapping[str, str]) -> bool:
    """Returns True if the environment mentions other workers but no rank."""
    return bool(_set_of(environ)) and environ.get("WORLD_SIZE") != "1"


def _set_of(environ: Mapping[str, str]) -> list[str]:
    return [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if environ.get(name)]


def _check_rank_is_said(environ: Mapping[str, str], rank: int | None) -> None:
    """Checks that this worker's rank is known: else each worker would start a job of its own."""
    if rank is None:
        there = _set_of(environ)
        verb = "is" if len(there) == 1 else "are"
        raise ValueError(
            f"{', '.join(there)} {verb} set and RANK is not; set RANK to this worker's rank, from "
            "0, or give rank=; for a job of one unset them, or give rank=0, world_size=1"
        )


def _check_started_alone(environ: Mapping[str, str]) -> None:
    """Checks that no launcher but `telegrad run` started this process as one of several."""
    for launcher, rank, names in _OTHER_LAUNCHERS:
        size = next((name for name in names if environ.get(name)), None)
        if not environ.get(rank) or (size is None and (names or environ[rank] == "0")):
            continue
        if size is not None and environ[size] == "1":
            continue
        many, there, world_size = "several", f"{rank}={environ[rank]}", "SIZE"
        if size is not None:
            many, world_size = environ[size], f"${size}"
            there += f", {size}={many}"
        raise ValueError(
            f"{launcher} started this process as one of {many} ({there}), and RANK is not set, so "
            f"that each would be a job of its own; start sh -c 'RANK=${rank} "
            f"WORLD_SIZE={world_size} MASTER_ADDR=HOST MASTER_PORT=29500 exec python SCRIPT' "
            "instead, where HOST is the host of rank 0"
            f"{' and SIZE the number of processes' if size is None else ''}; "
            "for a job of one give rank=0, world_size=1"
        )


def _alone(rank: int | None, world_size: int | None) -> JobAddress:
    if world_size not in (None, 1) or rank not in (None, 0):
        raise ValueError(
            f"rank {rank} of {world_size} needs an address to meet the others at; give "
            "init_method='tcp://host:port' or 'file:///path', or set RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT"
        )
    return JobAddress(
        host=LOOPBACK, port=0, rank=0, world_size=1, job=DEFAULT_JOB, hosts_store=True
    )


def _from_environment(
    environ: Mapping[str, str], rank: int | None, world_size: int | None
) -> JobAddress:
    reader = _Reader(environ)
    found_rank = reader.integer("RANK") if rank is None else rank
    found_size = reader.integer("WORLD_SIZE") if world_size is None else world_size
    host = reader.text("MASTER_ADDR")
    port = reader.port("MASTER_PORT")
    reader.finish()
    launched = "TELEGRAD_JOB" in environ
    return JobAddress(
        host=host,
        port=port,
        rank=found_rank,
        world_size=found_size,
        job=environ.get("TELEGRAD_JOB", DEFAULT_JOB),
        hosts_store=not launched and found_rank == 0,
        name=environ.get("TELEGRAD_NAME"),
    )


def _from_url(
    url: str, rank: int | None, world_size: int | None, environ: Mapping[str, str]
) -> JobAddress:
    host, port, query = _split(url)
    place = _place(url, query, rank, world_size)
    launched = (
        "TELEGRAD_JOB" in environ
        and environ.get("MASTER_ADDR") == host
        and environ.get("MASTER_PORT") == str(port)
    )
    return JobAddress(
        host=host,
        port=port,
        rank=place.rank,
        world_size=place.world_size,
        job=query.get("job", environ["TELEGRAD_JOB"] if launched else DEFAULT_JOB),
        hosts_store=not launched and place.rank == 0,
        late=place.late,
    )


def _from_file(url: str, rank: int | None, world_size: int | None) -> JobAddress:
    example = "write 'file:///path', for instance 'file:///home/me/run1?rank=0&world_size=2'"
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(
            f"the path in init_method {url!r} is relative; write it in full, from the root: "
            f"'file:///.../{parts.netloc}{path}'"
        )
    if parts.fragment:
        raise ValueError(f"init_method {url!r} has more than a path; {example}")
    if not os.path.basename(path):
        raise ValueError(f"init_method {url!r} names no file; {example}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    place = _place(url, query, rank, world_size)
    return JobAddress(
        host=LOOPBACK,
        port=0,
        rank=place.rank,
        world_size=place.world_size,
        job=query.get("job", DEFAULT_JOB),
        hosts_store=place.rank == 0,
        file=os.path.normpath(path),
        late=place.late,
    )


class _Place(NamedTuple):
    """The place in its job that a worker claims."""

    rank: int
    world_size: int
    late: bool = False


def _place(url: str, query: Mapping[str, str], rank: int | None, world_size: int | None) -> _Place:
    """Reads the place from an address; arguments take precedence."""
    reader = _Reader(query, what="parameter ", where=f" of init_method {url!r}")
    reader.refuse_unknown({"rank", "world_size", "job", "late"})
    if reader.flag("late"):
        if rank is not None or world_size is not None or {"rank", "world_size"} & set(query):
            reader.problem(
                "who comes late gives no rank and no world_size, since the job does that"
            )
        reader.finish()
        return _Place(-1, 0, late=True)
    found_rank = reader.integer("rank") if rank is None else rank
    found_size = reader.integer("world_size") if world_size is None else world_size
    reader.finish()
    return _Place(found_rank, found_size)


def _split(url: str) -> tuple[str, int, dict[str, str]]:
    example = "write 'tcp://host:port', for instance 'tcp://10.0.0.1:29500'"
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.fragment or parts.username is not None:
        raise ValueError(f"init_method {url!r} has more than a host and a port; {example}")
    if not parts.hostname:
        raise ValueError(f"init_method {url!r} names no host; {example}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(
            f"the port in init_method {url!r} is not a number from 1 to 65535; {example}"
        ) from None
    if port is None:
        raise ValueError(f"init_method {url!r} names no port; {example}")
    if port == 0:
        raise ValueError(f"the port in init_method {url!r} is 0, which no other worker can dial")
    return parts.hostname, port, dict(parse_qsl(parts.query, keep_blank_values=True))


@final
class _Reader:
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
        value = self._settings.get(name, "").strip()
        if not value:
            self._missing.append(name)
        return value

    def integer(self, name: str) -> int:
        value = self.text(name)
        if not value:
            return 0
        try:
            return int(value)
        except ValueError:
            self._problems.append(f"{name} must be an integer (got {value!r})")
            return 0

    def port(self, name: str) -> int:
        problems = len(self._problems)
        port = self.integer(name)
        malformed = name in self._missing or len(self._problems) > problems
        if not malformed and not 1 <= port <= 65535:
            self._problems.append(f"{name} must be from 1 to 65535 (got {port})")
        return port

    def flag(self, name: str) -> bool:
        value = self._settings.get(name, "0")
        if value not in ("0", "1"):
            self.problem(f"{name} must be 0 or 1 (got {value!r})")
        return value == "1"

    def problem(self, words: str) -> None:
        self._problems.append(words)

    def refuse_unknown(self, known: set[str]) -> None:
        for name in sorted(set(self._settings) - known):
            self._problems.append(f"{name!r} is not known, known are {', '.join(sorted(known))}")

    def finish(self) -> None:
        found = list(self._problems)
        if self._missing:
            found.insert(0, f"{self._what}{', '.join(self._missing)} not set")
        if found:
            remedy = "start the workers with `telegrad run`, or set what is missing"
            if self._what:
                remedy = "give them to init_rpc or write '?rank=0&world_size=2'"
            raise ValueError(f"{'; '.join(found)}{self._where}; {remedy}")


# -- encryption of the line to the coordinator, which the address of a job does not state --------

logger = logging.getLogger(__name__)


def secured(address: JobAddress, *, mutual: bool, insecure: bool) -> JobAddress:
    """Returns the address of a job, with the encryption that this worker demands.

    An endpoint that a file states has a scheme of its own, and is not changed.

    Args:
        address: The address of the job.
        mutual: True if this worker has certificates.
        insecure: True if it does without encryption.

    >>> from telegrad.rendezvous import parse_init_method
    >>> job = parse_init_method("tcp://127.0.0.1:29500", rank=1, world_size=2)
    >>> secured(job, mutual=False, insecure=False).coordinator_endpoint
    'grpc://127.0.0.1:29500'
    >>> secured(job, mutual=True, insecure=False).coordinator_endpoint
    'grpcs://127.0.0.1:29500'
    """
    if address.endpoint or address.file or insecure:
        return address
    if not mutual and _is_here(address.host):
        return address
    scheme, separator, rest = address.coordinator_endpoint.partition("://")
    assert (scheme, separator) == ("grpc", "://"), address
    return dataclasses.replace(address, endpoint=f"grpcs://{rest}")


def _is_here(host: str) -> bool:
    """Returns True if a host is this machine's loopback; False if its name cannot be resolved."""
    try:
        return is_loopback_address(address_of(host))
    except OSError as error:
        logger.debug("%s", error)
        return False
