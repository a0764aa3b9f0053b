# Owner(s): ["module: dynamo"]
"""Hooks on what ``torch.compile`` returns for a module, and on the module behind it.

In eager a wrapper is a module that calls its one submodule: ``Same`` is the oracle.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import edit, FORWARD_KINDS, FULL_BACKWARD_KINDS, register
from hook_programs import HookTestCase, Net, no_global_hooks, same


KINDS = (*FORWARD_KINDS, *FULL_BACKWARD_KINDS)
CALLS: list[str] = []


class Same(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.tail = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self.inner(x)).tanh()


def counting(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
    CALLS.append("forward")
    return out + 1


def counting_backward(module: Any, grad_input: Any, grad_output: Any) -> None:
    CALLS.append("backward")


def outcome(call: Callable[..., torch.Tensor]) -> list[Any]:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    out = call(x)
    out.sum().backward()
    return [out.detach(), x.grad]


Where = Callable[[Any, Any], list[nn.Module]]
WHERE: dict[str, Where] = {
    "wrapper": lambda wrapper, inner: [wrapper],
    "inner": lambda wrapper, inner: [inner],
    "both": lambda wrapper, inner: [wrapper, inner],
}


class WrapperTestCase(HookTestCase):
    def check_like_eager(
        self, program: Callable[[Callable[..., Any]], list[Any]], graphs: int | None
    ) -> None:
        """``program`` gets what wraps a module; it returns what it saw."""
        eager = program(Same)
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = program(lambda m: torch.compile(m, backend=counter))
        self.assertTrue(same(eager, compiled), f"eager {eager}\ncompiled {compiled}")
        if graphs is not None:
            self.assertEqual(counter.frame_count, graphs)


class AloneTests(WrapperTestCase):
    @parametrize("kind", KINDS)
    @parametrize("where", WHERE)
    @parametrize("early", (True, False))
    def test_hooks(self, kind: str, where: str, early: bool) -> None:
        def program(wrap: Callable[..., Any]) -> list[Any]:
            torch.manual_seed(0)
            inner = Net()
            wrapper = wrap(inner)
            seen = [] if early else [outcome(wrapper)]
            handles = [
                register(module, kind, edit(kind, 2.0, float(i)))
                for i, module in enumerate(WHERE[where](wrapper, inner))
            ]
            seen.append(outcome(wrapper))
            handles[0].remove()
            seen.append(outcome(wrapper))
            return seen

        self.check_like_eager(program, None)

    def test_module_of_a_hook(self) -> None:
        inner = Net()
        wrapper: Any = torch.compile(inner, backend="eager")
        seen: list[Any] = []
        for module in (inner, wrapper):
            module.register_forward_hook(lambda module, *_: seen.append(module))
        wrapper(torch.ones(3, 4))
        self.assertIs(seen[0], inner)
        self.assertIs(seen[1], wrapper)

    def test_names(self) -> None:
        wrapper: Any = torch.compile(Net(), backend="eager")
        handle = wrapper.register_forward_hook(counting)
        self.assertTrue(hasattr(wrapper, "blocks"))
        self.assertIn("_orig_mod.blocks.0", dict(wrapper.named_modules()))
        self.assertEqual(len(wrapper._forward_hooks), 1)
        self.assertEqual(len(wrapper._orig_mod._forward_hooks), 0)
        handle.remove()
        self.assertEqual(len(wrapper._forward_hooks), 0)


class NestedTests(WrapperTestCase):
    """A compiled module that another compiled module calls."""

    def _program(
        self, kind: str, where: str, early: bool, top: Callable[..., Any]
    ) -> Callable[..., Any]:
        def program(wrap: Callable[..., Any]) -> list[Any]:
            torch.manual_seed(0)
            inner = Net()
            wrapper = wrap(inner)
            outer = Outer(wrapper)
            call = outer if wrap is Same else top(outer)
            seen = [] if early else [outcome(call)]
            handles = [
                register(module, kind, edit(kind, 2.0, float(i)))
                for i, module in enumerate(WHERE[where](wrapper, inner))
            ]
            seen.append(outcome(call))
            handles[0].remove()
            seen.append(outcome(call))
            return seen

        return program

    @parametrize("kind", KINDS)
    @parametrize("where", WHERE)
    @parametrize("early", (True, False))
    def test_hooks_on_the_wrapper(self, kind: str, where: str, early: bool) -> None:
        program = self._program(
            kind, where, early, lambda outer: torch.compile(outer, backend="aot_eager")
        )
        self.check_like_eager(program, 0)

    @parametrize("kind", KINDS)
    def test_whole(self, kind: str) -> None:
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        program = self._program(
            kind,
            "both",
            False,
            lambda outer: torch.compile(outer, backend=counter, fullgraph=True),
        )
        self.check_like_eager(program, 0)
        self.assertEqual(counter.frame_count, 3)

    def test_compiled_in_place(self) -> None:
        def program(wrap: Callable[..., Any]) -> list[Any]:
            torch.manual_seed(0)
            wrapper = wrap(Net())
            outer = Outer(wrapper)
            if wrap is not Same:
                outer.compile(backend="aot_eager")
            seen = [outcome(outer)]
            register(wrapper, "forward", edit("forward"))
            return [*seen, outcome(outer)]

        self.check_like_eager(program, 0)

    def test_global_hooks_see_what_they_see_in_eager(self) -> None:
        names: list[str] = []
        with no_global_hooks():
            nn.modules.module.register_module_forward_hook(
                lambda module, *_: names.append(type(module).__name__)
            )
            torch.manual_seed(0)
            compiled_inner: Any = torch.compile(Net(), backend="eager")
            outer = Outer(compiled_inner)
            torch.compile(outer, backend="eager")(torch.ones(3, 4))
            compiled = names.copy()
            names.clear()
            Outer(Net())(torch.ones(3, 4))
        self.assertEqual(compiled, names)


class CopyTests(HookTestCase):
    """Copies of a wrapper have its hooks, as copies of any module have."""

    def _check(self, copied: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        for on_wrapper in (True, False):
            torch._dynamo.reset()
            inner = nn.Sequential(nn.Linear(4, 2))
            wrapper: Any = torch.compile(inner, backend="eager")
            hooked = wrapper if on_wrapper else inner
            handle = hooked.register_forward_hook(counting)
            hooked.register_full_backward_hook(counting_backward)
            hooked.register_forward_pre_hook(edit_input, with_kwargs=True)
            CALLS.clear()
            expected = outcome(wrapper)
            twin = copied(wrapper)
            handle.remove()
            self.assertTrue(same(outcome(twin), expected))
            self.assertEqual(CALLS, ["forward", "backward"] * 2)
            self.assertFalse(same(outcome(wrapper), expected))

    def test_deepcopy(self) -> None:
        self._check(copy.deepcopy)

    def test_pickle(self) -> None:
        self._check(lambda wrapper: pickle.loads(pickle.dumps(wrapper)))

    def test_save(self) -> None:
        def saved(wrapper: Any) -> Any:
            file = io.BytesIO()
            torch.save(wrapper, file)
            file.seek(0)
            return torch.load(file, weights_only=False)

        self._check(saved)

    def test_hook_that_knows_its_wrapper(self) -> None:
        wrapper: Any = torch.compile(nn.Linear(4, 2), backend="eager")
        wrapper.register_forward_hook(Knows(wrapper))
        twin = copy.deepcopy(wrapper)
        (hook,) = twin._forward_hooks.values()
        self.assertIs(hook.module, twin)
        self.assertIsNot(twin, wrapper)


class Knows:
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, module: Any, args: Any, out: Any) -> None:
        assert module is self.module


def edit_input(module: Any, args: Any, kwargs: Any) -> Any:
    return (args[0] * 2,), kwargs


class Custom(nn.Linear):
    """Saves and loads in a way of its own, which takes no destination."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"custom": self.weight.detach().clone()}

    def load_state_dict(self, state: Any, strict: bool = True) -> str:  # type: ignore[override]
        with torch.no_grad():
            self.weight.copy_(state["custom"])
        return "loaded"


