"""How thin the patch set is: a table for people, numbers for the README."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from .check_static import over_budget
from .pins import load_pin
from .series import load_series
from .ui import out


if TYPE_CHECKING:
    from .project import Project


def show(project: Project) -> None:
    pin = load_pin(project)
    patches = load_series(project, pin.version)
    table = Table(title=f"Patches on torch {pin.version}", box=None)
    for column in ("+", "-"):
        table.add_column(column, justify="right")
    table.add_column("upstream")
    table.add_column("patch, file, seam", overflow="fold")
    for patch in patches:
        status = " ".join(patch.trailer("Upstream-Status")).partition(" ")[0]
        about = [
            f"[bold]{patch.name.removesuffix('.patch')}[/bold]",
            *(file.path for file in patch.files),
            *map(escape, patch.trailer("Seam")),
        ]
        added, removed = len(patch.added), len(patch.removed)
        table.add_row(str(added), str(removed), status, "\n  ".join(about))
    added = sum(len(patch.added) for patch in patches)
    removed = sum(len(patch.removed) for patch in patches)
    total = f"total of {len(patches)} patches"
    table.add_row(str(added), str(removed), "", total, style="bold")
    out.print(table)
    for patch in filter(over_budget, patches):
        reason = " ".join(patch.trailer("Budget")) or "no reason given"
        out.print(f"over budget: {patch.name}: {reason}", markup=False)
    overlay = project.overlay_files()
    lines = sum(data.count(b"\n") for data in overlay.values())
    out.print(f"overlay: {len(overlay)} files, {lines} lines", markup=False)
