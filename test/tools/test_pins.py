"""Pin files: read strictly, extended without losing their comments."""

from __future__ import annotations

import pytest

from conftest import CONFIG, Fake, GUARDS, PRISTINE
from tools.errors import ToolError
from tools.pins import add_base, base_requirement, check_base, load_pin


def edit(fake: Fake, old: str, new: str) -> None:
    path = fake.pin.path
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("upstream", "ours"),
    [
        ("2.15.0", "2.15.0+hooks.1"),
        ("2.15.0+cpu", "2.15.0+cpu.hooks.1"),
        ("2.15.0+cu132", "2.15.0+cu132.hooks.1"),
    ],
)
def test_local_version_keeps_the_local_part(
    fake: Fake, upstream: str, ours: str
) -> None:
    assert fake.pin.local_version(upstream) == ours


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"supported"', '"fine"', "status 'fine' is not one of"),
        ('version = "2.15.0"', 'version = "2.14.0"', "does not match the file's name"),
        ("a" * 40, "abc", "is not a full 40-digit hash"),
        ("revision = 1", "revision = 0", "revision 0"),
        ("revision = 1", "", "'revision' is missing"),
        ("revision = 1", "revision = ", "not valid TOML"),
    ],
)
def test_bad_pin_is_named(fake: Fake, old: str, new: str, message: str) -> None:
    edit(fake, old, new)
    with pytest.raises(ToolError, match=message) as caught:
        load_pin(fake.project)
    assert "pins/2.15.0.toml" in caught.value.what


def test_default_names_a_missing_pin(fake: Fake) -> None:
    (fake.project.pins / "default").write_text("3.0.0\n", encoding="utf-8")
    with pytest.raises(ToolError, match=r"pins/3\.0\.0\.toml: cannot read the pin"):
        load_pin(fake.project)


def test_base_file_that_differs_is_named(fake: Fake) -> None:
    files = {**PRISTINE, GUARDS: b"other\n"}
    with pytest.raises(ToolError, match=f"x.whl: {GUARDS} differs from the pristine"):
        check_base(fake.pin, files, "x.whl")


def test_base_file_that_is_missing_is_named(fake: Fake) -> None:
    with pytest.raises(ToolError, match=f"x.whl: {GUARDS} is missing"):
        check_base(fake.pin, {CONFIG: PRISTINE[CONFIG]}, "x.whl")


def test_add_base_keeps_comments_and_sorts(fake: Fake) -> None:
    add_base(fake.pin, {"torch/_dynamo/a.py": b"a\n"})
    assert list(fake.pin.base) == ["torch/_dynamo/a.py", CONFIG, GUARDS]
    assert "# a comment" in fake.pin.path.read_text(encoding="utf-8")


def test_base_requirement_must_be_one(fake: Fake) -> None:
    path = fake.project.base_requirement
    path.write_text("torch==2.15.0\nnumpy\n", encoding="utf-8")
    with pytest.raises(ToolError, match="expected one requirement, found 2"):
        base_requirement(fake.project)
