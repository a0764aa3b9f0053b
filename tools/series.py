"""Patch files and the `series` file that orders them (quilt format).

A patch is parsed into what the checks and the error messages need: the mail
header, the git trailers, and each hunk of the diff. Applying one is git's job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from .errors import ToolError
from .gitrepo import Repo


if TYPE_CHECKING:
    from pathlib import Path

    from .project import Project

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Hunk:
    old_start: int
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """One `diff --git` section; `header` holds its lines up to the first hunk."""

    path: str
    header: tuple[str, ...]
    hunks: tuple[Hunk, ...]

    @property
    def added(self) -> list[str]:
        return [line for hunk in self.hunks for line in hunk.added]

    @property
    def removed(self) -> list[str]:
        return [line for hunk in self.hunks for line in hunk.removed]

    def index(self) -> tuple[str, str] | None:
        """The blob hashes before and after, if the index line is complete."""
        for line in self.header:
            match = re.fullmatch(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40}) 100644", line)
            if match:
                return match[1], match[2]
        return None


@dataclass(frozen=True)
class Patch:
    path: Path
    from_line: str
    author: str
    date: str
    subject: str
    body: str
    trailers: tuple[tuple[str, str], ...]
    files: tuple[FileDiff, ...]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def added(self) -> list[str]:
        return [line for file in self.files for line in file.added]

    @property
    def removed(self) -> list[str]:
        return [line for file in self.files for line in file.removed]

    def trailer(self, key: str) -> list[str]:
        return [value for name, value in self.trailers if name == key]


def parse_patch(path: Path) -> Patch:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(
            f"{path}: cannot read the patch ({error})",
            "restore it, or write it again with `python -m tools export`",
        ) from None
    head, mark, diff = ("\n" + text).partition("\ndiff --git ")
    if not mark:
        raise ToolError(
            f"{path}: there is no `diff --git` line in it",
            "write it again with `python -m tools export`",
        )
    from_line, _, mail = head.removeprefix("\n").partition("\n")
    message = HeaderParser().parsestr(mail)
    body = str(message.get_payload())
    return Patch(
        path=path,
        from_line=from_line,
        author=_unfold(message["From"]),
        date=_unfold(message["Date"]),
        subject=_unfold(message["Subject"]),
        body=body,
        trailers=_trailers(Repo(path.parent), _unfold(message["Subject"]), body),
        files=tuple(_files("diff --git " + diff)),
    )


def _unfold(value: str | None) -> str:
    return re.sub(r"\s*\n\s+", " ", value or "")


def _trailers(repo: Repo, subject: str, body: str) -> tuple[tuple[str, str], ...]:
    """Trailers as git reads them; it alone decides what is one."""
    text = repo.raw(
        *("interpret-trailers", "--parse", "--no-divider"),
        stdin=f"{subject}\n\n{body}".encode(),
    ).decode()
    pairs = (line.partition(": ") for line in text.splitlines())
    return tuple((key, value) for key, _, value in pairs)


def _files(diff: str) -> list[FileDiff]:
    files = []
    for section in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)[1:]:
        lines = section.split("\n")
        match = re.fullmatch(r"diff --git a/(.+) b/(.+)", lines[0])
        start = next((i for i, x in enumerate(lines) if HUNK.match(x)), len(lines))
        files.append(
            FileDiff(
                path=match[2] if match else lines[0],
                header=tuple(lines[:start]),
                hunks=tuple(_hunks(lines[start:])),
            )
        )
    return files


def _hunks(lines: list[str]) -> list[Hunk]:
    hunks = []
    i = 0
    while i < len(lines) and (match := HUNK.match(lines[i])):
        old_left, new_left = (int(match[group] or 1) for group in (2, 4))
        added, removed = [], []
        i += 1
        while i < len(lines) and (old_left > 0 or new_left > 0):
            line = lines[i]
            i += 1
            if line.startswith("+"):
                added.append(line[1:])
                new_left -= 1
            elif line.startswith("-"):
                removed.append(line[1:])
                old_left -= 1
            elif not line.startswith("\\"):
                old_left -= 1
                new_left -= 1
        if i < len(lines) and lines[i].startswith("\\"):
            i += 1
        hunks.append(Hunk(int(match[1]), tuple(added), tuple(removed)))
    return hunks


def series_names(project: Project, version: str) -> list[str]:
    path = project.patches(version) / "series"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(
            f"{project.show(path)}: cannot read it ({error.strerror})",
            "restore it, or write it again with `python -m tools export`",
        ) from None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def series_paths(project: Project, version: str) -> list[Path]:
    """The patch files in order; one that is missing or not listed is an error."""
    folder = project.patches(version)
    paths = [folder / name for name in series_names(project, version)]
    for path in sorted(set(folder.glob("*.patch")) - set(paths)):
        series = project.show(folder / "series")
        raise ToolError(
            f"{project.show(path)}: not listed in series, so it would be left out",
            f"add it to {series}, or delete it",
        )
    for path in paths:
        if not path.is_file():
            raise ToolError(
                f"{project.show(path)}: listed in series, but there is no such file",
                f"restore it, or remove it from {project.show(folder / 'series')}",
            )
    return paths


def load_series(project: Project, version: str) -> list[Patch]:
    return [parse_patch(path) for path in series_paths(project, version)]


def render_series(old: str, names: list[str]) -> str:
    """`names` in order, each under the comment lines that stood above it before.

    The comments above a name that is gone go with it.
    """
    comments: dict[str, list[str]] = {}
    pending: list[str] = []
    for line in old.splitlines():
        name = line.partition("#")[0].strip()
        if name:
            comments[name], pending = pending, []
        else:
            pending.append(line)
    lines = [line for name in names for line in (*comments.get(name, ()), name)]
    return "".join(f"{line}\n" for line in [*lines, *pending])
