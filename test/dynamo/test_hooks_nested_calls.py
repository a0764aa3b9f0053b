# Owner(s): ["module: dynamo"]
"""Hooks that call other modules, whose own hooks break the graph.

The frame is then broken at the outer call, and guards on hooks that it reaches through
another hook's dict, by position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import edit, Hook, KINDS, register, register_global
from hook_programs import HookTestCase, Run


class Probed(nn.Module):
    """``(N, 4) -> (N, 4)``; ``probe`` is called by hooks alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.act = nn.Tanh()
        # Not a child: reached through the hooks only.
        self.__dict__["probe"] = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.body(x))


class Adapter(nn.Module):
    """A module used as a forward hook, with a module of its own."""

    def __init__(self, probe: nn.Module) -> None:
        super().__init__()
        self.probe = probe

    def forward(self, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + self.probe(out)


class Keyed:
    """A hook object that finds its modules as the keys and values of a dict."""

    def __init__(self, probe: nn.Module) -> None:
        self.probes = {probe: probe}

    def __call__(self, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        for key, value in self.probes.items():
            out = out + key(out) * value(out)
        return out


def _add(probe: nn.Module, module: nn.Module, args: Any, out: torch.Tensor) -> Any:
    return out + probe(out)


ROUTES: dict[str, Callable[[nn.Module], Hook]] = {
    "closure": lambda probe: lambda module, args, out: out + probe(out),
    "partial": lambda probe: functools.partial(_add, probe),
    "default": lambda probe: lambda module, args, out, probe=probe: out + probe(out),
    "method": lambda probe: Adapter(probe).forward,
    "module": Adapter,
    "dict": Keyed,
    "list": lambda probe: functools.partial(
        lambda probes, module, args, out: out + probes[0](out), [probe]
    ),
}


class NestedCallTests(HookTestCase):
    @parametrize("route", tuple(ROUTES))
    @parametrize("kind", KINDS)
    @parametrize("where", ("body", "", "global"))
    def test_called_module_is_hooked_and_unhooked(
        self, route: str, kind: str, where: str
    ) -> None:
        def scenario(run: Run) -> None:
            probe = run.model.probe
            hook = ROUTES[route](probe)
            if where == "global":

                def on_act(module: nn.Module, args: Any, out: Any) -> Any:
                    return hook(module, args, out) if module is run.model.act else None

                register_global("forward", on_act)
            else:
                run.model.get_submodule(where).register_forward_hook(hook)
            run.step()
            handle = register(probe, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Probed, distinct=2)

    @parametrize("route", tuple(ROUTES))
    def test_called_module_has_an_always_called_hook(self, route: str) -> None:
        def scenario(run: Run) -> None:
            probe = run.model.probe
            run.model.body.register_forward_hook(ROUTES[route](probe))
            probe.register_forward_hook(
                lambda module, args, out: out * 2, always_call=True
            )
            run.step()
            run.step()

        self.check(scenario, make=Probed, distinct=1)


instantiate_parametrized_tests(NestedCallTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
