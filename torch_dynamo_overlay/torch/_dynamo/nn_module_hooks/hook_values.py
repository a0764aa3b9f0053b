"""What the code of a hook works with, and what names mean to it.

Used by ``hook_code`` and ``hook_bytecode``. Must not import Dynamo.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
import weakref
from typing import Any, TYPE_CHECKING, TypeAlias

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Unclear(Exception):
    """The code may do something that only a call at its own time does right."""


@dataclasses.dataclass(frozen=True)
class Given:
    """Made of tensors that the hook is given.

    Args:
        params: which arguments.
        live: whether autograd knows where it comes from.
        shares: whether it may share memory with these.
        whole: whether it may be a container that is given, not what is in it.
        is_argument: whether it is what is given, as it is, or None.
    """

    params: frozenset[int]
    live: bool = True
    shares: bool = True
    whole: bool = True
    is_argument: bool = False

    def part(self, **changes: Any) -> Given:
        """What is found in it, or made of it."""
        return dataclasses.replace(self, is_argument=False, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """An object that is there when the hook is compiled."""

    obj: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.obj is self.obj

    def __hash__(self) -> int:
        return id(self.obj)


@dataclasses.dataclass(frozen=True)
class Of:
    """Any object of a type, or of any type, that the hook is not given."""

    type: type | None


@dataclasses.dataclass(frozen=True, eq=False)
class OneOf:
    """One of several containers of a type, all items of another one."""

    type: type
    objs: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OneOf) and self._ids() == other._ids()

    def __hash__(self) -> int:
        return hash(self._ids())

    def _ids(self) -> tuple[int, ...]:
        return tuple(map(id, self.objs))


@dataclasses.dataclass(frozen=True)
class Member:
    """An attribute that is most likely a method.

    Args:
        owner: the value it is an attribute of.
        name: its name.
        function: what the class of the owner has under that name.
    """

    owner: Value
    name: str
    function: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """A function that the hook makes."""

    code: types.CodeType
    cells: dict[str, Any]
    scope: dict[str, Any]


class _Null:
    """What the interpreter pushes where a call has no ``self``."""


class Plain:
    """Stands for numbers, strings, shapes and all else that nothing can change."""


NULL = _Null()
NONE = Known(None)
STATE = Of(None)
PLAIN = Of(Plain)
TENSOR = Of(torch.Tensor)
Value: TypeAlias = Given | Known | Of | OneOf | Member | Made | _Null


def given_in(value: Value) -> list[Given]:
    """What of the hook's arguments ``value`` is made of."""
    while isinstance(value, Member):
        value = value.owner
    return [value] if isinstance(value, Given) else []


def of(cls: type) -> Of:
    """Any object of a type, where the type says enough."""
    if is_plain_type(cls):
        return PLAIN
    if issubclass(cls, torch.Tensor):
        return TENSOR
    return Of(cls)


def type_of(value: Value) -> type | None:
    """The type of a value, None when it is not known."""
    if isinstance(value, Known):
        return type(value.obj)
    return value.type if isinstance(value, (Of, OneOf)) else None


def is_plain_type(cls: type) -> bool:
    """Whether nothing can change objects of a type, or be changed by them."""
    return issubclass(cls, _PLAIN) and cls.__module__ in ("builtins", "torch")


def is_plain(value: Value) -> bool:
    """Whether a value is a number, a string or the like."""
    if isinstance(value, Known):
        return is_plain_type(type(value.obj)) or isinstance(value.obj, type)
    return value == PLAIN


def is_tensor(value: Value) -> bool:
    """Whether a value is a tensor, or array, that the hook is not given."""
    cls = type_of(value)
    return cls is not None and (
        issubclass(cls, torch.Tensor) or f"{cls.__module__}.{cls.__name__}" == _ARRAY
    )


def is_container(cls: type | None) -> bool:
    """Whether a type is one of Python's own mutable containers, or tuple."""
    return cls in _CONTAINERS


def is_callback(value: Value) -> bool:
    """Whether a value is a function that runs code of the user's."""
    if isinstance(value, Made):
        return True
    function = value.obj if isinstance(value, Known) else None
    if isinstance(function, types.MethodType):
        function = function.__func__
    return isinstance(function, types.FunctionType) and not is_library(function)


def plain(value: Value) -> Value:
    """What an item made of ``value`` stands for."""
    if isinstance(value, Given):
        return value
    found = given_in(value)
    if found:
        return found[0].part()
    if isinstance(value, Member) and is_plain(value.owner):
        return PLAIN
    return STATE if isinstance(value, (Member, Made, _Null)) else value


