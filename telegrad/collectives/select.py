"""The choice of an algorithm, by facts that all ranks share: the bytes and the number of ranks.

| B bytes on n ranks | n up to 8 | n from 9 |
|---|---|---|
| all_reduce up to n 4 KiB | direct.all_reduce | circulant.all_reduce_in_order |
| all_reduce up to 256 KiB | direct.all_reduce | direct.all_reduce |
| all_reduce up to n 256 KiB | ring.all_reduce | circulant.all_reduce |
| all_reduce above | ring.all_reduce | ring.all_reduce |
| reduce up to 256 KiB | star.reduce | star.reduce |
| reduce above | star.reduce_in_blocks | star.reduce_in_blocks |
| broadcast up to n MiB | tree.broadcast | tree.broadcast |
| broadcast above, n from 3 | chain.broadcast | chain.broadcast |
| all_gather | direct.all_gather | circulant.all_gather, n from 16 |

Up to 256 KiB all reductions combine in rank order. The choice for `all_gather` is by the number of
ranks alone, because their arrays may have different sizes.

These are the default `Thresholds`; a group may have others, which `telegrad tune` has measured.

The limits for more than 8 ranks and for `broadcast` come from a formula for the time, which
`tests/collectives/algorithms/test_costs.py` holds against the choice. A message costs each of its
two ranks the work w and is 2 w on its way. So a step takes T = 4 w, and each further message in it
T / 2. STEP_BYTES take T. The first message above EAGER_BYTES to a rank is announced: that takes two
more steps.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias, final

from telegrad.collectives.algorithms import chain, circulant, direct, ring, star, tree
from telegrad.collectives.link import Link, Steps
from telegrad.collectives.reduction import ReduceOp
from telegrad.errors import DecodeError
from telegrad.types import Array

AllGather: TypeAlias = Callable[[Link, Array], Steps[list[Array]]]
AllReduce: TypeAlias = Callable[[Link, Array, ReduceOp], Steps[None]]
Broadcast: TypeAlias = Callable[[Link, Array, int], Steps[None]]
Reduce: TypeAlias = Callable[[Link, Array, ReduceOp, int], Steps[None]]

MOST: Final = 2**62  # a threshold that is never reached


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The sizes and numbers of ranks at which a group chooses another algorithm.

    They concern groups that send messages: ranks of one host that share memory need none. All ranks
    of a group use the same ones. `telegrad tune` measures them and writes a table in TOML.

    Attributes:
        direct_up_to_bytes: The longest array that all ranks reduce in rank order, after one step in
            which each has sent its own to all others; longer ones go by a ring, or in blocks.
        few_ranks: The most ranks for which n - 1 messages at once are the quickest.
        many_ranks: The ranks from which on `all_gather` takes ceil(log2 n) steps, not one.
        in_order_part_bytes: With more than `few_ranks`, arrays of up to n times these bytes are
            reduced in rank order after ceil(log2 n) steps.
        block_bytes: With more than `few_ranks`, arrays of up to n times these bytes are reduced in
            2 ceil(log2 n) steps, and longer ones by a ring.
        chain_part_bytes: From 3 ranks on, `broadcast` sends arrays of more than n times these bytes
            along a chain, and shorter ones along a tree.

    Raises:
        TypeError: A threshold is no integer.
        ValueError: A threshold is negative.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     tuned = collectives.Thresholds(direct_up_to_bytes=2**20)
        ...     return collectives.init_process_group(thresholds=tuned).size
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2, 2]
    """

    # Up to this size, one step in which each rank sends to all others takes no longer than the
    # 2 (n - 1) steps of a ring. Milliseconds direct and ring, processes on two busy cores: n = 2:
    # 256 KiB 3.5 and 5.3, 1 MiB 18 and 9, 16 MiB 85 and 69. n = 4: 256 KiB 16 and 16, 1 MiB 43 and
    # 28, 16 MiB 393 and 172.
    direct_up_to_bytes: int = 256 * 2**10
    # Up to this number of ranks, n - 1 messages in one step take no longer than ceil(log2 n) steps.
    few_ranks: int = 8
    # From this number on, they take twice as long with small arrays. Where arrays of one size have
    # the ceil(log2 n) messages announced, they are shorter, by a sixth of the time at most.
    many_ranks: int = 16
    # Up to n times this size, few of the messages with up to n / 2 arrays need be announced.
    in_order_part_bytes: int = 4 * 2**10
    # Up to n times this size, the 2 ceil(log2 n) messages take less than the 2 (n - 1) steps of a
    # ring, though they are announced. Above, bytes decide, and the ring sends fewest bytes between
    # hosts that have several ranks each.
    block_bytes: int = 256 * 2**10
    # From n times this size on, a chain takes less than a tree: for x = B / STEP_BYTES they take
    # (sqrt(x) + sqrt(n - 2))^2 T and ceil(log2 n) (1 + x) T, and are equal near x = 2 n.
    chain_part_bytes: int = 2 * chain.STEP_BYTES

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, not {value!r}")
            if not 0 <= value <= MOST:
                raise ValueError(f"{name} must be from 0 to {MOST} (got {value})")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Thresholds:
        """Reads a table that `save` or a person has written; all else is as by default.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is no TOML, or no table of thresholds.
        """
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            unknown = sorted(table.keys() - {field.name for field in fields(Thresholds)})
            if unknown:
                known = ", ".join(field.name for field in fields(Thresholds))
                raise ValueError(f"there is no threshold {unknown[0]!r}, there are {known}")
            return Thresholds(**table)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{os.fspath(path)!r} is no table of thresholds: {error}; `telegrad tune` writes "
                "one"
            ) from error

    def save(self, path: str | os.PathLike[str], note: str = "") -> None:
        """Writes a table in TOML.

        Args:
            path: The file, which is replaced.
            note: Text for a comment on top.
        """
        lines = [f"# {line}" for line in note.splitlines()]
        lines += [f"{name} = {value}" for name, value in asdict(self).items()]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def digest(self) -> str:
        """A short name, the same for equal thresholds; empty for the default ones."""
        if self == DEFAULT:
            return ""
        return hashlib.blake2b(repr(astuple(self)).encode(), digest_size=4).hexdigest()

    def to_wire(self) -> tuple[int, ...]:
        """Returns the thresholds as plain values."""
        return astuple(self)

    @staticmethod
    def from_wire(values: Sequence[int]) -> Thresholds:
        """Returns thresholds from plain values; raises DecodeError.

        >>> Thresholds.from_wire(DEFAULT.to_wire()) == DEFAULT
        True
        """
        names = [field.name for field in fields(Thresholds)]
        try:
            return Thresholds(**dict(zip(names, values, strict=True)))
        except (TypeError, ValueError) as error:
            raise DecodeError(f"not the thresholds of a group: {error}") from None


