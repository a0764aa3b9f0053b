"""The one error the tools raise for anything a user can put right."""

from __future__ import annotations


class ToolError(Exception):
    """What is wrong (naming the file) and the next thing to do about it."""

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(f"{what}\n  next: {next_step}")
        self.what = what
        self.next_step = next_step
