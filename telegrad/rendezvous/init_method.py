"""Init methods: parses them into the address of a job and this worker's place in it.

    env://                              RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TELEGRAD_JOB,
                                        TELEGRAD_NAME
    tcp://host:port?rank=&world_size=   the host and port of rank 0
    file:///path?rank=&world_size=      a file that all workers see, with the address of rank 0
    multicast://group:port?...          a multicast group, in which rank 0 answers the others
    slurm://                            what Slurm says (`slurm.py`)
    name://...                          what a plug-in of that name says (`init_plugins.py`)
    ...?late=1                          any of these three, for a worker that joins a started job,
                                        which gives it its rank
    None                                env:// if RANK is set, else a job of one on loopback

The coordinator is `telegrad run` itself if TELEGRAD_JOB is in the environment, else rank 0.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from telegrad.errors import RendezvousError
from telegrad.rendezvous.init_plugins import InitMethod, find_plugin, plugin_schemes
from telegrad.rendezvous.job_address import (
    DEFAULT_JOB,
    JobAddress,
    SettingsReader,
    read_place,
)
from telegrad.rendezvous.multicast import MulticastGroup, check_group
from telegrad.rendezvous.slurm import read_slurm
from telegrad.transport import (
    HIGHEST_PORT,
    address_of,
    get_logger,
    is_loopback_address,
    own_loopback,
)

_ALONE = ((None, 1), (0, 1))  # rank and world size that mean a job of one
KNOWN = "'env://', 'tcp://host:port', 'file:///path', 'multicast://group:port' or 'slurm://'"
# Init methods with the interface of a plug-in. They are no entry points, so that they are there
# without an installation, and no other package can replace them.
_BUILT_IN: Mapping[str, InitMethod] = MappingProxyType({"slurm": read_slurm})


class _Launcher(NamedTuple):
    """A launcher that starts several processes without RANK, and what it tells each of them.

    Attributes:
        name: Its name.
        rank: The variable with the rank.
        sizes: The variables with the number of processes; of two the first that is set holds:
            `srun -n 1` inside a job of four tasks starts one process.
        alone: True if rank 0 of an unknown number may be alone. A rank above 0 shows that there
            are others, and its error ends the job.
        first: The host of rank 0, in words.
    """

    name: str
    rank: str
    sizes: Sequence[str] = ()
    alone: bool = True
    first: str = "the host of rank 0"


_OTHER_LAUNCHERS: Final = (
    _Launcher("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",)),
    _Launcher("jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",)),
    _Launcher("Horovod", "HOROVOD_RANK", ("HOROVOD_SIZE",)),
    _Launcher("MPI", "PMI_RANK", ("PMI_SIZE",)),  # MPICH, Intel MPI, Cray MPI
    _Launcher("PMIx", "PMIX_RANK"),  # Open MPI and Slurm set it beside their own
    _Launcher("PALS", "PALS_RANKID"),
    _Launcher("PBS", "PBS_VNODENUM", first="the first line of $PBS_NODEFILE"),
    _Launcher(
        "AWS Batch",
        "AWS_BATCH_JOB_NODE_INDEX",
        ("AWS_BATCH_JOB_NUM_NODES",),
        first="the address of the main node",
    ),
    _Launcher(
        "Kubernetes",
        "LWS_WORKER_INDEX",
        ("LWS_GROUP_SIZE",),
        first="the value of LWS_LEADER_ADDRESS",
    ),
    _Launcher(
        "Kubernetes",
        "JOB_COMPLETION_INDEX",
        alone=False,
        first="the Job's name with -0 and its headless service (JOB-0.SERVICE)",
    ),
)


def parse_init_method(
    init_method: str | None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> JobAddress:
    """Parses an init method into the address of the job.

    Args:
        init_method: `env://`, `tcp://host:port`, `file:///path`, `multicast://group:port`,
            `slurm://`, the address of a plug-in, or None.
        rank: This worker's rank; overrides the environment and the address.
        world_size: The job's size; overrides the environment and the address.
        environ: The environment to read; empty when not given.

    Raises:
        ValueError: Something is missing or malformed; the message names each such thing.
        RendezvousError: A plug-in cannot be used, or has failed; the message names it.

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
    if scheme == "multicast":
        return _from_multicast(init_method, rank, world_size)
    named = "://" in init_method
    read = _BUILT_IN.get(scheme) or find_plugin(scheme) if named else None
    if read is None:
        others = [f"'{each}://'" for each in plugin_schemes()]
        more = f"; installed packages add {', '.join(others)}" if others else ""
        raise ValueError(f"init_method {init_method!r} is not known; write {KNOWN}{more}")
    return read(init_method, rank=rank, world_size=world_size, environ=environment)


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
    for each in _OTHER_LAUNCHERS:
        size = next((name for name in each.sizes if environ.get(name)), None)
        rank = environ.get(each.rank)
        if not rank or (size is None and (each.sizes or (each.alone and rank == "0"))):
            continue
        if size is not None and environ[size] == "1":
            continue
        many, there, world_size = "several", f"{each.rank}={rank}", "SIZE"
        if size is not None:
            many, world_size = environ[size], f"${size}"
            there += f", {size}={many}"
        of_slurm = "give init_method='slurm://', or " if each.name == "Slurm" else ""
        raise ValueError(
            f"{each.name} started this process as one of {many} ({there}), and RANK is not set, so "
            f"that each would be a job of its own; {of_slurm}start "
            f"{_in_shell(each.rank, world_size)} instead, where HOST is {each.first}"
            f"{' and SIZE the number of processes' if size is None else ''}; {_ALONE_THERE}"
        )
    nodes = environ.get("PBS_NODEFILE")
    if nodes and (places := _lines_of(nodes)) != 1:
        raise ValueError(
            f"PBS gave this job other places than one (PBS_NODEFILE={nodes!r}, lines: {places}), "
            "and RANK is not set, so that each process would be a job of its own; start pbsdsh -- "
            f"{_in_shell('PBS_VNODENUM', 'SIZE')}, where HOST is the first line of that file and "
            f"SIZE the number of lines; {_ALONE_THERE}"
        )


