"""Write the commits of branch work/VERSION back as patch files.

The git flags make export -> apply -> export byte-identical, so the patch files
and the commits are two forms of the same thing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import ToolError
from .gitrepo import Repo
from .series import render_series


if TYPE_CHECKING:
    from .pins import Pin
    from .project import Project

FLAGS = (
    "--zero-commit",
    "--no-signature",
    "--no-stat",
    "--keep-subject",
    "--no-numbered",
    "--full-index",
)


def file_name(subject: str) -> str:
    """`[dynamo] Route hook guards` -> `dynamo_route_hook_guards.patch`."""
    return re.sub(r"[^a-z0-9]+", "_", subject.lower()).strip("_") + ".patch"


def render(repo: Repo, pin: Pin) -> dict[str, bytes]:
    """Each commit after the overlay as a patch file, in order."""
    patches: dict[str, bytes] = {}
    commits = repo.run("rev-list", "--reverse", f"{pin.overlay_tag}..{pin.branch}")
    for commit in commits.split():
        subject = repo.run("show", "-s", "--format=%s", commit)
        name = file_name(subject)
        if name in patches:
            raise ToolError(
                f"two commits would both be written to {name}: {subject!r}",
                f"`git rebase -i {pin.overlay_tag}` in {repo.path}: "
                "squash one into the other, or reword it",
            )
        touched = repo.run("diff-tree", "-r", "--name-only", "--no-commit-id", commit)
        for path in touched.splitlines():
            if path not in pin.base:
                raise ToolError(
                    f"commit {commit[:10]} ({subject}) changes {path}, "
                    f"which pins/{pin.path.name} does not name",
                    f"`python -m tools pin add {path}`, or edit our own files in "
                    "torch_dynamo_overlay instead",
                )
        patches[name] = repo.raw("format-patch", "-1", "--stdout", *FLAGS, commit)
    return patches


def differences(project: Project, pin: Pin, patches: dict[str, bytes]) -> list[str]:
    """How the patch folder differs from what `patches` would make of it."""
    folder = project.patches(pin.version)
    found = []
    for name, data in patches.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{project.show(path)}: missing")
        elif path.read_bytes() != data:
            found.append(f"{project.show(path)}: differs")
    for path in sorted(folder.glob("*.patch")):
        if path.name not in patches:
            found.append(f"{project.show(path)}: no commit makes it")
    series = folder / "series"
    old = series.read_text(encoding="utf-8") if series.is_file() else ""
    if not series.is_file() or render_series(old, list(patches)) != old:
        found.append(f"{project.show(series)}: differs")
    return found


def mark_saved(repo: Repo, pin: Pin) -> None:
    """Remember that branch work/VERSION and the patch files say the same now."""
    repo.run("update-ref", _saved_ref(pin), pin.branch)


def unsaved(repo: Repo, pin: Pin) -> str | None:
    """Why rebuilding work/VERSION would lose commits, if it would."""
    # Comparing with the patch files would not do: they may just have been pulled.
    if repo.has(_saved_ref(pin)) and repo.run("rev-parse", pin.branch) == repo.run(
        "rev-parse", _saved_ref(pin)
    ):
        return None
    return f"branch {pin.branch} has commits that were not exported"


def _saved_ref(pin: Pin) -> str:
    return f"refs/torch-hooks/saved/{pin.version}"


def export(project: Project, pin: Pin, *, dry_run: bool = False) -> list[str]:
    """Write the patch folder from `.work/torch`; returns what was different."""
    repo = Repo(project.tree)
    shown = project.show(project.tree)
    if not (project.tree / ".git").exists() or not repo.has(pin.branch):
        raise ToolError(
            f"{shown}: there is no branch {pin.branch}",
            "run `python -m tools fetch`, then `python -m tools apply`",
        )
    problem = repo.state_problem()
    if problem:
        raise ToolError(f"{shown}: {problem}", "commit or finish it, then export")
    if repo.run("rev-parse", "--abbrev-ref", "HEAD") != pin.branch:
        raise ToolError(
            f"{shown}: not on branch {pin.branch}",
            f"`git -C {shown} checkout {pin.branch}`",
        )
    patches = render(repo, pin)
    found = differences(project, pin, patches)
    if dry_run:
        return found
    folder = project.patches(pin.version)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.patch"):
        if path.name not in patches:
            path.unlink()
    for name, data in patches.items():
        (folder / name).write_bytes(data)
    series = folder / "series"
    old = series.read_text(encoding="utf-8") if series.is_file() else ""
    series.write_text(render_series(old, list(patches)), encoding="utf-8")
    mark_saved(repo, pin)
    return found
