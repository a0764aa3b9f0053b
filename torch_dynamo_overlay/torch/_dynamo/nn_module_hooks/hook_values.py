"""What the code of a hook works with, and what names mean to it.

Used by ``hook_code`` and ``hook_bytecode``. Must not import Dynamo.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
from typing import Any, TYPE_CHECKING, TypeAlias

import torch


if TYPE_CHECKING:
    from collections.abc import Sequence


class Unclear(Exception):
    """The code may do something that only a call at its own time does right."""


@dataclasses.dataclass(frozen=True)
class Given:
    """Made of tensors that the hook is given.

    Args:
        params: which arguments.
        live: whether autograd knows where it comes from.
        shares: whether it may share memory with these.
    """

    params: frozenset[int]
    live: bool = True
    shares: bool = True


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
    cells: dict[str, Value]
    scope: dict[str, Any]


class _Null:
    """What the interpreter pushes where a call has no ``self``."""


NULL = _Null()
NONE = Known(None)
STATE = Of(None)
Value: TypeAlias = Given | Known | Of | Member | Made | _Null


def given_in(value: Value) -> list[Given]:
    """What of the hook's arguments ``value`` is made of."""
    while isinstance(value, Member):
        value = value.owner
    return [value] if isinstance(value, Given) else []


def join(left: Value, right: Value) -> Value:
    """What stands for either of two values."""
    if left == right:
        return left
    if left is NULL or right is NULL:
        raise Unclear("its stack is not known")
    if found := [*given_in(left), *given_in(right)]:
        return made_of(found)
    if isinstance(left, Made) or isinstance(right, Made):
        raise Unclear("it chooses between functions")
    return STATE


def made_of(given: Sequence[Given], *, shares: bool = True) -> Given:
    """What is made of some of what the hook is given, at least one."""
    return Given(
        frozenset().union(*(value.params for value in given)),
        any(value.live for value in given),
        shares and any(value.shares for value in given),
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
_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal_", "uniform")


def is_forbidden(name: str) -> bool:
    """Whether code that uses ``name`` may change autograd, modules or hooks."""
    return name in _FORBIDDEN or (
        name.startswith(("register_", "_register_")) and name.endswith("hook")
    )


def is_random(name: str) -> bool:
    """Whether a function of that name draws random numbers."""
    return any(part in name for part in _RANDOM)


def edits(name: str) -> bool:
    """Whether a method of that name may edit the object it belongs to."""
    if name.startswith("_"):
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


_MEASURING = ("time", "tracemalloc", "resource", "psutil", "pynvml") + (
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


def is_harmless(cls: type) -> bool:
    """Whether methods of a class of PyTorch leave models and autograd alone."""
    return is_measuring(cls.__module__) or issubclass(cls, torch.Tensor)


def is_torch(obj: Any) -> bool:
    """Whether PyTorch defines a function or type."""
    module = getattr(obj, "__module__", None)
    if module is None:
        owner = getattr(obj, "__self__", None)
        module = getattr(owner, "__name__", None) or type(obj).__module__
    return isinstance(module, str) and module.split(".")[0] == "torch"


def is_library(function: types.FunctionType) -> bool:
    """Whether a function comes from a library, which knows nothing of the model."""
    root = (function.__module__ or "").split(".")[0]
    return (
        root in sys.stdlib_module_names
        or root == "torch"
        or "site-packages" in function.__code__.co_filename
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
