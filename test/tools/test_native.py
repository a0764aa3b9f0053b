"""The native guard in the wheel: there if it can be built, missed aloud if not."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.tags import sys_tags

from conftest import Fake, write_wheel
from test_check import failures
from tools.check_tree import tree
from tools.project import OVERLAY_PACKAGE, Project
from tools.wheel import build


if TYPE_CHECKING:
    from types import ModuleType

TAG = str(next(sys_tags()))


@pytest.fixture
def native(fake: Fake) -> Fake:
    """The fake project with our C source, and a base wheel for this very Python."""
    ours = Project.here().root
    shutil.copy(ours / "CMakeLists.txt", fake.project.root)
    shutil.copytree(ours / "csrc", fake.project.root / "csrc")
    name = f"torch-2.15.0-{TAG}.whl"
    return Fake(fake.project, write_wheel(fake.project.root / "base", name=name))


def guards(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if name.startswith(f"{OVERLAY_PACKAGE}/_hook_guard.")
        }


def imported(folder: Path, name: str, data: bytes) -> ModuleType:
    path = folder / Path(name).name
    path.write_bytes(data)
    spec = importlib.util.spec_from_file_location("_hook_guard", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/compiler")


def no_cmake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmake", None)


def test_the_wheel_has_a_guard_that_imports(native: Fake, tmp_path: Path) -> None:
    ((name, data),) = guards(build(native.project, tmp_path, native.wheel)).items()
    assert callable(imported(tmp_path, name, data).HookGuard)


def test_same_source_same_bytes(native: Fake, tmp_path: Path) -> None:
    first, second = (
        build(native.project, tmp_path / str(n), native.wheel) for n in range(2)
    )
    assert guards(first) == guards(second) != {}


@pytest.mark.parametrize(
    ("lose", "reason"),
    [(no_compiler, "/no/such/compiler"), (no_cmake, "cmake is not installed")],
)
def test_without_a_compiler_the_wheel_still_builds(
    native: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    lose: object,
    reason: str,
) -> None:
    lose(monkeypatch)  # type: ignore[operator]
    assert guards(build(native.project, tmp_path, native.wheel)) == {}
    said = capfd.readouterr().err
    assert reason in said
    assert "the one in Python" in said
    assert "next: " in said
    assert failures(native, tree, "OV106") == {}


def test_wrong_source_says_which_line(
    native: Fake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (native.project.root / "csrc" / "hook_guard.c").write_text("int x = ;\n")
    assert guards(build(native.project, tmp_path, native.wheel)) == {}
    assert "hook_guard.c:1" in capfd.readouterr().err


def test_wheel_of_another_python_goes_without(
    native: Fake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"torch-2.15.0-cp399-cp399-{TAG.split('-')[-1]}.whl"
    base = write_wheel(tmp_path / "base", name=name)
    assert guards(build(native.project, tmp_path, base)) == {}
    assert f"{name} is not for this machine's Python" in capfd.readouterr().err
    assert failures(Fake(native.project, base), tree, "OV106") == {}


def test_check_allows_the_guard_and_nothing_else(
    native: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failures(native, tree, "OV106") == {}

    other = write_wheel(
        tmp_path, name=native.wheel.name, files={"torch/extra.so": b"x"}
    )

    def one_more(project: Project, out: Path, _: Path) -> Path:
        return build(project, out, other)

    monkeypatch.setattr("tools.check_tree.build", one_more)
    (problems,) = failures(native, tree, "OV106").values()
    assert [problem.split(" ")[1] for problem in problems] == ["torch/extra.so"]
