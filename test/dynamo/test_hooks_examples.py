# Owner(s): ["module: dynamo"]
"""The programs in ``examples/``, run as a user runs them.

Each compares itself with eager and exits with 1 where it differs; the tests here ask
for 0, and for 1 where hooks are ignored on purpose.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    TestCase,
)


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("record_activations", "steer", "clip_gradients")

# What the official release does by default.
WITHOUT_HOOK_GUARDS = """
import runpy, sys
import torch._dynamo
torch._dynamo.config.skip_nnmodule_hook_guards = True
sys.argv.pop(0)
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class ExampleTests(TestCase):
    def setUp(self) -> None:
        super().setUp()
        # A place of its own: examples may depend on nothing that lies about here.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_python(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )

    def check(self, *arguments: str | Path, code: int = 0) -> str:
        result = self.run_python(*arguments)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout

    @parametrize("name", SMALL)
    def test_small(self, name: str) -> None:
        lines = self.check(EXAMPLES / f"{name}.py", "aot_eager").splitlines()
        self.assertEqual(len(lines), 1)
        self.assertIn("as eager", lines[0])

    @pytest.mark.slow
    @parametrize("name", SMALL)
    def test_small_with_inductor(self, name: str) -> None:
        self.check(EXAMPLES / f"{name}.py")

    @pytest.mark.slow
    @parametrize("name", SMALL)
    def test_small_notices_ignored_hooks(self, name: str) -> None:
        script = EXAMPLES / f"{name}.py"
        output = self.check("-c", WITHOUT_HOOK_GUARDS, script, "aot_eager", code=1)
        self.assertIn("DIFFERENT FROM EAGER", output)

    def test_digits(self) -> None:
        picture = self.folder / "sub" / "cam.png"
        # The failing interpreter is no reason to fail: what is judged is this one.
        result = self.digits("--quick", "--out", picture, "--pristine", "/bin/false")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn("DIFFERENT", result.stdout)
        self.assertIn("/bin/false ended with 1", result.stderr)
        self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))

    @pytest.mark.slow
    def test_digits_with_inductor(self) -> None:
        result = self.digits("--out", self.folder / "cam.png")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_digits_notices_ignored_hooks(self) -> None:
        path = self.folder / "verdicts.json"
        script = EXAMPLES / "digits.py"
        self.check(
            *("-c", WITHOUT_HOOK_GUARDS, script, "--quick", "--json", path), code=1
        )
        equal = {row["title"] for row in json.loads(path.read_text()) if same(row)}
        # A global hook is noticed without guards, as a hook of the root module is.
        noticed = {"plain training", "input edited", "calls counted"}
        self.assertEqual(equal, {*noticed, "all hooks removed"})

    @pytest.mark.slow
    def test_digits_beside_another_interpreter(self) -> None:
        picture = self.folder / "cam.png"
        result = self.digits("--quick", "--out", picture, "--pristine", sys.executable)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("pristine:", result.stdout)
        self.assertNotIn("failed", result.stdout)

    def test_digits_beside_a_missing_interpreter(self) -> None:
        result = self.digits("--pristine", "no/python")
        self.assertEqual(result.returncode, 2)
        self.assertIn("there is no no/python", result.stderr)

    def digits(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run_python(EXAMPLES / "digits.py", *arguments)


def same(row: dict[str, Any]) -> bool:
    tallies = (row["values"], row["gradients"], row["calls"])
    return not row["error"] and not any(tally["difference"] for tally in tallies)


instantiate_parametrized_tests(ExampleTests)


if __name__ == "__main__":
    run_tests()
