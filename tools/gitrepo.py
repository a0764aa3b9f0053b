"""A thin layer over the git command.

Our own repositories (`own=True`) ignore the user's and the machine's git
configuration, because settings such as `apply.whitespace=fix` or
`diff.noprefix` would change what a patch means or how it is written.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import ToolError


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# A fixed identity and date: the same files always make the same commit.
TOOLS_IDENTITY = "torch-hooks tools <tools@torch-hooks.invalid> 946684800 +0000"


class GitError(Exception):
    def __init__(self, args: tuple[str, ...], stderr: str) -> None:
        super().__init__(f"git {' '.join(args)}: {stderr.strip()}")
        self.stderr = stderr


def _environment(own: bool) -> dict[str, str]:
    # GIT_DIR and friends are set when we run inside a git hook, and would send
    # every command below to that repository.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env["LC_ALL"] = "C"
    if own:
        env["GIT_CONFIG_GLOBAL"] = os.devnull
        env["GIT_CONFIG_NOSYSTEM"] = "1"
        name, _, mail = TOOLS_IDENTITY.partition(" <")
        env["GIT_COMMITTER_NAME"] = name
        env["GIT_COMMITTER_EMAIL"] = mail.partition(">")[0]
    return env


@dataclass(frozen=True)
class Repo:
    path: Path
    own: bool = True

    @classmethod
    def init(cls, path: Path) -> Repo:
        path.mkdir(parents=True, exist_ok=True)
        repo = cls(path)
        repo.run("init", "-q", "-b", "main")
        return repo

    def raw(self, *args: str, stdin: bytes | None = None) -> bytes:
        try:
            done = subprocess.run(
                ["git", *args],
                cwd=self.path,
                env=_environment(self.own),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
            )
        except FileNotFoundError:
            if not self.path.is_dir():
                raise ToolError(
                    f"{self.path}: no such folder", "check the path you gave"
                ) from None
            raise ToolError(
                "git is not installed, or not on PATH",
                "install git (for example `apt-get install git`)",
            ) from None
        if done.returncode:
            raise GitError(args, done.stderr.decode("utf-8", "replace"))
        return done.stdout

    def run(self, *args: str) -> str:
        return self.raw(*args).decode("utf-8").rstrip("\n")

    def has(self, ref: str) -> bool:
        try:
            self.run("rev-parse", "-q", "--verify", f"{ref}^{{commit}}")
        except GitError:
            return False
        return True

    def commit_files(
        self,
        ref: str,
        message: bytes,
        files: Mapping[str, bytes],
        parent: str | None = None,
        author: str = TOOLS_IDENTITY,
    ) -> None:
        """Point `ref` at a commit that adds `files` to `parent` (or to nothing).

        fast-import touches neither the index nor the checked-out files, so this
        is safe while somebody edits the tree.
        """
        stream = [f"commit {ref}\nauthor {author}\ncommitter {author}\n".encode()]
        stream.append(b"data %d\n%s\n" % (len(message), message))
        if parent:
            stream.append(f"from {self.run('rev-parse', parent)}\n".encode())
        for name, data in files.items():
            stream.append(f"M 100644 inline {name}\n".encode())
            stream.append(b"data %d\n%s\n" % (len(data), data))
        self.raw("fast-import", "--quiet", "--force", stdin=b"".join(stream))

    def state_problem(self) -> str | None:
        """Why nothing should be built on this checkout right now, if anything."""
        git_dir = self.path / self.run("rev-parse", "--git-dir")
        for name in ("rebase-apply", "rebase-merge", "MERGE_HEAD", "CHERRY_PICK_HEAD"):
            if (git_dir / name).exists():
                return f"an unfinished am, rebase or merge ({git_dir / name})"
        # Builds dirty the submodules of a PyTorch checkout; that is not our concern.
        status = self.run("status", "--porcelain", "--ignore-submodules=dirty")
        if status:
            lines = status.splitlines()
            more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
            return "uncommitted changes: " + ", ".join(x[3:] for x in lines[:3]) + more
        return None
