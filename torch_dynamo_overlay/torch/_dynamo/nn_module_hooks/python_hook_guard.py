"""The guard on module hooks in Python, for where the native one is not built.

The same class, with the same meaning, as ``csrc/hook_guard.c`` builds; what is lost is
speed: it looks at every module at every call. Used by ``module_paths``. Must import
neither Dynamo nor anything of this package but ``state``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from .state import is_plain, KINDS


_Locals: TypeAlias = Mapping[str, Any]
CALLED = ("forward pre-hook", "forward hook", "backward pre-hook", "backward hook")


@dataclasses.dataclass
class _Node:
    parent: int
    key: str
    name: str
    sizes: Sequence[int] | None = None
    check: Callable[[Any], bool] | None = None


class HookGuard:
    """Whether the hooks of a frame's modules are as they were when it was compiled.

    Args:
        report: takes, in place of its items, what was found changed.
        any_global_mark: whether some global hook is marked. The native guard asks it,
            to know whether it has to ask further.
    """

    def __init__(self, report: list[str], any_global_mark: Callable[[], bool]) -> None:
        self._report = report
        self._roots: list[tuple[str | Callable[[_Locals], Any], list[_Node]]] = []

    def add_root(self, getter: str | Callable[[_Locals], Any], name: str) -> int:
        """Add a module that is found without other modules; its node is 0.

        Args:
            getter: name of a local variable of the frame, or a function of them all.
            name: what to call the module in a report.

        Returns:
            The index of the root.
        """
        self._roots.append((getter, [_Node(-1, "", name)]))
        return len(self._roots) - 1

    def add_child(self, root: int, parent: int, key: str, name: str) -> int:
        """Add a module that another has in its ``_modules``.

        Args:
            root: index of the root.
            parent: index of the other's node.
            key: the module's name there.
            name: what to call it in a report.

        Returns:
            The index of its node.
        """
        nodes = self._roots[root][1]
        nodes.append(_Node(parent, key, name))
        return len(nodes) - 1

    def expect(
        self,
        root: int,
        node: int,
        sizes: Sequence[int],
        is_plain: bool,
        check: Callable[[Any], bool],
    ) -> None:
        """Say what the hooks of a module have to be.

        Args:
            root: index of the root.
            node: index of the module's node.
            sizes: number of hooks of each of the ``KINDS``.
            is_plain: whether they are unmarked and in the order of their dicts, which
                the native guard sees without ``check``.
            check: whether order and marks of a module's hooks are as they have to be.
        """
        added = self._roots[root][1][node]
        added.sizes = sizes
        added.check = check if any(sizes) else None

    def __call__(self, frame_locals: _Locals) -> bool:
        """Whether all modules are there, with the hooks that were expected.

        Args:
            frame_locals: the locals of the frame that is about to run.
        """
        return all(
            self._check(getter, nodes, frame_locals) for getter, nodes in self._roots
        )

    def _check(
        self,
        getter: str | Callable[[_Locals], Any],
        nodes: Sequence[_Node],
        frame_locals: _Locals,
    ) -> bool:
        modules: list[Any] = []
        for node in nodes:
            try:
                if node.parent >= 0:
                    module = modules[node.parent].__dict__["_modules"][node.key]
                elif isinstance(getter, str):
                    module = frame_locals[getter]
                else:
                    module = getter(frame_locals)
                modules.append(module)
                change = node.sizes and _change(module.__dict__, node.sizes)
                if not change and node.check and not node.check(module):
                    change = "order or marks of hooks changed"
            except (AttributeError, IndexError, KeyError, TypeError):
                change = "the module is gone"
            if change:
                self._report[:] = [f"{node.name}: {change}"]
                return False
        return True


def _change(attributes: Mapping[str, Any], sizes: Sequence[int]) -> str | None:
    for kind, size, called in zip(KINDS, sizes, CALLED, strict=True):
        hooks = attributes[kind.hooks]
        if not is_plain(hooks):
            return f"{kind.hooks} is of another type"
        if len(hooks) != size:
            return f"{called} {'added' if len(hooks) > size else 'removed'}"
    return None
