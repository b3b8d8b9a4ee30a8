"""The samples of a data set that each rank of a job trains on."""

from __future__ import annotations

from telegrad.data.sampler import DistributedSampler

__all__ = ["DistributedSampler"]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
