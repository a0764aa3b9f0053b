# Owner(s): ["module: dynamo"]
"""Which backward hooks fire, and which gradients are None, where autograd does not
need all of a compiled graph's gradients or does not have them."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import attempt, BACKENDS, ones, watch_all
from hook_programs import HookTestCase, Run


class Heads(nn.Module):
    """A trunk of two layers, and two heads that are two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.second(self.first(x).relu())
        return self.left(x.sin()), self.right(x)


class UnusedOutputTests(HookTestCase):
    def check_whole(self, scenario: Any, backend: str) -> None:
        run = self.check(
            scenario, make=Heads, backend=backend, fullgraph=True, graphs=1
        )
        self.assertTrue(run.log, "no hook has fired")

    @parametrize("backend", BACKENDS)
    @parametrize("used", (0, 1))
    def test_output_of_graph(self, backend: str, used: int) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            for _ in range(2):
                attempt(run, run.call(ones())[used].sum().backward)
            left, right = run.call(ones())
            attempt(run, (left.sum() + right.sum()).backward)

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    @parametrize("head", ("left", "right"))
    @parametrize("kind", ("full_backward", "full_backward_pre"))
    def test_hook_returns_none(self, backend: str, head: str, kind: str) -> None:
        def scenario(run: Run) -> None:
            module = getattr(run.model, head)
            getattr(module, f"register_{kind}_hook")(lambda *_: (None,))
            watch_all(run)
            for used in (0, 1):
                attempt(run, run.call(ones())[used].sum().backward)

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    @parametrize(
        "wanted",
        (
            ("x",),
            ("left.weight",),
            ("second.bias", "left.weight"),
            ("first.weight",),
            ("right.bias",),
        ),
    )
    def test_gradients_of_some_inputs(
        self, backend: str, wanted: tuple[str, ...]
    ) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            for use_backward in (False, True):
                x = ones()
                tensors = {"x": x, **dict(run.model.named_parameters())}
                inputs = [tensors[name] for name in wanted]
                outputs = run.call(x)
                loss = outputs[1 if "right.bias" in wanted else 0].sum()
                if use_backward:
                    attempt(run, lambda: loss.backward(inputs=inputs))  # noqa: B023
                else:
                    run.steps.append(list(torch.autograd.grad(loss, inputs)))

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    def test_input_that_is_no_leaf(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            x = ones()
            y = x * 2
            run.steps.append(list(torch.autograd.grad(run.call(y)[0].sum(), [y])))

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    def test_backward_of_another_graph_within_a_hook(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)

            def hook(module: nn.Module, gi: Any, go: Any) -> None:
                if not nested:
                    nested.append(True)
                    x = ones(value=2.0)
                    with torch.enable_grad():
                        out = run.call(x)[1].sum()
                    run.steps.append(list(torch.autograd.grad(out, x)))

            nested: list[bool] = []
            run.model.second.register_full_backward_hook(hook)
            attempt(run, run.call(ones())[0].sum().backward)

        self.check_whole(scenario, backend)


instantiate_parametrized_tests(UnusedOutputTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
