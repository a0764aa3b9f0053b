"""Hooks as objects that a compiled graph takes in.

Made and filled by the bytecode around a graph, see ``graph_inputs``; called by the
operators of ``call_op``. Must not import Dynamo.
"""

from __future__ import annotations

import collections
import weakref
from typing import Any, TYPE_CHECKING

import torch
from torch._custom_class_base import CustomClassBase
from torch._library.opaque_object import register_custom_class
from torch.utils.hooks import RemovableHandle


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.nn import Module


class HooksInput(CustomClassBase):
    """Hooks that one run of a compiled graph calls in its backward."""

    def __reduce__(self) -> tuple[type[HooksInput], tuple[()]]:
        # A cache key or a saved graph must not carry anything of this process.
        return type(self), ()


class ModuleHooks(HooksInput):
    """The backward hooks of one call of a module, settled in forward.

    Args:
        module: the module that is called.
        hooks: full backward hooks, or legacy ones, in the order they fire; None for
            those that are handed over after the graph has run.
        pre_hooks: backward pre-hooks, in the same way.
    """

    def __init__(
        self,
        module: Module | None = None,
        hooks: Sequence[Callable[..., Any] | None] = (),
        pre_hooks: Sequence[Callable[..., Any] | None] = (),
    ) -> None:
        self.module = module
        self.hooks = [*hooks]
        self.pre_hooks = [*pre_hooks]

    def fill_module(self, module: Module) -> None:
        """Hand over the module, where compiled code itself made it."""
        self.module = module

    def fill_hook(self, hook: Callable[..., Any]) -> None:
        """Hand over the next hook that compiled code itself made."""
        hooks = self.hooks if None in self.hooks else self.pre_hooks
        hooks[hooks.index(None)] = hook


class TensorHooks(HooksInput):
    """The hooks of one tensor that a graph computes."""

    def __init__(self) -> None:
        self.hooks: dict[int, Callable[..., Any]] = collections.OrderedDict()
        self._retaining: weakref.ref[Tensor] | None = None
        self._retained: Tensor | None = None

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Add a hook, as ``torch.Tensor.register_hook`` does."""
        handle = RemovableHandle(self.hooks)
        self.hooks[handle.id] = hook
        return handle

    def call_in_turn(self, grad: Tensor | None, like: Tensor | None) -> Tensor | None:
        """Call the hooks as autograd does.

        Args:
            grad: the gradient, None when it is undefined.
            like: a gradient of the tensor's shape, None to take any.

        Returns:
            What the hooks make of the gradient.

        Raises:
            RuntimeError: as autograd does, for a gradient that does not fit.
            TypeError: as autograd does, for what is no gradient.
        """
        for hook in tuple(self.hooks.values()):
            result = hook(grad)
            if result is not None:
                if like is not None and not fits(result, like):
                    _reject(hook, result, like)
                grad = result
        return grad

    def retain_grad(self, tensor: Tensor) -> None:
        """Keep the gradient of the tensor in its ``grad``, as ``retain_grad`` does.

        Args:
            tensor: the tensor as it left the graph, any shape. Autograd sees only
                what flows back to it from outside of the graph.
        """
        if tensor.retains_grad or not tensor.requires_grad or tensor.is_leaf:
            tensor.retain_grad()
            return
        tensor.register_hook(self._remember)
        tensor.retain_grad()
        self._retaining = weakref.ref(tensor)

    @staticmethod
    def retain_grad_of_input(tensor: Tensor) -> None:
        """Call ``retain_grad`` of an input of the graph, of any shape."""
        tensor.retain_grad()

    def _remember(self, _: Tensor | None) -> None:
        tensor = self._retaining() if self._retaining else None
        self._retained = None if tensor is None else tensor.grad

    def retain(self, grad: Tensor | None) -> None:
        """Take in the whole gradient of the tensor, None when it is undefined."""
        tensor = self._retaining() if self._retaining else None
        if tensor is None:
            return
        before, self._retained = self._retained, None
        if grad is None or before is None:
            tensor.grad = before if grad is None else grad.clone()
        else:
            tensor.grad = before + grad


def fits(grad: object, like: Tensor) -> bool:
    """Whether autograd takes ``grad`` as it is for a gradient of ``like``'s tensor."""
    return (
        isinstance(grad, torch.Tensor)
        and grad.shape == like.shape
        and grad.dtype == like.dtype
        and grad.device == like.device
        and grad.layout == like.layout
    )


def _reject(hook: Callable[..., Any], result: Any, like: Tensor) -> None:
    """Let autograd itself raise its error for what a tensor hook returned."""
    edge = like.detach().requires_grad_()
    with torch.enable_grad():
        output = edge.view_as(edge)

    def returns(_: Tensor) -> Any:
        return result

    returns.__name__ = getattr(hook, "__name__", type(hook).__name__)
    output.register_hook(returns)
    torch.autograd.grad(output, edge, like)


register_custom_class(ModuleHooks, typ="symbolic")
register_custom_class(TensorHooks, typ="symbolic")
