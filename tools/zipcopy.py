"""Copy members between zip archives without recompressing them.

`zipfile` can only decompress and compress again, which takes minutes for torch.
The compressed bytes are copied as they are, under a header written anew: so a
member can be renamed on the way, and needs no data descriptor after it.
"""

from __future__ import annotations

import copy
import struct
import zipfile
from typing import IO, TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, name length, extra length
ZIP64_EXTRA = 1
SIZES_FOLLOW_DATA = 0x08
CHUNK = 4 << 20


def copy_member(
    source: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    target: zipfile.ZipFile,
    name: str,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Append member `info` of `source` to `target`, under `name`."""
    new = copy.copy(info)
    new.filename = name
    new.flag_bits &= ~SIZES_FOLLOW_DATA
    # zipfile adds this field itself to a member that needs it.
    new.extra = _without_zip64(info.extra)
    reader, writer = source.fp, target.fp
    assert reader and writer
    _seek_to_data(reader, info)
    writer.seek(target.start_dir)
    new.header_offset = writer.tell()
    writer.write(new.FileHeader())
    left = info.compress_size
    while left:
        chunk = reader.read(min(left, CHUNK))
        if not chunk:
            raise zipfile.BadZipFile(f"{info.filename} ends too early")
        writer.write(chunk)
        left -= len(chunk)
        advance(len(chunk))
    target.start_dir = writer.tell()
    target.filelist.append(new)
    target.NameToInfo[name] = new


def _seek_to_data(reader: IO[bytes], info: zipfile.ZipInfo) -> None:
    reader.seek(info.header_offset)
    header = reader.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"{info.filename} has no local header")
    _, name_length, extra_length = LOCAL_HEADER.unpack(header)
    reader.seek(name_length + extra_length, 1)


def _without_zip64(extra: bytes) -> bytes:
    kept = b""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind != ZIP64_EXTRA:
            kept += extra[: 4 + length]
        extra = extra[4 + length :]
    return kept
