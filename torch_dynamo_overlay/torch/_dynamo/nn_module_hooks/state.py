"""What the hooks of a module are, as far as ``nn.Module.__call__`` can tell.

Pure functions over modules and their hook dicts, read at compile time and by the
guards at every call. Imported by ``guards`` and ``variables``; must import neither
Dynamo nor anything else of this package.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias

from torch.nn import Module
from torch.nn.modules import module as nn_module


HookDict: TypeAlias = dict[int, Any]

# The calling order of the hooks, then for each mark the positions of marked hooks.
HookState: TypeAlias = tuple[tuple[int, ...], ...]


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
BACKWARD_HOOK_DICTS = frozenset(("_backward_pre_hooks", "_backward_hooks"))
MODULE_HOOK_DICTS = MARKS | {kind.hooks for kind in KINDS}
GLOBAL_HOOK_DICTS = frozenset(
    f"_global{name}"
    for name in MODULE_HOOK_DICTS
    if hasattr(nn_module, f"_global{name}")
)


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


def has_call_hooks(module: Module) -> bool:
    """Whether calling ``module`` runs any hook, of its own or global."""
    return any(
        module.__dict__.get(kind.hooks) or global_hook_dict(kind.hooks)
        for kind in KINDS
    )


def kind_of(name: str) -> HookKind:
    """The kind of hook that the hook dict ``name`` belongs to."""
    return next(kind for kind in KINDS if name == kind.hooks or name in kind.marks)


def any_global_mark() -> bool:
    """Whether some global hook was registered with kwargs or ``always_call``."""
    return any(global_hook_dict(mark) for mark in MARKS)


def module_hook_state(module: Module, kind: HookKind) -> HookState:
    """Order and marks of the hooks of one kind that a call of ``module`` runs.

    Marks belong to a hook id, wherever that hook is registered: eager looks the ids
    of global hooks up among the module's marks too, and the other way round.
    """
    dicts = module.__dict__
    own = dicts[kind.hooks]
    hook_ids = (*global_hook_dict(kind.hooks), *own)
    return (
        _calling_order(own),
        *(
            _marked(hook_ids, dicts[mark], global_hook_dict(mark))
            for mark in kind.marks
        ),
    )


def global_hook_state(kind: HookKind) -> HookState:
    """Order and marks of the global hooks of one kind."""
    hooks = global_hook_dict(kind.hooks)
    return (
        _calling_order(hooks),
        *(_marked(hooks, {}, global_hook_dict(mark)) for mark in kind.marks),
    )


def _calling_order(hooks: HookDict) -> tuple[int, ...]:
    """Positions, in the dict underneath, of hooks in the order eager calls them.

    ``OrderedDict.move_to_end``, and so ``prepend=True``, reorders a linked list that
    the dict underneath, its version and its watchers know nothing of.
    """
    position = {hook_id: i for i, hook_id in enumerate(dict.keys(hooks))}
    return tuple(map(position.__getitem__, hooks))


def _marked(
    hook_ids: Iterable[int], own: HookDict, shared: HookDict
) -> tuple[int, ...]:
    """Which of ``hook_ids``, by position, are marked in either dict."""
    if not own and not shared:
        return ()
    return tuple(
        i for i, hook_id in enumerate(hook_ids) if hook_id in own or hook_id in shared
    )
