"""The forms in which a stage is given to a pipeline, and how its module gets to its worker.

A module of the driver's process moves as plain values. Only what it is made of travels: its class
by name, its plain attributes, its parameters and buffers, and the modules inside. A tensor, module
or random generator that is used twice inside is one again at the other end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, final

import numpy as np

from telegrad.autograd import Tensor
from telegrad.nn import Module, Parameter
from telegrad.parallel.remote_module import RemoteModule
from telegrad.rpc import RRef
from telegrad.rpc.seams import current_agent
from telegrad.types import Shape, WorkerInfo

_OWN = frozenset({"_parameters", "_modules", "_buffers", "_not_saved"})
To: TypeAlias = str | int | WorkerInfo | Sequence[str | int | WorkerInfo]
Stage: TypeAlias = (
    tuple[To, Module]
    | tuple[To, Callable[..., Module]]
    | tuple[To, Callable[..., Module], Sequence[Any]]
    | RRef[Any]
    | RemoteModule
)
"""A stage: `(worker, module)`, `(worker, ModuleClass, args)`, an RRef of a module, a RemoteModule.

In place of a worker there may be a list of workers, which share the micro-batches of the stage.
"""

FORMS = "(worker, module), (worker, ModuleClass, args), an RRef of a Module, or a RemoteModule"


def source_of(stage: int, given: object) -> tuple[tuple[WorkerInfo, ...], StageSource]:
    """Returns the workers of a stage, and where its module comes from.

    Raises:
        TypeError: `given` is no form of a stage.
        ValueError: The list of workers is empty, or names one twice.
        UnknownWorkerError: There is no such worker.
    """
    if isinstance(given, RemoteModule):
        given = given.get_module_rref()
    if isinstance(given, RRef):
        return (given.owner(),), StageSource(rref=given)
    if isinstance(given, Module):
        raise TypeError(
            f"stage {stage} is a {type(given).__name__} and no worker is named; write "
            "(worker, module)"
        )
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
        raise TypeError(f"stage {stage} must be {FORMS}, not {given!r}")
    to, module, *rest = given
    workers = _workers(stage, to)
    if isinstance(module, RemoteModule):
        raise TypeError(f"stage {stage} is a RemoteModule, which has its worker: pass it alone")
    if isinstance(module, Module) and not rest:
        return workers, StageSource(moved=MovedModule.of(module))
    if not callable(module) or isinstance(module, Module):
        raise TypeError(f"stage {stage} must be {FORMS}, not {given!r}")
    args = rest[0] if rest else ()
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"the arguments of stage {stage} must be a tuple, not {args!r}")
    return workers, StageSource(module_class=module, args=list(args))


def tied_parameters(stages: Sequence[object]) -> list[list[tuple[int, str]]]:
    """Returns the parameters that have several names in given modules: the stages and the names.

    All names count, as each of them is in the state of its stage.
    """
    found: dict[int, list[tuple[int, str]]] = {}
    for stage, given in enumerate(stages):
        module = given[1] if isinstance(given, (tuple, list)) and len(given) == 2 else None
        if isinstance(module, Module):
            for name, tensor in module._named_state():
                if isinstance(tensor, Parameter):
                    found.setdefault(id(tensor), []).append((stage, name))
    return [places for places in found.values() if len(places) > 1]


def _workers(stage: int, to: object) -> tuple[WorkerInfo, ...]:
    find = current_agent().members.find
    if not isinstance(to, list) and (isinstance(to, WorkerInfo) or not isinstance(to, tuple)):
        return (find(to),)
    workers = tuple(find(each) for each in to)
    if not workers or len(set(workers)) != len(workers):
        raise ValueError(f"stage {stage} needs one worker or several, each once: {list(to)!r}")
    return workers


@final
@dataclass(frozen=True, slots=True)
class StageSource:
    """Where the module of a stage comes from: one of the three.

    Attributes:
        moved: A module that was moved here.
        module_class: A class to make it of, or a function.
        args: The arguments for the class.
        rref: A reference to a module of this worker.
    """

    moved: MovedModule | None = None
    module_class: Any = None
    args: list[Any] = field(default_factory=list)
    rref: RRef[Any] | None = None

    def hollow(self) -> StageSource:
        """Returns the same without the state of the module."""
        return self if self.moved is None else replace(self, moved=self.moved.hollow())

    def module(self, stage: int) -> Module:
        """Returns the module of a stage, at its worker.

        Raises:
            TypeError: It is no Module.
        """
        if self.moved is not None:
            return self.moved.build()
        if self.rref is not None:
            module = self.rref.local_value()
        else:
            try:
                module = self.module_class(*self.args)
            except Exception as error:  # of the user's class
                error.add_note(f"in the making of stage {stage} of a pipeline")
                raise
        if not isinstance(module, Module):
            raise TypeError(f"stage {stage} must be a Module, not a {type(module).__name__}")
        return module


# -- modules that move -----------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class MovedPart:
    """One module of a moved module; numbers are places in the lists of `MovedModule`.

    Attributes:
        module_class: Its class.
        plain: Its attributes that are plain values.
        parameters: The number of the tensor of each parameter; None for one that is None.
        buffers: The number of the tensor of each buffer.
        modules: The number of each module directly inside.
        generators: The number of each random generator.
        not_saved: The buffers that are no part of its state.
    """

    module_class: type[Module]
    plain: dict[str, Any]
    parameters: dict[str, int]
    buffers: dict[str, int]
    modules: dict[str, int]
    generators: dict[str, int]
    not_saved: list[str]


@final
@dataclass(frozen=True, slots=True)
class MovedModule:
    """A module that travels by its state.

    Attributes:
        parts: The module itself, and all modules inside.
        tensors: Their tensors: an array, the shape to which it is broadcast, and True if it needs a
            gradient.
        generators: Their random generators: the name of the bit generator, and its state.
    """

    parts: list[MovedPart] = field(default_factory=list)
    tensors: list[tuple[Any, Shape, bool]] = field(default_factory=list)
    generators: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @staticmethod
    def of(module: Module) -> MovedModule:
        """Returns a module as plain values; its arrays are copied when they are sent.

        Raises:
            TypeError: The module has hooks, or an attribute that is a module or a tensor and no
                part of it.

        >>> from telegrad import nn
        >>> moved = MovedModule.of(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
        >>> [part.module_class.__name__ for part in moved.parts]
        ['Sequential', 'Linear', 'ReLU']
        >>> moved.build()(np.ones((5, 3), np.float32)).shape
        (5, 2)
        """
        moved = MovedModule()
        _Taking(moved).part(module)
        return moved

    def hollow(self) -> MovedModule:
        """Returns the same with zeros as its state: one number for each array, also on the wire."""
        own = {k for part in self.parts for k in part.parameters.values()}
        for part in self.parts:
            own |= {k for name, k in part.buffers.items() if name not in part.not_saved}
        tensors = [
            (np.zeros((), array.dtype) if k in own else array, shape, needed)
            for k, (array, shape, needed) in enumerate(self.tensors)
        ]
        return MovedModule(self.parts, tensors, self.generators)

    def build(self) -> Module:
        """Makes the module; no `__init__` runs.

        Raises:
            TypeError: A class is no Module class.
        """
        for part in self.parts:
            made: object = part.module_class  # as the message says
            if not (isinstance(made, type) and issubclass(made, Module)):
                raise TypeError(f"{made!r} is no Module class: it cannot be a part")
        modules = [object.__new__(part.module_class) for part in self.parts]
        tensors: dict[tuple[int, bool], Tensor] = {}
        generators = [_generator(*each) for each in self.generators]

        def tensor(number: int, kind: Callable[..., Tensor]) -> Tensor:
            known = tensors.get((number, kind is Parameter))
            if known is None:
                array, shape, needed = self.tensors[number]
                known = kind(np.array(np.broadcast_to(array, shape)), requires_grad=needed)
                tensors[number, kind is Parameter] = known
            return known

        for module, part in zip(modules, self.parts, strict=True):
            Module.__init__(module)
            vars(module).update(part.plain)
            for name, number in part.generators.items():
                vars(module)[name] = generators[number]
            for name, number in part.parameters.items():
                setattr(module, name, tensor(number, Parameter))
            for name, number in part.buffers.items():
                module.register_buffer(
                    name, tensor(number, Tensor), persistent=name not in part.not_saved
                )
            for name, number in part.modules.items():
                module.add_module(name, modules[number])
        return modules[0]


@final
class _Taking:
    """The walk through a module that fills a MovedModule; each object is taken once."""

    def __init__(self, moved: MovedModule) -> None:
        self._moved = moved
        self._numbers: dict[int, int] = {}

    def part(self, module: Module) -> int:
        """Returns the number of a module."""
        known = self._numbers.get(id(module))
        if known is not None:
            return known
        number = self._numbers[id(module)] = len(self._moved.parts)
        self._moved.parts.append(None)  # type: ignore[arg-type]  # those inside come after it
        own = vars(module)
        if own.get("_hooks") is not None:
            raise TypeError(
                f"a {type(module).__name__} with hooks cannot be moved to another worker; make it "
                "there, (worker, ModuleClass, args), and register them there"
            )
        held = {*module._parameters, *module._buffers, *module._modules}
        others = {name: x for name, x in own.items() if name not in held | _OWN}
        generators = {n: x for n, x in others.items() if isinstance(x, np.random.Generator)}
        plain = {name: x for name, x in others.items() if name not in generators}
        for name, x in plain.items():
            if isinstance(x, (Module, Tensor)):
                raise TypeError(
                    f"attribute {name!r} of a {type(module).__name__} is a {type(x).__name__} but "
                    "no part of it, so it cannot be moved; register it, or make the module on its "
                    "worker: (worker, ModuleClass, args)"
                )
        self._moved.parts[number] = MovedPart(
            type(module),
            plain,
            {name: self._tensor(x) for name, x in module._parameters.items()},
            {name: self._tensor(x) for name, x in module._buffers.items()},
            {name: self.part(x) for name, x in module._modules.items()},
            {name: self._generator(x) for name, x in generators.items()},
            sorted(module._not_saved),
        )
        return number

    def _tensor(self, tensor: Tensor) -> int:
        return self._number(
            tensor, self._moved.tensors, lambda: (tensor.data, tensor.shape, tensor.requires_grad)
        )

    def _generator(self, generator: np.random.Generator) -> int:
        bits = generator.bit_generator
        return self._number(
            generator, self._moved.generators, lambda: (type(bits).__name__, bits.state)
        )

    def _number(self, taken: object, found: list[Any], moved: Callable[[], Any]) -> int:
        """Returns the place of an object in a list, to which it is added the first time."""
        if id(taken) not in self._numbers:
            self._numbers[id(taken)] = len(found)
            found.append(moved())
        return self._numbers[id(taken)]


def _generator(kind: str, state: Mapping[str, Any]) -> np.random.Generator:
    if kind not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
        raise TypeError(f"{kind!r} is no bit generator of NumPy")
    bits = getattr(np.random, kind)()
    bits.state = state
    return np.random.Generator(bits)
