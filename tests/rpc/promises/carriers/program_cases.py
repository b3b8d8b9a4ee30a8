"""Many cases in one program, where the program itself would cost more than each of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

__all__ = ["run_cases"]

RUN = """
import sys, traceback

failed = []
for name, case in cases.items():
    for attempt in range(1, ATTEMPTS + 1):
        try:
            begin_case(f"{name} {attempt}")
            case()
            break
        except BaseException as error:
            print(f"case {name!r} failed", flush=True)
            traceback.print_exc()
            if attempt == ATTEMPTS or not isinstance(error, AssertionError):
                failed.append(name)
                break
rpc.shutdown()
sys.exit(", ".join(failed) or 0)
"""


def run_cases(cases: Mapping[str, str], *, begin: str = "", attempts: int = 1) -> str:
    """Returns the end of a program: rank 0 runs all cases, and ends with 1 if any has failed.

    Args:
        cases: The body of each, by its name.
        begin: What runs before each, where `name` is its name and the number of the attempt.
        attempts: How often a case may be tried whose assertion fails, because the machine may keep
            a thread from its turn.
    """

    def indented(body: str) -> str:
        return textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")

    parts = [f"def begin_case(name):\n{indented(begin or 'pass')}", "cases = {}"]
    for number, (name, body) in enumerate(cases.items()):
        parts.append(f"def case_{number}():\n{indented(body)}")
        parts.append(f"if agent.rank == 0: cases[{name!r}] = case_{number}")
    return "\n".join(["", *parts, RUN.replace("ATTEMPTS", str(attempts))])
