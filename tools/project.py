"""Where things lie in a checkout of this repository.

Every path the tools read or write comes from here, so that tests can point the
tools at a tiny project of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


OVERLAY_PACKAGE = "torch/_dynamo/nn_module_hooks"


@dataclass(frozen=True)
class Project:
    root: Path

    @classmethod
    def here(cls) -> Project:
        return cls(Path(__file__).resolve().parent.parent)

    @property
    def pins(self) -> Path:
        return self.root / "pins"

    @property
    def base_requirement(self) -> Path:
        return self.root / "requirements" / "base.txt"

    @property
    def overlay(self) -> Path:
        return self.root / "torch_dynamo_overlay"

    @property
    def cmake(self) -> Path:
        return self.root / "CMakeLists.txt"

    @property
    def work(self) -> Path:
        return self.root / ".work"

    @property
    def wheels(self) -> Path:
        return self.work / "wheels"

    @property
    def tree(self) -> Path:
        """The work repository that holds the pristine files of every pin."""
        return self.work / "torch"

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    def patches(self, version: str) -> Path:
        return self.root / "patches" / version

    def show(self, path: Path) -> str:
        """`path` as a user would type it from the root of the checkout."""
        try:
            return str(path.resolve().relative_to(self.root.resolve()))
        except ValueError:
            return str(path)

    def overlay_files(self) -> dict[str, bytes]:
        """Each overlay file by the path it takes in the wheel."""
        return {
            path.relative_to(self.overlay).as_posix(): path.read_bytes()
            for path in sorted(self.overlay.glob("torch/**/*"))
            if path.is_file()
            and "__pycache__" not in path.parts
            and path.suffix not in (".pyc", ".so")
        }
