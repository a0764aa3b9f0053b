# Owner(s): ["module: dynamo"]
"""Hooks that compiled code registers and removes itself.

Each program makes a function of a tensor that uses a model; eager is its oracle, in
what it returns, its gradients, the hooks that it leaves and the ids that it takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.nn.modules import module as nn_module
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils.hooks import RemovableHandle

from hook_programs import HookTestCase, Net, no_global_hooks, same


Program = Callable[[Any], Callable[[torch.Tensor], Any]]
WHOLE: dict[str, Program] = {}
BROKEN: dict[str, Program] = {}


def whole(program: Program) -> Program:
    WHOLE[program.__name__] = program
    return program


def broken(program: Program) -> Program:
    BROKEN[program.__name__] = program
    return program


def double(module: Any, args: Any, out: Any) -> Any:
    return out * 2


@whole
def register_call_remove(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_forward_hook(double)
        first = model(x)
        handle.remove()
        return first, model(x)

    return step


@whole
def with_statement(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        with model.head.register_forward_hook(double):
            first = model(x)
        return first, model(x)

    return step


@whole
def with_statement_and_name(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        with model.register_forward_hook(double) as handle:
            first = model(x)
            handle.remove()
            return first, model(x)

    return step


@whole
def collect(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        features: list[torch.Tensor] = []
        handles = [
            block.register_forward_hook(lambda m, args, out: features.append(out))
            for block in model.blocks
        ]
        out = model(x)
        for handle in handles:
            handle.remove()
        return out, sum(feature.sum() for feature in features)

    return step


@whole
def try_finally(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_forward_hook(double)
        try:
            return model(x)
        finally:
            handle.remove()

    return step


@contextlib.contextmanager
def doubled(module: nn.Module) -> Iterator[None]:
    handle = module.register_forward_hook(double)
    try:
        yield
    finally:
        handle.remove()


@whole
def context_manager(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        with doubled(model.head), doubled(model.blocks[0]):
            first = model(x)
        return first, model(x)

    return step


@whole
def pre_hook(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_forward_pre_hook(lambda m, args: (args[0] * 3,))
        out = model(x)
        handle.remove()
        return out

    return step


@whole
def with_kwargs(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        def hook(module: Any, args: Any, kwargs: dict[str, float]) -> Any:
            return args, {"scale": kwargs["scale"] * 4}

        block = model.blocks[1]
        with block.register_forward_pre_hook(hook, with_kwargs=True):
            return model(x)

    return step


@whole
def prepend(model: Any) -> Callable[[torch.Tensor], Any]:
    model.head.register_forward_hook(lambda m, args, out: out + 1)
    model.head.register_forward_hook(lambda m, args, out: out * 5)

    def step(x: torch.Tensor) -> Any:
        first = model.head.register_forward_hook(double, prepend=True)
        last = model.head.register_forward_hook(lambda m, args, out: out - 1)
        out = model(x)
        first.remove()
        then = model(x)
        last.remove()
        return out, then, model(x)

    return step


@whole
def beside_recorders(model: Any) -> Callable[[torch.Tensor], Any]:
    model.kept = []
    model.head.register_forward_hook(
        lambda m, args, out, kept=model.kept: kept.append(out.detach())
    )

    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        out = model(x)
        handle.remove()
        return out

    return step


@broken
def around_recorders(model: Any) -> Callable[[torch.Tensor], Any]:
    model.kept = []
    model.head.register_forward_hook(
        lambda m, args, out, kept=model.kept: kept.append(out.detach())
    )

    def step(x: torch.Tensor) -> Any:
        with model.head.register_forward_pre_hook(lambda m, args: (args[0] + 1,)):
            return model(x)

    return step


@whole
def global_hook(model: Any) -> Callable[[torch.Tensor], Any]:
    def hook(module: Any, args: Any, out: Any) -> Any:
        return out * 2 if isinstance(module, nn.Linear) else None

    def step(x: torch.Tensor) -> Any:
        with nn_module.register_module_forward_hook(hook):
            first = model(x)
        return first, model(x)

    return step


@whole
def removed_twice(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_forward_hook(double)
        handle.remove()
        handle.remove()
        return model(x)

    return step


@broken
def id_that_is_read(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_forward_hook(double)
        out = model(x)
        handle.remove()
        return out, handle.id

    return step


@broken
def left_behind(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        model.head.register_forward_hook(double)
        return model(x)

    return step


@broken
def left_to_itself(model: Any) -> Callable[[torch.Tensor], Any]:
    class Registers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> Any:
            if not self.inner._forward_hooks:
                self.inner.register_forward_hook(double)
            return self.inner(x)

    return Registers()


@broken
def removed_elsewhere(model: Any) -> Callable[[torch.Tensor], Any]:
    handle = model.head.register_forward_hook(double)

    def step(x: torch.Tensor) -> Any:
        first = model(x)
        handle.remove()
        return first, model(x)

    return step


@broken
def graph_break_between(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_forward_hook(double)
        first = model(x)
        torch._dynamo.graph_break()
        second = model(x)
        handle.remove()
        return first, second, model(x)

    return step


@broken
def graph_break_in_with(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        with model.head.register_forward_hook(double):
            first = model(x)
            torch._dynamo.graph_break()
            second = model(x)
        return first, second, model(x)

    return step


@broken
def raises(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        with model.head.register_forward_hook(double):
            model(x)
            raise ValueError("told to")

    def caught(x: torch.Tensor) -> Any:
        try:
            return step(x)
        except ValueError as error:
            return model(x), str(error)

    return caught


@broken
def full_backward(model: Any) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        handle = model.head.register_full_backward_hook(
            lambda m, grad_input, grad_output: (grad_input[0] * 2,)
        )
        out = model(x)
        handle.remove()
        return out

    return step


class RegistrationTests(HookTestCase):
    def _play(self, program: Program, **options: Any) -> tuple[list[Any], int]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model: Any = Net()
        with no_global_hooks():
            step = program(model)
            counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
            if options.pop("compiled"):
                step = torch.compile(step, backend=counter, **options)
            seen: list[Any] = []
            for _ in range(3):
                x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
                next_id = RemovableHandle.next_id
                result = step(x)
                taken = RemovableHandle.next_id - next_id
                out = result[0] if isinstance(result, tuple) else result
                out.sum().backward()
                if program is id_that_is_read:
                    result = (out, result[1] - next_id)
                seen.append([result, x.grad, taken, len(model.head._forward_hooks)])
                seen[-1] += [len(model.head._backward_hooks)]
                seen[-1] += getattr(model, "kept", ())
        return seen, counter.frame_count

    def _check(self, program: Program, **options: Any) -> int:
        eager, _ = self._play(program, compiled=False)
        compiled, graphs = self._play(program, compiled=True, **options)
        # Compiling takes ids itself.
        for run in (eager, compiled):
            for step in run[: 1 if program in WHOLE.values() else None]:
                del step[2]
        self.assertTrue(same(eager, compiled), f"eager {eager}\ncompiled {compiled}")
        return graphs

    @parametrize("name", WHOLE)
    @parametrize("fullgraph", (True, False))
    def test_whole(self, name: str, fullgraph: bool) -> None:
        graphs = self._check(WHOLE[name], fullgraph=fullgraph)
        self.assertEqual(graphs, 1)

    @parametrize("name", BROKEN)
    def test_broken(self, name: str) -> None:
        self._check(BROKEN[name])

    @parametrize("name", ("left_behind", "left_to_itself", "full_backward"))
    def test_fullgraph_refuses_what_would_be_left(self, name: str) -> None:
        with self.assertRaises(torch._dynamo.exc.Unsupported):
            self._play(BROKEN[name], compiled=True, fullgraph=True)


instantiate_parametrized_tests(RegistrationTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
