"""What the frames of ``nn.Module.__call__`` hold while Dynamo traces them.

Used by ``call_impl``, ``legacy_hooks`` and ``backward_variables``. Must not import
``guards``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._dynamo.variables.misc import CellVariable
from torch.nn.modules import module as nn_module


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


def is_inner(tx: InstructionTranslatorBase) -> bool:
    """Whether a frame is that of the function ``inner`` of ``_call_impl``.

    Args:
        tx: the frame being traced.
    """
    code = tx.f_code
    return code.co_name == "inner" and code.co_filename == nn_module.__file__


def local(tx: InstructionTranslatorBase, name: str) -> VariableTracker:
    """What a local variable of a frame holds, be it a cell or not.

    Args:
        tx: the frame being traced.
        name: name of the variable.
    """
    variable = tx.symbolic_locals[name]
    if isinstance(variable, CellVariable):
        variable = tx.output.side_effects.load_cell(variable)
    return variable.realize()
