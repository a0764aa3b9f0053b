"""PEP 517 backend behind `pip wheel .` and `pip install .`.

There is no metadata hook on purpose: our name and version are known only once
the base wheel is, so pip takes them from the wheel it had us build.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .errors import ToolError
from .project import Project
from .wheel import build


def build_wheel(
    wheel_directory: str,
    config_settings: object = None,
    metadata_directory: str | None = None,
) -> str:
    try:
        return build(Project.here(), Path(wheel_directory)).name
    except ToolError as error:
        # pip shows the last lines of a failed build; a traceback would bury ours.
        sys.exit(f"error: {error}")


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    sys.exit(
        "error: torch-hooks has no source distribution\n"
        "  next: use a git checkout, and `pip wheel . --no-deps`"
    )
