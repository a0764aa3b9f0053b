"""RECORD, the list of a wheel's files with their hashes: rewrite it, verify it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
import zlib
from typing import TYPE_CHECKING

from installer.records import InvalidRecordEntry, parse_record_file, RecordEntry


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def row(name: str, data: bytes) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return [name, f"sha256={digest.decode().rstrip('=')}", str(len(data))]


def rewrite(
    text: str, rename: Callable[[str], str], written: Mapping[str, bytes]
) -> str:
    """RECORD with every row renamed, and rows of their own for `written` files."""
    rows = [[rename(path), *rest] for path, *rest in csv.reader(io.StringIO(text))]
    rows = [row(r[0], written[r[0]]) if r[0] in written else r for r in rows]
    listed = {r[0] for r in rows}
    rows += [row(name, data) for name, data in written.items() if name not in listed]
    target = io.StringIO()
    ending = "\r\n" if "\r\n" in text else "\n"
    csv.writer(target, lineterminator=ending).writerows(rows)
    return target.getvalue()


def entries(archive: zipfile.ZipFile, dist_info: str) -> dict[str, RecordEntry]:
    """Each row of RECORD by path; raises InvalidRecordEntry or KeyError."""
    lines = archive.read(f"{dist_info}/RECORD").decode("utf-8").splitlines()
    rows = parse_record_file(lines)
    return {path: RecordEntry.from_elements(path, *rest) for path, *rest in rows}


def verify(
    archive: zipfile.ZipFile,
    dist_info: str,
    advance: Callable[[int], None] = lambda count: None,
) -> Iterable[str]:
    """Every way in which the members differ from what RECORD says."""
    try:
        rows = entries(archive, dist_info)
    except (InvalidRecordEntry, KeyError, UnicodeDecodeError) as error:
        yield f"{dist_info}/RECORD: cannot be read ({error})"
        return
    for info in archive.infolist():
        name = info.filename
        if info.is_dir():
            continue
        entry = rows.pop(name, None)
        if entry is None:
            yield f"{name}: not in RECORD"
        elif name == f"{dist_info}/RECORD":
            if entry.hash_ is not None:
                yield f"{name}: has a hash in RECORD"
        elif entry.hash_ is None:
            yield f"{name}: has no hash in RECORD"
        else:
            try:
                with archive.open(info) as stream:
                    good = entry.validate_stream(stream)  # type: ignore[arg-type]
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                yield f"{name}: {error}"
            else:
                if not good:
                    yield f"{name}: its hash or size is not what RECORD says"
        advance(info.compress_size)
    for name in rows:
        yield f"{name}: in RECORD, but not in the wheel"
