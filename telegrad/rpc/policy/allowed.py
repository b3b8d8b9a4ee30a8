"""The functions that any worker may call on any other: arithmetic on arrays and numbers, no more.

Functions here do no I/O and change nothing beyond their arguments. They call methods of their
arguments, but none has the purpose of calling a function. So there is no `load`, `save`,
`fromfile`, `memmap`, `frompyfunc`, `vectorize`, `apply_along_axis`, `piecewise`,
`set_printoptions`, `seterr`, no `operator.methodcaller`, `call` or `attrgetter`, no `map`,
`filter`, `getattr`, `repr`, `format` or `print`. The `mode` of `np.pad` is called. It is no way
around that rule, because the policy checks a function among the arguments like a function to call.

Some of Python's own functions are missing because small arguments can keep them busy for ever while
they hold the interpreter: `pow`, `round(1, -10**12)`, `math.factorial`, `comb`, `perm`, `prod` and
`lcm`, `sum`, `max(..., key=int)`, `set` of numbers that collide, `operator.mul("x", 10**12)`.
`telegrad.rpc.policy.bounds` refuses such arguments of the others.
Names that a version of NumPy or Python lacks are not found there, like any unknown name.
"""

from __future__ import annotations

_NUMPY = """
    abs absolute acos acosh add all allclose amax amin angle any append arange arccos arccosh
    arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort argwhere around
    array array_equal array_equiv array_split asanyarray asarray asarray_chkfinite
    ascontiguousarray asfortranarray asin asinh astype atan atan2 atanh atleast_1d atleast_2d
    atleast_3d average bartlett base_repr binary_repr bincount bitwise_and bitwise_count
    bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    blackman block broadcast_arrays broadcast_shapes broadcast_to can_cast cbrt ceil choose
    clip column_stack compress concat concatenate conj conjugate convolve copy copysign copyto
    corrcoef correlate cos cosh count_nonzero cov cross cumprod cumsum cumulative_prod
    cumulative_sum deg2rad degrees delete diag diag_indices diag_indices_from diagflat
    diagonal diff digitize divide divmod dot dsplit dstack ediff1d einsum empty empty_like
    equal exp exp2 expand_dims expm1 extract eye fabs fill_diagonal fix flatnonzero flip
    fliplr flipud float_power floor floor_divide fmax fmin fmod frexp frombuffer fromstring
    full full_like gcd geomspace gradient greater greater_equal hamming hanning heaviside
    histogram histogram2d histogram_bin_edges histogramdd hsplit hstack hypot i0 identity imag
    indices inner insert interp intersect1d invert isclose iscomplex iscomplexobj isfinite
    isfortran isin isinf isnan isnat isneginf isposinf isreal isrealobj isscalar ix_ kaiser
    kron lcm ldexp left_shift less less_equal lexsort linspace log log10 log1p log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logspace matmul matrix_transpose
    matvec max maximum mean median meshgrid min minimum mod modf moveaxis multiply nan_to_num
    nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile
    nanprod nanquantile nanstd nansum nanvar ndim negative nextafter nonzero not_equal ones
    ones_like outer packbits pad partition percentile permute_dims place poly polyadd polyder
    polydiv polyfit polyint polymul polysub polyval positive pow power prod promote_types ptp
    put put_along_axis putmask quantile rad2deg radians ravel ravel_multi_index real
    real_if_close reciprocal remainder repeat reshape resize result_type right_shift rint roll
    rollaxis roots rot90 round searchsorted select setdiff1d setxor1d shape sign signbit sin
    sinc sinh size sort sort_complex spacing split sqrt square squeeze stack std subtract sum
    swapaxes take take_along_axis tan tanh tensordot tile trace transpose trapezoid tri tril
    tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from true_divide
    trunc union1d unique unique_all unique_counts unique_inverse unique_values unpackbits
    unravel_index unstack unwrap vander var vdot vecdot vecmat vsplit vstack where zeros
    zeros_like
"""

_SCALAR_TYPES = """
    bool bytes_ clongdouble complex128 complex64 datetime64 float16 float32 float64 int16
    int32 int64 int8 longdouble longlong record str_ timedelta64 uint16 uint32 uint64 uint8
    ulonglong
"""

_LINALG = """
    cholesky cond cross det diagonal eig eigh eigvals eigvalsh inv lstsq matmul matrix_norm
    matrix_power matrix_rank matrix_transpose multi_dot norm outer pinv qr slogdet solve svd
    svdvals tensordot tensorinv tensorsolve trace vecdot vector_norm
"""

_FFT = """
    fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn
    rfft rfft2 rfftfreq rfftn
"""

_OPERATOR = """
    abs add and_ concat contains countOf delitem eq floordiv ge getitem gt iadd iand iconcat
    ifloordiv imatmul index indexOf inv invert ior irshift is_ is_not isub itruediv ixor le lt
    matmul ne neg not_ or_ pos rshift setitem sub truediv truth xor
"""

# Types that are passed as values, mostly as dtypes: np.zeros((3,), dtype=float).
_BUILTIN_TYPES = "bool bytes complex float list str tuple"

_BUILTIN_FUNCTIONS = "abs all any bin chr divmod hex len oct ord"

_MATH = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees dist erf erfc exp
    exp2 expm1 fabs floor fmod frexp fsum gamma gcd hypot isclose isfinite isinf isnan isqrt
    ldexp lgamma log log10 log1p log2 modf nextafter pow radians remainder sin sinh sqrt tan tanh
    trunc ulp
"""

# Packages of telegrad whose public names may be called: they compute and do no I/O.
ALLOWED_PACKAGES = (
    "telegrad.autograd.ops",
    "telegrad.nn",
    "telegrad.numpy",
    "telegrad.optim",
)


def _names(module: str, words: str) -> frozenset[str]:
    return frozenset(f"{module}:{word}" for word in words.split())


ALLOWED_NAMES: frozenset[str] = frozenset().union(
    *(_names(f"{root}", _NUMPY + _SCALAR_TYPES) for root in ("numpy", "cupy")),
    *(_names(f"{root}.linalg", _LINALG) for root in ("numpy", "cupy")),
    *(_names(f"{root}.fft", _FFT) for root in ("numpy", "cupy")),
    _names("operator", _OPERATOR),
    _names("builtins", _BUILTIN_TYPES + " " + _BUILTIN_FUNCTIONS),
    _names("math", _MATH),
)
# Types that every worker may send as a value, but not call by name.
SENT_TYPES: dict[str, type] = {
    "builtins:dict": dict,
    "builtins:frozenset": frozenset,
    "builtins:int": int,
    "builtins:set": set,
}

# Methods are called on an object through an RRef to it. Methods of classes from these modules
# compute on the object alone (there is no pathlib, io or subprocess here), with a few exceptions:
# `tofile` and `dump` write files, `format` reads any attribute of its arguments, `resize` may free
# memory that a view still shows.
_VALUE_MODULES = """
    _collections_abc _queue _random _thread builtins collections cupy datetime decimal fractions
    numpy numpy.random._generator numpy.random.mtrand queue random
    telegrad.autograd.tensor.array_methods telegrad.autograd.tensor.interchange
    telegrad.autograd.tensor.operators telegrad.autograd.tensor.row_sparse
    telegrad.autograd.tensor.tensor threading uuid
"""
_REFUSED_METHODS = "dump dumps format format_map resize setflags tofile"
VALUE_MODULES: frozenset[str] = frozenset(_VALUE_MODULES.split())
REFUSED_METHODS: frozenset[str] = frozenset(_REFUSED_METHODS.split())
