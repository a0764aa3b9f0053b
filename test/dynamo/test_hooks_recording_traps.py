# Owner(s): ["module: dynamo"]
"""Recording hooks whose code does not show at once what they do.

Each trap is a program in which a call after the graph would differ from eager, unless
it is seen that it would: by callbacks, objects in containers, buffers, names of
classes, state that other hooks or ``forward`` share. Found by a reader who tried.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_programs import Run
from hook_recorders import brief, RecordingTestCase


class Edited(nn.Module):
    """What its layer returns is edited in place; it reads a list, and a buffer."""

    history: list[Any] = []

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm1d(4)
        self.shared: list[Any] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.norm(self.act(self.lin(x)))
        return x * (1 + len(self.shared) + len(self.history))


Trap = Callable[[Run], Callable[..., Any]]
TRAPS: dict[str, Trap] = {}


def trap(make: Trap) -> Trap:
    TRAPS[make.__name__] = make
    return make


@trap
def callbacks_in_a_list(run: Run) -> Callable[..., Any]:
    callbacks = [lambda value: run.log.append(brief(value))]

    def hook(module: Any, args: Any, out: Any) -> None:
        for callback in callbacks:
            callback(out)

    return hook


@trap
def callback_that_shares(run: Run) -> Callable[..., Any]:
    callbacks = {"out": lambda value: run.model.shared.append(1)}

    def hook(module: Any, args: Any, out: Any) -> None:
        callbacks["out"](out)

    return hook


@trap
def callback_that_removes_the_hook(run: Run) -> Callable[..., Any]:
    callbacks: dict[str, Any] = {}

    def hook(module: Any, args: Any, out: Any) -> None:
        run.log.append("called")
        callbacks["stop"]()

    handle = run.model.norm.register_forward_hook(lambda m, i, o: o * 2)
    callbacks["stop"] = handle.remove
    return hook


class Meter:
    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.last: Any = None

    def update(self, value: torch.Tensor) -> None:
        self.log.append(brief(value))

    def __call__(self, module: Any, args: Any, out: Any) -> None:
        self.update(out)

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        self.log.append((key, brief(value)))


class SpecialMeter(Meter):
    def __call__(self, module: Any, args: Any, out: Any) -> None:
        super().__call__(module, args, out)


@trap
def objects_in_a_dict(run: Run) -> Callable[..., Any]:
    meters = {"a": Meter(run.log)}
    return lambda module, args, out: meters["a"].update(out)


@trap
def method_of_a_base_class(run: Run) -> Callable[..., Any]:
    return SpecialMeter(run.log)


@trap
def item_of_an_object(run: Run) -> Callable[..., Any]:
    meter = Meter(run.log)

    def hook(module: Any, args: Any, out: Any) -> None:
        meter["out"] = out

    return hook


@trap
def clamp_in_a_list(run: Run) -> Callable[..., Any]:
    parameters = [run.model.norm.weight]

    def hook(module: Any, args: Any, out: Any) -> None:
        for parameter in parameters:
            parameter.data.clamp_(max=0.5)

    return hook


@trap
def copy_into_a_buffer_of_its_own(run: Run) -> Callable[..., Any]:
    buffer = torch.zeros(3, 4)
    run.log.append(buffer)

    def hook(module: Any, args: Any, out: Any) -> None:
        buffer.copy_(out.detach())

    return hook


@trap
def item_of_a_buffer_of_its_own(run: Run) -> Callable[..., Any]:
    buffer = torch.zeros(2, 3, 4)
    run.log.append(buffer)

    def hook(module: Any, args: Any, out: Any) -> None:
        buffer[0] = out.detach()

    return hook


@trap
def stash_then_compute(run: Run) -> Callable[..., Any]:
    store: dict[str, Any] = {}

    def hook(module: Any, args: Any, out: Any) -> None:
        store["out"] = out.detach()
        run.log.append(brief(store["out"]))

    return hook


@trap
def attribute_then_compute(run: Run) -> Callable[..., Any]:
    meter = Meter(run.log)

    def hook(module: Any, args: Any, out: Any) -> None:
        meter.last = out.detach()
        run.log.append(brief(meter.last))

    return hook


@trap
def advanced_indexing(run: Run) -> Callable[..., Any]:
    return lambda module, args, out: run.log.append(out.detach()[[0, 1]])


@trap
def buffers_in_a_list(run: Run) -> Callable[..., Any]:
    norms = [run.model.norm]

    def hook(module: Any, args: Any, out: Any) -> None:
        run.log.append(brief(norms[0].running_mean))

    return hook


@trap
def class_attribute(run: Run) -> Callable[..., Any]:
    Edited.history.clear()

    def hook(module: Any, args: Any, out: Any) -> None:
        run.model.history.append(1)

    return hook


@trap
def attribute_that_forward_changes(run: Run) -> Callable[..., Any]:
    models = [run.model]

    def hook(module: Any, args: Any, out: Any) -> None:
        for model in models:
            run.log.append(model.calls)

    return hook


@trap
def only_looks_whether_there_is_one(run: Run) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        first = args[0]
        (other,) = args
        run.log.append((out is None, first is other))

    return hook


@trap
def only_loops(run: Run) -> Callable[..., Any]:
    def hook(module: Any, args: Any, out: Any) -> None:
        for _row in out:
            run.log.append("row")

    return hook


@trap
def helper_under_no_grad(run: Run) -> Callable[..., Any]:
    @torch.no_grad()
    def keep(value: torch.Tensor) -> None:
        run.model.shared.append(1)
        run.log.append((value * 2).requires_grad)

    return lambda module, args, out: keep(out)


@trap
def draws_numbers(run: Run) -> Callable[..., Any]:
    return lambda module, args, out: run.log.append(
        torch.normal(0.0, out.detach() ** 2)
    )


@trap
def edits_a_list_by_the_method_of_list(run: Run) -> Callable[..., Any]:
    add = functools.partial(list.append, run.model.shared)

    def hook(module: Any, args: Any, out: Any) -> None:
        add(1)

    return hook


class TrapTests(RecordingTestCase):
    def setUp(self) -> None:
        super().setUp()
        Edited.history.clear()

    @parametrize("name", TRAPS)
    def test_trap(self, name: str) -> None:
        def scenario(run: Run) -> None:
            torch.manual_seed(1)
            run.model.lin.register_forward_hook(TRAPS[name](run))
            for _ in range(4):
                run.step()

        self.check(scenario, make=Edited, backend="aot_eager")

    def test_two_models_with_callbacks_of_their_own(self) -> None:
        def recorder(run: Run, callback: Callable[..., Any]) -> Callable[..., Any]:
            return lambda module, args, out: run.log.append(callback(out))

        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleList(Edited() for _ in range(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.parts[0](x) + self.parts[1](x)

        def scenario(run: Run) -> None:
            first, second = run.model.parts
            first.compile(backend="aot_eager")
            second.compile(backend="aot_eager")
            shape = recorder(run, lambda value: tuple(value.shape))
            first.lin.register_forward_hook(shape)
            second.lin.register_forward_hook(recorder(run, brief))
            for _ in range(3):
                run.step()

        self.check(scenario, make=Two, backend="aot_eager")

    def test_callback_that_is_bound_later(self) -> None:
        def scenario(run: Run) -> None:
            meter: Any = Meter(run.log)
            meter.callback = lambda value: None

            def hook(module: Any, args: Any, out: Any) -> None:
                meter.callback(out)

            run.model.lin.register_forward_hook(hook)
            run.step()
            for callback in (lambda value: run.log.append(brief(value)), print):
                meter.callback = callback
                run.step()

        self.check(scenario, make=Edited, backend="aot_eager")

    def test_view_that_is_kept_and_read(self) -> None:
        class Turned(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x).transpose(0, 1)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.turned = Turned()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.turned(x) * 2

        def scenario(run: Run) -> None:
            turned = run.model.turned
            turned.register_forward_hook(lambda m, i, out: run.log.append(out))
            turned.register_forward_hook(lambda m, i, out: run.log.append(brief(out)))
            for _ in range(3):
                run.step()

        self.check(scenario, make=Outer, backend="aot_eager")

    def test_container_that_forward_goes_on_to_fill(self) -> None:
        class Inner(nn.Module):
            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"a": x * 2}

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Inner()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found = self.inner(x)
                found["b"] = x * 3
                return found["a"] + found["b"]

        def scenario(run: Run) -> None:
            run.model.inner.register_forward_hook(
                lambda module, args, out: run.log.append(out)
            )
            for _ in range(3):
                run.step()

        self.check(scenario, make=Outer, backend="aot_eager")


instantiate_parametrized_tests(TrapTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
