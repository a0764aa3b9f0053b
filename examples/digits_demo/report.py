"""Show verdicts as a table, and pass them between interpreters as JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from .comparison import Tally, Verdict


def write_json(verdicts: list[Verdict], path: Path) -> None:
    path.write_text(json.dumps([dataclasses.asdict(v) for v in verdicts], indent=1))


def read_json(path: Path) -> list[Verdict]:
    tallies = ("values", "gradients", "calls")
    return [
        Verdict(**row | {name: Tally(**row[name]) for name in tallies})
        for row in json.loads(path.read_text())
    ]


def show(verdicts: list[Verdict], pristine: list[Verdict] | None) -> None:
    """Print the table, and below it what each difference is.

    Args:
        verdicts: of this interpreter.
        pristine: of the other one, if it was asked for; empty if it failed.
    """
    # Here, for the other interpreter needs no more than PyTorch and the data.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # A table that a narrow terminal wraps is better than one that is cut.
    console = Console(width=max(120, Console().width))
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("scenario")
    for heading in ("values\nas eager", "gradients\nas eager", "calls\nas eager"):
        table.add_column(heading, justify="right")
    for heading in ("new\ngraphs", "new\nbreaks", "graphs\nper step"):
        table.add_column(heading, justify="right")
    for heading in ("eager\nms", "compiled\nms"):
        table.add_column(heading, justify="right")
    if pristine is not None:
        for heading in ("pristine:\nas eager", "new\ngraphs", "new\nbreaks"):
            table.add_column(heading, justify="right", style="dim")
    others = {verdict.title: verdict for verdict in pristine or ()}
    for verdict in verdicts:
        cells = [verdict.title]
        cells += map(_cell, (verdict.values, verdict.gradients, verdict.calls))
        cells += map(str, (verdict.graphs, verdict.breaks, verdict.pieces))
        cells += [f"{verdict.eager_ms:.1f}", f"{verdict.compiled_ms:.1f}"]
        if verdict.title in others:
            other = others[verdict.title]
            cells += [
                "yes" if other.equal else "[bold red]DIFFERENT",
                str(other.graphs),
                str(other.breaks),
            ]
        elif pristine is not None:
            cells += ["[red]failed", "", ""]
        table.add_row(*cells)
    console.print(table)
    for name, rows in (("", verdicts), ("pristine, ", pristine or [])):
        for verdict in rows:
            for fault in _faults(verdict):
                console.print(
                    f"{name}{verdict.title}: {fault}", markup=False, highlight=False
                )


def _cell(tally: Tally) -> str:
    if not tally.equal:
        return "[bold red]DIFFERENT"
    return f"yes {tally.compared:4}" if tally.compared else "-"


def _faults(verdict: Verdict) -> list[str]:
    faults = [f"raised {verdict.error}"] if verdict.error else []
    for name in ("values", "gradients", "calls"):
        difference = getattr(verdict, name).difference
        if difference:
            faults.append(f"{name}: {difference}" if name != "calls" else difference)
    return faults + verdict.problems
