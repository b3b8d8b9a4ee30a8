"""No listed function holds the interpreter for long on small arguments: that loses a worker."""

from __future__ import annotations

import math
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
    ("builtins:int", [Decimal("1e99999999")], {}),
    ("builtins:sorted", [[Decimal("1e99999999")]], {"key": int}),
    ("builtins:max", [[10**9] * 1000], {"key": np.arange}),
    ("builtins:max", [[Decimal("1e9999")] * 20_000], {"key": int}),
    ("builtins:max", [Decimal("1e9999")] * 20_000, {"key": math.floor}),
    ("builtins:min", [(Decimal("9" * 9999),) * 20_000], {"key": math.ceil}),
    ("builtins:sorted", [[Decimal("1e9999")] * 20_000], {"key": math.trunc}),
    ("builtins:sorted", [{Decimal(10**9999 + i) for i in range(200)}], {"key": round}),
    ("builtins:sorted", [["9" * 4000] * 20_000], {"key": int}),
    ("builtins:sorted", [[2**65_000] * 20_000], {"key": math.isqrt}),
    ("builtins:max", [[10**9] * 1000], {"key": bytes}),
    ("builtins:max", [[range(1, 10**5)] * 50], {"key": math.prod}),
    ("builtins:max", [[[i * (2**61 - 1) for i in range(20_000)]]], {"key": set}),
    ("builtins:sum", [[Fraction(1, 2**63 + i) for i in range(10_000)]], {}),
    ("math:prod", [[Fraction(2**63, 2**63 + i) for i in range(10_000)]], {}),
    ("operator:pow", [Fraction(3, 2), 3 * 10**8], {}),
    ("operator:pow", [7, Fraction(3 * 10**8)], {}),
    ("operator:add", [Fraction(1, 3**50_000), 1], {}),
    ("builtins:sum", [range(10**12)], {}),
    ("builtins:sum", [[range(10**6)] * 100], {}),
    ("builtins:sum", [[[1]] * 10**4, []], {}),
    ("builtins:set", [[i * (2**61 - 1) for i in range(20_000)]], {}),
    ("builtins:dict", [[(i * (2**61 - 1), 0) for i in range(20_000)]], {}),
    ("builtins:divmod", [2**800_000, 3**200_000], {}),
    ("math:floor", [Decimal("1e99999999")], {}),
    ("math:prod", [range(1, 10**6)], {}),
    ("math:gcd", [2**800_000, 3**200_000], {}),
    ("operator:pow", [7, 3 * 10**8], {}),
    ("operator:lshift", [1, 10**12], {}),
    ("operator:mul", ["x", 10**12], {}),
    ("operator:imul", [10**12, [1]], {}),
    ("operator:mod", ["%9999999999d", 1], {}),
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
    ("builtins:int", ["12"], {}),
    ("builtins:int", [Decimal("12.5")], {}),
    ("builtins:sum", [range(10**6)], {}),
    ("builtins:sorted", [["b", "aa"]], {"key": len}),
    ("builtins:sorted", [["b" * 10**6] * 20], {"key": len}),
    ("builtins:sorted", [["12", "9.5"] * 10_000], {"key": float}),
    ("builtins:max", [[Decimal("12.50")] * 100_000], {"key": int}),
    ("builtins:max", [[Decimal("NaN"), Decimal("1e9999")]], {"key": math.floor}),
    ("builtins:max", [3, -7], {"key": abs}),
    ("builtins:sum", [[Fraction(1, 3)] * 1000], {}),
    ("operator:pow", [Fraction(3, 2), 100], {}),
    ("operator:pow", [2, Fraction(1, 2)], {}),
    ("builtins:set", [[1, 1, 2] * 1000], {}),
    ("builtins:dict", [[("a", 1)]], {"b": 2}),
    ("math:prod", [[1, 2, 3]], {}),
    ("operator:pow", [2, 1000], {}),
    ("operator:pow", [np.arange(3), 2], {}),
    ("operator:mul", [np.arange(3), 10**12], {}),
    ("operator:mul", ["ab", 3], {}),
    ("operator:mod", [7, 3], {}),
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
        [sys.executable, "-m", "tests.rpc.busy_search"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.splitlines()[-1].startswith("done"), found.stderr[-2000:]
    assert found.stdout.count("\n") > 10_000
