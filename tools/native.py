"""Compile the native guard on module hooks, for the wheel or for a venv.

CMake finds whatever compiler there is. Without one, or for a Python that is not the one
running, the wheel does without: the overlay has the same guard in Python.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from .ui import warn


if TYPE_CHECKING:
    from .basewheel import BaseWheel
    from .project import Project

LOST = (
    "the guard on module hooks will be the one in Python: it does the same, but every "
    "compiled call gets slower by 1 to 2 us for each module it calls "
    "(benchmarks/guards.py)"
)


def native_files(project: Project, base: BaseWheel) -> dict[str, bytes]:
    """What to add to the wheel made of `base`: the native guard, if it can be built."""
    _, _, _, tags = parse_wheel_filename(base.path.name)
    if tags.isdisjoint(sys_tags()):
        version = ".".join(map(str, sys.version_info[:2]))
        warn(
            f"{base.path.name} is not for this machine's Python {version}; {LOST}",
            "build on a machine, and with a Python, of that kind",
        )
        return {}
    return compiled(project, Path(sys.executable))


def compiled(project: Project, python: Path) -> dict[str, bytes]:
    """The native guard for `python`, by path in the wheel; nothing if that fails."""
    if not project.cmake.is_file():
        return {}
    try:
        import cmake
        import ninja
    except ModuleNotFoundError as error:
        warn(f"{error.name} is not installed; {LOST}", f"pip install {error.name}")
        return {}
    command = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    with tempfile.TemporaryDirectory() as folder:
        build, out = Path(folder, "build"), Path(folder, "out")
        steps: tuple[list[str | Path], ...] = (
            [
                *(command, "-S", project.root, "-B", build, "-G", "Ninja"),
                f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}",
                f"-DPython_EXECUTABLE={python}",
                "-DPython_FIND_VIRTUALENV=ONLY",
            ],
            [command, "--build", build],
            [command, "--install", build, "--prefix", out],
        )
        for step in steps:
            done = subprocess.run(
                step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
            )
            if done.returncode:
                reason = _first_error(done.stdout)
                warn(
                    f"the native guard does not compile ({reason}); {LOST}",
                    "install a C compiler and the headers of Python "
                    "(for example apt-get install gcc python3-dev), and build again",
                )
                return {}
        return {
            path.relative_to(out).as_posix(): path.read_bytes()
            for path in sorted(out.rglob("*"))
            if path.is_file()
        }


def _first_error(output: str) -> str:
    """What a compiler says after a place, or CMake in the lines below one."""
    found = re.search(
        r"^\S+:\d+: .*\berror: .*|^CMake Error.*:\n(?s:.+?)\n(?=\S)",
        output,
        re.MULTILINE,
    )
    lines = (found[0] if found else output[-300:]).split()
    return " ".join(lines)[:300]
