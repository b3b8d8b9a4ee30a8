"""`Module`: an object that finds its parameters, buffers and inner modules by attribute name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, cast, final

import numpy as np

from telegrad.arrays import as_array, device_name, device_of, is_floating, namespace, to_device
from telegrad.autograd import (
    Function,
    FunctionContext,
    HookList,
    RemovableHandle,
    Tensor,
    current_generator,
    is_grad_enabled,
    is_row_sparse,
)
from telegrad.autograd.seams import steady
from telegrad.types import Array, DTypeLike, Shape

# -- hooks before and after a module's `forward`, and after its backward -------------------------


@final
class ModuleHooks:
    """The hooks of one module.

    Attributes:
        before: The hooks to call as `hook(module, args)`.
        after: The hooks to call as `hook(module, args, output)`.
        backward: The hooks to call as `hook(module, grad_input, grad_output)`.
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
        """Calls `forward` with the hooks around it, and returns the output."""
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
    """Two nodes around one call; gradients pass the one at its outputs, then that at its inputs."""

    def __init__(self, module: Any, hooks: HookList[Callable[..., Any]]) -> None:
        self._module = module
        self._hooks = hooks
        self._has_inputs = False
        self._outputs: tuple[Any, ...] = ()

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._has_inputs = any(isinstance(x, Tensor) and x.requires_grad for x in args)
        if not self._has_inputs:
            return args
        return _through(self.at_inputs, args)

    def leave(self, output: Any) -> Any:
        if isinstance(output, tuple):
            return _through(self.at_outputs, output)
        return _through(self.at_outputs, (output,))[0]

    def at_outputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        """Stores the gradients; if no input needs a gradient, calls the hooks at once."""
        self._outputs = gradients
        if not self._has_inputs:
            self.at_inputs((None,))
        return gradients

    def at_inputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        """Calls the hooks, and returns the gradients of the arguments that they leave."""
        found = tuple(_wrapped(g) for g in gradients)
        outputs = tuple(_wrapped(g) for g in self._outputs)
        for hook in self._hooks:
            given = hook(self._module, found, outputs)
            if given is not None:
                found = given if isinstance(given, tuple) else (given,)
        return found


def _through(seen: Callable[[Any], Any], values: tuple[Any, ...]) -> tuple[Any, ...]:
    tensors = [i for i, x in enumerate(values) if isinstance(x, Tensor)]
    if not tensors:
        return values
    passed = list(values)
    made = _Pass.apply(seen, tuple(tensors), len(values), *[values[i] for i in tensors])
    for i, x in zip(tensors, made, strict=True):
        passed[i] = x
    return tuple(passed)


def _wrapped(gradient: Any) -> Any:
    return gradient if gradient is None or isinstance(gradient, Tensor) else Tensor(gradient)


@final
class _Pass(Function):
    """Passes values on, and their gradients through `seen`, with None for what is no Tensor."""

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        ctx.seen, ctx.places, ctx.count, *values = args  # type: ignore[attr-defined]
        return tuple(values)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        places = ctx.places  # type: ignore[attr-defined]
        whole = [None] * ctx.count  # type: ignore[attr-defined]
        for i, g in zip(places, gradients, strict=True):
            whole[i] = g
        found = ctx.seen(tuple(whole))  # type: ignore[attr-defined]
        return (None, None, None, *[found[i] for i in places])


# -- `Parameter` ---------------------------------------------------------------------------------


class Parameter(Tensor):
    """A leaf that a module owns and an optimizer steps.

    Assigned to an attribute of a `Module`, it is found by `parameters()`.

    Args:
        data: An array, whose memory is shared, or anything that NumPy makes an array of.
        requires_grad: False for a parameter that is not trained.

    >>> import numpy as np
    >>> Parameter(np.zeros(2)).requires_grad
    True
    """

    __slots__ = ()

    def __init__(self, data: object, *, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad=requires_grad)

    def __repr__(self) -> str:
        return f"Parameter({super().__repr__()})"


def drawn(
    rng: np.random.Generator | None, bound: float, shape: Shape, dtype: DTypeLike
) -> Parameter:
    """Returns a parameter with items drawn evenly from -bound to bound.

    Args:
        rng: Draws the items; None for the generator that `manual_seed` seeds.
        bound: The bound.
        shape: The shape of the parameter.
        dtype: Its dtype, of floating-point numbers.
    """
    check_floating(dtype)
    generator = current_generator() if rng is None else rng
    return Parameter(generator.uniform(-bound, bound, shape).astype(dtype))


