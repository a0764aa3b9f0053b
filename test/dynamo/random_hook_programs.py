# Owner(s): ["module: dynamo"]
"""Seeded random hook programs: generate, replay, compare with eager, reduce.

A program is a list of plain tuples, so it can be printed, pasted and replayed:
``python test/dynamo/random_hook_programs.py --seed N --wrap W --backend B`` prints
PASS or FAIL and the differences. An operation that has nothing to act on does
nothing, so any subset of a program is a program and ``--reduce`` can shrink it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import dataclasses
import functools
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
from torch import nn
from torch.nn.modules import module as nn_module

from hook_kinds import (
    dict_name,
    global_hook_dict,
    hook_dict,
    register,
    register_global,
)
from hook_programs import BACKENDS, Block, play, Run, same, WRAPS


Op = tuple[Any, ...]
Program = list[Op]

ROOT, GLOBAL = "", "*"
PATHS = (
    ROOT,
    "blocks.0",
    "blocks.0.lin",
    "blocks.1",
    "blocks.1.act",
    "mix",
    "head",
)
SUBMODULES = PATHS[1:]
FULL_KINDS = ("forward_pre", "forward", "backward_pre", "full_backward")
LEGACY_KINDS = ("forward_pre", "forward", "legacy_backward")
REGISTRATION_KINDS = ("module", "parameter", "buffer")
# Bodies with how often each is taken. A hook that changes state it also reads makes
# today's Dynamo recompile on every call, and what recompiles cannot be stale: half of
# the programs do without, so that a change that is not noticed shows.
QUIET_BODIES = {
    "scale": 4,
    "add": 4,
    "object": 2,
    "method": 2,
    "partial": 2,
    "branch": 2,
    "kwargs": 2,
    "none": 1,
    "once": 1,
    "tensorhook": 1,
    "single": 1,
    "module": 1,
}
BODIES = QUIET_BODIES | {
    "observe": 4,
    "record": 2,
    "count": 2,
    "stash": 2,
    "shared": 2,
    "raises": 3,
    "spawn": 1,
    "cull": 1,
    "rotate": 1,
    "probe": 1,
    "wrong": 1,
    "nograd": 1,
    "disabled": 1,
}
AMOUNTS = (0.5, 1.5, 2.0, -1.0)
# A step trains, calls with an input that needs no gradient, calls in no_grad, trains
# on more rows, or runs backward twice; with how often each is taken.
MODES = {"train": 12, "frozen": 1, "nograd": 1, "rows": 2, "twice": 1}


class Mix(nn.Module):
    """Two inputs, one of them by keyword, and two outputs."""

    def forward(
        self, x: torch.Tensor, *, skip: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x + skip, x * 2.0


class TwoBlocks(nn.Module):
    """Two blocks, a module with two outputs and a head, ``(N, 4) -> (N, 2)``.

    With ``catch`` set it survives a block that raises, inside what is compiled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.catch = False
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.mix = Mix()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for block in self.blocks:
            if self.catch:
                try:
                    x = block(x, scale=0.5)
                except ValueError:
                    x = x * 3.0
            else:
                x = block(x, scale=0.5)
        left, right = self.mix(x, skip=first)
        return self.head(left - right)


# --- hooks ---------------------------------------------------------------------------
def edit(kind: str, rest: Any, change: Callable[[Any], Any]) -> Any:
    """What a hook of ``kind``, called with ``(module, *rest)``, returns to edit.

    Hooks are called with or without kwargs, as the marks say at that moment, so
    bodies tell from the length of ``rest``.
    """
    if kind == "forward":
        if isinstance(rest[-1], tuple):
            return tuple([change(value) for value in rest[-1]])
        return change(rest[-1])
    first = tuple([None if value is None else change(value) for value in rest[0]])
    if kind == "forward_pre" and len(rest) == 2:
        return first, rest[1]
    return first


def shapes(kind: str, rest: Any) -> Any:
    """The shapes a hook sees, as plain tuples; None stays None."""
    value = rest[-1] if kind == "forward" else rest[0]
    if isinstance(value, tuple):
        return tuple([None if v is None else tuple(v.shape) for v in value])
    return None if value is None else tuple(value.shape)


