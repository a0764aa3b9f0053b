# Owner(s): ["module: dynamo"]
"""Hooks that raise, ``always_call`` hooks, and errors caught in compiled code."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import (
    edit,
    Hook,
    KINDS,
    on_change,
    register,
    register_global,
    watch,
)
from hook_programs import BACKENDS, Block, Caught, HookTestCase, Raising, Run, WRAPS


NOT_BLOCKS = ("call", "inplace", "function")


class Stop(Exception):
    """A user's own exception, as early-exit tools raise."""


def _raise(error: Exception) -> Hook:
    def hook(module: nn.Module, *values: Any) -> None:
        raise error

    return hook


def _raise_new(module: nn.Module, *values: Any) -> None:
    raise ValueError("from the hook")


def _work_then_raise(kind: str) -> Hook:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        if (tensor * 2.0).sum() != 0.0:
            raise ValueError("after some work")
        return tensor

    return on_change(kind, change)


class Uncaught(nn.Module):
    """Lets through what its inner module raises."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Raising()
        self.after = Block()

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        return self.after(self.inner(x, fail=fail))


class CaughtTwice(nn.Module):
    """Catches, raises again from an outer module, catches again."""

    def __init__(self) -> None:
        super().__init__()
        self.caught = Rethrowing()

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        try:
            return self.caught(x, fail=fail)
        except RuntimeError:
            return x * 3.0


class Rethrowing(nn.Module):
    """Turns its inner module's ``ValueError`` into a ``RuntimeError``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Raising()

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        try:
            return self.inner(x, fail=fail)
        except ValueError as error:
            raise RuntimeError("again") from error


