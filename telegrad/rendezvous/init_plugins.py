"""Init methods of other packages, found by their entry points.

    [project.entry-points."telegrad.init_methods"]
    mycluster = "my_package.telegrad_init:read_job"

makes `init_method="mycluster://..."` call `read_job`, an `InitMethod`. A package is imported when a
program names its scheme, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol

from telegrad.errors import RendezvousError
from telegrad.rendezvous.job_address import JobAddress

GROUP: Final = "telegrad.init_methods"


class InitMethod(Protocol):
    """A function that finds a job by an init method.

    Example:
        >>> from collections.abc import Mapping
        >>> from telegrad.rendezvous import InitMethod, JobAddress
        >>> def read_job(
        ...     url: str, *, rank: int | None, world_size: int | None, environ: Mapping[str, str]
        ... ) -> JobAddress:
        ...     host = environ["CLUSTER_LEADER"]
        ...     found = int(environ["CLUSTER_RANK"]) if rank is None else rank
        ...     return JobAddress.at(host, 29500, rank=found, world_size=world_size or 2)
        >>> method: InitMethod = read_job
        >>> environ = {"CLUSTER_LEADER": "10.0.0.1", "CLUSTER_RANK": "1"}
        >>> method("cluster://", rank=None, world_size=None, environ=environ).coordinator_endpoint
        'grpc://10.0.0.1:29500'
    """

    def __call__(
        self,
        url: str,
        *,
        rank: int | None,
        world_size: int | None,
        environ: Mapping[str, str],
    ) -> JobAddress:
        """Returns the address of the job, and this worker's place in it.

        Args:
            url: The whole init method, scheme included.
            rank: The rank that the program gives; it takes precedence.
            world_size: The world size that the program gives; it takes precedence.
            environ: The environment of the process.

        Raises:
            Exception: The job cannot be found; becomes a RendezvousError that names the plug-in.
        """


def plugin_schemes() -> list[str]:
    """Returns the schemes that installed packages add, sorted; imports none of them."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def find_plugin(scheme: str) -> InitMethod | None:
    """Returns the init method of a scheme, or None if no installed package adds one.

    Its errors, and results other than a JobAddress, become RendezvousError with the plug-in's name.

    Raises:
        RendezvousError: Several packages add it, or its package cannot be imported.
    """
    found = list({point.value: point for point in entry_points(group=GROUP, name=scheme)}.values())
    if not found:
        return None
    if len(found) > 1:
        raise RendezvousError(
            f"several packages add init_method '{scheme}://': "
            f"{' and '.join(sorted(map(_words, found)))}; uninstall all but one"
        )
    (point,) = found
    try:
        function = point.load()
    except Exception as error:
        raise _failure(scheme, point, f"cannot be imported: {_told(error)}") from error

    def read(
        url: str, *, rank: int | None, world_size: int | None, environ: Mapping[str, str]
    ) -> JobAddress:
        try:
            address = function(url, rank=rank, world_size=world_size, environ=environ)
        except Exception as error:
            raise _failure(scheme, point, f"has failed: {_told(error)}") from error
        if not isinstance(address, JobAddress):
            raise _failure(
                scheme, point, f"returned {type(address).__name__} instead of a JobAddress"
            )
        return address

    return read


def _failure(scheme: str, point: EntryPoint, words: str) -> RendezvousError:
    return RendezvousError(f"the plug-in for init_method '{scheme}://', {_words(point)}, {words}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _words(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of package {point.dist.name} {point.dist.version}"
    return f"{point.value!r}{package}"
