# Owner(s): ["module: dynamo"]
"""Order of hooks, and the ``with_kwargs`` and ``always_call`` marks of hook ids."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from hook_kinds import (
    edit,
    FORWARD_KINDS,
    global_hook_dict,
    hook_dict,
    KINDS,
    PREPENDABLE_KINDS,
    register,
    register_global,
    watch,
)
from hook_programs import BACKENDS, Caught, HookTestCase, Run, WRAPS


class OrderTests(HookTestCase):
    """Hooks run in the order eager iterates in, not that of the dict underneath."""

    @parametrize("wrap", WRAPS)
    @parametrize("kind", PREPENDABLE_KINDS)
    def test_prepended_before_first_call(self, kind: str, wrap: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind, 2.0))
            register(block, kind, edit(kind, 1.0, 3.0), prepend=True)
            run.step()

        self.check(scenario, wrap=wrap)

    @parametrize("backend", BACKENDS)
    @parametrize("kind", PREPENDABLE_KINDS)
    def test_three_hooks_each_prepended(self, kind: str, backend: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            for scale, shift in ((2.0, 0.0), (1.0, 3.0), (0.5, 1.0)):
                register(block, kind, edit(kind, scale, shift), prepend=True)
                run.step()

        self.check(scenario, backend=backend, distinct=3)

    @parametrize("kind", KINDS)
    def test_every_order_of_three_hooks(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            edits = ((2.0, 0.0), (1.0, 3.0), (0.5, 1.0))
            handles = [register(block, kind, edit(kind, *e)) for e in edits]
            run.step()
            for index in (0, 1, 0, 2, 1):
                hook_dict(block, kind).move_to_end(handles[index].id)
                run.step()

        self.check(scenario)

    @parametrize("kind", KINDS)
    def test_many_hooks_rotated(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            for i in range(8):
                register(block, kind, edit(kind, 0.5 + i / 4, 0.1 * i))
            run.step()
            hooks = hook_dict(block, kind)
            for _ in range(3):
                hooks.move_to_end(next(iter(hooks)))
                run.step()

        self.check(scenario, distinct=4)

    @parametrize("kind", KINDS)
    def test_moved_to_front(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind, 2.0))
            last = register(block, kind, edit(kind, 1.0, 3.0))
            run.step()
            hook_dict(block, kind).move_to_end(last.id, last=False)
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_moved_and_moved_back(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            first = register(block, kind, edit(kind, 2.0))
            last = register(block, kind, edit(kind, 1.0, 3.0))
            for handle in (last, first, last, first, last):
                hook_dict(block, kind).move_to_end(handle.id)
                run.step()

        self.check(scenario, distinct=2)

    @parametrize("wrap", ("call", "blocks"))
    def test_moved_on_every_module(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            modules = [*run.model.blocks, run.model.blocks[0].lin, run.model]
            for module in modules:
                module.register_forward_hook(edit("forward", 1.5, 0.0))
                module.register_forward_hook(edit("forward", 1.0, 0.5))
            run.step()
            for module in modules:
                hooks = module._forward_hooks
                hooks.move_to_end(next(iter(hooks)))
                run.step()

        self.check(scenario, wrap=wrap)

    @parametrize("kind", KINDS)
    def test_moved_on_root(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            first = register(run.model, kind, edit(kind, 2.0))
            register(run.model, kind, edit(kind, 1.0, 3.0))
            run.step()
            hook_dict(run.model, kind).move_to_end(first.id)
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    @parametrize("kind", KINDS)
    def test_order_then_removal(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            edits = ((2.0, 0.0), (1.0, 3.0), (0.5, 1.0))
            handles = [register(block, kind, edit(kind, *e)) for e in edits]
            hook_dict(block, kind).move_to_end(handles[0].id)
            run.step()
            handles[2].remove()
            run.step()
            handles[1].remove()
            run.step()

        self.check(scenario, distinct=3)

    @parametrize("kind", KINDS)
    def test_order_seen_in_log(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handles = [register(block, kind, watch(run.log, i)) for i in range(3)]
            run.step()
            hook_dict(block, kind).move_to_end(handles[0].id)
            run.step()
            hook_dict(block, kind).move_to_end(handles[2].id, last=False)
            run.step()

        self.check(scenario, distinct=1)

    @parametrize("kind", KINDS)
    def test_reassigned_in_another_order(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, edit(kind, 2.0))
            register(block, kind, edit(kind, 1.0, 3.0))
            run.step()
            hooks = hook_dict(block, kind)
            items = list(hooks.items())
            hooks.clear()
            hooks.update(reversed(items))
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", KINDS)
    def test_global_hooks_reordered(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            first = register_global(kind, edit(kind, 1.5, 0.0))
            register_global(kind, edit(kind, 1.0, 0.5))
            run.step()
            global_hook_dict(kind).move_to_end(first.id)
            run.step()
            global_hook_dict(kind).move_to_end(first.id, last=False)
            run.step()

        self.check(scenario, wrap="inplace", distinct=2)

    def test_global_hooks_before_module_hooks(self) -> None:
        def scenario(run: Run) -> None:
            run.step()
            block = run.model.blocks[1]
            handle = block.register_forward_hook(
                edit("forward", 2.0, 0.0), prepend=True
            )
            register_global("forward", edit("forward", 1.0, 0.5))
            run.step()
            handle.remove()
            run.step()

        self.check(scenario, wrap="inplace", distinct=3)

    def test_order_of_dict_with_marks(self) -> None:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            return output + kwargs["scale"]

        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            first = block.register_forward_hook(hook, with_kwargs=True)
            block.register_forward_hook(edit("forward", 2.0, 0.0))
            run.step()
            block._forward_hooks.move_to_end(first.id)
            run.step()

        self.check(scenario, distinct=2)

    def test_order_of_marks_does_not_matter(self) -> None:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            return output * 2.0 + kwargs["scale"]

        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            first = block.register_forward_hook(hook, with_kwargs=True)
            block.register_forward_hook(hook, with_kwargs=True)
            run.step()
            block._forward_hooks_with_kwargs.move_to_end(first.id)
            run.step()

        self.check(scenario, distinct=1)


def _either_forward(module: nn.Module, *values: Any) -> Any:
    """Forward hook that tells from its arguments whether it is marked."""
    if len(values) == 3:
        _, kwargs, output = values
        return output * 3.0 + len(kwargs)
    return values[1] * 2.0


def _either_pre(module: nn.Module, *values: Any) -> Any:
    """Forward pre-hook that tells from its arguments whether it is marked."""
    if len(values) == 2:
        args, kwargs = values
        return (args[0] * 3.0 + len(kwargs),), kwargs
    return (values[0][0] * 2.0,)


_EITHER = {"forward": _either_forward, "forward_pre": _either_pre}
_KWARGS_MARKS = {
    "forward": "_forward_hooks_with_kwargs",
    "forward_pre": "_forward_pre_hooks_with_kwargs",
}


class MarkTests(HookTestCase):
    """Marks edited or moved while the hooks stay as they were."""

    @parametrize("backend", BACKENDS)
    @parametrize("wrap", WRAPS)
    @parametrize("kind", FORWARD_KINDS)
    def test_with_kwargs_mark_moved_to_other_hook(
        self, kind: str, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            first = register(block, kind, _EITHER[kind], with_kwargs=True)
            second = register(block, kind, _EITHER[kind])
            run.step()
            marks = getattr(block, _KWARGS_MARKS[kind])
            marks[second.id] = marks.pop(first.id)
            run.step()

        self.check(scenario, wrap=wrap, backend=backend, distinct=2)

    @parametrize("kind", FORWARD_KINDS)
    def test_with_kwargs_mark_added_and_taken_away(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handle = register(block, kind, _EITHER[kind])
            marks = getattr(block, _KWARGS_MARKS[kind])
            run.step()
            marks[handle.id] = True
            run.step()
            del marks[handle.id]
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FORWARD_KINDS)
    def test_with_kwargs_mark_of_false_counts_as_marked(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handle = register(block, kind, _EITHER[kind])
            run.step()
            getattr(block, _KWARGS_MARKS[kind])[handle.id] = False
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FORWARD_KINDS)
    def test_with_kwargs_marks_reassigned(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            handle = register(block, kind, _EITHER[kind])
            run.step()
            block.__dict__[_KWARGS_MARKS[kind]] = OrderedDict({handle.id: True})
            run.step()
            setattr(block, _KWARGS_MARKS[kind], OrderedDict())
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FORWARD_KINDS)
    def test_mark_without_its_hook_changes_nothing(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            register(block, kind, _EITHER[kind])
            run.step()
            getattr(block, _KWARGS_MARKS[kind])[10**6] = True
            run.step()

        self.check(scenario, distinct=1)

    @parametrize("kind", FORWARD_KINDS)
    def test_mark_for_hook_registered_later(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            getattr(block, _KWARGS_MARKS[kind])[10**6] = True
            run.step()
            hook_dict(block, kind)[10**6] = _EITHER[kind]
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("kind", FORWARD_KINDS)
    def test_marked_hook_swapped_with_plain_hook(self, kind: str) -> None:
        def scenario(run: Run) -> None:
            block = run.model.blocks[1]
            for marked in (True, False, True):
                handle = register(block, kind, _EITHER[kind], with_kwargs=marked)
                run.step()
                handle.remove()

        self.check(scenario, distinct=2)

    def test_marks_of_one_module_on_another(self) -> None:
        def scenario(run: Run) -> None:
            first, second, _ = run.model.blocks
            handle = first.register_forward_hook(_either_forward, with_kwargs=True)
            second._forward_hooks[handle.id] = _either_forward
            run.step()
            second._forward_hooks_with_kwargs = first._forward_hooks_with_kwargs
            run.step()

        self.check(scenario, distinct=2)

    @parametrize("backend", BACKENDS)
    @parametrize("wrap", ("call", "inplace", "function"))
    def test_always_call_mark_moved_to_other_hook(
        self, wrap: str, backend: str
    ) -> None:
        def scenario(run: Run) -> None:
            inner = run.model.inner
            first = inner.register_forward_hook(watch(run.log, "a"), always_call=True)
            second = inner.register_forward_hook(watch(run.log, "b"))
            run.step(fail=False)
            run.step(fail=True)
            marks = inner._forward_hooks_always_called
            marks[second.id] = marks.pop(first.id)
            run.step(fail=False)
            run.step(fail=True)

        self.check(scenario, make=Caught, wrap=wrap, backend=backend, distinct=2)

    @parametrize("wrap", ("call", "inplace", "function"))
    def test_always_call_mark_added_and_taken_away(self, wrap: str) -> None:
        def scenario(run: Run) -> None:
            inner = run.model.inner
            handle = inner.register_forward_hook(watch(run.log, "a"))
            run.step(fail=True)
            inner._forward_hooks_always_called[handle.id] = True
            run.step(fail=True)
            inner._forward_hooks_always_called.clear()
            run.step(fail=True)

        self.check(scenario, make=Caught, wrap=wrap, distinct=1)

    def test_always_call_marks_reassigned(self) -> None:
        def scenario(run: Run) -> None:
            inner = run.model.inner
            handle = inner.register_forward_hook(watch(run.log, "a"))
            run.step(fail=True)
            inner._forward_hooks_always_called = OrderedDict({handle.id: True})
            run.step(fail=True)

        self.check(scenario, make=Caught, distinct=1)

    @parametrize("kind", FORWARD_KINDS)
    def test_global_marks_do_not_apply_to_pre_hooks(self, kind: str) -> None:
        # There is no global pre-hook mark: only a module's own dict is asked.
        def scenario(run: Run) -> None:
            run.step()
            handle = register_global(kind, _EITHER[kind])
            run.step()
            if kind == "forward":
                nn.modules.module._global_forward_hooks_with_kwargs[handle.id] = True
            else:
                run.model.blocks[1]._forward_pre_hooks_with_kwargs[handle.id] = True
            run.step()

        self.check(scenario, wrap="inplace", distinct=3)


instantiate_parametrized_tests(OrderTests)
instantiate_parametrized_tests(MarkTests)

if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
