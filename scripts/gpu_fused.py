"""Times each fused kernel beside CuPy's functions call by call, and beside torch where it is installed.

A kernel has a row for each direction and dtype. The sizes are those of a small transformer.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from telegrad import kernels, optim, tensor

__all__ = ["FusedCase", "fused_cases", "torch_or_none"]

SHAPE = (4096, 1024)  # tokens of a batch, width of the model
DTYPES = ("float32", "float16")
Run = Callable[[], object]


@dataclass(frozen=True)
class FusedCase:
    """One row of the table.

    Attributes:
        what: The kernel and its direction.
        size: Shape and dtype.
        bytes: What must be moved at the least.
        fused: Runs telegrad's kernel.
        composed: Runs the same by CuPy's functions; None where this machine lacks one.
        torch: Runs the same by torch's eager kernel; None without torch.
    """

    what: str
    size: str
    bytes: int
    fused: Run
    composed: Run | None = None
    torch: Run | None = None


def torch_or_none() -> Any:
    """Returns torch if it is installed and finds the GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


def fused_cases(xp: Any, torch: Any = None, shape: tuple[int, int] = SHAPE) -> Iterator[FusedCase]:
    """Returns the rows on arrays of `xp`, CuPy.

    They come one by one, so that the arrays of one row are freed before those of the next are made.
    """
    for dtype in DTYPES:
        for make in (gelu_cases, layer_norm_cases):
            yield from make(xp, torch, shape, dtype)
    yield from step_cases(xp, torch, shape[1])


def _arrays(xp: Any, torch: Any, dtype: str, *shapes: tuple[int, ...]) -> tuple[Any, Any]:
    """Returns arrays of random numbers, and torch's tensors of the same memory."""
    rng = np.random.default_rng(0)
    made = [xp.asarray(rng.normal(size=shape).astype(dtype)) for shape in shapes]
    return made, [torch.from_dlpack(x) if torch else None for x in made]


def _size(shape: tuple[int, ...], dtype: str) -> str:
    return f"{' x '.join(map(str, shape))} {dtype}"


def gelu_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """GELU forward and backward, of both forms."""
    (x, g), (tx, tg) = _arrays(xp, torch, dtype, shape, shape)
    size, moved = _size(shape, dtype), x.nbytes
    has_erf = importlib.util.find_spec("cupyx") is not None
    erf = kernels.special_function("erf")

    def phi() -> Any:
        return 0.5 * (1 + erf(x * np.sqrt(0.5).astype(dtype)))

    def inside() -> Any:
        return xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x))

    def tanh_slope() -> Any:
        t = inside()
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608 * (1 + 0.134145 * x * x)

    composed: dict[str, tuple[Run | None, Run | None]] = {
        "none": (
            lambda: x * phi(),
            lambda: g * (phi() + x * xp.exp(-0.5 * x * x) * 0.3989422804),
        ),
        "tanh": (lambda: 0.5 * x * (1 + inside()), lambda: g * tanh_slope()),
    }
    if not has_erf:
        composed["none"] = (None, None)
    for form, (forward, backward) in composed.items():
        name = "gelu" if form == "none" else "gelu tanh"

        def ours(form: str = form) -> object:
            return kernels.gelu(x, approximate=form)

        def our_slope(form: str = form) -> object:
            return kernels.gelu_slope(x, g, approximate=form)

        def theirs(form: str = form) -> object:
            return torch.nn.functional.gelu(tx, approximate=form)

        def their_slope(form: str = form) -> object:
            return torch.ops.aten.gelu_backward(tg, tx, approximate=form)

        yield FusedCase(name, size, 2 * moved, ours, forward, theirs if torch else None)
        yield FusedCase(
            f"{name}, back", size, 3 * moved, our_slope, backward, their_slope if torch else None
        )


