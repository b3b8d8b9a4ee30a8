"""A stand-in for CuPy on machines without a GPU: as strict as CuPy, and no faster than NumPy.

It is no GPU and no emulator of one. It finds what CuPy would refuse or answer with another type:

    np.asarray(a)                  TypeError: no implicit copy to the host
    a + numpy_array                TypeError: no implicit copy to the GPU
    np.add(a, a), np.sum(a)        by way of the protocols, to the function of that name here
    a.sum(), a[0], a.max()         arrays of no axes, never NumPy scalars
    a[mask] = numpy_array          TypeError (CuPy takes some such values; telegrad relies on none)
    a + tensor                     left to Tensor only if `tensor.__array_ufunc__` is None
    np.add(a, tensor)              computed here if the Tensor has a CUDA array interface
    np.mean(a, where=mask)         TypeError: only CuPy's arguments (stand_in_signatures.py)
    np.linalg.eigh(a)              vectors with other signs than LAPACK's

Its `cuda` part has one device, or as many as are asked for, streams and events that know the order
of work (`stand_in_streams`), memory that processes share, and NCCL between threads. Arrays are made
on the thread's current device; views stay where they are.

Functions that CuPy has and telegrad does not use are missing on purpose: a new use is noticed.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.gpu.stand_in.stand_in_devices import Device, cuda, current_device
from tests.gpu.stand_in.stand_in_kernels import RawModule
from tests.gpu.stand_in.stand_in_memory import is_pinned, published, take_memory
from tests.gpu.stand_in.stand_in_signatures import SIGNATURES
from tests.gpu.stand_in.stand_in_streams import Memory, host_waits, wait_for_kernels

__all__ = ["Ufunc", "call_on_host", "ndarray", "stand_in"]

SCALARS = (bool, int, float, complex, np.generic)


class PooledMemory:
    """Memory of CuPy's pool."""