class Loads(nn.Linear):
    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        CALLS.append(" ".join(state_dict))
        return super().load_state_dict(state_dict, *args, **kwargs)


def add_extra(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    state[f"{prefix}extra"] = torch.ones(2)


Register = Callable[[nn.Module, list[Any]], Any]
STATE_DICT_HOOKS: dict[str, Register] = {
    "pre": lambda module, log: module.register_state_dict_pre_hook(
        lambda m, prefix, keep: log.append(("pre", prefix, keep))
    ),
    "post": lambda module, log: module.register_state_dict_post_hook(
        lambda m, state, prefix, metadata: log.append(("post", len(state)))
    ),
    "private": lambda module, log: module._register_state_dict_hook(add_extra),
    "load_pre": lambda module, log: module.register_load_state_dict_pre_hook(
        lambda m, state, prefix, *rest: log.append(("load pre", sorted(state)))
    ),
    "load_post": lambda module, log: module.register_load_state_dict_post_hook(
        lambda m, keys: log.append(("load post", *keys))
    ),
}
STATE_DICT_PROGRAMS: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "save": lambda model: lambda x: model(x) * model.state_dict()["0.weight"].sum(),
    "save_all": lambda model: (
        lambda x: {
            name: value * 2 for name, value in model.state_dict(prefix="p.").items()
        }
    ),
    "load": lambda model: (
        lambda x: (
            model.load_state_dict({"0.weight": x + 1, "0.bias": x[0]}),
            model(x),
        )[1]
    ),
}


