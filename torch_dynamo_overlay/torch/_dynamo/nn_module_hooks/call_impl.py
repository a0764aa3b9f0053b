"""Which branches of ``nn.Module._call_impl`` a compiled call has to take.

Called by the seam in the handler of Dynamo's tracing state functions
(``torch.compiler.is_compiling`` and its like). Must not import ``guards``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._dynamo import config
from torch._dynamo.variables.misc import CellVariable
from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


def runs_always_called_hooks(
    tx: InstructionTranslatorBase, function: object
) -> bool:
    """Whether ``_call_impl`` asks if it is compiled only to spare its handler.

    When it is told that it is compiled, it lets an exception of ``forward`` pass and
    skips the hooks registered with ``always_call=True``. It is told the contrary
    where such hooks exist; elsewhere the handler would only cost compile time.

    Args:
        tx: the frame being traced.
        function: the tracing state function it calls.
    """
    if (
        function is not torch.compiler.is_compiling
        or tx.f_code is not torch.nn.Module._call_impl.__code__
        or config.skip_nnmodule_hook_guards
    ):
        return False
    module = tx.symbolic_locals["self"]
    if isinstance(module, CellVariable):
        module = tx.output.side_effects.load_cell(module)
    module = module.realize()
    if not isinstance(module, UnspecializedNNModuleVariable):
        return False
    always_called = "_forward_hooks_always_called"
    own = module.tp_getattro_impl(tx, always_called)
    shared = tx.nn_modules_globals_vt.tp_getattro_impl(tx, f"_global{always_called}")
    return any(bool(hooks.realize().len()) for hooks in (own, shared))
