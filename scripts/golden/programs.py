"""Random straight-line programs, with what torch finds for their gradients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from golden.along_axes import ALONG_AXES
from golden.builder import FUNCTIONS, Builder, UnfitError, dyadic, in_torch, replace
from golden.elementwise import ELEMENTWISE, SPECIAL
from golden.matrices import MATRICES
from golden.shapes import SHAPES

__all__ = ["programs"]

DRAWINGS = ELEMENTWISE | SPECIAL | ALONG_AXES | SHAPES | MATRICES
INPUTS = [
    (),
    (2,),
    (3,),
    (4,),
    (6,),
    (2, 3),
    (3, 2),
    (3, 3),
    (3, 1),
    (1, 4),
    (2, 4),
    (2, 2, 3),
    (2, 3, 2),
]
LEAST_DEPTH, MOST_DEPTH = 3, 12
FIRST_ORDER = {"special.gammaln"}  # torch has the derivative of digamma to nine digits alone
STIR = 1e-12  # a relative change of all inputs ...
STABLE = 2e-11  # ... changes no result by more, relative to its largest entry


def programs(count: int, seed: int) -> list[dict[str, Any]]:
    """Returns programs that together call every function about equally often."""
    rng = np.random.default_rng(seed)
    used: Counter[str] = Counter()
    made: list[dict[str, Any]] = []
    while len(made) < count:
        builder = grown(rng, used)
        entry = None if builder is None else proved(builder, str(len(made)))
        if entry is not None:
            made.append(entry)
            used.update(name for name, *_ in entry["steps"])
    missing = DRAWINGS.keys() - used.keys()
    if missing:
        raise RuntimeError(f"no program calls {sorted(missing)}")
    return made


def grown(rng: np.random.Generator, used: Counter[str]) -> Builder | None:
    """Returns a program of 3 to 12 steps, or None where nothing came of it."""
    shapes = [INPUTS[k] for k in rng.integers(0, len(INPUTS), int(rng.integers(1, 4)))]
    inputs = [dyadic(rng, shape, -2.0, 2.0) for shape in shapes]
    if rng.random() < 0.15:
        inputs[-1] = np.asarray(inputs[-1] + 1j * dyadic(rng, shapes[-1], -2.0, 2.0))
    builder = Builder(rng, inputs)
    names = sorted(DRAWINGS)
    rarity = np.array([1 / (1 + used[name]) ** 2 for name in names])
    depth = int(rng.integers(LEAST_DEPTH, MOST_DEPTH - 2))
    rarest = min(names, key=lambda name: (used[name], rng.random()))
    for turn, drawn in enumerate(rng.choice(names, 40, p=rarity / rarity.sum())):
        lacking = turn % 3 == 0 and all(step[0] != rarest for step in builder.steps)
        name = rarest if lacking else drawn
        before = len(builder.steps)
        try:
            DRAWINGS[name](builder, name)
            builder.need(builder.of(builder.last).dtype.kind in "fc")
            builder.need(len(builder.steps) <= MOST_DEPTH)
        except UnfitError:
            del builder.steps[before:], builder.values[len(inputs) + before :]
        if len(builder.steps) >= depth:
            return builder
    return None


def proved(builder: Builder, name: str) -> dict[str, Any] | None:
    """Returns the program with its numbers, or None where these hang on the last digits."""
    rng = builder.rng
    result = builder.of(builder.last)
    entry: dict[str, Any] = {
        "name": name,
        "inputs": builder.inputs,
        "steps": builder.steps,
        "weights": like(rng, result),
    }
    if rng.random() < 0.6 and all(step[0] not in FIRST_ORDER for step in builder.steps):
        entry["directions"] = [like(rng, each) for each in builder.inputs]
    try:
        found = computed(entry, 0.0)
        stirred = computed(entry, STIR)
    except RuntimeError:  # no second derivative of this in torch
        entry.pop("directions", None)
        found, stirred = computed(entry, 0.0), computed(entry, STIR)
    for key, arrays in found.items():
        largest = max(np.abs(a).max(initial=0.0) for a in arrays)
        if not np.isfinite(largest) or largest > 1e5 or (key != "second" and largest < 1e-3):
            return None
        for a, b in zip(arrays, stirred[key], strict=True):
            if not np.abs(a - b).max(initial=0.0) <= STABLE * max(np.abs(a).max(initial=0.0), 1e-6):
                return None
    return (
        entry | {"result": found["result"][0]} | {k: v for k, v in found.items() if k != "result"}
    )


def like(rng: np.random.Generator, array: Any) -> Any:
    """Returns random weights in the shape and kind of an array."""
    weights = dyadic(rng, array.shape, -1.0, 1.0)
    turned = 1j * dyadic(rng, array.shape, -1.0, 1.0) if array.dtype.kind == "c" else 0.0
    return np.asarray(weights + turned)


def computed(entry: dict[str, Any], stir: float) -> dict[str, list[Any]]:
    """Runs a program in torch: its result, its gradients, and those of the gradients' sum."""
    rng = np.random.default_rng(0)
    inputs = [a * (1 + stir * rng.uniform(-1, 1, a.shape)) for a in entry["inputs"]]
    leaves = [torch.from_numpy(np.asarray(a)).requires_grad_() for a in inputs]
    values: list[Any] = list(leaves)
    for name, args, options, pick in entry["steps"]:
        given, named = replace(in_torch([args, options]), values)
        result = FUNCTIONS[name](*given, **named)
        values.append(result if pick is None else result[pick])
    twice = "directions" in entry
    gradients = torch.autograd.grad(
        values[-1], leaves, torch.from_numpy(entry["weights"]), create_graph=twice,
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    found = {"result": [values[-1]], "gradients": [*gradients]}
    if twice:
        along = [torch.from_numpy(each) for each in entry["directions"]]
        total = sum((g * d.conj()).real.sum() for g, d in zip(gradients, along, strict=True))
        found["second"] = [torch.zeros_like(x) for x in leaves]
        if total.requires_grad:
            again = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
            found["second"] = [*again]
    return {key: [numbers(x) for x in tensors] for key, tensors in found.items()}


def numbers(x: torch.Tensor) -> Any:
    """Returns a tensor's array."""
    return x.detach().resolve_conj().resolve_neg().numpy()
