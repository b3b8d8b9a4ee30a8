"""The options of `init_rpc`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from telegrad.rendezvous import check_name
from telegrad.rpc.agent.ports import check_direct, check_ports
from telegrad.rpc.base.limits import Limits, check_integer, seconds
from telegrad.rpc.call.device_maps import checked_device_maps
from telegrad.rpc.policy.policy import Callables, checked_callables
from telegrad.transport import (
    ConnectionLimits,
    TlsOptions,
    is_unix,
    split_advertised,
)
from telegrad.types import WorkerName
from telegrad.wire import DeviceMap

# -- the options ---------------------------------------------------------------------------------

MAX_WORKERS = 1_000_000  # a larger number is a typing error


@final
@dataclass(frozen=True, kw_only=True)
class RpcOptions:
    """Options of an agent; immutable, checked when made. Unknown names are refused.

    Attributes:
        timeout: The default timeout of a call, in seconds.
        init_timeout: Seconds that `init_rpc` waits for the workers of `start_when`.
        start_when: The workers that `init_rpc` waits for: a number of them, this one included, or a
            list of names; None for the whole world size. The others join later.
        lost_after: Seconds without an answer after which a worker is lost. Raise it, on all
            workers, above the longest call into C that holds the interpreter's lock
            (docs/membership.md).
        num_threads: The number of plain user functions that run at the same time if none of them
            waits for a call.
        bind: The address or host name to listen on; "0.0.0.0" or "::" for every one; "unix", or
            "unix:///directory", for Unix sockets and no TCP port (on Linux; not together with
            `tls`). None for loopback; or, if the coordinator is on another host, for the address
            from which that host is reached.
        advertise: The address that others dial, "host", "host:port" or "[v6]:port"; without a port,
            the bound port. None for the bound address; if all addresses are bound, for the one from
            which the coordinator is reached.
        port: The port to listen on; or a range, of which the first free one is taken
            (`range(29500, 29600)` or "29500-29599"); or 0 for any. The worker that hosts the
            coordinator listens on the coordinator's port alone. None for a worker that can only
            connect out: it opens no port, dials all others, and is called by those that listen. Two
            such workers cannot call each other.
        direct: The sockets on which calls and arrays go past gRPC, between workers that reach each
            other there (docs/network.md). True for a Unix socket to this user's workers on this
            host, if the system supports it and no certificates prove names, and TCP, with gRPC's
            encryption, to others. "local" or "tcp" for one of the two alone; False to leave
            everything on gRPC. A range (`range(29600, 29700)` or "29600-29699") is as True, with
            TCP on its first free port; else the kernel chooses the port.
        token: The job's secret; None finds it in the environment or the user's token file.
        tls: The certificates with which workers prove their names to each other
            (docs/certificates.md). None for those that TELEGRAD_TLS_CA, TELEGRAD_TLS_CERTIFICATE
            and TELEGRAD_TLS_KEY name. If these are not set either, only the token is proved, and
            workers encrypt traffic beyond this machine with certificates that they make themselves.
        callables: The functions that others may call, and the methods through an RRef: "project",
            "exposed", "importable"; a list of patterns, which adds packages to "project"
            (`["mypkg.*"]`); or a function `(caller, module, qualname) -> bool` that decides
            (docs/callables.md).
        insecure: True to do without a token and without encryption; anyone who reaches the port may
            then call functions here.
        device_maps: For each worker, the GPU on which arrays of this worker's GPUs arrive, or "cpu"
            for its host memory: `{"worker1": {0: 1}}`. Arrays of other GPUs arrive on its first
            (docs/gpu.md).
        cuda_ipc: True to send arrays of GPUs to workers of this host through memory of the GPU that
            both open, if both set this and it is available, in place of host memory (docs/gpu.md).
        limits: The limits on calls under way, and on what one message may hold.

    Example:
        >>> from telegrad import rpc
        >>> options = rpc.RpcOptions(timeout=5.0, num_threads=4)
        >>> with rpc.init_rpc("trainer", options=options) as agent:
        ...     agent.options.timeout
        5.0
        >>> rpc.RpcOptions(timeout=-1.0)
        Traceback (most recent call last):
        ValueError: ...
    """

    timeout: float = 60.0  # long enough for a training step, short enough to notice a hang
    init_timeout: float = 300.0  # a cluster scheduler starts the last process minutes later
    start_when: int | Sequence[str] | None = None  # right for every job of fixed size
    lost_after: float = 10.0  # a garbage collection or a swapped page takes seconds, not ten
    num_threads: int = 16  # as torch; it grows when calls wait
    bind: str | None = None  # no wider than the job: a stranger does not reach loopback
    advertise: str | None = None  # right unless addresses are translated on the way
    port: int | range | str | None = 0  # two workers of one host never want the same one
    direct: bool | range | str = True  # a call takes a third of the time that it takes over gRPC
    token: str | bytes | None = None  # the launcher or the user's file has it
    tls: TlsOptions | None = None  # encryption needs no authority, and names do
    callables: Callables = "project"  # runs all that a user's program defines
    insecure: bool = False  # a port that anyone may use runs anyone's calls
    device_maps: Mapping[WorkerName, DeviceMap] = field(default_factory=dict)  # one GPU needs none
    cuda_ipc: bool = False  # it takes memory of the GPU for each peer (docs/gpu.md)
    limits: Limits = field(default_factory=Limits)  # only a flood reaches them

    def __post_init__(self) -> None:
        for name in ("timeout", "init_timeout", "lost_after"):
            try:
                seconds(getattr(self, name), math.inf)
            except (TypeError, ValueError) as error:
                raise type(error)(f"RpcOptions.{name}: {error}") from None
        check_integer("RpcOptions.num_threads", self.num_threads, 1, 1000)
        check_ports(self.port)
        for name in ("bind", "advertise"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise TypeError(f"RpcOptions.{name} must be an address or None, not {value!r}")
        if self.advertise is not None:
            _check_advertise(self)
        _check_listen(self)
        check_direct(self.direct)
        if type(self.cuda_ipc) is not bool:
            raise TypeError(f"RpcOptions.cuda_ipc must be True or False, not {self.cuda_ipc!r}")
        if self.token is not None and not isinstance(self.token, str | bytes):
            raise TypeError(
                f"RpcOptions.token must be str or bytes, not {type(self.token).__name__}"
            )
        if self.insecure and self.token is not None:
            raise ValueError("RpcOptions.insecure=True does without a token; give one or the other")
        _check_tls(self)
        object.__setattr__(self, "callables", checked_callables(self.callables))
        object.__setattr__(self, "device_maps", checked_device_maps(self.device_maps))
        object.__setattr__(self, "start_when", _checked_start_when(self.start_when))
        if not isinstance(self.limits, Limits):
            raise TypeError(f"RpcOptions.limits must be rpc.Limits(...), not {self.limits!r}")

    @property
    def waits_for(self) -> int | tuple[str, ...] | None:
        """The value of `start_when`, with names as a tuple."""
        wanted = self.start_when
        return wanted if wanted is None or isinstance(wanted, int) else tuple(wanted)

    @property
    def ports(self) -> Sequence[int]:
        """The ports to try, in order."""
        return check_ports(self.port)

    @property
    def listens(self) -> bool:
        """False for a worker that only connects out."""
        return self.port is not None

    @property
    def direct_ports(self) -> Sequence[int]:
        """The TCP ports to try for direct connections, in order; none if there are to be none."""
        return check_direct(self.direct)

    @property
    def reaches_locally(self) -> bool:
        """True if workers of this host are to be reached over Unix sockets."""
        return self.direct not in (False, "tcp")


def _check_tls(options: RpcOptions) -> None:
    if options.tls is None:
        return
    if not isinstance(options.tls, TlsOptions):
        raise TypeError(
            f"RpcOptions.tls must be rpc.TlsOptions(ca=, certificate=, key=), not {options.tls!r}"
        )
    if options.insecure:
        raise ValueError(
            "RpcOptions.insecure=True does without certificates; give one or the other"
        )


def _check_advertise(options: RpcOptions) -> None:
    try:
        _, port = split_advertised(str(options.advertise))
    except ValueError as error:
        raise ValueError(f"RpcOptions.advertise: {error}") from None
    if port and len(options.ports) > 1:
        raise ValueError(
            f"RpcOptions.advertise={options.advertise!r} names one port, and port={options.port!r} "
            "leaves open from which it is to be forwarded; give that port"
        )


def _check_listen(options: RpcOptions) -> None:
    means: dict[str, tuple[object, ...]] = {"advertise": (None,)}
    if not options.listens:
        cause = "port=None opens no port"
        means |= {"bind": (None,), "direct": (True, False, "local", "tcp")}
    elif is_unix(options.bind):
        cause = f"bind={options.bind!r} opens a Unix socket in place of a TCP port"
        means |= {"port": (0,), "direct": (True, "local"), "tls": (None,)}
    else:
        return
    for name, values in means.items():
        if (value := getattr(options, name)) not in values:
            raise ValueError(
                f"RpcOptions.{cause}, so that {name}={value!r} has no meaning; give one or the "
                "other"
            )


def _checked_start_when(start_when: object) -> int | tuple[str, ...] | None:
    if start_when is None:
        return None
    if isinstance(start_when, int) and not isinstance(start_when, bool):
        check_integer("RpcOptions.start_when", start_when, 1, MAX_WORKERS)
        return start_when
    names = start_when if isinstance(start_when, Sequence) else None
    if names is None or isinstance(names, str | bytes):
        advice = f"; write [{start_when!r}]" if isinstance(start_when, str) else ""
        raise TypeError(
            f"RpcOptions.start_when must be a number of workers or a list of names, not "
            f"{start_when!r}{advice}"
        )
    if not names:
        raise ValueError("RpcOptions.start_when is an empty list; to wait for nobody write 1")
    return tuple(check_name(name) for name in names)


@final
@dataclass(frozen=True, slots=True)
class Invitation:
    """The facts with which a process joins a job on top of its workers; it travels by value.

    Attributes:
        endpoint: The address where the coordinator listens.
        job: The job's name.
        token: The secret of the job; None where it is insecure.
        options: The options of the worker that invites.
    """

    endpoint: str
    job: str
    token: bytes | None
    options: RpcOptions


# -- the limits that are an agent's transport's --------------------------------------------------

# Receipts come with the peer's next write, else after 64 messages: an honest peer may owe a few
# hundred.
LEAST_UNREAD_REPLIES = 1000


def connection_limits(limits: Limits) -> ConnectionLimits:
    """For the library: returns those of an agent's limits that its transport keeps."""
    return ConnectionLimits(
        unread_replies=max(2 * limits.served_calls_per_peer, LEAST_UNREAD_REPLIES),
        received=limits.received,
    )
