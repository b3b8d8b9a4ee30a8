"""Writes docs/numpy.md: every public function of NumPy, with how far it can be differentiated.

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

# What takes no array that could have a gradient: it makes arrays of numbers, reads files, or
# tells about types, indices, dates and settings.
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

`telegrad.numpy.f(...)` and `numpy.f(...)` with a Tensor among the arguments do the same. This is
every public function of NumPy {version}, of `numpy.linalg` and of `numpy.fft`:

| tier | functions | what holds |
|---|---|---|
{counts}

An option that a rule does not know (`out=`, and `where=` of an elementwise function) is a
`TypeError` with Tensors. Where a function has a kink or a tie, the gradient is one-sided or shared:
equal items share that of `max` equally, `abs` and `sign` have 0 at 0, `std` has 0 where it is 0,
`hypot` and `arctan2` have 0 at the origin. An extremum that is NaN has gradient 0, as comparisons
with NaN are false. Of equal items, `sort`, `median`, `quantile` and their like give it to those that NumPy's order puts
there, `unique` and the other sets to the first. With respect to `q`, a quantile has one for
`method="linear"`; where it is an item, that of the piece that begins there.

What is a view in NumPy is one here, parts of `split` included. Functions that write into their first
argument (`copyto` `fill_diagonal` `place` `put` `put_along_axis` `putmask`, `at` of ufuncs) refuse a
Tensor there: assign to a part, `t[index] = value`.

Linear algebra: the gradient of `cholesky` is symmetric (Hermitian), as PyTorch's is. `det` has its
first and second derivatives at singular matrices too; `inv`, `solve` and `slogdet` have none there
and raise `LinAlgError`. A norm has gradient 0 at 0; equally large items or singular values share
that of the orders which pick one; order 0 is constant. `einsum` contracts two operands at a time,
in the order of `np.einsum_path`, whatever `optimize` says. `cross` takes vectors of three items.

Decompositions: the gradient of a Hermitian matrix (`eigh`, `eigvalsh`, `hermitian=True`) is
Hermitian, whichever triangle is read. What NumPy chooses among equals has no gradient, so let a
loss not depend on it:

| what is free | a loss that does not depend on it |
|---|---|
| the sign of an eigenvector or singular vector; for complex numbers its phase | `v @ v.conj().T`, `abs(v)`, `v.conj() @ a @ v`; of `svd`, what has `u` and `vh` together |
| the vectors that only complete a basis (`full_matrices=True`, `mode="complete"`) | the projection on all of them |
| the vectors of equal eigenvalues or singular values | the values alone |

A loss that depends on a sign gets the gradient for the sign that it was given; one that depends on
a phase, or on which vectors complete a basis, that of the choice that turns least. Where values are
equal, the vectors have no derivative: a loss that uses vectors raises `AutogradError`, unless it has
nothing to do with the equal ones. So it does with the vectors of singular values 0, of an oblong or
complex matrix. Between values that almost agree the gradient is as large as it says. The values
alone always have one; that of equal values, each by itself, is for the vectors that were found, and
`svdvals` is one-sided at 0. `qr` of a matrix without full rank raises `LinAlgError`; near one, and
where the vectors of `eig` span less than the whole space, gradients grow without bound. `pinv` and
`lstsq` have the gradient for changes that keep the rank.

`fft` and its like take every length and `norm`; an axis named twice has a gradient without `s`.
`interp` has gradients for `x`, `xp`, `fp`, `left` and `right`; at a knot that of the piece that
begins there. `pad` takes all modes but functions. `angle` and `sign` have gradient 0 at 0.

Complex numbers: the gradient of a real loss with respect to `z = x + iy` is `dL/dx + i dL/dy`, the
direction in which the loss rises most. That is PyTorch's convention; JAX's is its conjugate. A
function whose rule is of real numbers refuses complex ones that need a gradient.

How to add a function: `extend.md`.
"""

HOLDS = {
    Tier.SECOND_ORDER: "first and second derivatives, checked against finite differences",
    Tier.FIRST_ORDER: "first derivatives, checked against finite differences",
    Tier.CONSTANT: "the derivative is 0 wherever there is one: computed, never recorded",
    Tier.NONE: "no rule: raises `AutogradError` when an argument needs a gradient, else computes",
    None: "makes arrays, reads files, or tells about types, indices and settings: NumPy's own",
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
    """Returns the tier, None for what stands apart."""
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
