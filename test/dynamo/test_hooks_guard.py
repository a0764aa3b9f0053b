# Owner(s): ["module: dynamo"]
"""The one guard on all module hooks of a frame, the native one and the one in Python.

What it says is compared with what a fresh look at the hooks says, after random edits.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import gc
import logging
import random
import subprocess
import sys
import threading
import tracemalloc
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.nn_module_hooks import module_paths, python_hook_guard
from torch._dynamo.nn_module_hooks.module_paths import ExpectedHooks
from torch._dynamo.nn_module_hooks.state import any_global_mark, KINDS, MARKS
from torch.nn.modules import module as nn_module
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.logging_utils import LoggingTestCase, make_logging_test

from hook_programs import HookTestCase, Net, no_global_hooks, slow


GUARDS = {
    "native": module_paths.HookGuard,
    "python": python_hook_guard.HookGuard,
}


def tree(depth: int = 2) -> Any:
    """A module with two submodules, which have two each, and so on."""
    module = nn.Module()
    if depth:
        for name in ("left", "right"):
            module.add_module(name, tree(depth - 1))
    return module


def hook(*args: Any) -> None:
    """Does nothing."""


class Watch:
    """A guard on all modules of a tree, and the oracle that knows the same."""

    def __init__(self, guard: type, root: nn.Module, name: str = "root") -> None:
        self.report: list[str] = ["as it was"]
        self.guard = guard(self.report, any_global_mark)
        self.expected: dict[tuple[str, ...], ExpectedHooks] = {}
        self._add(root, (), self.guard.add_root(name, name), 0)

    def _add(
        self, module: nn.Module, path: tuple[str, ...], root: int, node: int
    ) -> None:
        expected = ExpectedHooks.of(module)
        self.expected[path] = expected
        self.guard.expect(
            root, node, expected.sizes, expected.are_plain, expected.are_those_of
        )
        for key, child in module._modules.items():
            if child is not None:
                name = ".".join((*path, key))
                at = self.guard.add_child(root, node, key, name)
                self._add(child, (*path, key), root, at)

    def oracle(self, root: Any) -> bool:
        """What a look at everything, from the root down, says."""
        try:
            for path, expected in self.expected.items():
                module = root
                for key in path:
                    module = module.__dict__["_modules"][key]
                for kind in KINDS:
                    hooks = module.__dict__[kind.hooks]
                    if type(hooks) not in (dict, collections.OrderedDict):
                        return False
                if ExpectedHooks.of(module) != expected:
                    return False
        except (AttributeError, KeyError, TypeError):
            return False
        return True

    def __call__(self, root: Any) -> bool:
        return self.guard({"root": root})


def _modules(root: nn.Module) -> list[nn.Module]:
    return [m for m in root.modules() if type(m) is nn.Module]


class Edits:
    """Random edits of the hooks and submodules of a tree, most of them undone soon."""

    def __init__(self, root: nn.Module, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self._undo: list[Callable[[], object]] = []

    def step(self) -> None:
        if self._undo and self.random.random() < 0.6:
            self._undo.pop()()
            return
        modules = _modules(self.root)
        edits = (
            self._register,
            self._replace_dict,
            self._edit_dict,
            self._move,
            self._mark,
            self._swap,
            self._drop,
            self._touch,
            self._replace_attributes,
            self._hook_globally,
        )
        self.random.choice(edits)(self.random.choice(modules))

    def _register(self, module: nn.Module) -> None:
        r = self.random
        register = r.choice(
            (
                lambda: module.register_forward_hook(
                    hook,
                    prepend=r.random() < 0.3,
                    with_kwargs=r.random() < 0.3,
                    always_call=r.random() < 0.3,
                ),
                lambda: module.register_forward_pre_hook(hook, prepend=True),
                lambda: module.register_full_backward_hook(hook),
                lambda: module.register_full_backward_pre_hook(hook),
            )
        )
        # Not every dict that may be there now is one to register a hook in.
        with contextlib.suppress(AttributeError, TypeError):
            self._undo.append(register().remove)

    def _kind(self) -> str:
        return self.random.choice(KINDS).hooks

    def _replace_dict(self, module: nn.Module) -> None:
        name, old = self._kind(), dict(module.__dict__)
        of = (collections.OrderedDict, dict, collections.UserDict)
        new = self.random.choice(of)(old[name])
        if self.random.random() < 0.5:
            new[10**6] = hook
        if self.random.random() < 0.5:
            setattr(module, name, new)
        else:
            module.__dict__[name] = new
        self._undo.append(lambda: setattr(module, name, old[name]))

    def _edit_dict(self, module: nn.Module) -> None:
        hooks = module.__dict__[self._kind()]
        old = list(hooks.items())
        if self.random.random() < 0.5:
            hooks.clear()
        else:
            hooks[self.random.randrange(10)] = hook

        def undo() -> None:
            hooks.clear()
            hooks.update(old)

        self._undo.append(undo)

    def _move(self, module: nn.Module) -> None:
        hooks = module.__dict__[self._kind()]
        if type(hooks) is collections.OrderedDict and hooks:
            first = next(iter(hooks))
            hooks.move_to_end(first)

            def undo() -> None:
                if first in hooks:
                    hooks.move_to_end(first, last=False)

            self._undo.append(undo)

    def _mark(self, module: nn.Module) -> None:
        kind = self.random.choice([kind for kind in KINDS if kind.marks])
        marks = module.__dict__[self.random.choice(kind.marks)]
        for hook_id in list(module.__dict__[kind.hooks])[:1]:
            if hook_id not in marks:
                marks[hook_id] = True
                self._undo.append(functools.partial(marks.pop, hook_id, None))

    def _swap(self, module: nn.Module) -> None:
        if not module._modules:
            return
        key = self.random.choice(list(module._modules))
        old = module._modules[key]
        module._modules[key] = self.random.choice(
            (copy.deepcopy(old), tree(0), tree(1), nn.ReLU(), None)
        )
        self._undo.append(lambda: module._modules.__setitem__(key, old))

    def _drop(self, module: nn.Module) -> None:
        if module._modules:
            key = self.random.choice(list(module._modules))
            old = module._modules.pop(key)
            self._undo.append(lambda: module._modules.__setitem__(key, old))

    def _touch(self, module: nn.Module) -> None:
        setattr(module, self.random.choice(("calls", "training")), True)
        module.__dict__.pop("calls", None)

    def _replace_attributes(self, module: nn.Module) -> None:
        old = module.__dict__
        new = copy.copy(old)
        new["_forward_hooks"] = copy.copy(new["_forward_hooks"])
        if self.random.random() < 0.5:
            new["_forward_hooks"][10**7] = hook
        module.__dict__ = new
        self._undo.append(lambda: setattr(module, "__dict__", old))

    def _hook_globally(self, module: nn.Module) -> None:
        with_kwargs = self.random.random() < 0.5
        handle = nn_module.register_module_forward_hook(hook, with_kwargs=with_kwargs)
        self._undo.append(handle.remove)

    def undo_all(self) -> None:
        while self._undo:
            self._undo.pop()()


class HookGuardTests(HookTestCase):
    def test_the_native_guard_is_the_one_in_use(self) -> None:
        self.assertEqual(
            type(module_paths.HookGuard.add_root).__name__, "method_descriptor"
        )

    def _play(self, guard: str, seed: int, steps: int) -> set[bool]:
        with no_global_hooks():
            roots = [tree(), tree()]
            edits = [Edits(root, seed + i) for i, root in enumerate(roots)]
            for edit in edits:
                for _ in range(seed % 5):
                    edit._register(edit.random.choice(_modules(edit.root)))
            watches = [Watch(GUARDS[guard], root) for root in roots]
            said = set()
            for step in range(steps):
                for edit in edits:
                    edit.step()
                for watch in watches:
                    for root in roots:
                        expected = watch.oracle(root)
                        said.add(expected)
                        self.assertEqual(
                            watch(root), expected, (seed, step, watch.report)
                        )
            for edit in edits:
                edit.undo_all()
        return said

    @parametrize("guard", GUARDS)
    def test_random_edits(self, guard: str) -> None:
        said = set()
        for seed in range(100):
            said |= self._play(guard, seed, 40)
        self.assertEqual(said, {False, True})

    @slow
    @parametrize("guard", GUARDS)
    def test_many_random_edits(self, guard: str) -> None:
        for seed in range(100, 1500):
            self._play(guard, seed, 40)

    @parametrize("guard", GUARDS)
    @parametrize("kind", [kind.hooks for kind in KINDS])
    def test_says_what_changed(self, guard: str, kind: str) -> None:
        root = tree()
        watch = Watch(GUARDS[guard], root)
        self.assertTrue(watch(root))
        hooks = root.left.right.__dict__[kind]
        called = kind.strip("_").removesuffix("s").replace("_", " ")
        called = called.replace("pre hook", "pre-hook")
        hooks[1] = hook
        self.assertFalse(watch(root))
        self.assertEqual(watch.report, [f"left.right: {called} added"])
        watch = Watch(GUARDS[guard], root)
        hooks.clear()
        self.assertFalse(watch(root))
        self.assertEqual(watch.report, [f"left.right: {called} removed"])

    @parametrize("guard", GUARDS)
    def test_says_what_else_is_wrong(self, guard: str) -> None:
        root = tree()
        for _ in range(2):
            root.left.register_forward_hook(hook)
        watch = Watch(GUARDS[guard], root)
        self.assertTrue(watch(root))
        root.left._forward_hooks.move_to_end(next(iter(root.left._forward_hooks)))
        self.assertFalse(watch(root))
        self.assertEqual(watch.report, ["left: order or marks of hooks changed"])
        root.left._forward_hooks = collections.UserDict(root.left._forward_hooks)
        self.assertFalse(watch(root))
        self.assertEqual(watch.report, ["left: _forward_hooks is of another type"])
        del root.left
        self.assertFalse(watch(root))
        self.assertEqual(watch.report, ["left: the module is gone"])
        self.assertFalse(watch.guard({}))
        self.assertEqual(watch.report, ["root: the module is gone"])

    @parametrize("guard", GUARDS)
    @parametrize("kind", [kind.hooks for kind in KINDS])
    def test_a_dict_that_is_replaced_and_kept(self, guard: str, kind: str) -> None:
        root = tree()
        watch = Watch(GUARDS[guard], root)
        self.assertTrue(watch(root))
        kept = root.left.__dict__[kind]
        for new in ({1: hook}, {}, {2: hook}, kept):
            # No other attribute changes, and nothing is freed.
            setattr(root.left, kind, new)
            self.assertEqual(watch(root), not new, new)
        kept[3] = hook
        self.assertFalse(watch(root))

    @parametrize("guard", GUARDS)
    def test_attributes_that_are_replaced(self, guard: str) -> None:
        root = tree()
        watch = Watch(GUARDS[guard], root)
        self.assertTrue(watch(root))
        old = root.right.left.__dict__
        new = {**old, "_forward_hooks": collections.OrderedDict({1: hook})}
        root.right.left.__dict__ = new
        for _ in range(3):
            self.assertFalse(watch(root))
        root.right.left.__dict__ = old
        for _ in range(3):
            self.assertTrue(watch(root))

    @parametrize("guard", GUARDS)
    def test_what_is_no_module_is_not_the_module(self, guard: str) -> None:
        watch = Watch(GUARDS[guard], tree())
        for other in (None, 1, "root", object(), type, types.SimpleNamespace(), [1]):
            self.assertFalse(watch(other))
        self.assertTrue(watch(tree()))

    @parametrize("guard", GUARDS)
    def test_a_root_that_cannot_be_weakly_referenced(self, guard: str) -> None:
        class Slotted:
            __slots__ = ("__dict__",)

        root = Slotted()
        root.__dict__.update(tree().__dict__)
        watch = Watch(GUARDS[guard], tree())
        self.assertTrue(watch(root))
        root.__dict__["_modules"]["left"].register_forward_hook(hook)
        self.assertFalse(watch(root))

    @parametrize("guard", GUARDS)
    def test_a_root_found_by_a_function(self, guard: str) -> None:
        root = tree(0)
        report: list[str] = []
        made = GUARDS[guard](report, any_global_mark)
        index = made.add_root(lambda frame: frame["all"][0], "all[0]")
        expected = ExpectedHooks.of(root)
        made.expect(index, 0, expected.sizes, True, expected.are_those_of)
        self.assertTrue(made({"all": [root]}))
        frames: tuple[dict[str, Any], ...] = ({}, {"all": []}, {"all": 1})
        for frame in frames:
            self.assertFalse(made(frame))
            self.assertEqual(report, ["all[0]: the module is gone"])
        root.register_forward_hook(hook)
        self.assertFalse(made({"all": [root]}))

    @parametrize("guard", GUARDS)
    def test_is_called_wrongly(self, guard: str) -> None:
        made: Any = GUARDS[guard]([], any_global_mark)
        with self.assertRaises(IndexError):
            made.add_child(0, 0, "left", "left")
        with self.assertRaises(IndexError):
            made.expect(0, 0, (0, 0, 0, 0), True, hook)
        with self.assertRaises(TypeError):
            made()

    @parametrize("guard", GUARDS)
    def test_keeps_nothing_alive(self, guard: str) -> None:
        def check_two() -> tuple[Watch, list[weakref.ref[nn.Module]]]:
            roots = [tree(), tree()]
            watch = Watch(GUARDS[guard], roots[0])
            for root in roots:
                # A hook that is there for a while, and holds all of the model.
                handle = root.register_forward_hook(lambda *_: roots)
                self.assertFalse(watch(root))
                handle.remove()
                self.assertTrue(watch(root))
            return watch, [weakref.ref(m) for root in roots for m in root.modules()]

        watch, kept = check_two()
        gc.collect()
        self.assertTrue(watch(tree()))
        self.assertEqual([reference() for reference in kept], [None] * len(kept))

    def test_a_memo_dies_with_its_root(self) -> None:
        watch = Watch(GUARDS["native"], tree())
        roots = [tree() for _ in range(1000)]
        for _ in range(2):
            self.assertTrue(all(watch(root) for root in roots))
        self.assertEqual(watch.guard.n_memos, 1000)
        del roots[10:]
        gc.collect()
        self.assertEqual(watch.guard.n_memos, 10)
        self.assertTrue(all(watch(root) for root in roots))

    def test_roots_that_outlive_the_guard(self) -> None:
        roots = [tree() for _ in range(10)]
        watch = Watch(GUARDS["native"], roots[0])
        self.assertTrue(all(watch(root) for root in roots))
        del watch
        del roots

    @parametrize("guard", GUARDS)
    def test_a_module_torn_down_while_it_is_checked(self, guard: str) -> None:
        root = tree()
        for child in (root.left, root.right):
            child.register_forward_hook(hook, with_kwargs=True)
        report: list[str] = []
        made = GUARDS[guard](report, any_global_mark)
        calls = []

        def find(frame: Any) -> nn.Module:
            return frame["root"]

        def check(module: nn.Module) -> bool:
            calls.append(module)
            root._modules.clear()
            gc.collect()
            return True

        index = made.add_root(find, "root")
        for key in ("left", "right"):
            node = made.add_child(index, 0, key, key)
            made.expect(index, node, (0, 1, 0, 0), False, check)
            made.add_child(index, node, "left", f"{key}.left")
        for _ in range(2):
            made({"root": root})
        self.assertGreaterEqual(len(calls), 1)
        self.assertFalse(made({"root": root}))

    @parametrize("guard", GUARDS)
    def test_threads(self, guard: str) -> None:
        shared = tree(3)
        watch = Watch(GUARDS[guard], shared)
        wrong: list[str] = []
        stop = threading.Event()

        def edit() -> None:
            edits = Edits(shared, 1)
            while not stop.is_set():
                edits.step()
            edits.undo_all()

        def check(seed: int) -> None:
            own = tree(3)
            for _ in range(300):
                watch(shared)
                if not watch(own):
                    wrong.append(f"{seed}: own tree")
                handle = own.left.right.register_forward_hook(hook)
                if watch(own):
                    wrong.append(f"{seed}: own hook")
                handle.remove()

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with no_global_hooks():
                checkers = [threading.Thread(target=check, args=(i,)) for i in range(4)]
                editor = threading.Thread(target=edit)
                for thread in (editor, *checkers):
                    thread.start()
                for thread in checkers:
                    thread.join()
                stop.set()
                editor.join()
                self.assertEqual(watch(shared), watch.oracle(shared))
        finally:
            sys.setswitchinterval(interval)
        # Global hooks with marks change what a model without hooks expects in no way.
        self.assertEqual(wrong, [])

    def test_interpreter_exit(self) -> None:
        code = (
            "import torch, torch._dynamo\n"
            "m = torch.nn.Sequential(torch.nn.ReLU())\n"
            "f = torch.compile(m, backend='eager')\n"
            "f(torch.ones(1))\n"
            "class Late:\n"
            "    def __del__(self):\n"
            "        f(torch.ones(1))\n"
            "m.late = Late()\n"
            "keep = [f, m]\n"
            "keep.append(keep)\n"
            "print('end')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd="/"
        )
        self.assertEqual((done.returncode, done.stdout), (0, "end\n"), done.stderr)


class CompiledGuardTests(HookTestCase):
    """The guard as a compiled frame has it."""

    def _reasons(self, change: Callable[[Any], object]) -> str:
        model = Net()
        reasons: list[str] = []
        compiled = torch.compile(model, backend="eager")
        x = torch.ones(2, 4)
        torch._dynamo.utils.guard_failures.clear()
        compiled(x)
        change(model)
        compiled(x)
        for failures in torch._dynamo.utils.guard_failures.values():
            reasons += [str(failure) for failure in failures]
        return "\n".join(reasons)

    def test_recompile_reasons_name_the_module_and_the_change(self) -> None:
        reason = self._reasons(lambda m: m.blocks[1].lin.register_forward_hook(hook))
        self.assertIn("blocks.1.lin: forward hook added", reason)

    def test_a_thousand_models_leave_nothing(self) -> None:
        # One compiled function: Dynamo keeps some bytes for each torch.compile.
        @torch.compile(backend="eager")
        def call(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return model(x)

        def once() -> list[weakref.ref[nn.Module]]:
            model = Net()
            x = torch.ones(2, 4)
            call(model, x)
            handle = model.blocks[0].register_forward_hook(hook)
            call(model, x)
            handle.remove()
            call(model, x)
            return [weakref.ref(module) for module in model.modules()]

        def size_after(models: int) -> int:
            for _ in range(models):
                kept = once()
                self.assertEqual([r() for r in kept if r() is not None], [])
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before = size_after(500)
        self.assertLess(size_after(500) - before, 20_000)

    def test_code_shared_by_many_instances(self) -> None:
        def make() -> nn.Sequential:
            return nn.Sequential(nn.Linear(2, 2), nn.ReLU())

        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        models = [make() for _ in range(50)]
        x = torch.ones(1, 2)
        for model in models:
            torch.compile(model, backend=counter)(x)
        self.assertEqual(counter.frame_count, 1)
        log: list[Any] = []
        models[7][1].register_forward_hook(lambda *_: log.append(0))
        for model in models:
            torch.compile(model, backend=counter)(x)
        self.assertEqual((counter.frame_count, len(log)), (2, 1))

    def test_modules_that_are_not_in_modules(self) -> None:
        class Hidden(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.hidden = [nn.ReLU(), nn.Sequential(nn.ReLU())]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for module in self.hidden:
                    x = module(x)
                return x

        model = Hidden()
        counter = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(model, backend=counter)
        x = torch.ones(1, 2)
        log: list[Any] = []
        compiled(x)
        inner = model.hidden[1]
        assert isinstance(inner, nn.Sequential)
        for module in (model.hidden[0], inner[0]):
            module.register_forward_hook(lambda *_: log.append(0))
            compiled(x)
        self.assertEqual((counter.frame_count, len(log)), (3, 3))

    def test_compile_call_delete_leaves_nothing(self) -> None:
        def once() -> list[Any]:
            model = Net()
            compiled = torch.compile(model, backend="eager")
            x = torch.ones(2, 4)
            compiled(x)
            model.blocks[0].register_forward_hook(hook)
            compiled(x)
            return [weakref.ref(module) for module in model.modules()]

        kept = [reference for _ in range(5) for reference in once()]
        torch._dynamo.reset()
        gc.collect()
        self.assertEqual([r() for r in kept if r() is not None], [])

    def test_marks_are_those_of_the_guard(self) -> None:
        # The native guard has the names of its own.
        names = {kind.hooks for kind in KINDS} | MARKS
        module = nn.Module()
        self.assertLessEqual(names, module.__dict__.keys())
        for name in sorted(names):
            root = tree(0)
            root.register_forward_hook(hook)
            root.register_forward_pre_hook(hook)
            watch = Watch(GUARDS["native"], root)
            self.assertTrue(watch(root))
            hook_ids = (*root._forward_hooks, *root._forward_pre_hooks)
            root.__dict__[name].update(dict.fromkeys((*hook_ids, -1), True))
            self.assertEqual(watch(root), watch.oracle(root), name)
            self.assertFalse(watch(root), name)


def change_a_hook() -> None:
    """Compile a model, add a hook, and compile it again."""
    model: Any = Net()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(2, 4))
    model.blocks[1].lin.register_forward_hook(hook)
    compiled(torch.ones(2, 4))


class GuardLogTests(LoggingTestCase):
    """What the logs say of the guard."""

    @make_logging_test(recompiles=True)
    def test_recompiles(self, records: list[logging.LogRecord]) -> None:
        change_a_hook()
        (record,) = records
        self.assertExpectedInline(
            record.getMessage().partition("\n")[2],
            """\
    triggered by the following guard failure(s):
    - 0/0: blocks.1.lin: forward hook added""",
        )

    @make_logging_test(recompiles_verbose=True)
    def test_recompiles_verbose(self, records: list[logging.LogRecord]) -> None:
        change_a_hook()
        (record,) = records
        self.assertExpectedInline(
            record.getMessage().partition("\n")[2],
            """\
    triggered by the following guard failure(s):
    guard 0 failures:
    - 0/0: blocks.1.lin: forward hook added""",
        )

    @make_logging_test(guards=True)
    def test_guards(self, records: list[logging.LogRecord]) -> None:
        model: Any = Net()
        model.blocks[1].lin.register_forward_hook(hook)
        model.blocks[1].lin.register_forward_pre_hook(hook, with_kwargs=True)
        model.blocks[0].register_forward_hook(hook)
        model.blocks[0].register_forward_hook(hook)
        torch.compile(model, backend="eager")(torch.ones(2, 4))
        lines = [line for r in records for line in r.getMessage().splitlines()]
        leaves = [line.partition("LAMBDA_GUARD: ")[2] for line in lines]
        ours = [s for s in leaves if s.startswith(("nn.Module hooks", "blocks."))]
        self.assertExpectedInline(
            "\n".join(ours),
            """\
nn.Module hooks as compiled, modules: 10
blocks.0: 2 forward hooks
blocks.1.lin: 1 forward pre-hook, 1 forward hook, marked or in another order""",
        )

    def test_structured_trace(self) -> None:
        reasons: list[str] = []

        class Reasons(logging.Handler):
            def emit(self, record: Any) -> None:
                if (
                    record.metadata.get("artifact", {}).get("name")
                    == "recompile_reasons"
                ):
                    reasons.append(record.payload)

        handler = Reasons()
        trace_log = torch._logging._internal.trace_log
        trace_log.addHandler(handler)
        self.addCleanup(trace_log.removeHandler, handler)
        change_a_hook()
        self.assertExpectedInline(
            "\n".join(reasons), """0/0: blocks.1.lin: forward hook added"""
        )


instantiate_parametrized_tests(HookGuardTests)
instantiate_parametrized_tests(CompiledGuardTests)


if __name__ == "__main__":
    from torch._dynamo.test_case import run_tests

    run_tests()
