"""Pin files: which PyTorch release we build on, and which of its files may change.

`pins/default` names the pin; `pins/VERSION.toml` holds the upstream commit, our
revision, and the sha256 of each pristine file a patch may touch.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tomlkit
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from .errors import ToolError


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .project import Project

STATUSES = ("candidate", "supported", "retired")


@dataclass(frozen=True)
class Pin:
    path: Path
    version: str
    commit: str
    revision: int
    status: str
    base: Mapping[str, str]

    @property
    def tag(self) -> str:
        return f"pin/{self.version}"

    @property
    def overlay_tag(self) -> str:
        return f"overlay/{self.version}"

    @property
    def branch(self) -> str:
        return f"work/{self.version}"

    def local_version(self, upstream: str) -> str:
        """Our version for a wheel whose `torch/version.py` says `upstream`."""
        separator = "." if Version(upstream).local else "+"
        return f"{upstream}{separator}hooks.{self.revision}"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def default_version(project: Project) -> str:
    path = project.pins / "default"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ToolError(
            f"{project.show(path)}: cannot read the default pin ({error.strerror})",
            "restore it with `git checkout pins/default`",
        ) from None


def load_pin(project: Project) -> Pin:
    """The default pin, with every field checked."""
    path = project.pins / f"{default_version(project)}.toml"
    shown = project.show(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ToolError(
            f"{shown}: cannot read the pin named in pins/default ({error.strerror})",
            "name an existing pin in pins/default",
        ) from None
    except ValueError as error:
        raise ToolError(f"{shown}: not valid TOML: {error}", f"edit {shown}") from None
    try:
        pin = Pin(
            path=path,
            version=str(Version(data["version"])),
            commit=data["commit"],
            revision=int(data["revision"]),
            status=data["status"],
            base=dict(data["base"]),
        )
    except KeyError as error:
        raise ToolError(f"{shown}: {error} is missing", f"add it to {shown}") from None
    except (InvalidVersion, TypeError, ValueError) as error:
        raise ToolError(f"{shown}: {error}", f"edit {shown}") from None
    problem = _problem(pin)
    if problem:
        raise ToolError(f"{shown}: {problem}", f"edit {shown}")
    return pin


def _problem(pin: Pin) -> str | None:
    if pin.version != pin.path.stem:
        return f"version {pin.version} does not match the file's name"
    if not re.fullmatch(r"[0-9a-f]{40}", pin.commit):
        return f"commit {pin.commit!r} is not a full 40-digit hash"
    if pin.revision < 1:
        return f"revision {pin.revision} is not 1 or more"
    if pin.status not in STATUSES:
        return f"status {pin.status!r} is not one of {', '.join(STATUSES)}"
    for name, digest in pin.base.items():
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            return f"[base] {name}: {digest!r} is not a sha256"
    return None


def base_requirement(project: Project) -> Requirement:
    """The one requirement in requirements/base.txt: the wheel we start from."""
    path = project.base_requirement
    shown = project.show(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(
            f"{shown}: cannot read it ({error.strerror})", f"git checkout {shown}"
        ) from None
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if len(lines) != 1:
        raise ToolError(
            f"{shown}: expected one requirement, found {len(lines)}",
            f"leave only `torch==VERSION` in {shown}",
        )
    try:
        return Requirement(lines[0])
    except InvalidRequirement as error:
        raise ToolError(f"{shown}: {error}", f"edit {shown}") from None


def check_base(pin: Pin, files: Mapping[str, bytes], source: str) -> None:
    """Every pristine file in `source` is the one the pin was made from."""
    for name, digest in pin.base.items():
        if name not in files:
            raise ToolError(
                f"{source}: {name} is missing, but pins/{pin.path.name} names it",
                f"use the official torch {pin.version}, or remove it from the pin",
            )
        if sha256(files[name]) != digest:
            raise ToolError(
                f"{source}: {name} differs from the pristine file in "
                f"pins/{pin.path.name} (sha256 {sha256(files[name])[:12]}..., "
                f"the pin says {digest[:12]}...)",
                f"use an unmodified torch {pin.version} from PyPI "
                "(`python -m tools fetch`)",
            )


def add_base(pin: Pin, files: Mapping[str, bytes]) -> None:
    """Write `files` into the pin's [base] table, keeping its comments and order."""
    document = tomlkit.parse(pin.path.read_text(encoding="utf-8"))
    table = document["base"]
    merged = {**pin.base, **{name: sha256(data) for name, data in files.items()}}
    table.clear()
    for name in sorted(merged):
        table[name] = merged[name]
    pin.path.write_text(tomlkit.dumps(document), encoding="utf-8")