_ALONE_THERE: Final = "for a job of one give rank=0, world_size=1"


def _in_shell(rank: str, world_size: str) -> str:
    return (
        f"sh -c 'RANK=${rank} WORLD_SIZE={world_size} MASTER_ADDR=HOST MASTER_PORT=29500 exec "
        "python SCRIPT'"
    )


def _lines_of(path: str) -> int:
    try:
        return len(Path(path).read_bytes().split())
    except (OSError, ValueError):
        return 0


def port_in_use(
    address: JobAddress, error: OSError, environ: Mapping[str, str]
) -> RendezvousError | None:
    """Returns the error for a worker that was to host the coordinator, if a launcher has the port.

    Args:
        address: The address of the job.
        error: The error of the listener.
        environ: The environment.
    """
    ports = environ.get("MASTER_PORT") == str(address.port) and address.hosts_store
    if error.errno != errno.EADDRINUSE or "TORCHELASTIC_RUN_ID" not in environ or not ports:
        return None
    return RendezvousError(
        f"torchrun's own store listens at MASTER_PORT, {address.host}:{address.port}, where rank 0 "
        "is to host the coordinator; start the workers by telegrad run, with the same --nnodes and "
        "--nproc-per-node, in place of torchrun, or give "
        "init_method=f\"tcp://{os.environ['MASTER_ADDR']}:29501\", rank=int(os.environ['RANK']), "
        "world_size=int(os.environ['WORLD_SIZE'])"
    )


def _alone(rank: int | None, world_size: int | None) -> JobAddress:
    if world_size not in (None, 1) or rank not in (None, 0):
        raise ValueError(
            f"rank {rank} of {world_size} needs an address to meet the others at; give "
            "init_method='tcp://host:port' or 'file:///path', or set RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT"
        )
    return JobAddress(rank=0, world_size=1, hosts_store=True, host=own_loopback())


def _from_environment(
    environ: Mapping[str, str], rank: int | None, world_size: int | None
) -> JobAddress:
    reader = SettingsReader(environ)
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
    address = dataclasses.replace(read_place(url, query, rank, world_size), host=host, port=port)
    launched = (
        "TELEGRAD_JOB" in environ
        and environ.get("MASTER_ADDR") == host
        and environ.get("MASTER_PORT") == str(port)
    )
    if not launched:
        return address
    job = query.get("job", environ["TELEGRAD_JOB"])
    return dataclasses.replace(address, job=job, hosts_store=False)


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
    address = read_place(url, query, rank, world_size)
    return dataclasses.replace(address, host=own_loopback(), file=os.path.normpath(path))


def _from_multicast(url: str, rank: int | None, world_size: int | None) -> JobAddress:
    host, port, query = _split(url, "multicast://239.255.0.1:29500")
    try:
        group = MulticastGroup(check_group(host), port, query.get("interface", ""))
    except ValueError as error:
        raise ValueError(f"init_method {url!r}: {error}") from error
    address = read_place(url, query, rank, world_size, known=frozenset({"interface"}))
    return dataclasses.replace(address, multicast=group)


def _split(url: str, shown: str = "tcp://10.0.0.1:29500") -> tuple[str, int, dict[str, str]]:
    scheme = shown.partition("://")[0]
    example = f"write '{scheme}://host:port', for instance {shown!r}"
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.fragment or parts.username is not None:
        raise ValueError(f"init_method {url!r} has more than a host and a port; {example}")
    if not parts.hostname:
        raise ValueError(f"init_method {url!r} names no host; {example}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(
            f"the port in init_method {url!r} is not a number from 1 to {HIGHEST_PORT}; {example}"
        ) from None
    if port is None:
        raise ValueError(f"init_method {url!r} names no port; {example}")
    if port == 0:
        raise ValueError(f"the port in init_method {url!r} is 0, which no other worker can dial")
    return parts.hostname, port, dict(parse_qsl(parts.query, keep_blank_values=True))


# -- encryption of the line to the coordinator, which the address of a job does not state --------

logger = get_logger(__name__)


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
    if address.endpoint or address.file or address.multicast or insecure:
        return address
    if not mutual and not address.several_hosts and _is_here(address.host):
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
