"""No listed function holds the interpreter for long on small arguments: that loses a worker."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from telegrad.errors import CallRefusedError
from telegrad.rpc.policy.bounds import check_call

BUSY: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("operator:add", [Fraction(1, 3**50_000), 1], {}),
    ("builtins:list", [range(10**12)], {}),
    ("builtins:tuple", [[range(10**6)] * 100], {}),
    ("builtins:divmod", [2**800_000, 3**200_000], {}),
    ("math:floor", [Decimal("1e99999999")], {}),
    ("math:gcd", [2**800_000, 3**200_000], {}),
    ("operator:countOf", [range(10**12), 0.5], {}),
    ("numpy:power", [7, 3 * 10**8], {"dtype": "O"}),
    ("numpy:power", [7, 3 * 10**8], {"dtype": dict}),
    ("numpy:power", [7, 3 * 10**8], {"signature": "OO->O"}),
    ("numpy:power", [[7, None], 3 * 10**8], {}),
    ("numpy:left_shift", [2**70, 10**12], {}),
    ("numpy:floor", [Decimal(1)], {}),
    ("numpy:sum", [[Fraction(1, 3)]], {}),
    ("numpy:sum", [range(10**9)], {}),
    ("numpy:binary_repr", [1, 10**12], {}),
    ("telegrad.numpy:power", [7, 3 * 10**8], {"dtype": "O"}),
]  # fmt: skip

USUAL: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("builtins:float", ["12"], {}),
    ("math:floor", [Decimal("12.5")], {}),
    ("builtins:list", [range(10**6)], {}),
    ("operator:add", [Fraction(1, 3), 1], {}),
    ("operator:add", [np.arange(3), 2**1000], {}),
    ("numpy:power", [[7, 2.5], 3], {"dtype": "f4"}),
    ("numpy:array", [["Ohio", "Utah"]], {}),
    ("numpy:sum", [np.ones((2, 3)), (0, 1)], {"dtype": float, "keepdims": True}),
    ("numpy:base_repr", [2**100, 36], {}),
    ("numpy:clip", [np.arange(3), None, 2], {}),
    ("numpy:einsum", ["ij->ji", np.ones((2, 3))], {}),
]  # fmt: skip


def test_calls_that_keep_a_worker_busy_are_refused(subtests: pytest.Subtests) -> None:
    for i, (name, args, kwargs) in enumerate(BUSY):
        with (
            subtests.test(name=name, row=i),
            pytest.raises(CallRefusedError, match=f"{name!r} of .* call a function of your own"),
        ):
            check_call(name, args, kwargs)


def test_usual_calls_are_not_refused(subtests: pytest.Subtests) -> None:
    for name, args, kwargs in USUAL:
        with subtests.test(name=name):
            check_call(name, args, kwargs)
    check_call("mymodule:power", [7, 3 * 10**8], {"dtype": "O"})  # of the project: it may


@pytest.mark.long  # 15 s; the rows above are what it found
@pytest.mark.timeout(300)
def test_a_search_through_the_whole_list_finds_no_other() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.rpc.policy.busy_search"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.splitlines()[-1].startswith("done"), found.stderr[-2000:]
    assert found.stdout.count("\n") > 10_000
