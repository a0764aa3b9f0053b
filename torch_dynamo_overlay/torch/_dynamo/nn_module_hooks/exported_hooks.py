"""Hooks that an exported program leaves out, and what is said of them.

Called by the seam in ``torch.export``'s ``_export``: a program has what forward hooks
compute, not what they do in Python, nor hooks that fire in backward. Must not import
``variables`` or anything else that traces.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch._dynamo.exc import UserError, UserErrorType

from .hook_code import effects_of
from .hook_frames import forward_hooks
from .hook_identity import described
from .hook_values import Unclear
from .state import BACKWARD_HOOK_DICTS, global_hook_dict


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.nn import Module


_PAGE = "See docs/nn_module_hooks.md of torch-hooks, 'Limits'."


def check_hooks(root: Module, strict: bool) -> None:
    """Say which hooks of a module will not be in the program that is exported of it.

    Args:
        root: the module.
        strict: whether Dynamo traces it, which no hook that fires in backward allows.

    Raises:
        torch._dynamo.exc.UserError: for such a hook.
    """
    in_backward = [*_left_out_in_backward(root)]
    if in_backward and strict:
        raise UserError(
            UserErrorType.ANTI_PATTERN,
            f"torch.export(strict=True) cannot export {', '.join(in_backward)}: an "
            "exported program has no hooks that fire in backward. Remove them before "
            f"exporting, or export with strict=False, which leaves them out. {_PAGE}",
        )
    left_out = [*in_backward, *_left_out_in_python(root)]
    if left_out:
        warnings.warn(
            f"torch.export leaves out {', '.join(left_out)}: an exported program has "
            "what forward hooks compute, not what they do in Python, nor hooks that "
            f"fire in backward. Remove them before exporting if that is meant. {_PAGE}",
            stacklevel=7,
        )


def _left_out_in_backward(root: Module) -> Iterator[str]:
    for name in sorted(BACKWARD_HOOK_DICTS):
        kind = name.strip("_").removesuffix("s").replace("_", " ")
        for hook in global_hook_dict(name).values():
            yield f"the global {kind} {described(hook)}"
        for path, module in root.named_modules():
            for hook in module.__dict__[name].values():
                yield f"the {kind} {described(hook)} of {path or 'the root module'}"


def _left_out_in_python(root: Module) -> Iterator[str]:
    """The hooks that return nothing and edit nothing: what they do is in Python."""
    for path, module in root.named_modules():
        for hook, n in forward_hooks(module):
            try:
                effects_of(hook, module, n)
            except Unclear:
                continue
            where = path or "the root module"
            yield f"the forward hook {described(hook)} of {where}"
