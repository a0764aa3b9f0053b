# Owner(s): ["module: dynamo"]
"""Backward hooks that are traced into the backward graph, and which ones are not."""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.nn_module_hooks.closed_functions import is_closed
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import AOT_BACKENDS, BACKENDS, growing, ones
from hook_programs import HookTestCase, Net, Run


FACTOR = 2.0


def halve(module: nn.Module, gi: Any, go: Any) -> Any:
    return (gi[0] * 0.5,)


def clamp(module: nn.Module, gi: Any, go: Any) -> Any:
    return tuple(torch.clamp(g, -0.1, 0.1) for g in gi)


def by_type(module: nn.Module, gi: Any, go: Any) -> Any:
    if isinstance(module, nn.Linear):
        return (gi[0] * 3,)
    return None


def from_outputs(module: nn.Module, gi: Any, go: Any) -> Any:
    return (gi[0] + go[0].mean(),)


def calls_another(module: nn.Module, gi: Any, go: Any) -> Any:
    return halve(module, gi, go)


def does_nothing(module: nn.Module, gi: Any, go: Any) -> None:
    return None


def reads_global(module: nn.Module, gi: Any, go: Any) -> Any:
    return (gi[0] * FACTOR,)


def reads_module(module: Any, gi: Any, go: Any) -> Any:
    return (gi[0] * module.factor,)


def reads_value(module: nn.Module, gi: Any, go: Any) -> Any:
    return (gi[0] * gi[0].sum().item(),)


def edits_in_place(module: nn.Module, gi: Any, go: Any) -> None:
    gi[0].mul_(2)


def prints(module: nn.Module, gi: Any, go: Any) -> None:
    print(end="")


def draws(module: nn.Module, gi: Any, go: Any) -> Any:
    return (gi[0] + torch.randn_like(gi[0]),)


def too_few(module: nn.Module, gi: Any, go: Any) -> Any:
    return ()


def other_dtype(module: nn.Module, gi: Any, go: Any) -> Any:
    return (gi[0].double(),)


def by_layout(module: nn.Module, gi: Any, go: Any) -> Any:
    return (gi[0] * 2,) if gi[0].is_contiguous() else None


def scaled(factor: float) -> Any:
    return lambda module, gi, go: (gi[0] * factor,)


def changing() -> tuple[Any, Any]:
    factor = 2.0

    def hook(module: nn.Module, gi: Any, go: Any) -> Any:
        return (gi[0] * factor,)

    def change() -> None:
        nonlocal factor
        factor += 1.0

    return hook, change


TRACED = (halve, clamp, by_type, from_outputs, calls_another, does_nothing)
CALLED = (
    reads_global,
    reads_module,
    reads_value,
    edits_in_place,
    prints,
    draws,
    too_few,
    other_dtype,
    by_layout,
)


def calls(backend: AotEagerAndRecordGraphs) -> int:
    """How many hooks the backward graphs call at run time."""
    return sum(
        getattr(node.args[1], "namespace", None) == "nn_module_hooks"
        for graph in backend.bw_graphs
        for node in graph.graph.nodes
        if node.target is torch.ops.higher_order.with_effects
    )


