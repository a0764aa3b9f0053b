# Owner(s): ["module: dynamo"]
"""Hooks of code that is compiled once and loaded later, in another process too.

What is saved is the guards as well: loaded code must not serve models whose hooks are
not those it was compiled with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.aot_compile import ModelInput
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_programs import HookTestCase, Net, slow


RECORDED: list[torch.Tensor] = []


def scale(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out * 2


def scale_input(module: nn.Module, args: Any) -> tuple[torch.Tensor]:
    return (args[0] * 3,)


def record(module: nn.Module, args: Any, out: torch.Tensor) -> None:
    RECORDED.append(out.detach())


def scale_gradient(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return (grad_input[0] * 2,)


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda module: module.register_forward_hook(scale),
    "pre": lambda module: module.register_forward_pre_hook(scale_input),
    "recording": lambda module: module.register_forward_hook(record),
    "backward": lambda module: module.register_full_backward_hook(scale_gradient),
}


def net(kinds: str = "", path: str = "blocks.1.lin") -> Net:
    """A model, always the same, whose module at ``path`` has hooks of these kinds."""
    torch.manual_seed(0)
    model = Net()
    for kind in kinds.split():
        HOOKS[kind](model.get_submodule(path))
    return model


def outcome(call: Callable[..., torch.Tensor], *args: Any) -> list[Any]:
    """Output, gradient of the last argument and what hooks recorded."""
    RECORDED.clear()
    *others, x = args
    x = x.clone().requires_grad_()
    out = call(*others, x)
    out.sum().backward()
    return [out, x.grad, *RECORDED]


def saved(model: Net, x: torch.Tensor, path: Path) -> None:
    """Compile ``model`` for inputs like ``x`` and write the code to ``path``."""
    x = x.clone().requires_grad_()
    compiled: Any = torch.compile(model.forward, fullgraph=True, backend="inductor")
    compiled.aot_compile(((x,), {})).save_compiled_function(path)


def loaded(path: Path) -> Any:
    with path.open("rb") as file:
        return torch.compiler.load_compiled_function(file)


PROGRAM = """
import sys
from pathlib import Path
import torch
import test_hooks_saved as t
from torch._dynamo.precompile_context import PrecompileContext
from torch._dynamo.utils import counters

x = torch.ones(2, 4)
for kind in t.HOOKS:
    torch._dynamo.reset()
    model = t.net(kind)
    call = torch.compile(model.forward, backend="inductor")
    torch.testing.assert_close(t.outcome(call, x), t.outcome(t.net(kind), x))
    PrecompileContext.save_to_dynamo_cache()
    print(kind, counters["frames"]["total"])
    t.HOOKS["forward"](model.head)
    changed = t.net(kind)
    t.HOOKS["forward"](changed.head)
    torch.testing.assert_close(t.outcome(call, x), t.outcome(changed, x))
    print(kind, counters["frames"]["total"])
    counters.clear()
