# Owner(s): ["module: dynamo"]
"""Run one hook program eagerly and compiled, and compare everything it did.

A *scenario* is a function of a ``Run``: it registers, removes and edits hooks on
``run.model`` and calls ``run.step()``. ``HookTestCase.check`` plays it twice and
compares outputs, gradients, hook log, exceptions and the number of graphs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.test_case
import torch._dynamo.testing
from torch import nn
from torch.nn.modules import module as nn_module
from torch.testing._internal.common_utils import slowTest


WRAPS = ("call", "inplace", "function", "blocks")
BACKENDS = ("eager", "aot_eager")
GLOBAL_HOOK_DICTS = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


class Block(nn.Module):
    """A block with a hookable child and a keyword argument; shapes are kept.

    Args:
        width: size of the last dimension of input and output, ``(N, width)``.
    """

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.act(self.lin(x)) * scale


class Net(nn.Module):
    """Three identical blocks and a head, ``(N, 4) -> (N, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


class Raising(nn.Module):
    """Raises ``ValueError`` when told to, after its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        x = self.lin(x)
        if fail:
            raise ValueError("told to fail")
        return x


class Caught(nn.Module):
    """Catches what its inner module raises, inside the compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Raising()
        self.after = Block()

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        try:
            x = self.inner(x, fail=fail)
        except ValueError:
            x = x * 2.0 + 1.0
        return self.after(x)


@contextlib.contextmanager
def no_global_hooks() -> Iterator[None]:
    """Restore the global hook registries of ``torch.nn`` on entry and on exit."""

    def clear() -> None:
        for name in GLOBAL_HOOK_DICTS:
            getattr(nn_module, name).clear()
        nn_module._global_is_full_backward_hook = None

    clear()
    try:
        yield
    finally:
        clear()


def same(left: Any, right: Any) -> bool:
    """Whether two recorded values agree (tensors to 1e-5, all else exactly)."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and torch.allclose(left, right, atol=1e-5, rtol=1e-5, equal_nan=True)
        )
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return (
            type(left) is type(right)
            and len(left) == len(right)
            and all(same(a, b) for a, b in zip(left, right, strict=True))
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


def different(values: list[Any]) -> list[Any]:
    """``values`` without those that are the ``same`` as an earlier one."""
    kept: list[Any] = []
    for value in values:
        if not any(same(value, other) for other in kept):
            kept.append(value)
    return kept


class GraphCounter(torch._dynamo.testing.CompileCounterWithBackend):
    """A backend that counts the graphs it compiled and the graphs that were run."""

    def __init__(self, backend: str) -> None:
        super().__init__(backend)
        self.run_count = 0

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]
    ) -> Callable[..., Any]:
        compiled = super().__call__(gm, example_inputs)

        def counted(*args: Any) -> Any:
            self.run_count += 1
            return compiled(*args)

        return counted


@dataclasses.dataclass
class Run:
    """One playing of a scenario.

    Attributes:
        model: the hooked module itself, never its compiled wrapper.
        call: what a user calls: ``model`` or its compiled form.
        log: what hooks append to; compared with eager's at the end.
        steps: per step, what came out: outputs, gradients or the exception.
        graphs: graphs compiled so far; 0 when eager.
        graph_runs: per step, how many graphs were run: 0 means it ran eagerly.
    """

    model: Any  # an nn.Module, whose parts scenarios reach by name
    call: Callable[..., Any]
    compiled: bool
    counter: GraphCounter
    log: list[Any] = dataclasses.field(default_factory=list)
    steps: list[Any] = dataclasses.field(default_factory=list)
    graph_runs: list[int] = dataclasses.field(default_factory=list)

    @property
    def graphs(self) -> int:
        return int(self.counter.frame_count)

    def step(
        self,
        x: torch.Tensor | None = None,
        *,
        train: bool = True,
        backwards: int = 1,
        **kwargs: Any,
    ) -> None:
        """Call once, run backward when ``train``, and record all that came out.

        Args:
            x: input, ``(N, 4)``; a fixed ``(3, 4)`` one by default.
            train: whether to run backward from the sum of the output.
            backwards: how often to run it, through the same autograd graph.
            kwargs: passed on to the call.
        """
        if x is None:
            x = torch.linspace(-1, 1, 12).reshape(3, 4)
        x = x.detach().clone().requires_grad_(train)
        self.model.zero_grad(set_to_none=True)
        self.log.append("step")
        runs = self.counter.run_count
        record: list[Any] = []
        try:
            out = self.call(x, **kwargs)
            is_tensor = isinstance(out, torch.Tensor)
            record.append(out.detach().clone() if is_tensor else out)
            if train:
                for left in reversed(range(backwards)):
                    out.sum().backward(retain_graph=left > 0)
                grads = [x.grad, *(p.grad for p in self.model.parameters())]
                record.append([None if g is None else g.clone() for g in grads])
        except Exception as error:
            record += [type(error).__name__, str(error).split("\n")[0]]
        self.steps.append(record)
        self.graph_runs.append(self.counter.run_count - runs)


Scenario = Callable[[Run], None]


def start(
    *,
    compiled: bool,
    make: Callable[[], nn.Module] = Net,
    wrap: str = "call",
    backend: str = "eager",
    fullgraph: bool = False,
) -> Run:
    """A ``Run`` on a fresh model that has not been called yet; resets nothing."""
    torch.manual_seed(0)
    model: Any = make()
    counter = GraphCounter(backend)
    options: dict[str, Any] = {"backend": counter, "fullgraph": fullgraph}
    call: Callable[..., Any] = model
    if compiled:
        if wrap == "call":
            call = torch.compile(model, **options)
        elif wrap == "inplace":
            model.compile(**options)
        elif wrap == "function":
            call = torch.compile(lambda x, **kw: model(x, **kw) * 1.0, **options)
        elif wrap == "blocks":
            for block in model.blocks:
                block.compile(**options)
        else:
            raise ValueError(f"unknown wrap {wrap!r}, expected one of {WRAPS}")
    elif wrap == "function":

        def call(x: torch.Tensor, **kw: Any) -> torch.Tensor:
            return model(x, **kw) * 1.0

    return Run(model, call, compiled, counter)


def play(scenario: Scenario, *, compiled: bool, **options: Any) -> Run:
    """Play ``scenario`` on a fresh model, from reset Dynamo and global state.

    Args:
        scenario: the program to play.
        compiled: whether to compile the model before it.
        options: ``make``, ``wrap``, ``backend``, ``fullgraph`` of ``start``.
    """
    torch._dynamo.reset()
    with no_global_hooks(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = start(compiled=compiled, **options)
        scenario(run)
    return run


def slow(test: Any) -> Any:
    """Mark ``test`` for ``pytest -m "not slow"``; skip it where there is no pytest."""
    if "PYTEST_VERSION" not in os.environ:
        return slowTest(test)  # runs with PYTORCH_TEST_WITH_SLOW=1
    import pytest

    return pytest.mark.slow(test)


def long(test: Any) -> Any:
    """Mark ``test`` as one that not even CI runs: more of what others do."""
    if "PYTEST_VERSION" not in os.environ:
        return slowTest(test)
    import pytest

    return pytest.mark.long(test)


class HookTestCase(torch._dynamo.test_case.TestCase):
    """Base of the hook tests: eager is the oracle of every comparison.

    Dynamo's own ``TestCase`` turns ``nested_graph_breaks`` on; here it is what a
    user has, unless a class sets ``nested_graph_breaks``.
    """

    nested_graph_breaks = False

    def setUp(self) -> None:
        super().setUp()  # which remembers the setting, for tearDown
        torch._dynamo.config.nested_graph_breaks = self.nested_graph_breaks

    def check(
        self,
        scenario: Scenario,
        *,
        graphs: int | None = None,
        distinct: int | None = None,
        **options: Any,
    ) -> Run:
        """Play ``scenario`` eagerly and compiled, and require the same of both.

        Args:
            scenario: the program; it is played twice on equal, fresh models.
            graphs: the number of graphs the compiled playing has to make.
            distinct: how many different step records eager makes, so that a
                program whose hooks never ran cannot pass.
            options: ``make``, ``wrap``, ``backend``, ``fullgraph`` of ``play``.

        Returns:
            The compiled run, for further assertions.
        """
        eager = play(scenario, compiled=False, **options)
        if distinct is not None:
            self.assertEqual(len(different(eager.steps)), distinct, eager.steps)
        run = play(scenario, compiled=True, **options)
        self.check_log(eager.log, run.log)
        self.assertEqual(len(eager.steps), len(run.steps))
        for i, (want, got) in enumerate(zip(eager.steps, run.steps, strict=True)):
            self.assertTrue(same(want, got), f"step {i}: eager {want}, compiled {got}")
        if graphs is not None:
            self.assertEqual(run.graphs, graphs)
        return run

    def check_log(self, eager: list[Any], compiled: list[Any]) -> None:
        """Require the same of what hooks appended to ``Run.log`` in both playings."""
        self.assertEqual(eager, compiled)


class RandomProgramTestCase(HookTestCase):
    """Plays slices of 20 seeds and reports the first difference of each.

    A class sets ``differences``: what eager and compiled code differ in, by seed.
    """

    differences: Callable[[int], list[str]]

    def check_slice(self, index: int) -> None:
        """Play the ``index``-th slice."""
        seeds = range(index * 20, (index + 1) * 20)
        found = {seed: type(self).differences(seed) for seed in seeds}
        lines = [f"seed {seed}: {said[0]}" for seed, said in found.items() if said]
        self.assertFalse(lines, "\n".join(lines))


def zeroed(values: list[Any], others: list[Any]) -> list[Any]:
    """``values`` with zeros for None: what compiled code without hooks gives a
    parameter that no gradient reaches, and so does code whose hooks are traced."""
    return [
        torch.zeros_like(other) if value is None and other is not None else value
        for value, other in zip(values, others, strict=True)
    ]
