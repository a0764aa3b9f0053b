# Owner(s): ["module: dynamo"]
"""Global hooks see the modules of the program, not those that compiling adds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils.checkpoint import checkpoint

from hook_kinds import edit, Hook, KINDS, register, register_global
from hook_programs import HookTestCase, no_global_hooks, Run


def graph_module_itself(
    gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]
) -> torch.fx.GraphModule:
    """A backend that returns what it was given, as many of users' own do."""
    return gm


def see(log: list[Any]) -> Hook:
    """A hook of any kind that appends the class of the module it is called for."""

    def hook(module: nn.Module, *values: Any) -> None:
        log.append(type(module).__name__)

    return hook


class Checkpointed(nn.Module):
    """``(N, 4) -> (N, 2)``; Dynamo makes a graph module of the checkpointed part."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False).tanh())


class HiddenModuleTests(HookTestCase):
    @parametrize("kind", KINDS)
    @parametrize("backend", ("eager", "aot_eager", graph_module_itself))
    def test_graph_modules_of_a_backend(self, kind: str, backend: Any) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register_global(kind, see(run.log))
            run.step()
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, backend=backend, wrap="function")

    @parametrize("kind", KINDS)
    @parametrize("wrap", ("call", "inplace"))
    @parametrize("backend", ("aot_eager", graph_module_itself))
    def test_graph_module_of_a_checkpoint(
        self, kind: str, wrap: str, backend: Any
    ) -> None:
        def scenario(run: Run) -> None:
            handle = register_global(kind, see(run.log))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Checkpointed, wrap=wrap, backend=backend)

    @parametrize("kind", KINDS)
    @parametrize("early", (True, False))
    def test_compiled_wrapper(self, kind: str, early: bool) -> None:
        def scenario(run: Run) -> None:
            if not early:
                run.step()
            handle = register_global(kind, edit(kind, 2.0, 0.5))
            run.step()
            register_global(kind, see(run.log))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap="call", backend="aot_eager")

    def test_compiled_wrapper_does_not_warn(self) -> None:
        compiled = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")
        with no_global_hooks(), warnings.catch_warnings():
            warnings.simplefilter("error")
            seen: list[str] = []
            nn_module.register_module_forward_hook(
                lambda module, args, out: seen.append(type(module).__name__)
            )
            compiled(torch.ones(1, 4))
        self.assertEqual(seen, ["Linear", "Sequential"])

    def test_wrapper_runs_its_own_hooks(self) -> None:
        compiled: Any = torch.compile(nn.Linear(4, 4), backend="eager")
        calls: list[str] = []
        compiled.register_forward_hook(lambda *_: calls.append("own"))
        with no_global_hooks(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn_module.register_module_forward_pre_hook(lambda *_: None)
            compiled(torch.ones(1, 4))
        self.assertEqual(calls, ["own"])

    @parametrize("kind", ("full_backward", "backward_pre"))
    @parametrize("early", (True, False))
    def test_wrapper_runs_its_own_backward_hooks(self, kind: str, early: bool) -> None:
        def scenario(run: Run) -> None:
            if not early:
                run.step()
            wrapper: Any = run.call
            handle = register(wrapper, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, backend="aot_eager", distinct=2)

    @parametrize("what", ("module", "parameter", "buffer"))
    @parametrize("backend", ("eager", "aot_eager"))
    def test_registration_hook_sees_no_module_of_dynamo(
        self, what: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            register = getattr(nn_module, f"register_module_{what}_registration_hook")
            run.model.register_buffer("extra", torch.ones(4))
            handle = register(lambda module, name, value: run.log.append(name))
            try:
                run.step()
                run.model.late = nn.BatchNorm1d(4)
                run.step()
            finally:
                handle.remove()

        self.check(scenario, make=Checkpointed, backend=backend)

    def _graph_module(self) -> torch.fx.GraphModule:
        made: list[torch.fx.GraphModule] = []

        def keep(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            made.append(gm)
            return gm.forward

        torch.compile(lambda x: (x.sin() + 1,), backend=keep)(torch.ones(2))
        return made[0]

    def test_own_hook_of_a_graph_module_runs(self) -> None:
        graph_module = self._graph_module()
        calls: list[str] = []
        graph_module.register_forward_hook(lambda *_: calls.append("own"))
        graph_module(torch.ones(2))
        self.assertEqual(calls, ["own"])

    def test_graph_module_can_be_compiled_again(self) -> None:
        graph_module = self._graph_module()
        compiled = torch.compile(
            lambda x: graph_module(x)[0] * 2, backend="eager", fullgraph=True
        )
        with no_global_hooks():
            register_global("forward", lambda module, args, out: (out[0] * 3,))
            got = compiled(torch.ones(2))
        self.assertEqual(got, (torch.ones(2).sin() + 1) * 2)

    def test_graph_module_of_a_user_is_seen(self) -> None:
        traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
        seen: list[str] = []
        with no_global_hooks():
            nn_module.register_module_forward_hook(
                lambda module, args, out: seen.append(type(module).__mro__[1].__name__)
            )
            traced(torch.ones(1, 4))
        self.assertEqual(seen[-1], "GraphModule")


instantiate_parametrized_tests(HiddenModuleTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
