# Owner(s): ["module: dynamo"]
"""Modules that come and go with their hooks, and hooks that change hooks."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import (
    each_with_kinds,
    edit,
    FORWARD_KINDS,
    FULL_BACKWARD_KINDS,
    hook_dict,
    KINDS,
    name_each,
    register,
    watch,
)
from hook_programs import Block, HookTestCase, Net, Run, WRAPS


FULL_KINDS = FORWARD_KINDS + FULL_BACKWARD_KINDS


class PickledHook:
    """A forward hook that pickle can find by name."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output * self.by


def pickled_pre_hook(module: nn.Module, args: Any) -> Any:
    """A forward pre-hook that pickle can find by name."""
    return (args[0] * 2.0,)


def pickled_full_backward_hook(module: nn.Module, grads: Any, _: Any) -> Any:
    """A full backward hook that pickle can find by name."""
    return tuple(grad * 3.0 for grad in grads)


def pickled_backward_pre_hook(module: nn.Module, grads: Any) -> Any:
    """A backward pre-hook that pickle can find by name."""
    return tuple(grad * 0.5 for grad in grads)


PICKLED: dict[str, Callable[..., Any]] = {
    "forward": PickledHook(2.0),
    "forward_pre": pickled_pre_hook,
    "full_backward": pickled_full_backward_hook,
    "backward_pre": pickled_backward_pre_hook,
}


def _hooked_block(like: nn.Module, kind: str) -> Block:
    block = Block()
    block.load_state_dict(like.state_dict())
    register(block, kind, edit(kind))
    return block


def _list_item(model: Net, new: nn.Module) -> None:
    model.blocks[1] = new


def _modules_entry(model: Net, new: nn.Module) -> None:
    model.blocks._modules["1"] = new


def _setattr(model: Net, new: nn.Module) -> None:
    setattr(model.blocks, "1", new)


def _add_module(model: Net, new: nn.Module) -> None:
    model.blocks.add_module("1", new)


def _register_module(model: Net, new: nn.Module) -> None:
    model.blocks.register_module("1", new)


def _set_submodule(model: Net, new: nn.Module) -> None:
    model.set_submodule("blocks.1", new)


def _new_list(model: Net, new: nn.Module) -> None:
    model.blocks = nn.ModuleList([model.blocks[0], new, model.blocks[2]])


def _new_modules_dict(model: Net, new: nn.Module) -> None:
    model.blocks.__dict__["_modules"] = {**model.blocks._modules, "1": new}


def _swapped_list(model: Net, new: nn.Module) -> None:
    blocks = list(model.blocks)
    blocks[1] = new
    model._modules["blocks"] = nn.ModuleList(blocks)


REPLACE = (
    _list_item,
    _modules_entry,
    _setattr,
    _add_module,
    _register_module,
    _set_submodule,
    _new_list,
    _new_modules_dict,
    _swapped_list,
)