def check_floating(dtype: DTypeLike) -> None:
    """Raises ValueError if parameters cannot have a dtype."""
    if not is_floating(dtype):
        raise ValueError(f"parameters are floating-point, not {np.dtype(dtype)}")


# -- `Module` ------------------------------------------------------------------------------------


class IncompatibleKeys(NamedTuple):
    """The names that a module and a state that it has loaded do not share.

    Attributes:
        missing_keys: The names of the module that the state lacks.
        unexpected_keys: The names of the state that the module lacks.

    Example:
        >>> import numpy as np
        >>> from telegrad import nn
        >>> layer = nn.Linear(2, 1)
        >>> layer.load_state_dict({"weight": np.ones((1, 2)), "scale": 1.0}, strict=False)
        IncompatibleKeys(missing_keys=['bias'], unexpected_keys=['scale'])
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


if TYPE_CHECKING:
    F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)

    class _HasForward(Protocol[F_co]):
        @property
        def forward(self) -> F_co: ...

    class CallOfForward:
        """The type of `Module.__call__`: that of the `forward` of the module."""

        def __get__(self, module: _HasForward[F_co], owner: object) -> F_co: ...


def _as_forward(call: Callable[..., Any]) -> CallOfForward:
    return cast("CallOfForward", call)


class Module:
    """The base of everything with parameters; subclasses write `__init__` and `forward`.

    A `Parameter` or `Module` assigned to an attribute is found by `parameters()` and
    `state_dict()` under that attribute's name. Other tensors are not; see `register_buffer`.

    Attributes:
        training: True after `train()`, False after `eval()`; True at first.

    >>> import numpy as np
    >>> class Scale(Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.factor = Parameter(np.array(3.0))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> model = Scale()
    >>> model(np.array([1.0, 2.0])).data.tolist(), [name for name, _ in model.named_parameters()]
    ([3.0, 6.0], ['factor'])
    """

    training: bool
    _parameters: dict[str, Parameter]
    _modules: dict[str, Module]
    _buffers: dict[str, Tensor]
    _not_saved: set[str]
    _hooks: ModuleHooks | None = None
    _shown: ClassVar[str] = ""  # the attributes in the repr, as a format: "{p}, dim={dim}"
    _usual: ClassVar[Mapping[str, Any]] = {}  # attributes that it has if they differ from these

    def __init__(self) -> None:
        own = self.__dict__
        own["training"] = True
        own["_parameters"] = {}
        own["_modules"] = {}
        own["_buffers"] = {}
        own["_not_saved"] = set()

    def __setattr__(self, name: str, value: object) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__}.__init__ must call super().__init__() before it assigns "
                f"{name!r}"
            )
        buffer, saved = name in self._buffers, name not in self._not_saved
        if value is not None and not isinstance(value, (Parameter, Module)):
            self._refuse_to_lose(name, value)
        self._forget(name)
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        elif buffer and isinstance(value, Tensor):
            self._buffers[name] = value
            if not saved:
                self._not_saved.add(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._forget(name)
        object.__delattr__(self, name)

    def _refuse_to_lose(self, name: str, value: object) -> None:
        kind = type(value).__name__
        if name in self._parameters:
            raise TypeError(
                f"{name!r} is a parameter and cannot become a {kind}; assign a Parameter or None, "
                f"or its array to {name}.data"
            )
        if name in self._buffers and not isinstance(value, Tensor):
            raise TypeError(f"{name!r} is a buffer and cannot become a {kind}; assign a Tensor")

    def _forget(self, name: str) -> None:
        for table in (self._parameters, self._modules, self._buffers):
            table.pop(name, None)
        self._not_saved.discard(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the output; subclasses write this method, users call the module itself.

        Raises:
            NotImplementedError: The subclass has not written it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    @_as_forward
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns `forward(*args, **kwargs)`; the hooks run before and after it."""
        if self._hooks is None:
            return self.forward(*args, **kwargs)
        return self._hooks.call(self, self.forward, args, kwargs)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, args)` before each `forward`, with the positional arguments.

        If the hook returns something else than None, that replaces the arguments: a tuple, or the
        only argument.
        """
        return self._make_hooks().before.add(hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, args, output)` after each `forward`.

        If the hook returns something else than None, that replaces the output.
        """
        return self._make_hooks().after.add(hook)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(module, grad_input, grad_output)` after a backward through the module.

        Both are tuples: one gradient per positional argument of `forward`, and one per output. A
        gradient is None for a value that is not a Tensor or gets none. If the hook returns
        something else than None, that replaces `grad_input`. It applies to calls that start after
        this one, while gradients are recorded.
        """
        return self._make_hooks().backward.add(hook)

    def _make_hooks(self) -> ModuleHooks:
        if self._hooks is None:
            self.__dict__["_hooks"] = ModuleHooks()
        assert self._hooks is not None
        return self._hooks

    def register_buffer(self, name: str, value: Tensor, *, persistent: bool = True) -> None:
        """Makes `value` an attribute that moves with the module and is not trained.

        Args:
            name: The name of the attribute.
            value: Its value; another Tensor may be assigned later.
            persistent: True to make it part of `state_dict()`.

        Raises:
            TypeError: `value` is not a Tensor.
        """
        if not isinstance(value, Tensor):
            raise TypeError(f"buffer {name!r} must be a Tensor, not {type(value).__name__}")
        self._forget(name)
        self._buffers[name] = value
        setattr(self, name, value)
        if not persistent:
            self._not_saved.add(name)

    def add_module(self, name: str, module: Module) -> None:
        """Makes `module` a part of this one; `name` may be one that no attribute can have.

        Raises:
            TypeError: `module` is not a Module.
        """
        if not isinstance(module, Module):
            raise TypeError(f"{name!r} must be a Module, not {type(module).__name__}")
        self._forget(name)
        self._modules[name] = module
        object.__setattr__(self, name, module)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yields the modules directly inside this one."""
        yield from self._modules.items()

    def children(self) -> Iterator[Module]:
        """Yields the modules directly inside this one."""
        for _, module in self.named_children():
            yield module

    def apply(self, function: Callable[[Module], object]) -> Self:
        """Calls `function` once with this module and each one inside, and returns this module."""
        for module in tuple(self.modules()):
            function(module)
        return self

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yields this module and all inside it, each once, with dotted names."""
        yield from self._walk(prefix, set())

    def _walk(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, module in self._modules.items():
            yield from module._walk(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        """Yields this module and all inside it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yields the parameters of this module and all inside it, each once, by dotted name."""
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, parameter in module._parameters.items():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{prefix}.{name}" if prefix else name, parameter

    def parameters(self) -> Iterator[Parameter]:
        """Yields the parameters of this module and all inside it, each once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the buffers of this module and all inside it, by dotted name."""
        for prefix, module in self.named_modules():
            for name, value in module._buffers.items():
                yield f"{prefix}.{name}" if prefix else name, value

    def buffers(self) -> Iterator[Tensor]:
        """Yields the buffers of this module and all inside it."""
        for _, value in self.named_buffers():
            yield value

    def state_dict(self) -> dict[str, Array]:
        """Returns copies of the arrays of all parameters and persistent buffers by dotted name.

        A shared parameter is there under each of its names, as in PyTorch.
        """
        state = {name: _copied(x) for name, x in self._named_state()}
        for prefix, module in self.named_modules():
            for name, array in module._state_elsewhere().items():
                state[_dotted(prefix, name)] = array
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> IncompatibleKeys:
        """Replaces the arrays of parameters and buffers by copies of those in `state`.

        Dtypes and devices of the module do not change. All checks come before the first change.

        Args:
            state: Arrays or Tensors by dotted name.
            strict: True to require the same names on both sides.

        Returns:
            The names that are on one side alone; none if strict.

        Raises:
            TypeError: `state` is no mapping, or an entry is no array of numbers.
            ValueError: Names (if strict) or shapes differ; the message lists them.
        """
        shapes = self.state_shapes()
        given = fit_state(type(self).__name__, shapes, state, strict=strict)
        missing = [name for name in shapes if name not in state]
        unexpected = [name for name in state if name not in shapes]
        for prefix, module in self.named_modules():
            names = {name: _dotted(prefix, name) for name in module._shapes_elsewhere()}
            part = {name: given.pop(dotted) for name, dotted in names.items() if dotted in given}
            if part:
                module._load_elsewhere(part)
        own = dict(self._named_state())
        for name, array in given.items():
            target = own[name]
            copy = to_device(array, device_of(target.data))
            target.data = namespace(copy).array(copy, dtype=target.dtype, copy=True)
        return IncompatibleKeys(missing, unexpected)

    def state_shapes(self) -> dict[str, Shape]:
        """Returns the shapes of the arrays of `state_dict()`, in its order."""
        shapes = {name: x.shape for name, x in self._named_state()}
        for prefix, module in self.named_modules():
            for name, shape in module._shapes_elsewhere().items():
                shapes[_dotted(prefix, name)] = shape
        return shapes

    def _named_state(
        self, prefix: str = "", above: tuple[Module, ...] = ()
    ) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._parameters.items():
            yield _dotted(prefix, name), parameter
        for name, value in self._buffers.items():
            if name not in self._not_saved:
                yield _dotted(prefix, name), value
        for name, module in self._modules.items():
            if module is not self and module not in above:
                yield from module._named_state(_dotted(prefix, name), (*above, self))

    def to(self, device: str) -> Self:
        """Moves the arrays of all parameters and buffers, and of their `grad`, to `device`.

        Parameters stay the same objects. Move a module before an optimizer steps it, because the
        optimizer's state stays where it is.

        Args:
            device: `cpu`, `cuda` or `cuda:<number>`.

        Returns:
            This module.

        Raises:
            ValueError: `device` is not a device name.
            RuntimeError: `device` is a GPU and CuPy is not installed.
        """
        for held in (*self.parameters(), *self.buffers()):
            gradient: Any = held.grad
            if is_row_sparse(gradient):
                held.grad, gradient = gradient.to(device), None  # type: ignore[assignment]
            for x in (held, gradient):
                if x is not None and x.device != device_name(device):
                    x.data = to_device(x.data, device)
        return self

    def train(self, mode: bool = True) -> Self:
        """Sets `training` of this module and of all modules inside, and returns this module."""
        for module in self.modules():
            module._set_training(mode)
        return self

    def eval(self) -> Self:
        """Returns `train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Sets `requires_grad` of every parameter, and returns this module."""
        for module in self.modules():
            module._set_requires_grad(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Sets the `grad` of every parameter to None."""
        for parameter in self.parameters():
            parameter.grad = None

    # `parallel.RemoteModule` overrides these methods, because its parameters are in another
    # process.

    def _set_training(self, mode: bool) -> None:
        self.__dict__["training"] = mode

    def _set_requires_grad(self, requires_grad: bool) -> None:
        for parameter in self._parameters.values():
            parameter.requires_grad_(requires_grad)

    def _state_elsewhere(self) -> dict[str, Array]:
        return {}

    def _shapes_elsewhere(self) -> dict[str, Shape]:
        return {}

    def _load_elsewhere(self, state: dict[str, Array]) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no state elsewhere")

    def __repr__(self) -> str:
        inside = [f"({name}): {module!r}" for name, module in self.named_children()]
        if self._shown or not inside:
            shown = self._shown.format_map(vars(self))
            for name, usual in self._usual.items():
                own = getattr(self, name)
                if isinstance(usual, bool):  # a parameter may be there or not
                    own = own is not None and own is not False
                shown += f", {name}={own!r}" if own != usual else ""
            return f"{type(self).__name__}({shown})"
        lines = "\n".join(inside).replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {lines}\n)"


class OfFunction(Module):
    """The base of modules that call one function with the options that they were made with.

    The options are attributes, and each call reads them.
    """

    _function: ClassVar[Callable[..., Tensor]]
    _options: tuple[str, ...] = ()

    def _keep(self, **options: Any) -> None:
        self._options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, x: Any) -> Tensor:
        """Returns the function of `x`, with the options."""
        return self._function(x, **{name: getattr(self, name) for name in self._options})


def _copied(x: Tensor) -> Array:
    with steady(x):  # else an optimizer in another thread could write rows meanwhile
        copy: Array = namespace(x.data).array(x.data)
    return copy


def _dotted(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def fit_state(
    owner: str, shapes: Mapping[str, Shape], state: Mapping[str, Any], *, strict: bool = True
) -> dict[str, Array]:
    """For the library: returns the arrays of a state that somebody loads.

    Args:
        owner: The name of what loads it, for messages.
        shapes: The shapes that are needed, by dotted name.
        state: Arrays or Tensors by dotted name.
        strict: True to require the same names on both sides.

    Raises:
        TypeError: `state` is no mapping.
        ValueError: Names (if strict) or shapes differ; the message lists them.
    """
    given: object = state
    if not isinstance(given, Mapping):
        raise TypeError(f"a state is a dict of arrays by name, not {given!r}")
    problems = []
    if strict:
        problems += [f"missing {name}" for name in shapes if name not in state]
        problems += [f"unexpected {name}" for name in state if name not in shapes]
    arrays = {name: _array(state[name]) for name in shapes if name in state}
    problems += [
        f"{name} has shape {array.shape}, {shapes[name]} needed"
        for name, array in arrays.items()
        if array.shape != shapes[name]
    ]
    if problems:
        raise ValueError(f"state does not fit {owner}: {'; '.join(problems)}")
    return arrays


def _array(value: object) -> Array:
    return value.data if isinstance(value, Tensor) else as_array(value)
