"""Which names of the overlay a patched file uses, and whether they exist.

A seam that calls a name the overlay lost would fail only when its line runs, so
the names are resolved here from the sources alone.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .project import OVERLAY_PACKAGE


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = OVERLAY_PACKAGE.replace("/", ".")


def missing_names(
    path: str, source: str, overlay: Mapping[str, bytes]
) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each overlay name that `source` uses in vain."""
    tree = ast.parse(source, path)
    local: dict[str, str] = {}  # name in this file -> dotted overlay module
    for node in ast.walk(tree):
        for name, dotted in _imports(path, node):
            if not _exists(dotted, overlay):
                yield node.lineno, dotted  # type: ignore[attr-defined]
            elif _module_file(dotted, overlay):
                local[name] = dotted
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ".".join(_chain(node, local))
            if dotted and not _exists(dotted, overlay):
                yield node.lineno, dotted


def _imports(path: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    """(name bound, full dotted name) of each import from the overlay in `node`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _inside(alias.name):
                yield alias.asname or alias.name, alias.name
    elif isinstance(node, ast.ImportFrom):
        folder = path.removesuffix(".py").split("/")[: -node.level or None]
        prefix = folder if node.level else []
        module = ".".join([*prefix, *([node.module] if node.module else [])])
        for alias in node.names:
            dotted = f"{module}.{alias.name}"
            if _inside(dotted):
                yield alias.asname or alias.name, dotted


def _inside(dotted: str) -> bool:
    return dotted == PACKAGE or dotted.startswith(PACKAGE + ".")


def _chain(node: ast.Attribute, local: Mapping[str, str]) -> list[str]:
    """`guards.empty` -> overlay module of `guards`, then `empty`; [] if not ours."""
    names: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        names.insert(0, value.attr)
        value = value.value
    if not isinstance(value, ast.Name):
        return []
    names.insert(0, value.id)
    for length in range(len(names), 0, -1):
        module = local.get(".".join(names[:length]))
        if module:
            # Deeper attributes belong to objects, which only running can resolve.
            return [module, *names[length : length + 1]]
    return []


def _module_file(dotted: str, overlay: Mapping[str, bytes]) -> str | None:
    stem = dotted.replace(".", "/")
    candidates = (f"{stem}/__init__.py", f"{stem}.py")
    return next((name for name in candidates if name in overlay), None)


def _exists(dotted: str, overlay: Mapping[str, bytes]) -> bool:
    if _module_file(dotted, overlay):
        return True
    module, _, name = dotted.rpartition(".")
    file = _module_file(module, overlay)
    return bool(file) and name in _defined(str(file), overlay[str(file)])


def _defined(path: str, source: bytes) -> set[str]:
    """Names bound at the top level of a module, also inside `if` and `try`."""
    names: set[str] = set()
    pending: list[ast.AST] = list(ast.parse(source, path).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            pending.extend(ast.iter_child_nodes(node))
    return names
