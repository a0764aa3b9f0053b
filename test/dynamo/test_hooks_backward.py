# Owner(s): ["module: dynamo"]
"""Backward hooks of modules inside one compiled graph, without compiled autograd.

Each hook fires at its own place in the compiled backward, with the gradients, the
order and the errors of eager. Scenarios compile with ``fullgraph=True`` unless they
are about graph breaks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch.utils.checkpoint
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import BACKENDS, growing, logging
from hook_kinds import register, register_global
from hook_programs import HookTestCase, Net, Run


BACKWARD_KINDS = ("backward_pre", "full_backward")


def steps(run: Run, n: int = 2, **kwargs: Any) -> None:
    for _ in range(n):
        run.step(**kwargs)


class BackwardHookTests(HookTestCase):
    def check_whole(self, scenario: Any, *, graphs: int = 1, **options: Any) -> Run:
        options = {"wrap": "function", "backend": "aot_eager", **options}
        return self.check(scenario, fullgraph=True, graphs=graphs, **options)

    @parametrize("backend", BACKENDS)
    @parametrize("kinds", [BACKWARD_KINDS, *((kind,) for kind in BACKWARD_KINDS)])
    def test_one_graph(self, backend: str, kinds: tuple[str, ...]) -> None:
        def scenario(run: Run) -> None:
            for kind in kinds:
                for name, module in run.model.named_modules():
                    register(module, kind, logging(run.log, (kind, name)))
                    register(module, kind, growing(run.log, (kind, name, "x")))
            steps(run)

        run = self.check_whole(scenario, backend=backend)
        self.assertEqual(run.graph_runs, [1, 1])

    @parametrize("backend", BACKENDS)
    @parametrize("kind", BACKWARD_KINDS)
    def test_global(self, backend: str, kind: str) -> None:
        def scenario(run: Run) -> None:
            register_global(kind, logging(run.log, kind))
            steps(run)

        self.check_whole(scenario, backend=backend)

    @parametrize("kind", BACKWARD_KINDS)
    def test_added_changed_and_removed(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            steps(run)
            handle = register(block, kind, logging(run.log, 1))
            steps(run)
            handle.remove()
            handle = register(block, kind, growing(run.log, 2))
            steps(run)
            other = register(block, kind, logging(run.log, 3))
            steps(run)
            handle.remove()
            other.remove()
            steps(run)

        # Without, with one and with two hooks; which ones makes no graph.
        self.check_whole(scenario, graphs=3, distinct=2)

    def test_mixed_with_forward_hooks(self) -> None:
        def scenario(run: Run) -> None:
            for name, module in run.model.named_modules():
                module.register_forward_pre_hook(lambda _, args: (args[0] * 1.5,))
                module.register_forward_hook(lambda _, args, out: out * 0.5)
                for kind in BACKWARD_KINDS:
                    register(module, kind, logging(run.log, (kind, name)))
            steps(run)

        self.check_whole(scenario)

    @parametrize("backend", BACKENDS)
    def test_any_body(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            first, second, third = run.model.blocks
            first.seen = 0
            handles: list[Any] = []

            def numpy_and_item(module: Any, gi: Any, go: Any) -> Any:
                run.log.append(round(float(go[0].cpu().numpy().mean()), 4))
                run.log.append(round(gi[0].abs().max().item(), 4))
                return (torch.from_numpy(gi[0].numpy() * 3),)

            def reads_and_writes(module: Any, gi: Any, go: Any) -> Any:
                module.seen += 1
                run.log.append((module.seen, module.late))
                return (gi[0] * module.late,)

            def removes_itself(module: Any, go: Any) -> None:
                run.log.append("once")
                handles.pop().remove()

            third.register_full_backward_hook(numpy_and_item)
            first.register_full_backward_hook(reads_and_writes)
            handles.append(second.register_full_backward_pre_hook(removes_itself))
            for late in (2.0, 3.0):
                x = torch.ones(3, 4, requires_grad=True)
                out = run.call(x)
                first.late = late
                out.sum().backward()
                run.steps.append([x.grad])
                if handles:
                    raise AssertionError("the hook did not remove itself")
                handles.append(second.register_full_backward_pre_hook(removes_itself))

        self.check_whole(scenario, backend=backend)

    @parametrize("backend", ("aot_eager", "inductor"))
    def test_kept_gradients_stay_as_they_were(self, backend: str) -> None:
        kept: list[Any] = []

        def scenario(run: Run) -> None:
            kept.clear()
            for block in run.model.blocks:
                block.register_full_backward_hook(
                    lambda _, gi, go: kept.extend((gi[0], go[0], gi[0][0], go[0].T))
                )
                block.register_full_backward_pre_hook(
                    lambda _, go: kept.extend((go[0], go[0].detach(), go[0].numpy()))
                )
            steps(run, 3)
            run.steps.append([torch.as_tensor(value) for value in kept])

        self.check_whole(scenario, backend=backend)

    def test_parameter_hooks_fire_after_those_of_modules(self) -> None:
        log: list[Any] = []
        model = Net()
        for name, parameter in model.named_parameters():
            if name.endswith("lin.weight"):
                parameter.register_post_accumulate_grad_hook(
                    lambda p, name=name: log.append(name)
                )
        for name, module in model.named_modules():
            if name.endswith("lin"):
                module.register_full_backward_hook(
                    lambda *_, name=name: log.append(name)
                )
        torch._dynamo.utils.warn_once_cache.clear()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        wanted = "'weight' fire when the compiled backward is over"
        with self.assertWarnsRegex(UserWarning, wanted):
            compiled(torch.ones(3, 4)).sum().backward()
        modules = [f"blocks.{i}.lin" for i in (2, 1, 0)]
        self.assertEqual(log[:3], modules)
        self.assertEqual(sorted(log[3:]), [f"blocks.{i}.lin.weight" for i in range(3)])

    def test_edits_in_place(self) -> None:
        def scenario(run: Run) -> None:
            def triple(module: nn.Module, gi: Any, go: Any) -> None:
                gi[0].mul_(3)

            run.model.blocks[1].register_full_backward_hook(triple)
            steps(run)

        self.check_whole(scenario)

    def test_same_tensor_returned_twice(self) -> None:
        class Product(nn.Module):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return x * y

        def scenario(run: Run) -> None:
            run.model.register_full_backward_hook(lambda _, gi, go: (go[0], go[0]))
            x, y = (torch.full((3, 4), v, requires_grad=True) for v in (0.5, 2.0))
            run.call(x * 2, y * 3).sum().backward()
            run.steps.append([x.grad, y.grad])

        self.check_whole(scenario, make=Product, wrap="call")


class GraphBreakTests(HookTestCase):
    """Hooked modules whose own forward breaks the graph run right all the same."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).sin()
            torch._dynamo.graph_break()
            return self.second(x)

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.broken = GraphBreakTests.Broken()
            self.last = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.broken(x * 2)).cos()

    @parametrize("backend", BACKENDS)
    def test_hooks_everywhere(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            for name, module in run.model.named_modules():
                for kind in BACKWARD_KINDS:
                    register(module, kind, logging(run.log, (kind, name)))
            steps(run)

        self.check(scenario, make=self.Holder, backend=backend)


class NestedGraphBreakTests(GraphBreakTests):
    nested_graph_breaks = True


instantiate_parametrized_tests(BackwardHookTests)
instantiate_parametrized_tests(GraphBreakTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
