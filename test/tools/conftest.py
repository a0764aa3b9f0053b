"""Tiny stand-ins: a wheel that looks like torch, and a project that patches it.

No torch is needed, and nothing is downloaded.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest


sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools import apply, basewheel, export, record
from tools.gitrepo import Repo
from tools.pins import load_pin, Pin, sha256
from tools.project import OVERLAY_PACKAGE, Project


VERSION = "2.15.0"
CONFIG = "torch/_dynamo/config.py"
GUARDS = "torch/_dynamo/guards.py"
PRISTINE = {
    CONFIG: "".join(f"option_{n} = {n}\n" for n in range(40)).encode(),
    GUARDS: b"def build():\n    return 'upstream'\n",
}
HEADER = """[dynamo] {title}

Upstream does nothing here, so the user loses a hook. A seam, for the test.

Seam: {seam}
Upstream-Status: Pending [a test]
Drop-When: a pinned release contains the merged change
Tested-By: test/dynamo/test_hooks.py HookTests.{test}
"""
TESTS = """
import unittest

from torch._dynamo import config, guards


class HookTests(unittest.TestCase):
    def test_option(self):
        self.assertTrue(getattr(config, "option_hooks", False))

    def test_guard(self):
        self.assertEqual(guards.build(), "ours")
"""


def write_wheel(
    folder: Path,
    *,
    name: str = f"torch-{VERSION}-cp311-cp311-manylinux_2_28_x86_64.whl",
    version: str = VERSION,
    upstream: str = f"{VERSION}+cu132",
    commit: str = "a" * 40,
    files: dict[str, bytes] | None = None,
    ending: str = "\n",
) -> Path:
    """A wheel with the members our tools look at, and one large binary."""
    dist_info = f"torch-{version}.dist-info"
    code = f"__version__ = '{upstream}'\ndebug = False\ngit_version = '{commit}'\n"
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n\nText.\n"
    tag = "-".join(name.removesuffix(".whl").split("-")[2:])
    wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
    members = {
        "torch/__init__.py": b"",
        "torch/_dynamo/__init__.py": b"",
        "torch/version.py": code.encode(),
        "torch/lib/libtorch.so": b"\x00machine code\x01" * 5000,
        **PRISTINE,
        **(files or {}),
        f"{dist_info}/METADATA": metadata.encode(),
        f"{dist_info}/WHEEL": wheel.encode(),
    }
    rows = [",".join(record.row(n, d)) for n, d in members.items()]
    text = ending.join([*rows, f"{dist_info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**members, f"{dist_info}/RECORD": text.encode()}.items():
            info = zipfile.ZipInfo(member, (2026, 10, 28, 2, 49, 8))
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return path


@dataclass(frozen=True)
class Fake:
    """A project on a fake torch, fetched, with two patches applied and exported."""

    project: Project
    wheel: Path

    @property
    def pin(self) -> Pin:
        return load_pin(self.project)

    @property
    def tree(self) -> Repo:
        return Repo(self.project.tree)

    @property
    def patches(self) -> Path:
        return self.project.patches(VERSION)

    def fetch(self) -> None:
        base = basewheel.open_base(self.pin, self.wheel)
        apply.fetch(self.project, self.pin, base)

    def apply(self, **options: bool) -> None:
        apply.apply_to_work_tree(
            self.project, self.pin, **{"three_way": False, **options}
        )

    def commit(self, title: str, seam: str, test: str, **files: bytes) -> None:
        """Commit to the work tree, as a person would; paths come without `.py`."""
        for name, data in files.items():
            (self.project.tree / f"torch/_dynamo/{name}.py").write_bytes(data)
        message = HEADER.format(title=title, seam=seam, test=test)
        person = ("-c", "user.name=A Person", "-c", "user.email=person@example.org")
        self.tree.run(*person, "commit", "-q", "-a", "-m", message)

    def export(self) -> list[str]:
        return export.export(self.project, self.pin)


def write_project(root: Path) -> Fake:
    pins = root / "pins"
    pins.mkdir(parents=True)
    (pins / "default").write_text(f"{VERSION}\n", encoding="utf-8")
    base = "".join(f'"{n}" = "{sha256(d)}"\n' for n, d in PRISTINE.items())
    (pins / f"{VERSION}.toml").write_text(
        f'version = "{VERSION}"\ncommit = "{"a" * 40}"  # a comment\n'
        f'revision = 1\nstatus = "supported"\n\n[base]\n{base}',
        encoding="utf-8",
    )
    files = {
        "requirements/base.txt": f"torch=={VERSION}\n",
        f"patches/{VERSION}/series": "",
        "test/dynamo/test_hooks.py": TESTS,
        f"torch_dynamo_overlay/{OVERLAY_PACKAGE}/__init__.py": "",
        f"torch_dynamo_overlay/{OVERLAY_PACKAGE}/seam.py": (
            "def build(upstream):\n    return 'ours'\n"
        ),
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Fake(Project(root), write_wheel(root / ".work" / "given"))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    fake = write_project(tmp_path_factory.mktemp("project"))
    fake.fetch()
    fake.apply()
    config = PRISTINE[CONFIG].replace(b"option_5 =", b"option_hooks = True\noption_5 =")
    fake.commit("Add an option", "config.option_hooks", "test_option", config=config)
    guards = (
        b"from . import nn_module_hooks\nfrom .nn_module_hooks import seam\n\n\n"
        b"def build():\n    return seam.build('upstream')\n"
    )
    fake.commit("Ask the overlay", "build -> seam.build", "test_guard", guards=guards)
    fake.export()
    return fake


@pytest.fixture
def fake(made_once: Fake, tmp_path: Path) -> Fake:
    root = tmp_path / "project"
    shutil.copytree(made_once.project.root, root, symlinks=True)
    wheel = root / made_once.wheel.relative_to(made_once.project.root)
    return Fake(Project(root), wheel)


@pytest.fixture(autouse=True)
def no_torch_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_WHEEL", raising=False)