class ReplacedModuleTests(HookTestCase):
    """Submodules replaced by ones that already have hooks, or have none any more."""

    @parametrize(
        "replace,kind", each_with_kinds(REPLACE, FULL_KINDS), name_fn=name_each
    )
    def test_plain_block_replaced_by_hooked_one(
        self, replace: Callable[[Net, nn.Module], None], kind: str
    ) -> None:
        def scenario(run: Run) -> None:
            run.step()
            old = run.model.blocks[1]
            replace(run.model, _hooked_block(old, kind))
            run.step()
            replace(run.model, old)
            run.step()

        self.check(scenario, distinct=2)

    def test_legacy_hook_comes_with_replaced_block(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            run.model.blocks[1] = _hooked_block(run.model.blocks[1], "legacy_backward")
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FULL_KINDS)
    def test_hooked_blocks_swapped_in_list(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            blocks = run.model.blocks
            register(blocks[0], kind, edit(kind))
            run.step()
            blocks[0], blocks[2] = blocks[2], blocks[0]
            run.step()

        self.check(scenario, distinct=2)

    def test_list_grows_by_hooked_block(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            run.model.blocks.append(_hooked_block(run.model.blocks[0], "forward"))
            run.step()
            run.model.blocks.insert(0, _hooked_block(run.model.blocks[0], "forward"))
            run.step()
            del run.model.blocks[0]
            run.step()

        self.check(scenario, distinct=3)

    def test_replaced_by_subclass_with_hook(self) -> None:
        class Other(Block):
            pass

        def scenario(run: Run) -> None:
            run.step()
            other = Other()
            other.load_state_dict(run.model.blocks[1].state_dict())
            other.register_forward_hook(edit("forward"))
            run.model.blocks[1] = other
            run.step()

        self.check(scenario, distinct=2)

    def test_whole_dict_of_module_replaced(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            new = _hooked_block(run.model.blocks[1], "forward")
            run.model.blocks[1].__dict__ = new.__dict__
            run.step()

        self.check(scenario, distinct=2)

    def test_module_wrapped_by_sequential_with_hook(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            wrapper = nn.Sequential(run.model.head)
            wrapper.register_forward_hook(edit("forward"))
            run.model.head = wrapper
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FULL_KINDS)
    def test_block_replaced_by_its_deepcopy(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            old = run.model.blocks[1]
            handle = register(old, kind, edit(kind))
            run.step()
            run.model.blocks[1] = copy.deepcopy(old)
            run.step()
            handle.remove()
            run.step()
            hook_dict(run.model.blocks[1], kind).clear()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FULL_KINDS)
    def test_block_replaced_by_its_pickled_copy(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            register(run.model.blocks[1], kind, PICKLED[kind])
            run.step()
            run.model.blocks[1] = pickle.loads(pickle.dumps(run.model.blocks[1]))
            run.step()
            hook_dict(run.model.blocks[1], kind).clear()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FULL_KINDS)
    def test_set_state_brings_hooks(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            other = copy.deepcopy(run.model.blocks[1])
            register(other, kind, PICKLED[kind])
            run.model.blocks[1].__setstate__(other.__getstate__())
            run.step()

        self.check(scenario, distinct=2)


def _pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPY = (copy.deepcopy, copy.copy, _pickled, _saved)


class CopiedModelTests(HookTestCase):
    """Copies of a hooked model, compiled or not, keep their own hooks."""

    @parametrize("make_copy,kind", each_with_kinds(COPY, FULL_KINDS), name_fn=name_each)
    @parametrize("wrap", ("call", "inplace"))
    def test_copy_of_hooked_model(
        self, wrap: str, make_copy: Callable[[nn.Module], nn.Module], kind: str
    ) -> None:
        def scenario(run: Run) -> None:
            register(run.model.blocks[1], kind, PICKLED[kind])
            run.step()
            copied: Any = make_copy(run.model)
            call: Callable[..., Any] = copied
            if run.compiled and wrap == "call":
                call = torch.compile(copied, backend="eager")
            elif run.compiled:
                copied.compile(backend="eager")
            x = torch.ones(2, 4, requires_grad=True)
            for hooks in (True, False):
                if not hooks:
                    hook_dict(copied.blocks[1], kind).clear()
                (grad,) = torch.autograd.grad(call(x).sum(), x)
                run.log.append(call(x).detach())
                run.log.append(grad)
                run.step()

        self.check(scenario, wrap=wrap)

    @parametrize("kind", FULL_KINDS)
    def test_copy_of_compiled_wrapper(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            copied: Any = copy.deepcopy(run.call)
            x = torch.ones(2, 4, requires_grad=True)
            run.log.append(copied(x).detach())
            inner = copied._orig_mod if run.compiled else copied
            register(inner.blocks[1], kind, PICKLED[kind])
            out = copied(x)
            run.log.append(out.detach())
            run.log.append(torch.autograd.grad(out.sum(), x)[0])
            run.step()

        self.check(scenario, distinct=1)

    def test_state_dict_loaded_leaves_hooks(self) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(edit("forward"))
            run.step()
            state = {k: v * 2.0 for k, v in run.model.state_dict().items()}
            run.model.load_state_dict(state)
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("assign", (False, True))
    def test_state_dict_assigned_leaves_hooks(self, assign: bool) -> None:
        def scenario(run: Run) -> None:
            handle = run.model.blocks[1].register_forward_hook(edit("forward"))
            run.step()
            state = {k: v.clone() for k, v in run.model.state_dict().items()}
            run.model.load_state_dict(state, assign=assign)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, distinct=2)

    def test_dtype_of_hooked_model_changes(self) -> None:
        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(edit("forward"))
            run.step()
            run.model.double()
            run.step(torch.ones(3, 4, dtype=torch.float64))

        self.check(scenario, distinct=2)


class HooksChangeHooksTests(HookTestCase):
    """Hooks that register, remove or edit hooks while the model runs."""

    @parametrize(
        "wrap,backend", (*((wrap, "eager") for wrap in WRAPS), ("call", "aot_eager"))
    )
    @parametrize("kind", KINDS)
    def test_hook_removes_itself(self, kind: str, wrap: str, backend: str) -> None:
        plain = edit(kind)

        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> Any:
                handle.remove()
                return plain(module, *values)

            run.step()
            handle = register(run.model.blocks[1], kind, hook)
            run.step()
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("kind", KINDS)
    def test_hook_removes_itself_by_clearing(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> None:
                run.log.append("once")
                hook_dict(module, kind).clear()

            register(run.model.blocks[1], kind, hook)
            run.step()
            run.step()

        self.check(scenario, distinct=1)

    @parametrize("wrap", WRAPS)
    @parametrize("kind", FORWARD_KINDS)
    def test_first_of_two_hooks_removes_itself(self, kind: str, wrap: str) -> None:
        # Eager has a tuple of the hooks by then: the second still runs.
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> None:
                run.log.append("once")
                handle.remove()

            handle = register(run.model.blocks[1], kind, hook)
            register(run.model.blocks[1], kind, edit(kind))
            run.step()
            run.step()

        self.check(scenario, wrap=wrap, distinct=1)

    @parametrize("kind", FORWARD_KINDS)
    def test_hook_removes_the_next_one(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> None:
                second.remove()

            block = run.model.blocks[1]
            register(block, kind, hook)
            second = register(block, kind, edit(kind))
            run.step()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_hook_registers_another_on_same_module(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, *values: Any) -> None:
                run.log.append("adding")
                if len(hook_dict(module, kind)) < 3:
                    register(module, kind, edit(kind))

            register(run.model.blocks[1], kind, hook)
            for _ in range(4):
                run.step()

        self.check(scenario)

    @parametrize("wrap", ("call", "blocks"))
    @parametrize("kind", KINDS)
    def test_hook_registers_another_on_later_module(self, kind: str, wrap: str) -> None:
        order = (0, 2) if kind in FORWARD_KINDS else (2, 0)

        def scenario(run: Run) -> None:
            early, late = (run.model.blocks[i] for i in order)

            def hook(module: nn.Module, *values: Any) -> None:
                if not hook_dict(late, "forward"):
                    register(late, "forward", edit("forward"))

            register(early, kind, hook)
            run.step()
            run.step()

        self.check(scenario, wrap=wrap)

    @parametrize("kind", FORWARD_KINDS)
    def test_hook_removes_hook_of_later_module(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            first, _, last = run.model.blocks
            handle = register(last, kind, edit(kind))
            run.step()
            register(first, kind, lambda module, *values: handle.remove())
            run.step()
            run.step()

        self.check(scenario, distinct=2)

    def test_pre_hook_registers_forward_hook_on_same_module(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any) -> None:
                if not module._forward_hooks:
                    module.register_forward_hook(edit("forward"))

            run.model.blocks[1].register_forward_pre_hook(hook)
            run.step()
            run.step()

        self.check(scenario)

    def test_forward_hook_registers_tensor_hook(self) -> None:
        def scenario(run: Run) -> None:
            def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
                output.register_hook(lambda grad: grad * 3.0)

            run.step()
            handle = run.model.blocks[1].register_forward_hook(hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, distinct=2)

    def test_forward_hook_reorders_hooks_of_later_module(self) -> None:
        def scenario(run: Run) -> None:
            first, _, last = run.model.blocks
            one = last.register_forward_hook(edit("forward", 2.0, 0.0))
            last.register_forward_hook(edit("forward", 1.0, 3.0))
            run.step()
            first.register_forward_hook(
                lambda m, a, out: last._forward_hooks.move_to_end(one.id)
            )
            run.step()
            run.step()

        self.check(scenario, distinct=2)

    def test_hook_replaces_later_module(self) -> None:
        def scenario(run: Run) -> None:
            model = run.model
            new = _hooked_block(model.blocks[2], "forward")

            def hook(module: nn.Module, args: Any, output: Any) -> None:
                model.blocks._modules["2"] = new

            run.step()
            model.blocks[0].register_forward_hook(hook)
            run.step()
            run.step()

        self.check(scenario)

    def test_forward_registers_and_removes_hook(self) -> None:
        class Scoped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                handle = self.block.register_forward_hook(edit("forward"))
                x = self.block(x)
                handle.remove()
                return self.block(x)

        def scenario(run: Run) -> None:
            run.step()
            run.step()
            run.log.append(len(run.model.block._forward_hooks))

        self.check(scenario, make=Scoped, distinct=1)

    def test_forward_registers_hook_as_context_manager(self) -> None:
        class Scoped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with self.block.register_forward_hook(edit("forward")):
                    x = self.block(x)
                return self.block(x)

        def scenario(run: Run) -> None:
            run.step()
            run.step()
            run.log.append(len(run.model.block._forward_hooks))

        self.check(scenario, make=Scoped, distinct=1)


class CallingTests(HookTestCase):
    """How often and in which way the hooked module is called."""

    @parametrize("kind", KINDS)
    def test_module_shared_at_two_paths(self, kind: str) -> None:
        class Shared(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = Block()
                self.second = self.first

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.second(self.first(x) * 2.0)

        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.second, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()
            run.model.second = _hooked_block(run.model.first, kind)
            run.step()

        self.check(scenario, make=Shared, distinct=3)

    @parametrize("kind", KINDS)
    def test_module_called_several_times(self, kind: str) -> None:
        class Repeated(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for _ in range(3):
                    x = self.block(x)
                return x

        def scenario(run: Run) -> None:
            run.step()
            one = register(run.model.block, kind, edit(kind, 1.5, 0.1))
            two = register(run.model.block, kind, watch(run.log, kind))
            run.step()
            one.remove()
            two.remove()
            run.step()

        self.check(scenario, make=Repeated, distinct=2)

    @parametrize("kind", KINDS)
    def test_forward_called_directly_skips_hooks(self, kind: str) -> None:
        class Direct(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.block.forward(x)

        def scenario(run: Run) -> None:
            run.step()
            register(run.model.block, kind, watch(run.log, "never"))
            run.step()

        self.check(scenario, make=Direct, distinct=1)

    @parametrize("method", ("__call__", "_call_impl", "_wrapped_call_impl"))
    def test_called_through_method(self, method: str) -> None:
        class Through(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return getattr(self.block, method)(x)

        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.block.register_forward_hook(edit("forward"))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Through, distinct=2)

    @parametrize("kind", KINDS)
    def test_user_class_defines_call(self, kind: str) -> None:
        class OwnCall(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)

            def __call__(self, x: torch.Tensor) -> torch.Tensor:
                return super().__call__(x) * 2.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = OwnCall()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x)

        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.inner, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Outer, distinct=2)

    def test_user_call_that_never_runs_hooks(self) -> None:
        class NoHooks(nn.Module):
            def __call__(self, x: torch.Tensor) -> torch.Tensor:
                return self.forward(x)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2.0

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = NoHooks()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x)

        def scenario(run: Run) -> None:
            run.step()
            run.model.inner.register_forward_hook(watch(run.log, "never"))
            run.step()

        self.check(scenario, make=Outer, distinct=1)

    def test_forward_replaced_on_instance(self) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            block.register_forward_hook(edit("forward"))
            run.step()
            original = block.forward
            block.forward = lambda x, scale: original(x, scale=scale) * 3.0
            run.step()
            del block.forward
            run.step()

        self.check(scenario, distinct=2)

    def test_hooks_registered_inside_eager_part_of_function(self) -> None:
        def scenario(run: Run) -> None:
            model = run.model

            @torch.compiler.disable
            def toggle() -> None:
                hooks = model.blocks[1]._forward_hooks
                if hooks:
                    hooks.clear()
                else:
                    model.blocks[1].register_forward_hook(edit("forward"))

            def twice(x: torch.Tensor) -> torch.Tensor:
                first = model(x)
                toggle()
                return first + 2.0 * model(x)

            call = torch.compile(twice, backend="eager") if run.compiled else twice
            x = torch.ones(2, 4)
            for _ in range(4):
                run.log.append(call(x).detach())

        self.check(scenario)

    def test_number_of_hooks_changes_between_calls_in_one_function(self) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]

            def thrice(x: torch.Tensor) -> torch.Tensor:
                return block(block(block(x)))

            call = torch.compile(thrice, backend="eager") if run.compiled else thrice
            x = torch.ones(2, 4)
            handles: list[Any] = []
            for count in (0, 1, 2, 3, 1, 0, 2):
                while len(handles) < count:
                    hook = edit("forward", 1.0 + len(handles), 0.5)
                    handles.append(block.register_forward_hook(hook))
                while len(handles) > count:
                    handles.pop().remove()
                run.log.append(call(x).detach())

        self.check(scenario)

    @parametrize("container", ("sequential", "module_dict"))
    @parametrize("kind", KINDS)
    def test_containers(self, kind: str, container: str) -> None:
        class Dicted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleDict({"a": Block(), "b": nn.Linear(4, 4)})

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for part in self.parts.values():
                    x = part(x)
                return x

        def sequential() -> nn.Module:
            return nn.Sequential(
                nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)
            )

        def scenario(run: Run) -> None:
            run.step()
            modules = list(run.model.modules())[1:]
            for module in modules:
                if isinstance(module, nn.ModuleDict):
                    continue
                with register(module, kind, edit(kind)):
                    run.step()
            run.step()

        make = Dicted if container == "module_dict" else sequential
        self.check(scenario, make=make)

    @parametrize("kind", FORWARD_KINDS)
    def test_hooked_module_held_outside_of_module_tree(self, kind: str) -> None:
        class Holder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.hidden = [Block()]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.hidden[0](x)

        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.hidden[0], kind, edit(kind))
            run.step()
            handle.remove()
            run.step()
            run.model.hidden[0] = _hooked_block(run.model.hidden[0], kind)
            run.step()

        self.check(scenario, make=Holder)

    @parametrize("kind", FORWARD_KINDS)
    def test_hooked_module_as_argument_of_function(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            def apply(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
                return module(x)

            call = torch.compile(apply, backend="eager") if run.compiled else apply
            x = torch.ones(2, 4)
            first, second, _ = run.model.blocks
            handle = register(second, kind, edit(kind))
            for module in (first, second, first):
                run.log.append(call(module, x).detach())
            handle.remove()
            run.log.append(call(second, x).detach())

        self.check(scenario)

    @parametrize("kind", FORWARD_KINDS)
    def test_hooked_module_as_global_and_as_default(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[0]

            def apply(x: torch.Tensor, module: nn.Module = block) -> torch.Tensor:
                return module(x)

            call = torch.compile(apply, backend="eager") if run.compiled else apply
            x = torch.ones(2, 4)
            run.log.append(call(x).detach())
            register(block, kind, edit(kind))
            run.log.append(call(x).detach())

        self.check(scenario)

    @parametrize("kind", KINDS)
    def test_hook_under_checkpoint(self, kind: str) -> None:
        class Checkpointed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.utils.checkpoint.checkpoint(
                    self.block, x, use_reentrant=False
                )

        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.block, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Checkpointed, distinct=2)

    def test_lazy_module_with_hook(self) -> None:
        class Lazy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.LazyLinear(4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.lin(x)

        def scenario(run: Run) -> None:
            run.model.lin.register_forward_hook(edit("forward"))
            run.step(train=False)
            torch.manual_seed(1)
            nn.init.ones_(run.model.lin.weight)
            nn.init.zeros_(run.model.lin.bias)
            run.steps.clear()
            run.step()
            run.model.lin._forward_hooks.clear()
            run.step()

        self.check(scenario, make=Lazy, distinct=2)

    def test_hook_on_parametrized_module(self) -> None:
        class Halved(nn.Module):
            def forward(self, weight: torch.Tensor) -> torch.Tensor:
                return weight * 0.5

        def scenario(run: Run) -> None:
            head = run.model.head
            run.step()
            nn.utils.parametrize.register_parametrization(head, "weight", Halved())
            run.step()
            head.register_forward_hook(edit("forward"))
            run.step()
            halved = head.parametrizations.weight[0]
            halved.register_forward_hook(edit("forward", 4.0, 0.0))
            run.step()

        self.check(scenario, distinct=4)

    @parametrize("kind", FORWARD_KINDS)
    def test_hooks_under_autocast(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for hooked in (False, True):
                    if hooked:
                        register(run.model.blocks[1], kind, edit(kind))
                    run.log.append(run.call(torch.ones(2, 4)).detach())

        self.check(scenario)


instantiate_parametrized_tests(ReplacedModuleTests)
instantiate_parametrized_tests(CopiedModelTests)
instantiate_parametrized_tests(HooksChangeHooksTests)
instantiate_parametrized_tests(CallingTests)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