"""


class SavedCodeTests(HookTestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "compiled.pt")
        self.x = torch.ones(2, 4)

    @slow
    @parametrize("kinds", ["", *HOOKS, "pre recording backward"])
    def test_serves_models_with_the_same_hooks(self, kinds: str) -> None:
        saved(net(kinds), self.x, self.path)
        torch._dynamo.reset()
        call = loaded(self.path)
        for _ in range(2):
            model = net(kinds)
            self.assertEqual(outcome(call, model, self.x), outcome(model, self.x))

    @slow
    @parametrize("kind", HOOKS)
    def test_refuses_models_with_other_hooks(self, kind: str) -> None:
        saved(net(kind), self.x, self.path)
        call = loaded(self.path)
        names = {"pre": "forward pre-hook", "backward": "backward hook"}
        name = names.get(kind, "forward hook")
        model = net(kind)
        HOOKS[kind](model.head)
        with self.assertRaisesRegex(RuntimeError, f"head: {name} added"):
            call(model, self.x)
        with self.assertRaisesRegex(RuntimeError, f"blocks.1.lin: {name} removed"):
            call(net(), self.x)
        model = net(kind)
        self.assertEqual(outcome(call, model, self.x), outcome(model, self.x))

    @slow
    @parametrize("kind", ["forward", "pre", "backward"])
    def test_refuses_another_hook_of_the_same_kind(self, kind: str) -> None:
        def other(*args: Any) -> Any:
            return (args[-1][0] * 5,) if kind == "pre" else args[-1] * 5

        def other_gradient(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
            return (grad_input[0] * 5,)

        saved(net(kind), self.x, self.path)
        call = loaded(self.path)
        model = net()
        linear = model.get_submodule("blocks.1.lin")
        if kind == "forward":
            linear.register_forward_hook(other)
        elif kind == "pre":
            linear.register_forward_pre_hook(other)
        else:
            linear.register_full_backward_hook(other_gradient)
        name = r"\]\] is scale"
        with self.assertRaisesRegex(RuntimeError, name):
            outcome(call, model, self.x)

    @slow
    def test_another_process(self) -> None:
        folder = self.path.parent
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(folder),
            "TORCH_CACHING_PRECOMPILE": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        }
        outputs = [
            subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            for _ in range(2)
        ]
        for output in outputs:
            self.assertEqual(output.returncode, 0, output.stderr)
        first, second = (output.stdout.splitlines() for output in outputs)
        self.assertEqual(first, [f"{kind} {n}" for kind in HOOKS for n in (1, 2)])
        self.assertEqual(second, [f"{kind} {n}" for kind in HOOKS for n in (0, 1)])


class Doubles(Net):
    def __call__(self, *args: Any) -> Any:
        return 2 * super().__call__(*args)


class Scaled(nn.Linear):
    def forward(
        self, x: torch.Tensor, scale: float = 1.0, *, shift: float = 0.0
    ) -> torch.Tensor:
        return super().forward(x) * scale + shift


def add_one(
    module: nn.Module, args: Any, kwargs: dict[str, float]
) -> tuple[Any, dict[str, float]]:
    return args, {**kwargs, "shift": kwargs.get("shift", 0.0) + 1.0}


class SavedModuleTests(HookTestCase):
    """``OptimizedModule._aot_compile``: the hooks of the root are part of the code."""

    x = torch.linspace(-1, 1, 12).reshape(3, 4)

    def _compiled(self, model: Net) -> Any:
        compiled: Any = torch.compile(model, fullgraph=True, backend="inductor")
        x = self.x.clone().requires_grad_()
        compiled._aot_compile([ModelInput((x,), {}, [])])
        return compiled

    def _loaded(self, model: Net, data: bytes) -> Any:
        compiled: Any = torch.compile(model, fullgraph=True, backend="inductor")
        compiled._load_aot_compiled_module(data)
        return compiled

    @slow
    @parametrize("kind", HOOKS)
    def test_hooks_run(self, kind: str) -> None:
        with self.assertNoLogs("torch._dynamo.aot_compile", "WARNING"):
            compiled = self._compiled(net(kind, ""))
        expected = outcome(net(kind, ""), self.x)
        self.assertNotEqual(expected, outcome(net(), self.x))
        self.assertEqual(outcome(compiled, self.x), expected)
        data = compiled._save_aot_compiled_module()
        self.assertEqual(outcome(self._loaded(net(kind, ""), data), self.x), expected)

    @slow
    @parametrize("kind", HOOKS)
    def test_other_hooks_are_refused(self, kind: str) -> None:
        model = net()
        compiled = self._compiled(model)
        self.assertEqual(outcome(compiled, self.x), outcome(model, self.x))
        HOOKS[kind](model)
        with self.assertRaisesRegex(RuntimeError, "self: .* added"):
            compiled(self.x)
        data = compiled._save_aot_compiled_module()
        with self.assertRaisesRegex(RuntimeError, "self: .* added"):
            self._loaded(net(kind, ""), data)(self.x)
        self.assertEqual(
            outcome(self._loaded(net(), data), self.x), outcome(net(), self.x)
        )

    @slow
    def test_calls_of_several_kinds(self) -> None:
        model = Scaled(4, 4)
        model.register_forward_pre_hook(add_one, with_kwargs=True)
        compiled: Any = torch.compile(model, fullgraph=True, backend="inductor")
        calls: list[tuple[Any, Any]] = [
            ((self.x,), {}),
            ((self.x,), {"scale": 2.0}),
            ((self.x, 2.0), {"shift": 1.0}),
        ]
        compiled._aot_compile([ModelInput(a, k, []) for a, k in calls])
        for args, kwargs in calls:
            self.assertEqual(compiled(*args, **kwargs), model(*args, **kwargs))

    def test_a_call_of_its_own(self) -> None:
        with self.assertLogs("torch._dynamo.aot_compile", "WARNING") as logs:
            self._compiled(Doubles())
        self.assertIn("overrides __call__", "".join(logs.output))


instantiate_parametrized_tests(SavedCodeTests)
instantiate_parametrized_tests(SavedModuleTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
