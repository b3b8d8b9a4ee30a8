"""The node of one recorded call: it keeps what the rules of the call need, and runs them.

`Operation` and `Function` create these nodes. A node refers to a `Plan`, which names the saved
values and the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeAlias, final

import numpy as np

from telegrad.arrays import device_of, is_array, is_inexact
from telegrad.autograd.graph.grad_mode import ENABLED, setting
from telegrad.autograd.graph.node import Edge, Node, Value
from telegrad.autograd.graph.plan import Need, Plan, RuleOfInput, fit
from telegrad.autograd.tensor.tensor import AccumulateGrad, Gradients, Tensor, made_of
from telegrad.errors import AutogradError
from telegrad.types import Array, Shape

_Form: TypeAlias = "tuple[np.dtype[Any], Shape, str]"
"""Dtype, shape and device of an array."""


@final
class CallNode(Node):
    """One recorded call, of an `Operation` or of a user's `Function`, which set the attributes.

    `recompute` drops saved values at once; a segment computes them again.

    Attributes:
        _plan: The values to save and the rules to run.
        _saved: The saved values, in the plan's order; None once they are freed. An entry is a Value
            with its version for a Tensor; any other argument stands there as it was given. A
            Packed stands there for an array that was packed.
        _inputs: Shape and dtype of each input that a rule is for, at the input's index.
        _options: The options of the call, as given.
        _conjugated: True if the rules compute with conjugates.
        _segment: Unset in all nodes but those of `recompute`.
    """

    __slots__ = ("_conjugated", "_inputs", "_options", "_plan", "_saved", "_segment")

    _plan: Plan
    _saved: list[Any] | None
    _inputs: list[tuple[Shape, np.dtype[Any]] | None]
    _options: Mapping[str, Any]
    _conjugated: bool
    _segment: Any  # that of `recompute`, which can compute what the node saved; unset without

    @property
    def name(self) -> str:
        """The name of the operation, or of the user's class."""
        return self._plan.name

    def backward(
        self, gradients: Gradients, rules: Iterable[RuleOfInput] | None = None
    ) -> Gradients:
        """Runs the rule of each input that needs a gradient, or some of these rules."""
        plan, saved = self._plan, self._saved
        if saved is None:
            saved = self.restore_saved()
        if plan.several:
            gradient: Any = gradients
            recorded = any(isinstance(g, Tensor) for g in gradients)
        else:
            gradient = gradients[0]
            recorded = type(gradient) is not np.ndarray and isinstance(gradient, Tensor)
        if self._conjugated:
            gradient = _conjugate(gradient)
        unpacked: list[Any] = []
        for entry in saved:
            if type(entry) is tuple:
                value, version = entry
                if (value.counter or value).changes != version:
                    refuse_changed(value, version, self.name, self._what(len(unpacked)))
                entry = self._recorded(len(unpacked), value) if recorded else value.array
            elif type(entry) is Packed:
                entry = self._unpack(len(unpacked), entry, recorded=recorded)
            unpacked.append(entry)
        results: list[Any] = [None] * len(self.edges)
        inputs: list[Any] = self._inputs
        saved_value: Any = unpacked.__getitem__
        for i, rule, needs, all_saved in plan.rules if rules is None else rules:
            if results[i] is not None:
                continue
            shape, dtype = inputs[i]
            if all_saved:
                result = rule(gradient, *map(saved_value, needs))
            else:
                result = rule(gradient, *self._found(needs, i, shape, unpacked))
            if result is None:
                continue
            if type(result) is list:
                for k, each in enumerate(result[: len(results) - i], start=i):
                    if each is not None and inputs[k] is not None:
                        shape, dtype = inputs[k]
                        each = _conjugate(each) if self._conjugated else each
                        results[k] = fit(each, shape, dtype, self.edges[k])
                continue
            if self._conjugated:
                result = _conjugate(result)
            if type(result) is not np.ndarray or result.shape != shape or result.dtype is not dtype:
                result = fit(result, shape, dtype, self.edges[i])
            results[i] = result
        return tuple(results)

    def backward_of(self, gradients: Gradients, wanted: Sequence[int]) -> Gradients:
        """Runs the rules of some inputs, if its plan `splits`; the rest of the result is None."""
        return self.backward(gradients, [rule for rule in self._plan.rules if rule[0] in wanted])

    def _recorded(self, k: int, value: Any) -> Tensor:
        place = self._plan.saved[k]
        edge = self.edges[place] if place >= 0 else (self, -1 - place)
        return made_of(Value(value.array, value), edge if is_inexact(value.array.dtype) else None)

    def _found(
        self, needs: tuple[Need, ...], i: int, shape: Shape, unpacked: list[Any]
    ) -> list[Any]:
        found: list[Any] = []
        for need in needs:
            if isinstance(need, int):
                found.append(unpacked[need])
            elif need == "shape":
                found.append(shape)
            elif need in self._options:
                found.append(self._options[need])
            else:
                found.append(i if need == "i" else self._plan.options.get(need))
        return found

    def _what(self, k: int) -> str:
        plan = self._plan
        argument = plan.saved[k] >= 0
        if not plan.saved_names:
            return "a value" if argument else "the result"
        return f"the {'argument' if argument else 'result'} {plan.saved_names[k]!r}"

    # The saved values, and their end.

    def release(self) -> None:
        """Frees the saved values, if there are any."""
        if self._saved:
            self._saved = None

    def saved_leaves(self) -> tuple[Any, ...]:
        """Returns one item per saved entry: the entry if a leaf holds it, else None.

        A segment that computes again must find the values of leaves unchanged.
        """
        return tuple([
            entry if place >= 0 and _is_leaf(self.edges[place]) else None
            for place, entry in zip(self._plan.saved, self._saved or (), strict=False)
        ])  # fmt: skip

    @property
    def segment(self) -> Any:
        """The segment that computes the saved values again; None if the node kept them."""
        return getattr(self, "_segment", None)

    def pack_saved(self, pack: Callable[[Array], Any], unpack: Callable[[Any], Array]) -> None:
        """Replaces each saved array by what `pack` makes of it.

        The arrays of leaves stay, since the leaves keep them in memory anyway. So does an array
        that `pack` returns itself.
        """
        if not self._saved:
            return
        with setting(ENABLED, False):
            self._saved = [
                _packed(entry, pack, unpack) if leaf is None else entry
                for entry, leaf in zip(self._saved, self.saved_leaves(), strict=True)
            ]

    def _unpack(self, k: int, packed: Packed, *, recorded: bool) -> Any:
        with setting(ENABLED, False):
            array = packed.unpack(packed.token)
        if not is_array(array) or _form(array) != packed.form:
            found = _words(_form(array)) if is_array(array) else f"a {type(array).__name__}"
            raise AutogradError(
                f"unpack returned {found} for {self._what(k)} that {self.name!r} saved for its "
                f"gradient, and pack got {_words(packed.form)}; return an array like that one"
            )
        if isinstance(array, np.ndarray):
            array = np.asarray(array)  # np.memmap is a class of its own
        if packed.kind is list:
            return [array]
        # The graph knows a Tensor by its edge, so another array in its place is the same Tensor.
        return self._recorded(k, Value(array)) if recorded and packed.kind is tuple else array

    def drop_saved(self, segment: object) -> None:
        """Drops the saved values; `segment` computes them again."""
        self._saved = None
        self._segment = segment

    def take_saved(self, other: Self) -> None:
        """Takes over the saved values of `other`, the same operation computed again.

        If another segment has dropped them, this node takes over that segment.
        """
        segment = other.segment
        if segment is None:
            self._saved = other._saved
        else:  # a thread may have restored the values by this segment: they stay
            self._segment = segment

    def restore_saved(self) -> list[Any]:
        """Returns the saved values after the segment has computed them again.

        A segment with others inside hands this node on to one of these, which computes next.

        Raises:
            AutogradError: The values were freed: there is no segment, or it has computed before.
        """
        segment = None
        while self._saved is None and self.segment is not segment:
            segment = self.segment
            segment.compute()
        if self._saved is None:
            raise AutogradError(
                f"what {self.name!r} saved for its gradient was freed by an earlier backward; "
                "pass retain_graph=True to that one, or compute the forward again"
            )
        return self._saved


