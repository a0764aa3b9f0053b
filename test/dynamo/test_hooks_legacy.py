# Owner(s): ["module: dynamo"]
"""Legacy backward hooks: they hang on the ``grad_fn`` of the last op of ``forward``.

Compiled code has one ``grad_fn`` for all its ops, so a module with such a hook, and
all it calls, runs as eager does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

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

    def test_other_modules_stay_compiled(self) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[1].register_backward_hook(shapes(run.log))
            run.step()

        # The other two blocks share a graph.
        self.check(scenario, wrap="call", backend="aot_eager", graphs=1)

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
