"""Where a compiled frame finds its modules, for the one guard on all their hooks.

Paths start at a root, a module that is no submodule on the way the frame found it, and
go on through ``_modules``; nothing here is bound to an instance. Used by ``guards``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TYPE_CHECKING

from torch._dynamo.source import (
    AttrSource,
    DictGetItemSource,
    LocalSource,
    NNModuleSource,
)

from .python_hook_guard import CALLED
from .state import any_global_mark, HookState, KINDS, module_hook_state


if TYPE_CHECKING:
    from torch._guards import Source
    from torch.nn import Module

    _Evaluate = Callable[[str], Callable[[Mapping[str, Any]], Any]]

    from .python_hook_guard import HookGuard
else:
    try:
        from ._hook_guard import HookGuard
    except ImportError:
        from .python_hook_guard import HookGuard


@dataclasses.dataclass(frozen=True)
class ExpectedHooks:
    """What the hooks of a module have to be.

    Args:
        sizes: number of hooks of each of the ``KINDS``.
        states: order and marks of each kind, None where there are no hooks.
    """

    sizes: tuple[int, ...]
    states: tuple[HookState | None, ...]

    @staticmethod
    def of(module: Module) -> ExpectedHooks:
        """The hooks that a module has now."""
        sizes = tuple(len(module.__dict__[kind.hooks]) for kind in KINDS)
        if not any(sizes):
            return _NO_HOOKS
        return ExpectedHooks(
            sizes,
            tuple(
                module_hook_state(module, kind) if size else None
                for kind, size in zip(KINDS, sizes, strict=True)
            ),
        )

    def __str__(self) -> str:
        hooks = ", ".join(
            f"{size} {called}{'s' * (size > 1)}"
            for called, size in zip(CALLED, self.sizes, strict=True)
            if size
        )
        return hooks if self.are_plain else f"{hooks}, marked or in another order"

    @functools.cached_property
    def are_plain(self) -> bool:
        """Whether no hook is marked, and all are called in the order of their dicts."""
        return all(
            state is None or state == (tuple(range(size)), *((),) * len(kind.marks))
            for kind, size, state in zip(KINDS, self.sizes, self.states, strict=True)
        )

    def are_those_of(self, module: Module) -> bool:
        """Whether order and marks of a module's hooks are these; sizes are."""
        return all(
            state is None or state == module_hook_state(module, kind)
            for kind, state in zip(KINDS, self.states, strict=True)
        )


_NO_HOOKS = ExpectedHooks((0,) * len(KINDS), (None,) * len(KINDS))


class ModulePaths:
    """The modules of one compiled frame, and the guard on their hooks.

    Args:
        report: takes what the guard is, a line for all modules and one for each that
            has hooks; and in their place, when it fails, what was found changed.
    """

    def __init__(self, report: list[str]) -> None:
        self.guard = HookGuard(report, any_global_mark)
        self._report = report
        self._n_modules = 0
        self._nodes: dict[str, tuple[int, int, str]] = {}

    def expect(
        self, source: Source, expected: ExpectedHooks, evaluate: _Evaluate
    ) -> None:
        """Guard on the hooks of a module.

        Args:
            source: where the frame finds it.
            expected: what its hooks have to be.
            evaluate: makes a function of a frame's locals of an expression over them.
        """
        root, node, name = self._node(source, evaluate)
        self.guard.expect(
            root, node, expected.sizes, expected.are_plain, expected.are_those_of
        )
        self._n_modules += 1
        self._report[:1] = [f"nn.Module hooks as compiled, modules: {self._n_modules}"]
        if any(expected.sizes):
            self._report.append(f"{name}: {expected}")

    def _node(self, source: Source, evaluate: _Evaluate) -> tuple[int, int, str]:
        above = []
        while source.name not in self._nodes and (step := _submodule(source)):
            above.append((source.name, step[1]))
            source = step[0]
        known = self._nodes.get(source.name)
        if known is None:
            unwrapped = _unwrapped(source)
            if isinstance(unwrapped, LocalSource):
                name = unwrapped.local_name
                root = self.guard.add_root(name, name)
            else:
                name = source.name
                root = self.guard.add_root(evaluate(name), name)
            known = self._nodes[source.name] = (root, 0, name)
        for path, key in reversed(above):
            root, parent, name = known
            name = key if (parent, name) == (0, "self") else f"{name}.{key}"
            node = self.guard.add_child(root, parent, key, name)
            known = self._nodes[path] = (root, node, name)
        return known


def _unwrapped(source: Source) -> Source:
    while isinstance(source, NNModuleSource):
        source = source.base
    return source


def _submodule(source: Source) -> tuple[Source, str] | None:
    """The module that has the one at ``source`` as a submodule, and its name there."""
    source = _unwrapped(source)
    if isinstance(source, DictGetItemSource) and isinstance(source.index, str):
        modules = source.base
        if isinstance(modules, AttrSource) and modules.member == "_modules":
            return modules.base, source.index
    return None