class Binding:
    """Something that was found somewhere, and that something else may replace.

    Args:
        holder: a function, ``functools.partial``, object or namespace.
        key: place in its closure or arguments, or the name in it.
        obj: what was found.
    """

    def __init__(self, holder: Any, key: Any, obj: object) -> None:
        self._holder = _weak(holder)
        self._key = key
        self._type = type(obj)
        is_data = is_plain_type(self._type) or is_container(self._type)
        is_data = is_data or issubclass(self._type, torch.Tensor)
        self._obj = None if is_data else _weak(obj)

    def holds(self) -> bool:
        """Whether the same is found there: for data, anything of the same type."""
        holder, key = self._holder(), self._key
        try:
            if isinstance(holder, dict):
                obj = holder[key]
            elif isinstance(holder, types.FunctionType) and isinstance(key, int):
                obj = (holder.__closure__ or ())[key].cell_contents
            elif isinstance(holder, functools.partial):
                place: Any = holder.args if isinstance(key, int) else holder.keywords
                obj = place[key]
            else:
                obj = getattr(holder, key)
        except (AttributeError, LookupError, TypeError, ValueError):
            return False
        if self._obj is None:
            return type(obj) is self._type
        return obj is self._obj()


def _weak(obj: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj


def join(left: Value, right: Value) -> Value:
    """What stands for either of two values."""
    if left == right:
        return left
    if is_plain(left) and is_plain(right):
        return PLAIN
    if {left, right} <= {PLAIN, TENSOR, NONE}:
        return TENSOR
    if left is NULL or right is NULL:
        raise Unclear("its stack is not known")
    for one, other in ((left, right), (right, left)):
        if one == NONE and isinstance(other, Given) and other.is_argument:
            return other
    if found := [*given_in(left), *given_in(right)]:
        return made_of(found)
    if isinstance(left, Made) or isinstance(right, Made):
        raise Unclear("it chooses between functions")
    return STATE


def made_of(
    given: Sequence[Given], *, shares: bool = True, whole: bool = True
) -> Given:
    """What is made of some of what the hook is given, at least one."""
    return Given(
        frozenset().union(*(value.params for value in given)),
        any(value.live for value in given),
        shares and any(value.shares for value in given),
        whole and any(value.whole for value in given),
    )


def join_all(values: Sequence[Value]) -> Value:
    """What stands for any of some values."""
    return functools.reduce(join, values) if values else STATE


# Of a tensor, these say the same whether it is detached or not, and when.
METADATA = frozenset(
    ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "itemsize")
    + ("nbytes", "is_sparse", "is_quantized", "names")
)
LOOKS = frozenset(
    ("size", "dim", "ndimension", "numel", "nelement", "element_size", "get_device")
    + ("is_floating_point", "is_complex")
)
# Autograd's, and not the same for a tensor that is detached.
AUTOGRAD_NAMES = frozenset(("requires_grad", "grad_fn", "is_leaf", "_version"))
SAME_VALUE = frozenset(("items", "keys", "values", "get", "view_as", "alias"))
# Methods and functions whose results share no memory with what they are given.
_FRESH = frozenset(
    ("clone", "mean", "sum", "norm", "std", "var", "max", "min", "amax", "amin", "abs")
    + ("argmax", "argmin", "prod", "median", "histc", "quantile", "softmax", "log")
    + ("exp", "sqrt", "square", "pow", "add", "sub", "mul", "div", "matmul", "eq")
    + ("gt", "lt", "ge", "le", "ne", "isnan", "isinf", "isfinite", "any", "all", "topk")
    + ("cumsum", "bincount", "unique", "count_nonzero", "stack", "cat", "tanh", "dist")
)
COMPUTED_SCALARS = frozenset(("item", "tolist", "equal", "allclose", "is_nonzero"))
MODULE_READS = frozenset(
    ("parameters", "named_parameters", "buffers", "named_buffers", "children")
    + ("named_children", "modules", "named_modules", "get_parameter", "get_buffer")
    + ("get_submodule", "extra_repr", "__repr__", "_get_name")
)
_EDITS = frozenset(
    ("append", "extend", "insert", "pop", "popitem", "clear", "update", "setdefault")
    + ("remove", "sort", "reverse", "discard", "fill", "put", "itemset")
)
_FORBIDDEN = frozenset(
    ("backward", "retain_grad", "grad", "requires_grad_")
    + ("register_hook", "register_backward_hook", "register_buffer", "add_module")
    + ("register_parameter", "register_module", "delattr", "exec", "eval", "globals")
    + ("locals", "vars", "_getframe", "currentframe", "manual_seed")
    + ("set_rng_state", "set_grad_enabled", "_set_grad_enabled", "inference_mode")
    + ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
    + ("_backward_hooks", "_backward_pre_hooks", "__dict__", "__class__", "__code__")
    + ("set_", "resize_", "data_ptr", "untyped_storage", "storage")
    + ("__setattr__", "__delattr__", "__setstate__", "__getattribute__")
    + ("saved_tensors_hooks", "is_compiling", "is_dynamo_compiling", "graph_break")
)
_RANDOM: tuple[str, ...] = ("rand", "bernoulli", "dropout", "multinomial", "uniform")
_RANDOM += (
    "poisson",
    "rng",
    "exponential",
    "cauchy",
    "geometric",
    "gumbel",
    "rrelu",
    "shuffle",
    "gauss",
)
_RANDOM_NAMES = frozenset(
    ("normal", "normal_", "log_normal_", "choice", "choices", "sample", "seed")
    + ("rsample", "initial_seed")
)