DEFAULT: Final = Thresholds()


def select_all_reduce(nbytes: int, n: int, limits: Thresholds = DEFAULT) -> AllReduce:
    """Returns the algorithm for an array of this many bytes on n ranks.

    >>> select_all_reduce(2**16, 8) is direct.all_reduce
    True
    >>> select_all_reduce(2**16, 16) is circulant.all_reduce_in_order
    True
    >>> select_all_reduce(2**20, 8) is ring.all_reduce
    True
    >>> select_all_reduce(2**20, 9) is circulant.all_reduce
    True
    """
    if n == 1 or nbytes <= limits.direct_up_to_bytes:
        if n > limits.few_ranks and nbytes <= n * limits.in_order_part_bytes:
            return circulant.all_reduce_in_order
        return direct.all_reduce
    if n > limits.few_ranks and nbytes <= n * limits.block_bytes:
        return circulant.all_reduce
    return ring.all_reduce


def select_reduce(nbytes: int, n: int, limits: Thresholds = DEFAULT) -> Reduce:
    """Returns the algorithm for an array of this many bytes on n ranks.

    Two ranks send the same bytes either way, and the root has half of the work in blocks.

    >>> select_reduce(2**20, 4) is star.reduce_in_blocks
    True
    """
    if n > 1 and nbytes > limits.direct_up_to_bytes:
        return star.reduce_in_blocks
    return star.reduce


def select_broadcast(nbytes: int, n: int, limits: Thresholds = DEFAULT) -> Broadcast:
    """Returns the algorithm for an array of this many bytes on n ranks.

    >>> select_broadcast(2**22, 4) is tree.broadcast
    True
    >>> select_broadcast(2**23, 4) is chain.broadcast
    True
    """
    if n > 2 and nbytes > n * limits.chain_part_bytes:
        return chain.broadcast
    return tree.broadcast


def select_all_gather(n: int, limits: Thresholds = DEFAULT) -> AllGather:
    """Returns the algorithm for n ranks.

    >>> select_all_gather(15) is direct.all_gather
    True
    >>> select_all_gather(16) is circulant.all_gather
    True
    """
    return circulant.all_gather if n >= limits.many_ranks else direct.all_gather
