"""The settings of a pipeline, which its stages share and which never change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from telegrad.parallel.pipeline.micro_batches import Spec, check_spec

__all__ = ["Settings"]

RECOMPUTE = ("never", "always", "except_last")


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a `Pipeline` beside its stages and its schedule; see there.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument has a value that there is not.
    """

    num_microbatches: int
    loss: Callable[..., Any] | None
    recompute: str
    specs: Sequence[Spec] | None
    timeout: float | None
    keep_copies: bool = False

    def __post_init__(self) -> None:
        count: object = self.num_microbatches
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise TypeError(f"num_microbatches must be an integer, not {count!r}")
        if count < 1:
            raise ValueError(f"num_microbatches must be at least 1, not {count}")
        object.__setattr__(self, "num_microbatches", int(count))  # NumPy's integers as well
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"loss must be a function, not {self.loss!r}")
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute must be one of {RECOMPUTE}, not {self.recompute!r}")
        for spec in self.specs or ():
            check_spec(spec)

    def specs_for(self, arguments: Sequence[Any]) -> list[Spec]:
        """Returns the rule for each argument of a step.

        Raises:
            TypeError: There are more arguments than rules, or none at all.
        """
        if not arguments:
            raise TypeError("a pipeline needs the inputs of its first stage")
        if self.specs is None:
            return ["split"] * len(arguments)
        if len(self.specs) < len(arguments):
            raise TypeError(
                f"{len(arguments)} arguments were given, and specs has {len(self.specs)} rules"
            )
        return list(self.specs[: len(arguments)])
