"""What the hooks of a module are, as far as ``nn.Module.__call__`` can tell.

Pure functions over modules and their hook dicts, read at compile time and by the
guards at every call. Imported by ``guards`` and ``variables``; must import neither
Dynamo nor anything else of this package.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, TypeAlias

from torch.nn import Module
from torch.nn.modules import module as nn_module


HookDict: TypeAlias = dict[int, Any]

# Per kind of hook: its calling order, then per mark the flag of each hook.
HookState: TypeAlias = tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class HookKind:
    """A kind of hook that ``nn.Module.__call__`` runs.

    Args:
        hooks: attribute of ``nn.Module`` that maps hook id to hook. The registry
            of the kind's global hooks is ``torch.nn.modules.module._global<hooks>``.
        marks: attributes that map the ids of specially registered hooks to True.
    """

    hooks: str
    marks: tuple[str, ...] = ()


KINDS = (
    HookKind("_forward_pre_hooks", ("_forward_pre_hooks_with_kwargs",)),
    HookKind(
        "_forward_hooks",
        ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    ),
    HookKind("_backward_pre_hooks"),
    HookKind("_backward_hooks"),
)
MARKS = frozenset(mark for kind in KINDS for mark in kind.marks)
MODULE_HOOK_DICTS = MARKS | {kind.hooks for kind in KINDS}
GLOBAL_HOOK_DICTS = {
    f"_global{name}"
    for name in MODULE_HOOK_DICTS
    if hasattr(nn_module, f"_global{name}")
}


def global_hook_dict(name: str) -> HookDict:
    """The registry of global hooks beside the hook dict ``name``, or an empty one."""
    return getattr(nn_module, f"_global{name}", {})


def global_hook_dict_name(value: object) -> str | None:
    """The name in ``torch.nn.modules.module`` of a global hook dict, or None."""
    for name in GLOBAL_HOOK_DICTS:
        if value is getattr(nn_module, name):
            return name
    return None


def is_plain(hooks: object) -> bool:
    """Whether ``hooks`` is iterated as Dynamo models it: no dict of a user's own."""
    return type(hooks) in (dict, collections.OrderedDict)


def calling_order(hooks: HookDict) -> tuple[int, ...]:
    """Positions, in the dict underneath, of hooks in the order eager calls them.

    ``OrderedDict.move_to_end``, and so ``prepend=True``, reorders a linked list that
    the dict underneath, its version and its watchers know nothing of.
    """
    position = {hook_id: i for i, hook_id in enumerate(dict.keys(hooks))}
    return tuple(position[hook_id] for hook_id in hooks)


def any_global_mark() -> bool:
    """Whether some global hook was registered with kwargs or ``always_call``."""
    return any(global_hook_dict(mark) for mark in MARKS)


def global_hook_state() -> HookState:
    """Order and marks of all global hooks."""
    return tuple(
        (
            calling_order(hooks := global_hook_dict(kind.hooks)),
            *(
                tuple(hook_id in global_hook_dict(mark) for hook_id in hooks)
                for mark in kind.marks
            ),
        )
        for kind in KINDS
    )


def module_hook_state(module: Module) -> HookState:
    """Order and marks of the hooks that a call of ``module`` runs.

    Marks belong to a hook id, wherever that hook is registered: eager looks the ids
    of global hooks up among the module's marks too, and the other way round.
    """
    dicts = module.__dict__
    return tuple(
        (
            calling_order(dicts[kind.hooks]),
            *(
                tuple(
                    hook_id in dicts[mark] or hook_id in global_hook_dict(mark)
                    for hook_id in (*global_hook_dict(kind.hooks), *dicts[kind.hooks])
                )
                for mark in kind.marks
            ),
        )
        for kind in KINDS
    )
