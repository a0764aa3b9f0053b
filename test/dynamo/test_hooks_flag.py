# Owner(s): ["module: dynamo"]
"""``skip_nnmodule_hook_guards``: off by default, and both ways it is set."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import edit, FORWARD_KINDS, register, register_global
from hook_programs import HookTestCase, no_global_hooks, play, Run, same


def add_late(run: Run, kind: str) -> None:
    run.step()
    register(run.model.blocks[1], kind, edit(kind))
    run.step()


class SkipFlagTests(HookTestCase):
    def test_hook_guards_are_on_by_default(self) -> None:
        self.assertIs(torch._dynamo.config.skip_nnmodule_hook_guards, False)
        self.check(lambda run: add_late(run, "forward"), distinct=2, graphs=2)

    @parametrize("kind", FORWARD_KINDS)
    def test_true_trusts_that_no_hook_changes(self, kind: str) -> None:
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
            run = play(lambda run: add_late(run, kind), compiled=True)
        self.assertTrue(same(run.steps[0], run.steps[1]))
        self.assertEqual(run.graphs, 1)

    @parametrize("kind", FORWARD_KINDS)
    def test_false_notices_every_change(self, kind: str) -> None:
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
            self.check(lambda run: add_late(run, kind), distinct=2, graphs=2)

    def test_true_ignores_global_hooks_added_later(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            register_global("forward", edit("forward"))
            run.step()

        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
            run = play(scenario, compiled=True, wrap="function")
        self.assertTrue(same(run.steps[0], run.steps[1]))

    def test_hooks_there_at_compile_time_run_either_way(self) -> None:
        def scenario(run: Run) -> None:
            for kind in FORWARD_KINDS:
                register(run.model.blocks[0], kind, edit(kind))
            run.step()

        for skip in (True, False):
            with torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip):
                self.check(scenario, graphs=1)

    def test_setting_it_recompiles_nothing_by_itself(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
                run.step()
            run.step()

        self.check(scenario, graphs=1)

    @parametrize("skip", (False, True))
    def test_guards_on_module_hooks_are_there_unless_skipped(self, skip: bool) -> None:
        kinds: list[str] = []

        def keep_all(entries: Any) -> list[bool]:
            kinds.extend(entry.guard_type for entry in entries)
            return [True] * len(entries)

        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        with (
            no_global_hooks(),
            torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip),
        ):
            torch.compile(
                lambda x: model(x),
                backend="eager",
                options={"guard_filter_fn": keep_all},
            )(torch.ones(1, 4))
        self.assertEqual(kinds.count("NN_MODULE_HOOKS"), 0 if skip else 3)
        self.assertNotIn("GLOBAL_NN_MODULE_HOOKS", kinds)


instantiate_parametrized_tests(SkipFlagTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
