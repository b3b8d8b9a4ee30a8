"""Whether the line to the coordinator is encrypted, which the address of a job does not say."""

from __future__ import annotations

import dataclasses
import logging

from telegrad.rendezvous.init_method import JobAddress
from telegrad.transport import address_of, is_loopback_address

__all__ = ["secured"]

logger = logging.getLogger(__name__)


def secured(address: JobAddress, *, mutual: bool, insecure: bool) -> JobAddress:
    """Returns the address of a job with what this worker demands of its coordinator.

    What others say where they listen has a scheme of its own, and is left as it is.

    Args:
        address: Where the job is.
        mutual: Whether this worker has certificates.
        insecure: Whether it does without encryption.

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
    """Returns whether a host is this machine's loopback; not where its name is not known yet."""
    try:
        return is_loopback_address(address_of(host))
    except OSError as error:
        logger.debug("%s", error)
        return False
