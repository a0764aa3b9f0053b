# Owner(s): ["module: dynamo"]
"""Hooks on modules that Dynamo does not trace, or traces in ways of their own.

With hooks they are as in eager, and break no graph that they leave whole without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from torch.nn.utils.parametrizations import (
    orthogonal,
    spectral_norm as parametrized_spectral_norm,
    weight_norm as parametrized_weight_norm,
)
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import edit, FULL_BACKWARD_KINDS, KINDS, register
from hook_programs import HookTestCase, same


class Disabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).sin()


@torch._dynamo.allow_in_graph
class Allowed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x, x, x)


def encoder_layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


class Around(nn.Module):
    """``(N, T, 4) -> (N, T, 4)``: calls the module under test between two others."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(self.first(x))
        while isinstance(out, tuple):
            out = out[0]
        return out * 2


OPAQUE: dict[str, Callable[[], Any]] = {
    "rnn": lambda: nn.RNN(4, 4, batch_first=True),
    "gru": lambda: nn.GRU(4, 4, batch_first=True),
    "lstm": lambda: nn.LSTM(4, 4, batch_first=True),
    "disabled_forward": Disabled,
    "disabled_module": lambda: torch.compiler.disable(nn.Linear(4, 4)),
}
WHOLE: dict[str, Callable[[], Any]] = {
    "allowed": Allowed,
    "graph_module": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4))),
    "lazy": lambda: nn.LazyLinear(4),
    "attention": Attention,
    "encoder_layer": encoder_layer,
    "encoder": lambda: nn.TransformerEncoder(encoder_layer(), 2),
    "spectral_norm": lambda: spectral_norm(nn.Linear(4, 4)),
    "weight_norm": lambda: weight_norm(nn.Linear(4, 4)),
    "parametrized_spectral_norm": lambda: parametrized_spectral_norm(nn.Linear(4, 4)),
    "parametrized_weight_norm": lambda: parametrized_weight_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: orthogonal(nn.Linear(4, 4)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5),
}


def recording(kind: str, log: list[str]) -> Callable[..., Any]:
    return lambda *args: log.append(f"{kind} {type(args[0]).__name__}")


class OpaqueTestCase(HookTestCase):
    def _play(
        self, make: Callable[[], Any], kind: str, *, train: bool, **options: Any
    ) -> tuple[list[Any], int]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Around(make()).train(train)
        x = torch.randn(2, 3, 4)
        if isinstance(model.inner, nn.LazyLinear):
            model(x)
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        call: Callable[..., torch.Tensor] = model
        if options.pop("compiled"):
            call = torch.compile(model, backend=counter, **options)
        seen: list[Any] = []
        log: list[str] = []

        def step() -> None:
            inputs = x.clone().requires_grad_(train)
            model.zero_grad()
            with torch.set_grad_enabled(train):
                out = call(inputs)
            grads: list[Any] = []
            if train:
                out.sum().backward()
                grads = [inputs.grad, *(p.grad for p in model.parameters())]
                grads = [None if g is None else g.clone() for g in grads]
            seen.append([out.detach().clone(), grads, [*log]])

        step()
        hooks = [edit(kind), recording(kind, log)]
        handles = [register(model.inner, kind, hook) for hook in hooks]
        step()
        step()
        for handle in handles:
            handle.remove()
        step()
        return seen, counter.frame_count

    def check_opaque(
        self, make: Callable[[], Any], kind: str, *, train: bool, **options: Any
    ) -> int:
        eager, _ = self._play(make, kind, train=train, compiled=False)
        self.assertFalse(same(eager[0], eager[1]))
        compiled, graphs = self._play(make, kind, train=train, compiled=True, **options)
        self.assertTrue(same(eager, compiled), f"eager {eager}\ncompiled {compiled}")
        return graphs


class OpaqueTests(OpaqueTestCase):
    @parametrize("kind", KINDS)
    @parametrize("name", OPAQUE)
    def test_training(self, name: str, kind: str) -> None:
        self.check_opaque(OPAQUE[name], kind, train=True)

    @parametrize("kind", [kind for kind in KINDS if "backward" not in kind])
    @parametrize("name", OPAQUE)
    def test_inference(self, name: str, kind: str) -> None:
        self.check_opaque(OPAQUE[name], kind, train=False)

    @parametrize("kind", ("forward_pre", "forward", *FULL_BACKWARD_KINDS))
    @parametrize("name", ("rnn", "gru", "lstm"))
    def test_recurrent_modules_that_are_allowed(self, name: str, kind: str) -> None:
        with torch._dynamo.config.patch(allow_rnn=True):
            graphs = self.check_opaque(OPAQUE[name], kind, train=True, fullgraph=True)
        self.assertLessEqual(graphs, 3)


class WholeTests(OpaqueTestCase):
    @parametrize("kind", ("forward_pre", "forward", *FULL_BACKWARD_KINDS))
    @parametrize("name", WHOLE)
    def test_training(self, name: str, kind: str) -> None:
        graphs = self.check_opaque(WHOLE[name], kind, train=True, fullgraph=True)
        self.assertLessEqual(graphs, 3)

    @parametrize("kind", ("forward_pre", "forward"))
    @parametrize("name", WHOLE)
    def test_inference(self, name: str, kind: str) -> None:
        graphs = self.check_opaque(WHOLE[name], kind, train=False, fullgraph=True)
        self.assertLessEqual(graphs, 3)

    @parametrize("name", ("encoder_layer", "encoder", "attention"))
    def test_hooks_inside_of_a_fast_path(self, name: str) -> None:
        def seen(compiled: bool) -> list[Any]:
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = Around(WHOLE[name]()).eval()
            call = torch.compile(model, backend="aot_eager") if compiled else model
            x = torch.randn(2, 3, 4)
            log: list[Any] = []
            with torch.no_grad():
                log.append(call(x))
                for path, module in model.inner.named_modules():
                    if isinstance(module, nn.Linear):
                        module.register_forward_hook(
                            lambda m, args, out, path=path: log.append((path, out))
                        )
                log.append(call(x))
                log.append(call(x))
            return log

        self.assertTrue(same(seen(False), seen(True)))


instantiate_parametrized_tests(OpaqueTests)
instantiate_parametrized_tests(WholeTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
