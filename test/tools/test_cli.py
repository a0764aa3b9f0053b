"""The command line: help for every verb, one message and exit code 2 for errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conftest import Fake, write_wheel
from tools.cli import main
from tools.pins import base_requirement, load_pin
from tools.project import Project


ROOT = Path(__file__).resolve().parents[2]
OURS = "torch-2.15.0+cu132.hooks.1-cp311-cp311-manylinux_2_28_x86_64.whl"


def call(fake: Fake, *args: str) -> Result:
    return CliRunner().invoke(main, args, obj=fake.project)


@pytest.mark.parametrize("verb", [[], *([name] for name in main.commands)])
def test_every_verb_has_help(fake: Fake, verb: list[str]) -> None:
    done = call(fake, *verb, "--help")
    assert done.exit_code == 0
    assert "Usage:" in done.output


def test_the_whole_way(fake: Fake, tmp_path: Path) -> None:
    wheel = str(fake.wheel)
    done = call(fake, "fetch", "--wheel", wheel)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == wheel
    for args in (
        ["apply"],
        ["export", "--dry-run"],
        ["check", "--static"],
        ["check", "--wheel", wheel],
        ["wheel", "--wheel", wheel, "--out", str(tmp_path)],
        ["verify", str(tmp_path / OURS)],
        ["stats"],
    ):
        done = call(fake, *args)
        assert done.exit_code == 0, done.output
    assert "total of 2 patches" in done.stdout


def test_pin_add_lets_a_patch_touch_one_more_file(fake: Fake, tmp_path: Path) -> None:
    name = "torch/_dynamo/more.py"
    wheel = write_wheel(tmp_path, files={name: b"x = 1\n"})
    done = call(fake, "pin", "add", name, "--wheel", str(wheel))
    assert done.exit_code == 0, done.output
    assert name in load_pin(fake.project).base
    assert fake.tree.run("show", f"{fake.pin.tag}:{name}") == "x = 1"
    done = call(fake, "pin", "add", "torch/no.py", "--wheel", str(wheel))
    assert done.exit_code == 2
    assert "has no torch/no.py" in done.stderr


def test_error_is_one_message_and_exit_code_2(fake: Fake, tmp_path: Path) -> None:
    done = call(fake, "wheel", "--wheel", str(tmp_path / "gone.whl"))
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "\n  next: " in done.stderr
    assert "Traceback" not in done.output


def test_failed_check_is_exit_code_1(fake: Fake) -> None:
    (fake.patches / "x.patch").touch()
    done = call(fake, "check", "--static")
    assert done.exit_code == 1
    assert "patches/2.15.0/x.patch: not listed in series" in done.stdout


def test_export_dry_run_fails_on_a_difference(fake: Fake) -> None:
    (fake.patches / "dynamo_add_an_option.patch").unlink()
    done = call(fake, "export", "--dry-run")
    assert done.exit_code == 2
    assert "dynamo_add_an_option.patch: missing" in done.stderr


def test_stats_gives_the_reason_for_a_patch_over_budget(fake: Fake) -> None:
    path = fake.patches / "dynamo_add_an_option.patch"
    text = path.read_text(encoding="utf-8").replace(",7 @@", ",27 @@")
    text = text.replace("+option_hooks", "+x\n" * 20 + "+option_hooks")
    text = text.replace("\nTested-By:", "\nBudget: a long story\nTested-By:")
    path.write_text(text, encoding="utf-8")
    assert "dynamo_add_an_option.patch: a long story" in call(fake, "stats").stdout


def test_missing_git_is_one_clear_error(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = call(fake, "apply")
    assert done.exit_code == 2
    assert "git is not installed" in done.stderr


def test_missing_library_is_one_clear_error(tmp_path: Path) -> None:
    # -S: no site-packages, so none of the libraries either.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tools", "check"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode
    assert "requirements/tools.txt" in done.stderr
    assert "Traceback" not in done.stderr


def test_this_repository_names_one_release() -> None:
    project = Project(ROOT)
    assert str(base_requirement(project)) == f"torch=={load_pin(project).version}"
