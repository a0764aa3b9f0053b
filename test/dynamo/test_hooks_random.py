# Owner(s): ["module: dynamo"]
"""Random hook programs: compiled must equal eager in everything a user can see.

Seeded programs come from ``random_hook_programs``; a failure names the seed, prints the
program and says how to replay it. A hypothesis state machine applies each operation
to an eager model and to a compiled twin and compares them after every call.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch._dynamo
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    consumes,
    initialize,
    multiple,
    rule,
    RuleBasedStateMachine,
    run_state_machine_as_test,
)
from torch._dynamo.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import random_hook_programs as programs
from hook_programs import BACKENDS, start, WRAPS


SLICE = 25
QUICK_SLICES = range(3)
SLOW_SLICES = range(3, 5)
LONG_SLICES = range(5, 12)


class RandomHookProgramTests(TestCase):
    """300 seeded programs with hooks on modules, 300 with global hooks as well."""

    def check_slice(self, index: int, with_globals: bool) -> None:
        """Play ``SLICE`` programs and report all that differ from eager."""
        failures = []
        steps = eager_steps = graphs = breaks = 0
        for seed in range(index * SLICE, (index + 1) * SLICE):
            ops = programs.program(seed, with_globals)
            options = programs.setting(seed, with_globals)
            result = programs.outcome(ops, **options)
            steps += result.steps
            eager_steps += result.eager_steps
            graphs += result.graphs
            breaks += result.graph_breaks
            if result.differences:
                hint = programs.replay_hint(options, seed, globals=with_globals)
                lines = "\n  ".join(result.differences)
                failures.append(
                    f"seed {seed} {options}:\n  {lines}\n{programs.show(ops)}\n{hint}"
                )
        summary = (
            f"{SLICE - len(failures)} of {SLICE} programs equal; {steps} steps,"
            f" {eager_steps} without a graph; {graphs} graphs, {breaks} graph breaks"
        )
        print(f"slice {index}, globals {with_globals}: {summary}")
        self.assertFalse(failures, "\n\n".join([summary, *failures]))
        # Equal because nothing was compiled would prove nothing. A few steps have a
        # reason: a legacy backward hook on all that is called keeps it eager.
        self.assertLessEqual(eager_steps, steps // 10, summary)

    @parametrize("index", QUICK_SLICES)
    def test_module_hooks(self, index: int) -> None:
        self.check_slice(index, with_globals=False)

    @parametrize("index", QUICK_SLICES)
    def test_global_hooks(self, index: int) -> None:
        self.check_slice(index, with_globals=True)

    def test_the_programs_can_fail(self) -> None:
        """Where nothing guards on hooks, many of the same programs differ."""
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
            results = [
                programs.outcome(programs.program(seed), **programs.setting(seed))
                for seed in range(10)
            ]
        different = sum(bool(result.differences) for result in results)
        self.assertGreaterEqual(different, 2)

    @pytest.mark.slow
    @parametrize("index", SLOW_SLICES)
    def test_more_module_hooks(self, index: int) -> None:
        self.check_slice(index, with_globals=False)

    @pytest.mark.slow
    @parametrize("index", SLOW_SLICES)
    def test_more_global_hooks(self, index: int) -> None:
        self.check_slice(index, with_globals=True)

    @pytest.mark.long
    @parametrize("index", LONG_SLICES)
    def test_all_module_hooks(self, index: int) -> None:
        self.check_slice(index, with_globals=False)

    @pytest.mark.long
    @parametrize("index", LONG_SLICES)
    def test_all_global_hooks(self, index: int) -> None:
        self.check_slice(index, with_globals=True)


# What hypothesis shrinks towards comes first.
PATHS = st.sampled_from(("blocks.0", "blocks.0.lin", "head", "mix", ""))
SUBMODULES = st.sampled_from(("blocks.0", "blocks.0.lin", "head", "mix"))
KINDS = st.sampled_from(("forward", "forward_pre", "full_backward", "backward_pre"))
SORTS = st.sampled_from(tuple(programs.BODIES))
AMOUNTS = st.sampled_from(programs.AMOUNTS)
INDICES = st.integers(0, 1)


class HookMachine(RuleBasedStateMachine):
    """An eager model and its compiled twin, to which every rule is applied."""

    labels = Bundle("labels")

    @initialize(wrap=st.sampled_from(WRAPS), backend=st.sampled_from(BACKENDS))
    def compile(self, wrap: str, backend: str) -> None:
        torch._dynamo.reset()
        self.options: dict[str, Any] = {"wrap": wrap, "backend": backend}
        self.ops: programs.Program = []
        self.runs = [
            start(compiled=compiled, make=programs.TwoBlocks, **self.options)
            for compiled in (False, True)
        ]
        self.players = [programs.Player(run) for run in self.runs]
        self.failed = False

    def apply(self, *op: Any) -> None:
        self.ops.append(op)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for player in self.players:
                player.apply(op)

    @rule(
        target=labels,
        path=PATHS,
        kind=KINDS,
        sort=SORTS,
        amount=AMOUNTS,
        prepend=st.booleans(),
        with_kwargs=st.booleans(),
        always_call=st.booleans(),
    )
    def register(
        self, path: str, kind: str, sort: str, amount: float, **flags: bool
    ) -> str:
        allowed = {"forward": 3, "forward_pre": 2}.get(kind, 1)
        chosen = tuple([name for name in list(flags)[:allowed] if flags[name]])
        label = f"h{len(self.ops)}"
        self.apply("hook", label, path, kind, sort, amount, chosen)
        return label

    @rule(target=labels, path=SUBMODULES, kind=KINDS, sort=SORTS, amount=AMOUNTS)
    def replace_module(self, path: str, kind: str, sort: str, amount: float) -> str:
        label = f"h{len(self.ops)}"
        self.apply("swap", label, path, kind, sort, amount)
        return label

    @rule(label=consumes(labels))
    def remove(self, label: str) -> None:
        self.apply("remove", label)

    @rule(label=labels, path=PATHS)
    def register_again(self, label: str, path: str) -> None:
        self.apply("rehook", label, path)

    @rule(label=labels, value=AMOUNTS)
    def change_number(self, label: str, value: float) -> None:
        self.apply("set", label, value)

    @rule(path=PATHS, kind=KINDS)
    def clear(self, path: str, kind: str) -> None:
        self.apply("clear", path, kind)

    @rule(path=PATHS, kind=KINDS, index=INDICES, last=st.booleans())
    def reorder(self, path: str, kind: str, index: int, last: bool) -> None:
        self.apply("move", path, kind, index, last)

    @rule(
        target=labels, path=PATHS, kind=KINDS, sort=SORTS, amount=AMOUNTS, index=INDICES
    )
    def replace_entry(
        self, path: str, kind: str, sort: str, amount: float, index: int
    ) -> Any:
        if not self.players[0].hooks(path, kind):
            return multiple()
        label = f"h{len(self.ops)}"
        self.apply("entry", label, path, kind, sort, amount, index)
        return label

    @rule(
        path=PATHS,
        kind=KINDS,
        order=st.sampled_from(("copy", "reversed", "tail")),
        through=st.sampled_from(("attribute", "__dict__")),
    )
    def reassign(self, path: str, kind: str, order: str, through: str) -> None:
        self.apply("reassign", path, kind, order, through)

    @rule(
        path=PATHS,
        mark=st.sampled_from(
            ("forward:with_kwargs", "forward:always_called", "forward_pre:with_kwargs")
        ),
        old=INDICES,
        new=INDICES,
    )
    def move_mark(self, path: str, mark: str, old: int, new: int) -> None:
        self.apply("mark", path, mark, old, new)

    @rule(path=SUBMODULES)
    def deepcopy(self, path: str) -> None:
        self.apply("copy", path)

    @rule(mode=st.booleans())
    def train(self, mode: bool) -> None:
        self.apply("train", mode)

    @rule(catch=st.booleans())
    def catch_errors(self, catch: bool) -> None:
        self.apply("catch", catch)

    @rule(mode=st.sampled_from(tuple(programs.MODES)))
    def call(self, mode: str) -> None:
        self.apply("step", mode)
        self.failed = True
        differences = programs.compare(*self.runs)
        assert not differences, "\n".join(
            [
                *differences,
                programs.show(self.ops),
                programs.replay_hint(self.options),
            ]
        )
        self.failed = False

    @rule()
    def train_once(self) -> None:
        """The commonest call, as a rule of its own so that it is common here too."""
        self.call("train")

    def teardown(self) -> None:
        """Whatever came last is compared as well."""
        if hasattr(self, "runs") and not self.failed:
            self.call("train")


class HookMachineTests(TestCase):
    def test_eager_and_compiled_twins_agree(self) -> None:
        profile = settings(
            max_examples=40,
            stateful_step_count=10,
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            # Not "explain": it runs what fails under sys.settrace, and proves nothing.
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        with programs.limits():
            run_state_machine_as_test(HookMachine, settings=profile)


instantiate_parametrized_tests(RandomHookProgramTests)


if __name__ == "__main__":
    run_tests()
