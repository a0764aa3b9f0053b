"""The native guard under AddressSanitizer: on its own tests, and as Python exits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tools.native import compiled
from tools.project import Project


SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=all"
# Puts the instrumented guard in the place of the installed one.
LOAD = """
import importlib.util, sys
name = "torch._dynamo.nn_module_hooks._hook_guard"
spec = importlib.util.spec_from_file_location(name, {path!r})
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
from torch._dynamo.nn_module_hooks.module_paths import HookGuard
assert HookGuard is sys.modules[name].HookGuard
"""
OWN_TESTS = """
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {test!r}, "-k",
    "HookGuardTests and not python and not many and not exit"]))
"""
AT_EXIT = """
import torch
model = torch.nn.Sequential(torch.nn.ReLU())
compiled = torch.compile(model, backend="eager")
compiled(torch.ones(1))
class Late:
    def __del__(self):
        compiled(torch.ones(1))
model.late = Late()
keep = [compiled, model]
keep.append(keep)
print("at the end")
"""


def skip(reason: str) -> NoReturn:
    pytest.skip(reason)


def runtimes() -> str:
    compiler = shutil.which("gcc") or skip("only gcc tells where its sanitizers are")
    found = [
        subprocess.check_output([compiler, f"-print-file-name={name}"], text=True)
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(map(os.path.isabs, found)):
        skip("gcc has no sanitizers here")
    return ":".join(path.strip() for path in found)


def run(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> subprocess.CompletedProcess[str]:
    preloaded = runtimes()
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setenv("CFLAGS", f"-g -fno-omit-frame-pointer {SANITIZE}")
    ((name, data),) = compiled(project, Path(sys.executable)).items()
    path = folder / Path(name).name
    path.write_bytes(data)
    environment = {
        "LD_PRELOAD": preloaded,
        "PYTHONMALLOC": "malloc",
        # What Python and torch leave at exit is theirs.
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    return subprocess.run(
        [sys.executable, "-c", LOAD.format(path=str(path)) + code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=folder,
    )


@pytest.mark.slow
def test_own_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.here()
    test = project.root / "test" / "dynamo" / "test_hooks_guard.py"
    done = run(project, tmp_path, monkeypatch, OWN_TESTS.format(test=str(test)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d passed, \d+ deselected", done.stdout, re.MULTILINE)


def test_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(Project.here(), tmp_path, monkeypatch, AT_EXIT)
    assert (done.returncode, done.stdout) == (0, "at the end\n"), done.stderr


def test_an_error_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, wrong = Project.here(), Project(tmp_path / "wrong")
    (wrong.root / "csrc").mkdir(parents=True)
    shutil.copy(ours.cmake, wrong.cmake)
    source = (ours.root / "csrc" / "hook_guard.c").read_text()
    held = "memo->entries = PyMem_Calloc(root->n, sizeof(Entry));"
    assert held in source
    (wrong.root / "csrc" / "hook_guard.c").write_text(
        source.replace(held, held.replace("root->n", "root->n - 1"))
    )
    done = run(wrong, tmp_path, monkeypatch, AT_EXIT)
    assert done.returncode != 0
    # What lies behind the entries, or did before, is the heap's choice.
    assert "ERROR: AddressSanitizer: heap-" in done.stderr
    assert "hook_guard.c" in done.stderr
