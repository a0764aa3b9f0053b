"""The official wheel we start from: find it, download it, and prove it is the one.

`TORCH_WHEEL` (or `--wheel`) names one and needs no network; otherwise pip
downloads what requirements/base.txt asks for into `.work/wheels`, once.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from .errors import ToolError
from .pins import base_requirement, check_base
from .ui import err, say


if TYPE_CHECKING:
    from .pins import Pin
    from .project import Project

VERSION_FILE = "torch/version.py"


@dataclass(frozen=True)
class BaseWheel:
    path: Path
    dist_info: str  # "torch-2.15.0.dist-info"
    upstream: str  # `__version__` in torch/version.py: "2.15.0+cu132"

    def read(self, names: list[str]) -> dict[str, bytes]:
        """The named members; those the wheel does not have are left out."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                there = set(archive.namelist())
                return {name: archive.read(name) for name in names if name in there}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise corrupt(self.path, error) from None

    def names(self) -> list[str]:
        with zipfile.ZipFile(self.path) as archive:
            return archive.namelist()


def corrupt(path: Path, error: object) -> ToolError:
    return ToolError(
        f"{path}: the wheel is corrupt or truncated ({error})",
        "delete it and get it again (`python -m tools fetch`, without TORCH_WHEEL)",
    )


def find(project: Project, pin: Pin, wheel: Path | None = None) -> BaseWheel:
    """The base wheel, checked against the pin; downloaded if it must be."""
    given = wheel or given_wheel()
    return open_base(pin, given or _cached(project, pin) or _download(project, pin))


def given_wheel() -> Path | None:
    """The wheel TORCH_WHEEL names, relative to where the user typed the command."""
    value = os.environ.get("TORCH_WHEEL")
    if not value:
        return None
    path = Path(value).expanduser()
    # pip runs a build backend in the source folder; PWD still is the caller's.
    caller = Path(os.environ.get("PWD", ".")) / path
    return caller if caller.exists() else Path.cwd() / path


def open_base(pin: Pin, path: Path) -> BaseWheel:
    """Check name, version, commit and every pristine file the pin names."""
    if not path.is_file():
        raise ToolError(
            f"{path}: there is no such wheel",
            "check TORCH_WHEEL or --wheel, or unset it to download from PyPI",
        )
    wanted = f"use a wheel of torch {pin.version} (`python -m tools fetch`)"
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise ToolError(f"{path}: {error}", wanted) from None
    if name != "torch" or version.public != pin.version:
        raise ToolError(
            f"{path}: this is {name} {version}, but the pin is torch {pin.version}",
            wanted,
        )
    if version.local and "hooks" in version.local:
        raise ToolError(f"{path}: this wheel was built by us already", wanted)
    try:
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            text = archive.read(VERSION_FILE).decode("utf-8")
            files = {n: archive.read(n) for n in pin.base if n in members}
    except KeyError:
        raise corrupt(path, f"{VERSION_FILE} is missing") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise corrupt(path, error) from None
    values = _assigned_strings(text)
    upstream, commit = values.get("__version__", ""), values.get("git_version")
    if not upstream or Version(upstream).public != pin.version:
        raise ToolError(
            f"{path}: {VERSION_FILE} says {upstream or 'nothing'}, "
            f"but the pin is torch {pin.version}",
            wanted,
        )
    if commit != pin.commit:
        raise ToolError(
            f"{path}: {VERSION_FILE} says commit {commit}, "
            f"but pins/{pin.path.name} says {pin.commit}",
            wanted,
        )
    check_base(pin, files, str(path))
    dist_infos = {m.split("/")[0] for m in members if ".dist-info/" in m}
    if len(dist_infos) != 1:
        raise corrupt(path, f"{len(dist_infos)} dist-info folders")
    return BaseWheel(path, dist_infos.pop(), upstream)


def _assigned_strings(source: str) -> dict[str, str]:
    """Every `name = "text"` at the top level of a module."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                for target in targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = value.value
    return found


def _cached(project: Project, pin: Pin) -> Path | None:
    """An earlier download of this version that this Python can install."""
    supported = set(sys_tags())
    for path in sorted(project.wheels.glob("torch-*.whl")):
        try:
            _, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if version.public == pin.version and tags & supported:
            return path
    return None


def _download(project: Project, pin: Pin) -> Path:
    base_requirement(project)
    project.wheels.mkdir(parents=True, exist_ok=True)
    say(f"downloading torch {pin.version} (about 540 MB) into .work/wheels")
    # An interrupted download must not be mistaken for a wheel the next time.
    with tempfile.TemporaryDirectory(dir=project.wheels) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder]
        command += ["-r", str(project.base_requirement)]
        if not err.is_terminal:
            command += ["--quiet", "--progress-bar=off"]
        # The requirement is exact: a machine-wide constraint could only forbid it.
        env = {"PIP_CONSTRAINT": os.devnull, **os.environ}
        if subprocess.run(command, env=env, stdout=sys.stderr).returncode:
            raise ToolError(
                f"pip could not download {base_requirement(project)} "
                "(its own message is above)",
                "check the network, or name a wheel you have: "
                "TORCH_WHEEL=path/to/torch.whl",
            )
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.rename(project.wheels / wheel.name)
