"""The negative control and sync, on a venv that holds a fake torch."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import CONFIG, Fake, GUARDS
from tools import negative, venv
from tools.errors import ToolError
from tools.project import OVERLAY_PACKAGE
from tools.wheel import build


@pytest.fixture(scope="session")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv that sees this Python's pytest, but its own torch first."""
    root = tmp_path_factory.mktemp("venv")
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(root)]
    subprocess.run(command, check=True)
    (site,) = root.glob("lib/python*/site-packages")
    paths = [p for p in sys.path if p.endswith("site-packages")]
    (site / "outer.pth").write_text("\n".join(paths), encoding="utf-8")
    return root


@pytest.fixture
def python(
    fake: Fake, empty_venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """That venv's interpreter, with our wheel of the fake torch unpacked in it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts faster
    (site,) = empty_venv.glob("lib/python*/site-packages")
    with zipfile.ZipFile(build(fake.project, tmp_path / "dist", fake.wheel)) as wheel:
        wheel.extractall(site)
    (fake.project.wheels).mkdir()
    # As if downloaded for this Python.
    name = "torch-2.15.0-py3-none-any.whl"
    (fake.project.wheels / name).write_bytes(fake.wheel.read_bytes())
    return empty_venv / "bin" / "python"


def contents(site: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in (site / "torch").rglob("*")
        if path.is_file()
    }


def test_each_patch_proves_necessary(fake: Fake, python: Path) -> None:
    site = venv.site_of_torch(python)
    before = contents(site)
    assert negative.run(fake.project, python, ())
    assert contents(site) == before


def test_patch_whose_test_passes_without_it_is_named(
    fake: Fake, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fake.project.root / "test/dynamo/test_hooks.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"option_hooks", False', '"o", True'), "utf-8")
    assert not negative.run(fake.project, python, ("dynamo_add_an_option.patch",))
    assert "its tests pass without it" in capsys.readouterr().out


def test_test_that_cannot_be_imported_proves_nothing(
    fake: Fake, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fake.project.root / "test/dynamo/test_hooks.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}\nfrom torch._dynamo.config import option_hooks\n", "utf-8")
    assert not negative.run(fake.project, python, ("dynamo_add_an_option.patch",))
    assert "the tests do not run" in capsys.readouterr().out


def test_parametrised_tests_are_found_by_their_method(fake: Fake, python: Path) -> None:
    path = fake.project.root / "test/dynamo/test_hooks.py"
    text = path.read_text(encoding="utf-8")
    # As instantiate_parametrized_tests does; test_option_more is another method.
    text += (
        "    def test_option_more(self):\n        pass\n\n"
        "HookTests.test_option_backend_eager = HookTests.test_option\n"
        "del HookTests.test_option\n"
    )
    path.write_text(text, encoding="utf-8")
    assert negative.run(fake.project, python, ("dynamo_add_an_option.patch",))


def test_failing_test_is_an_error_of_its_own(fake: Fake, python: Path) -> None:
    path = fake.project.root / "test/dynamo/test_hooks.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"ours"', '"theirs"'), encoding="utf-8")
    with pytest.raises(ToolError, match="fail with all patches in"):
        negative.run(fake.project, python, ())


def test_stale_venv_is_refused(fake: Fake, python: Path) -> None:
    (venv.site_of_torch(python) / GUARDS).write_bytes(b"old\n")
    with pytest.raises(ToolError, match=r"guards\.py: is not what patches") as caught:
        negative.run(fake.project, python, ())
    assert "make venv" in caught.value.next_step


def test_unknown_patch_is_refused(fake: Fake, python: Path) -> None:
    with pytest.raises(ToolError, match=r"x\.patch: not in the series"):
        negative.run(fake.project, python, ("x.patch",))


def test_missing_interpreter_is_named(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no/python: cannot run it"):
        negative.run(fake.project, tmp_path / "no" / "python", ())


def test_sync_brings_tree_and_overlay_into_the_venv(fake: Fake, python: Path) -> None:
    site = venv.site_of_torch(python)
    (fake.project.tree / CONFIG).write_bytes(b"being edited\n")
    overlay = fake.project.overlay / OVERLAY_PACKAGE
    (overlay / "seam.py").rename(overlay / "moved.py")
    changed = venv.sync(fake.project, fake.pin, fake.tree, python)
    assert changed == [
        CONFIG,
        f"{OVERLAY_PACKAGE}/moved.py",
        f"{OVERLAY_PACKAGE}/seam.py",
    ]
    assert (site / CONFIG).read_bytes() == b"being edited\n"
    assert (site / OVERLAY_PACKAGE / "moved.py").is_file()
    assert not (site / OVERLAY_PACKAGE / "seam.py").exists()
    assert venv.sync(fake.project, fake.pin, fake.tree, python) == []
