"""Keep global module hooks away from modules that eager does not have.

A user who registers a global hook means the modules of the program, as eager runs
them: neither the graph modules that a compiler makes nor the wrapper that
``torch.compile`` returns. Called by the seams in ``GraphModule.__init__``,
``FakeRootModule``, ``OptimizedModule.__call__`` and ``torch.export``. Dynamo may trace
this file: see ``MOD_INLINELIST``.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch
from torch.nn import Module, Parameter
from torch.nn.modules.module import _has_any_global_hook

from .state import KINDS


if TYPE_CHECKING:
    from torch.fx import GraphModule


def hide(graph_module: GraphModule) -> None:
    """Keep global hooks away from ``graph_module``, which a compilation makes."""
    # The class is this instance's own: see GraphModule.__new__.
    cls: Any = type(graph_module)
    cls._call_impl = _hidden_call_impl
    cls.__setattr__ = setattr_unseen
    cls.register_buffer = _register_buffer_unseen


def is_hidden(module: Module) -> bool:
    """Whether a call of ``module``, a compiler's own, runs its forward alone.

    It does when a global hook would see it otherwise. Hooks registered on the module
    itself are meant for it: then it is called as any module is.
    """
    attrs = module.__dict__
    return (
        _has_any_global_hook()
        and not any(attrs[kind.hooks] for kind in KINDS)
        and module._compiled_call_impl is None
        and not torch._C._is_tracing()
    )


def setattr_unseen(self: Module, name: str, value: Any) -> None:
    """``Module.__setattr__`` of a compiler's own module: no registration hook runs.

    Args:
        self: the module.
        name: the attribute.
        value: a parameter or submodule to register, or any other value to set.
    """
    if isinstance(value, (Parameter, Module)) and not hasattr(self, name):
        kind = "_parameters" if isinstance(value, Parameter) else "_modules"
        self.__dict__[kind][name] = value
    else:
        Module.__setattr__(self, name, value)


def _register_buffer_unseen(
    self: Module, name: str, tensor: torch.Tensor | None, persistent: bool = True
) -> None:
    if tensor is None or hasattr(self, name):
        Module.register_buffer(self, name, tensor, persistent)
        return
    self._buffers[name] = tensor
    if not persistent:
        self._non_persistent_buffers_set.add(name)


def _hidden_call_impl(self: Module, *args: Any, **kwargs: Any) -> Any:
    if is_hidden(self):
        return self.forward(*args, **kwargs)
    return Module._call_impl(self, *args, **kwargs)


class HiddenModule(Module):
    """A module that a compiler puts around one of the user's."""

    _call_impl = _hidden_call_impl
    __setattr__ = setattr_unseen
