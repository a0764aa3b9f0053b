"""Reading patch files and the series."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import CONFIG, Fake
from tools.errors import ToolError
from tools.series import load_series, parse_patch, render_series, series_paths


def test_patch_is_read_whole(fake: Fake) -> None:
    option, ask = load_series(fake.project, "2.15.0")
    assert option.subject == "[dynamo] Add an option"
    assert option.author == "A Person <person@example.org>"
    assert option.trailer("Seam") == ["config.option_hooks"]
    assert [file.path for file in option.files] == [CONFIG]
    assert option.added == ["option_hooks = True"]
    assert option.removed == []
    assert len(ask.added) == 5
    assert ask.removed == ["    return 'upstream'"]


def test_lines_that_look_like_diff_marks_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.patch"
    path.write_text(
        "From 0\nFrom: A\n <a@b>\nSubject: s\n\nWhy.\n\n"
        "diff --git a/x.py b/x.py\nindex 1..2 100644\n--- a/x.py\n+++ b/x.py\n"
        "@@ -1,2 +1,2 @@\n--- minus\n+++ plus\n same\n@@ -9 +9,2 @@ def f():\n"
        " x\n+y\n\\ No newline at end of file\n",
        encoding="utf-8",
    )
    patch = parse_patch(path)
    assert patch.author == "A <a@b>"
    assert patch.removed == ["-- minus"]
    assert patch.added == ["++ plus", "y"]
    assert [hunk.old_start for hunk in patch.files[0].hunks] == [1, 9]


def test_file_without_a_diff_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.patch"
    path.write_text("Subject: s\n", encoding="utf-8")
    with pytest.raises(ToolError, match=r"x\.patch: there is no `diff --git` line"):
        parse_patch(path)


def test_series_that_lists_a_missing_file_is_refused(fake: Fake) -> None:
    (fake.patches / "dynamo_add_an_option.patch").unlink()
    with pytest.raises(ToolError, match=r"dynamo_add_an_option\.patch: listed in"):
        series_paths(fake.project, "2.15.0")


def test_series_keeps_the_comments_of_what_stays() -> None:
    old = "# one\na.patch\n# two\nb.patch  # end\n# last\n"
    assert render_series(old, ["c.patch", "a.patch"]) == (
        "c.patch\n# one\na.patch\n# last\n"
    )
    assert render_series("a.patch\n", ["a.patch"]) == "a.patch\n"
