"""Checks that apply the series to the pristine files of the base wheel."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from . import record
from .apply import files_without, temporary_tree
from .check import Checks, Context, Problem
from .check_static import REEXPORT
from .export import differences, render
from .gitrepo import GitError
from .pins import check_base
from .project import OVERLAY_PACKAGE
from .seams import missing_names
from .wheel import build, new_files


if TYPE_CHECKING:
    from collections.abc import Iterator

tree = Checks()


@tree("OV101", "pristine files and patches' blobs match the pin")
def pristine_matches(context: Context) -> Iterator[Problem]:
    check_base(context.pin, context.pristine, str(context.base.path))
    with temporary_tree(context.project, context.pin, context.pristine) as repo:
        log = repo.run(
            "rev-list", "--reverse", f"{context.pin.overlay_tag}..{context.pin.branch}"
        )
        for commit, patch in zip(log.split(), context.patches, strict=True):
            for file in patch.files:
                index = file.index()
                met = repo.run("rev-parse", f"{commit}^:{file.path}")
                if index and index[0] != met:
                    yield Problem(
                        f"{context.show(patch)}: made from blob {index[0][:12]} of "
                        f"{file.path}, but meets {met[:12]}",
                        REEXPORT,
                    )


@tree("OV102", "the series applies without -3; each step byte-compiles")
def applies(context: Context) -> Iterator[Problem]:
    with temporary_tree(context.project, context.pin, context.pristine) as repo:
        steps = f"{context.pin.tag}..{context.pin.branch}"
        for commit in repo.run("rev-list", "--reverse", steps).split():
            names = repo.run("diff-tree", "-r", "--name-only", "--no-commit-id", commit)
            for name in names.splitlines():
                if not name.endswith(".py"):
                    continue
                try:
                    compile(repo.raw("show", f"{commit}:{name}"), name, "exec")
                except SyntaxError as error:
                    subject = repo.run("show", "-s", "--format=%s", commit)
                    yield Problem(
                        f"{name}:{error.lineno}: {error.msg}, after {subject!r}",
                        "correct that patch in .work/torch, or the overlay file",
                    )


@tree("OV103", "exporting the applied series gives the same bytes")
def export_is_lossless(context: Context) -> Iterator[Problem]:
    with temporary_tree(context.project, context.pin, context.pristine) as repo:
        patches = render(repo, context.pin)
    for what in differences(context.project, context.pin, patches):
        yield Problem(what, REEXPORT)


@tree("OV104", "upstream has no file at a path of the overlay")
def overlay_is_new(context: Context) -> Iterator[Problem]:
    both = set(context.project.overlay_files()) & set(context.base.names())
    for name in sorted(both):
        yield Problem(
            f"{context.base.path}: has {name} too",
            "stop: upstream owns that name now; rename the overlay package",
        )


@tree("OV105", "every name a seam uses exists in the overlay")
def seams_resolve(context: Context) -> Iterator[Problem]:
    overlay = context.project.overlay_files()
    with temporary_tree(context.project, context.pin, context.pristine) as repo:
        for name in sorted({file.path for p in context.patches for file in p.files}):
            source = (repo.path / name).read_text(encoding="utf-8")
            for line, missing in missing_names(name, source, overlay):
                yield Problem(
                    f"{name}:{line}: uses {missing}, which the overlay does not define",
                    f"define it in torch_dynamo_overlay/{OVERLAY_PACKAGE}",
                )


@tree("OV106", "the wheel verifies; only what should differ does")
def wheel_is_right(context: Context) -> Iterator[Problem]:
    with tempfile.TemporaryDirectory(prefix="torch-hooks-") as folder:
        built = build(context.project, Path(folder), context.base.path)
        with zipfile.ZipFile(built) as archive:
            _, version, *_ = built.name.split("-")
            after = record.entries(archive, f"torch-{version}.dist-info")
        with zipfile.ZipFile(context.base.path) as archive:
            before = record.entries(archive, context.base.dist_info)
    renamed = {
        path.replace(context.base.dist_info, f"torch-{version}.dist-info"): entry
        for path, entry in before.items()
    }
    expected = {file.path for patch in context.patches for file in patch.files}
    expected |= {"torch/version.py", f"torch-{version}.dist-info/METADATA"}
    expected |= set(new_files(context.project, context.base))
    different = {
        path
        for path in {*renamed, *after}
        if path not in renamed
        or path not in after
        or renamed[path].hash_ != after[path].hash_
    }
    for path in sorted(different ^ expected):
        state = "differs from" if path in different else "is the same as"
        yield Problem(
            f"{built.name}: {path} {state} the base wheel's",
            "read tools/wheel.py: it must change what patches and overlay say, no more",
        )


@tree("OV107", "each patch can be taken out of the applied series by itself")
def comes_out(context: Context) -> Iterator[Problem]:
    with temporary_tree(context.project, context.pin, context.pristine) as repo:
        for patch in context.patches:
            with tempfile.TemporaryDirectory(prefix="torch-hooks-") as folder:
                try:
                    files_without(repo, patch, Path(folder))
                except GitError as error:
                    yield Problem(
                        f"{context.show(patch)}: cannot be taken out by itself: "
                        f"{error.stderr.strip()}",
                        "keep its lines three away from those of later patches",
                    )
