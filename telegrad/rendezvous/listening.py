"""The one port of a worker: the address it listens on, and the address that others dial.

    bind       coordinator      listens on                      advertised, without advertise=
    None       this host        loopback                        loopback
    None       another host     the address of the route to it  the same
    0.0.0.0    this host        everything                      loopback
    or ::      another host     everything                      the address of the route to it
               not known yet    everything                      the only address of this machine
    an address or a name        that one                        that one
    localhost  anywhere         127.0.0.1                       that one
    unix       this host        Unix sockets of its own         that for other workers
    None       a Unix socket    the same                        the same

The worker that hosts the coordinator listens only on the coordinator's port, at the host that the
job names; all other workers on `port`. Without a TCP port a worker listens on two Unix sockets: one
for other workers, as it does in any case, and one in place of the port, for the coordinator.
Nothing here runs on the loop, as names are looked up.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from telegrad.errors import RendezvousError
from telegrad.rendezvous.job_address import JobAddress
from telegrad.transport import (
    LOOPBACK,
    LOOPBACK_V6,
    GrpcTransport,
    SharedPort,
    TcpTransport,
    Tls,
    Transport,
    address_of,
    can_read_directly,
    get_logger,
    interfaces,
    is_everywhere,
    is_local,
    is_localhost,
    is_loopback_address,
    is_number,
    is_unix,
    own_loopback,
    route_to,
    split_advertised,
    split_host,
)

logger = get_logger(__name__)

Make: TypeAlias = Callable[[str, int, str | None], GrpcTransport]

EVERYWHERE = "0.0.0.0"


@final
@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a worker's listener.

    Attributes:
        bind: The address to listen on, as a number.
        advertise: The host that others dial, or `host:port` if the port differs as well.
    """

    bind: str
    advertise: str


@final
class JobPort:
    """The one port of a worker, opened once the coordinator's endpoint is known.

    Args:
        address: The address of the job; it tells if the coordinator runs here.
        make: Makes the transport for an address, a port and the host to advertise.
        bind: The user's choice of an address; None to choose one.
        advertise: The user's choice of a host to advertise; None to choose one.
        ports: The ports to try, in order; 0 for one that the kernel chooses.
        local: The transports past gRPC within this host; at most one. They dial what has no TCP
            port, and listen in place of a port.

    Raises:
        RendezvousError: No address can be chosen; the message lists those of this machine.
        OSError: A host name is not known.
        ValueError: The text to advertise is not an address.
    """

    def __init__(
        self,
        address: JobAddress,
        make: Make,
        *,
        bind: str | None = None,
        advertise: str | None = None,
        ports: Sequence[int] = (0,),
        local: Sequence[Transport] = (),
    ) -> None:
        self._make = make
        self._bind = bind
        self._advertise = advertise
        if advertise is not None:
            split_advertised(advertise)
        self._ports = ports
        self._listens_at: tuple[str, Tls | None] | None = None
        self._several_hosts = address.several_hosts
        self._local = local
        self.transport = SharedPort(make(LOOPBACK, 0, None), *local)
        if is_unix(bind) and address.hosts_store and (address.port or address.multicast):
            where = f"at {address.host}:{address.port}" if address.port else "on a network"
            raise ValueError(
                f"bind={bind!r} opens no TCP port, and this worker is to host the coordinator "
                f"{where}; write init_method='file:///path' on all workers"
            )
        if is_unix(bind):
            self.transport.place(local)
        elif address.hosts_store:
            place = host_place(address, bind, self._advertise)
            self._place(place, [address.port] if address.port else ports)

    def direct(
        self, ports: Sequence[int], tls: Tls | None, *, insecure: bool
    ) -> list[TcpTransport]:
        """Returns the transport past gRPC, which listens at the same address; none if it cannot be.

        Args:
            ports: The ports to try, in order; 0 for one that the kernel chooses; empty for none.
            tls: The certificates that this worker shows and demands; None for none.
            insecure: True if plain connections may go to other machines.
        """
        if not ports or not can_read_directly():
            return []
        return [TcpTransport(ports, lambda: self._listens_at, tls=tls, insecure=insecure)]

    def found(self, endpoint: str) -> None:
        """Sets the coordinator's endpoint; nothing may listen before, unless it runs here.

        Raises:
            RendezvousError: No address can be chosen; the message lists those of this machine.
            OSError: A host name is not known.
        """
        host = host_of(endpoint)
        if is_unix(self._bind):
            if host is not None and not is_local(address_of(host)):
                raise RendezvousError(
                    f"the coordinator is at {endpoint}, on another host, from where nobody reaches "
                    f"bind={self._bind!r}; leave bind out"
                )
        elif self._bind is None and endpoint.startswith("local:"):
            self.transport.place(self._local)
        else:
            several = self._several_hosts
            place = choose_place(self._bind, self._advertise, host, several_hosts=several)
            self._place(place, self._ports)

    def _place(self, place: Addresses, ports: Sequence[int]) -> None:
        first = self._make(place.bind, ports[0], place.advertise)
        self._listens_at = place.bind, first.tls
        others = [first.on_port(port) for port in ports[1:]]
        self.transport.place([first, *others], f"ports {ports[0]} to {ports[-1]} of {place.bind}")


