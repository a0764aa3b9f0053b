"""Members move between archives with their compressed bytes untouched."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.zipcopy import copy_member


TEXT = b"some text, again and again\n" * 1000


def copied(data: bytes, rename: str | None = None) -> zipfile.ZipFile:
    target = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(target, "w") as archive,
    ):
        for info in source.infolist():
            copy_member(source, info, archive, rename or info.filename)
    return zipfile.ZipFile(target)


class Unseekable(io.RawIOBase):
    """Makes zipfile write sizes after the data, in a data descriptor."""

    def __init__(self) -> None:
        self.data = io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self.data.write(data)  # type: ignore[arg-type]


def plain() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("folder/"), b"")
        archive.writestr("deflated", TEXT, zipfile.ZIP_DEFLATED)
        archive.writestr("größe", b"stored", zipfile.ZIP_STORED)
    return target.getvalue()


def with_descriptors() -> bytes:
    target = Unseekable()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one", TEXT)
        archive.writestr("two", b"2")
    return target.data.getvalue()


def with_zip64_fields() -> bytes:
    target = io.BytesIO()
    with (
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("one", "w", force_zip64=True) as stream,
    ):
        stream.write(TEXT)
    return target.getvalue()


@pytest.mark.parametrize("make", [plain, with_descriptors, with_zip64_fields])
def test_copy_reads_the_same(make: Callable[[], bytes]) -> None:
    data = make()
    with zipfile.ZipFile(io.BytesIO(data)) as source, copied(data) as target:
        assert target.namelist() == source.namelist()
        assert target.testzip() is None
        for old, new in zip(source.infolist(), target.infolist(), strict=True):
            assert target.read(new) == source.read(old)
            assert new.compress_size == old.compress_size
            assert new.external_attr == old.external_attr
            assert new.date_time == old.date_time


def test_member_over_four_gigabytes_gets_its_zip64_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = plain()
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    with copied(data) as target:
        assert target.read("deflated") == TEXT
        assert target.testzip() is None


def test_member_can_be_renamed() -> None:
    with copied(with_zip64_fields(), "other") as target:
        assert target.read("other") == TEXT


def test_copies_and_new_members_mix(tmp_path: Path) -> None:
    path = tmp_path / "mixed.zip"
    with (
        zipfile.ZipFile(io.BytesIO(with_zip64_fields())) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        archive.writestr("before", TEXT)
        copy_member(source, source.getinfo("one"), archive, "one")
        archive.writestr("after", TEXT)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["before", "one", "after"]
        assert archive.testzip() is None


def test_truncated_source_is_an_error() -> None:
    data = bytearray(plain())
    data[:4] = b"XXXX"
    with pytest.raises(zipfile.BadZipFile, match="no local header"):
        copied(bytes(data))
