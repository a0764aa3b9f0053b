# Owner(s): ["module: dynamo"]
"""Backward hooks in compiled code by the letter of eager: what they see, when they
fire, and what happens to what they return."""

from __future__ import annotations

import collections
import warnings
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import (
    AOT_BACKENDS,
    attempt,
    BACKENDS,
    growing,
    logging,
    ones,
    summary,
    watch_all,
)
from hook_programs import HookTestCase, Net, Run


class Pair(nn.Module):
    """Takes what it is given, returns a pair; the modes name what."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Any, y: Any = None, mode: str = "both") -> Any:
        if mode == "ints":
            return self.lin(x) * y, y
        if mode == "list":
            return [self.lin(x), x]
        if mode == "dict":
            return {"out": self.lin(x)}
        if mode == "named":
            return Named(self.lin(x), x.detach())
        if mode == "first":
            return self.lin(x).sin(), x.detach() * 2, None
        return self.lin(x), x * 2 if y is None else y * 2


Named = collections.namedtuple("Named", ("left", "right"))


class Outer(nn.Module):
    """Uses some of what ``Pair`` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Any, *args: Any, use: str = "left") -> Any:
        out = self.pair(x.sin(), *args)
        if isinstance(out, dict):
            out = (out["out"],)
        if use == "both":
            return self.last(out[0] * out[1])
        return self.last(out[0 if use == "left" else 1])


