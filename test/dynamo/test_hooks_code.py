# Owner(s): ["module: dynamo"]
"""What is read from the code of a hook, before anything calls it.

The interpreter compiles the hooks of this file, so these tests hold for each version of
Python that they run on.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.nn_module_hooks.hook_code import (
    effects_of,
    HookEffects,
    ReturnsValue,
)
from torch._dynamo.nn_module_hooks.hook_values import Unclear
from torch._dynamo.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_recorders import OPAQUE, RECORDERS


KEPT: list[Any] = []
STATE: dict[str, int] = {}
COUNT = 0


def returns(module: Any, args: Any, out: Any) -> Any:
    return out * 2


def returns_sometimes(module: Any, args: Any, out: Any) -> Any:
    if out.shape[0] > 1:
        return out * 2
    return None


def returns_a_part(module: Any, args: Any, out: Any) -> Any:
    return out[0]


def returns_it_detached(module: Any, args: Any, out: Any) -> Any:
    return out.detach()


def returns_one_of_two(module: Any, args: Any, out: Any) -> Any:
    return args if len(args) > 1 else out


def returns_it_in_a_tuple(module: Any, args: Any, out: Any) -> Any:
    return (out,)


def returns_what_a_method_returns(module: Any, args: Any, out: Any) -> Any:
    return module.keep(out)


def edits_by_method(module: Any, args: Any, out: Any) -> None:
    out.mul_(2)


def edits_a_view(module: Any, args: Any, out: Any) -> None:
    row = out.detach()[0]
    row.zero_()


def edits_data(module: Any, args: Any, out: Any) -> None:
    out.data.add_(1)


def edits_by_item(module: Any, args: Any, out: Any) -> None:
    out[0] = 0


def edits_numpy(module: Any, args: Any, out: Any) -> None:
    array = out.detach().numpy()
    array[0] = 0


def edits_by_operator(module: Any, args: Any, out: Any) -> None:
    out += 1


def edits_in_a_loop(module: Any, args: Any, out: Any) -> None:
    for value in args:
        value.add_(1)


def edits_by_function(module: Any, args: Any, out: Any) -> None:
    torch.relu_(out)


def edits_by_out(module: Any, args: Any, out: Any) -> None:
    torch.add(out, 1, out=out)


def edits_in_a_helper(module: Any, args: Any, out: Any) -> None:
    edits_by_method(module, args, out)


def edits_in_a_callback(module: Any, args: Any, out: Any) -> None:
    KEPT.extend(map(lambda value: value.zero_(), [out]))


def edits_by_special_method(module: Any, args: Any, out: Any) -> None:
    out.__iadd__(1)


def edits_by_function_of_operator(module: Any, args: Any, out: Any) -> None:
    operator.setitem(out, 0, 1)


def edits_if_told(module: Any, args: Any, out: Any) -> None:
    nn.functional.relu(out, inplace=True)


class Editor:
    def __init__(self, value: Any) -> None:
        value.zero_()


def edits_in_a_constructor(module: Any, args: Any, out: Any) -> None:
    Editor(out)


class Property:
    @property
    def value(self) -> Any:
        return None

    @value.setter
    def value(self, value: Any) -> None:
        value.zero_()


PROPERTY = Property()


def edits_in_a_setter(module: Any, args: Any, out: Any) -> None:
    PROPERTY.value = out


def sets_by_special_method(module: Any, args: Any, out: Any) -> None:
    object.__setattr__(module, "scale", 2)


def edits_a_container(module: Any, args: Any, out: Any) -> None:
    out.append(1)


def registers(module: Any, args: Any, out: Any) -> None:
    out.register_hook(print)


def removes(module: Any, args: Any, out: Any) -> None:
    KEPT[0].remove()


def asks_for_grad(module: Any, args: Any, out: Any) -> None:
    out.requires_grad_()


def runs_backward(module: Any, args: Any, out: Any) -> None:
    out.sum().backward()


def calls_the_module(module: Any, args: Any, out: Any) -> None:
    KEPT.append(nn.Module.__call__(module, out))


def calls_a_module(module: Any, args: Any, out: Any) -> None:
    PROBE(out)


def switches_mode(module: Any, args: Any, out: Any) -> None:
    module.eval()


def renames(module: Any, args: Any, out: Any) -> None:
    module._parameters["other"] = module._parameters.pop("weight")


def draws(module: Any, args: Any, out: Any) -> None:
    KEPT.append(torch.rand(2))


def seeds(module: Any, args: Any, out: Any) -> None:
    torch.manual_seed(0)


def evaluates(module: Any, args: Any, out: Any) -> None:
    eval("KEPT.append(1)")


def calls_itself(module: Any, args: Any, out: Any) -> None:
    calls_itself(module, args, out)


def generates(module: Any, args: Any, out: Any) -> Any:
    yield out


async def waits(module: Any, args: Any, out: Any) -> None:
    KEPT.append(out)


PROBE = nn.Linear(2, 2)
UNCLEAR = [
    value
    for name, value in list(globals().items())
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]


def looks_at_nothing(module: Any, args: Any, out: Any) -> None:
    KEPT.append(type(module).__name__)


def looks_at_shape(module: Any, args: Any, out: Any) -> None:
    KEPT.append((out.shape, out.size(0), len(args)))


def keeps_detached(module: Any, args: Any, out: Any) -> None:
    KEPT.append(out.detach())


def keeps_detached_later(module: Any, args: Any, out: Any) -> None:
    value = out if isinstance(out, torch.Tensor) else out[0]
    value = value.detach()
    KEPT.append({"out": [value]})


def keeps_live(module: Any, args: Any, out: Any) -> None:
    KEPT.append(out)


def keeps_what_is_computed(module: Any, args: Any, out: Any) -> None:
    KEPT.append(out.mean() + args[0].sum())


def keeps_numbers(module: Any, args: Any, out: Any) -> None:
    KEPT.append(out.abs().mean().item())


def keeps_one_of_two(module: Any, args: Any, out: Any) -> None:
    value = out if KEPT else args[0].detach()
    KEPT.append(value)


def asks_whether_it_requires_grad(module: Any, args: Any, out: Any) -> None:
    KEPT.append(out.requires_grad)


def takes_all(module: Any, *given: Any) -> None:
    KEPT.append(given)


def catches(module: Any, args: Any, out: Any) -> None:
    try:
        KEPT.append(out.detach())
    except RuntimeError as error:
        KEPT.append(str(error))
    finally:
        KEPT.append("done")


def uses_a_comprehension(module: Any, args: Any, out: Any) -> None:
    KEPT.append([value.detach() for value in args])


def returns_its_output(module: Any, args: Any, out: Any) -> Any:
    KEPT.append(out.detach())
    return out


def returns_its_output_or_nothing(module: Any, args: Any, out: Any) -> Any:
    result = None
    if len(args) > 1:
        result = out
    return result


def returns_its_arguments(module: Any, args: Any, out: Any) -> Any:
    return args


def scales(module: Any, args: Any, out: Any) -> Any:
    return out * len(KEPT)


def appends(module: Any, args: Any, out: Any) -> Any:
    KEPT.append(1)
    return out * 2


def counts_in_a_global(module: Any, args: Any, out: Any) -> Any:
    global COUNT
    COUNT += 1
    return out * 2


def counts_in_a_dict(module: Any, args: Any, out: Any) -> Any:
    module.counts = getattr(module, "counts", {})
    STATE["calls"] = STATE.get("calls", 0) + 1
    return out * 2


def sets_a_flag(module: Any, args: Any, out: Any) -> Any:
    STATE["called"] = True
    module.called = True
    return out * 2


# Given, live, whether it computes.
GIVEN: list[tuple[Callable[..., Any], set[int], set[int], bool]] = [
    (looks_at_nothing, set(), set(), False),
    (looks_at_shape, {1, 2}, set(), False),
    (keeps_detached, {2}, set(), False),
    (keeps_detached_later, {2}, set(), False),
    (keeps_live, {2}, {2}, False),
    (keeps_what_is_computed, {1, 2}, {1, 2}, True),
    (keeps_numbers, {2}, set(), True),
    (keeps_one_of_two, {1, 2}, {1, 2}, False),
    (asks_whether_it_requires_grad, {2}, {2}, False),
    (takes_all, {1, 2}, {1, 2}, False),
    (catches, {2}, set(), False),
    (uses_a_comprehension, {1}, set(), False),
]


@dataclasses.dataclass
class Record:
    value: Any


class Owner:
    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.state = {"nested": [torch.zeros(2)]}
        self.calls = 0

    def method(self, module: Any, args: Any, out: Any) -> None:
        self.calls += 1
        self.kept.append(out.detach())

    def __call__(self, module: Any, args: Any, out: Any) -> None:
        self.state["nested"][0].add_(out.detach().sum())


class HookCodeTests(TestCase):
    def effects(self, hook: Callable[..., Any]) -> HookEffects:
        return effects_of(hook, nn.Linear(2, 2), 3)

    @parametrize("hook", UNCLEAR)
    def test_unclear(self, hook: Callable[..., Any]) -> None:
        with self.assertRaises(Unclear):
            self.effects(hook)

    @parametrize(
        "case",
        (
            (looks_at_nothing, 0),
            (returns_its_output, 2),
            (returns_its_output_or_nothing, 2),
            (returns_its_arguments, 1),
        ),
    )
    def test_which_argument_is_returned(self, case: Any) -> None:
        hook, returned = case
        self.assertEqual(self.effects(hook).returns, returned)

    @parametrize(
        "case",
        (
            (returns, False),
            (scales, False),
            (sets_a_flag, False),
            (appends, True),
            (counts_in_a_global, True),
            (counts_in_a_dict, True),
        ),
    )
    def test_whether_it_changes_what_it_reads(self, case: Any) -> None:
        hook, is_restless = case
        with self.assertRaises(ReturnsValue) as caught:
            self.effects(hook)
        self.assertEqual(bool(caught.exception.effects.restless), is_restless)

    @parametrize("case", GIVEN)
    def test_what_is_looked_at(self, case: Any) -> None:
        hook, given, live, computes = case
        effects = self.effects(hook)
        self.assertEqual(effects.live, live)
        self.assertEqual(effects.computes, computes)
        # len(args) does not look into it, but needs it.
        self.assertEqual(effects.given, given)

    @parametrize("name", {**RECORDERS, **OPAQUE})
    def test_recorders_are_clear(self, name: str) -> None:
        hook = {**RECORDERS, **OPAQUE}[name]([])
        self.assertFalse(self.effects(hook).reads_clock)

    def test_own_state(self) -> None:
        owner = Owner()
        effects = self.effects(owner.method)
        self.assertEqual(effects.writes, set())  # nobody finds them by name
        self.assertTrue(any(obj is owner for obj in effects.touched))
        self.assertTrue(any(obj is owner.kept for obj in effects.touched))
        self.assertFalse(any(obj is owner.state for obj in effects.touched))

    def test_tensors_that_are_edited(self) -> None:
        owner = Owner()
        effects = self.effects(owner)
        self.assertTrue(effects.edits_tensors)
        tensor = owner.state["nested"][0]
        self.assertTrue(any(obj is tensor for obj in effects.touched))
        self.assertEqual((effects.given, effects.live), ({2}, set()))

    def test_parameters_that_are_edited(self) -> None:
        module = nn.Linear(2, 2)

        def hook(module: Any, args: Any, out: Any) -> None:
            for parameter in module.parameters():
                parameter.data.clamp_(-1, 1)

        effects = effects_of(hook, module, 3)
        self.assertTrue(effects.edits_tensors)
        self.assertTrue(any(obj is module.weight for obj in effects.touched))

    @parametrize(
        "case",
        (
            (keeps_live, True),
            (keeps_detached, True),
            (keeps_detached_later, True),
            (keeps_numbers, False),
            (keeps_what_is_computed, False),
            (takes_all, True),
        ),
    )
    def test_whether_it_keeps_memory(self, case: Any) -> None:
        hook, shares = case
        self.assertEqual(self.effects(hook).shares, shares)

    def test_attributes_of_a_module(self) -> None:
        def hook(module: Any, args: Any, out: Any) -> None:
            module.calls = module.calls + 1
            Record(out.detach())

        effects = self.effects(hook)
        self.assertEqual(effects.writes, {"calls"})
        self.assertEqual((effects.given, effects.live), ({2}, set()))

    def test_globals(self) -> None:
        def hook(module: Any, args: Any, out: Any) -> None:
            global COUNT
            COUNT += 1

        effects = self.effects(hook)
        self.assertIn("COUNT", effects.reads & effects.writes)

    def test_variables_of_functions_around(self) -> None:
        calls = 0

        def hook(module: Any, args: Any, out: Any) -> None:
            nonlocal calls
            calls += 1

        self.assertIn("calls", self.effects(hook).writes)

    def test_partial(self) -> None:
        names: Any = collections.deque(maxlen=2)

        def hook(name: str, module: Any, args: Any, out: Any, *, to: Any) -> None:
            to.append((name, out.detach()))

        effects = self.effects(functools.partial(hook, "a", to=names))
        self.assertTrue(any(obj is names for obj in effects.touched))

    @parametrize("clock", (time.time, time.perf_counter, torch.cuda.memory_allocated))
    def test_clocks(self, clock: Callable[[], float]) -> None:
        def hook(module: Any, args: Any, out: Any) -> None:
            KEPT.append(clock())

        self.assertTrue(self.effects(hook).reads_clock)

    def test_hook_that_always_raises(self) -> None:
        def hook(module: Any, args: Any, out: Any) -> None:
            raise ValueError(f"{out.shape}")

        self.assertEqual(self.effects(hook).given, {2})


instantiate_parametrized_tests(HookCodeTests)


if __name__ == "__main__":
    run_tests()
