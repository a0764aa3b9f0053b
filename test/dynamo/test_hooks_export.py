# Owner(s): ["module: dynamo"]
"""``torch.export``: what forward hooks compute is exported, the rest is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.exc import UserError
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import (
    edit,
    FORWARD_KINDS,
    FULL_BACKWARD_KINDS,
    KINDS,
    register,
    register_global,
)
from hook_programs import HookTestCase, Net, no_global_hooks


KEPT: list[Any] = []
WHERE: dict[str, Callable[[Any], nn.Module]] = {
    "the root module": lambda model: model,
    "blocks.1.lin": lambda model: model.blocks[1].lin,
}


def keep(module: Any, args: Any, out: Any) -> None:
    KEPT.append(out.detach())


class ExportTests(HookTestCase):
    def _exported(self, model: nn.Module, *, strict: bool) -> Callable[..., Any]:
        inputs = (torch.linspace(-1, 1, 12).reshape(3, 4),)
        return torch.export.export(model, inputs, strict=strict).module()

    def _warnings(self, model: nn.Module, *, strict: bool) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._exported(model, strict=strict)
        return [
            f"{w.filename} {w.message}"
            for w in caught
            if "leaves out" in str(w.message)
        ]

    @parametrize("kind", FORWARD_KINDS)
    @parametrize("where", WHERE)
    @parametrize("strict", (True, False))
    def test_forward_hooks(self, kind: str, where: str, strict: bool) -> None:
        model: Any = Net()
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        without = model(x)
        register(WHERE[where](model), kind, edit(kind))
        self.assertEqual(self._warnings(model, strict=strict), [])
        exported = self._exported(model, strict=strict)
        self.assertEqual(exported(x), model(x))
        self.assertNotEqual(exported(x), without)

    @parametrize("where", WHERE)
    @parametrize("strict", (True, False))
    def test_recording_hooks_are_named(self, where: str, strict: bool) -> None:
        model: Any = Net()
        WHERE[where](model).register_forward_hook(keep)
        (said,) = self._warnings(model, strict=strict)
        line = keep.__code__.co_firstlineno
        self.assertIn(f"the forward hook keep ({__file__}:{line}) of {where}", said)
        self.assertTrue(said.startswith(f"{__file__} "), said)

    @parametrize("kind", (*FULL_BACKWARD_KINDS, "legacy_backward"))
    @parametrize("where", WHERE)
    def test_hooks_that_fire_in_backward(self, kind: str, where: str) -> None:
        model: Any = Net()
        register(WHERE[where](model), kind, edit(kind))
        (said,) = self._warnings(model, strict=False)
        self.assertRegex(said, rf"the backward (pre )?hook .*\) of {where}")
        with self.assertRaisesRegex(UserError, f"cannot export the .* of {where}: an"):
            self._exported(model, strict=True)

    @parametrize("kind", KINDS)
    def test_global_hooks(self, kind: str) -> None:
        with no_global_hooks():
            register_global(kind, edit(kind))
            model = Net()
            said = self._warnings(model, strict=False)
            x = torch.linspace(-1, 1, 12).reshape(3, 4)
            expected = model(x)
            exported = self._exported(model, strict=False)
        if kind in FORWARD_KINDS:
            self.assertEqual(said, [])
            self.assertEqual(exported(x), expected)
        else:
            self.assertIn("the global backward", said[0])


instantiate_parametrized_tests(ExportTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
