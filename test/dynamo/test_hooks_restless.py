# Owner(s): ["module: dynamo"]
"""Hooks that record where a call cannot be part of one graph.

They change what they read, so that what is traced of them holds for one call: those
that return a value too, those on a module that breaks the graph, and those that see
every error. None of them may be compiled again at each call.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.nn_module_hooks import hook_policy
from torch.nn.modules import module as nn_module
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_programs import Block, Net, Run
from hook_recorders import Maker, RECORDERS, RecordingTestCase


CALLS = 30


def returns_its_output(hook: Callable[..., Any]) -> Callable[..., Any]:
    def same_output(module: Any, args: Any, out: Any) -> Any:
        hook(module, args, out)
        return out

    return same_output


def returns_another(hook: Callable[..., Any]) -> Callable[..., Any]:
    def changed_output(module: Any, args: Any, out: Any) -> Any:
        hook(module, args, out)
        return out * 2

    return changed_output


def counts_on_module(module: Any, args: Any, out: Any) -> Any:
    module.calls = getattr(module, "calls", 0) + 1
    return out + 1


TOTAL = 0


def counts_in_a_global(module: Any, args: Any, out: Any) -> Any:
    global TOTAL
    TOTAL += 1
    return out + 1


class Counts:
    def __init__(self) -> None:
        self.calls = 0
        self.by_type: dict[str, int] = {}

    def __call__(self, module: Any, args: Any, out: Any) -> Any:
        self.calls += 1
        name = type(module).__name__
        self.by_type[name] = self.by_type.get(name, 0) + 1
        return out + 1

    def method(self, module: Any, args: Any, out: Any) -> Any:
        return self(module, args, out)


COUNTERS: dict[str, Callable[[], Callable[..., Any]]] = {
    "module": lambda: counts_on_module,
    "global": lambda: counts_in_a_global,
    "object": Counts,
    "method": lambda: Counts().method,
    "partial": lambda: functools.partial(Counts.method, Counts()),
}


class Breaks(Block):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        torch._dynamo.graph_break()
        return super().forward(x, scale)


class Broken(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1] = Breaks()


class RestlessTestCase(RecordingTestCase):
    def check_settles(self, prepare: Callable[[Run], None], **options: Any) -> None:
        """As in eager, and nothing is compiled after the first two calls."""

        def scenario(run: Run) -> None:
            prepare(run)
            for _ in range(2):
                run.step()
            graphs = run.graphs
            torch._dynamo.utils.counters.clear()
            with torch._dynamo.config.patch(error_on_recompile=True):
                for _ in range(CALLS):
                    run.step()
            self.assertEqual(run.graphs, graphs)

        self.check(scenario, backend="aot_eager", **options)


class ReturningTests(RestlessTestCase):
    @parametrize("name", RECORDERS)
    def test_its_output(self, name: str) -> None:
        def scenario(run: Run) -> None:
            hook = returns_its_output(RECORDERS[name](run.log))
            run.model.blocks[0].lin.register_forward_hook(hook)
            run.model.blocks[2].register_forward_hook(hook)
            for _ in range(CALLS):
                run.step()

        self.check(scenario, graphs=1, backend="aot_eager", fullgraph=True)

    def test_its_output_or_nothing(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, kwargs: Any, out: Any) -> Any:
                run.log.append(out.detach())
                return out if len(args) == 1 else None

            block = run.model.blocks[0]
            block.register_forward_hook(hook, with_kwargs=True)
            for _ in range(CALLS):
                run.step()

        self.check(scenario, graphs=1, backend="aot_eager", fullgraph=True)

    def test_its_arguments(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any) -> Any:
                run.log.append(args[0].detach())
                return args

            run.model.blocks[0].register_forward_pre_hook(hook)
            for _ in range(CALLS):
                run.step()

        self.check(scenario, graphs=1, backend="aot_eager", fullgraph=True)

    def test_its_keyword_arguments(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, kwargs: Any) -> Any:
                run.log.append(len(args))
                return kwargs

            block = run.model.blocks[0]
            block.register_forward_pre_hook(hook, with_kwargs=True)
            run.step()

        self.check(scenario, backend="aot_eager")
        # Eager takes a dict for one argument that is no pair of args and kwargs.

    def test_one_of_its_outputs(self) -> None:
        class Two(nn.Module):
            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return x + 1, x + 2

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.two = Two()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                out = self.two(x)
                return out * 3 if isinstance(out, torch.Tensor) else out[0] * out[1]

        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> Any:
                run.log.append(len(out))
                return out[1]

            run.step()
            run.model.two.register_forward_hook(hook)
            run.step()

        self.check(scenario, make=Model, distinct=2, backend="aot_eager")

    @parametrize("name", RECORDERS)
    def test_another_value(self, name: str) -> None:
        def prepare(run: Run) -> None:
            hook = returns_another(RECORDERS[name](run.log))
            run.model.blocks[0].lin.register_forward_hook(hook)
            run.model.head.register_forward_hook(hook)

        self.check_settles(prepare)

    @parametrize("name", COUNTERS)
    def test_counters(self, name: str) -> None:
        def prepare(run: Run) -> None:
            global TOTAL
            TOTAL = 0
            run.model.head.register_forward_hook(COUNTERS[name]())

        self.check_settles(prepare)

    def test_a_pre_hook(self) -> None:
        def prepare(run: Run) -> None:
            def hook(module: Any, args: Any) -> Any:
                run.log.append(args[0].detach())
                return (args[0] * 2, *args[1:])

            run.model.head.register_forward_pre_hook(hook)

        self.check_settles(prepare)

    def test_a_pre_hook_with_kwargs(self) -> None:
        def prepare(run: Run) -> None:
            def hook(module: Any, args: Any, kwargs: Any) -> Any:
                run.log.append(kwargs["scale"])
                return args, {"scale": kwargs["scale"] * 2}

            block = run.model.blocks[0]
            block.register_forward_pre_hook(hook, with_kwargs=True)

        self.check_settles(prepare)

    def test_a_global_hook(self) -> None:
        def prepare(run: Run) -> None:
            def hook(module: Any, args: Any, out: Any) -> Any:
                if isinstance(module, nn.Linear):
                    run.log.append(out.detach())
                    return out * 2
                return None

            nn_module.register_module_forward_hook(hook)

        self.check_settles(prepare)

    def test_whole_and_traced_if_told_so(self) -> None:
        def hook(module: Any, args: Any, out: Any) -> Any:
            log.append(1)
            return out * 2

        log: list[Any] = []
        counter = torch._dynamo.testing.CompileCounter()
        for fullgraph in (True, False):
            model = Net()
            model.head.register_forward_hook(hook)
            compiled = torch.compile(model, backend=counter, fullgraph=fullgraph)
            for _ in range(3):
                compiled(torch.ones(3, 4))
            hook_policy("trace")(hook)
        self.assertEqual((len(log), counter.frame_count), (6, 6))

    def test_state_that_stays_as_it_was(self) -> None:
        def scenario(run: Run) -> None:
            kept: list[Any] = []

            def hook(module: Any, args: Any, out: Any) -> Any:
                kept.append(out.detach())
                return out * 2

            for block in run.model.blocks:
                block.register_forward_hook(hook)
            for _ in range(5):
                run.step()
                run.log.append(list(kept))
                kept.clear()

        self.check(scenario, graphs=1, backend="aot_eager")

    def test_warns_once(self) -> None:
        def hook(module: Any, args: Any, out: Any) -> Any:
            log.append(1)
            return out * 2

        log: list[Any] = []
        model = Net()
        model.head.register_forward_hook(hook)
        torch._dynamo.utils.warn_once_cache.clear()
        compiled = torch.compile(model, backend="eager")
        compiled(torch.ones(3, 4))
        said = (
            r"hook \(.*\) breaks the graph. It has to be traced \(it may return a value"
        )
        with self.assertWarnsRegex(UserWarning, said):
            compiled(torch.ones(3, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled(torch.ones(3, 4))
        self.assertEqual(log, [1, 1, 1])


def nonlocal_number(model: Any, log: list[Any]) -> None:
    n = 0

    def hook(module: Any, args: Any, out: Any) -> Any:
        nonlocal n
        n += 1
        return out * n

    model.head.register_forward_hook(hook)


def attribute_of_the_hook(model: Any, log: list[Any]) -> None:
    def hook(module: Any, args: Any, out: Any) -> Any:
        hook.calls += 1  # type: ignore[attr-defined]
        return out + hook.calls  # type: ignore[attr-defined]

    hook.calls = 0  # type: ignore[attr-defined]
    model.head.register_forward_hook(hook)


def iterator(model: Any, log: list[Any]) -> None:
    numbers = itertools.count(1)
    model.head.register_forward_hook(lambda m, args, out: out * next(numbers))


def edits_and_records(model: Any, log: list[Any]) -> None:
    def hook(module: Any, args: Any, out: Any) -> None:
        log.append(1)
        out.mul_(2)

    model.head.register_forward_hook(hook)


def makes_a_list_when_there_is_none(model: Any, log: list[Any]) -> None:
    kept: dict[str, list[Any]] = {}

    def hook(module: Any, args: Any, out: Any) -> None:
        if "out" not in kept:
            kept["out"] = []
        kept["out"].append(out.detach())

    model.head.register_forward_hook(hook)


def counts_by_module(model: Any, log: list[Any]) -> None:
    calls: dict[Any, int] = {}

    def hook(module: Any, args: Any, out: Any) -> Any:
        calls[module] = calls.get(module, 0) + 1
        return out * calls[module]

    for module in (model.blocks[0], model.head):
        module.register_forward_hook(hook)


def one_writes_and_one_reads(model: Any, log: list[Any]) -> None:
    state = {"step": 0}

    def write(module: Any, args: Any) -> None:
        state["step"] += 1

    model.register_forward_pre_hook(write)
    model.head.register_forward_hook(lambda m, args, out: out + state["step"])


MOVING = (
    nonlocal_number,
    attribute_of_the_hook,
    iterator,
    edits_and_records,
    makes_a_list_when_there_is_none,
    counts_by_module,
    one_writes_and_one_reads,
)


class MovingTests(RecordingTestCase):
    """State whose changes show in guards that fail, not in the hook's code."""

    @parametrize("prepare", MOVING)
    def test_settles(self, prepare: Callable[[Any, list[Any]], None]) -> None:
        def scenario(run: Run) -> None:
            prepare(run.model, run.log)
            for _ in range(6):
                run.step()
            graphs = run.graphs
            for _ in range(CALLS):
                run.step()
            self.assertEqual(run.graphs, graphs)

        self.check(scenario, backend="aot_eager")

    def test_a_list_that_is_made_at_its_first_use(self) -> None:
        def scenario(run: Run) -> None:
            kept: dict[str, list[Any]] = {}
            run.model.head.register_forward_hook(
                lambda m, args, out: kept.setdefault("out", []).append(out.detach())
            )
            for _ in range(CALLS):
                run.step()
            run.log += kept["out"]

        self.check(scenario, graphs=1, backend="aot_eager", fullgraph=True)

    def test_values_that_users_set_are_not_taken_for_it(self) -> None:
        def scenario(run: Run) -> None:
            for scale in (2.0, 3.0, 4.0):
                handle = run.model.head.register_forward_hook(
                    lambda m, args, out, scale=scale: out * scale
                )
                run.step()
                run.step()
                handle.remove()
            run.step()

        run = self.check(scenario, distinct=4, backend="aot_eager")
        self.assertTrue(all(run.graph_runs))


