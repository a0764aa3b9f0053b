# Owner(s): ["module: dynamo"]
"""What a hook is made of: objects, partials, methods, closures, globals.

The hook dict stays as it was here; what changes between calls is the hook itself,
or what it reads.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    subtest,
)

from hook_kinds import (
    edit,
    FORWARD_KINDS,
    FULL_BACKWARD_KINDS,
    hook_dict,
    KINDS,
    mapped,
    on_change,
    register,
)
from hook_programs import BACKENDS, HookTestCase, Run


FACTOR: Any = 2.0
FACTORS: list[float] = [2.0]


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2.0


CHANGE: Callable[[torch.Tensor], torch.Tensor] = _double


def _editable(kind: str, values: tuple[Any, ...]) -> Any:
    """Of a hook's arguments after the module, the one its result replaces."""
    return values[1] if kind == "forward" else values[0]


class Scale:
    """A hook object of any kind that multiplies by its attribute ``by``."""

    def __init__(self, kind: str, by: Any = 2.0) -> None:
        self.kind = kind
        self.by = by

    def __call__(self, module: nn.Module, *values: Any) -> Any:
        return mapped(_editable(self.kind, values), lambda t: t * self.by)

    def method(self, module: nn.Module, *values: Any) -> Any:
        return self(module, *values)


class ScaleByTotal(Scale):
    """Multiplies by the sum of a list that it holds."""

    def __call__(self, module: nn.Module, *values: Any) -> Any:
        return mapped(_editable(self.kind, values), lambda t: t * sum(self.by))


class ScaleBySetting(Scale):
    """Multiplies by an attribute of an object that it holds."""

    def __call__(self, module: nn.Module, *values: Any) -> Any:
        return mapped(_editable(self.kind, values), lambda t: t * self.by.value)


class ScaleByEntry(Scale):
    """Multiplies by an entry of a dict that it holds."""

    def __call__(self, module: nn.Module, *values: Any) -> Any:
        return mapped(_editable(self.kind, values), lambda t: t * self.by["value"])


class Slotted:
    """A forward hook object without ``__dict__``."""

    __slots__ = ("by",)

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output * self.by