@final
class Packed:
    """A token in place of a saved array.

    Attributes:
        kind: The type of the entry that held the array: a tuple for a Tensor, a list for a value
            that a `Function` computed, the type of the array for any other argument.
        form: Dtype, shape and device of the array.
        token: The object that `pack` returned.
        unpack: The function that returns the array of a token.
    """

    __slots__ = ("form", "kind", "token", "unpack")

    def __init__(self, kind: type, form: _Form, token: Any, unpack: Callable[[Any], Array]) -> None:
        self.kind = kind
        self.form = form
        self.token = token
        self.unpack = unpack


def _packed(entry: Any, pack: Callable[[Array], Any], unpack: Callable[[Any], Array]) -> Any:
    kind = type(entry)
    array = entry[0].array if kind is tuple else entry[0] if kind is list else entry
    if not is_array(array):
        return entry
    form = _form(array)
    token = pack(array)
    return entry if token is array else Packed(kind, form, token, unpack)


def _form(array: Array) -> _Form:
    return array.dtype, array.shape, device_of(array)


def _words(form: _Form) -> str:
    dtype, shape, device = form
    return f"{dtype} of shape {shape} on {device}"


def _is_leaf(edge: Edge | None) -> bool:
    return edge is not None and isinstance(edge[0], AccumulateGrad)


def refuse_changed(value: Value, version: int, operation: str, what: str) -> NoReturn:
    """Raises an error: `what`, which `operation` saved at `version`, was changed in place.

    Raises:
        AutogradError: Always.
    """
    raise AutogradError(
        f"{what} of shape {value.array.shape} that {operation!r} saved for its gradient "
        f"was changed in place since (version {value.version}, saved at {version}); "
        "write t = t + x instead of t += x, or assign t.data"
    )


def _conjugate(gradient: Any) -> Any:
    if type(gradient) is tuple:
        return tuple([None if g is None else np.conjugate(g) for g in gradient])
    return np.conjugate(gradient)
