# Owner(s): ["module: dynamo"]
"""Legacy backward hooks: they hang on the ``grad_fn`` of the last op of ``forward``.

AOTAutograd's trace has that node, so they compile in one graph. Where a graph breaks
within the module it has not, and the module, with all it calls, runs as eager does.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import attempt, BACKENDS, growing, logging, ones
from hook_kinds import register_global
from hook_programs import HookTestCase, Run, WRAPS


def shapes(log: list[Any]) -> Any:
    """A legacy hook that records the shapes of all the gradients it is given."""

    def hook(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        log.append(
            [
                None if grad is None else tuple(grad.shape)
                for grad in (*grad_input, *grad_output)
            ]
        )

    return hook


class LegacyHookTests(HookTestCase):
    @parametrize("wrap", WRAPS)
    def test_sees_gradients_of_the_last_op(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.blocks[0].register_backward_hook(shapes(run.log))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, backend="aot_eager")

    @parametrize("wrap", WRAPS)
    def test_on_root_whose_children_are_compiled(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.model.register_backward_hook(shapes(run.log))
            run.step()
            run.step()

        self.check(scenario, wrap=wrap, backend="aot_eager")

    @parametrize("wrap", WRAPS)
    def test_global(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register_global("legacy_backward", shapes(run.log))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, backend="aot_eager")

    @parametrize("wrap", WRAPS)
    def test_forward_hook_makes_the_last_op(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[0].register_backward_hook(shapes(run.log))
            run.model.blocks[0].register_forward_pre_hook(lambda _, args: args[0] * 2)
            run.model.blocks[0].register_forward_hook(lambda _, args, out: out * 3)
            run.step()

        self.check(scenario, wrap=wrap, backend="aot_eager")

    @parametrize("backend", BACKENDS)
    def test_one_graph(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            for name, module in run.model.named_modules():
                module.register_backward_hook(logging(run.log, name))
                module.register_backward_hook(growing(run.log, name))
            run.model.blocks[1].register_full_backward_pre_hook(logging(run.log, "p"))
            run.step()
            run.step()

        run = self.check(
            scenario, wrap="function", backend=backend, fullgraph=True, graphs=1
        )
        self.assertEqual(run.graph_runs, [1, 1])

    @parametrize("backend", BACKENDS)
    @parametrize("wrap", ("call", "inplace", "function"))
    def test_graph_break_in_module(self, wrap: str, backend: str) -> None:
        class Broken(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.first(x).sin()
                torch._dynamo.graph_break()
                return self.last(x)

        class Holder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.broken = Broken()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.broken(x * 2).cos()

        def scenario(run: Run) -> None:
            run.model.broken.register_backward_hook(growing(run.log, "broken"))
            run.step()
            run.step()

        self.check(scenario, make=Holder, wrap=wrap, backend=backend)

    @parametrize("backend", BACKENDS)
    @parametrize("bad", ("too few", "shape", "number"))
    def test_what_a_hook_must_not_return(self, backend: str, bad: str) -> None:
        def hook(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
            if bad == "too few":
                return grad_input[:1]
            spoil = (lambda g: g[:1]) if bad == "shape" else (lambda g: 3)
            return tuple(None if g is None else spoil(g) for g in grad_input)

        def scenario(run: Run) -> None:
            run.model.head.register_backward_hook(hook)
            attempt(run, run.call(ones()).sum().backward)

        self.check(scenario, wrap="function", backend=backend, fullgraph=True, graphs=1)

    @parametrize("backend", BACKENDS)
    def test_warns_as_eager_does(self, backend: str) -> None:
        def warned(run: Run) -> list[str]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run.step()
            return [str(w.message) for w in caught if w.category is FutureWarning]

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_backward_hook(shapes(run.log))
            run.log += warned(run)

        run = self.check(scenario, wrap="function", backend=backend, fullgraph=True)
        self.assertIn("multiple autograd Nodes", str(run.log))

    def test_hook_is_eager_again_without_compiling(self) -> None:
        module = nn.Linear(4, 4)
        log: list[Any] = []
        module.register_backward_hook(shapes(log))
        module(torch.ones(1, 4, requires_grad=True)).sum().backward()
        self.assertEqual(log, [[(4,), (1, 4), (4, 4), (1, 4)]])


instantiate_parametrized_tests(LegacyHookTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
