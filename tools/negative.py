"""The negative control: without a patch, the tests it names must fail.

Each patch is left out in turn of a *shadow* of the installed torch: a folder of
symbolic links in which one file is real. The virtual environment stays as it is.
A test that fails for want of a module, or is not run, does not count.
"""

from __future__ import annotations

import ast
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rich.progress import MofNCompleteColumn
from rich.table import Table

from .apply import files_without, temporary_tree
from .basewheel import find
from .check_static import TESTED_BY
from .errors import ToolError
from .gitrepo import GitError
from .pins import load_pin
from .series import load_series
from .ui import out, progress
from .venv import site_of_torch, stale_files, wanted_files


if TYPE_CHECKING:
    from collections.abc import Iterable

    from .gitrepo import Repo
    from .project import Project
    from .series import Patch

SOME_FAILED = 1  # pytest's exit code; 2 to 5 mean that the tests did not run


@dataclass(frozen=True)
class Run:
    code: int
    failed: frozenset[str]
    tail: str


@dataclass(frozen=True)
class Result:
    patch: Patch
    problem: str | None


def run(project: Project, python: Path, names: tuple[str, ...]) -> bool:
    """Control every patch, or those named; True if each proved necessary."""
    pin = load_pin(project)
    patches = load_series(project, pin.version)
    chosen = [p for p in patches if not names or p.name in names]
    unknown = set(names) - {p.name for p in chosen}
    if unknown:
        raise ToolError(
            f"{sorted(unknown)[0]}: not in the series of torch {pin.version}",
            f"see patches/{pin.version}/series",
        )
    site = site_of_torch(python)
    base = find(project, pin)
    with temporary_tree(project, pin, base.read(list(pin.base))) as tree:
        stale = stale_files(site, wanted_files(project, pin, tree))
        if stale:
            raise ToolError(
                f"{site / stale[0]}: is not what patches and overlay make of it",
                "run `make venv`",
            )
        tests = _resolve(project, python, chosen)
        every = sorted({t for found in tests.values() for t in found})
        clean = _pytest(project, python, every) if every else Run(0, frozenset(), "")
        if clean.code:
            raise ToolError(
                f"tests named in Tested-By fail with all patches in:\n{clean.tail}",
                "correct them first: they prove nothing while they fail",
            )
        with (
            progress("negative control", len(chosen), MofNCompleteColumn()) as advance,
            ThreadPoolExecutor(os.cpu_count()) as pool,
        ):

            def control(patch: Patch) -> Result:
                problem = _control(project, python, site, tree, patch, tests)
                advance(1)
                return Result(patch, problem)

            results = list(pool.map(control, chosen))
    return _show(results)


def _control(
    project: Project,
    python: Path,
    site: Path,
    tree: Repo,
    patch: Patch,
    tests: dict[str, list[str]],
) -> str | None:
    """Why `patch` is not proved necessary, if it is not."""
    with tempfile.TemporaryDirectory(prefix="torch-hooks-") as folder:
        try:
            files = files_without(tree, patch, Path(folder) / "tree")
        except GitError as error:
            return f"cannot be taken out by itself: {error.stderr.strip()}"
        shadow = Path(folder) / "shadow"
        make_shadow(site, shadow, files)
        values = patch.trailer("Tested-By")
        ids = [test for value in values for test in tests[value]]
        done = _pytest(project, python, ids, shadow)
    if done.code == 0:
        return "its tests pass without it"
    if done.code != SOME_FAILED:
        return f"without it the tests do not run (exit {done.code}):\n{done.tail}"
    idle = [v for v in values if not done.failed.intersection(tests[v])]
    return f"passes without it: {', '.join(idle)}" if idle else None