class InContext(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            x = super().forward(x)
        return x + 1


class ContextTests(RestlessTestCase):
    """Hooks in a context of the frame, where they have to be traced."""

    @parametrize("name", RECORDERS)
    def test_recorders(self, name: str) -> None:
        def prepare(run: Run) -> None:
            run.model.head.register_forward_hook(RECORDERS[name](run.log))

        self.check_settles(prepare, make=InContext)


class BrokenTests(RestlessTestCase):
    """Hooks on modules whose calls break the graph for another reason."""

    @parametrize("name", RECORDERS)
    def test_recorders(self, name: str) -> None:
        make: Maker = RECORDERS[name]

        def prepare(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(make(run.log))

        self.check_settles(prepare, make=Broken)

    def test_pre_hooks(self) -> None:
        def prepare(run: Run) -> None:
            run.model.blocks[1].register_forward_pre_hook(
                lambda module, args: run.log.append(args[0].detach())
            )

        self.check_settles(prepare, make=Broken)

    def test_global_hooks(self) -> None:
        def prepare(run: Run) -> None:
            nn_module.register_module_forward_hook(
                lambda module, args, out: run.log.append(out.detach())
            )

        self.check_settles(prepare, make=Broken)

    def test_always_called(self) -> None:
        def prepare(run: Run) -> None:
            run.model.head.register_forward_hook(
                lambda module, args, out: run.log.append(out.detach()),
                always_call=True,
            )

        self.check_settles(prepare)

    def test_pure_hooks_are_compiled_all_the_same(self) -> None:
        model = Broken()
        model.blocks[1].register_forward_hook(lambda m, i, out: out.sin().cos())
        counter = torch._dynamo.testing.CompileCounter()
        torch.compile(model, backend=counter)(torch.ones(3, 4))
        hooked = counter.op_count
        torch._dynamo.reset()
        counter.clear()
        torch.compile(Broken(), backend=counter)(torch.ones(3, 4))
        self.assertEqual(hooked, counter.op_count + 2)


instantiate_parametrized_tests(ReturningTests)
instantiate_parametrized_tests(MovingTests)
instantiate_parametrized_tests(ContextTests)
instantiate_parametrized_tests(BrokenTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