class StateDictTests(HookTestCase):
    def test_overridden_both(self) -> None:
        wrapper: Any = torch.compile(Custom(2, 2), backend="eager")
        state = wrapper.state_dict()
        self.assertEqual(list(state), ["custom"])
        state["custom"] = torch.zeros(2, 2)
        self.assertEqual(wrapper.load_state_dict(state, strict=False), "loaded")
        self.assertEqual(wrapper.weight.detach(), torch.zeros(2, 2))

    def test_overridden_load(self) -> None:
        CALLS.clear()
        wrapper: Any = torch.compile(Loads(2, 2), backend="eager")
        state = wrapper.state_dict()
        self.assertEqual(list(state), ["_orig_mod.weight", "_orig_mod.bias"])
        for given in (state, wrapper._orig_mod.state_dict()):
            wrapper.load_state_dict(state_dict=given)
        self.assertEqual(CALLS, ["weight bias"] * 2)

    def test_keys_are_those_of_today(self) -> None:
        wrapper: Any = torch.compile(Net(), backend="eager")
        inner = wrapper._orig_mod.state_dict()
        state = wrapper.state_dict()
        self.assertEqual(list(state), [f"_orig_mod.{name}" for name in inner])
        first = next(iter(wrapper.state_dict(prefix="x.")))
        self.assertEqual(first, f"x._orig_mod.{next(iter(inner))}")
        self.assertEqual(
            str(wrapper.load_state_dict(state)), "<All keys matched successfully>"
        )

    def test_hooks_on_wrapper_and_module(self) -> None:
        def program(wrap: Callable[..., Any]) -> list[str]:
            log: list[str] = []
            inner = nn.Linear(2, 2)
            wrapper = wrap(inner)
            for name, module in (("wrapper", wrapper), ("inner", inner)):
                module.register_state_dict_pre_hook(
                    lambda m, prefix, keep, name=name: log.append(f"{name} pre")
                )
                module.register_state_dict_post_hook(
                    lambda m, state, prefix, meta, name=name: log.append(f"{name} post")
                )
                module.register_load_state_dict_pre_hook(
                    lambda m, *args, name=name: log.append(f"{name} load pre")
                )
                module.register_load_state_dict_post_hook(
                    lambda m, keys, name=name: log.append(f"{name} load post")
                )
            wrapper.load_state_dict(wrapper.state_dict())
            return log

        eager = program(Same)
        self.assertEqual(len(eager), 8)
        compiled = program(lambda module: torch.compile(module, backend="eager"))
        self.assertEqual(eager, compiled)

    @parametrize("kind", STATE_DICT_HOOKS)
    @parametrize("program", STATE_DICT_PROGRAMS)
    def test_inside_of_compiled_code(self, program: str, kind: str) -> None:
        def outcomes(compiled: bool) -> list[Any]:
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(2, 2))
            call = STATE_DICT_PROGRAMS[program](model)
            if compiled:
                call = torch.compile(call, backend="aot_eager")
            log: list[Any] = []
            x = torch.arange(4.0).reshape(2, 2)
            with torch.no_grad():
                log.append(call(x))
                handle = STATE_DICT_HOOKS[kind](model[0], log)
                log += [call(x), call(x)]
                handle.remove()
                log.append(call(x))
            return log

        eager, compiled = outcomes(False), outcomes(True)
        self.assertTrue(same(eager, compiled), f"eager {eager}\ncompiled {compiled}")

    def test_distributed_helpers(self) -> None:
        from torch.distributed.checkpoint.state_dict import (
            get_model_state_dict,
            set_model_state_dict,
        )

        wrapper: Any = torch.compile(Net(), backend="eager")
        wrapper.register_forward_hook(counting)
        state: dict[str, Any] = get_model_state_dict(wrapper)
        self.assertEqual(list(state), list(Net().state_dict()))
        zeros: dict[str, Any] = {
            name: torch.zeros_like(value) for name, value in state.items()
        }
        set_model_state_dict(wrapper, zeros)
        self.assertEqual(wrapper.head.weight.detach(), torch.zeros(2, 4))


instantiate_parametrized_tests(AloneTests)
instantiate_parametrized_tests(NestedTests)
instantiate_parametrized_tests(StateDictTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
