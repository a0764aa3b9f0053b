"""Progress and tables. On a terminal they move; in a log they stay quiet."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """A line for a person, on stderr: stdout belongs to results."""
    err.print(text, markup=False)


def warn(what: str, next_step: str) -> None:
    """What a person should know of, though the work goes on."""
    say(f"warning: {what}\n  next: {next_step}")


@contextmanager
def progress(
    title: str, total: int, count: ProgressColumn | None = None
) -> Iterator[Callable[[int], None]]:
    """A bar over `total` bytes (or what `count` shows); yields what advances it."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        count or DownloadColumn(),
        TimeElapsedColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
