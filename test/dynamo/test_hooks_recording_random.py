# Owner(s): ["module: dynamo"]
"""Random programs with hooks that record, count or call ``.item()``.

A seed makes a model, hooks on it, and steps that change hooks in between. Compiled, all
of it has to equal eager, in few graphs: ``python
test/dynamo/test_hooks_recording_random.py --seed N`` replays one.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import register_global
from hook_programs import (
    long,
    play,
    RandomProgramTestCase,
    Run,
    same,
    slow,
    zeroed,
)
from hook_recorders import Maker, OPAQUE, plain, RECORDERS
from test_hooks_backward_random import first, Model


MAKERS: dict[str, Maker] = {**RECORDERS, **OPAQUE}


def model_of(seed: int) -> nn.Module:
    model = Model(random.Random(f"recorded model {seed}"))
    if seed % 5 == 0:
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = True
    return model


class Program:
    """What a seed does to a run, and how often it changes hooks."""

    def __init__(self, seed: int, run: Run) -> None:
        self.rng = random.Random(f"recording {seed}")
        self.run = run
        self.modules = dict(run.model.named_modules())
        self.handles: list[Any] = []
        self.changes = 0
        for _ in range(self.rng.randint(1, 6)):
            self.add()
        self.changes = 0
        for step in range(self.rng.randint(4, 7)):
            self.step(step)

    def add(self) -> None:
        self.changes += 1
        rng, run = self.rng, self.run
        record: Any = MAKERS[rng.choice([*MAKERS])](run.log)
        module = self.modules[rng.choice([*self.modules])]

        def hook(module: Any, args: Any, out: Any) -> None:
            record(module, (first(args),), first(out))

        def pre_hook(module: Any, args: Any) -> None:
            record(module, args, first(args))

        def with_kwargs(module: Any, args: Any, kwargs: Any, out: Any) -> None:
            record(module, args, first(out))

        kind = rng.choice(("hook", "hook", "pre", "kwargs", "global"))
        prepend = rng.random() < 0.2
        if kind == "pre":
            handle = module.register_forward_pre_hook(pre_hook, prepend=prepend)
        elif kind == "kwargs":
            handle = module.register_forward_hook(
                with_kwargs, prepend=prepend, with_kwargs=True
            )
        elif kind == "global" and rng.random() < 0.3:
            handle = register_global("forward", hook)
        else:
            handle = module.register_forward_hook(hook, prepend=prepend)
        self.handles.append(handle)

    def step(self, step: int) -> None:
        rng, run = self.rng, self.run
        run.model.zero_grad(set_to_none=True)
        run.log.append(f"step {step}")
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_(rng.random() < 0.7)
        with torch.set_grad_enabled(rng.random() < 0.8):
            outputs = run.call(x)
        run.steps.append([out.detach().clone() for out in outputs])
        if outputs[0].requires_grad:
            torch.stack([out.sum() for out in outputs]).sum().backward()
            run.steps.append([p.grad for p in run.model.parameters()])
        if rng.random() < 0.2 and self.handles:
            self.changes += 1
            self.handles.pop(rng.randrange(len(self.handles))).remove()
        if rng.random() < 0.3:
            self.add()


def differences(seed: int) -> list[str]:
    """What compiled and eager differ in, or too many graphs; empty when nothing."""
    changes = 0

    def scenario(run: Run) -> None:
        nonlocal changes
        changes = Program(seed, run).changes

    options: dict[str, Any] = {
        "make": lambda: model_of(seed),
        "backend": "inductor" if seed % 50 == 7 else ("eager", "aot_eager")[seed % 2],
        "wrap": ("call", "inplace")[seed // 2 % 2],
    }
    eager = play(scenario, compiled=False, **options)
    with torch._dynamo.config.patch(recompile_limit=64):
        try:
            run = play(scenario, compiled=True, **options)
        except Exception as error:
            return [f"refused: {type(error).__name__}: {str(error)[:600]}"]
    found = []
    for i, (want, got) in enumerate(zip(plain(eager.log), plain(run.log))):
        if not same(want, got):
            found.append(f"entry {i}: eager {want}\ncompiled {got}")
    if len(eager.log) != len(run.log):
        found.append(f"entries: eager {len(eager.log)}, compiled {len(run.log)}")
    for i, (want, got) in enumerate(zip(eager.steps, run.steps, strict=True)):
        if not same(zeroed(want, got), got):
            found.append(f"step {i}: eager {want}\ncompiled {got}")
    # Grad mode, and whether the input requires grad, make graphs of their own.
    if run.graphs > 4 * (1 + changes):
        found.append(f"{run.graphs} graphs for {changes} changes of hooks")
    return found


class RandomRecordingTests(RandomProgramTestCase):
    differences = staticmethod(differences)

    @parametrize("index", range(3))
    def test_equals_eager(self, index: int) -> None:
        self.check_slice(index)

    @slow
    @parametrize("index", range(3, 5))
    def test_equals_eager_more(self, index: int) -> None:
        self.check_slice(index)

    @long
    @parametrize("index", range(5, 15))
    def test_equals_eager_all(self, index: int) -> None:
        self.check_slice(index)


instantiate_parametrized_tests(RandomRecordingTests)


if __name__ == "__main__":
    if "--seed" in sys.argv:
        print(*differences(int(sys.argv[-1])) or ["equal"], sep="\n")
    else:
        from torch._dynamo.test_case import run_tests

        run_tests()
