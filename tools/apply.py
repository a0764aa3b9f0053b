"""Replay overlay and patches on the pristine files, one commit each, with git.

Three users: a temporary repository (wheel, checks), the work repository
`.work/torch` (people who edit patches), and somebody's own PyTorch checkout.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ToolError
from .export import mark_saved, unsaved
from .gitrepo import GitError, Repo
from .pins import check_base
from .series import load_series, parse_patch


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .basewheel import BaseWheel
    from .pins import Pin
    from .project import Project
    from .series import Patch

OVERLAY_MESSAGE = b"[dynamo] Add nn_module_hooks\n"


def fetch(project: Project, pin: Pin, base: BaseWheel) -> bool:
    """Commit the pristine files as tag pin/VERSION; True if the tag moved."""
    names = [n for n in base.names() if n.startswith("torch/_dynamo/")]
    names = sorted({*pin.base, *names, "torch/version.py"})
    files = base.read([name for name in names if not name.endswith("/")])
    repo = Repo.init(project.tree)
    before = repo.run("rev-parse", pin.tag) if repo.has(pin.tag) else None
    message = f"torch {pin.version}, commit {pin.commit}\n".encode()
    repo.commit_files(f"refs/tags/{pin.tag}", message, files)
    return repo.run("rev-parse", pin.tag) != before


def replay(repo: Repo, project: Project, pin: Pin, *, three_way: bool = False) -> None:
    """On tag pin/VERSION: overlay commit, tag it, then `git am` the series."""
    repo.commit_files(
        f"refs/tags/{pin.overlay_tag}",
        OVERLAY_MESSAGE,
        project.overlay_files(),
        parent=pin.tag,
    )
    repo.run("checkout", "-q", "-B", pin.branch, f"refs/tags/{pin.overlay_tag}")
    # Parsed first: what is no patch at all gets a clear error, and not git's.
    patches = [patch.path for patch in load_series(project, pin.version)]
    if not patches:
        return
    args = ["am", "-q", "--keep-non-patch", "--committer-date-is-author-date"]
    try:
        repo.run(*args, *(["-3"] if three_way else []), "--", *map(str, patches))
    except GitError as error:
        stopped_at = repo.path / ".git" / "rebase-apply" / "next"
        if not stopped_at.is_file():
            raise  # git did not come to the first patch
        failed = patches[int(stopped_at.read_text(encoding="utf-8")) - 1]
        raise _am_error(project, failed, error.stderr, three_way) from None


def _am_error(
    project: Project, failed: Path, stderr: str, three_way: bool
) -> ToolError:
    patch = project.show(failed)
    if three_way:
        return ToolError(
            f"{patch}: conflict in {project.show(project.tree)}",
            "resolve it there, `git add` the file, `git am --continue`, "
            "then `python -m tools export`",
        )
    place = re.search(r"^error: patch failed: (.+):(\d+)$", stderr, re.MULTILINE)
    if place:
        line = int(place[2])
        hunks = [
            number
            for file in parse_patch(failed).files
            for number, hunk in enumerate(file.hunks, 1)
            if file.path == place[1] and hunk.old_start == line
        ]
        reason = f"hunk {hunks[0]} (line {line}) does not apply to {place[1]}"
    else:
        reason = "; ".join(x for x in stderr.splitlines() if not x.startswith("hint:"))
    return ToolError(
        f"{patch}: {reason}",
        "`python -m tools apply -3` lets you resolve it in .work/torch; "
        "then `python -m tools export`",
    )


@contextmanager
def temporary_tree(
    project: Project, pin: Pin, pristine: Mapping[str, bytes]
) -> Iterator[Repo]:
    """A throw-away repository with overlay and patches applied to `pristine`."""
    with tempfile.TemporaryDirectory(prefix="torch-hooks-") as folder:
        repo = Repo.init(Path(folder))
        repo.commit_files(f"refs/tags/{pin.tag}", b"pristine\n", pristine)
        replay(repo, project, pin)
        yield repo


def apply_to_work_tree(
    project: Project, pin: Pin, *, three_way: bool, force: bool = False
) -> None:
    """Rebuild branch work/VERSION in `.work/torch`, never losing unsaved work."""
    repo = Repo(project.tree)
    if not (project.tree / ".git").exists() or not repo.has(pin.tag):
        raise ToolError(
            f"{project.show(project.tree)}: the pristine files are not there yet",
            "run `python -m tools fetch`",
        )
    before = {}
    if repo.has(pin.branch):
        before = {x: repo.run("rev-parse", x) for x in (pin.branch, pin.overlay_tag)}
        problem = repo.state_problem() or unsaved(repo, pin)
        if problem and not force:
            raise ToolError(
                f"{project.show(project.tree)}: {problem}",
                "commit and `python -m tools export` to keep it, "
                "or `python -m tools apply --force` to throw it away",
            )
        if problem:
            _abandon(repo)
    try:
        replay(repo, project, pin, three_way=three_way)
    except ToolError:
        if not three_way:
            _abandon(repo)
            if before:
                repo.run("checkout", "-q", "-B", pin.branch, before[pin.branch])
                overlay_ref = f"refs/tags/{pin.overlay_tag}"
                repo.run("update-ref", overlay_ref, before[pin.overlay_tag])
        raise
    mark_saved(repo, pin)


def _abandon(repo: Repo) -> None:
    for command in (("am", "--abort"), ("rebase", "--abort"), ("merge", "--abort")):
        try:
            repo.run(*command)
        except GitError:
            continue  # that one was not in progress
    repo.run("reset", "-q", "--hard")
    repo.run("clean", "-q", "-f", "-d")


def apply_to_checkout(project: Project, pin: Pin, checkout: Path) -> str:
    """Commit overlay and patches on a new branch of a PyTorch checkout.

    The commits are made from a temporary tree first, and only a finished branch
    is checked out, so a failure leaves the checkout as it was.
    """
    repo = Repo(checkout, own=False)
    branch = f"torch-hooks/{pin.version}"
    head = _check_checkout(repo, pin, branch)
    there = set(repo.run("ls-tree", "-r", "--name-only", head, "torch").splitlines())
    pristine = {
        name: repo.raw("cat-file", "blob", f"{head}:{name}")
        for name in pin.base
        if name in there
    }
    check_base(pin, pristine, str(checkout))
    overlay = project.overlay_files()
    taken = sorted(there & set(overlay))
    if taken:
        raise ToolError(
            f"{checkout / taken[0]}: upstream has a file of this name already",
            "rename ours in torch_dynamo_overlay",
        )
    ref = f"refs/heads/{branch}"
    try:
        with temporary_tree(project, pin, pristine) as tree:
            repo.commit_files(ref, OVERLAY_MESSAGE, overlay, parent=head)
            _copy_commits(tree, repo, pin, ref)
        repo.run("checkout", "-q", branch)
    except (GitError, ToolError, OSError) as error:
        if repo.has(ref):
            repo.run("update-ref", "-d", ref)
        if isinstance(error, GitError):
            raise ToolError(
                f"{checkout}: {error}", "put that right and try again"
            ) from None
        raise
    return branch


def _check_checkout(repo: Repo, pin: Pin, branch: str) -> str:
    try:
        head = repo.run("rev-parse", "HEAD")
        top = Path(repo.run("rev-parse", "--show-toplevel"))
    except GitError as error:
        raise ToolError(
            f"{repo.path}: not a git checkout of PyTorch ({error.stderr.strip()})",
            "clone https://github.com/pytorch/pytorch and give that folder",
        ) from None
    if top.resolve() != repo.path.resolve():
        raise ToolError(
            f"{repo.path}: the checkout's top folder is {top}", f"give {top}"
        )
    problem = repo.state_problem()
    if problem:
        raise ToolError(
            f"{repo.path}: {problem}", "commit it or `git stash -u`, then try again"
        )
    if head != pin.commit:
        raise ToolError(
            f"{repo.path}: HEAD is {head}, but pins/{pin.path.name} says {pin.commit}",
            f"`git checkout {pin.commit}` there, then try again",
        )
    if repo.has(f"refs/heads/{branch}"):
        raise ToolError(
            f"{repo.path}: branch {branch} exists already",
            f"`git branch -D {branch}` there, then try again",
        )
    return head


def _copy_commits(tree: Repo, repo: Repo, pin: Pin, ref: str) -> None:
    commits = tree.run("rev-list", "--reverse", f"{pin.overlay_tag}..{pin.branch}")
    for commit in commits.split():
        names = tree.run("diff-tree", "-r", "--name-only", "--no-commit-id", commit)
        files = {
            name: tree.raw("cat-file", "blob", f"{commit}:{name}")
            for name in names.splitlines()
        }
        header, _, message = tree.raw("cat-file", "commit", commit).partition(b"\n\n")
        author = re.search(rb"^author (.+)$", header, re.MULTILINE)
        assert author
        repo.commit_files(ref, message, files, parent=ref, author=author[1].decode())


def files_without(tree: Repo, patch: Patch, folder: Path) -> dict[str, bytes]:
    """The files of `patch` with everything in the series applied but itself."""
    repo = Repo.init(folder)
    for file in patch.files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((tree.path / file.path).read_bytes())
    repo.run("apply", "-R", str(patch.path.resolve()))
    return {file.path: (folder / file.path).read_bytes() for file in patch.files}
