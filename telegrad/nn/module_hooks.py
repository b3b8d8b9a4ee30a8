"""What users have called before and after a module's `forward`, and after its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from telegrad.autograd import Function, FunctionContext, HookList, Tensor, is_grad_enabled

__all__ = ["ModuleHooks"]


@final
class ModuleHooks:
    """The hooks of one module.

    Attributes:
        before: `hook(module, args)`.
        after: `hook(module, args, output)`.
        backward: `hook(module, grad_input, grad_output)`.
    """

    __slots__ = ("after", "backward", "before")

    def __init__(self) -> None:
        self.before: HookList[Callable[..., Any]] = HookList()
        self.after: HookList[Callable[..., Any]] = HookList()
        self.backward: HookList[Callable[..., Any]] = HookList()

    def call(
        self,
        module: Any,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Returns what `forward` and the hooks around it make of the arguments."""
        for hook in self.before:
            given = hook(module, args)
            if given is not None:
                args = given if isinstance(given, tuple) else (given,)
        watched = len(self.backward) > 0 and is_grad_enabled()
        gate = _Gate(module, self.backward) if watched else None
        if gate is not None:
            args = gate.enter(args)
        output = forward(*args, **kwargs)
        if gate is not None:
            output = gate.leave(output)
        for hook in self.after:
            given = hook(module, args, output)
            if given is not None:
                output = given
        return output


@final
class _Gate:
    """Two nodes around one call: gradients pass the one at its outputs, then that at its inputs."""

    def __init__(self, module: Any, hooks: HookList[Callable[..., Any]]) -> None:
        self._module = module
        self._hooks = hooks
        self._has_inputs = False
        self._outputs: tuple[Any, ...] = ()

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._has_inputs = any(isinstance(x, Tensor) and x.requires_grad for x in args)
        if not self._has_inputs:
            return args
        return _through(_Inputs, self, args)

    def leave(self, output: Any) -> Any:
        if isinstance(output, tuple):
            return _through(_Outputs, self, output)
        return _through(_Outputs, self, (output,))[0]

    def at_outputs(self, gradients: tuple[Any, ...]) -> None:
        """Notes the gradients; without inputs that need one, the hooks are called here."""
        self._outputs = gradients
        if not self._has_inputs:
            self.at_inputs((None,))

    def at_inputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what the hooks make of the gradients of the arguments."""
        found = tuple(_wrapped(g) for g in gradients)
        outputs = tuple(_wrapped(g) for g in self._outputs)
        for hook in self._hooks:
            given = hook(self._module, found, outputs)
            if given is not None:
                found = given if isinstance(given, tuple) else (given,)
        return found


def _through(node: type[Function], gate: _Gate, values: tuple[Any, ...]) -> tuple[Any, ...]:
    tensors = [i for i, x in enumerate(values) if isinstance(x, Tensor)]
    if not tensors:
        return values
    passed = list(values)
    made = node.apply(gate, tuple(tensors), len(values), *[values[i] for i in tensors])
    for i, x in zip(tensors, made, strict=True):
        passed[i] = x
    return tuple(passed)


def _wrapped(gradient: Any) -> Any:
    return gradient if gradient is None or isinstance(gradient, Tensor) else Tensor(gradient)


def _spread(places: tuple[int, ...], count: int, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    """One gradient per value, None for those that are no Tensors."""
    found: list[Any] = [None] * count
    for i, g in zip(places, gradients, strict=True):
        found[i] = g
    return tuple(found)


@final
class _Outputs(Function):
    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        ctx.gate, ctx.places, ctx.count, *values = args  # type: ignore[attr-defined]
        return tuple(values)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        ctx.gate.at_outputs(_spread(ctx.places, ctx.count, gradients))  # type: ignore[attr-defined]
        return (None, None, None, *gradients)


@final
class _Inputs(Function):
    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        ctx.gate, ctx.places, ctx.count, *values = args  # type: ignore[attr-defined]
        return tuple(values)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        places = ctx.places  # type: ignore[attr-defined]
        whole = _spread(places, ctx.count, gradients)  # type: ignore[attr-defined]
        found = ctx.gate.at_inputs(whole)  # type: ignore[attr-defined]
        return (None, None, None, *[found[i] for i in places])
