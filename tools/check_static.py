"""Checks that need this checkout only: no torch, no wheel, a second at most."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from .check import Checks, Context, Problem
from .export import file_name
from .pins import base_requirement
from .project import OVERLAY_PACKAGE
from .series import series_names


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .series import Patch

MAX_ADDED = 12
MAX_REMOVED = 2
MAX_SUBJECT = 72
ZERO_FROM = f"From {'0' * 40} Mon Sep 17 00:00:00 2001"
STATUS = re.compile(
    r"(Pending|Submitted|Backport|Denied|Inappropriate) \[\S[^\]]*\]", re.DOTALL
)
TESTED_BY = re.compile(r"(\S+\.py) (\w+)\.(\w+)")
REQUIRED = ("Seam", "Upstream-Status", "Drop-When", "Tested-By")

static = Checks()
REEXPORT = "write it again: `python -m tools apply`, then `python -m tools export`"
EDIT_HEADER = (
    "edit the commit message in .work/torch (template: patches/README.md), "
    "then `python -m tools export`"
)


@static("OV001", "series and patch files agree")
def series_agrees(context: Context) -> Iterator[Problem]:
    folder = context.project.patches(context.pin.version)
    names = series_names(context.project, context.pin.version)
    series = context.project.show(folder / "series")
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(f"{series}: lists {name} more than once", f"edit {series}")
    for name in names:
        if not (folder / name).is_file():
            yield Problem(
                f"{series}: lists {name}, but there is no such file",
                f"restore the file, or remove the line from {series}",
            )
    for path in sorted(folder.iterdir()):
        if path.name != "series" and path.name not in names:
            yield Problem(
                f"{context.project.show(path)}: not listed in series",
                f"add it to {series}, or delete it",
            )


@static("OV002", "headers are complete")
def headers_complete(context: Context) -> Iterator[Problem]:
    for patch in context.patches:
        for what in _header_problems(patch):
            yield Problem(f"{context.show(patch)}: {what}", EDIT_HEADER)


def _header_problems(patch: Patch) -> Iterator[str]:
    if not re.fullmatch(r".+ <.+@.+>", patch.author):
        yield f"From: {patch.author!r} is not `Name <mail>`"
    if not patch.date:
        yield "there is no Date:"
    if not re.match(r"\[\w+\] \S", patch.subject):
        yield f"Subject: {patch.subject!r} does not begin with an [area]"
    if len(patch.subject) > MAX_SUBJECT:
        yield f"Subject: has {len(patch.subject)} characters, over {MAX_SUBJECT}"
    if patch.name != file_name(patch.subject):
        yield f"its subject calls for the file name {file_name(patch.subject)}"
    trailers = "".join(f"{key}: {value}\n" for key, value in patch.trailers)
    if len(" ".join(patch.body.split())) <= len(" ".join(trailers.split())):
        yield "the message does not say why; only trailers"
    for key in REQUIRED:
        values = patch.trailer(key)
        if not values or not all(value.strip() for value in values):
            yield f"there is no {key}: in the last paragraph of the message"
    for value in patch.trailer("Upstream-Status"):
        if not STATUS.fullmatch(value):
            yield f"Upstream-Status: {value!r} is not a known status with [reason]"


@static("OV003", "diffs are as export writes them")
def diffs_canonical(context: Context) -> Iterator[Problem]:
    for patch in context.patches:
        shown = context.show(patch)
        if patch.from_line != ZERO_FROM:
            yield Problem(f"{shown}: the From line has no zero hash", REEXPORT)
        for file in patch.files:
            if not file.index():
                yield Problem(
                    f"{shown}: {file.path}: no full 40-digit index line", REEXPORT
                )
            for line in file.added:
                if line != line.rstrip():
                    yield Problem(
                        f"{shown}: {file.path}: trailing whitespace: +{line!r}",
                        "remove it in .work/torch, then `python -m tools export`",
                    )


@static("OV004", "only files named in the pin are touched")
def only_base_files(context: Context) -> Iterator[Problem]:
    marks = ("new file", "deleted file", "rename", "copy", "old mode", "Binary")
    pin = context.project.show(context.pin.path)
    for patch in context.patches:
        for file in patch.files:
            if file.path not in context.pin.base:
                yield Problem(
                    f"{context.show(patch)}: {file.path} is not in [base] of {pin}",
                    f"`python -m tools pin add {file.path}`",
                )
            for line in file.header:
                if line.startswith(marks) or "/dev/null" in line:
                    yield Problem(
                        f"{context.show(patch)}: {file.path}: {line!r}; "
                        "a patch only edits upstream files",
                        "put new files into torch_dynamo_overlay",
                    )


@static("OV005", "one file per patch, within its budget")
def within_budget(context: Context) -> Iterator[Problem]:
    for patch in context.patches:
        shown = context.show(patch)
        if len(patch.files) != 1:
            yield Problem(
                f"{shown}: touches {len(patch.files)} files",
                "split it: one patch, one upstream file, one purpose",
            )
        if over_budget(patch) and not any(patch.trailer("Budget")):
            yield Problem(
                f"{shown}: +{len(patch.added)} -{len(patch.removed)} lines, over the "
                f"budget of +{MAX_ADDED} -{MAX_REMOVED}",
                "move code into the overlay, or give the reason as a `Budget:` trailer",
            )


def over_budget(patch: Patch) -> bool:
    return len(patch.added) > MAX_ADDED or len(patch.removed) > MAX_REMOVED


@static("OV006", "Tested-By names tests that exist")
def tests_exist(context: Context) -> Iterator[Problem]:
    for patch in context.patches:
        for value in patch.trailer("Tested-By"):
            what = _test_problem(context.project.root, value)
            if what:
                yield Problem(
                    f"{context.show(patch)}: Tested-By: {value}: {what}",
                    "write that test, or name another: " + EDIT_HEADER,
                )


def _test_problem(root: Path, value: str) -> str | None:
    match = TESTED_BY.fullmatch(value)
    if not match:
        return "is not `path.py Class.test_name`"
    path = root / match[1]
    if not path.is_file():
        return f"there is no {match[1]}"
    for node in ast.parse(path.read_text(encoding="utf-8"), path).body:
        if isinstance(node, ast.ClassDef) and node.name == match[2]:
            names = {x.name for x in node.body if isinstance(x, ast.FunctionDef)}
            return None if match[3] in names else f"no method {match[3]} in {match[2]}"
    return f"no class {match[2]} in {match[1]}"


@static("OV007", "the overlay keeps to its own package")
def overlay_in_place(context: Context) -> Iterator[Problem]:
    files = context.project.overlay_files()
    overlay = context.project.show(context.project.overlay)
    if f"{OVERLAY_PACKAGE}/__init__.py" not in files:
        yield Problem(
            f"{overlay}/{OVERLAY_PACKAGE}/__init__.py: missing",
            f"git checkout {overlay}",
        )
    for name in files:
        if not name.startswith(OVERLAY_PACKAGE + "/"):
            yield Problem(
                f"{overlay}/{name}: outside {OVERLAY_PACKAGE}",
                f"move it into {overlay}/{OVERLAY_PACKAGE}",
            )


@static("OV008", "requirement and pin name one release")
def requirement_agrees(context: Context) -> Iterator[Problem]:
    requirement = base_requirement(context.project)
    wanted = SpecifierSet(f"=={context.pin.version}")
    if requirement.name != "torch" or requirement.specifier != wanted:
        path = context.project.show(context.project.base_requirement)
        yield Problem(
            f"{path}: {requirement}, but the pin is torch {context.pin.version}",
            f"write torch=={context.pin.version} there, or change pins/default",
        )