def make_shadow(site: Path, shadow: Path, files: dict[str, bytes]) -> None:
    """Mirror torch with links; only `files` and the folders above them are real."""
    real = {parent for name in files for parent in Path(name).parents}
    for folder in sorted(real - {Path()}):
        (shadow / folder).mkdir(parents=True)
        for entry in (site / folder).iterdir():
            name = (folder / entry.name).as_posix()
            if name not in files and Path(name) not in real:
                (shadow / name).symlink_to(entry)
    for name, data in files.items():
        (shadow / name).write_bytes(data)


def _pytest(
    project: Project, python: Path, ids: list[str], shadow: Path | None = None
) -> Run:
    with tempfile.TemporaryDirectory(prefix="torch-hooks-") as folder:
        report = Path(folder) / "report.xml"
        env = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            # Code cached by a run with the patch must not serve one without it.
            "TORCHINDUCTOR_CACHE_DIR": folder,
        }
        if shadow:
            env["PYTHONPATH"] = str(shadow)
        command = [str(python), "-m", "pytest", *ids, "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={report}"],
            cwd=project.root,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        failed = _failed(report, ids) if report.is_file() else frozenset[str]()
    return Run(done.returncode, failed, "\n".join(done.stdout.splitlines()[-15:]))


def _failed(report: Path, ids: Iterable[str]) -> frozenset[str]:
    """Which of `ids` pytest reports as failed (an error is not a failure)."""
    found = {
        (case.get("classname", "").rpartition(".")[2], case.get("name"))
        for case in ElementTree.parse(report).iter("testcase")
        if case.find("failure") is not None
    }
    return frozenset(i for i in ids if tuple(i.split("::")[1:]) in found)


def _resolve(
    project: Project, python: Path, patches: list[Patch]
) -> dict[str, list[str]]:
    """The pytest ids behind each Tested-By, parametrised tests written out."""
    values = sorted({value for p in patches for value in p.trailer("Tested-By")})
    named = {}
    for value in values:
        match = TESTED_BY.fullmatch(value)
        if not match or not (project.root / match[1]).is_file():
            raise ToolError(f"Tested-By: {value}: no such test", "run `make check`")
        named[value] = match.groups()
    collected = _collect(project, python, sorted({file for file, *_ in named.values()}))
    resolved = {}
    for value, (file, name, method) in named.items():
        methods = _methods(project.root / file, name)
        resolved[value] = [
            test
            for test in collected
            if test.startswith(f"{file}::{name}::")
            and _origin(test.rpartition("::")[2], methods) == method
        ]
        if not resolved[value]:
            raise ToolError(
                f"Tested-By: {value}: pytest collects no such test",
                f"{python} -m pytest --collect-only {file}",
            )
    return resolved


def _collect(project: Project, python: Path, files: list[str]) -> list[str]:
    if not files:
        return []
    command = [str(python), "-m", "pytest", "--collect-only", "-q", *files]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=project.root,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise ToolError(
            f"pytest cannot collect {', '.join(files)}:\n{done.stdout[-2000:]}",
            " ".join(command),
        )
    return [line for line in done.stdout.splitlines() if "::" in line]


def _methods(path: Path, class_name: str) -> list[str]:
    return [
        method.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for method in node.body
        if isinstance(method, ast.FunctionDef)
    ]


def _origin(collected: str, methods: list[str]) -> str | None:
    """The method `test_x` behind `test_x_backend_eager` (the longest that fits)."""
    fits = [
        method
        for method in methods
        if collected == method or collected.startswith((f"{method}_", f"{method}["))
    ]
    return max(fits, key=len, default=None)


def _show(results: list[Result]) -> bool:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("patch left out", overflow="fold")
    table.add_column("its tests")
    for result in results:
        state = "[red]prove nothing[/red]" if result.problem else "fail, as they should"
        table.add_row(result.patch.name, state)
    out.print(table)
    for result in results:
        if result.problem:
            out.print(f"\n{result.patch.name}: {result.problem}", markup=False)
            out.print(
                "  next: name a test that needs the patch in its Tested-By, "
                "or drop the patch",
                markup=False,
            )
    return not any(result.problem for result in results)
