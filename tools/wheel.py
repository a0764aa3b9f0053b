"""Make our wheel from the official one, in seconds, or leave nothing behind.

Changed files come from a temporary git tree, new ones from the overlay; all
other members of the archive are copied as they are. What is written is verified
in full before it gets its name. Same inputs, same bytes.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from . import record
from .apply import temporary_tree
from .basewheel import BaseWheel, corrupt, find, VERSION_FILE
from .errors import ToolError
from .native import native_files
from .pins import load_pin
from .ui import progress
from .zipcopy import copy_member


if TYPE_CHECKING:
    from collections.abc import Callable

    from .pins import Pin
    from .project import Project


def build(project: Project, out: Path, wheel: Path | None = None) -> Path:
    """Build the wheel into folder `out` and return its path."""
    pin = load_pin(project)
    base = find(project, pin, wheel)
    version = pin.local_version(base.upstream)
    target = out / wheel_name(base, version)
    written = {**patched_files(project, pin, base), **new_files(project, base)}
    written |= versioned_files(base, version)
    out.mkdir(parents=True, exist_ok=True)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=out, prefix=".torch-", suffix=".tmp", delete=False
        ) as stream:
            temporary = Path(stream.name)
            _repack(base, version, written, stream)
        _verify_built(base, temporary, target.name)
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        raise ToolError(
            f"{target}: cannot write it ({error.strerror or error})",
            f"make room for {base.path.stat().st_size >> 20} MB, "
            "or name another folder with --out",
        ) from None
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)
    return target


def wheel_name(base: BaseWheel, version: str) -> str:
    name, _, *rest = base.path.name.split("-")
    return "-".join([name, version, *rest])


def patched_files(project: Project, pin: Pin, base: BaseWheel) -> dict[str, bytes]:
    with temporary_tree(project, pin, base.read(list(pin.base))) as tree:
        changed = tree.run("diff", "--name-only", pin.overlay_tag, pin.branch)
        return {name: (tree.path / name).read_bytes() for name in changed.splitlines()}


def new_files(project: Project, base: BaseWheel) -> dict[str, bytes]:
    """Files upstream does not have."""
    files = {**project.overlay_files(), **native_files(project, base)}
    taken = sorted(set(files) & set(base.names()))
    if taken:
        raise ToolError(
            f"{base.path}: has {taken[0]} already",
            "rename ours in torch_dynamo_overlay",
        )
    return files


def versioned_files(base: BaseWheel, version: str) -> dict[str, bytes]:
    """version.py and METADATA with our version; every other byte is kept."""
    metadata = f"{base.dist_info}/METADATA"
    old = base.read([VERSION_FILE, metadata])
    if metadata not in old:
        raise corrupt(base.path, f"{metadata} is missing")
    line = f"__version__ = '{version}'".encode()
    pattern = rb"^__version__(: str)? = (['\"]).*\2"
    return {
        VERSION_FILE: re.sub(pattern, line, old[VERSION_FILE], flags=re.MULTILINE),
        metadata.replace(base.dist_info, f"torch-{version}.dist-info"): re.sub(
            rb"^Version: .*?(\r?)$",
            rb"Version: %s\1" % version.encode(),
            old[metadata],
            count=1,
            flags=re.MULTILINE,
        ),
    }


def _repack(
    base: BaseWheel,
    version: str,
    written: dict[str, bytes],
    stream: tempfile._TemporaryFileWrapper[bytes],
) -> None:
    dist_info = f"torch-{version}.dist-info"

    def rename(name: str) -> str:
        folder, slash, rest = name.partition("/")
        return dist_info + slash + rest if folder == base.dist_info else name

    try:
        with (
            zipfile.ZipFile(base.path) as source,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target,
            progress("repack", base.path.stat().st_size) as advance,
        ):
            text = source.read(f"{base.dist_info}/RECORD").decode("utf-8")
            files = dict(written)
            files[f"{dist_info}/RECORD"] = record.rewrite(text, rename, files).encode()
            moment = source.getinfo(VERSION_FILE).date_time
            _write_members(source, target, rename, files, moment, advance)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise corrupt(base.path, error) from None


def _write_members(
    source: zipfile.ZipFile,
    target: zipfile.ZipFile,
    rename: Callable[[str], str],
    files: dict[str, bytes],
    moment: tuple[int, int, int, int, int, int],
    advance: Callable[[int], None],
) -> None:
    left = dict(files)
    infos = source.infolist()
    # The wheel format asks for dist-info last, so new files go before it.
    packed = [i for i in infos if rename(i.filename) == i.filename]
    for info in packed:
        if info.filename in left:
            target.writestr(_info(info), left.pop(info.filename))
        else:
            copy_member(source, info, target, info.filename, advance)
    dist_info = [i for i in infos if rename(i.filename) != i.filename]
    kept = {rename(i.filename) for i in dist_info}
    for name in [name for name in left if name not in kept]:
        info = zipfile.ZipInfo(name, moment)
        info.external_attr = 0o100644 << 16
        target.writestr(_info(info), left.pop(name))
    for info in dist_info:
        name = rename(info.filename)
        if name in left:
            new = _info(info)
            new.filename = name
            target.writestr(new, left.pop(name))
        else:
            copy_member(source, info, target, name, advance)


def _info(old: zipfile.ZipInfo) -> zipfile.ZipInfo:
    new = zipfile.ZipInfo(old.filename, old.date_time)
    new.external_attr = old.external_attr
    new.compress_type = zipfile.ZIP_DEFLATED
    return new


def _verify_built(base: BaseWheel, path: Path, name: str) -> None:
    problems = problems_in(path, name)
    if problems:
        # Members that we did not write came straight from the base wheel.
        raise corrupt(base.path, "; ".join(problems[:3]))


def verify(path: Path) -> None:
    """Every hash in RECORD, and that all four places name one version."""
    if not path.is_file():
        raise ToolError(f"{path}: there is no such wheel", "check the path you gave")
    try:
        problems = problems_in(path, path.name)
    except (zipfile.BadZipFile, zlib.error, OSError) as error:
        raise corrupt(path, error) from None
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ToolError(
            f"{path}: {len(problems)} problems\n  " + "\n  ".join(problems[:10]) + more,
            "build it again with `python -m tools wheel`",
        )


def problems_in(path: Path, name: str) -> list[str]:
    """What is wrong with the wheel at `path`, which is to be called `name`."""
    try:
        _, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        return [str(error)]
    with (
        zipfile.ZipFile(path) as archive,
        progress("verify", path.stat().st_size) as advance,
    ):
        dist_info = f"torch-{version}.dist-info"
        if f"{dist_info}/METADATA" not in archive.namelist():
            return [f"{dist_info}/METADATA: missing"]
        problems = list(record.verify(archive, dist_info, advance))
        if problems:
            return problems
        raw, _ = parse_email(archive.read(f"{dist_info}/METADATA"))
        code = archive.read(VERSION_FILE).decode("utf-8")
    if raw.get("version") != str(version):
        problems.append(f"METADATA says version {raw.get('version')}, not {version}")
    # The official wheel leaves the local part out of its name.
    if version.local and f"'{version}'" not in code:
        problems.append(f"{VERSION_FILE} does not say {version}")
    return problems
