# Owner(s): ["module: dynamo"]
"""Random programs with hooks that fire in backward, each in one graph.

A seed makes a model, hooks of all kinds that fire in backward, and steps that use some
outputs, ask for some gradients and change hooks in between. Compiled with
``fullgraph=True``, all of it has to equal eager: ``python
test/dynamo/test_hooks_backward_random.py --seed N`` replays one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_gradients import growing, logging, summary
from hook_kinds import register, register_global
from hook_programs import (
    long,
    play,
    RandomProgramTestCase,
    Run,
    same,
    slow,
    zeroed,
)


FULL_KINDS = ("full_backward", "backward_pre", "tensor", "input", "retain_grad")
LEGACY_KINDS = ("legacy_backward", "tensor", "retain_grad")
POLICIES = ("auto", "auto", "call")


class Part(nn.Module):
    """``(N, 4) -> (N, 4)``, or a pair of such; ``shape`` says how it is made up."""

    def __init__(self, rng: random.Random, depth: int) -> None:
        super().__init__()
        shapes = ("chain", "sum", "product", "split", "again", "frozen")
        self.shape = rng.choice(shapes) if depth else "leaf"
        self.factor = 1.0
        if self.shape == "leaf":
            self.lin = nn.Linear(4, 4)
            self.act = rng.choice((nn.Tanh, nn.ReLU, nn.Sigmoid, nn.Identity))()
        else:
            n = 1 if self.shape in ("again", "frozen") else 2
            self.parts = nn.ModuleList(Part(rng, depth - 1) for _ in range(n))
        self.twin = rng.random() < 0.2

    def forward(self, x: torch.Tensor) -> Any:
        if self.shape == "leaf":
            x = self.act(self.lin(x))
        elif self.shape == "chain":
            for part in self.parts:
                x = first(part(x))
        elif self.shape == "again":
            x = first(self.parts[0](first(self.parts[0](x)))) + x
        elif self.shape == "frozen":
            x = x + first(self.parts[0](x.detach()))
        else:
            left, right = (first(part(x)) for part in self.parts)
            if self.shape == "split":
                return left, right * 2
            x = left + right if self.shape == "sum" else left * right
        return (x, x.sin()) if self.twin else x


def first(value: Any) -> torch.Tensor:
    return value[0] if isinstance(value, tuple) else value


class Model(nn.Module):
    """``(N, 4) -> ((N, 4), (N, 2))``"""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.body = Part(rng, 3)
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2)
        self.single = rng.random() < 0.5

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Hooks of a graph's inputs fire after all others, which "input" is not about.
        x = first(self.body(x * 1.5))
        return (self.left(x).tanh(),) if self.single else (self.left(x), self.right(x))


def halving(module: Any, *gradients: Any) -> Any:
    return tuple(None if g is None else g * 0.5 for g in gradients[0])


def body(rng: random.Random, log: list[Any], name: str, handles: list[Any]) -> Any:
    """A hook of any kind of module hooks."""

    def reading(module: Any, *gradients: Any) -> Any:
        factor = getattr(module, "factor", 1.0)
        return tuple(None if g is None else g * factor for g in gradients[0])

    def item(module: Any, *gradients: Any) -> None:
        for g in gradients[-1]:
            log.append((name, None if g is None else round(g.sum().item(), 2)))

    def array(module: Any, *gradients: Any) -> Any:
        return tuple(
            None if g is None else torch.from_numpy(g.numpy() * 1.5)
            for g in gradients[0]
        )

    def once(module: Any, *gradients: Any) -> None:
        log.append((name, "once"))
        if handles:
            handles.pop(0).remove()

    bodies = (
        logging(log, name),
        logging(log, name),
        growing(log, name),
        halving,
        reading,
        item,
        array,
        once,
    )
    return rng.choice(bodies)


def tensor_hook(rng: random.Random, log: list[Any], name: str) -> Any:
    def observe(grad: torch.Tensor) -> None:
        log.append((name, summary(grad)))

    def item(grad: torch.Tensor | None) -> Any:
        if grad is None:
            log.append((name, None))
            return None
        log.append((name, round(grad.sum().item(), 2)))
        return grad * 1.1

    def smaller(grad: torch.Tensor | None) -> Any:
        return None if grad is None else grad * 0.75

    return rng.choice((observe, item, smaller))


def scenario_of(seed: int) -> tuple[Callable[[Run], None], dict[str, Any], str]:
    rng = random.Random(f"backward hooks {seed}")
    kinds = LEGACY_KINDS if rng.random() < 0.25 else FULL_KINDS
    structure = rng.random()

    def scenario(run: Run) -> None:
        rng = random.Random(f"program {seed}")
        modules = dict(run.model.named_modules())
        handles: list[Any] = []
        kept: list[torch.Tensor] = []

        def add(label: int) -> None:
            path = rng.choice([*modules])
            kind = rng.choice(kinds)
            if kind == "input" and not path:
                kind = "tensor"
            name = f"{label} {kind} {path}"
            module = modules[path]
            if kind in ("tensor", "input"):
                hook = tensor_hook(rng, run.log, name)

                def on_output(module: Any, args: Any, output: Any) -> None:
                    value = first(args if kind == "input" else output)
                    if value.requires_grad:
                        value.register_hook(hook)

                handles.append(module.register_forward_hook(on_output))
            elif kind == "retain_grad":

                def retain(module: Any, args: Any, output: Any) -> None:
                    value = first(output)
                    if value.requires_grad:
                        value.retain_grad()
                        kept.append(value)

                handles.append(module.register_forward_hook(retain))
            else:
                is_global = rng.random() < 0.1
                hook = body(rng, run.log, name, handles)
                kinds_of_hook = [(kind, hook)]
                if kind == "backward_pre":
                    # Pre-hooks alone have a limit that docs/nn_module_hooks.md names.
                    kinds_of_hook.append(("full_backward", lambda *_: None))
                for kind_, hook_ in kinds_of_hook:
                    if is_global:
                        handles.append(register_global(kind_, hook_))
                    else:
                        handles.append(register(module, kind_, hook_))

        for label in range(rng.randint(1, 7)):
            add(label)
        for step in range(4):
            kept.clear()
            run.model.zero_grad(set_to_none=True)
            run.log.append(f"step {step}")
            x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
            outputs = run.call(x)
            used = rng.sample(outputs, rng.randint(1, len(outputs)))
            loss = torch.stack([(out * 1.5).sum() for out in used]).sum()
            for module in modules.values():
                if isinstance(module, Part):
                    module.factor = 1.0 + step
            if rng.random() < 0.2 and handles:
                handles.pop(rng.randrange(len(handles))).remove()
            if rng.random() < 0.25:
                named = {"x": x, **dict(run.model.named_parameters())}
                asked = rng.sample([*named], rng.randint(1, 3))
                inputs = [named[key] for key in asked]
                run.steps.append(
                    list(torch.autograd.grad(loss, inputs, allow_unused=True))
                )
            else:
                loss.backward()
                grads = [x.grad, *(p.grad for p in run.model.parameters())]
                run.steps.append(grads)
            run.steps.append([value.grad for value in kept])
            if rng.random() < 0.5:
                add(10 + step)

    options = {
        "make": lambda: Model(random.Random(f"model {seed} {structure}")),
        # Inductor takes ten times as long, and differs only in how it runs a graph.
        "backend": "inductor" if seed % 50 == 0 else ("eager", "aot_eager")[seed % 2],
        "wrap": ("call", "inplace")[seed // 2 % 2],
    }
    return scenario, options, POLICIES[seed % len(POLICIES)]


def differences(seed: int) -> list[str]:
    """What compiled and eager differ in; empty when nothing."""
    scenario, options, policy = scenario_of(seed)
    eager = play(scenario, compiled=False, **options)
    limits = {
        "recompile_limit": 64,
        "fail_on_recompile_limit_hit": True,
        "nn_module_hook_policy": policy,
    }
    with torch._dynamo.config.patch(limits):
        try:
            run = play(scenario, compiled=True, fullgraph=True, **options)
        except Exception as error:
            return [f"refused: {type(error).__name__}: {str(error)[:600]}"]
    found = []
    if eager.log != run.log:
        found.append(f"log: eager {eager.log}\ncompiled {run.log}")
    for i, (want, got) in enumerate(zip(eager.steps, run.steps, strict=True)):
        if not same(zeroed(want, got), zeroed(got, want)):
            found.append(f"step {i // 2}: eager {want}\ncompiled {got}")
    return found


class RandomBackwardTests(RandomProgramTestCase):
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


instantiate_parametrized_tests(RandomBackwardTests)


if __name__ == "__main__":
    if "--seed" in sys.argv:
        print(*differences(int(sys.argv[-1])) or ["equal"], sep="\n")
    else:
        from torch._dynamo.test_case import run_tests

        run_tests()
