# Owner(s): ["module: dynamo"]
"""Hooks that are registered, removed, replaced or reordered between compiled calls.

The six behaviours everything else stands on, each for every kind of hook, every way
of compiling and two backends; then each way of editing a hook dict by itself. Files
``test_hooks_*.py`` beside this one hold the rest, by theme.
"""

from __future__ import annotations

import collections
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    subtest,
)

from hook_kinds import (
    dict_name,
    each_with_kinds,
    edit,
    Hook,
    hook_dict,
    KINDS,
    name_each,
    on_change,
    PREPENDABLE_KINDS,
    register,
    watch,
)
from hook_programs import BACKENDS, Block, HookTestCase, Run, slow, WRAPS


# All of them, two of the costlier ones only when slow tests are asked for.
CROSS = [
    subtest(
        (wrap, backend),
        name=f"wrap_{wrap}_backend_{backend}",
        decorators=[slow]
        if backend == "aot_eager" and wrap in ("inplace", "function")
        else [],
    )
    for wrap in WRAPS
    for backend in BACKENDS
]


class KeyBehaviourTests(HookTestCase):
    """Each key behaviour x kind of hook x way of compiling x backend."""

    @parametrize("wrap,backend", CROSS)
    @parametrize("kind", KINDS)
    def test_hook_registered_after_first_call_then_removed(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.blocks[1], kind, edit(kind))
            run.step()
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap,backend", CROSS)
    @parametrize("kind", KINDS)
    def test_hook_registered_before_compiling_then_removed(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            handle = register(run.model.blocks[1].lin, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()
            register(run.model.blocks[1].lin, kind, edit(kind))
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap,backend", CROSS)
    @parametrize("kind", KINDS)
    def test_hook_dict_cleared(self, kind: str, wrap: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            register(run.model.blocks[0], kind, edit(kind))
            run.step()
            hook_dict(run.model.blocks[0], kind).clear()
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap,backend", CROSS)
    @parametrize("kind", KINDS)
    def test_hook_dict_entry_replaced_in_place(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            handle = register(run.model.blocks[2], kind, edit(kind, 2.0))
            run.step()
            hook_dict(run.model.blocks[2], kind)[handle.id] = edit(kind, 3.0)
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap,backend", CROSS)
    @parametrize("kind", KINDS)
    def test_first_of_two_hooks_moved_to_end(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            first = register(block, kind, edit(kind, 2.0))
            register(block, kind, edit(kind, 1.0, 3.0))
            run.step()
            hook_dict(block, kind).move_to_end(first.id)
            run.step()

        # In eager legacy hooks all get grad_fn's own grad_input, edited in turn.
        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap,backend", CROSS)
    @parametrize("kind", KINDS)
    def test_submodule_replaced_by_hooked_one(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            run.step()
            other = nn.Linear(4, 4)
            other.load_state_dict(run.model.blocks[1].lin.state_dict())
            register(other, kind, edit(kind))
            run.model.blocks[1].lin = other
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)


class RegisterTests(HookTestCase):
    """The options of ``register_*`` and where the hooked module sits."""

    @parametrize("kind", PREPENDABLE_KINDS)
    @parametrize("wrap", ("call", "inplace"))
    def test_prepended_after_first_call(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind, 2.0))
            run.step()
            handle = register(block, kind, edit(kind, 1.0, 3.0), prepend=True)
            run.step()
            handle.remove()
            run.step()
            register(block, kind, edit(kind, 1.0, 3.0))
            run.step()

        self.check(scenario, wrap=wrap, distinct=3)

    @parametrize("wrap", WRAPS)
    def test_forward_hook_with_kwargs(self, wrap: str) -> None:
        def hook(
            module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor
        ) -> torch.Tensor:
            return output * (1.0 + kwargs["scale"])

        def scenario(run: Run) -> None:
            run.step()
            block = run.model.blocks[1]
            handle = block.register_forward_hook(hook, with_kwargs=True)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=2)

    @parametrize("wrap", WRAPS)
    def test_forward_pre_hook_with_kwargs_edits_them(self, wrap: str) -> None:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return args, {"scale": kwargs["scale"] * 3.0}

        def scenario(run: Run) -> None:
            run.step()
            block = run.model.blocks[1]
            handle = block.register_forward_pre_hook(hook, with_kwargs=True)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=2)

    def test_forward_pre_hook_with_kwargs_moves_argument_to_keyword(self) -> None:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return (), {"x": args[0] * 2.0, **kwargs}

        def scenario(run: Run) -> None:
            run.step()
            run.model.blocks[1].register_forward_pre_hook(hook, with_kwargs=True)
            run.step()

        self.check(scenario, distinct=2)

    def test_with_kwargs_hook_called_without_keywords(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            run.model.head.register_forward_hook(
                lambda module, args, kwargs, output: output * (2.0 + len(kwargs)),
                with_kwargs=True,
            )
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("prepend", (False, True))
    @parametrize("wrap", WRAPS)
    def test_forward_hook_with_every_option(self, wrap: str, prepend: bool) -> None:
        def hook(
            module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor
        ) -> torch.Tensor:
            return output * kwargs["scale"] + 1.0

        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            block.register_forward_hook(edit("forward"))
            run.step()
            handle = block.register_forward_hook(
                hook, prepend=prepend, with_kwargs=True, always_call=True
            )
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=2)

    @parametrize("backend", BACKENDS)
    def test_always_call_hook_when_nothing_raises(self, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.blocks[1].register_forward_hook(
                edit("forward"), always_call=True
            )
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, backend=backend, distinct=2)

    @parametrize("backend", BACKENDS)
    @parametrize("kind", KINDS)
    def test_hook_on_root(self, kind: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, backend=backend, distinct=2)

    @parametrize("wrap", ("inplace", "function"))
    @parametrize("kind", KINDS)
    def test_hook_on_root_compiled_otherwise(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, distinct=2)

    @parametrize("kind", KINDS)
    def test_hooks_on_root_child_and_grandchild_one_by_one(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            model = run.model
            run.step()
            handles = []
            for module in (model.blocks[0].act, model.blocks[1], model):
                handles.append(register(module, kind, edit(kind)))
                run.step()
            for handle in handles:
                handle.remove()
                run.step()

        self.check(scenario, distinct=6)

    @parametrize("kind", KINDS)
    def test_hook_on_root_in_blocks_compiled_one_by_one(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            register(run.model, kind, edit(kind))
            run.step()

        self.check(scenario, wrap="blocks", distinct=2)

    @parametrize("kind", KINDS)
    def test_hook_on_module_list_never_runs(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            register(run.model.blocks, kind, watch(run.log, "never"))
            run.step()

        self.check(scenario, distinct=1)

    @parametrize("wrap", WRAPS)
    def test_hooks_of_every_kind_together(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handles = [
                register(run.model.blocks[1], kind, edit(kind))
                for kind in PREPENDABLE_KINDS
            ]
            run.step()
            for handle in handles:
                handle.remove()
                run.step()

        self.check(scenario, wrap=wrap, distinct=5)

    @parametrize("kind", KINDS)
    def test_hook_seen_under_no_grad(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            with torch.no_grad():
                run.step(train=False)
                register(run.model.blocks[1], kind, edit(kind))
                run.step(train=False)
            run.step()

        self.check(scenario)

    @parametrize("kind", KINDS)
    def test_log_of_hooks_on_all_modules(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handles = [
                register(module, kind, watch(run.log, name))
                for name, module in run.model.named_modules()
            ]
            run.step()
            for handle in handles:
                handle.remove()
            run.step()

        self.check(scenario, distinct=1)

    @parametrize("backend", BACKENDS)
    @parametrize("kind", KINDS)
    def test_hooks_added_in_the_middle_of_training(
        self, kind: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1, momentum=0.9)
            handles: list[Any] = []
            for step in range(9):
                if step == 3:
                    handles.append(register(run.model.blocks[0], kind, edit(kind)))
                if step == 5:
                    handles.append(register(run.model.blocks[2].lin, kind, edit(kind)))
                if step == 7:
                    handles[0].remove()
                run.step()
                optimizer.step()

        self.check(scenario, backend=backend, distinct=9)

    @parametrize("kind", KINDS)
    def test_hooks_through_train_and_eval(self, kind: str) -> None:
        class DropNet(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()
                self.norm = nn.BatchNorm1d(4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.norm(self.block(x))

        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.block, kind, edit(kind))
            for train in (True, False, True):
                run.model.train(train)
                run.step()
            handle.remove()
            run.model.eval()
            run.step()
            run.model.train()
            run.step()

        self.check(scenario, make=DropNet)

    def test_forward_hook_that_reads_training_flag(self) -> None:
        def hook(
            module: nn.Module, args: Any, output: torch.Tensor
        ) -> torch.Tensor | None:
            return output * 2.0 if module.training else None

        def scenario(run: Run) -> None:
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            run.model.eval()
            run.step()
            run.model.train()
            run.step()

        self.check(scenario, distinct=2)

    def test_same_hook_registered_twice_runs_twice(self) -> None:
        def scenario(run: Run) -> None:
            hook = edit("forward")
            first = run.model.blocks[1].register_forward_hook(hook)
            run.step()
            run.model.blocks[1].register_forward_hook(hook)
            run.step()
            first.remove()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_hook_moved_to_the_next_block(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            hook = edit(kind)
            for block in run.model.blocks:
                handle = register(block, kind, hook)
                run.step()
                handle.remove()

        self.check(scenario, distinct=3)

    @parametrize("kind", KINDS)
    def test_handle_as_context_manager(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            with register(run.model.blocks[1], kind, edit(kind)):
                run.step()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_handle_removed_twice(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            handle = register(run.model.blocks[1], kind, edit(kind))
            other = register(run.model.blocks[1], kind, edit(kind, 1.0, 2.0))
            run.step()
            handle.remove()
            handle.remove()
            run.step()
            other.remove()
            run.step()

        self.check(scenario, distinct=3)

    @slow
    @parametrize("wrap", WRAPS)
    @parametrize("kind", KINDS)
    def test_registered_and_removed_on_inductor(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.blocks[1], kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap=wrap, backend="inductor", distinct=2)


def _assign(module: nn.Module, name: str, new: Any) -> None:
    setattr(module, name, new)


def _assign_in_dict(module: nn.Module, name: str, new: Any) -> None:
    module.__dict__[name] = new


def _assign_in_vars(module: nn.Module, name: str, new: Any) -> None:
    vars(module)[name] = new


def _update_dict(module: nn.Module, name: str, new: Any) -> None:
    module.__dict__.update({name: new})


def _object_setattr(module: nn.Module, name: str, new: Any) -> None:
    object.__setattr__(module, name, new)


def _replace_whole_dict(module: nn.Module, name: str, new: Any) -> None:
    module.__dict__ = {**module.__dict__, name: new}


REASSIGN = (
    _assign,
    _assign_in_dict,
    _assign_in_vars,
    _update_dict,
    _object_setattr,
    _replace_whole_dict,
)


def _pop(hooks: Any, kind: str) -> None:
    hooks.pop(next(iter(hooks)))


def _popitem(hooks: Any, kind: str) -> None:
    hooks.popitem()


def _popitem_first(hooks: Any, kind: str) -> None:
    hooks.popitem(last=False)


def _delete(hooks: Any, kind: str) -> None:
    del hooks[next(iter(hooks))]


def _update(hooks: Any, kind: str) -> None:
    hooks.update({next(iter(hooks)): edit(kind, 5.0), 10**6: edit(kind, 1.0, 7.0)})


def _setdefault(hooks: Any, kind: str) -> None:
    hooks.setdefault(10**6, edit(kind, 1.0, 7.0))


def _ior(hooks: Any, kind: str) -> None:
    hooks |= {10**6: edit(kind, 1.0, 7.0)}


def _set_item(hooks: Any, kind: str) -> None:
    hooks[10**6] = edit(kind, 1.0, 7.0)


def _swap_values(hooks: Any, kind: str) -> None:
    first, last = hooks
    hooks[first], hooks[last] = hooks[last], hooks[first]


def _reinsert(hooks: Any, kind: str) -> None:
    first = next(iter(hooks))
    hooks[first] = hooks.pop(first)


def _rename_key(hooks: Any, kind: str) -> None:
    items = [(key + 10**6, hook) for key, hook in hooks.items()]
    hooks.clear()
    hooks.update(reversed(items))


def _update_as_plain_dict(hooks: Any, kind: str) -> None:
    dict.update(hooks, {next(iter(hooks)): edit(kind, 5.0)})


def _set_item_as_plain_dict(hooks: Any, kind: str) -> None:
    dict.__setitem__(hooks, next(iter(hooks)), edit(kind, 5.0))


MUTATIONS = (
    _pop,
    _popitem,
    _popitem_first,
    _delete,
    _update,
    _setdefault,
    _ior,
    _set_item,
    _swap_values,
    _reinsert,
    _rename_key,
    _update_as_plain_dict,
    _set_item_as_plain_dict,
)


class HookDictTests(HookTestCase):
    """Hook dicts edited directly, without ``register_*`` and its handle."""

    @parametrize("mutate,kind", each_with_kinds(MUTATIONS), name_fn=name_each)
    def test_two_hooks_then_dict_edited(
        self, mutate: Callable[[Any, str], None], kind: str
    ) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind, 2.0))
            register(block, kind, edit(kind, 1.0, 3.0))
            run.step()
            mutate(hook_dict(block, kind), kind)
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("reassign,kind", each_with_kinds(REASSIGN), name_fn=name_each)
    def test_empty_dict_reassigned_by_full_one(
        self, reassign: Callable[[nn.Module, str, Any], None], kind: str
    ) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind)).remove()
            run.step()
            reassign(block, dict_name(kind), OrderedDict({0: edit(kind)}))
            run.step()
            reassign(block, dict_name(kind), OrderedDict())
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("reassign,kind", each_with_kinds(REASSIGN), name_fn=name_each)
    def test_full_dict_reassigned_by_another(
        self, reassign: Callable[[nn.Module, str, Any], None], kind: str
    ) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handle = register(block, kind, edit(kind, 2.0))
            run.step()
            new = OrderedDict({handle.id: edit(kind, 3.0)})
            reassign(block, dict_name(kind), new)
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_dict_reassigned_by_equal_copy_then_copy_edited(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handle = register(block, kind, edit(kind))
            run.step()
            setattr(block, dict_name(kind), hook_dict(block, kind).copy())
            run.step()
            handle.remove()  # acts on the old dict, if that still lives
            run.step()
            hook_dict(block, kind).clear()
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_dict_shared_by_two_modules(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            first, second, _ = run.model.blocks
            register(first, kind, edit(kind)).remove()
            register(second, kind, edit(kind)).remove()
            run.step()
            setattr(second, dict_name(kind), hook_dict(first, kind))
            run.step()
            register(first, kind, edit(kind))
            run.step()

        self.check(scenario, distinct=2)

    @parametrize(
        "new_type,kind",
        each_with_kinds((dict, collections.UserDict, collections.defaultdict)),
        name_fn=name_each,
    )
    def test_dict_replaced_by_another_type(self, new_type: type, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind)).remove()
            setattr(block, dict_name(kind), new_type())
            run.step()
            hook_dict(block, kind)[3] = edit(kind)
            run.step()
            hook_dict(block, kind)[3] = edit(kind, 4.0)
            run.step()
            hook_dict(block, kind).clear()
            run.step()

        self.check(scenario, distinct=3)

    @parametrize("kind", KINDS)
    def test_dict_replaced_by_subclass_of_ordered_dict(self, kind: str) -> None:
        class Reversed(OrderedDict):
            """Iterates backwards, as a user's priority queue of hooks may."""

            def items(self) -> Any:
                return reversed(list(super().items()))

            def values(self) -> Any:
                return reversed(list(super().values()))

        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind, 2.0))
            register(block, kind, edit(kind, 1.0, 3.0))
            run.step()
            setattr(block, dict_name(kind), Reversed(hook_dict(block, kind)))
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_keys_are_not_integers(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind)).remove()
            run.step()
            hook_dict(block, kind)["mine"] = edit(kind)
            run.step()
            hook_dict(block, kind)["mine"] = edit(kind, 3.0)
            run.step()

        self.check(scenario, distinct=3)

    @parametrize("kind", KINDS)
    def test_dict_cleared_on_all_modules(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            for module in run.model.modules():
                register(module, kind, edit(kind, 1.1, 0.1))
            run.step()
            for module in run.model.modules():
                hook_dict(module, kind).clear()
            run.step()

        self.check(scenario, distinct=2)


def _returned(kind: str, form: str) -> Hook:
    """A hook of ``kind`` that hands its edit back in the form named."""
    plain = edit(kind)

    def none(module: nn.Module, *values: Any) -> None:
        return None

    def one_tuple(module: nn.Module, *values: Any) -> Any:
        result = plain(module, *values)
        return result if isinstance(result, tuple) else (result,)

    def bare(module: nn.Module, *values: Any) -> Any:
        result = plain(module, *values)
        return result[0] if isinstance(result, tuple) else result

    def same_object(module: nn.Module, *values: Any) -> Any:
        return values[-1] if kind == "forward" else values[0]

    def as_list(module: nn.Module, *values: Any) -> Any:
        result = plain(module, *values)
        return list(result) if isinstance(result, tuple) else [result]

    forms = (none, one_tuple, bare, same_object, as_list)
    return {form.__name__: form for form in forms}[form]


class ReturnTests(HookTestCase):
    """What a hook may return, and edits in place."""

    @parametrize("form", ("none", "one_tuple", "bare", "same_object", "as_list"))
    @parametrize("kind", KINDS)
    def test_returns(self, kind: str, form: str) -> None:
        def scenario(run: Run) -> None:
            run.step()
            register(run.model.blocks[1].lin, kind, _returned(kind, form))
            run.step()

        self.check(scenario)

    @parametrize("backend", BACKENDS)
    @parametrize("kind", ("forward_pre", "forward"))
    def test_edits_in_place(self, kind: str, backend: str) -> None:
        def hook(module: nn.Module, args: Any, output: Any = None) -> None:
            (args[0] if output is None else output).mul_(2.0)

        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.blocks[1], kind, hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, backend=backend, distinct=2)

    def test_edits_parameter_in_place(self) -> None:
        def hook(module: Any, args: Any) -> None:
            with torch.no_grad():
                module.lin.weight.mul_(1.5)

        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.blocks[1].register_forward_pre_hook(hook)
            run.step()
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, distinct=3)

    def test_replaces_buffer(self) -> None:
        def make() -> nn.Module:
            model = Block()
            model.register_buffer("seen", torch.zeros(()))
            return model

        def hook(module: Any, args: Any, output: torch.Tensor) -> Any:
            module.seen = module.seen + 1.0
            return output * module.seen

        def scenario(run: Run) -> None:
            run.step()
            handle = run.model.register_forward_hook(hook)
            for _ in range(3):
                run.step()
            handle.remove()
            run.step()
            run.log.append(run.model.seen.item())

        self.check(scenario, make=make, distinct=3)

    def test_sets_attribute_that_forward_reads(self) -> None:
        class Gated(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Block()
                self.gate = torch.ones(())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x) * self.gate

        def scenario(run: Run) -> None:
            model = run.model

            def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
                model.gate = output.detach().mean()

            run.step()
            handle = model.inner.register_forward_hook(hook)
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Gated)

    def test_pre_hook_adds_positional_argument(self) -> None:
        class Two(nn.Module):
            def forward(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
                return x * by

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Two()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x)

        def scenario(run: Run) -> None:
            run.step()
            run.model.inner.register_forward_pre_hook(lambda m, args: (args[0], 3.0))
            run.step()

        self.check(scenario, make=Outer, distinct=2)

    def test_forward_hook_returns_other_structure(self) -> None:
        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                out = self.inner(x)
                return out["y"] * 2.0 if isinstance(out, dict) else out

        def scenario(run: Run) -> None:
            run.step()
            run.model.inner.register_forward_hook(lambda m, a, out: {"y": out + 1.0})
            run.step()

        self.check(scenario, make=Outer, distinct=2)

    @parametrize("kind", KINDS)
    def test_output_is_tuple_with_none(self, kind: str) -> None:
        class Pair(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> Any:
                return self.lin(x), None, x * 2.0

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Pair()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                a, _, b = self.inner(x)
                return a + b

        def scenario(run: Run) -> None:
            run.step()
            handle = register(run.model.inner, kind, edit(kind))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, make=Outer, distinct=2)

    def test_hook_changes_dtype(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            run.model.head.register_forward_hook(lambda m, a, out: out.double())
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", ("backward_pre", "full_backward"))
    def test_hook_with_its_own_tensor(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            factor = torch.tensor([1.0, 2.0, 3.0, 4.0])
            run.step()
            register(run.model.blocks[1], kind, on_change(kind, lambda t: t * factor))
            run.step()
            factor.mul_(2.0)
            run.step()

        self.check(scenario, distinct=3)


instantiate_parametrized_tests(KeyBehaviourTests)
instantiate_parametrized_tests(RegisterTests)
instantiate_parametrized_tests(HookDictTests)
instantiate_parametrized_tests(ReturnTests)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
