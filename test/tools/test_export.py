"""export: patches and commits are two forms of one thing."""

from __future__ import annotations

import pytest

from conftest import Fake
from tools import export
from tools.errors import ToolError


def read(fake: Fake) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in fake.patches.iterdir()}


def test_apply_then_export_changes_no_byte(fake: Fake) -> None:
    before = read(fake)
    fake.apply()
    assert fake.export() == []
    assert read(fake) == before
    assert before["series"] == (
        b"dynamo_add_an_option.patch\ndynamo_ask_the_overlay.patch\n"
    )


def test_dry_run_names_what_differs_and_writes_nothing(fake: Fake) -> None:
    path = fake.patches / "dynamo_add_an_option.patch"
    path.write_bytes(path.read_bytes().replace(b"does nothing", b"did nothing"))
    (fake.patches / "extra.patch").write_bytes(b"")
    before = read(fake)
    assert export.export(fake.project, fake.pin, dry_run=True) == [
        "patches/2.15.0/dynamo_add_an_option.patch: differs",
        "patches/2.15.0/extra.patch: no commit makes it",
    ]
    assert read(fake) == before


def test_reworded_commit_renames_its_patch(fake: Fake) -> None:
    fake.tree.run(
        *("-c", "user.name=A", "-c", "user.email=a@b", "commit", "--amend", "-q"),
        *("-m", "[dynamo] Ask `nn_module_hooks` (2)"),
    )
    fake.export()
    assert sorted(read(fake)) == [
        "dynamo_add_an_option.patch",
        "dynamo_ask_nn_module_hooks_2.patch",
        "series",
    ]


def test_commit_to_another_file_is_refused(fake: Fake) -> None:
    fake.commit("Stray", "x", "test_option", __init__=b"x = 1\n")
    with pytest.raises(ToolError, match=r"changes torch/_dynamo/__init__\.py, which"):
        fake.export()


def test_two_commits_with_one_name_are_refused(fake: Fake) -> None:
    fake.commit("Add an option", "x", "test_option", config=b"x = 1\n")
    with pytest.raises(ToolError, match=r"written to dynamo_add_an_option\.patch"):
        fake.export()


def test_uncommitted_edit_is_refused(fake: Fake) -> None:
    (fake.project.tree / "torch/_dynamo/config.py").write_bytes(b"x = 1\n")
    with pytest.raises(ToolError, match="uncommitted changes"):
        fake.export()
