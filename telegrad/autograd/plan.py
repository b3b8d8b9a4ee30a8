"""`Plan`: what one recorded call keeps, and which rules its backward runs.

Worked out once for each operation and each choice of inputs that need a gradient:

    multiply(a, b), both need one     keeps b and a; runs the rules of a and of b
    multiply(a, b), only a does       keeps b; runs the rule of a
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, final

__all__ = ["Need", "Plan", "Rule", "RuleOfInput", "compile_rule"]


class Rule(NamedTuple):
    """The gradient of one argument.

    Attributes:
        function: Called with the gradient and then with what `needs` names.
        needs: Arguments, outputs, options, `shape`, `shapes`, `i`.
    """

    function: Callable[..., Any]
    needs: tuple[str, ...]


Need: TypeAlias = "int | str"
"""A number of what is saved, or the name of what is not."""


Pick: TypeAlias = "Callable[[list[Any]], Sequence[Any]]"
"""What takes some of what was saved out of the list of all."""


RuleOfInput: TypeAlias = "tuple[int, Callable[..., Any], tuple[Need, ...], int | None, Pick | None]"
"""A rule that a backward runs: the input whose gradient it gives, the rule, what that gets after the
gradient. Where this is one that is saved, its number; where it is several, what takes them out of all
that is; else None. A plain tuple, as each node takes it apart."""


def compile_rule(function: Callable[..., Any], known: set[str]) -> Rule:
    """Returns the rule `function`, whose parameters say what it needs.

    Raises:
        ValueError: It needs what its operation has not.
    """
    code = function.__code__
    needs = code.co_varnames[1 : code.co_argcount]
    if not known.issuperset(needs):
        raise ValueError(f"a rule needs what its operation has not: {set(needs) - known}")
    return Rule(function, needs)


@final
class Plan:
    """What to save and which rules to run.

    Args:
        names: What each input is.
        outputs: What each output is.
        rules: The rule by name.
        mask: Bit i is set where input i needs a gradient; each such input has a rule.

    Attributes:
        saved: Inputs by their number; output k as -1 - k.
        saved_names: What messages call them.
        rules: One per input that needs a gradient.
    """

    __slots__ = ("rules", "saved", "saved_names")

    def __init__(
        self,
        names: Sequence[str],
        outputs: Sequence[str],
        rules: Mapping[str, Rule],
        mask: int,
    ) -> None:
        differentiated = [i for i in range(len(names)) if mask >> i & 1]
        places = {name: i for i, name in enumerate(names)}
        places |= {name: -1 - k for k, name in enumerate(outputs)}
        needed = {need for i in differentiated for need in rules[names[i]].needs}
        kept = [name for name in places if name in needed]
        numbers = {name: number for number, name in enumerate(kept)}
        self.saved = tuple(places[name] for name in kept)
        self.saved_names = tuple(kept)
        self.rules: tuple[RuleOfInput, ...] = tuple(
            (i, rule.function, needs, *_places(needs))
            for i in differentiated
            for rule in [rules[names[i]]]
            for needs in [tuple(numbers.get(need, need) for need in rule.needs)]
        )


def _places(needs: tuple[Need, ...]) -> tuple[int | None, Pick | None]:
    numbers = [need for need in needs if isinstance(need, int)]
    if not needs or len(numbers) < len(needs):
        return None, None
    return (numbers[0], None) if len(numbers) == 1 else (None, itemgetter(*numbers))
