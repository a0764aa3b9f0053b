# Owner(s): ["module: dynamo"]
"""Global hooks: all ``torch.nn.modules.module.register_module_*_hook`` functions.

A global hook fires for exactly the modules it fires for in eager. That holds for
``m.compile()``, for a compiled function and for blocks compiled one by one. Through
``torch.compile(m)`` the wrapper itself is a module that eager does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules import module as nn_module
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import (
    edit,
    FORWARD_KINDS,
    global_hook_dict,
    Hook,
    KINDS,
    register,
    register_global,
    watch,
)
from hook_programs import BACKENDS, Block, HookTestCase, Run


NOT_CALL = ("inplace", "function", "blocks")


def _small(kind: str) -> Hook:
    return edit(kind, 1.5, 0.1)


def _name_types(log: list[Any]) -> Hook:
    """Logs the type of each module it is called for, but for Dynamo's wrapper."""

    def hook(module: nn.Module, *values: Any) -> None:
        if not isinstance(module, OptimizedModule):
            log.append(type(module).__name__)

    return hook


class GlobalHookTests(HookTestCase):
    """Registered, removed and edited, for each kind and way of compiling."""

    @parametrize(
        "wrap,backend",
        (*((wrap, "eager") for wrap in NOT_CALL), ("inplace", "aot_eager")),
    )
    @parametrize("kind", KINDS)
    def test_registered_after_first_call_then_removed(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register_global(kind, _small(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap", NOT_CALL)
    @parametrize("kind", KINDS)
    def test_registered_before_compiling_then_removed(
        self, kind: str, wrap: str
    ) -> None:
        def scenario(run: Run) -> None:
            handle = register_global(kind, _small(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=2)

    @parametrize("wrap", ("call", *NOT_CALL))
    @parametrize("kind", KINDS)
    def test_types_of_modules_it_fires_for(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register_global(kind, _name_types(run.log))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=1)

    @parametrize("backend", ("aot_eager",))
    @parametrize("kind", KINDS)
    def test_does_not_fire_for_graph_module_of_backend(
        self, kind: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            register_global(kind, _name_types(run.log))
            run.step()

        self.check(scenario, wrap="inplace", backend=backend)

    @parametrize("kind", KINDS)
    def test_does_not_fire_for_optimized_module(self, kind: str) -> None:
        model = nn.Linear(4, 2)
        compiled = torch.compile(model, backend="eager")
        seen: list[str] = []
        handle = register_global(kind, lambda m, *v: seen.append(type(m).__name__))
        try:
            compiled(torch.ones(1, 4, requires_grad=True)).sum().backward()
        finally:
            handle.remove()
            nn_module._global_is_full_backward_hook = None
        self.assertEqual(seen, ["Linear"])

    @parametrize("kind", KINDS)
    def test_hook_that_leaves_the_wrapper_alone(self, kind: str) -> None:
        plain = _small(kind)

        def hook(module: nn.Module, *values: Any) -> Any:
            if isinstance(module, OptimizedModule):
                return None
            return plain(module, *values)

        def scenario(run: Run) -> None:
            run.step()
            handle = register_global(kind, hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap="call", distinct=2)

    @parametrize("kind", KINDS)
    def test_entry_replaced_and_dict_cleared(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            handle = register_global(kind, edit(kind, 1.5, 0.0))
            run.step()
            global_hook_dict(kind)[handle.id] = edit(kind, 1.0, 0.5)
            run.step()
            global_hook_dict(kind).clear()
            run.step()

        self.check(scenario, wrap="inplace", distinct=3)

    @parametrize("kind", KINDS)
    def test_dict_reassigned_in_its_module(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            name = (
                "_global"
                + {
                    "forward_pre": "_forward_pre_hooks",
                    "forward": "_forward_hooks",
                    "backward_pre": "_backward_pre_hooks",
                    "full_backward": "_backward_hooks",
                    "legacy_backward": "_backward_hooks",
                }[kind]
            )
            old = getattr(nn_module, name)
            run.step()
            if kind.endswith("backward"):
                full = kind == "full_backward"
                nn_module._global_is_full_backward_hook = full
            try:
                setattr(nn_module, name, type(old)({0: _small(kind)}))
                run.step()
            finally:
                setattr(nn_module, name, old)
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    @parametrize("wrap", ("inplace",))
    @parametrize("kind", KINDS)
    def test_global_and_own_hook_together(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            own = register(run.model.blocks[1], kind, edit(kind, 2.0, 0.0))
            run.step()
            handle = register_global(kind, edit(kind, 1.0, 0.5))
            run.step()
            own.remove()
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=4)

    @parametrize("kind", KINDS)
    def test_hook_for_one_type_only(self, kind: str) -> None:
        plain = edit(kind)

        def hook(module: nn.Module, *values: Any) -> Any:
            return plain(module, *values) if isinstance(module, nn.Tanh) else None

        def scenario(run: Run) -> None:
            run.step()
            handle = register_global(kind, hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    @parametrize("kind", KINDS)
    def test_two_hooks_registered_and_removed_crosswise(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            first = register_global(kind, edit(kind, 1.5, 0.0))
            run.step()
            second = register_global(kind, edit(kind, 1.0, 0.5))
            run.step()
            first.remove()
            run.step()
            second.remove()
            run.step()

        self.check(scenario, wrap="inplace", distinct=4)

    @parametrize("wrap", NOT_CALL)
    def test_forward_hook_with_kwargs(self, wrap: str) -> None:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            return output * (1.0 + kwargs.get("scale", 0.25))

        def scenario(run: Run) -> None:
            run.step()
            handle = register_global("forward", hook, with_kwargs=True)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=2)

    @parametrize("backend", BACKENDS)
    @parametrize("wrap", NOT_CALL)
    def test_forward_hook_with_always_call(self, wrap: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register_global("forward", _small("forward"), always_call=True)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    def test_with_kwargs_mark_moved_to_other_hook(self) -> None:
        def hook(module: nn.Module, *values: Any) -> Any:
            if len(values) == 3:
                return values[2] * 1.5 + len(values[1])
            return values[1] * 0.75

        def scenario(run: Run) -> None:
            first = register_global("forward", hook, with_kwargs=True)
            second = register_global("forward", hook)
            run.step()
            marks = nn_module._global_forward_hooks_with_kwargs
            marks[second.id] = marks.pop(first.id)
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    def test_always_call_mark_moved_to_other_hook(self) -> None:
        class Failing(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                raise ValueError("told to fail")

        def scenario(run: Run) -> None:
            first = register_global("forward", watch(run.log, "a"), always_call=True)
            second = register_global("forward", watch(run.log, "b"))
            run.step()
            marks = nn_module._global_forward_hooks_always_called
            marks[second.id] = marks.pop(first.id)
            run.step()

        self.check(scenario, make=Failing, wrap="inplace")

    def test_mark_of_a_module_on_a_global_hook(self) -> None:
        # A global hook's id in a module's own marks counts for that module alone.
        def hook(module: nn.Module, *values: Any) -> Any:
            return values[-1] * (1.0 + len(values))

        def scenario(run: Run) -> None:
            handle = register_global("forward", hook)
            run.step()
            run.model.blocks[1]._forward_hooks_with_kwargs[handle.id] = True
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    def test_pre_hook_with_keywords_through_mark(self) -> None:
        def hook(module: nn.Module, *values: Any) -> Any:
            if len(values) == 2:
                args, kwargs = values
                return args, {name: value * 3.0 for name, value in kwargs.items()}
            return None

        def scenario(run: Run) -> None:
            handle = register_global("forward_pre", hook)
            run.step()
            run.model.blocks[1]._forward_pre_hooks_with_kwargs[handle.id] = True
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    @parametrize("wrap", NOT_CALL)
    def test_every_kind_together(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handles = [
                register_global(kind, _small(kind))
                for kind in ("forward_pre", "forward", "backward_pre", "full_backward")
            ]
            run.step()
            for handle in handles:
                handle.remove()
                run.step()

        self.check(scenario, wrap=wrap, distinct=5)

    def test_legacy_after_full_is_refused(self) -> None:
        def scenario(run: Run) -> None:
            handle = register_global("full_backward", _small("full_backward"))
            run.step()
            try:
                register_global("legacy_backward", _small("legacy_backward"))
            except RuntimeError as error:
                run.log.append(str(error))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    def test_flag_switched_from_full_to_legacy(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> None:
                run.log.append([v is None for v in values[0]])

            register_global("full_backward", hook)
            run.step()
            nn_module._global_is_full_backward_hook = False
            run.step()

        self.check(scenario, wrap="inplace", distinct=1)

    @parametrize("kind", FORWARD_KINDS)
    def test_hook_object_changes(self, kind: str) -> None:
        class Scale:
            by = 1.5

            def __call__(self, module: nn.Module, *values: Any) -> Any:
                if kind == "forward":
                    return values[-1] * self.by
                return tuple(value * self.by for value in values[0])

        def scenario(run: Run) -> None:
            hook = Scale()
            register_global(kind, hook)
            run.step()
            hook.by = 0.5
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    def test_hook_removes_itself(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                handle.remove()
                return output * 2.0

            run.step()
            handle = register_global("forward", hook)
            run.step()
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    @parametrize("wrap", NOT_CALL)
    def test_two_models_see_the_same_hook(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            other = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            call: Callable[..., Any] = other
            if run.compiled:
                other.compile(backend="eager")
            x = torch.ones(2, 4)
            run.step()
            run.log.append(call(x).detach())
            handle = register_global("forward", _small("forward"))
            run.step()
            run.log.append(call(x).detach())
            handle.remove()
            run.step()
            run.log.append(call(x).detach())

        self.check(scenario, wrap=wrap, distinct=2)

    def test_toggled_over_and_over_makes_two_graphs(self) -> None:
        plain = _small("forward")

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            return plain(module, args, output) if isinstance(module, Block) else None

        def scenario(run: Run) -> None:
            for _ in range(6):
                run.step()
                handle = register_global("forward", hook)
                run.step()
                handle.remove()

        self.check(scenario, wrap="inplace", graphs=2, distinct=2)

    @parametrize("wrap", ("inplace", "function"))
    @parametrize("kind", KINDS)
    def test_toggled_over_and_over_makes_no_more_graphs(
        self, kind: str, wrap: str
    ) -> None:
        graphs: list[int] = []

        def scenario(run: Run) -> None:
            hook = _small(kind)
            for _ in range(4):
                run.step()
                handle = register_global(kind, hook)
                run.step()
                handle.remove()
                graphs.append(run.graphs)

        self.check(scenario, wrap=wrap, distinct=2)
        # The loop over the blocks is not compiled again once it broke, so the blocks
        # are, each for itself, in the second round; nothing is after that.
        settled = 1 if kind not in FORWARD_KINDS else 0
        played = graphs[-4:]
        self.assertEqual(played[settled:], [played[settled]] * (4 - settled))

    def test_module_registration_hooks_do_not_matter(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handles = [
                nn_module.register_module_module_registration_hook(
                    lambda m, name, sub: run.log.append(("module", name))
                ),
                nn_module.register_module_parameter_registration_hook(
                    lambda m, name, p: run.log.append(("parameter", name))
                ),
                nn_module.register_module_buffer_registration_hook(
                    lambda m, name, b: run.log.append(("buffer", name))
                ),
            ]
            run.step()
            run.model.blocks[0].lin = nn.Linear(4, 4)
            run.step()
            for handle in handles:
                handle.remove()

        self.check(scenario, wrap="inplace")


instantiate_parametrized_tests(GlobalHookTests)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
