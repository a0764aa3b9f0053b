"""The torch that is installed in a virtual environment, without importing it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ToolError
from .native import compiled
from .project import OVERLAY_PACKAGE


if TYPE_CHECKING:
    from .gitrepo import Repo
    from .pins import Pin
    from .project import Project

FIND = (
    "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
)


def site_of_torch(python: Path) -> Path:
    """The site-packages folder that torch lies in, for this interpreter."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", FIND], capture_output=True, encoding="utf-8"
        )
    except OSError as error:
        raise ToolError(
            f"{python}: cannot run it ({error.strerror})", "run `make venv`"
        ) from None
    if not done.stdout.strip():
        raise ToolError(f"{python}: has no torch", "run `make venv`")
    return Path(done.stdout.strip()).parent.parent


def wanted_files(project: Project, pin: Pin, tree: Repo) -> dict[str, bytes]:
    """What a venv should hold: pin files as they stand in `tree`, and the overlay."""
    files = {name: (tree.path / name).read_bytes() for name in pin.base}
    return {**files, **project.overlay_files()}


def stale_files(site: Path, wanted: dict[str, bytes]) -> list[str]:
    """Files of ours in `site` that are not as wanted, or not wanted at all."""
    there = {
        path.relative_to(site).as_posix()
        for path in (site / OVERLAY_PACKAGE).rglob("*.py")
    }
    different = {
        name
        for name, data in wanted.items()
        if not (site / name).is_file() or (site / name).read_bytes() != data
    }
    return sorted(different | (there - set(wanted)))


def sync(project: Project, pin: Pin, tree: Repo, python: Path) -> list[str]:
    """Bring an installed torch up to date without building a wheel."""
    site = site_of_torch(python)
    wanted = wanted_files(project, pin, tree) | compiled(project, python)
    stale = stale_files(site, wanted)
    for name in stale:
        if name in wanted:
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            # The file may be a hard link into an installer's cache: replace it.
            (site / name).unlink(missing_ok=True)
            (site / name).write_bytes(wanted[name])
        else:
            (site / name).unlink()
    return stale
