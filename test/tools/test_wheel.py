"""The wheel: what changes, what does not, and that failure leaves nothing."""

from __future__ import annotations

import errno
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from installer.sources import WheelFile
from packaging.metadata import Metadata
from packaging.requirements import Requirement

from conftest import CONFIG, Fake, GUARDS, write_wheel
from tools import basewheel, wheel as wheel_module
from tools.errors import ToolError
from tools.project import OVERLAY_PACKAGE
from tools.wheel import build, verify


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize(
    ("name", "version", "upstream", "ours"),
    [
        (
            "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
            "2.15.0",
            "2.15.0+cu132",
            "2.15.0+cu132.hooks.1",
        ),
        (
            "torch-2.15.0+cpu-cp312-cp312-manylinux_2_28_aarch64.whl",
            "2.15.0+cpu",
            "2.15.0+cpu",
            "2.15.0+cpu.hooks.1",
        ),
        (
            "torch-2.15.0-cp313-none-macosx_11_0_arm64.whl",
            "2.15.0",
            "2.15.0",
            "2.15.0+hooks.1",
        ),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_wheel_of_any_platform(
    fake: Fake,
    tmp_path: Path,
    name: str,
    version: str,
    upstream: str,
    ours: str,
    ending: str,
) -> None:
    base = write_wheel(
        tmp_path, name=name, version=version, upstream=upstream, ending=ending
    )
    built = build(fake.project, tmp_path / "dist", base)
    tags = name.split("-", 2)[2]
    assert built.name == f"torch-{ours}-{tags}"
    verify(built)
    with WheelFile.open(built) as source:  # a second opinion on RECORD
        source.validate_record()
    before, after = members(base), members(built)
    metadata = Metadata.from_email(after[f"torch-{ours}.dist-info/METADATA"])
    assert str(metadata.version) == ours
    assert Requirement("torch==2.15.0").specifier.contains(metadata.version)
    assert f"__version__ = '{ours}'".encode() in after["torch/version.py"]
    assert b"option_hooks" in after[CONFIG]
    renamed = {
        n.replace(f"torch-{version}.dist-info", f"torch-{ours}.dist-info"): data
        for n, data in before.items()
    }
    overlay = {f"{OVERLAY_PACKAGE}/__init__.py", f"{OVERLAY_PACKAGE}/seam.py"}
    assert set(after) - set(renamed) == overlay
    assert {n for n in renamed if renamed[n] != after[n]} == {
        CONFIG,
        GUARDS,
        "torch/version.py",
        f"torch-{ours}.dist-info/METADATA",
        f"torch-{ours}.dist-info/RECORD",
    }
    assert after[f"torch-{ours}.dist-info/RECORD"].count(b"\r\n") == (
        len(after) if ending == "\r\n" else 0
    )
    assert [path.name for path in (tmp_path / "dist").iterdir()] == [built.name]


def test_same_inputs_same_bytes(fake: Fake, tmp_path: Path) -> None:
    first = build(fake.project, tmp_path / "1", fake.wheel)
    second = build(fake.project, tmp_path / "2", fake.wheel)
    assert first.read_bytes() == second.read_bytes()


def test_revision_is_in_the_version(fake: Fake, tmp_path: Path) -> None:
    text = fake.pin.path.read_text(encoding="utf-8")
    fake.pin.path.write_text(
        text.replace("revision = 1", "revision = 12"), encoding="utf-8"
    )
    built = build(fake.project, tmp_path, fake.wheel)
    assert built.name.startswith("torch-2.15.0+cu132.hooks.12-")


def test_wheel_installs_and_pip_check_is_clean(fake: Fake, tmp_path: Path) -> None:
    base = write_wheel(tmp_path, name="torch-2.15.0-py3-none-any.whl")
    built = build(fake.project, tmp_path, base)
    python = tmp_path / "venv" / "bin" / "python"
    venv = str(tmp_path / "venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "-q"]
    subprocess.run([*pip, "install", "--no-index", str(built)], check=True)
    subprocess.run([*pip, "check"], check=True)
    code = "import torch.version as v, torch._dynamo.nn_module_hooks.seam as s;"
    code += "print(v.__version__, s.build(1))"
    done = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, cwd=tmp_path
    )
    assert done.stdout.decode().split() == ["2.15.0+cu132.hooks.1", "ours"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"upstream": "2.14.0+cu132"}, r"torch/version\.py says 2\.14\.0\+cu132, but"),
        ({"commit": "b" * 40}, "says commit bbb.*, but pins/2.15.0.toml says aaa"),
        ({"files": {GUARDS: b"other\n"}}, f"{GUARDS} differs from the pristine file"),
        ({"name": "torch-2.14.0-py3-none-any.whl"}, "this is torch 2.14.0, but the"),
        ({"name": "vision-2.15.0-py3-none-any.whl"}, "this is vision 2.15.0, but the"),
        ({"name": "torch.whl"}, "Invalid wheel filename"),
        ({"name": "torch-2.15.0+hooks.1-py3-none-any.whl"}, "built by us already"),
        (
            {"files": {f"{OVERLAY_PACKAGE}/seam.py": b""}},
            f"has {OVERLAY_PACKAGE}/seam.py already",
        ),
    ],
)
def test_wrong_base_is_refused(
    fake: Fake, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    base = write_wheel(tmp_path / "base", **change)  # type: ignore[arg-type]
    refused(fake, tmp_path, base, message)


def refused(fake: Fake, tmp_path: Path, base: Path, message: str) -> None:
    """The build fails, naming the base wheel, and leaves no file behind."""
    out = tmp_path / "dist"
    with pytest.raises(ToolError, match=message) as caught:
        build(fake.project, out, base)
    assert str(base) in caught.value.what
    assert not out.exists() or not list(out.iterdir())


def test_missing_base_is_refused(fake: Fake, tmp_path: Path) -> None:
    refused(fake, tmp_path, tmp_path / "torch.whl", "there is no such wheel")


@pytest.mark.parametrize("keep", [0, 100, 0.5, -1])
def test_truncated_base_is_refused(fake: Fake, tmp_path: Path, keep: float) -> None:
    data = fake.wheel.read_bytes()
    size = int(len(data) * keep) if keep == 0.5 else int(keep)
    base = tmp_path / fake.wheel.name
    base.write_bytes(data[:size])
    refused(fake, tmp_path, base, "corrupt or truncated")


def test_one_wrong_byte_in_a_binary_is_noticed(fake: Fake, tmp_path: Path) -> None:
    with zipfile.ZipFile(fake.wheel) as archive:
        info = archive.getinfo("torch/lib/libtorch.so")
    data = bytearray(fake.wheel.read_bytes())
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 1
    base = tmp_path / fake.wheel.name
    base.write_bytes(data)
    refused(fake, tmp_path, base, r"corrupt or truncated \(torch/lib/libtorch\.so")


def test_patch_that_does_not_apply_leaves_nothing(fake: Fake, tmp_path: Path) -> None:
    path = fake.patches / "dynamo_add_an_option.patch"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(" option_6 = 6", " option_6 = 7"), encoding="utf-8")
    message = rf"dynamo_add_an_option\.patch: hunk 1 \(line 3\) .* {CONFIG}"
    with pytest.raises(ToolError, match=message):
        build(fake.project, tmp_path, fake.wheel)
    assert not list(tmp_path.glob("*.whl")) + list(tmp_path.glob(".torch*"))


