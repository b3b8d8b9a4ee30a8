"""Device maps: the GPUs of a peer at which arrays of this worker's GPUs arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, final

from telegrad.rendezvous import check_name
from telegrad.rpc.base.limits import check_integer
from telegrad.transport import get_logger
from telegrad.types import WorkerInfo, WorkerName
from telegrad.wire import (
    HOST,
    MOST_GPUS,
    DeviceMap,
    Land,
    Place,
    first_gpu,
    land,
    place_by,
    register_type,
)

_logger = get_logger(__name__)

K = TypeVar("K")
V = TypeVar("V")


@final
class FrozenMapping(Mapping[K, V]):
    """A mapping that nobody changes; it can be hashed and pickled, as options are.

    Args:
        items: The items; copied.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


register_type(FrozenMapping, encode=dict, decode=FrozenMapping)  # options travel to LocalWorkers


def checked_device_maps(maps: object) -> Mapping[WorkerName, DeviceMap]:
    """Returns `RpcOptions.device_maps`, checked and frozen.

    Raises:
        TypeError: The value is no mapping of names to mappings of GPUs' numbers to such numbers or
            "cpu".
        ValueError: A name or a number is invalid.
    """
    if not isinstance(maps, Mapping):
        raise TypeError(
            "RpcOptions.device_maps must be a dict of workers' names, such as "
            f"{{'worker1': {{0: 1}}}}, not {maps!r}"
        )
    return FrozenMapping({_checked_worker(to): _checked_map(to, each) for to, each in maps.items()})


def _checked_worker(to: object) -> WorkerName:
    if not isinstance(to, str):
        raise TypeError(f"RpcOptions.device_maps has a worker's name as its key, not {to!r}")
    try:
        return check_name(to)
    except ValueError as error:
        raise ValueError(f"RpcOptions.device_maps: {error}") from None


def _checked_map(to: object, devices: object) -> DeviceMap:
    label = f"RpcOptions.device_maps[{to!r}]"
    if not isinstance(devices, Mapping):
        raise TypeError(
            f"{label} must be a dict of this worker's GPUs to those of {to!r}, such as "
            f"{{0: 1}}, not {devices!r}"
        )
    for number, wanted in devices.items():
        _check_number(f"a key of {label}", number, "what is in host memory stays there")
        if not (isinstance(wanted, str) and wanted == "cpu"):
            _check_number(f"{label}[{number}]", wanted, "'cpu' stands for host memory")
    return FrozenMapping(devices)


def _check_number(label: str, number: object, advice: str) -> None:
    if isinstance(number, str):
        raise TypeError(f"{label} must be the number of a GPU, not {number!r}; {advice}")
    check_integer(label, number, 0, MOST_GPUS - 1)


@final
class Devices:
    """The devices at which arrays of GPUs arrive: at peers by this worker's maps, here by theirs.

    Args:
        maps: The maps of the options.
        worker: This worker's name, for the log.
        moves: Moves arrays that arrived, as `wire.land`.
    """

    __slots__ = ("_lands", "_missed", "_moves", "_places", "_worker")

    def __init__(
        self,
        maps: Mapping[WorkerName, DeviceMap],
        worker: WorkerName,
        moves: Callable[..., Any] = land,
    ) -> None:
        self._places = {to: place_by(devices) for to, devices in maps.items()}
        self._worker = worker
        self._lands: dict[WorkerName, Land] = {}
        self._missed: set[tuple[WorkerName, int]] = set()
        self._moves = moves

    def place(self, peer: WorkerInfo) -> Place:
        """Returns the function that chooses where arrays of this worker's GPUs arrive at a peer."""
        return self._places.get(peer.name, first_gpu) if self._places else first_gpu

    def land(self, peer: WorkerInfo) -> Land:
        """Returns the function that moves arrays of a peer to the GPUs that it has chosen here.

        If a GPU cannot be had, they arrive as without a map, and the log says so once.
        """
        known = self._lands.get(peer.name)
        if known is None:
            missed = partial(self._miss, peer.name)
            known = self._lands[peer.name] = partial(self._moves, missed=missed)
        return known

    def _miss(self, peer: WorkerName, number: int, reason: str) -> None:
        if (peer, number) in self._missed:
            return
        self._missed.add((peer, number))
        if number == HOST:
            _logger.info(
                "memory of a GPU that %s shares cannot be opened by %s (%s); its arrays come by "
                "host memory",
                peer,
                self._worker,
                reason,
            )
            return
        _logger.warning(
            "%s sends arrays to GPU %d of %s, which cannot be had (%s); they arrive on its first "
            "GPU, or as NumPy's where it has none. Mend RpcOptions.device_maps of %s",
            peer,
            number,
            self._worker,
            reason,
            peer,
        )
