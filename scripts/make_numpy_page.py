"""Writes docs/numpy.md: every public function of NumPy, and how far it can be differentiated.

    scripts/make_numpy_page.py [--check]

The page is of one version of NumPy, which it names.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "numpy.md"

sys.path.insert(0, str(ROOT))

from telegrad.autograd import extend  # noqa: E402
from telegrad.autograd.extend import Tier  # noqa: E402

MODULES: tuple[tuple[str, ModuleType], ...] = (
    ("numpy", np),
    ("numpy.linalg", np.linalg),
    ("numpy.fft", np.fft),
)

# Functions without an array argument that could have a gradient: they make arrays of numbers, read
# files, or return facts on types, indices, dates and settings.
APART = """
arange array asanyarray asarray asarray_chkfinite ascontiguousarray asfortranarray asmatrix
bartlett base_repr binary_repr blackman bmat broadcast_shapes busday_count busday_offset
datetime_as_string datetime_data diag_indices diag_indices_from einsum_path empty eye fftfreq
format_float_positional format_float_scientific from_dlpack frombuffer fromfile fromfunction
fromiter frompyfunc fromregex fromstring full genfromtxt geomspace get_include get_printoptions
getbufsize geterr geterrcall hamming hanning identity indices info is_busday isdtype isfortran
isscalar issubdtype iterable kaiser linspace load loadtxt logspace mask_indices mintypecode
nested_iters ones packbits printoptions promote_types ravel_multi_index require rfftfreq save
savetxt savez savez_compressed set_printoptions setbufsize seterr seterrcall show_config
show_runtime test tri tril_indices tril_indices_from triu_indices triu_indices_from typename
unpackbits unravel_index zeros
"""

HEAD = """# NumPy's functions and their gradients

<!-- Written by scripts/make_numpy_page.py: change that, and the tables of telegrad/autograd/ops. -->

This page lists every public function of NumPy {version}, of `numpy.linalg` and of `numpy.fft`, and
tells how far each can be differentiated. `telegrad.numpy.f(...)` and `numpy.f(...)` do the same if
an argument is a Tensor. A type checker knows that of the first alone (`install.md`).

| tier | functions | meaning |
|---|---|---|
{counts}

With Tensors, an option that a rule does not know (`out=`, and `where=` of an elementwise function)
raises `TypeError`. At a kink or a tie the gradient is one-sided or shared: equal items share that of
`max` equally, `abs` and `sign` have 0 at 0, `std` has 0 where it is 0, `hypot` and `arctan2` have 0
at the origin. An extremum that is NaN has gradient 0, because comparisons with NaN are false. Among
equal items, `sort`, `median`, `quantile` and similar functions give the gradient to the items that
NumPy's order selects, `unique` and the other set functions to the first. A quantile has a gradient
with respect to `q` for `method="linear"`. If the quantile is an item, it is the gradient of the
piece that begins there.

A function that returns a view in NumPy returns one here, including the parts of `split`. Functions
that write into their first argument (`copyto` `fill_diagonal` `place` `put` `put_along_axis`
`putmask`, `at` of ufuncs) refuse a Tensor there: assign to a part, `t[index] = value`.

Linear algebra: the gradient of `cholesky` is symmetric (Hermitian), as PyTorch's is. `det` has its
first and second derivatives at singular matrices too; `inv`, `solve` and `slogdet` have none there
and raise `LinAlgError`. A norm has gradient 0 at 0. For the orders that pick one item or singular
value, equally large ones share the gradient; order 0 is constant. `einsum` contracts two operands at
a time, in the order of `np.einsum_path`, for any `optimize`. `cross` takes vectors of three items.

Decompositions: the gradient of a Hermitian matrix (`eigh`, `eigvalsh`, `hermitian=True`) is
Hermitian, for either triangle that is read. NumPy chooses some results among several valid ones.
Such a choice has no gradient, so a loss should not depend on it:

| free choice | losses that do not depend on it |
|---|---|
| the sign of an eigenvector or singular vector; for complex numbers its phase | `v @ v.conj().T`, `abs(v)`, `v.conj() @ a @ v`; for `svd`, products in which `u` and `vh` occur together |
| the vectors that only complete a basis (`full_matrices=True`, `mode="complete"`) | the projection on all of them |
| the vectors of equal eigenvalues or singular values | the values alone |

A loss that depends on a sign gets the gradient for the given sign. A loss that depends on a phase,
or on the vectors that complete a basis, gets the gradient for the choice that rotates least. Vectors
of equal values have no derivative: a loss that depends on them raises `AutogradError`. The vectors
of singular values 0, of an oblong or complex matrix, count as such vectors. Between values that
almost agree the gradient is correct, but large.

The values alone always have a gradient. The gradient of each of several equal values is that for
the computed vectors, and that of `svdvals` is one-sided at 0. `qr` of a matrix without full rank
raises `LinAlgError`. Gradients grow without bound near such a matrix, and where the vectors of `eig`
span less than the whole space. `pinv` and `lstsq` have the gradient for changes that keep the rank.

`fft` and related functions take every length and `norm`, and an axis twice. `interp` has gradients
for `x`, `xp`, `fp`, `left` and `right`; at a knot it has the gradient of the piece that begins there.
`pad` takes all modes except functions. `angle` and `sign` have gradient 0 at 0.

Complex numbers: the gradient of a real loss with respect to `z = x + iy` is `dL/dx + i dL/dy`, the
direction in which the loss rises most. That is PyTorch's convention; JAX's is its conjugate. A
function whose rule holds for real numbers only refuses complex ones that need a gradient.

How to add a function: `extend.md`.
"""

HOLDS = {
    Tier.SECOND_ORDER: "first and second derivatives, checked against finite differences",
    Tier.FIRST_ORDER: "first derivatives, checked against finite differences",
    Tier.CONSTANT: "the derivative is 0 wherever it exists: computed, never recorded",
    Tier.NONE: "no rule: raises `AutogradError` if an argument needs a gradient, else computes",
    None: "makes arrays, reads files, or returns facts on types, indices and settings: NumPy's own",
}
TITLES = {
    Tier.SECOND_ORDER: "Tier 1",
    Tier.FIRST_ORDER: "Tier 2",
    Tier.CONSTANT: "Constant",
    Tier.NONE: "Tier 3",
    None: "Apart",
}


def functions() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Yields module, name and function of each public function."""
    for module_name, module in MODULES:
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if callable(value) and not isinstance(value, type):
                yield module_name, name, value


def tier(name: str, function: Callable[..., Any]) -> Tier | None:
    """Returns the tier, None for functions that stand apart."""
    found = extend.tier_of(function)
    return None if found is Tier.NONE and name in APART.split() else found


def page() -> str:
    """Returns the page."""
    found: dict[Tier | None, dict[str, list[str]]] = {key: {} for key in HOLDS}
    for module, name, function in functions():
        found[tier(name, function)].setdefault(module, []).append(name)
    counts = "\n".join(
        f"| {TITLES[key].lower()} | {sum(map(len, modules.values()))} | {HOLDS[key]} |"
        for key, modules in found.items()
    )
    version = ".".join(np.__version__.split(".")[:2])
    text = HEAD.format(version=version, counts=counts)
    for key, modules in found.items():
        text += f"\n## {TITLES[key]}\n"
        for module, names in modules.items():
            listed = textwrap.fill(" ".join(f"`{name}`" for name in names), 100)
            text += f"\n{module}:\n{listed}\n"
    return text


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() == page():
        return 0
    sys.stderr.write("docs/numpy.md is not current: run scripts/make_numpy_page.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
