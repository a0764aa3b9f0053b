"""`python -m tools`: explains itself when its few libraries are not installed."""

from __future__ import annotations

import sys


try:
    from .cli import run
except ModuleNotFoundError as error:
    if error.name and error.name.partition(".")[0] != "tools":
        sys.exit(
            f"error: the tools need {error.name}, which {sys.executable} lacks\n"
            "  next: `make venv` and use .venv/bin/python, or "
            f"`{sys.executable} -m pip install -r requirements/tools.txt`"
        )
    raise

run()