class ScaleModule(nn.Module):
    """A hook that is itself a module with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output * self.factor


class HookObjectTests(HookTestCase):
    """Callable objects whose attributes change between calls."""

    @parametrize("backend", BACKENDS)
    @parametrize("kind", KINDS)
    def test_float_attribute_changes(self, kind: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            hook = Scale(kind)
            register(run.model.blocks[1].lin, kind, hook)
            for by in (2.0, 3.0, 2.0, 0.5):
                hook.by = by
                run.step()

        self.check(scenario, backend=backend, distinct=3)

    @parametrize("kind", KINDS)
    def test_tensor_attribute_replaced_and_edited(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = Scale(kind, torch.tensor(2.0))
            register(run.model.blocks[1].act, kind, hook)
            run.step()
            hook.by = torch.tensor(3.0)
            run.step()
            hook.by.mul_(2.0)
            run.step()

        self.check(scenario, distinct=3)

    @parametrize("kind", KINDS)
    def test_list_attribute_edited_and_replaced(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = ScaleByTotal(kind, [2.0])
            register(run.model.blocks[1].act, kind, hook)
            run.step()
            hook.by.append(1.0)
            run.step()
            hook.by[0] = 5.0
            run.step()
            hook.by = [7.0]
            run.step()

        self.check(scenario, distinct=4)

    @parametrize("kind", KINDS)
    def test_attribute_of_nested_object_changes(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = ScaleBySetting(kind, types.SimpleNamespace(value=2.0))
            register(run.model.blocks[1].act, kind, hook)
            run.step()
            hook.by.value = 3.0
            run.step()
            hook.by = types.SimpleNamespace(value=4.0)
            run.step()

        self.check(scenario, distinct=3)

    @parametrize("kind", KINDS)
    def test_dict_attribute_entry_changes(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = ScaleByEntry(kind, {"value": 2.0})
            register(run.model.blocks[1].act, kind, hook)
            run.step()
            hook.by["value"] = 3.0
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FORWARD_KINDS + FULL_BACKWARD_KINDS)
    def test_attribute_changes_type_from_float_to_tensor(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = Scale(kind, 2.0)
            register(run.model.blocks[1].act, kind, hook)
            run.step()
            hook.by = torch.tensor([1.0, 2.0, 3.0, 4.0])
            run.step()
            hook.by = 3
            run.step()

        self.check(scenario, distinct=3)

    def test_attribute_of_slotted_object_changes(self) -> None:
        def scenario(run: Run) -> None:
            hook = Slotted(2.0)
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.by = 3.0
            run.step()

        self.check(scenario, distinct=2)

    def test_class_attribute_changes(self) -> None:
        class ByClass:
            by = 2.0

            def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
                return output * self.by

        def scenario(run: Run) -> None:
            ByClass.by = 2.0
            run.model.blocks[1].register_forward_hook(ByClass())
            run.step()
            ByClass.by = 3.0
            run.step()

        self.check(scenario, distinct=2)

    def test_call_method_of_class_replaced(self) -> None:
        class Changing:
            def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
                return output * 2.0

        original = Changing.__call__

        def scenario(run: Run) -> None:
            Changing.__call__ = original  # type: ignore[method-assign]
            run.model.blocks[1].register_forward_hook(Changing())
            run.step()
            Changing.__call__ = lambda self, m, a, out: out * 5.0  # type: ignore
            run.step()

        self.check(scenario, distinct=2)

    def test_class_of_hook_object_changes(self) -> None:
        def scenario(run: Run) -> None:
            hook: Any = ScaleByTotal("forward", [2.0])
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.__class__ = ScaleByEntry
            hook.by = {"value": 9.0}
            run.step()

        self.check(scenario, distinct=2)

    def test_property_of_hook_object(self) -> None:
        class Derived:
            half = 1.0

            @property
            def by(self) -> float:
                return self.half * 2.0

            def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
                return output * self.by

        def scenario(run: Run) -> None:
            hook = Derived()
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.half = 3.0
            run.step()

        self.check(scenario, distinct=2)

    def test_attribute_appears_that_hook_looks_for(self) -> None:
        class Optional:
            def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
                return output * getattr(self, "by", 1.0)

        def scenario(run: Run) -> None:
            hook = Optional()
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.by = 3.0  # type: ignore[attr-defined]
            run.step()
            del hook.by  # type: ignore[attr-defined]
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_that_is_a_module_with_parameters(self) -> None:
        def scenario(run: Run) -> None:
            hook = ScaleModule()
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            with torch.no_grad():
                hook.factor.mul_(2.0)
            run.step()
            grad = hook.factor.grad
            run.log.append(None if grad is None else grad.tolist())

        self.check(scenario, distinct=2)

    def test_hook_object_counts_its_calls_and_acts_on_the_third(self) -> None:
        class Third:
            count = 0

            def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
                self.count += 1
                return output * 2.0 if self.count == 3 else None

        def scenario(run: Run) -> None:
            hook = Third()
            run.model.blocks[1].register_forward_hook(hook)
            for _ in range(5):
                run.step()
            run.log.append(hook.count)

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_hook_object_replaced_by_equal_class(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            handle = register(run.model.blocks[1].act, kind, Scale(kind, 2.0))
            run.step()
            hook_dict(run.model.blocks[1].act, kind)[handle.id] = Scale(kind, 3.0)
            run.step()
            handle.remove()
            register(run.model.blocks[1].act, kind, Scale(kind, 4.0))
            run.step()

        self.check(scenario, distinct=3)


def _scale_by(kind: str, by: Any, module: nn.Module, *values: Any) -> Any:
    return mapped(_editable(kind, values), lambda t: t * by)


def _scale_by_keyword(kind: str, module: nn.Module, *values: Any, by: Any) -> Any:
    return mapped(_editable(kind, values), lambda t: t * by)


class PartialAndMethodTests(HookTestCase):
    """``functools.partial``, bound methods, lambdas and other callables."""

    @parametrize("backend", BACKENDS)
    @parametrize("kind", FORWARD_KINDS + FULL_BACKWARD_KINDS)
    def test_partial_replaced_by_one_with_other_argument(
        self, kind: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handle = register(block, kind, functools.partial(_scale_by, kind, 2.0))
            run.step()
            new = functools.partial(_scale_by, kind, 3.0)
            hook_dict(block, kind)[handle.id] = new
            run.step()
            handle.remove()
            register(block, kind, functools.partial(_scale_by, kind, 4.0))
            run.step()

        self.check(scenario, backend=backend, distinct=3)

    @parametrize("kind", KINDS)
    def test_partial_with_other_keyword(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            act = run.model.blocks[1].act
            for by in (2.0, 3.0, 2.0):
                hook = functools.partial(_scale_by_keyword, kind, by=by)
                handle = register(act, kind, hook)
                run.step()
                handle.remove()

        self.check(scenario, distinct=2)

    def test_keywords_of_partial_edited_in_place(self) -> None:
        def scenario(run: Run) -> None:
            hook = functools.partial(_scale_by_keyword, "forward", by=2.0)
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.keywords["by"] = 3.0
            run.step()

        self.check(scenario, distinct=2)

    def test_list_argument_of_partial_edited_in_place(self) -> None:
        def hook(factors: list[float], module: nn.Module, args: Any, out: Any) -> Any:
            return out * factors[-1]

        def scenario(run: Run) -> None:
            factors = [2.0]
            partial = functools.partial(hook, factors)
            run.model.blocks[1].register_forward_hook(partial)
            run.step()
            factors.append(3.0)
            run.step()

        self.check(scenario, distinct=2)

    def test_tensor_argument_of_partial(self) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            for by in (torch.tensor(2.0), torch.tensor(3.0)):
                hook = functools.partial(_scale_by, "forward", by)
                with block.register_forward_hook(hook):
                    run.step()

        self.check(scenario, distinct=2)

    def test_state_of_partial_replaced(self) -> None:
        def scenario(run: Run) -> None:
            hook: Any = functools.partial(_scale_by, "forward", 2.0)
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.__setstate__((_scale_by, ("forward", 3.0), {}, {}))
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("backend", BACKENDS)
    @parametrize("kind", FORWARD_KINDS + FULL_BACKWARD_KINDS)
    def test_bound_method_of_object_whose_attribute_changes(
        self, kind: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            owner = Scale(kind, 2.0)
            register(run.model.blocks[1], kind, owner.method)
            run.step()
            owner.by = 3.0
            run.step()

        self.check(scenario, backend=backend, distinct=2)

    @parametrize("kind", KINDS)
    def test_bound_method_of_another_object(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            act = run.model.blocks[1].act
            for by in (2.0, 3.0, 2.0):
                handle = register(act, kind, Scale(kind, by).method)
                run.step()
                handle.remove()

        self.check(scenario, distinct=2)

    def test_bound_method_of_hooked_module_itself(self) -> None:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)
                self.by = 2.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x)

            def hook(self, module: nn.Module, args: Any, output: Any) -> Any:
                return output * self.by

        def scenario(run: Run) -> None:
            run.step()
            run.model.register_forward_hook(run.model.hook)
            run.model.lin.register_forward_hook(run.model.hook)
            run.step()
            run.model.by = 3.0
            run.step()

        self.check(scenario, make=Own, distinct=3)

    def test_static_method_and_class_method(self) -> None:
        class Owner:
            by = 2.0

            @staticmethod
            def static(module: nn.Module, args: Any, output: Any) -> Any:
                return output * 3.0

            @classmethod
            def of_class(cls, module: nn.Module, args: Any, output: Any) -> Any:
                return output * cls.by

        def scenario(run: Run) -> None:
            Owner.by = 2.0
            run.step()
            run.model.blocks[0].register_forward_hook(Owner.static)
            run.step()
            run.model.blocks[1].register_forward_hook(Owner.of_class)
            run.step()
            Owner.by = 4.0
            run.step()

        self.check(scenario, distinct=4)

    @parametrize(
        "hook",
        (
            subtest((lambda m, a, out: out * 2.0,), name="lambda"),
            subtest((lambda m, a, out, by=3.0: out * by,), name="lambda_default"),
            subtest((lambda *values: values[-1] * 2.0,), name="star_args"),
            subtest((functools.lru_cache(lambda m, a, out: None),), name="lru_cache"),
            subtest(
                (functools.wraps(_double)(lambda m, a, out: out * 2.0),), name="wraps"
            ),
            subtest(
                (torch.compiler.disable(lambda m, a, out: out * 2.0),), name="disabled"
            ),
        ),
    )
    def test_callable(self, hook: Callable[..., Any]) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.blocks[1].register_forward_hook(hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario)

    def test_builtin_as_hook(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.blocks[1].register_forward_hook(max)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario)

    def test_hook_with_wrong_signature(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.blocks[1].register_forward_hook(lambda m, a: None)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, distinct=2)

    def test_deque_append_as_part_of_hook(self) -> None:
        def scenario(run: Run) -> None:
            seen: collections.deque[Any] = collections.deque(maxlen=2)
            run.step()
            run.model.blocks[1].register_forward_hook(lambda *v: seen.append(len(v)))
            for _ in range(3):
                run.step()
            run.log.extend(seen)

        self.check(scenario, distinct=1)

    def test_hook_with_changed_defaults(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: Any, by: float = 2.0) -> Any:
                return output * by

            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.__defaults__ = (3.0,)
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_with_changed_keyword_defaults(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: Any, args: Any, output: Any, *, by: float = 2.0) -> Any:
                return output * by

            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.__kwdefaults__ = {"by": 3.0}
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_with_changed_code(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                return output * 2.0

            def other(module: nn.Module, args: Any, output: Any) -> Any:
                return output * 3.0

            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.__code__ = other.__code__
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_reads_attribute_of_itself(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                return output * hook.by  # type: ignore[attr-defined]

            hook.by = 2.0  # type: ignore[attr-defined]
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.by = 3.0  # type: ignore[attr-defined]
            run.step()

        self.check(scenario, distinct=2)


class ClosureAndGlobalTests(HookTestCase):
    """Closure cells and module globals that a hook reads."""

    @parametrize("backend", BACKENDS)
    @parametrize("kind", FORWARD_KINDS + FULL_BACKWARD_KINDS)
    def test_closure_cell_changes(self, kind: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            by = 2.0
            register(run.model.blocks[1], kind, on_change(kind, lambda t: t * by))
            for by in (2.0, 3.0, 2.0):  # noqa: B007  the hook reads it
                run.step()

        self.check(scenario, backend=backend, distinct=2)

    @parametrize("kind", KINDS)
    def test_closure_list_edited(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            by = [2.0]
            act = run.model.blocks[1].act
            register(act, kind, on_change(kind, lambda t: t * by[-1]))
            run.step()
            by.append(3.0)
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_closure_tensor_replaced(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            by = torch.tensor(2.0)
            act = run.model.blocks[1].act
            register(act, kind, on_change(kind, lambda t: t * by))
            run.step()
            by = torch.tensor(3.0)
            run.step()

        self.check(scenario, distinct=2)

    def test_cell_contents_assigned(self) -> None:
        def make_hook(by: float) -> Callable[..., Any]:
            return lambda module, args, output: output * by

        def scenario(run: Run) -> None:
            hook = make_hook(2.0)
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            hook.__closure__[0].cell_contents = 3.0  # type: ignore[index]
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_writes_its_own_cell(self) -> None:
        def scenario(run: Run) -> None:
            by = 1.0

            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                nonlocal by
                by = by * 2.0
                return output * by

            run.model.blocks[1].register_forward_hook(hook)
            for _ in range(3):
                run.step()
            run.log.append(by)

        self.check(scenario, distinct=3)

    def test_two_closures_over_one_cell(self) -> None:
        def scenario(run: Run) -> None:
            seen = None

            def save(module: nn.Module, args: Any, output: Any) -> None:
                nonlocal seen
                seen = output

            def add(module: nn.Module, args: Any, output: Any) -> Any:
                return output + seen

            run.step()
            run.model.blocks[0].register_forward_hook(save)
            run.model.blocks[2].register_forward_hook(add)
            run.step()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("backend", BACKENDS)
    @parametrize("kind", FORWARD_KINDS + FULL_BACKWARD_KINDS)
    def test_global_variable_changes(self, kind: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            global FACTOR
            register(run.model.blocks[1], kind, on_change(kind, lambda t: t * FACTOR))
            for FACTOR in (2.0, 3.0, torch.tensor(4.0)):  # noqa: B007  the hook reads it
                run.step()
            FACTOR = 2.0
            run.step()

        self.check(scenario, backend=backend, distinct=3)

    @parametrize("kind", KINDS)
    def test_global_list_edited(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            act = run.model.blocks[1].act
            register(act, kind, on_change(kind, lambda t: t * sum(FACTORS)))
            FACTORS[:] = [2.0]
            run.step()
            FACTORS.append(3.0)
            run.step()

        self.check(scenario, distinct=2)

    def test_global_function_replaced(self) -> None:
        def scenario(run: Run) -> None:
            global CHANGE
            CHANGE = _double
            run.model.blocks[1].register_forward_hook(lambda m, a, out: CHANGE(out))
            run.step()
            CHANGE = torch.sin
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_writes_global(self) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            global FACTOR
            FACTOR = FACTOR + 1.0
            return output * FACTOR

        def scenario(run: Run) -> None:
            global FACTOR
            FACTOR = 1.0
            run.model.blocks[1].register_forward_hook(hook)
            for _ in range(3):
                run.step()
            run.log.append(FACTOR)

        self.check(scenario, distinct=3)

    def test_hook_reads_config_of_another_module(self) -> None:
        def scenario(run: Run) -> None:
            other = nn.Dropout(0.5)
            run.model.blocks[1].register_forward_hook(
                lambda m, a, out: out * other.p if other.training else out
            )
            run.step()
            other.p = 0.25
            run.step()
            other.eval()
            run.step()

        self.check(scenario, distinct=3)


class SharedHookTests(HookTestCase):
    """One hook object on several modules."""

    @parametrize("backend", BACKENDS)
    @parametrize("kind", FORWARD_KINDS + FULL_BACKWARD_KINDS)
    def test_hook_shared_by_many_modules(self, kind: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            hook = edit(kind, 1.5, 0.1)
            run.step()
            handles = [register(m, kind, hook) for m in run.model.modules()]
            run.step()
            for handle in handles[::2]:
                handle.remove()
            run.step()
            for handle in handles[1::2]:
                handle.remove()
            run.step()

        self.check(scenario, backend=backend, distinct=3)

    def test_shared_hook_object_changes(self) -> None:
        def scenario(run: Run) -> None:
            hook = Scale("forward", 2.0)
            for block in run.model.blocks:
                block.register_forward_hook(hook)
            run.step()
            hook.by = 3.0
            run.step()

        self.check(scenario, distinct=2)

    def test_shared_hook_acts_by_name_of_module(self) -> None:
        def scenario(run: Run) -> None:
            names = {module: name for name, module in run.model.named_modules()}
            chosen = "blocks.0"

            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                return output * 2.0 if names[module] == chosen else None

            for block in run.model.blocks:
                block.register_forward_hook(hook)
            run.step()
            chosen = "blocks.1"
            run.step()
            chosen = "blocks.2"
            run.step()

        self.check(scenario, distinct=3)

    def test_shared_hook_reads_attribute_of_module(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                return output * module.gain

            for gain, block in enumerate(run.model.blocks, start=1):
                block.gain = float(gain)
                block.register_forward_hook(hook)
            run.step()
            run.model.blocks[0].gain = 7.0
            run.step()

        self.check(scenario, distinct=2)

    def test_shared_activation_store(self) -> None:
        def scenario(run: Run) -> None:
            store: dict[str, torch.Tensor] = {}

            def keep(name: str) -> Callable[..., None]:
                def hook(module: nn.Module, args: Any, output: Any) -> None:
                    store[name] = output.detach()

                return hook

            run.step()
            handles = [
                block.register_forward_hook(keep(f"block{i}"))
                for i, block in enumerate(run.model.blocks)
            ]
            run.step()
            run.log.append({name: value.clone() for name, value in store.items()})
            handles.pop(0).remove()
            store.clear()
            run.step()
            run.log.append({name: value.clone() for name, value in store.items()})

        self.check(scenario, distinct=1)


instantiate_parametrized_tests(HookObjectTests)
instantiate_parametrized_tests(PartialAndMethodTests)
instantiate_parametrized_tests(ClosureAndGlobalTests)
instantiate_parametrized_tests(SharedHookTests)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
