"""How thin the patch set is: a table for people, numbers for the README."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    table = Table(
        title=f"Patches on torch {pin.version}", box=None, padding=(0, 2, 0, 0)
    )
    for column in ("patch", "+", "-", "file", "status"):
        table.add_column(column, justify="right" if column in "+-" else "left")
    for patch in patches:
        status = " ".join(patch.trailer("Upstream-Status")).partition(" ")[0]
        name = patch.name.removesuffix(".patch")
        files = ", ".join(file.path for file in patch.files)
        table.add_row(
            name, str(len(patch.added)), str(len(patch.removed)), files, status
        )
        for seam in patch.trailer("Seam"):
            table.add_row(f"  {seam}", style="dim")
    added = sum(len(patch.added) for patch in patches)
    removed = sum(len(patch.removed) for patch in patches)
    table.add_row(
        f"total: {len(patches)} patches", str(added), str(removed), style="bold"
    )
    out.print(table)
    for patch in filter(over_budget, patches):
        reason = " ".join(patch.trailer("Budget")) or "no reason given"
        out.print(f"over budget: {patch.name}: {reason}", markup=False)
    overlay = project.overlay_files()
    lines = sum(data.count(b"\n") for data in overlay.values())
    out.print(f"overlay: {len(overlay)} files, {lines} lines", markup=False)
