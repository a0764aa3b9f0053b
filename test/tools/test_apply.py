"""fetch and apply: the work tree, and somebody's own PyTorch checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import CONFIG, Fake, GUARDS, PRISTINE
from tools import apply
from tools.errors import ToolError
from tools.gitrepo import Repo
from tools.project import OVERLAY_PACKAGE


def spoil(fake: Fake, name: str = "dynamo_add_an_option.patch") -> None:
    """Make a patch not apply: its context names a line the file does not have."""
    path = fake.patches / name
    text = path.read_text(encoding="utf-8")
    assert " option_6 = 6" in text
    path.write_text(text.replace(" option_6 = 6", " option_6 = 7"), encoding="utf-8")


def test_fetch_twice_moves_nothing(fake: Fake) -> None:
    before = fake.tree.run("rev-parse", fake.pin.tag)
    fake.fetch()
    assert fake.tree.run("rev-parse", fake.pin.tag) == before
    names = fake.tree.run("ls-tree", "-r", "--name-only", fake.pin.tag).splitlines()
    assert {CONFIG, GUARDS, "torch/version.py"} <= set(names)


def test_apply_commits_overlay_first_then_each_patch(fake: Fake) -> None:
    fake.apply()
    log = fake.tree.run("log", "--reverse", "--format=%s", fake.pin.branch)
    assert log.splitlines()[1:] == [
        "[dynamo] Add nn_module_hooks",
        "[dynamo] Add an option",
        "[dynamo] Ask the overlay",
    ]
    assert fake.tree.run("log", "-1", "--format=%an") == "A Person"


def test_apply_needs_fetch(fake: Fake, tmp_path: Path) -> None:
    (fake.project.work / "torch").rename(tmp_path / "away")
    with pytest.raises(ToolError, match="pristine files are not there yet") as caught:
        fake.apply()
    assert "python -m tools fetch" in caught.value.next_step


def test_apply_again_is_the_same_commit(fake: Fake) -> None:
    fake.apply()
    before = fake.tree.run("rev-parse", "HEAD")
    fake.apply()
    assert fake.tree.run("rev-parse", "HEAD") == before


def test_failed_patch_is_named_with_file_and_hunk(fake: Fake) -> None:
    before = fake.tree.run("rev-parse", fake.pin.branch, fake.pin.overlay_tag)
    spoil(fake)
    with pytest.raises(ToolError) as caught:
        fake.apply()
    assert caught.value.what == (
        "patches/2.15.0/dynamo_add_an_option.patch: "
        f"hunk 1 (line 3) does not apply to {CONFIG}"
    )
    after = fake.tree.run("rev-parse", fake.pin.branch, fake.pin.overlay_tag)
    assert after == before
    assert fake.tree.state_problem() is None


def test_uncommitted_work_is_not_thrown_away(fake: Fake) -> None:
    (fake.project.tree / CONFIG).write_bytes(b"mine\n")
    with pytest.raises(ToolError, match=f"uncommitted changes: {CONFIG}"):
        fake.apply()
    assert (fake.project.tree / CONFIG).read_bytes() == b"mine\n"
    fake.apply(force=True)
    assert b"option_hooks" in (fake.project.tree / CONFIG).read_bytes()


def test_unexported_commit_is_not_thrown_away(fake: Fake) -> None:
    fake.commit("More", "x", "test_option", config=b"more = 1\n")
    with pytest.raises(ToolError, match="commits that were not exported"):
        fake.apply()
    fake.export()
    fake.apply()
    assert (fake.project.tree / CONFIG).read_bytes() == b"more = 1\n"


@pytest.mark.parametrize("text", ("", "garbage\n"))
def test_file_that_is_no_patch(fake: Fake, text: str) -> None:
    (fake.patches / "dynamo_add_an_option.patch").write_text(text, encoding="utf-8")
    with pytest.raises(ToolError, match="no `diff --git` line") as caught:
        fake.apply()
    assert "dynamo_add_an_option.patch" in str(caught.value)
    assert "tools export" in caught.value.next_step


def test_patch_that_is_not_listed_is_not_left_out(fake: Fake) -> None:
    series = fake.patches / "series"
    names = series.read_text(encoding="utf-8").splitlines()
    series.write_text(f"{names[0]}\n", encoding="utf-8")
    with pytest.raises(ToolError, match="not listed in series"):
        fake.apply()


def test_three_way_leaves_the_conflict_to_be_resolved(fake: Fake) -> None:
    path = fake.patches / "dynamo_add_an_option.patch"
    (fake.patches / "series").write_text(
        "dynamo_ask_the_overlay.patch\nagain.patch\n", encoding="utf-8"
    )
    text = path.read_text(encoding="utf-8")
    (fake.patches / "again.patch").write_text(
        text.replace("+option_hooks", "+other").replace("Add an", "Other"),
        encoding="utf-8",
    )
    path.unlink()
    spoil(fake, "again.patch")
    with pytest.raises(ToolError, match=r"again\.patch: ") as caught:
        fake.apply(three_way=True)
    assert "git am --continue" in caught.value.next_step


def test_git_settings_of_the_user_do_not_matter(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[diff]\nnoprefix = true\n[apply]\nwhitespace = fix\n[core]\nautocrlf = true\n"
        "[commit]\ngpgsign = true\n[format]\nsignature = x\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    fake.apply()
    assert fake.export() == []


@pytest.fixture
def checkout(fake: Fake, tmp_path: Path) -> Repo:
    """A clone at a commit with the pristine files, which the pin then names."""
    repo = Repo.init(tmp_path / "pytorch")
    files = {**PRISTINE, "torch/__init__.py": b"", "README.md": b"PyTorch\n"}
    repo.commit_files("refs/heads/main", b"upstream\n", files)
    repo.run("checkout", "-q", "main")
    commit = repo.run("rev-parse", "HEAD")
    text = fake.pin.path.read_text(encoding="utf-8")
    fake.pin.path.write_text(text.replace("a" * 40, commit), encoding="utf-8")
    return repo


def state(repo: Repo) -> tuple[str, ...]:
    return (
        repo.run("rev-parse", "--abbrev-ref", "HEAD"),
        repo.run("rev-parse", "HEAD"),
        repo.run("for-each-ref"),
        repo.run("status", "--porcelain"),
        (repo.path / CONFIG).read_text(encoding="utf-8"),
    )


def test_checkout_gets_overlay_and_patches_on_a_branch(
    fake: Fake, checkout: Repo
) -> None:
    branch = apply.apply_to_checkout(fake.project, fake.pin, checkout.path)
    assert checkout.run("rev-parse", "--abbrev-ref", "HEAD") == branch
    log = checkout.run("log", "--format=%an: %s", "main..").splitlines()
    assert log == [
        "A Person: [dynamo] Ask the overlay",
        "A Person: [dynamo] Add an option",
        "torch-hooks tools: [dynamo] Add nn_module_hooks",
    ]
    assert checkout.run("status", "--porcelain") == ""
    assert b"option_hooks" in (checkout.path / CONFIG).read_bytes()
    assert (checkout.path / OVERLAY_PACKAGE / "seam.py").is_file()
    assert (checkout.path / "README.md").read_bytes() == b"PyTorch\n"
    message = checkout.run("log", "-1", "--format=%B")
    assert "Seam: build -> seam.build" in message


def test_checkout_that_is_dirty_is_refused(fake: Fake, checkout: Repo) -> None:
    (checkout.path / "README.md").write_text("mine\n", encoding="utf-8")
    before = state(checkout)
    with pytest.raises(ToolError, match=r"uncommitted changes: README\.md"):
        apply.apply_to_checkout(fake.project, fake.pin, checkout.path)
    assert state(checkout) == before


def test_checkout_of_another_commit_is_refused(fake: Fake, checkout: Repo) -> None:
    commit = fake.pin.commit
    checkout.commit_files(
        "refs/heads/main", b"next\n", {"new.py": b""}, parent="refs/heads/main"
    )
    checkout.run("reset", "-q", "--hard")
    head = checkout.run("rev-parse", "HEAD")
    before = state(checkout)
    with pytest.raises(ToolError, match=f"HEAD is {head}, but .* says {commit}"):
        apply.apply_to_checkout(fake.project, fake.pin, checkout.path)
    assert state(checkout) == before


def test_checkout_is_unchanged_when_a_patch_fails(fake: Fake, checkout: Repo) -> None:
    spoil(fake)
    before = state(checkout)
    with pytest.raises(ToolError, match=r"dynamo_add_an_option\.patch: hunk 1"):
        apply.apply_to_checkout(fake.project, fake.pin, checkout.path)
    assert state(checkout) == before


def test_checkout_is_unchanged_when_the_switch_fails(
    fake: Fake, checkout: Repo
) -> None:
    # As if another git command were running there.
    lock = checkout.path / ".git/index.lock"
    lock.touch()
    before = (checkout.run("rev-parse", "HEAD"), checkout.run("for-each-ref"))
    with pytest.raises(ToolError, match=r"index\.lock"):
        apply.apply_to_checkout(fake.project, fake.pin, checkout.path)
    lock.unlink()
    after = (checkout.run("rev-parse", "HEAD"), checkout.run("for-each-ref"))
    assert after == before
    assert checkout.run("status", "--porcelain") == ""


def test_checkout_with_our_branch_is_refused(fake: Fake, checkout: Repo) -> None:
    checkout.run("branch", "torch-hooks/2.15.0")
    with pytest.raises(ToolError, match=r"branch torch-hooks/2\.15\.0 exists already"):
        apply.apply_to_checkout(fake.project, fake.pin, checkout.path)


def test_folder_that_is_no_checkout_is_refused(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToolError, match="not a git checkout of PyTorch"):
        apply.apply_to_checkout(fake.project, fake.pin, tmp_path / "empty")
