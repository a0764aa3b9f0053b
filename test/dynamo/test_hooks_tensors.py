# Owner(s): ["module: dynamo"]
"""Hooks that forward hooks put on tensors, and ``retain_grad``, in compiled code."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import attempt, BACKENDS, ones, summary
from hook_programs import HookTestCase, Run


def record(log: list[Any], name: Any, grad: Any) -> None:
    log.append((name, summary(grad)))


class TensorHookTestCase(HookTestCase):
    def check_whole(self, scenario: Any, backend: str, **options: Any) -> Run:
        options = {"wrap": "function", "fullgraph": True, "graphs": 1, **options}
        return self.check(scenario, backend=backend, **options)

    def check_in_forward_hook(
        self, body: Any, backend: str, steps: int = 2, **options: Any
    ) -> Run:
        """Call ``body(run, module, output)`` in a forward hook, then run backward."""

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(
                lambda module, args, output: body(run, module, output)
            )
            for _ in range(steps):
                run.step()

        return self.check_whole(scenario, backend, **options)


class TensorHookTests(TensorHookTestCase):
    @parametrize("backend", BACKENDS)
    def test_recording(self, backend: str) -> None:
        def body(run: Run, module: nn.Module, output: torch.Tensor) -> None:
            output.register_hook(lambda grad: record(run.log, "o", grad))

        run = self.check_in_forward_hook(body, backend)
        self.assertEqual(len(run.log), 4)

    @parametrize("backend", BACKENDS)
    def test_new_gradients_in_turn(self, backend: str) -> None:
        def body(run: Run, module: nn.Module, output: torch.Tensor) -> None:
            output.register_hook(lambda grad: record(run.log, 1, grad))
            output.register_hook(lambda grad: grad * 2)
            output.register_hook(lambda grad: record(run.log, 2, grad))

        self.check_in_forward_hook(body, backend)

    @parametrize("backend", BACKENDS)
    def test_closure_over_what_the_graph_computes(self, backend: str) -> None:
        def body(run: Run, module: nn.Module, output: torch.Tensor) -> None:
            scale = output.detach().abs().mean()
            output.register_hook(lambda grad: record(run.log, 1, grad * scale))

        self.check_in_forward_hook(body, backend)

    @parametrize("backend", BACKENDS)
    @parametrize("kept", (False, True))
    def test_list_that_grows(self, backend: str, kept: bool) -> None:
        handles: list[Any] = [None]

        def scenario(run: Run) -> None:
            log = run.log

            def body(module: nn.Module, args: Any, output: torch.Tensor) -> None:
                if kept:
                    handles[0] = output.register_hook(lambda g: log.append(summary(g)))
                else:
                    output.register_hook(lambda g: log.append(summary(g)))

            run.model.blocks[1].register_forward_hook(body)
            handles[:] = [None]
            for _ in range(4):
                run.step()
                handles[:] = [None]

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    def test_pure_hook_removed_before_backward(self, backend: str) -> None:
        handles: list[Any] = [None]

        def body(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            handles[0] = output.register_hook(lambda grad: grad * 2)

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(body)
            for remove in (True, False):
                handles[:] = [None]
                out = run.call(ones()).sum()
                if remove:
                    handles[0].remove()
                attempt(run, out.backward)

        self.check_whole(scenario, backend, distinct=2)

    @parametrize("backend", BACKENDS)
    def test_partial_and_method(self, backend: str) -> None:
        class Keeper:
            def save(self, grad: torch.Tensor) -> None:
                self.saved = summary(grad)

        def body(run: Run, module: Any, output: torch.Tensor) -> None:
            output.register_hook(functools.partial(record, run.log, "partial"))
            output.register_hook(module.keeper.save)

        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            block.keeper = Keeper()
            block.register_forward_hook(
                lambda module, args, output: body(run, module, output)
            )
            run.step()
            run.log.append(block.keeper.saved)
            run.step()

        # The keeper has an attribute more at the second step.
        self.check_whole(scenario, backend, graphs=2)

    @parametrize("backend", BACKENDS)
    @parametrize("when", ("in forward", "before backward", "never"))
    def test_handle(self, backend: str, when: str) -> None:
        handles: list[Any] = []

        def body(run: Run, module: nn.Module, output: torch.Tensor) -> None:
            handle = output.register_hook(lambda grad: record(run.log, 1, grad))
            if when == "in forward":
                handle.remove()
            else:
                handles[:] = [handle]

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(
                lambda module, args, output: body(run, module, output)
            )
            handles[:] = [None]
            for _ in range(2):
                out = run.call(ones()).sum()
                if when == "before backward":
                    handles[0].remove()
                attempt(run, out.backward)
                handles[:] = [None]

        run = self.check_whole(scenario, backend)
        self.assertEqual(len(run.log), 2 if when == "never" else 0)

    @parametrize("backend", BACKENDS)
    def test_reads_what_changed_since_forward(self, backend: str) -> None:
        scale = [1.0]

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(
                lambda module, args, output: (
                    output.register_hook(lambda grad: grad * scale[0] * module.factor)
                    and None
                )
            )
            for scale[0], run.model.blocks[1].factor in ((2.0, 3.0), (4.0, 5.0)):
                x = ones()
                out = run.call(x).sum()
                scale[0] += 1.0
                run.model.blocks[1].factor += 1.0
                out.backward()
                run.steps.append([x.grad])

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    @parametrize("bad", ("number", "shape", "dtype", "tuple"))
    def test_what_a_hook_must_not_return(self, backend: str, bad: str) -> None:
        def spoiled(grad: torch.Tensor) -> Any:
            return {
                "number": 3,
                "shape": grad[0],
                "dtype": grad.double(),
                "tuple": (grad,),
            }[bad]

        def scenario(run: Run) -> None:
            handle = run.model.blocks[1].register_forward_hook(
                lambda module, args, output: output.register_hook(spoiled) and None
            )
            attempt(run, run.call(ones()).sum().backward)
            handle.remove()
            run.step()

        self.check_whole(scenario, backend, graphs=2)

    @parametrize("backend", BACKENDS)
    def test_raises(self, backend: str) -> None:
        def spoiled(grad: torch.Tensor) -> None:
            raise KeyError("told to fail")

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(
                lambda module, args, output: output.register_hook(spoiled) and None
            )
            for _ in range(2):
                attempt(run, run.call(ones()).sum().backward)
                run.model.zero_grad(set_to_none=True)

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    def test_hook_on_input_of_module(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            for block in run.model.blocks:
                block.register_forward_pre_hook(
                    lambda module, args: (
                        args[0].register_hook(lambda grad: record(run.log, "in", grad))
                        and None
                    )
                )
            run.step()
            run.step()

        self.check_whole(scenario, backend)

    @parametrize("backend", BACKENDS)
    def test_parameter_hooks_set_up_in_forward(self, backend: str) -> None:
        def body(run: Run, module: Any, output: torch.Tensor) -> None:
            weight = module.lin.weight
            weight.register_hook(lambda grad: record(run.log, "weight", grad))
            weight.register_post_accumulate_grad_hook(
                lambda p: record(run.log, "post", p.grad)
            )

        self.check_in_forward_hook(body, backend, steps=1)

    @parametrize("backend", BACKENDS)
    def test_with_backward_hooks_of_modules(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            for i, block in enumerate(run.model.blocks):
                block.register_forward_hook(
                    lambda module, args, output, i=i: (
                        output.register_hook(
                            lambda grad: record(run.log, ("tensor", i), grad)
                        )
                        and None
                    )
                )
                block.register_full_backward_hook(
                    lambda module, gi, go, i=i: record(run.log, ("full", i), go[0])
                )
                block.register_full_backward_pre_hook(
                    lambda module, go, i=i: record(run.log, ("pre", i), go[0])
                )
            run.step()
            run.step()

        self.check_whole(scenario, backend)


class RetainGradTests(TensorHookTestCase):
    def check_retained(self, body: Any, backend: str, graphs: int = 1) -> None:
        kept: list[Any] = []

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(
                lambda module, args, output: body(kept, output)
            )
            for backwards in (1, 2):
                kept.clear()
                run.step(backwards=backwards)
                run.log += [(t.retains_grad, t.is_leaf) for t in kept]
                run.steps.append([t.grad for t in kept])

        with torch._functorch.config.patch(donated_buffer=False):
            run = self.check_whole(scenario, backend, graphs=None)
        self.assertLessEqual(run.graphs, graphs)

    @parametrize("backend", BACKENDS)
    def test_alone(self, backend: str) -> None:
        def body(kept: list[Any], output: torch.Tensor) -> None:
            output.retain_grad()
            kept[:] = [output]

        self.check_retained(body, backend, graphs=2)

    @parametrize("backend", BACKENDS)
    @parametrize("first", ("retain_grad", "register_hook"))
    def test_with_a_hook_that_changes_the_gradient(
        self, backend: str, first: str
    ) -> None:
        def body(kept: list[Any], output: torch.Tensor) -> None:
            if first == "retain_grad":
                output.retain_grad()
            output.register_hook(lambda grad: grad * 3)
            if first != "retain_grad":
                output.retain_grad()
            kept[:] = [output]

        self.check_retained(body, backend, graphs=2)

    @parametrize("backend", BACKENDS)
    def test_gradient_also_from_outside_of_the_graph(self, backend: str) -> None:
        kept: list[Any] = []

        def retain(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            output.retain_grad()
            kept[:] = [output]

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(retain)
            for outside in (True, False, True):
                out = run.call(ones()).sum()
                loss = out + kept[0].sin().sum() * 3 if outside else out
                attempt(run, loss.backward)
                run.steps.append([kept[0].grad])

        self.check_whole(scenario, backend, graphs=None)

    @parametrize("backend", BACKENDS)
    def test_before_an_edit_in_place(self, backend: str) -> None:
        kept: list[Any] = []

        def retain(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            output.retain_grad()
            kept[:] = [output]

        def make() -> nn.Module:
            return nn.Sequential(
                nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)
            )

        def scenario(run: Run) -> None:
            run.model[0].register_forward_hook(retain)
            for _ in range(2):
                kept.clear()
                attempt(run, run.call(ones(value=-1.0)).sum().backward)
                run.steps.append([t.grad for t in kept])

        self.check_whole(scenario, backend, make=make)

    @parametrize("backend", BACKENDS)
    def test_of_an_input(self, backend: str) -> None:
        def retain(module: nn.Module, args: Any) -> None:
            args[0].retain_grad()

        def scenario(run: Run) -> None:
            run.model.blocks[0].register_forward_pre_hook(retain)
            for leaf in (False, True):
                x = ones()
                y = x if leaf else x * 2
                attempt(run, run.call(y).sum().backward)
                run.steps.append([y.grad, x.grad])
                run.log.append(y.retains_grad)

        self.check_whole(scenario, backend, graphs=None)


instantiate_parametrized_tests(TensorHookTests)
instantiate_parametrized_tests(RetainGradTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
