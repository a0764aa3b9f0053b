"""With hook guards skipped, our torch guards what the pristine release guards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.basewheel import find
from tools.negative import make_shadow
from tools.pins import load_pin
from tools.project import Project
from tools.venv import site_of_torch


HERE = Path(__file__).parent


def guards(site: Path | None) -> str:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if site:
        env["PYTHONPATH"] = str(site)
    return subprocess.run(
        [sys.executable, HERE / "print_guards.py"],
        env=env,
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ).stdout


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed torch with every patched file as it was before."""
    project = Project(HERE.parent.parent)
    pin = load_pin(project)
    base = find(project, pin).read(list(pin.base))
    shadow = tmp_path_factory.mktemp("pristine")
    make_shadow(site_of_torch(Path(sys.executable)), shadow, base)
    return shadow


def test_guard_lists_of_five_models_are_equal(pristine: Path) -> None:
    ours, theirs = guards(None), guards(pristine)
    headings = [line for line in theirs.splitlines() if line.startswith("== ")]
    assert len(headings) == 5
    assert theirs.count("TYPE_MATCH") > 50
    assert ours == theirs
