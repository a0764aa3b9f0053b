"""Which branches of ``nn.Module._call_impl`` a compiled call has to take.

Called by the seam in the handler of Dynamo's tracing state functions
(``torch.compiler.is_compiling`` and its like). Must not import ``guards``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._dynamo import config, graph_break_hints
from torch._dynamo.exc import unimplemented
from torch._dynamo.utils import warn_once
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable

from .call_frames import local
from .legacy_hooks import must_run_eagerly


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


_LIMIT = (
    "An error that only shows when the kernels run (a singular matrix, an index out "
    "of range) leaves compiled code without passing through nn.Module's exception "
    "handler, so hooks registered with always_call=True would miss it."
)


def is_told_not_compiling(tx: InstructionTranslatorBase, function: object) -> bool:
    """Whether ``_call_impl`` has to hear that it is not compiled.

    Args:
        tx: the frame being traced.
        function: the tracing state function it calls.

    Raises:
        torch._dynamo.exc.Unsupported: to break the graph.
    """
    if function is torch.compiler.is_dynamo_compiling:
        return must_run_eagerly(tx)
    return function is torch.compiler.is_compiling and _runs_always_called_hooks(tx)


def _runs_always_called_hooks(tx: InstructionTranslatorBase) -> bool:
    """Whether ``_call_impl`` asks if it is compiled only to spare its handler.

    When it is told that it is compiled, it lets an exception of ``forward`` pass and
    skips the hooks registered with ``always_call=True``. Where such hooks exist, the
    graph is broken, so that they see every error; with ``fullgraph=True`` the handler
    is traced, and a warning says which errors it cannot see.

    """
    if (
        tx.f_code is not torch.nn.Module._call_impl.__code__
        or config.skip_nnmodule_hook_guards
    ):
        return False
    module = local(tx, "self")
    if not isinstance(module, UnspecializedNNModuleVariable):
        return False
    name = "_forward_hooks_always_called"
    own = module.tp_getattro_impl(tx, name).realize()
    shared = tx.nn_modules_globals_vt.tp_getattro_impl(tx, f"_global{name}").realize()
    if not any(isinstance(d, ConstDictVariable) and d.len() for d in (own, shared)):
        return False
    where = module.source.name if module.source else type(module.value).__name__
    if not (tx.one_graph or tx.error_on_graph_break):
        unimplemented(
            gb_type="nn.Module with always_call forward hooks",
            context=where,
            explanation=_LIMIT,
            hints=[
                "Register the hook without always_call=True.",
                "Compile with fullgraph=True to trace the module all the same.",
                *graph_break_hints.FUNDAMENTAL,
            ],
        )
    warn_once(
        f"torch.compile(fullgraph=True) of {where}, which has always_call=True "
        f"forward hooks: {_LIMIT} Compile without fullgraph=True if that matters. "
        "See docs/nn_module_hooks.md of torch-hooks, 'always_call'."
    )
    return True
