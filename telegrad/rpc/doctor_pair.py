"""One pair in words: what carries it, why that, and what keeps two workers from speaking. Pure."""

from __future__ import annotations

from telegrad.rpc.doctor_facts import DoctorPair, DoctorWorker, Reach, Speed
from telegrad.transport import is_loopback_address, split_host

__all__ = ["host_in", "is_loopback_endpoint", "is_own_endpoint", "pair_of", "port_in"]


def pair_of(
    one: DoctorWorker, other: DoctorWorker, reach: Reach, back: Reach, speed: Speed
) -> DoctorPair:
    """Returns what is known of two workers.

    Args:
        one: The one with the lower rank.
        other: The one with the higher.
        reach: What became of the dial of `other` by `one`.
        back: What became of that of `one` by `other`.
        speed: What was measured from `one`.
    """
    carried = next((each for each in (reach, back) if each.transport), Reach())
    opened_by = one.name if reach.opened else other.name if carried.transport else ""
    dialled = reach if reach.opened else back
    endpoint = dialled.endpoint or (dialled.endpoints[0] if dialled.endpoints else "")
    listener = other if reach.opened else one
    dialler = one if reach.opened else other
    return DoctorPair(
        one=one.name,
        other=other.name,
        same_host=bool(one.host_id) and one.host_id == other.host_id,
        transport=carried.transport,
        why=_why(carried, dialler, listener) if carried.transport else "",
        endpoint=endpoint,
        opened_by=opened_by,
        reach=reach,
        reach_back=back,
        round_trip=speed.round_trip,
        bandwidth=speed.there,
        bandwidth_back=speed.back,
        words=_words(one, other, reach, back, speed),
    )


def _why(carried: Reach, dialler: DoctorWorker, listener: DoctorWorker) -> str:
    """Says why a session runs over what it does."""
    match carried.transport:
        case "unix":
            why = "both are on one host, and bind='unix' was said"
        case "inproc":
            why = "both are agents of one process"
        case "local":
            why = "both are of one user on one host, and past gRPC a call is faster"
        case "grpcs" if carried.certificate is not None:
            why = "both have certificates of the job's own authority (RpcOptions.tls)"
        case "grpcs":
            why = (
                f"encrypted, since {listener.name!r} listens beyond loopback; with certificates that "
                "workers made at their start"
            )
        case "bulks":
            why = "both have bulk_port, past gRPC; encrypted with keys of the session over gRPC before"
        case "grpc" | "bulk" if listener.insecure:
            why = "insecure=True: nothing is encrypted"
        case _:
            why = "plain, since loopback does not leave the machine"
    if not dialler.listens:
        why += f"; {dialler.name!r} does not listen and is called over the session that it opened"
    return why


def _words(one: DoctorWorker, other: DoctorWorker, reach: Reach, back: Reach, speed: Speed) -> str:
    """Says what is wrong with two workers, on one line."""
    if not one.listens and not other.listens:
        return "neither listens (listen=False), so that neither can dial the other"
    parts = [
        f"{a.name!r} cannot reach {b.name!r}: {dial.words or dial.ended}"
        for a, b, dial in ((one, other, reach), (other, one, back))
        if dial.failed and not dial.loss
    ]
    if reach.loss or back.loss:
        parts.append(f"lost to each other: {reach.loss or back.loss}")
    elif not (reach.transport or back.transport) and not parts:
        told = ((one, other, reach), (other, one, back))
        said = [f"{a.name!r} to {b.name!r}: {dial.words}" for a, b, dial in told if dial.words]
        parts.append(next(iter(said), "no session came up"))
    if speed.words:
        parts.append(speed.words)
    return "; ".join(dict.fromkeys(parts))


def host_in(endpoint: str) -> str:
    """Returns the host of an endpoint; "" where it has none.

    >>> host_in("grpcs://[fd00::2]:29500"), host_in("grpc://node3:1"), host_in("unix:///tmp/x/s")
    ('fd00::2', 'node3', '')
    """
    scheme, _, address = endpoint.partition("://")
    return split_host(address.rpartition(":")[0]) if scheme in ("grpc", "grpcs") else ""


def port_in(endpoint: str) -> str:
    """Returns the port of an endpoint; "" where it has none.

    >>> port_in("grpcs://[fd00::2]:29500"), port_in("unix:///tmp/x/s")
    ('29500', '')
    """
    return endpoint.rpartition(":")[2] if host_in(endpoint) else ""


def is_loopback_endpoint(endpoint: str) -> bool:
    """Tells whether an endpoint leads nowhere but to the machine that dials it.

    >>> is_loopback_endpoint("grpc://127.0.0.1:1"), is_loopback_endpoint("grpcs://10.0.0.5:1")
    (True, False)
    """
    host = host_in(endpoint)
    try:
        return host == "localhost" or (bool(host) and is_loopback_address(host))
    except ValueError:  # a name
        return False


def is_own_endpoint(endpoint: str) -> bool:
    """Tells whether an endpoint leads to the very host that dials it.

    >>> is_own_endpoint("unix:///run/x/s"), is_own_endpoint("grpcs://10.0.0.5:1")
    (True, False)
    """
    return endpoint.startswith("unix://") or is_loopback_endpoint(endpoint)
