"""`DistributedSampler`: the indices of the samples that one rank draws in an epoch.

    order of the epoch   7  2  5  0  6  1  3 │ 7  2     the same on every rank; 3 ranks pad it to 9
    rank 0               7        0        3
    rank 1                  2        6       │ 7
    rank 2                     5        1    │    2

After k samples of each rank, the first k times n of the order are used up, for n ranks. So training
that was interrupted there can go on with any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, final

import numpy as np

# What must be equal in the sampler that saves a state and the one that loads it.
_SAME = ("length", "seed", "shuffle")


@final
class DistributedSampler:
    """An iterable of the indices of one rank's samples; each rank has one with the same arguments.

    All ranks together draw each sample once in an epoch, and all draw equally many. To this end the
    last ones draw some samples again, from the start of the epoch's order, or with `drop_last` some
    samples are left out. The order depends on `seed` and epoch alone, so call `set_epoch` before
    each epoch.

    A sampler is used by one thread at a time.

    Args:
        dataset: The data set, or its length.
        num_replicas: The number of ranks.
        rank: This rank, from 0.
        shuffle: False for the order of the data set.
        seed: A number from 0, the same on every rank.
        drop_last: True to leave samples out instead of drawing some again.

    Raises:
        TypeError: `dataset` has no length, or a number is not an integer.
        ValueError: A number is out of its range.

    Example:
        >>> ranks = [DistributedSampler(7, 3, rank, shuffle=False) for rank in range(3)]
        >>> [list(sampler) for sampler in ranks]
        [[0, 3, 6], [1, 4, 0], [2, 5, 1]]
        >>> sampler = DistributedSampler(7, 3, 0)
        >>> for epoch in range(2):
        ...     sampler.set_epoch(epoch)
        ...     print(list(sampler))
        [2, 6, 1]
        [1, 0, 5]
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self._length = _length_of(dataset)
        self._n = _integer("num_replicas", num_replicas, 1)
        self._rank = _integer("rank", rank, 0)
        if self._rank >= self._n:
            raise ValueError(f"rank {rank} is none of {num_replicas} ranks, which count from 0")
        self._shuffle = bool(shuffle)
        self._seed = _integer("seed", seed, 0)
        self._drop_last = bool(drop_last)
        self._epoch = 0
        self._drawn = 0  # of the epoch's order, by all ranks together
        self._resumes = False  # the next iteration begins after those

    @property
    def epoch(self) -> int:
        """The epoch of `set_epoch` or `load_state_dict`, 0 at first."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch, from 0; all ranks call it with the same number.

        For the epoch of a state that was loaded, the next iteration goes on in the middle; for any
        other epoch it begins at the start.
        """
        if _integer("epoch", epoch, 0) != self._epoch:
            self._epoch = int(epoch)
            self._drawn = 0
            self._resumes = False

    def __len__(self) -> int:
        """Returns the number of samples that each rank draws in a whole epoch."""
        return self._each(self._length)

    def __iter__(self) -> Iterator[int]:
        """Returns an iterator over the epoch, or over the rest of it after `load_state_dict`."""
        self._drawn = self._drawn if self._resumes else 0
        self._resumes = False
        order = self._order()
        left = self._each(self._length - self._drawn)
        places = self._drawn + self._rank + self._n * np.arange(left)
        return self._draw(order[places % max(self._length, 1)])

    def _draw(self, indices: np.ndarray[Any, np.dtype[np.intp]]) -> Iterator[int]:
        for index in indices:
            self._drawn += self._n
            yield int(index)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the epoch, as numbers; it is the same on every rank.

        It counts the samples that the last iterator has returned. So it is the place in training
        if no samples were drawn ahead, and all ranks are at the end of the same step.

        Example:
            >>> sampler = DistributedSampler(100, 2, 0)
            >>> iterator = iter(sampler)
            >>> used = [next(iterator) for _ in range(10)]
            >>> state = sampler.state_dict()
            >>> state["epoch"], state["drawn"]  # by both ranks
            (0, 20)
            >>> resumed = DistributedSampler(100, 2, 0)
            >>> resumed.load_state_dict(state)
            >>> used + list(resumed) == list(DistributedSampler(100, 2, 0))
            True
        """
        return {
            "epoch": self._epoch,
            "drawn": self._drawn,
            "length": self._length,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on after the samples that were drawn.

        The number of ranks may differ from that of the job that saved the state.

        Raises:
            TypeError: The state is no mapping.
            ValueError: Something is missing or no number from 0, or the state is of another data
                set, seed or order.
        """
        given: object = state
        if not isinstance(given, Mapping):
            raise TypeError(f"a DistributedSampler loads the dict of a state_dict(), not {given!r}")
        own = self.state_dict()
        missing = [name for name in own if name not in state]
        if missing:
            raise ValueError(f"the state of a DistributedSampler lacks {', '.join(missing)}")
        for name in _SAME:
            if state[name] != own[name]:
                raise ValueError(
                    f"the state is of a DistributedSampler with {name} {state[name]!r}, and this "
                    f"one has {own[name]!r}; its order would be another one"
                )
        try:
            epoch, drawn = (_integer(name, state[name], 0) for name in ("epoch", "drawn"))
        except TypeError as error:
            raise ValueError(f"the state is of something else: {error}") from error
        self._epoch, self._drawn, self._resumes = epoch, drawn, True

    def __repr__(self) -> str:
        return (
            f"DistributedSampler({self._length} samples, rank {self._rank} of {self._n}, epoch "
            f"{self._epoch})"
        )

    def _each(self, left: int) -> int:
        """Returns the number of samples of each rank, if `left` samples of the order are left."""
        return max(left, 0) // self._n if self._drop_last else -(-max(left, 0) // self._n)

    def _order(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        if not self._shuffle:
            return np.arange(self._length)
        return np.random.default_rng([self._seed, self._epoch]).permutation(self._length)


def _length_of(dataset: object) -> int:
    if isinstance(dataset, Sized):
        return len(dataset)
    if isinstance(dataset, bool) or not isinstance(dataset, int | np.integer):
        raise TypeError(
            f"a DistributedSampler needs a data set with a length, or that length, not "
            f"{type(dataset).__name__}"
        )
    return _integer("the length of the data set", dataset, 0)


def _integer(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{what} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    return int(value)