def first_tensor(kind: str, rest: Any) -> Any:
    """The first of the tensors a hook sees, or None."""
    value = rest[-1] if kind == "forward" else rest[0]
    return value[0] if isinstance(value, tuple) else value


class GainModule(nn.Module):
    """A module used as a hook: scales by its buffer ``gain``."""

    gain: torch.Tensor

    def __init__(self, kind: str, gain: float) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("gain", torch.tensor(gain))

    def forward(self, module: nn.Module, *rest: Any) -> Any:
        return edit(self.kind, rest, lambda value: value * self.gain)


class Gain:
    """A hook object: scales by its attribute ``gain``."""

    def __init__(self, kind: str, gain: float) -> None:
        self.kind = kind
        self.gain = gain

    def __call__(self, module: nn.Module, *rest: Any) -> Any:
        return edit(self.kind, rest, lambda value: value * self.gain)

    def apply(self, module: nn.Module, *rest: Any) -> Any:
        return edit(self.kind, rest, lambda value: value * self.gain)


class Player:
    """Applies operations to ``run.model``, one by one.

    Attributes:
        handles: by label, the handle that registering the hook gave.
        pokes: by label, a setter for the number that the hook uses.
        made: by label, the hook and its kind.
        shared: what hooks tell each other.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.handles: dict[str, Any] = {}
        self.pokes: dict[str, Callable[[float], object]] = {}
        self.made: dict[str, tuple[Any, str]] = {}
        self.shared: dict[str, float] = {}
        self.swaps = 0

    def apply(self, op: Op) -> None:
        """Apply one operation; an error it raises belongs to the log."""
        try:
            getattr(self, "do_" + op[0])(*op[1:])
        except Exception as error:
            self.run.log.append((op[0], type(error).__name__, str(error)))

    def module(self, path: str) -> nn.Module:
        return self.run.model.get_submodule(path)

    def hooks(self, path: str, kind: str) -> OrderedDict[int, Any]:
        if path == GLOBAL:
            if kind in REGISTRATION_KINDS:
                return getattr(nn_module, f"_global_{kind}_registration_hooks")
            return global_hook_dict(kind)
        return hook_dict(self.module(path), kind)

    def body(self, label: str, path: str, kind: str, sort: str, amount: float) -> Any:
        """A new hook of ``kind``; ``sort`` is one of ``BODIES``."""
        log = self.run.log
        calls = 0
        at = 1 + AMOUNTS.index(amount) % 3 if amount in AMOUNTS else 1

        def observe(module: nn.Module, *rest: Any) -> None:
            name = type(module).__name__
            log.append((label, name, module.training, len(rest), shapes(kind, rest)))

        def watch_registration(module: nn.Module, name: str, value: Any) -> None:
            log.append((label, type(module).__name__, name))

        def record(module: nn.Module, *rest: Any) -> None:
            value = first_tensor(kind, rest)
            log.append(value if value is None else value.detach().clone())

        def scale(module: nn.Module, *rest: Any) -> Any:
            return edit(kind, rest, lambda value: value * amount)

        shift = torch.tensor(amount)

        def add(module: nn.Module, *rest: Any) -> Any:
            return edit(kind, rest, lambda value: value + shift)

        def none(module: nn.Module, *rest: Any) -> None:
            return None

        def count(module: nn.Module, *rest: Any) -> None:
            nonlocal calls
            calls += 1
            log.append((label, calls))

        def parted(factor: float, module: nn.Module, *rest: Any) -> Any:
            return edit(kind, rest, lambda value: value * factor)

        def once(module: nn.Module, *rest: Any) -> Any:
            self.handles[label].remove()
            return edit(kind, rest, lambda value: value * amount)

        def spawn(module: nn.Module, *rest: Any) -> None:
            nonlocal calls
            calls += 1
            log.append((label, calls))
            if calls == 1:
                self.handles[label + "s"] = self.add_hook(path, kind, observe, ())

        def raises(module: nn.Module, *rest: Any) -> None:
            nonlocal calls
            calls += 1
            log.append((label, calls))
            if calls == at:
                raise ValueError(f"{label} raised")

        def branch(module: nn.Module, *rest: Any) -> Any:
            if module.training:
                return edit(kind, rest, lambda value: value * amount)
            return None

        def stash(module: Any, *rest: Any) -> None:
            module.seen = getattr(module, "seen", 0) + 1
            log.append((label, module.seen))

        def shared(module: nn.Module, *rest: Any) -> Any:
            """Uses what the hook of this sort that was called before it wrote."""
            before = self.shared.get("amount", 1.0)
            self.shared["amount"] = amount
            return edit(kind, rest, lambda value: value * before)

        def kwargs(module: nn.Module, *rest: Any) -> Any:
            """Edits only when it gets kwargs, which the marks decide."""
            named = [value for value in rest if isinstance(value, dict)]
            if kind == "forward_pre" and named and "scale" in named[0]:
                return rest[0], {"scale": named[0]["scale"] * amount}
            if named:
                return edit(kind, rest, lambda value: value * amount)
            return None

        def tensorhook(module: nn.Module, *rest: Any) -> None:
            value = first_tensor(kind, rest)
            if value is not None and value.requires_grad:
                value.register_hook(lambda grad: grad * amount)

        def single(module: nn.Module, *rest: Any) -> Any:
            """Returns a tensor where a tuple is usual."""
            value = first_tensor(kind, rest)
            return None if value is None else value * amount

        def wrong(module: nn.Module, *rest: Any) -> Any:
            """Returns one value too many, at its second call."""
            nonlocal calls
            calls += 1
            value = first_tensor(kind, rest)
            return (value, value, value) if calls == 2 else None

        def cull(module: nn.Module, *rest: Any) -> None:
            """Removes the hook that was registered first, of any kind and place."""
            log.append((label, len(self.handles)))
            for handle in self.handles.values():
                handle.remove()
                break

        def rotate(module: nn.Module, *rest: Any) -> None:
            """Reorders the hooks of the module while they are called."""
            hooks = hook_dict(module, kind)
            hooks.move_to_end(next(iter(hooks)))
            log.append((label, len(hooks)))

        def probe(module: nn.Module, *rest: Any) -> None:
            """Calls another hooked module."""
            with torch.no_grad():
                seen = self.run.model.head(torch.ones(1, 4))
            log.append((label, tuple(seen.shape)))

        def set_amount(value: float) -> None:
            nonlocal amount
            amount = value

        if kind in REGISTRATION_KINDS:
            return watch_registration
        if sort == "probe" and path in (ROOT, GLOBAL, "head"):
            sort = "observe"  # the head would call itself for ever
        if sort == "rotate" and path == GLOBAL:
            sort = "observe"
        if sort == "module" and path == GLOBAL:
            sort = "object"  # it would be called for itself, for ever
        if sort == "module":
            module = GainModule(kind, amount)
            self.pokes[label] = module.gain.fill_
            return module
        if sort in ("object", "method"):
            gain = Gain(kind, amount)
            self.pokes[label] = functools.partial(setattr, gain, "gain")
            return gain if sort == "object" else gain.apply
        if sort == "partial":
            return functools.partial(parted, amount)
        self.pokes[label] = shift.fill_ if sort == "add" else set_amount
        return {
            "observe": observe,
            "record": record,
            "scale": scale,
            "add": add,
            "none": none,
            "count": count,
            "once": once,
            "spawn": spawn,
            "raises": raises,
            "branch": branch,
            "stash": stash,
            "shared": shared,
            "kwargs": kwargs,
            "disabled": torch._dynamo.disable(observe),
            "tensorhook": tensorhook,
            "single": single,
            "wrong": wrong,
            "cull": cull,
            "rotate": rotate,
            "probe": probe,
            "nograd": torch.no_grad()(observe),
        }[sort]

    def add_hook(self, path: str, kind: str, hook: Any, flags: tuple[str, ...]) -> Any:
        options = dict.fromkeys(flags, True)
        if path != GLOBAL:
            return register(self.module(path), kind, hook, **options)
        if kind in REGISTRATION_KINDS:
            return getattr(nn_module, f"register_module_{kind}_registration_hook")(hook)
        return register_global(kind, hook, **options)

    # --- operations, named in the programs without their "do_" -------------------
    def do_hook(
        self,
        label: str,
        path: str,
        kind: str,
        sort: str,
        amount: float,
        flags: tuple[str, ...] = (),
    ) -> None:
        hook = self.body(label, path, kind, sort, amount)
        self.made[label] = hook, kind
        self.handles[label] = self.add_hook(path, kind, hook, flags)

    def do_rehook(self, label: str, path: str) -> None:
        """Register a hook that exists once more, at ``path``."""
        if label in self.made:
            hook, kind = self.made[label]
            self.handles[label] = self.add_hook(path, kind, hook, ())

    def do_remove(self, label: str) -> None:
        if label in self.handles:
            self.handles[label].remove()

    def do_clear(self, path: str, kind: str) -> None:
        self.hooks(path, kind).clear()

    def do_move(self, path: str, kind: str, index: int, last: bool) -> None:
        hooks = self.hooks(path, kind)
        if hooks:
            hooks.move_to_end(list(hooks)[index % len(hooks)], last=last)

    def do_entry(
        self, label: str, path: str, kind: str, sort: str, amount: float, index: int
    ) -> None:
        hooks = self.hooks(path, kind)
        if hooks:
            hook = self.body(label, path, kind, sort, amount)
            hooks[list(hooks)[index % len(hooks)]] = hook

    def do_reassign(self, path: str, kind: str, order: str, through: str) -> None:
        items = list(self.hooks(path, kind).items())
        if order == "reversed":
            items.reverse()
        elif order == "tail":
            items = items[1:]
        module, name = self.module(path), dict_name(kind)
        if through == "attribute":
            setattr(module, name, OrderedDict(items))
        else:
            module.__dict__[name] = OrderedDict(items)

    def do_swap(
        self, label: str, path: str, kind: str, sort: str, amount: float
    ) -> None:
        self.swaps += 1
        torch.manual_seed(self.swaps)
        old = self.module(path)
        new: nn.Module
        if isinstance(old, nn.Linear):
            new = nn.Linear(old.in_features, old.out_features)
        else:
            new = type(old)()
        new.train(old.training)
        hook = self.body(label, path, kind, sort, amount)
        self.handles[label] = register(new, kind, hook)
        self.put(path, new)

    def do_copy(self, path: str) -> None:
        self.put(path, copy.deepcopy(self.module(path)))

    def do_share(self, path: str) -> None:
        """One module in two places: the other block is replaced by that of ``path``."""
        index = path.split(".")[1] if path.startswith("blocks") else "0"
        self.put(f"blocks.{1 - int(index)}", self.module(f"blocks.{index}"))

    def do_freeze(self, path: str, frozen: bool) -> None:
        self.module(path).requires_grad_(not frozen)

    def do_catch(self, catch: bool) -> None:
        self.run.model.catch = catch

    def put(self, path: str, new: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        setattr(self.module(parent), name, new)

    def do_mark(self, path: str, mark: str, source: int, target: int) -> None:
        """Move a mark of a forward (pre-)hook to another hook, or set or drop it."""
        prefix, _, mark = mark.rpartition(":")
        owner: Any = nn_module if path == GLOBAL else self.module(path)
        prefix = f"_global_{prefix}" if path == GLOBAL else f"_{prefix}"
        hooks = getattr(owner, f"{prefix}_hooks")
        marks = getattr(owner, f"{prefix}_hooks_{mark}")
        if not hooks:
            return
        keys = list(hooks)
        marks.pop(keys[source % len(keys)], None)
        marks[keys[target % len(keys)]] = True

    def do_train(self, mode: bool) -> None:
        self.run.model.train(mode)

    def do_set(self, label: str, value: float) -> None:
        if label in self.pokes:
            self.pokes[label](value)

    def do_step(self, mode: str = "train") -> None:
        with torch.set_grad_enabled(mode != "nograd"):
            self.run.step(
                torch.linspace(-2, 1, 20).reshape(5, 4) if mode == "rows" else None,
                train=mode not in ("frozen", "nograd"),
                backwards=2 if mode == "twice" else 1,
            )


def run_program(ops: Program, run: Run) -> None:
    """Apply every operation of ``ops`` to ``run.model``."""
    player = Player(run)
    for op in ops:
        player.apply(op)


# --- generator -----------------------------------------------------------------------
class _Writer:
    """Writes one random program."""

    def __init__(self, rng: random.Random, use_globals: bool) -> None:
        self.rng = rng
        self.use_globals = use_globals
        self.kinds = LEGACY_KINDS if rng.random() < 0.15 else FULL_KINDS
        self.bodies = QUIET_BODIES if rng.random() < 0.5 else BODIES
        self.labels: list[str] = []
        # Few places, so that operations meet each other's hooks.
        self.paths = rng.sample(PATHS, 2)
        if rng.random() < 0.3:
            self.paths = ["blocks.0", "blocks.0.lin"]
        self.local_kinds = rng.sample(self.kinds, 2)
        self.used: list[tuple[str, str]] = []

    def label(self) -> str:
        self.labels.append(f"h{len(self.labels)}")
        return self.labels[-1]

    def hook(self, where: tuple[str, str] | None = None) -> Op:
        rng = self.rng
        if where is None:
            where = rng.choice(self.paths), rng.choice(self.local_kinds)
            if self.use_globals and rng.random() < 0.5:
                registration = rng.random() < 0.12
                kinds = REGISTRATION_KINDS if registration else self.kinds
                where = GLOBAL, rng.choice(kinds)
        path, kind = where
        self.used.append(where)
        return ("hook", self.label(), path, kind, *self.sort(), self.flags(path, kind))

    def sort(self) -> tuple[str, float]:
        sort = self.rng.choices(list(self.bodies), list(self.bodies.values()))[0]
        return sort, self.rng.choice(AMOUNTS)

    def flags(self, path: str, kind: str) -> tuple[str, ...]:
        names: list[str] = []
        if path != GLOBAL and kind != "legacy_backward":
            names.append("prepend")
        if kind == "forward" or (kind == "forward_pre" and path != GLOBAL):
            names.append("with_kwargs")
        if kind == "forward":
            names.append("always_call")
        return tuple(name for name in names if self.rng.random() < 0.3)

    def change(self) -> Op:
        """One operation, aimed at hooks that exist."""
        rng = self.rng
        path, kind = where = rng.choice(self.used)
        local = [(p, k) for p, k in self.used if p != GLOBAL]
        here = rng.choice(local) if local else (rng.choice(self.paths), self.kinds[0])
        submodules = [p for p in self.paths if p != ROOT]
        forward = [k for p, k in local if k in ("forward", "forward_pre")]
        name = rng.choice(
            ("hook", "again", "again", "remove", "remove", "clear", "move", "move")
            + ("entry", "entry", "reassign", "swap", "swap", "copy", "mark", "mark")
            + ("train", "set", "set", "rehook", "rehook", "share", "freeze", "catch")
        )
        if name == "hook":
            return self.hook()
        if name == "again":
            return self.hook(where)
        if name == "remove":
            return "remove", rng.choice(self.labels)
        if name == "clear":
            return "clear", path, kind
        if name == "move":
            return "move", path, kind, rng.randrange(2), rng.random() < 0.5
        if name == "entry":
            return ("entry", self.label(), path, kind, *self.sort(), rng.randrange(2))
        if name == "reassign":
            order = rng.choice(("reversed", "copy", "tail"))
            return "reassign", *here, order, rng.choice(("attribute", "__dict__"))
        if name == "swap":
            place = rng.choice(submodules), rng.choice(self.kinds)
            self.used.append(place)
            return "swap", self.label(), *place, *self.sort()
        if name == "copy":
            return "copy", rng.choice(submodules)
        if name == "mark":
            marks = ["forward:with_kwargs", "forward:always_called"]
            if "forward_pre" in forward:
                marks.append("forward_pre:with_kwargs")
            source, target = rng.randrange(2), rng.randrange(2)
            if path == GLOBAL and kind == "forward":
                return "mark", GLOBAL, rng.choice(marks[:2]), source, target
            return "mark", here[0], rng.choice(marks), source, target
        if name == "rehook":
            return "rehook", rng.choice(self.labels), rng.choice(self.paths)
        if name == "share":
            return "share", here[0]
        if name == "freeze":
            return "freeze", here[0], rng.random() < 0.7
        if name == "catch":
            return "catch", rng.random() < 0.7
        if name == "train":
            return "train", rng.random() < 0.5
        return "set", rng.choice(self.labels), rng.choice(AMOUNTS)

    def step(self) -> Op:
        return "step", self.rng.choices(list(MODES), list(MODES.values()))[0]

    def program(self) -> Program:
        """6 to 12 operations, of which 3 to 5 are steps, the last one included."""
        rng = self.rng
        ops = [self.hook() for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            ops.insert(0, self.step())
        if rng.random() < 0.15:
            ops.insert(0, ("catch", True))
        for _ in range(rng.randint(2, 4)):
            ops.append(self.step())
            ops += [self.change() for _ in range(rng.choice((1, 1, 2)))]
        return [*ops, self.step()]


def program(seed: int, globals: bool = False) -> Program:
    """The random program of ``seed``; with ``globals`` also hooks for all modules."""
    return _Writer(random.Random(f"hooks {globals} {seed}"), globals).program()


def setting(seed: int, globals: bool = False) -> dict[str, str]:
    """The ``wrap`` and ``backend`` of ``seed``, spread evenly over all pairs."""
    backend = BACKENDS[seed // len(WRAPS) % len(BACKENDS)]
    wrap = "inplace" if globals else WRAPS[seed % len(WRAPS)]
    return {"wrap": wrap, "backend": backend}


# --- comparison ----------------------------------------------------------------------
@dataclasses.dataclass
class Outcome:
    """What playing a program eagerly and compiled gave.

    Attributes:
        differences: one line each; empty when compiled equals eager.
        steps: the number of steps in the program.
        eager_steps: compiled steps in which no graph was run although eager
            finished the step: the fallback, not the compiler, made them right.
        graphs: the number of graphs compiled.
        graph_breaks: the number of graph breaks Dynamo counted.
    """

    differences: list[str]
    steps: int
    eager_steps: int
    graphs: int
    graph_breaks: int


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """No fallback to eager by the recompile limit: hitting it is an error.

    Donated buffers are off because they forbid ``retain_graph``, hooks or none.
    Nested graph breaks are off as they are for users: ``torch._dynamo.test_case``
    turns them on, and with them upstream cannot set backward hooks up.
    """
    dynamo = torch._dynamo.config.patch(
        recompile_limit=64,
        accumulated_recompile_limit=512,
        fail_on_recompile_limit_hit=True,
        nested_graph_breaks=False,
    )
    with dynamo, torch._functorch.config.patch(donated_buffer=False):
        yield


def short(value: Any) -> str:
    """A compact form of a recorded value, tensors to four digits."""
    if isinstance(value, torch.Tensor):
        numbers = [f"{number:.4g}" for number in value.flatten().tolist()[:6]]
        return f"{tuple(value.shape)}[{' '.join(numbers)}]"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(short, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return repr(value)


def part_of(record: list[Any]) -> str:
    """What a step recorded, with the gradients only named."""
    parts = ["gradients" if isinstance(part, list) else short(part) for part in record]
    return f"[{', '.join(parts)}]"


def compare(eager: Run, run: Run) -> list[str]:
    """The differences between an eager and a compiled run, one line each."""
    lines = []
    if not same(eager.log, run.log):
        pairs = zip(eager.log, run.log)
        at = next((i for i, pair in enumerate(pairs) if not same(*pair)), None)
        at = min(len(eager.log), len(run.log)) if at is None else at
        want, got = short(eager.log[at : at + 6]), short(run.log[at : at + 6])
        sizes = f"{len(eager.log)} / {len(run.log)} entries"
        lines.append(f"log ({sizes}) from entry {at}: eager {want} compiled {got}")
    for i, (want, got) in enumerate(zip(eager.steps, run.steps)):
        if same(want, got):
            continue
        if all(isinstance(record[-1], list) for record in (want, got)):
            what = [] if same(want[0], got[0]) else ["output"]
            names = ["input", *(name for name, _ in eager.model.named_parameters())]
            bad = [j for j, pair in enumerate(zip(want[1], got[1])) if not same(*pair)]
            what += [f"grad {names[j] if j < len(names) else j}" for j in bad]
            lines.append(f"step {i}: {', '.join(what)} differ")
        else:
            want, got = [part_of(record) for record in (want, got)]
            lines.append(f"step {i}: eager {want} compiled {got}")
    return lines


def outcome(ops: Program, **options: Any) -> Outcome:
    """Play ``ops`` eagerly and compiled; ``options`` are those of ``play``."""
    scenario = functools.partial(run_program, ops)
    options.setdefault("make", TwoBlocks)
    eager = play(scenario, compiled=False, **options)
    torch._dynamo.utils.counters.clear()
    with limits():
        run = play(scenario, compiled=True, **options)
    finished = [len(s) == 1 or not isinstance(s[-1], str) for s in eager.steps]
    idle = [n == 0 and ok for n, ok in zip(run.graph_runs, finished)]
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return Outcome(compare(eager, run), len(run.steps), sum(idle), run.graphs, breaks)


def reduce(ops: Program, fails: Callable[[Program], bool]) -> Program:
    """Drop operations, then simplify the rest, as long as ``ops`` still fails."""
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in _smaller(ops):
            if fails(candidate):
                ops, shrunk = candidate, True
                break
    return ops


def _smaller(ops: Program) -> Iterator[Program]:
    for i in reversed(range(len(ops))):
        yield [*ops[:i], *ops[i + 1 :]]
    for i, op in enumerate(ops):
        simpler: list[Op] = []
        if op[0] == "hook" and op[6]:
            for name in op[6]:
                rest = tuple(flag for flag in op[6] if flag != name)
                simpler.append((*op[:6], rest))
        if op[0] in ("hook", "entry", "swap") and op[4] != "none":
            simpler.append((*op[:4], "none", *op[5:]))
            if op[4] not in ("scale", "observe"):
                simpler.append((*op[:4], "observe", *op[5:]))
                simpler.append((*op[:4], "scale", *op[5:]))
        if op[0] == "step" and op[1] != "train":
            simpler.append(("step", "train"))
        for new in simpler:
            yield [*ops[:i], new, *ops[i + 1 :]]


def show(ops: Program) -> str:
    """The program as Python source, one operation a line."""
    return "[\n" + "".join(f"    {op!r},\n" for op in ops) + "]"


def replay_hint(options: dict[str, Any], seed: int | None = None, **flags: Any) -> str:
    """The command that replays a program; without a seed, its text on stdin."""
    which = "--ops -" if seed is None else f"--seed {seed}"
    if flags.get("globals"):
        which += " --globals"
    return (
        f"python test/dynamo/random_hook_programs.py {which}"
        f" --wrap {options['wrap']} --backend {options['backend']}"
    )


def main(argv: list[str] | None = None) -> int:
    """Replay one program and say how it differs from eager."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--seed", type=int)
    source.add_argument("--ops", help="a program as printed; - reads it from stdin")
    parser.add_argument("--globals", action="store_true", help="seeds of the globals")
    parser.add_argument("--wrap", choices=WRAPS, help="default: that of the seed")
    parser.add_argument("--backend", help="default: that of the seed")
    parser.add_argument("--reduce", action="store_true", help="print the smallest")
    args = parser.parse_args(argv)
    options = setting(args.seed or 0, args.globals)
    options["wrap"] = args.wrap or options["wrap"]
    options["backend"] = args.backend or options["backend"]
    if args.seed is not None:
        ops = program(args.seed, args.globals)
    else:
        ops = ast.literal_eval(sys.stdin.read() if args.ops == "-" else args.ops)
    result = outcome(ops, **options)
    if args.reduce and result.differences:
        ops = reduce(ops, lambda some: bool(outcome(some, **options).differences))
        result = outcome(ops, **options)
    print(show(ops))
    print("\n".join(result.differences))
    print(
        f"{'FAIL' if result.differences else 'PASS'} {options}: {result.steps} steps,"
        f" {result.eager_steps} of them without a graph, {result.graphs} graphs,"
        f" {result.graph_breaks} graph breaks"
    )
    return bool(result.differences)


if __name__ == "__main__":
    sys.exit(main())