def test_full_disk_keeps_the_old_wheel_and_leaves_no_half(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "dist"
    before = build(fake.project, out, fake.wheel).read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wheel_module, "copy_member", full)
    with pytest.raises(ToolError, match="No space left on device") as caught:
        build(fake.project, out, fake.wheel)
    assert "--out" in caught.value.next_step
    (left,) = out.iterdir()
    assert left.read_bytes() == before


def test_verify_of_a_missing_wheel(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="there is no such wheel"):
        verify(tmp_path / "torch-2.15.0-cp311-cp311-any.whl")


def test_verify_names_what_is_wrong(fake: Fake, tmp_path: Path) -> None:
    built = build(fake.project, tmp_path, fake.wheel)
    with zipfile.ZipFile(built, "a") as archive:
        archive.writestr("torch/extra.py", b"")
    with pytest.raises(ToolError, match=r"torch/extra\.py: not in RECORD"):
        verify(built)
    other = tmp_path / built.name.replace("hooks.1", "hooks.2")
    built.rename(other)
    with pytest.raises(ToolError, match=r"hooks\.2\.dist-info/METADATA: missing"):
        verify(other)


def test_given_wheel_is_relative_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "caller").mkdir()
    wheel = tmp_path / "caller" / "x.whl"
    wheel.touch()
    monkeypatch.chdir(tmp_path)  # as pip does for a build backend
    monkeypatch.setenv("PWD", str(tmp_path / "caller"))
    monkeypatch.setenv("TORCH_WHEEL", "x.whl")
    assert basewheel.given_wheel() == wheel


def test_download_is_made_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip finds the wheel through its own settings; then .work/wheels serves."""
    index = write_wheel(tmp_path, name="torch-2.15.0-py3-none-any.whl").parent
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    constraint = tmp_path / "constraints.txt"
    constraint.write_text("torch<2.0\n", encoding="utf-8")
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nconstraint = {constraint}\n", encoding="utf-8")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    found = basewheel.find(fake.project, fake.pin)
    assert found.path.parent == fake.project.wheels
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert basewheel.find(fake.project, fake.pin).path == found.path


def test_no_network_is_one_clear_error(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ToolError, match="pip could not download torch==2") as caught:
        basewheel.find(fake.project, fake.pin)
    assert "TORCH_WHEEL=" in caught.value.next_step
    assert not list(fake.project.wheels.iterdir())
