# Owner(s): ["module: dynamo"]
"""Hooks of the module that is itself given to ``torch.compile``, or compiled in place:
they are part of its graph."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import BACKENDS, growing, logging, ones
from hook_kinds import edit, KINDS, register, register_global
from hook_programs import HookTestCase, Net, Run


WRAPS = ("call", "inplace")

MODEL = """
class Model(nn.Module):
    def forward(self, x):
        return x * {factor}
"""


class RootHookTests(HookTestCase):
    @parametrize("wrap", WRAPS)
    @parametrize("kind", KINDS)
    def test_one_graph(self, wrap: str, kind: str) -> None:
        def scenario(run: Run) -> None:
            register(run.model, kind, edit(kind))
            run.step()
            run.step()

        run = self.check(
            scenario, wrap=wrap, backend="aot_eager", fullgraph=True, graphs=1
        )
        self.assertEqual(run.graph_runs, [1, 1])

    @parametrize("wrap", WRAPS)
    @parametrize("kind", KINDS)
    def test_global(self, wrap: str, kind: str) -> None:
        def scenario(run: Run) -> None:
            register_global(kind, edit(kind, scale=1.1))
            run.step()
            run.step()

        self.check(scenario, wrap=wrap, backend="aot_eager", fullgraph=True, graphs=1)

    @parametrize("wrap", WRAPS)
    @parametrize("backend", BACKENDS)
    def test_all_kinds_added_and_removed(self, wrap: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            model = run.model
            handles = [
                model.register_forward_pre_hook(lambda _, args: (args[0] * 1.5,)),
                model.register_forward_hook(lambda _, args, out: out * 0.5),
                model.register_full_backward_hook(growing(run.log, "full")),
                model.register_full_backward_pre_hook(logging(run.log, "pre")),
            ]
            run.step()
            while handles:
                handles.pop().remove()
                run.step()

        run = self.check(scenario, wrap=wrap, backend=backend, fullgraph=True)
        self.assertEqual(run.graph_runs, [1] * 6)
        # The last one is the first one again.
        self.assertEqual(run.graphs, 5)

    @parametrize("wrap", WRAPS)
    def test_without_hooks_the_frame_is_that_of_forward(self, wrap: str) -> None:
        names: list[str] = []

        def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
            frame = inspect.currentframe()
            while frame is not None:
                translator: Any = frame.f_locals.get("self")
                if type(translator).__name__ == "InstructionTranslator":
                    names.append(translator.f_code.co_name)
                    break
                frame = frame.f_back
            return gm.forward

        model = Net()
        call = torch.compile(model, backend=backend) if wrap == "call" else model
        if wrap == "inplace":
            model.compile(backend=backend)
        call(ones())
        model.register_forward_hook(lambda _, args, out: out * 2)
        call(ones())
        self.assertEqual(names, ["forward", "call_forward_with_hooks"])

    @parametrize("wrap", WRAPS)
    def test_models_do_not_share_a_limit_of_recompilations(self, wrap: str) -> None:
        limits = {"recompile_limit": 2, "fail_on_recompile_limit_hit": True}
        with torch._dynamo.config.patch(limits):
            for factor in range(6):
                scope: dict[str, Any] = {"nn": nn}
                exec(MODEL.format(factor=factor), scope)
                model = scope["Model"]()
                model.register_forward_hook(lambda _, args, out: out * 3)
                x = torch.ones(1, 4)
                want = model(x)
                call: Any = model
                if wrap == "call":
                    call = torch.compile(model, backend="eager")
                else:
                    model.compile(backend="eager")
                self.assertEqual(call(x), want)


instantiate_parametrized_tests(RootHookTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
