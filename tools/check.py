"""The registry of checks, and how they are run and shown.

A check is a small function that yields problems. Static checks read this
checkout only; tree checks also need the base wheel. What a check needs and does
not find is a problem too: nothing is ever skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.table import Table

from . import basewheel
from .errors import ToolError
from .gitrepo import GitError
from .pins import load_pin
from .series import load_series
from .ui import out


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .basewheel import BaseWheel
    from .pins import Pin
    from .project import Project
    from .series import Patch


@dataclass(frozen=True)
class Problem:
    what: str
    next_step: str


class Context:
    """What the checks look at, read once each. Raises ToolError if unreadable."""

    def __init__(self, project: Project, wheel: Path | None = None) -> None:
        self.project = project
        self._wheel = wheel

    @cached_property
    def pin(self) -> Pin:
        return load_pin(self.project)

    @cached_property
    def patches(self) -> list[Patch]:
        return load_series(self.project, self.pin.version)

    @cached_property
    def base(self) -> BaseWheel:
        return basewheel.find(self.project, self.pin, self._wheel)

    @cached_property
    def pristine(self) -> dict[str, bytes]:
        return self.base.read(list(self.pin.base))

    def show(self, patch: Patch) -> str:
        return self.project.show(patch.path)


Function = Callable[["Context"], "Iterator[Problem]"]


@dataclass(frozen=True)
class Check:
    id: str
    title: str
    run: Function


class Checks:
    """A list of checks that its functions join by decorator."""

    def __init__(self) -> None:
        self.all: list[Check] = []

    def __call__(self, id: str, title: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            self.all.append(Check(id, title, function))
            return function

        return register


def run(checks: list[Check], context: Context) -> dict[Check, list[Problem]]:
    return {check: _problems(check, context) for check in checks}


def _problems(check: Check, context: Context) -> list[Problem]:
    try:
        return list(check.run(context))
    except ToolError as error:
        return [Problem(error.what, error.next_step)]
    except GitError as error:
        return [Problem(str(error), "put that right, then check again")]
    except SyntaxError as error:
        what = f"{error.filename}:{error.lineno}: {error.msg}"
        return [Problem(what, "correct that file")]


def show(results: dict[Check, list[Problem]]) -> bool:
    """Print the table; True if every check passed."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("id")
    table.add_column("what must hold")
    table.add_column("result")
    for check, problems in results.items():
        state = f"[red]{len(problems)} failed[/red]" if problems else "ok"
        table.add_row(check.id, check.title, state)
    out.print(table)
    # One cause often fails several checks: say it once.
    ids: dict[Problem, list[str]] = {}
    for check, problems in results.items():
        for problem in problems:
            ids.setdefault(problem, []).append(check.id)
    for problem, failed in ids.items():
        out.print(f"\n{' '.join(failed)} {problem.what}", markup=False, style="red")
        out.print(f"  next: {problem.next_step}", markup=False)
    return not any(results.values())