def is_forbidden(name: str) -> bool:
    """Whether code that uses ``name`` may change autograd, modules or hooks."""
    return name in _FORBIDDEN or (
        name.startswith(("register_", "_register_")) and name.endswith("hook")
    )


def is_random(name: str) -> bool:
    """Whether a function of that name draws random numbers."""
    return name in _RANDOM_NAMES or any(part in name for part in _RANDOM)


def is_random_module(function: Any) -> bool:
    """Whether a function belongs to a module that draws random numbers."""
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    return "random" in module or "random" in type(owner).__module__


def edits(name: str) -> bool:
    """Whether a method of that name may edit the object it belongs to."""
    if name.startswith("__"):
        return name.startswith(("__i", "__set", "__del"))
    return name in _EDITS or name.endswith("_")


def is_fresh(name: str) -> bool:
    """Whether what a method or function of that name returns shares no memory."""
    return name in _FRESH


def edits_operand(function: Any) -> bool:
    """Whether a function of ``operator`` edits its first argument."""
    name = getattr(function, "__name__", "")
    return getattr(function, "__module__", None) == "_operator" and (
        name in ("setitem", "delitem") or edits(f"__{name}__")
    )


def has_names(value: Value) -> bool:
    """Whether the frame may reach a value's attributes by other ways than the hook."""
    return not isinstance(value, Known) or isinstance(
        value.obj, (torch.nn.Module, type, types.ModuleType)
    )


_PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, range)
_PLAIN += (slice, type(...), torch.Size, torch.dtype, torch.device, torch.layout)
_ARRAY = "numpy.ndarray"
_CONTAINERS = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    collections.Counter,
)
_MEASURING = (
    "time",
    "datetime",
    "timeit",
    "tracemalloc",
    "resource",
    "psutil",
    "pynvml",
) + (
    "torch.cuda",
    "torch.xpu",
    "torch.mps",
    "torch.profiler",
    "torch.autograd.profiler",
)


def is_measuring(module: str) -> bool:
    """Whether what a module of that name says depends on when it is asked."""
    return module in _MEASURING or module.startswith(
        tuple(f"{name}." for name in _MEASURING)
    )


def is_torch(obj: Any) -> bool:
    """Whether PyTorch defines a function or type."""
    module = getattr(obj, "__module__", None)
    if module is None:
        owner = getattr(obj, "__self__", None)
        module = getattr(owner, "__name__", None) or type(obj).__module__
    return isinstance(module, str) and module.split(".")[0] == "torch"


def is_library(function: types.FunctionType) -> bool:
    """Whether a function comes from a library, which knows nothing of the model."""
    return _is_library_module(function.__module__) or is_library_code(function)


def is_library_code(function: types.FunctionType) -> bool:
    """Whether the code of a function is that of a library."""
    return "site-packages" in function.__code__.co_filename


def is_library_type(cls: type) -> bool:
    """Whether objects of a type take in what they are told, and no frame reads them."""
    if is_measuring(cls.__module__) or "tensorboard" in cls.__module__:
        return True
    return cls.__module__.split(".")[0] in _SINKS


_SINKS = frozenset(
    ("logging", "io", "_io", "threading", "_thread", "queue", "_queue", "csv", "_csv")
    + ("pathlib", "re", "string", "zlib", "hashlib", "_hashlib", "tempfile", "tqdm")
    + ("wandb", "mlflow", "rich", "tensorboardX")
)


def _is_library_module(name: str | None) -> bool:
    root = (name or "").split(".")[0]
    return root in sys.stdlib_module_names - {"__main__"} or root == "torch"


def is_functional(function: types.FunctionType) -> bool:
    """Whether a Python function of PyTorch only computes."""
    return function.__module__ in (
        "torch.functional",
        "torch.nn.functional",
        "torch._tensor",
        "torch.utils._pytree",
    )


def may_take_tensors(function: Any) -> bool:
    """Whether a function of a library reads tensors, but edits none."""
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    root = (module or type(owner).__module__).split(".")[0]
    if root == "numpy":
        return getattr(function, "__name__", "") in _ARRAY_READS
    return root in ("builtins", "copy", "json", "logging", "math", "pickle", "pprint")


_ARRAY_READS = frozenset(
    ("asarray", "array", "save", "savez", "mean", "std", "var", "sum", "min", "max")
    + ("abs", "norm", "isnan", "isfinite", "median", "percentile", "histogram")
    + ("concatenate", "stack")
)


_NONE_METHODS = {
    list: ("append", "extend", "insert", "clear", "remove", "reverse", "sort"),
    collections.Counter: ("update",),
    dict: ("update", "clear", "__setitem__"),
    set: ("add", "update", "clear", "discard", "remove"),
    collections.deque: ("append", "appendleft", "extend", "extendleft", "clear"),
}


def returns_none(cls: type | None, name: str) -> bool:
    """Whether method ``name`` of a builtin container returns None."""
    return cls is not None and any(
        issubclass(cls, base)
        and name in names
        and getattr(cls, name, None) is getattr(base, name, 0)
        for base, names in _NONE_METHODS.items()
    )