def host_of(endpoint: str) -> str | None:
    """Returns the host of an endpoint, without brackets; None if it has none.

    >>> host_of("grpcs://[fd00::2]:29500"), host_of("local://0123456789abcdef/tmp/x/s")
    ('fd00::2', None)
    """
    scheme, _, address = endpoint.partition("://")
    host, colon, _ = address.rpartition(":")
    return split_host(host) if colon and scheme in ("grpc", "grpcs") else None


def host_place(address: JobAddress, bind: str | None, advertise: str | None) -> Addresses:
    """Returns the place at which the worker that hosts the coordinator listens.

    Raises:
        RendezvousError: The job names a host that is not this one, or no address can be chosen.
        OSError: A host name is not known.
    """
    if address.multicast is not None:
        return choose_place(bind, advertise, address.multicast.own_address())
    if address.file or not address.port:  # workers that need the address are told it
        return choose_place(bind, advertise, None)
    own = address_of(address.host)
    if bind is not None:
        bound = address_of(bind)
        _check_local(bound, f"bind={bind!r}")
        _check_family(address, own, bound)
        return Addresses(bound, _published(advertise or address.host, bound))
    if not is_local(own):
        raise RendezvousError(
            f"rank 0 hosts the coordinator, and {address.host!r} is no address of its machine "
            f"({_own_addresses()}); start rank 0 on that host, or, where others reach this one by "
            "that name all the same, say RpcOptions(bind='0.0.0.0')"
        )
    if address.several_hosts and is_loopback_address(own) and not is_number(address.host):
        return choose_place(None, advertise, address.host, several_hosts=True)
    if address.host == socket.gethostname() and is_loopback_address(own):
        logger.warning(
            "%r, where the others are to find the coordinator, means %s here, which leads nowhere "
            "from other hosts; name an address (%s), or mend /etc/hosts",
            address.host,
            own,
            _own_addresses(),
        )
    return Addresses(own, _published(advertise or own, own))


def choose_place(
    bind: str | None,
    advertise: str | None,
    coordinator: str | None,
    *,
    several_hosts: bool = False,
) -> Addresses:
    """Returns the place at which a worker listens.

    Args:
        bind: The user's choice of an address, or None.
        advertise: The user's choice of a host to advertise, or None.
        coordinator: The coordinator's host; None if it is not known, or on this machine.
        several_hosts: True if workers are known to be on other hosts. The coordinator's host has a
            name then by which they find it, whatever the name means on that host itself.

    >>> choose_place(None, None, "127.0.0.1")
    Addresses(bind='127.0.0.1', advertise='127.0.0.1')
    >>> choose_place("::", None, "::1")
    Addresses(bind='::', advertise='::1')

    Raises:
        RendezvousError: No address can be chosen; the message lists those of this machine.
        OSError: A host name is not known.
    """
    remote = None if coordinator is None else address_of(coordinator)
    here = remote is not None and is_loopback_address(remote)
    loopback = LOOPBACK_V6 if here and ":" in str(remote) else LOOPBACK
    loopback = own_loopback() if remote is None else loopback
    if here and several_hosts and not is_number(str(coordinator)) and bind is None:
        bind = EVERYWHERE if loopback == LOOPBACK else "::"
    if here and several_hosts and not is_number(str(coordinator)) and is_everywhere(str(bind)):
        advertise = advertise or coordinator
    if bind is None:
        if remote is None or here:
            return Addresses(loopback, _published(advertise or loopback, loopback))
        route = _route(remote)
        return Addresses(route, _published(advertise or route, route))
    bound = address_of(bind)
    _check_local(bound, f"bind={bind!r}")
    if advertise is not None:
        return Addresses(bound, _published(advertise, bound))
    if not is_everywhere(bound):
        if remote is not None and is_loopback_address(bound) and not is_local(remote):
            raise RendezvousError(
                f"the coordinator is at {coordinator}, on another host, from where nobody reaches "
                f"bind={bind!r}; leave bind out, or name an address of this machine "
                f"({_own_addresses()})"
            )
        return Addresses(bound, bound)
    if here:
        return Addresses(
            bound, loopback if bound == "::" or loopback == LOOPBACK else _mixed(bound)
        )
    found = _only_address(bound) if remote is None else _route(remote)
    if ":" in found and ":" not in bound:
        found = _mixed(bound)
    return Addresses(bound, found)


