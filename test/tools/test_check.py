"""Each check passes on a good project and fails on the one fault it is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import CONFIG, Fake, GUARDS, write_wheel
from tools.check import Checks, Context, run, show
from tools.check_static import static
from tools.check_tree import tree
from tools.project import OVERLAY_PACKAGE


OPTION = "dynamo_add_an_option.patch"
ASK = "dynamo_ask_the_overlay.patch"


def failures(fake: Fake, checks: Checks, only: str = "") -> dict[str, list[str]]:
    chosen = [check for check in checks.all if only in check.id]
    results = run(chosen, Context(fake.project, fake.wheel))
    assert show(results) is not any(results.values())
    return {
        check.id: [problem.what for problem in problems]
        for check, problems in results.items()
        if problems
    }


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def patch_edit(old: str, new: str, name: str = OPTION) -> Callable[[Fake], None]:
    return lambda fake: edit(fake.patches / name, old, new)


def file_edit(path: str, old: str, new: str) -> Callable[[Fake], None]:
    return lambda fake: edit(fake.project.root / path, old, new)


def added_lines(count: int, header: str = "") -> Callable[[Fake], None]:
    def change(fake: Fake) -> None:
        path = fake.patches / OPTION
        edit(path, "@@ -3,6 +3,7 @@", f"@@ -3,6 +3,{7 + count} @@")
        edit(path, "+option_hooks = True\n", "+option_hooks = True\n" + "+x\n" * count)
        edit(path, "\nTested-By:", f"{header}\nTested-By:")

    return change


def second_file(fake: Fake) -> None:
    text = (fake.patches / ASK).read_text(encoding="utf-8")
    path = fake.patches / OPTION
    diff = text[text.index("diff --git") :]
    path.write_text(path.read_text(encoding="utf-8") + diff, encoding="utf-8")


def overlay_file(name: str) -> Callable[[Fake], None]:
    def change(fake: Fake) -> None:
        path = fake.project.overlay / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n", encoding="utf-8")

    return change


def test_a_good_project_passes_every_check(fake: Fake) -> None:
    assert failures(fake, static) == {}
    assert failures(fake, tree) == {}


STATIC = [
    ("OV001", lambda f: (f.patches / OPTION).unlink(), "there is no such file"),
    ("OV001", lambda f: (f.patches / "x.patch").touch(), "not listed in series"),
    (
        "OV001",
        file_edit("patches/2.15.0/series", OPTION, f"{OPTION}\n{OPTION}"),
        "more than once",
    ),
    ("OV002", patch_edit("Seam: ", "Seem: "), "there is no Seam:"),
    ("OV002", patch_edit("Drop-When: a", "Drop-When:\nx a"), "there is no"),
    ("OV002", patch_edit("Pending [a test]", "Pending"), "not a known status"),
    ("OV002", patch_edit("Pending [a test]", "Sent [x]"), "not a known status"),
    ("OV002", patch_edit("[dynamo] Add", "Add"), "does not begin with an [area]"),
    ("OV002", patch_edit("an option", "an option" + "!" * 60), "over 72"),
    ("OV002", patch_edit("Add an option", "Add options"), "dynamo_add_options.patch"),
    ("OV002", patch_edit("person@example.org", "nobody"), "is not `Name <mail>`"),
    (
        "OV002",
        patch_edit(
            "Upstream does nothing here, so the user loses a hook. A seam, for the "
            "test.\n\n",
            "",
        ),
        "does not say why",
    ),
    ("OV003", patch_edit("From 000", "From 1000"), "no zero hash"),
    ("OV003", patch_edit("index ", "index 1"), "no full 40-digit index"),
    ("OV003", patch_edit("+option_hooks = True", "+x = 1 "), "trailing whitespace"),
    ("OV004", file_edit("pins/2.15.0.toml", CONFIG, "torch/x.py"), "not in [base]"),
    ("OV004", patch_edit("index ", "new file mode 100644\nindex "), "only edits"),
    ("OV004", patch_edit(f"+++ b/{CONFIG}", "+++ /dev/null"), "only edits"),
    ("OV005", second_file, "touches 2 files"),
    ("OV005", added_lines(12), "+13 -0 lines, over the budget"),
    (
        "OV006",
        patch_edit("HookTests.test_option", "HookTests.test_gone"),
        "no method test_gone in HookTests",
    ),
    ("OV006", patch_edit("HookTests.test", "Other.test"), "no class Other"),
    ("OV006", patch_edit("test_hooks.py Hook", "gone.py Hook"), "there is no test/"),
    ("OV006", patch_edit("test_hooks.py Hook", "test_hooks.py::Hook"), "is not `path"),
    ("OV007", overlay_file("torch/_dynamo/stray.py"), "outside torch/_dynamo/nn_mod"),
    (
        "OV007",
        lambda f: (f.project.overlay / OVERLAY_PACKAGE / "__init__.py").unlink(),
        "missing",
    ),
    ("OV008", file_edit("requirements/base.txt", "2.15.0", "2.14.0"), "but the pin"),
    ("OV008", file_edit("requirements/base.txt", "==", ">="), "but the pin"),
]


@pytest.mark.parametrize(("id", "change", "message"), STATIC)
def test_static_check_notices(
    fake: Fake, id: str, change: Callable[[Fake], object], message: str
) -> None:
    change(fake)
    found = failures(fake, static, id)
    assert any(message in what for what in found.get(id, [])), found


def test_budget_may_be_raised_with_a_reason(fake: Fake) -> None:
    added_lines(12, "\nBudget: the option needs a long comment")(fake)
    assert failures(fake, static) == {}


def test_eleven_more_lines_are_within_the_budget(fake: Fake) -> None:
    added_lines(11)(fake)
    assert failures(fake, static) == {}


def overlay_edit(old: str, new: str) -> Callable[[Fake], None]:
    return file_edit(f"torch_dynamo_overlay/{OVERLAY_PACKAGE}/seam.py", old, new)


def other_pristine(fake: Fake) -> None:
    text = fake.pin.path.read_text(encoding="utf-8")
    digest = fake.pin.base[GUARDS]
    fake.pin.path.write_text(text.replace(digest, "0" * 64), encoding="utf-8")


def other_blob(fake: Fake) -> None:
    path = fake.patches / OPTION
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub("index .{40}", f"index {'0' * 40}", text), encoding="utf-8")


TREE = [
    ("OV101", other_pristine, f"{GUARDS} differs from the pristine file"),
    ("OV101", other_blob, "made from blob 000000000000"),
    ("OV102", patch_edit(" option_6 = 6", " option_6 = 7"), "hunk 1 (line 3)"),
    ("OV102", patch_edit("+option_hooks = True", "+option_hooks = ("), "after '[dyn"),
    ("OV102", overlay_edit("def build", "def def build"), "seam.py:1: invalid syntax"),
    ("OV103", patch_edit("Date: ", "Date:  "), f"{OPTION}: differs"),
    ("OV105", overlay_edit("def build", "def built"), "nn_module_hooks.seam.build"),
    (
        "OV105",
        patch_edit("import seam\n", "import scene as seam\n", ASK),
        "uses torch._dynamo.nn_module_hooks.scene",
    ),
]


@pytest.mark.parametrize(("id", "change", "message"), TREE)
def test_tree_check_notices(
    fake: Fake, id: str, change: Callable[[Fake], object], message: str
) -> None:
    change(fake)
    found = failures(fake, tree, id)
    assert any(message in what for what in found.get(id, [])), found


def test_patch_that_a_later_one_leans_on_is_noticed(fake: Fake) -> None:
    config = (fake.project.tree / CONFIG).read_bytes()
    changed = config.replace(b"option_hooks = True", b"option_hooks = 2 - 1")
    fake.commit("Lean on it", "config.option_hooks", "test_option", config=changed)
    fake.export()
    found = failures(fake, tree)
    assert list(found) == ["OV107"]
    assert "add_an_option.patch: cannot be taken out" in found["OV107"][0]


def test_overlay_path_that_upstream_owns_is_noticed(fake: Fake, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, files={f"{OVERLAY_PACKAGE}/seam.py": b""})
    found = failures(Fake(fake.project, wheel), tree, "OV104")
    assert f"has {OVERLAY_PACKAGE}/seam.py too" in found["OV104"][0]


def test_missing_wheel_fails_the_tree_checks(fake: Fake, tmp_path: Path) -> None:
    found = failures(Fake(fake.project, tmp_path / "gone.whl"), tree)
    assert set(found) == {check.id for check in tree.all}


def test_ids_are_unique_and_in_order() -> None:
    ids = [check.id for check in static.all + tree.all]
    assert ids == sorted(set(ids))
