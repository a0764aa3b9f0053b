# Owner(s): ["module: dynamo"]
"""Number of graphs with hooks, and the flag ``skip_nnmodule_hook_guards``."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.testing
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import (
    edit,
    FORWARD_KINDS,
    FULL_BACKWARD_KINDS,
    KINDS,
    register,
    register_global,
)
from hook_programs import BACKENDS, Block, HookTestCase, Net, Run, same, WRAPS


FULL_KINDS = FORWARD_KINDS + FULL_BACKWARD_KINDS


class ManyBlocks(nn.Module):
    """24 identical blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=0.1)
        return x


class GraphCountTests(HookTestCase):
    """Promises on the number of graphs."""

    @parametrize("backend", BACKENDS)
    @parametrize("wrap", WRAPS)
    @parametrize("kind", FORWARD_KINDS)
    def test_same_hook_toggled_over_and_over(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            hook = edit(kind)
            for _ in range(6):
                run.step()
                handle = register(run.model.blocks[1].lin, kind, hook)
                run.step()
                handle.remove()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2, graphs=2)

    @parametrize("wrap", ("call", "blocks"))
    @parametrize("kind", KINDS)
    def test_no_more_graphs_after_first_toggle(self, kind: str, wrap: str) -> None:
        graphs: list[int] = []

        def scenario(run: Run) -> None:
            hook = edit(kind)
            for _ in range(4):
                run.step()
                handle = register(run.model.blocks[1].lin, kind, hook)
                run.step()
                handle.remove()
                graphs.append(run.graphs)

        self.check(scenario, wrap=wrap, distinct=2)
        self.assertEqual(graphs[-1], graphs[-4])

    @parametrize("kind", FORWARD_KINDS)
    def test_two_hooks_toggled_in_all_combinations(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            first, second = edit(kind, 2.0), edit(kind, 1.0, 3.0)
            for _ in range(2):
                run.step()
                one = register(run.model.blocks[0], kind, first)
                run.step()
                two = register(run.model.blocks[2], kind, second)
                run.step()
                one.remove()
                run.step()
                two.remove()

        self.check(scenario, distinct=4, graphs=4)

    @parametrize("kind", FORWARD_KINDS)
    def test_same_hook_in_new_closures_of_equal_values(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            for _ in range(4):
                handle = register(run.model.blocks[0], kind, edit(kind))
                run.step()
                handle.remove()

        self.check(scenario, distinct=1, graphs=1)

    @parametrize("kind", FORWARD_KINDS)
    def test_order_toggled(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind, 2.0))
            register(block, kind, edit(kind, 1.0, 3.0))
            name = "_forward_hooks" if kind == "forward" else "_forward_pre_hooks"
            for _ in range(6):
                run.step()
                hooks = getattr(block, name)
                hooks.move_to_end(next(iter(hooks)))

        self.check(scenario, distinct=2, graphs=2)

    def test_calls_without_change_make_one_graph(self) -> None:
        def scenario(run: Run) -> None:
            for block in run.model.blocks:
                block.register_forward_hook(edit("forward"))
                block.register_forward_pre_hook(edit("forward_pre"))
            for _ in range(5):
                run.step()

        for wrap in ("call", "inplace", "function"):
            self.check(scenario, wrap=wrap, fullgraph=True, graphs=1, distinct=1)

    def test_model_without_hooks_makes_one_graph(self) -> None:
        def scenario(run: Run) -> None:
            for _ in range(3):
                run.step()

        for wrap in WRAPS:
            self.check(scenario, wrap=wrap, fullgraph=True, graphs=1, distinct=1)

    @parametrize("backend", BACKENDS)
    def test_24_blocks_compiled_one_by_one_share_a_graph(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            run.step()

        self.check(
            scenario,
            make=ManyBlocks,
            wrap="blocks",
            backend=backend,
            fullgraph=True,
            graphs=1,
        )

    @parametrize("kind", FORWARD_KINDS)
    def test_24_blocks_with_a_hook_on_each_share_a_graph(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = edit(kind, 1.01, 0.0)
            for block in run.model.blocks:
                register(block.lin, kind, hook)
            run.step()

        self.check(scenario, make=ManyBlocks, wrap="blocks", graphs=1)

    @parametrize("kind", FORWARD_KINDS)
    def test_24_blocks_with_a_hook_on_one_share_two_graphs(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.blocks[7].lin, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()
            register(run.model.blocks[20].lin, kind, edit(kind))
            run.step()

        self.check(scenario, make=ManyBlocks, wrap="blocks", graphs=2, distinct=3)

    @parametrize("kind", FORWARD_KINDS)
    def test_24_blocks_hooked_one_after_the_other(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = edit(kind)
            for block in run.model.blocks:
                with register(block.lin, kind, hook):
                    run.step()

        self.check(scenario, make=ManyBlocks, wrap="blocks", graphs=2)

    @parametrize("hooked", (False, True))
    @parametrize("backend", BACKENDS)
    def test_instances_of_one_class_share_a_graph(
        self, backend: str, hooked: bool
    ) -> None:
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        x = torch.ones(2, 4)
        for _ in range(4):
            model: Any = Net()
            if hooked:
                model.blocks[1].register_forward_hook(edit("forward"))
                model.blocks[0].lin.register_forward_pre_hook(edit("forward_pre"))
            want = model(x)
            model.compile(backend=counter)
            self.assertTrue(same(want, model(x)))
        self.assertEqual(counter.frame_count, 1)

    def test_instances_with_and_without_hook_share_two_graphs(self) -> None:
        counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
        x = torch.ones(2, 4)
        models = [Net() for _ in range(4)]
        for model in models[::2]:
            model.blocks[1].register_forward_hook(edit("forward"))
        wants = [model(x) for model in models]
        compiled = [torch.compile(model, backend=counter) for model in models]
        for _ in range(2):
            for call, want in zip(compiled, wants, strict=True):
                self.assertTrue(same(want, call(x)))
        self.assertEqual(counter.frame_count, 2)

    def test_hook_moved_between_instances(self) -> None:
        counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
        x = torch.ones(2, 4)
        models = [Net() for _ in range(3)]
        calls = [torch.compile(model, backend=counter) for model in models]
        hook = edit("forward")
        for hooked in models:
            with hooked.blocks[1].register_forward_hook(hook):
                for model, call in zip(models, calls, strict=True):
                    self.assertTrue(same(model(x), call(x)))
        self.assertEqual(counter.frame_count, 2)

    def test_one_compiled_function_for_several_instances(self) -> None:
        counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
        x = torch.ones(2, 4)

        def double(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return model(x) * 2.0

        call = torch.compile(double, backend=counter)
        models = [Net() for _ in range(3)]
        models[1].blocks[1].register_forward_hook(edit("forward"))
        for _ in range(2):
            for model in models:
                self.assertTrue(same(double(model, x), call(model, x)))
        self.assertEqual(counter.frame_count, 2)

    def test_hooked_model_is_not_kept_alive(self) -> None:
        model = Net()
        model.blocks[1].register_forward_hook(edit("forward"))
        call: Any = torch.compile(model, backend="eager")
        call(torch.ones(2, 4))
        dead = weakref.ref(model)
        del model, call
        torch._dynamo.reset()
        gc.collect()
        self.assertIsNone(dead())

    def test_removed_hook_is_not_kept_alive(self) -> None:
        class Hook:
            def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
                return output * 2.0

        model = Net()
        hook = Hook()
        handle = model.blocks[1].register_forward_hook(hook)
        call = torch.compile(model, backend="eager")
        call(torch.ones(2, 4))
        dead = weakref.ref(hook)
        handle.remove()
        del hook
        call(torch.ones(2, 4))
        gc.collect()
        self.assertIsNone(dead())

    @parametrize("kind", FORWARD_KINDS)
    def test_fullgraph_with_hook_on_child(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            register(run.model.blocks[1], kind, edit(kind))
            run.step()

        self.check(scenario, fullgraph=True, distinct=2, graphs=2)

    @parametrize("kind", FORWARD_KINDS)
    def test_dynamic_shapes_with_hook(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            for size in (3, 5, 7, 9):
                run.step(torch.ones(size, 4))
            handle = register(run.model.blocks[1], kind, edit(kind))
            for size in (3, 5, 7, 9):
                run.step(torch.ones(size, 4))
            handle.remove()
            run.step(torch.ones(11, 4))

        self.check(scenario, graphs=3)

    def test_recompile_limit_is_not_reached_by_toggling_many(self) -> None:
        def scenario(run: Run) -> None:
            hook = edit("forward")
            for _ in range(12):
                with run.model.blocks[0].register_forward_hook(hook):
                    run.step()
                run.step()

        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            self.check(scenario, distinct=2, graphs=2)


@contextlib.contextmanager
def _skipping(skip: bool) -> Iterator[None]:
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip):
        yield


class FlagTests(HookTestCase):
    """``skip_nnmodule_hook_guards``, beyond what ``test_hooks_flag.py`` tests."""

    def _steps(self, skip: bool, scenario: Callable[[Net, Any], Any]) -> Any:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Net()
        counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
        with _skipping(skip):
            call = torch.compile(model, backend=counter)
            result = scenario(model, call)
        return result, counter.frame_count

    @parametrize("kind", FULL_KINDS)
    def test_true_ignores_hook_added_later(self, kind: str) -> None:
        def scenario(model: Net, call: Any) -> Any:
            x = torch.ones(2, 4, requires_grad=True)
            first = call(x)
            register(model.blocks[1], kind, edit(kind))
            second = call(x)
            grads = [
                torch.autograd.grad(out.sum(), x)[0].clone() for out in (first, second)
            ]
            return same(first, second) and same(*grads)

        self.assertEqual(self._steps(True, scenario), (True, 1))

    @parametrize("kind", FORWARD_KINDS)
    def test_true_still_sees_hook_that_was_there_changed(self, kind: str) -> None:
        def scenario(model: Net, call: Any) -> Any:
            x = torch.ones(2, 4)
            handle = register(model.blocks[1], kind, edit(kind))
            first = call(x)
            second = call(x)
            handle.remove()
            third = call(x)
            return same(first, second), same(third, model(x))

        # SEQUENCE_LENGTH on a dict that was not empty is guarded by both settings.
        self.assertEqual(self._steps(True, scenario)[0], (True, True))

    def test_switched_to_true_after_compiling_keeps_what_was_compiled(self) -> None:
        def scenario(model: Net, call: Any) -> Any:
            x = torch.ones(2, 4)
            call(x)
            with _skipping(True):
                model.blocks[1].register_forward_hook(edit("forward"))
                return same(model(x), call(x))

        self.assertEqual(self._steps(False, scenario)[0], True)


class Pair(nn.Module):
    """Two blocks one after the other, without a loop, where no graph can break."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class WholeAgainTests(HookTestCase):
    """A graph that breaks at a hook is whole again when the hook is gone."""

    @parametrize("wrap", ("call", "inplace", "function"))
    @parametrize("kind", ("backward_pre", "full_backward", "legacy_backward"))
    @parametrize("everywhere", (False, True))
    def test_hook_removed(self, kind: str, wrap: str, everywhere: bool) -> None:
        def scenario(run: Run) -> None:
            run.step()
            for _ in range(3):
                hook = edit(kind)
                handle = (
                    register_global(kind, hook)
                    if everywhere
                    else register(run.model.second.lin, kind, hook)
                )
                run.step()
                handle.remove()
                run.step()

        run = self.check(scenario, make=Pair, wrap=wrap)
        self.assertEqual(run.graph_runs[::2], [1, 1, 1, 1])
        self.assertLessEqual(run.graphs, 4)

    def test_always_call_mark_taken_away(self) -> None:
        def scenario(run: Run) -> None:
            block = run.model.second
            handle = block.register_forward_hook(lambda m, args, out: out * 2)
            run.step()
            block._forward_hooks_always_called[handle.id] = True
            run.step()
            block._forward_hooks_always_called.clear()
            run.step()

        run = self.check(scenario, make=Pair)
        self.assertEqual(run.graph_runs[::2], [1, 1])


class NestedGraphBreakTests(HookTestCase):
    """The same with ``nested_graph_breaks``, which Dynamo's own tests turn on."""

    nested_graph_breaks = True

    @parametrize("wrap", ("call", "inplace"))
    @parametrize("kind", KINDS)
    def test_hook_registered_then_removed(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.blocks[1].lin, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=2)

    @parametrize("kind", KINDS)
    def test_hook_that_breaks_the_graph(self, kind: str) -> None:
        plain = edit(kind)

        def hook(module: nn.Module, *values: Any) -> Any:
            torch._dynamo.graph_break()
            return plain(module, *values)

        def scenario(run: Run) -> None:
            run.step()
            register(run.model.blocks[1], kind, hook)
            run.step()

        self.check(scenario, distinct=2)


instantiate_parametrized_tests(GraphCountTests)
instantiate_parametrized_tests(FlagTests)
instantiate_parametrized_tests(NestedGraphBreakTests)
instantiate_parametrized_tests(WholeAgainTests)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