class TracedHookTests(HookTestCase):
    def calls_with(self, hook: Any, policy: str = "auto") -> int:
        torch._dynamo.reset()
        backend = AotEagerAndRecordGraphs()
        model: Any = Net()
        for block in model.blocks:
            block.factor = 2.0
            block.lin.factor = 2.0
            block.lin.register_full_backward_hook(hook)
        with torch._dynamo.config.patch(nn_module_hook_policy=policy):
            out = torch.compile(model, backend=backend, fullgraph=True)(ones())
            with contextlib.suppress(RuntimeError):  # of hooks that return nonsense
                out.sum().backward()
        self.assertEqual(len(backend.bw_graphs), 1)
        return calls(backend)

    @parametrize("hook", TRACED)
    def test_traced(self, hook: Any) -> None:
        self.assertEqual(self.calls_with(hook), 0)
        self.assertEqual(self.calls_with(hook, "call"), 3)

    @parametrize("hook", CALLED)
    def test_called(self, hook: Any) -> None:
        self.assertEqual(self.calls_with(hook), 3)

    def test_closures(self) -> None:
        self.assertEqual(self.calls_with(scaled(2.0)), 0)
        hook, change = changing()
        self.assertEqual(self.calls_with(hook), 3)
        change()

    def test_policy_trace(self) -> None:
        self.assertEqual(self.calls_with(reads_module, "trace"), 0)
        with self.assertRaises(torch._dynamo.exc.Unsupported):
            self.calls_with(prints, "trace")

    def test_mixed_hooks_are_all_called(self) -> None:
        torch._dynamo.reset()
        backend = AotEagerAndRecordGraphs()
        model = Net()
        model.blocks[0].register_full_backward_hook(halve)
        model.blocks[0].register_full_backward_hook(reads_value)
        out = torch.compile(model, backend=backend, fullgraph=True)(ones())
        out.sum().backward()
        self.assertEqual(calls(backend), 1)

    def test_several_outputs_are_called(self) -> None:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return self.left(x), self.right(x)

        torch._dynamo.reset()
        backend = AotEagerAndRecordGraphs()
        model = Two()

        def shifting(module: nn.Module, gi: Any, go: Any) -> Any:
            return (gi[0] + 1,)

        for module in model.children():
            module.register_full_backward_hook(shifting)
        x, y = ones(), ones()
        model(x)[0].sum().backward()
        torch.compile(model, backend=backend, fullgraph=True)(y)[0].sum().backward()
        self.assertEqual(calls(backend), 2)
        self.assertEqual(x.grad, y.grad)

    @parametrize("backend", BACKENDS)
    @parametrize("policy", ("auto", "call"))
    @parametrize("hook", (*TRACED, *CALLED))
    def test_as_in_eager(self, hook: Any, policy: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            for block in run.model.blocks:
                block.factor = block.lin.factor = 2.0
                block.lin.register_full_backward_hook(hook)
                block.register_full_backward_pre_hook(lambda module, go: (go[0] * 1.5,))
                block.register_forward_hook(
                    lambda module, args, out: (
                        out.register_hook(lambda g: g + 0.25) and None
                    )
                )
            torch.manual_seed(0)
            run.step()
            for block in run.model.blocks:
                block.lin.factor = 3.0
            run.step()

        with torch._dynamo.config.patch(nn_module_hook_policy=policy):
            self.check(
                scenario, wrap="function", backend=backend, fullgraph=True, graphs=1
            )

    @parametrize("backend", AOT_BACKENDS)
    def test_another_hook_in_place_of_a_traced_one(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            for hook in (halve, clamp, scaled(2.0), scaled(3.0), growing(run.log, 1)):
                handle = block.register_full_backward_hook(hook)
                run.step()
                handle.remove()

        self.check(scenario, backend=backend, fullgraph=True, distinct=5)

    @parametrize("backend", AOT_BACKENDS)
    def test_changed_between_forward_and_backward(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            hook, change = changing()
            run.model.blocks[1].register_full_backward_hook(hook)
            for _ in range(2):
                x = ones()
                out = run.call(x).sum()
                change()
                out.backward()
                run.steps.append([x.grad])

        self.check(scenario, backend=backend, fullgraph=True, graphs=1, distinct=2)


class ClosedFunctionTests(HookTestCase):
    def test_closed(self) -> None:
        for function in (
            *TRACED,
            scaled(2.0),
            functools.partial(halve),
            lambda g: g.clamp(min=0),
            lambda g, k=3: g * k,
            lambda g: tuple(x * 2 for x in (g, g)),
            lambda g: operator.mul(g, 2),
        ):
            self.assertTrue(is_closed(function), function)

    def test_not_closed(self) -> None:
        hook, change = changing()
        for function in (
            reads_global,
            reads_value,
            prints,
            draws,
            by_layout,
            hook,
            change,
            None,
            3,
            nn.ReLU(),
            functools.partial(operator.mul, []),
            lambda g, cache=[]: g,
            lambda g: calls,
        ):
            self.assertFalse(is_closed(function), function)


instantiate_parametrized_tests(TracedHookTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
