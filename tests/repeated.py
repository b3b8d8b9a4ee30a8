"""What `make test` runs once and `make test-long` again: hostile cases, and other transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

__all__ = ["RUNS", "TRANSPORTS", "on_examples", "repeated"]

RUNS = 5

# A verb is tested over one transport; what a transport promises, the conformance suite tests.
TRANSPORTS = ["inproc", pytest.param("grpc", marks=pytest.mark.long)]

# A test with this mark takes an argument `run`, which it need not look at.
repeated = pytest.mark.parametrize(
    "run",
    [
        pytest.param(0, id="once"),
        *(pytest.param(run, id=f"run {run}", marks=pytest.mark.long) for run in range(1, RUNS + 1)),
    ],
)

# Examples of a property: nearly all that fails does so on one of the first few.
FEW, MANY = 40, 300


def on_examples(
    *strategies: Any, few: int = FEW, many: int = MANY
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Tests a property as `hypothesis.given` does: on few examples, and on many in the long run.

    Args:
        *strategies: Draw the arguments of the test, which takes no others.
        few: Examples in `make test`.
        many: Examples in `make test-long`.
    """

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        def test(examples: int) -> None:
            limited = hypothesis.settings(max_examples=examples)
            run: Callable[[], None] = limited(hypothesis.given(*strategies)(check))  # type: ignore[no-untyped-call]
            run()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        counts = [few, pytest.param(many, marks=pytest.mark.long)]
        return pytest.mark.parametrize("examples", counts)(test)

    return decorate