class RaisingHookTests(HookTestCase):
    """A hook that raises makes the call raise, and leaves nothing behind."""

    @parametrize(
        "wrap,backend", (*((wrap, "eager") for wrap in WRAPS), ("call", "aot_eager"))
    )
    @parametrize("kind", KINDS)
    def test_hook_raises(self, kind: str, wrap: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.blocks[1], kind, _raise_new)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("backend", BACKENDS)
    @parametrize("kind", KINDS)
    def test_hook_raises_after_tensor_work(self, kind: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.blocks[1], kind, _work_then_raise(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, backend=backend, distinct=2)

    @parametrize("kind", KINDS)
    def test_hook_raises_own_exception_object(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            error = Stop("enough")
            register(run.model.blocks[1], kind, _raise(error))
            run.step()
            run.step()

        self.check(scenario, distinct=1)

    @parametrize("kind", KINDS)
    def test_log_before_and_after_raising_hook(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, watch(run.log, "before"))
            handle = register(block, kind, _raise_new)
            register(block, kind, watch(run.log, "after"))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_keeps_activation_and_stops(self) -> None:
        def scenario(run: Run) -> None:
            kept: list[torch.Tensor] = []

            def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
                kept.append(output.detach())
                raise Stop("enough")

            run.step()
            handle = run.model.blocks[1].act.register_forward_hook(hook)
            run.step()
            run.log.append(list(kept))
            handle.remove()
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_raises_depending_on_its_attribute(self) -> None:
        class Fuse:
            blown = False

            def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
                if self.blown:
                    raise Stop("blown")
                return output * 2.0

        def scenario(run: Run) -> None:
            fuse = Fuse()
            run.model.blocks[1].register_forward_hook(fuse)
            for fuse.blown in (False, True, False):
                run.step()

        self.check(scenario, distinct=2)

    def test_hook_mutates_list_then_raises(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any) -> None:
                run.log.append("about to raise")
                raise Stop("now")

            run.model.blocks[1].register_forward_pre_hook(hook)
            run.step()

        self.check(scenario)

    def test_hook_sets_attribute_then_raises(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any) -> None:
                module.seen = getattr(module, "seen", 0) + 1
                raise Stop("now")

            run.model.blocks[1].register_forward_pre_hook(hook)
            run.step()
            run.log.append(run.model.blocks[1].seen)
            run.step()
            run.log.append(run.model.blocks[1].seen)

        self.check(scenario)

    @parametrize(
        "error",
        (KeyboardInterrupt, SystemExit, StopIteration, AssertionError, KeyError),
    )
    def test_hook_raises_builtin(self, error: type[BaseException]) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            raise error("stop")

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(hook)
            try:
                run.step()
            except BaseException as caught:
                run.log.append(type(caught).__name__)

        self.check(scenario)

    def test_hook_catches_its_own_error(self) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            try:
                raise ValueError("inside")
            except ValueError:
                return output * 2.0

        def scenario(run: Run) -> None:
            run.step()
            run.model.blocks[1].register_forward_hook(hook)
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("wrap", NOT_BLOCKS)
    @parametrize("kind", ("forward_pre", "forward"))
    def test_error_of_hook_caught_in_compiled_code(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.inner, kind, _raise_new)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Caught, wrap=wrap, distinct=2)

    @parametrize("kind", ("forward_pre", "forward"))
    def test_error_of_hook_on_child_caught_further_out(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.inner.lin, kind, _raise_new)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Caught, distinct=2)

    def test_error_of_hook_that_is_not_the_caught_type(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            run.model.inner.register_forward_hook(_raise(Stop("other")))
            run.step()

        self.check(scenario, make=Caught, distinct=2)

    @parametrize("kind", KINDS)
    def test_global_hook_raises(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> None:
                if isinstance(module, nn.Tanh):
                    raise Stop("global")

            run.step()
            handle = register_global(kind, hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    def test_pre_hook_with_kwargs_returns_wrong_form(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.blocks[1].register_forward_pre_hook(
                lambda module, args, kwargs: args, with_kwargs=True
            )
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", ("backward_pre", "full_backward"))
    def test_backward_hook_returns_wrong_length(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> Any:
                return (*values[0], values[0][0])

            run.step()
            handle = register(run.model.blocks[1], kind, hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, distinct=2)

    def test_legacy_hook_mixed_with_full_hook(self) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            run.step()
            block.register_full_backward_hook(edit("full_backward"))
            run.step()
            try:
                block.register_backward_hook(edit("legacy_backward"))
            except RuntimeError as error:
                run.log.append(str(error))
            run.step()

        self.check(scenario, distinct=2)

    def test_full_hook_mixed_with_legacy_hook(self) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            run.step()
            block.register_backward_hook(edit("legacy_backward"))
            run.step()
            try:
                block.register_full_backward_hook(edit("full_backward"))
            except RuntimeError as error:
                run.log.append(str(error))
            run.step()

        self.check(scenario, distinct=2)

    def test_legacy_hook_on_one_module_and_full_hook_on_another(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            run.model.blocks[0].register_full_backward_hook(edit("full_backward"))
            run.model.blocks[1].register_backward_hook(edit("legacy_backward"))
            run.step()

        self.check(scenario, distinct=2)

    def test_global_full_hook_over_legacy_hook(self) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[1].register_backward_hook(edit("legacy_backward"))
            run.step()
            register_global("full_backward", edit("full_backward"))
            run.step()

        self.check(scenario, wrap="inplace")

    def test_flag_switched_from_full_to_legacy(self) -> None:
        # The flag alone says how the hooks in the dict are to be called.
        def scenario(run: Run) -> None:
            act = run.model.blocks[1].act
            act.register_full_backward_hook(edit("full_backward"))
            run.step()
            act._is_full_backward_hook = False
            run.step()

        self.check(scenario)


class AlwaysCallTests(HookTestCase):
    """``always_call=True`` hooks when forward, or another hook, raises."""

    @parametrize("backend", BACKENDS)
    @parametrize("wrap", NOT_BLOCKS)
    def test_forward_raises(self, wrap: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step(fail=False)
            run.model.inner.register_forward_hook(
                watch(run.log, "always"), always_call=True
            )
            run.step(fail=False)
            run.step(fail=True)
            run.step(fail=False)

        self.check(scenario, make=Uncaught, wrap=wrap, backend=backend, distinct=2)

    @parametrize("backend", BACKENDS)
    @parametrize("wrap", NOT_BLOCKS)
    def test_error_of_forward_caught_in_compiled_code(
        self, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            run.step(fail=True)
            handle = run.model.inner.register_forward_hook(
                watch(run.log, "always"), always_call=True
            )
            run.step(fail=False)
            run.step(fail=True)
            handle.remove()
            run.step(fail=True)

        self.check(scenario, make=Caught, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap", NOT_BLOCKS)
    def test_registered_before_compiling_and_error_caught(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.model.inner.register_forward_hook(
                watch(run.log, "always"), always_call=True
            )
            run.step(fail=True)
            run.step(fail=False)

        self.check(scenario, make=Caught, wrap=wrap, distinct=2)

    def test_error_of_forward_caught_around_compiled_inner_module(self) -> None:
        def scenario(run: Run) -> None:
            if run.compiled:
                run.model.inner.compile(backend="eager")
            run.model.inner.register_forward_hook(
                watch(run.log, "always"), always_call=True
            )
            run.step(fail=True)
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=Caught, distinct=2)

    def test_caught_and_raised_again(self) -> None:
        def scenario(run: Run) -> None:
            for name, module in run.model.named_modules():
                module.register_forward_hook(watch(run.log, name), always_call=True)
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=CaughtTwice, distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_hook_with_kwargs(self, make: Callable[[], nn.Module]) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                run.log.append(("always", dict(kwargs), output is None))

            run.model.inner.register_forward_hook(
                hook, always_call=True, with_kwargs=True
            )
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=make, distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_hook_sees_none_as_output(self, make: Callable[[], nn.Module]) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                run.log.append("none" if output is None else list(output.shape))

            run.model.inner.register_forward_hook(hook, always_call=True)
            run.step(fail=True)
            run.step(fail=False)

        self.check(scenario, make=make, distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_result_of_hook_does_not_replace_error(
        self, make: Callable[[], nn.Module]
    ) -> None:
        def scenario(run: Run) -> None:
            run.model.inner.register_forward_hook(
                lambda module, args, output: torch.zeros(3, 4), always_call=True
            )
            run.step(fail=True)
            run.step(fail=False)

        self.check(scenario, make=make, distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_result_of_one_hook_is_seen_by_the_next(
        self, make: Callable[[], nn.Module]
    ) -> None:
        def scenario(run: Run) -> None:
            def second(module: nn.Module, args: Any, output: Any) -> None:
                run.log.append(output.detach().clone())

            inner = run.model.inner
            inner.register_forward_hook(
                lambda module, args, output: torch.ones(2), always_call=True
            )
            inner.register_forward_hook(second, always_call=True)
            run.step(fail=True)

        self.check(scenario, make=make)

    @parametrize("make", (Caught, Uncaught))
    def test_one_of_several_hooks_raises_too(
        self, make: Callable[[], nn.Module]
    ) -> None:
        def scenario(run: Run) -> None:
            inner = run.model.inner
            inner.register_forward_hook(watch(run.log, "a"), always_call=True)
            inner.register_forward_hook(_raise(Stop("silenced")), always_call=True)
            inner.register_forward_hook(watch(run.log, "c"), always_call=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run.step(fail=True)
            texts = [str(w.message) for w in caught]
            run.log.append([text for text in texts if "always_call" in text])

        self.check(scenario, make=make)

    @parametrize("make", (Caught, Uncaught))
    def test_hook_before_it_raises(self, make: Callable[[], nn.Module]) -> None:
        def scenario(run: Run) -> None:
            inner = run.model.inner
            inner.register_forward_hook(watch(run.log, "a"), always_call=True)
            inner.register_forward_hook(_raise_new)
            inner.register_forward_hook(watch(run.log, "c"), always_call=True)
            inner.register_forward_hook(watch(run.log, "never"))
            run.step(fail=False)

        # Hook "a" has run before the error and must not run twice.
        self.check(scenario, make=make)

    @parametrize("make", (Caught, Uncaught))
    def test_pre_hook_raises(self, make: Callable[[], nn.Module]) -> None:
        def scenario(run: Run) -> None:
            inner = run.model.inner
            inner.register_forward_hook(watch(run.log, "always"), always_call=True)
            run.step(fail=False)
            handle = inner.register_forward_pre_hook(_raise_new)
            run.step(fail=False)
            handle.remove()
            run.step(fail=False)

        self.check(scenario, make=make, distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_always_call_hook_itself_raises(
        self, make: Callable[[], nn.Module]
    ) -> None:
        def scenario(run: Run) -> None:
            run.model.inner.register_forward_hook(_raise_new, always_call=True)
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=make)

    @parametrize("make", (Caught, Uncaught))
    def test_plain_hook_is_not_called(self, make: Callable[[], nn.Module]) -> None:
        def scenario(run: Run) -> None:
            run.model.inner.register_forward_hook(watch(run.log, "plain"))
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=make, distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_child_raises(self, make: Callable[[], nn.Module]) -> None:
        def scenario(run: Run) -> None:
            model = run.model
            for name, module in model.named_modules():
                module.register_forward_hook(watch(run.log, name), always_call=True)
            model.inner.lin.register_forward_hook(_raise_new)
            run.step(fail=False)

        self.check(scenario, make=make)

    @parametrize("backend", BACKENDS)
    @parametrize("make", (Caught, Uncaught))
    def test_global_hook(self, make: Callable[[], nn.Module], backend: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                run.log.append((type(module).__name__, output is None))

            run.step(fail=True)
            handle = register_global("forward", hook, always_call=True)
            run.step(fail=False)
            run.step(fail=True)
            handle.remove()
            run.step(fail=True)

        self.check(scenario, make=make, wrap="inplace", backend=backend, distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_global_hook_with_kwargs(self, make: Callable[[], nn.Module]) -> None:
        # Eager calls it without kwargs when an error is on its way: as eager.
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, *rest: Any) -> None:
                run.log.append((type(module).__name__, len(rest)))

            register_global("forward", hook, always_call=True, with_kwargs=True)
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=make, wrap="inplace", distinct=2)

    @parametrize("make", (Caught, Uncaught))
    def test_global_and_own_hook(self, make: Callable[[], nn.Module]) -> None:
        def scenario(run: Run) -> None:
            run.model.inner.register_forward_hook(
                watch(run.log, "own"), always_call=True
            )
            register_global("forward", watch(run.log, "global"), always_call=True)
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=make, wrap="inplace", distinct=2)

    def test_root_raises(self) -> None:
        def scenario(run: Run) -> None:
            run.step(fail=False)
            run.model.register_forward_hook(watch(run.log, "root"), always_call=True)
            run.step(fail=False)
            run.step(fail=True)

        for wrap in NOT_BLOCKS:
            self.check(scenario, make=Raising, wrap=wrap, distinct=2)

    def test_tensor_error_at_run_time_is_raised_as_in_eager(self) -> None:
        class Bad(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.linalg.inv(x @ x.T * 0.0)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bad = Bad()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.bad(x)

        def scenario(run: Run) -> None:
            run.model.bad.register_forward_hook(
                watch(run.log, "always"), always_call=True
            )
            run.step()

        self.check(scenario, make=Outer)

    def test_run_time_error_caught_in_compiled_code(self) -> None:
        class Bad(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.linalg.inv(x @ x.T * 0.0)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bad = Bad()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                try:
                    return self.bad(x)
                except RuntimeError:
                    return x * 2.0

        def scenario(run: Run) -> None:
            # Without the hook compiled code lets the error out: Dynamo's own limit.
            run.model.bad.register_forward_hook(
                watch(run.log, "always"), always_call=True
            )
            run.step()

        self.check(scenario, make=Outer)

    @parametrize("error", (KeyboardInterrupt, SystemExit))
    def test_base_exception_skips_hooks(self, error: type[BaseException]) -> None:
        class Bad(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                raise error

        def scenario(run: Run) -> None:
            run.model.register_forward_hook(watch(run.log, "always"), always_call=True)
            try:
                run.step()
            except BaseException as caught:
                run.log.append(type(caught).__name__)

        self.check(scenario, make=Bad)

    def test_shape_error_seen_while_tracing(self) -> None:
        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(5, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x)

        def scenario(run: Run) -> None:
            run.model.lin.register_forward_hook(
                watch(run.log, "always"), always_call=True
            )
            run.step()
            # Dynamo says TorchRuntimeError, with or without hooks: only the log counts.
            run.steps.clear()

        self.check(scenario, make=Outer)


instantiate_parametrized_tests(RaisingHookTests)
instantiate_parametrized_tests(AlwaysCallTests)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
