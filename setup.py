"""`python setup.py bdist_wheel`: the same wheel as `pip wheel .`, by the old door.

Nothing is compiled or collected by setuptools; see tools/wheel.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Command, setup


sys.path.insert(0, str(Path(__file__).resolve().parent))

try:
    from tools.errors import ToolError
    from tools.project import Project
    from tools.wheel import build
except ModuleNotFoundError as error:
    sys.exit(
        f"error: building needs {error.name}, which {sys.executable} lacks\n"
        "  next: `pip install -r requirements/tools.txt`, or use `pip wheel .`"
    )


class bdist_wheel(Command):  # type: ignore[misc]
    description = "make the torch-hooks wheel from the pinned release of torch"
    user_options = [("dist-dir=", "d", "folder to build into (dist)")]

    def initialize_options(self) -> None:
        self.dist_dir: str | None = None

    def finalize_options(self) -> None:
        self.dist_dir = self.dist_dir or "dist"

    def run(self) -> None:
        assert self.dist_dir
        try:
            print(build(Project.here(), Path(self.dist_dir)))
        except ToolError as error:
            sys.exit(f"error: {error}")


setup(name="torch", packages=[], cmdclass={"bdist_wheel": bdist_wheel})