def layer_norm_cases(
    xp: Any, torch: Any, shape: tuple[int, int], dtype: str
) -> Iterator[FusedCase]:
    """Layer norm with weight and bias, forward and backward."""
    width = shape[1]
    arrays, (tx, tg, tw, tb) = _arrays(xp, torch, dtype, shape, shape, (width,), (width,))
    x, g, weight, bias = arrays
    size, moved = _size(shape, dtype), x.nbytes
    kept = kernels.normalize(x, weight, bias)

    def composed() -> object:
        wide = x.astype(np.float32, copy=False)
        centre = wide - wide.mean(-1, keepdims=True)
        scale = 1 / xp.sqrt((centre * centre).mean(-1, keepdims=True) + 1e-5)
        return (centre * scale * weight + bias).astype(x.dtype, copy=False)

    def composed_back() -> object:
        up = g * weight
        along = (up * kept.standard).mean(-1, keepdims=True)
        of_x = (up - up.mean(-1, keepdims=True) - kept.standard * along) * kept.scale
        return of_x, (g * kept.standard).sum(0), g.sum(0)

    def ours_back() -> object:
        of_x = kernels.normalize_input(g, kept.standard, kept.scale, weight)
        return of_x, kernels.normalize_parameters(g, kept.standard)

    if torch:
        aten, form = torch.ops.aten, [width]
        _, mean, scale = aten.native_layer_norm(tx, form, tw, tb, 1e-5)

    def theirs_back() -> object:
        every = [True, True, True]
        return aten.native_layer_norm_backward(tg, tx, form, mean, scale, tw, tb, every)

    yield FusedCase(
        "layer norm",
        size,
        2 * moved,
        lambda: kernels.normalize(x, weight, bias),
        composed,
        (lambda: torch.nn.functional.layer_norm(tx, [width], tw, tb)) if torch else None,
    )
    yield FusedCase(
        "layer norm, back",
        size,
        3 * moved,
        ours_back,
        composed_back,
        theirs_back if torch else None,
    )


LAYERS = 4  # of a transformer
# By name: class, options, and arrays that are read or written by a step.
STEPS: dict[str, tuple[type[optim.Optimizer], dict[str, Any], int]] = {
    "SGD": (optim.SGD, {"lr": 1e-3, "momentum": 0.9}, 5),
    "Adam": (optim.Adam, {"lr": 1e-3}, 7),
    "AdamW": (optim.AdamW, {"lr": 1e-3}, 7),
    "Adagrad": (optim.Adagrad, {"lr": 1e-3}, 5),
    "RMSprop": (optim.RMSprop, {"lr": 1e-3}, 5),
}


def parameter_shapes(width: int) -> list[tuple[int, ...]]:
    """The shapes of the parameters of a small transformer."""
    tables = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    vectors = [(3 * width,), (4 * width,), *[(width,)] * 6]
    return [*tables, *vectors] * LAYERS


def step_cases(xp: Any, torch: Any, width: int) -> Iterator[FusedCase]:
    """Optimizer steps of all parameters; torch's fused ones, or those by lists where it has none."""
    shapes = parameter_shapes(width)
    arrays, tensors = _arrays(xp, torch, "float32", *shapes)
    size, moved = f"{len(shapes)} parameters float32", sum(x.nbytes for x in arrays)
    for name, (kind, options, passes) in STEPS.items():
        composed = type("Composed", (kind,), {"update": kind.update})  # has no kernel

        def ours(kind: Any = kind, options: dict[str, Any] = options) -> Run:
            parameters = [tensor(x, requires_grad=True) for x in arrays]
            for p, x in zip(parameters, arrays, strict=True):
                p.grad = tensor(x)
            return kind(parameters, **options).step  # type: ignore[no-any-return]

        def theirs(name: str = name, options: dict[str, Any] = options) -> Run:
            parameters = [x.clone().requires_grad_() for x in tensors]
            for p, x in zip(parameters, tensors, strict=True):
                p.grad = x.clone()
            form = "foreach" if name in ("Adagrad", "RMSprop") else "fused"
            kind = getattr(torch.optim, name)
            return kind(parameters, **options, **{form: True}).step  # type: ignore[no-any-return]

        yield FusedCase(
            f"{name} step",
            size,
            passes * moved,
            ours(),
            ours(composed),
            theirs() if torch else None,
        )