class Frozen(nn.Module):
    """Its first linear layer sees no input that requires grad."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.detach()).sin())


class SemanticsTests(HookTestCase):
    def check_whole(self, scenario: Any, make: Any = Net, **options: Any) -> Run:
        options = {"wrap": "call", "backend": "aot_eager", "fullgraph": True, **options}
        run = self.check(scenario, make=make, **options)
        self.assertTrue(run.log or run.steps, "the scenario showed nothing")
        return run

    @parametrize("backend", BACKENDS)
    @parametrize("mode", ("both", "ints", "list", "dict", "named", "first"))
    def test_inputs_and_outputs_of_all_sorts(self, backend: str, mode: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            y = 2.0 if mode == "ints" else None
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    x = ones()
                    run.call(x, y, mode).sum().backward()
                    grads = [x.grad, *(p.grad for p in run.model.parameters())]
                    run.steps.append(grads)
            run.log += [str(w.message) for w in caught if "hooks" in str(w.message)]

        self.check_whole(scenario, Outer, backend=backend)

    def test_output_without_tensors_breaks_no_graph(self) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            run.call(ones(), None, "dict").sum().backward()

        self.check_whole(scenario, Outer, graphs=1)

    def test_eager_warns_of_output_without_tensors(self) -> None:
        model = Outer()
        model.pair.register_full_backward_hook(lambda *_: None)
        with self.assertWarnsRegex(UserWarning, "should be a Tensor or a tuple"):
            model(ones(), None, "dict")

    @parametrize("backend", BACKENDS)
    @parametrize("use", ("left", "right", "both"))
    def test_outputs_not_used_in_the_graph(self, backend: str, use: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            for _ in range(2):
                x, y = ones(), ones(value=3.0)
                run.call(x, y, use=use).sum().backward()
                grads = [p.grad for p in run.model.parameters()]
                run.steps.append([x.grad, y.grad, *grads])

        self.check_whole(scenario, Outer, backend=backend)

    @parametrize("backend", BACKENDS)
    def test_no_input_requires_grad(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            run.model.first.register_full_backward_hook(lambda *_: (None,))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run.step()
                run.step()
            run.log += [str(w.message)[:60] for w in caught if "hook" in str(w.message)]

        run = self.check_whole(scenario, Frozen, backend=backend)
        self.assertIn("Full backward hook is firing when", str(run.log))

    @parametrize("backend", BACKENDS)
    def test_no_input_requires_grad_and_a_gradient_returned(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.model.first.register_full_backward_hook(lambda *_: (torch.ones(3, 4),))
            run.step()

        run = self.check_whole(scenario, Frozen, backend=backend)
        self.assertIn("should always return None", str(run.steps))

    @parametrize("backend", AOT_BACKENDS)
    @parametrize("kind", ("full_backward", "full_backward_pre"))
    @parametrize(
        "bad",
        (
            "too many",
            "none at all",
            "no tuple",
            "number",
            "shape",
            "dtype",
            "list",
        ),
    )
    def test_what_a_hook_must_not_return(
        self, backend: str, kind: str, bad: str
    ) -> None:
        def hook(module: nn.Module, *gradients: Any) -> Any:
            grad = gradients[0][0]
            return {
                "too many": (grad, grad),
                "none at all": (),
                "no tuple": grad,
                "number": (3.0,),
                "shape": (grad[0],),
                "dtype": (grad.double(),),
                "list": [grad * 2],
            }[bad]

        def scenario(run: Run) -> None:
            handle = getattr(run.model.blocks[1], f"register_{kind}_hook")(hook)
            for _ in range(2):
                out = run.call(ones()).sum()
                attempt(run, out.backward)
                run.model.zero_grad(set_to_none=True)
            handle.remove()
            run.step()

        self.check_whole(scenario, backend=backend)

    @parametrize("backend", AOT_BACKENDS)
    def test_hook_returns_none_for_a_gradient(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[1].register_full_backward_hook(lambda *_: (None,))
            watch_all(run)
            for _ in range(2):
                attempt(run, run.call(ones()).sum().backward)

        run = self.check_whole(scenario, backend=backend)
        self.assertIsNotNone(run.steps[0][0])

    @parametrize("backend", AOT_BACKENDS)
    def test_hook_that_cannot_be_called(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[1].register_full_backward_hook(3)
            out = run.call(ones()).sum()
            attempt(run, out.backward)

        run = self.check_whole(scenario, backend=backend)
        self.assertEqual(run.steps[0][0], "TypeError")

    @parametrize("backend", BACKENDS)
    @parametrize("kind", ("full_backward", "full_backward_pre"))
    def test_hook_raises_and_the_next_step_works(self, backend: str, kind: str) -> None:
        def scenario(run: Run) -> None:
            failing = [True]

            def hook(module: nn.Module, *gradients: Any) -> None:
                run.log.append("called")
                if failing[0]:
                    raise KeyError("told to fail")

            getattr(run.model.blocks[1], f"register_{kind}_hook")(hook)
            watch_all(run)
            for failing[0] in (True, False, True, False):
                x = ones()
                attempt(run, run.call(x).sum().backward)
                run.model.zero_grad(set_to_none=True)

        run = self.check_whole(scenario, backend=backend)
        self.assertEqual(run.steps[0][:1], ["KeyError"])

    @parametrize("backend", BACKENDS)
    def test_two_backwards_through_one_graph(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            run.step(backwards=2)
            run.step(backwards=3)

        with torch._functorch.config.patch(donated_buffer=False):
            self.check_whole(scenario, backend=backend)

    @parametrize("backend", AOT_BACKENDS)
    def test_double_backward_is_refused(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            x = ones()
            (grad,) = torch.autograd.grad(run.call(x).sum(), x, create_graph=True)
            run.steps.append([grad.detach()])
            if run.compiled:
                with self.assertRaisesRegex(RuntimeError, "double backward"):
                    grad.sum().backward()

        with torch._functorch.config.patch(donated_buffer=False):
            self.check_whole(scenario, backend=backend)

    def test_double_backward_of_the_eager_backend(self) -> None:
        def scenario(run: Run) -> None:
            watch_all(run)
            x = ones()
            (grad,) = torch.autograd.grad(run.call(x).sin().sum(), x, create_graph=True)
            attempt(run, grad.sum().backward)

        self.check_whole(scenario, backend="eager")

    @parametrize("backend", BACKENDS)
    @parametrize("context", (torch.no_grad, torch.inference_mode))
    def test_without_grad(self, backend: str, context: Any) -> None:
        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            with context():
                run.step(train=False)
            run.step()
            with context():
                run.step(train=False)

        self.check_whole(scenario, backend=backend)

    @parametrize("backend", BACKENDS)
    def test_no_grad_inside(self, backend: str) -> None:
        class Half(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(4, 4)
                self.last = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    y = self.first(x)
                with torch.set_grad_enabled(True):
                    return self.last(x * y)

        def scenario(run: Run) -> None:
            watch_all(run)
            run.step()

        self.check_whole(scenario, Half, backend=backend)

    @parametrize("backend", BACKENDS)
    def test_called_again_shared_and_recursive(self, backend: str) -> None:
        class Again(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)
                self.alias = self.lin

            def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
                if depth:
                    x = self(self.lin(x).sin(), depth - 1)
                return self.alias(x).cos()

        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            run.step()
            run.step()

        self.check_whole(scenario, Again, backend=backend)

    @parametrize("backend", AOT_BACKENDS)
    @parametrize("where", ("input", "output"))
    def test_in_place_edit_of_what_a_hook_watches(
        self, backend: str, where: str
    ) -> None:
        class InPlace(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Inner()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.inner(x * 2)
                return (y.mul_(2) if where == "output" else y).sin()

        class Inner(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x.mul_(3) if where == "input" else x * 2) * 1.5

        def scenario(run: Run) -> None:
            run.model.inner.register_full_backward_hook(logging(run.log, 0))
            try:
                run.call(ones()).sum().backward()
            except RuntimeError as error:
                # Compiled, the message is in the middle of Dynamo's own.
                wanted = "is a view and is being modified inplace"
                run.steps.append([wanted in str(error)])

        run = self.check_whole(scenario, InPlace, backend=backend)
        self.assertEqual(run.steps, [[True]])

    @parametrize("backend", BACKENDS)
    def test_settled_when_forward_runs(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            removed = block.register_full_backward_hook(growing(run.log, "removed"))
            block.register_full_backward_pre_hook(logging(run.log, "kept"))
            out = run.call(ones()).sum()
            removed.remove()
            block.register_full_backward_hook(logging(run.log, "too late"))
            attempt(run, out.backward)
            run.step()

        self.check_whole(scenario, backend=backend)

    @parametrize("backend", BACKENDS)
    def test_order_of_modules_that_run_side_by_side(self, backend: str) -> None:
        class Wide(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
                self.mix = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                a, b, c, d = (part(x) for part in self.parts)
                return self.mix(a * b.sin() + c) * d

        def scenario(run: Run) -> None:
            watch_all(run, edit=True)
            run.step()
            run.step()

        self.check_whole(scenario, Wide, backend=backend)

    @parametrize("backend", BACKENDS)
    def test_hooks_see_autograd_as_in_eager(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, gi: Any, go: Any) -> None:
                run.log.append((torch.is_grad_enabled(), gi[0].requires_grad))
                with torch.enable_grad():
                    w = torch.ones(2, requires_grad=True)
                    (w * 3).sum().backward()
                run.log.append(summary(w.grad))

            run.model.blocks[1].register_full_backward_hook(hook)
            run.step()

        self.check_whole(scenario, backend=backend)


instantiate_parametrized_tests(SemanticsTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