def _published(advertise: str, bound: str) -> str:
    """Returns the address to publish; `localhost` becomes the loopback address that is bound.

    >>> _published("localhost:4000", "::1"), _published("gate:4000", "10.0.0.5")
    ('[::1]:4000', 'gate:4000')
    """
    host, port = split_advertised(advertise)
    if is_localhost(host):
        v6 = ":" in bound and not is_everywhere(bound)
        host = bound if is_loopback_address(bound) else LOOPBACK_V6 if v6 else LOOPBACK
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_family(address: JobAddress, named: str, bound: str) -> None:
    """Checks that a dial of loopback by name reaches this worker and no other listener."""
    both = is_loopback_address(named) and is_loopback_address(bound)
    if both and not is_everywhere(bound) and (":" in named) != (":" in bound):
        where = f"[{bound}]" if ":" in bound else bound
        raise RendezvousError(
            f"the others dial {address.host!r} at {named}, and bind={bound!r} does not listen "
            f"there; name tcp://{where}:{address.port} on all workers, or leave bind out"
        )


def _route(remote: str) -> str:
    found = route_to(remote)
    if found is None or (is_loopback_address(found) and not is_local(remote)):
        raise RendezvousError(
            f"this machine has no route to the coordinator at {remote}, and so no address under "
            f"which the others could dial this worker; its addresses are {_own_addresses()}: name "
            "one in RpcOptions(bind=...), or check the network"
        )
    return found


def loopback_words(endpoint: str) -> str:
    """Returns a hint if an endpoint where nobody answers is on loopback; "" if it is not."""
    host = host_of(endpoint)
    if host is None or not (is_localhost(host) or (is_number(host) and is_loopback_address(host))):
        return ""
    return (
        f"; {host} leads nowhere from other hosts than that of rank 0: where there are several, "
        "say RpcOptions(bind=...) with another address of it on rank 0"
    )


def address_words(problem: str) -> str:
    """Returns this machine's addresses as a hint if a dial found no route; else ""."""
    if "unreachable" not in problem and "No route" not in problem:
        return ""
    return f"; this machine's addresses are {_own_addresses()}: check which network they share"


def _only_address(bound: str) -> str:
    """Returns the only address that can be advertised."""
    v4_only = bound != "::"
    found = [each for each in interfaces() if not (v4_only and ":" in each.address)]
    found = [each for each in found if ":" not in each.address] or found
    if len(found) == 1:
        return found[0].address
    raise RendezvousError(
        f"peers cannot dial bind={bound!r}, and it is not clear which address of this machine "
        f"they reach ({_own_addresses()}); name it in RpcOptions(advertise=...)"
    )


def _mixed(bound: str) -> str:
    raise RendezvousError(
        f"the coordinator has an IPv6 address, and bind={bound!r} listens on IPv4 alone; say "
        "bind='::', which listens on both"
    )


def _check_local(address: str, what: str) -> None:
    if not is_everywhere(address) and not is_local(address):
        raise RendezvousError(
            f"{what} is no address of this machine; it has {_own_addresses()} and loopback"
        )


def _own_addresses() -> str:
    return ", ".join(map(str, interfaces())) or "none but loopback"