class ndarray:
    """An array of CuPy's kind over host memory."""

    __slots__ = ("__weakref__", "array", "lender", "memory", "number", "owner")
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, host: Any, dtype: Any = float, memptr: Any = None, *, view: bool = False
    ) -> None:
        """Takes an array of the host; with `memptr`, as CuPy, the shape of one that lies there."""
        if memptr is None and not view:
            take_memory()
        self.number: int = current_device()
        self.owner: ndarray | None = None
        self.lender: Any = PooledMemory() if memptr is None else memptr.mem
        self.memory = Memory()
        if memptr is None:
            self.array = np.asarray(host)
        else:
            size = int(np.prod(host)) * np.dtype(dtype).itemsize
            self.array = np.ndarray(host, dtype, memptr.octets(size))
            self.number = memptr.device_id
            self.memory = Memory(shared=is_pinned(memptr.ptr, size), lent=True)

    def _view(self, host: Any) -> ndarray:
        view = ndarray(host, view=True)
        view.number, view.memory, view.lender = self.number, self.memory, self.lender
        view.owner = self if self.owner is None else self.owner  # as CuPy's, of all views
        return view

    @property
    def of_host(self) -> Any:
        """The array, for work in the current stream, which is done at once."""
        wait_for_kernels()
        self.memory.use()
        return self.array

    def _viewed(self, view: Callable[[Any], Any]) -> ndarray:
        """Returns a view, for which no stream works, or the copy that NumPy makes instead."""
        found = view(self.array)
        if not found.size or np.may_share_memory(found, self.array):
            return self._view(found)
        copied = ndarray(view(self.of_host))
        copied.number = self.number
        return copied

    # What CuPy tells of an array.

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.array.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def size(self) -> int:
        return self.array.size

    @property
    def itemsize(self) -> int:
        return self.array.itemsize

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def flags(self) -> types.SimpleNamespace:
        flags = self.array.flags
        return types.SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous
        )

    @property
    def device(self) -> Device:
        return Device(self.number, self.number + 1)

    @property
    def data(self) -> types.SimpleNamespace:
        pointer = published(self.array, self.number, self.memory)
        return types.SimpleNamespace(ptr=pointer, device_id=self.number, mem=self.lender)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = self.array.__array_interface__
        names = ("shape", "typestr", "descr", "data", "strides", "version")
        return {name: told[name] for name in names}

    @property
    def real(self) -> ndarray:
        return self._viewed(lambda array: array.real)

    @property
    def imag(self) -> ndarray:
        return self._viewed(lambda array: array.imag)

    @property
    def base(self) -> Any:
        return self.array.base if self.owner is None else self.owner

    @property
    def T(self) -> ndarray:
        return self._viewed(lambda array: array.T)

    # To the host.

    def get(self, order: str = "C") -> Any:
        host_waits("get", self.memory)
        return np.array(self.array, order=order)  # type: ignore[call-overload]

    def item(self) -> Any:
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        host_waits("item", self.memory)
        return self.array.item()

    def tolist(self) -> Any:
        host_waits("tolist", self.memory)
        return self.array.tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        host_waits("bool", self.memory)
        return bool(self.array)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return repr(self.of_host)

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    # Parts.

    def __getitem__(self, index: Any) -> ndarray:
        if isinstance(index, ndarray) and index.dtype.kind == "b":
            host_waits("a mask as an index", index.memory)  # for the length of the result
        return self._viewed(lambda array: array[_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.of_host[_index(index)] = _host(value)
        self.memory.write()

    # Methods; their keyword names are CuPy's.

    def sum(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False
    ) -> Any:
        return _wrap(self.of_host.sum(axis=axis, dtype=dtype, keepdims=keepdims))

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False
    ) -> Any:
        return _wrap(self.of_host.mean(axis=axis, dtype=dtype, keepdims=keepdims))

    def max(self, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        return _wrap(self.of_host.max(axis=axis, keepdims=keepdims))

    def min(self, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        return _wrap(self.of_host.min(axis=axis, keepdims=keepdims))

    def prod(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False
    ) -> Any:
        return _wrap(self.of_host.prod(axis=axis, dtype=dtype, keepdims=keepdims))

    def any(self, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        return _wrap(self.of_host.any(axis=axis, keepdims=keepdims))

    def all(self, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        return _wrap(self.of_host.all(axis=axis, keepdims=keepdims))

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: Any = None,
        subok: Any = None,
        copy: bool = True,
    ) -> ndarray:
        if casting is not None or subok is not None:
            raise TypeError("casting and subok are not supported yet")
        exact = np.dtype(dtype)
        return self if exact == self.dtype and not copy else ndarray(self.of_host.astype(exact))

    def copy(self, order: str = "C") -> ndarray:
        return ndarray(self.of_host.copy(order))

    def conj(self) -> ndarray:
        return ndarray(self.of_host.conj())

    def fill(self, value: Any) -> None:
        self.of_host.fill(_host(value))
        self.memory.write()

    def view(self, dtype: Any) -> ndarray:
        return self._view(self.array.view(dtype))

    def reshape(self, *shape: Any) -> ndarray:
        return self._viewed(lambda array: array.reshape(*shape))

    def ravel(self) -> ndarray:
        return self._view(self.of_host.ravel())

    def transpose(self, *axes: Any) -> ndarray:
        return self._viewed(lambda array: array.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        return self._view(self.of_host.swapaxes(axis1, axis2))

    # NumPy's protocols, as CuPy answers them.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        special = sys.modules.get("cupyx.scipy.special")
        name = ufunc.__name__
        function = getattr(_MODULE, name, None) or getattr(special, name, None)
        if function is None or method not in ("__call__", "at"):
            return NotImplemented
        operands = [*inputs, *([kwargs["out"]] if "out" in kwargs else [])]
        for x in operands:
            known = isinstance(x, (*SCALARS, ndarray, np.ndarray))
            if not known and not hasattr(x, "__cuda_array_interface__"):
                return NotImplemented
        return (function if method == "__call__" else getattr(function, method))(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        part = func.__module__.partition(".")[2]
        home = getattr(_MODULE, part) if part in ("fft", "linalg") else _MODULE
        function = getattr(home, func.__name__, None)
        if function is None or not all(issubclass(t, (ndarray, np.ndarray)) for t in types):
            return NotImplemented
        return function(*args, **kwargs)


def _host(value: Any) -> Any:
    """Returns what NumPy is to compute with: NumPy's own arrays are refused, as by CuPy."""
    if isinstance(value, ndarray):
        return value.of_host
    if (told := getattr(value, "__cuda_array_interface__", None)) is not None:
        wait_for_kernels()
        return np.asarray(_Exported(told, value))
    if not isinstance(value, SCALARS):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


class _Exported:
    """The memory of another object that says where its array lies, which this keeps."""

    def __init__(self, told: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = told
        self.owner = owner


def _wrap(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_wrap(part) for part in result)  # no named tuples, as CuPy 13
    if isinstance(result, list):
        return [_wrap(part) for part in result]
    return ndarray(result) if isinstance(result, (np.ndarray, np.generic)) else result


def _index(index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    plain = [_index_part(part) for part in parts]
    if sum(isinstance(part, np.ndarray) and part.dtype == bool for part in plain) > 1:
        raise IndexError("CuPy takes one array of bool in an index")
    if not any(part is Ellipsis for part in plain):
        plain.append(Ellipsis)  # an item is an array of no axes, and a view
    return tuple(plain)


def _index_part(part: Any) -> Any:
    if isinstance(part, ndarray):
        return part.of_host
    if part is None or part is Ellipsis or isinstance(part, (slice, int, np.integer)):
        return part
    array = np.asarray(part)
    return array.astype(np.int32) if array.size == 0 and array.dtype.kind == "f" else array


# -- operators -----------------------------------------------------------------------------------


def _operator(ufunc: Any) -> Callable[[Any, Any], Any]:
    def operate(left: Any, right: Any) -> Any:
        if isinstance(right, ndarray):
            return _MODULE_UFUNCS[ufunc.__name__](left, right)
        if getattr(right, "__array_ufunc__", left) is None:
            return NotImplemented
        return ufunc(left, right)  # NumPy asks both sides, as CuPy has it do

    return operate


def _reflected(ufunc: Any) -> Callable[[Any, Any], Any]:
    return lambda right, left: _MODULE_UFUNCS[ufunc.__name__](left, right)


def _in_place(ufunc: Any) -> Callable[[Any, Any], Any]:
    return lambda left, right: _MODULE_UFUNCS[ufunc.__name__](left, right, left)


_OPERATORS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "pow": np.power,
    "matmul": np.matmul,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "divmod": np.divmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}
_COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
for _name, _function in _OPERATORS.items():
    setattr(ndarray, f"__{_name}__", _operator(_function))
    setattr(ndarray, f"__r{_name}__", _reflected(_function))
    if _name not in ("matmul", "divmod"):  # CuPy has none in place
        setattr(ndarray, f"__i{_name}__", _in_place(_function))
for _name, _function in _COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _operator(_function))
for _name, _unary in {
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}.items():
    setattr(ndarray, f"__{_name}__", lambda a, unary=_unary: ndarray(unary(a.of_host)))


# -- functions -----------------------------------------------------------------------------------

_UFUNCS = """arccos arccosh arcsin arcsinh arctan arctan2 arctanh cbrt copysign cosh deg2rad
    degrees divmod exp2 fabs float_power floor_divide fmax fmin fmod frexp heaviside hypot ldexp
    log10 log2 logaddexp logaddexp2 modf rad2deg radians reciprocal sinh tan absolute add
    bitwise_and bitwise_or bitwise_xor ceil
    conjugate cos divide equal exp expm1 floor left_shift nextafter right_shift
    greater greater_equal invert isfinite isinf isnan less less_equal log log1p logical_and
    logical_not logical_or logical_xor matmul maximum minimum multiply negative not_equal positive
    power remainder rint sign sin sqrt square subtract tanh trunc"""

_FUNCTIONS = """result_type amax amin broadcast_arrays cumprod nanmax nanmin nanstd nanvar
    real_if_close sinc std var all allclose angle any argmax argmin argpartition argsort array_equal
    array_split bincount broadcast_to concatenate convolve copyto count_nonzero cross cumsum
    diagonal diff dot einsum empty_like expand_dims flatnonzero full_like histogram i0 imag inner
    intersect1d isclose isin max mean median min moveaxis nan_to_num ndim nonzero ones_like
    outer pad prod ravel real roll searchsorted shape size split stack sum take_along_axis
    tensordot tril triu unique unwrap zeros_like"""

# What CuPy 13 has of them: `cholesky` without `upper`, `solve` without broadcasting.
_WAITING = ("nonzero", "flatnonzero", "unique")  # for the length of their results
_LINALG = "cholesky det eigh inv lstsq matrix_power norm pinv qr slogdet solve svd"
_FFT = "fft fftshift ifft ifftshift irfft rfft"


class Ufunc:
    """A ufunc of NumPy or SciPy on arrays of the stand-in."""

    def __init__(self, ufunc: np.ufunc, name: str) -> None:
        self._ufunc = ufunc
        self.name = self.__name__ = name

    def __call__(
        self, *args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind"
    ) -> Any:
        for x in args:
            override = getattr(x, "__cupy_override_elementwise_kernel__", None)
            if override is not None:
                given = {"out": out, "dtype": dtype, "casting": casting}
                usual = {"out": None, "dtype": None, "casting": "same_kind"}
                return override(
                    self, *args, **{key: x for key, x in given.items() if x != usual[key]}
                )
        if len(args) > self._ufunc.nin:
            *args, out = args  # type: ignore[assignment]
        kinds = {getattr(x, "dtype", np.dtype(bool)).kind for x in args}
        if self._ufunc.__name__.startswith("logical") and "c" in kinds:
            raise TypeError(f"{self.name} has no loop for complex numbers")
        given = {} if out is None else {"out": (_host(out),)}
        result = self._ufunc(*map(_host, args), dtype=dtype, casting=casting, **given)
        if out is None:
            return _wrap(result)
        out.memory.write()
        return out

    def at(self, a: ndarray, indices: Any, b: Any) -> None:
        name = self._ufunc.__name__
        if name not in _AT:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        if str(a.dtype) not in _AT[name].split():
            raise TypeError(f"cupy.{name}.at only supports {_AT[name]} as data type")
        self._ufunc.at(a.of_host, _index(indices), _host(b))
        a.memory.write()


# The dtypes that CuPy adds to, or compares with, at places that repeat.
_BITS = "int32 int64 uint32 uint64"
_AT = {
    "add": f"{_BITS} float16 float32 float64",
    "subtract": "int32 uint32",
    "maximum": f"{_BITS} float32 float64",
    "minimum": f"{_BITS} float32 float64",
    "bitwise_and": _BITS,
    "bitwise_or": _BITS,
    "bitwise_xor": _BITS,
}


def _plain(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return type(tree)(_plain(part) for part in tree)
    if tree is None or isinstance(tree, (str, type, np.dtype)):
        return tree
    return _host(tree)


# Functions whose first argument may be a number, a list or None; all others take an array there.
_OF_ANYTHING = [
    "allclose",
    "array_equal",
    "broadcast_arrays",
    "concatenate",
    "einsum",
    "isclose",
    "ndim",
    "outer",
    "result_type",
    "shape",
    "size",
    "stack",
]


# Functions whose Python number or bool of NumPy is an array of no axes in CuPy.
_OF_NO_AXES = ("allclose", "array_equal", "count_nonzero")


def call_on_host(
    function: Callable[..., Any], signature: inspect.Signature | None = None
) -> Callable[..., Any]:
    """Returns a function on arrays of the stand-in; a signature refuses all other arguments."""

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            if function.__name__ not in _OF_ANYTHING and not isinstance(args[0], ndarray):
                raise AttributeError(f"{type(args[0]).__name__!r} is no array of CuPy")
        if function.__name__ in _WAITING:
            host_waits(function.__name__, args[0].memory)
        if function.__name__.endswith("_like") and isinstance(args[0], ndarray):
            like = args[0].array  # its shape and dtype are used, not its items
            return _wrap(function(like, *_plain(args[1:]), **kwargs))
        plain = {key: _plain(value) for key, value in kwargs.items()}
        result = function(*_plain(args), **plain)
        return ndarray(result) if function.__name__ in _OF_NO_AXES else _wrap(result)

    evaluate.__name__ = function.__name__
    return evaluate


def _function_of(name: str, home: Any = np, under: str = "") -> Callable[..., Any]:
    return call_on_host(
        _AS_CUPY.get(under + name) or getattr(home, name), SIGNATURES.get(under + name)
    )


# -- functions that take other arguments than NumPy's, or return something else ------------------


def _argsort(a: Any, axis: Any = -1, kind: Any = None) -> Any:
    if kind not in (None, "stable"):
        raise ValueError("kind can only be None or 'stable'")
    return np.argsort(a, axis=axis, kind="stable")


def _split_by(function: Callable[..., Any]) -> Callable[..., Any]:
    def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
        if not np.isscalar(indices_or_sections):
            for index in indices_or_sections:
                if np.ndim(index) or isinstance(indices_or_sections, np.ndarray):
                    raise TypeError("'ndarray' object cannot be interpreted as an integer")
        return function(ary, indices_or_sections, axis)

    split.__name__ = function.__name__
    return split


def _like(function: Callable[..., Any]) -> Callable[..., Any]:
    fill = 1 if function is np.full_like else 0
    # Once: Python 3.11's parser, which reads it from a docstring, fails in several threads at once.
    signature = inspect.signature(function)

    def like(a: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(a, *args, **kwargs).arguments
        if given.get("subok") is not None:
            raise TypeError("subok is not supported yet")
        if "shape" in given and not given["shape"]:
            given["shape"] = None  # as CuPy, which takes () for no shape
        first = [given.pop(name) for name in list(given)[: 1 + fill]]
        return function(*first, **given)

    like.__name__ = function.__name__
    return like


def _eigh(a: Any, UPLO: Any = "L") -> Any:
    values, vectors = np.linalg.eigh(a, UPLO)
    return values, vectors * np.where(np.arange(vectors.shape[-1]) % 2, -1, 1).astype(a.dtype)


def _windows(x: Any, window_shape: Any, axis: Any = None) -> Any:
    given = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    if len({k % x.ndim for k in given}) < len(given):
        raise ValueError("duplicate value in 'axis'")
    return np.lib.stride_tricks.sliding_window_view(x, window_shape, axis)


def _intersect1d(
    arr1: Any, arr2: Any, assume_unique: bool = False, return_indices: bool = False
) -> Any:
    if not assume_unique:
        intersect: Any = np.intersect1d
        return intersect(arr1, arr2, return_indices=return_indices)
    places = np.searchsorted(arr2, arr1)  # as CuPy, for which `arr2` is sorted
    mask = arr2[np.minimum(places, arr2.size - 1)] == arr1
    found = (arr1[mask], np.flatnonzero(mask), places[mask])
    return found if return_indices else found[0]


_AS_CUPY: dict[str, Callable[..., Any]] = {
    "argsort": _argsort,
    "array_split": _split_by(np.array_split),
    "split": _split_by(np.split),
    **{
        function.__name__: _like(function)
        for function in (np.empty_like, np.full_like, np.ones_like, np.zeros_like)
    },
    "lib.stride_tricks.sliding_window_view": _windows,
    "intersect1d": _intersect1d,
    "linalg.eigh": _eigh,
}


def _array(obj: Any, dtype: Any = None, copy: Any = True, order: str = "K") -> ndarray:
    host = obj.of_host if isinstance(obj, ndarray) else obj
    return ndarray(np.array(host, dtype=dtype, copy=copy, order=order))  # type: ignore[call-overload]


def _asarray(a: Any, dtype: Any = None) -> ndarray:
    if isinstance(a, ndarray) and (dtype is None or a.dtype == dtype):
        return a
    if hasattr(a, "__cuda_array_interface__"):
        made = ndarray(_host(a))
        made.lender = a  # memory of another library
        return _asarray(made, dtype)
    return _array(a, dtype)  # never the host's memory


def _where(condition: Any, x: Any, y: Any) -> ndarray:
    return ndarray(np.where(_host(condition.astype("?", copy=False)), _host(x), _host(y)))


def _clip(a: ndarray, a_min: Any, a_max: Any) -> ndarray:
    return ndarray(np.clip(a.of_host, _plain(a_min), _plain(a_max)))


def _as_strided(x: ndarray, shape: Any, strides: Any) -> ndarray:
    return ndarray(np.lib.stride_tricks.as_strided(x.of_host, shape, strides))


def _may_share_memory(a: ndarray, b: ndarray) -> bool:
    return np.may_share_memory(a.array, b.array)


def _made_by(function: Callable[..., Any]) -> Callable[..., ndarray]:
    def make(*args: Any, **kwargs: Any) -> ndarray:
        SIGNATURES[function.__name__].bind(*args, **kwargs)
        return ndarray(function(*args, **kwargs))

    return make


class _Generator:
    """As `cupy.random.Generator`: draws on the device, and other numbers than NumPy's."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.default_rng([seed, 1])

    def random(self, size: Any, dtype: Any = np.float64) -> ndarray:
        return ndarray(self._source.random(size, dtype=dtype))


_MODULE_UFUNCS = {
    name: Ufunc(getattr(np, name), f"cupy_{getattr(np, name).__name__}") for name in _UFUNCS.split()
}
_MODULE = types.SimpleNamespace(
    **_MODULE_UFUNCS,
    **{name: _function_of(name) for name in _FUNCTIONS.split()},
    linalg=types.SimpleNamespace(
        **{name: _function_of(name, np.linalg, "linalg.") for name in _LINALG.split()}
    ),
    fft=types.SimpleNamespace(
        **{name: _function_of(name, np.fft, "fft.") for name in _FFT.split()}
    ),
    lib=types.SimpleNamespace(
        stride_tricks=types.SimpleNamespace(
            as_strided=_as_strided,
            sliding_window_view=_function_of(
                "sliding_window_view", np.lib.stride_tricks, "lib.stride_tricks."
            ),
        )
    ),
    RawModule=RawModule,
    abs=_MODULE_UFUNCS["absolute"],
    arange=_made_by(np.arange),
    array=_array,
    asarray=_asarray,
    bool_=np.bool_,
    clip=_clip,
    copy=lambda a, order="K": a.copy(),
    cuda=cuda(),
    empty=_made_by(np.empty),
    eye=_made_by(np.eye),
    full=_made_by(np.full),
    may_share_memory=_may_share_memory,
    ndarray=ndarray,
    random=types.SimpleNamespace(default_rng=_Generator),
    ones=_made_by(np.ones),
    where=_where,
    zeros=_made_by(np.zeros),
    **{name: getattr(np, name) for name in ("float16", "float32", "float64", "int32", "int64")},
)


def stand_in(devices: int = 1) -> Any:
    """Returns what stands in `sys.modules` for CuPy, on a machine of so many GPUs."""
    module = types.ModuleType("cupy", __doc__)
    vars(module).update(vars(_MODULE), cuda=cuda(devices))
    module.__version__ = "14.2.0"  # type: ignore[attr-defined]
    module.__file__ = sys.modules[__name__].__file__
    return module
