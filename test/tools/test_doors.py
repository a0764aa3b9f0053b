"""Three ways to build: pip, the old setup.py and the CLI all make the same wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from conftest import Fake
from tools.wheel import build


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def source(fake: Fake) -> Path:
    """The fake project with this repository's own tools and packaging files."""
    root = fake.project.root
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tools", root / "tools", ignore=ignore)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    return root


def python(cwd: Path, *args: object, wheel: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        # A shell would set PWD when it changes folder; a subprocess must.
        env={**os.environ, "TORCH_WHEEL": wheel, "PWD": str(cwd)},
        capture_output=True,
        encoding="utf-8",
    )


def test_every_door_makes_the_same_wheel(
    fake: Fake, source: Path, tmp_path: Path
) -> None:
    expected = build(fake.project, tmp_path / "direct", fake.wheel)
    relative = str(fake.wheel.relative_to(tmp_path))
    pip = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q")
    done = python(tmp_path, *pip, source, "-w", tmp_path / "pip", wheel=relative)
    assert done.returncode == 0, done.stderr
    setup = ("setup.py", "-q", "bdist_wheel", "-d", tmp_path / "setup")
    done = python(source, *setup, wheel=str(fake.wheel))
    assert done.returncode == 0, done.stderr
    for door in ("pip", "setup"):
        (built,) = (tmp_path / door).iterdir()
        assert built.name == expected.name
        assert built.read_bytes() == expected.read_bytes()


def test_failure_behind_pip_shows_our_message(source: Path, tmp_path: Path) -> None:
    pip = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q")
    out = tmp_path / "out"
    done = python(source, *pip, ".", "-w", out, wheel="gone.whl")
    assert done.returncode
    assert "gone.whl: there is no such wheel" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(out.glob("*"))


def test_build_requirements_are_those_of_the_tools() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = (ROOT / "requirements" / "tools.txt").read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if line and line[0] != "#"]
    assert project["build-system"]["requires"] == listed
