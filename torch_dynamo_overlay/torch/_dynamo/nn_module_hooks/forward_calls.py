"""Whether a frame can tell that its forward hooks are called at run time.

Calls are noted by ``forward_variables`` while the frame is traced. Called by the seams
in ``OutputGraph.compile_subgraph``, when all of it is known, and around the tracing of
a frame. Must not import ``variables`` or ``call_impl``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import types
import weakref
from typing import Any, TYPE_CHECKING

import torch
from torch._dynamo.exc import RestartAnalysis, SkipFrame, UnspecializeRestartAnalysis
from torch._dynamo.source import GlobalSource, ImportSource, LocalSource
from torch._dynamo.variables.dicts import NNModuleHooksDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.misc import CellVariable
from torch._guards import ChainedSource

from .guards import install_call_guard, run_hooks_met_eagerly
from .hook_code import effects_of
from .hook_values import Unclear
from .registration import check_handles


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker
    from torch._guards import Source

    from .hook_code import HookEffects


log = logging.getLogger(__name__)


@dataclasses.dataclass
class ForwardCall:
    """A hook that is called at run time, once, by the frame being traced.

    Args:
        hook: the hook.
        source: where it is registered.
        module: the module it is called with.
        module_source: where that is found.
        n_args: number of its arguments.
        effects: what calling it does.
        in_graph: whether the graph calls it, rather than the bytecode after it.
        tensors: what it is given and computes with, any shapes.
    """

    hook: Callable[..., Any]
    source: Source
    module: object
    module_source: Source
    n_args: int
    effects: HookEffects
    in_graph: bool
    tensors: dataclasses.InitVar[Sequence[torch.Tensor]]

    def __post_init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._versions = [(tensor, tensor._version) for tensor in tensors]

    @property
    def name(self) -> str:
        return self.source.name

    def sees_edits(self) -> bool:
        """Whether what the hook reads has been edited since."""
        return any(tensor._version > version for tensor, version in self._versions)


class _Decisions:
    """What is known of a frame's hooks, kept when its analysis restarts."""

    def __init__(self) -> None:
        self.traced: list[object] = []
        self.in_graph: list[object] = []
        self.copied: list[object] = []


def _decisions(tx: InstructionTranslatorBase) -> _Decisions:
    log: Any = tx.speculation_log
    if not hasattr(log, "nn_module_hooks"):
        log.nn_module_hooks = _Decisions()
    return log.nn_module_hooks


def must_trace(tx: InstructionTranslatorBase, hook: object) -> bool:
    """Whether the frame could tell that ``hook`` is called at run time."""
    return any(hook is traced for traced in _decisions(tx).traced)


def must_call_in_graph(tx: InstructionTranslatorBase, hook: object) -> bool:
    """Whether ``hook`` shares state with another that is called in the graph."""
    return any(hook is called for called in _decisions(tx).in_graph)


def must_copy(tx: InstructionTranslatorBase, hook: object) -> bool:
    """Whether what ``hook`` is given is edited later, so that it gets copies."""
    return any(hook is copied for copied in _decisions(tx).copied)


def note_call(tx: InstructionTranslatorBase, call: ForwardCall) -> None:
    """Remember a call until the frame's graph is compiled."""
    _calls(tx).append(call)


def graph_inputs(tx: InstructionTranslatorBase) -> dict[int, torch.Tensor]:
    """The fake tensor of each input of the graph so far, by :func:`memory_of` it."""
    inputs: dict[int, torch.Tensor] = {}
    for node in tx.output.placeholders:
        example = getattr(node.meta.get("grapharg"), "example", None)
        if isinstance(example, torch.Tensor):
            inputs[memory_of(example)] = node.meta["example_value"]
    return inputs


def memory_of(obj: object) -> int:
    """What tells apart objects, and tensors that share no memory."""
    if isinstance(obj, torch.Tensor):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            return obj.untyped_storage()._cdata
    return id(obj)


def _calls(tx: InstructionTranslatorBase) -> list[ForwardCall]:
    output: Any = tx.output
    if not hasattr(output, "nn_module_hook_calls"):
        output.nn_module_hook_calls = []
    return output.nn_module_hook_calls


def check_calls(tx: InstructionTranslatorBase) -> None:
    """See whether all forward hooks that the frame calls at run time may be.

    Args:
        tx: the frame, whose graph is about to be compiled.

    Raises:
        torch._dynamo.exc.RestartAnalysis: when some may not.
    """
    has_handles = check_handles(tx)
    calls = _calls(tx)
    root = tx.output.root_tx
    if tx is not root and (calls or has_handles):
        # Bytecode calls only what the innermost frame has noted.
        tx.debug_locals = root.debug_locals
    if not calls:
        return
    frame = _FrameState(tx)
    _restart_if_wrong(tx, calls, frame)
    others = frame.sources()
    for call in calls:
        accepts = _Accepts(call.effects, call.n_args)
        accepts.remember(call.hook, call.module, call.effects)
        install_call_guard(call.source, call.module_source, others, accepts)


def _restart_if_wrong(
    tx: InstructionTranslatorBase, calls: Sequence[ForwardCall], frame: _FrameState
) -> None:
    decisions = _decisions(tx)
    reasons = []
    in_graph = [call.effects for call in calls if call.in_graph]
    for call in calls:
        if call.sees_edits() and not (call.effects.shares or must_copy(tx, call.hook)):
            log.info("%s: given copies: what it reads is edited later", call.name)
            decisions.copied.append(call.hook)
            reasons.append("what a hook is given is edited later")
        elif reason := frame.conflict(call):
            log.info("%s: traced into the graph after all: %s", call.name, reason)
            decisions.traced.append(call.hook)
            reasons.append(reason)
        elif not call.in_graph and any(_share(call.effects, e) for e in in_graph):
            log.info("%s: called in the graph: it shares state with others", call.name)
            decisions.in_graph.append(call.hook)
            reasons.append("hooks called at run time share state")
    if reasons:
        raise UnspecializeRestartAnalysis(restart_reason=reasons[0])


@contextlib.contextmanager
def settled_calls(tx: InstructionTranslatorBase) -> Iterator[None]:
    """Trace a frame; what fails may do so for what its hooks have not done yet.

    Args:
        tx: the frame.

    Raises:
        torch._dynamo.exc.RestartAnalysis: when that may be so.
    """
    try:
        yield
    except RestartAnalysis:
        raise
    except SkipFrame:
        run_hooks_met_eagerly()
        raise
    except Exception:
        if calls := _calls(tx):
            _restart_if_wrong(tx, calls, _FrameState(tx))
        run_hooks_met_eagerly()
        raise


class _Accepts:
    """Says of a hook with the same code whether all that was read there still holds.

    It keeps nothing that belongs to the hook or its module, and can be pickled, as the
    guards of code that is saved are.

    Args:
        effects: what calling the hook does, as it was compiled.
        n_args: number of its arguments.
    """

    def __init__(self, effects: HookEffects, n_args: int) -> None:
        self._expected = dataclasses.replace(effects, touched=[], bindings=[])
        self._n_args = n_args
        self._known: Any = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[type, tuple[HookEffects, int]]:
        return type(self), (self._expected, self._n_args)

    def __call__(self, hook: Any, module: Any, others: Iterable[Any]) -> bool:
        with contextlib.suppress(TypeError):
            bindings = self._known.get(hook, {}).get(module)
            if bindings is not None and all(b.holds() for b in bindings):
                return True
        try:
            effects = effects_of(hook, module, self._n_args)
        except Unclear:
            return False
        ids = {id(other) for other in others}
        touches_others = any(id(obj) in ids for obj in effects.touched)
        if effects != self._expected or touches_others:
            return False
        self.remember(hook, module, effects)
        return True

    def remember(self, hook: Any, module: Any, effects: HookEffects) -> None:
        """Keep what the answer for ``hook``, with this ``module``, rests on."""
        with contextlib.suppress(TypeError):
            modules = self._known.setdefault(hook, weakref.WeakKeyDictionary())
            modules[module] = effects.bindings


def _share(left: HookEffects, right: HookEffects) -> bool:
    ids = {id(obj) for obj in left.touched if not isinstance(obj, torch.nn.Module)}
    return (
        any(id(obj) in ids for obj in right.touched)
        or bool(left.writes & (right.reads | right.writes))
        or bool(right.writes & left.reads)
    )


class _FrameState:
    """What the frame itself reads and writes."""

    def __init__(self, tx: InstructionTranslatorBase) -> None:
        self._side_effects = tx.output.side_effects
        self._inputs = graph_inputs(tx)
        self._seen: set[str] = set()
        for guard in tx.output.guards:
            self._seen.update(_names(guard.originating_source))
            create_fn = guard.create_fn
            if isinstance(create_fn, functools.partial):
                values = (*create_fn.args, *create_fn.keywords.values())
                self._seen.update(value for value in values if isinstance(value, str))
        self._changed: set[str] = set()
        for names in self._side_effects.store_attr_mutations.values():
            self._changed |= names.keys()

    def sources(self) -> list[str]:
        """Paths of the objects that the frame uses and that hooks could change."""
        return [
            vt.source.name
            for vt in self._side_effects.id_to_variable.values()
            if vt.source is not None
            and _can_be_guarded(vt.source)
            and not isinstance(vt, NNModuleHooksDictVariable)
            and not issubclass(_type(vt), _NOT_STATE)
        ]

    def conflict(self, call: ForwardCall) -> str | None:
        """Why the frame could tell when ``call`` takes place; None if it cannot."""
        effects = call.effects
        if call.sees_edits():
            return "what it is given is edited later"
        for obj in effects.touched:
            if isinstance(obj, torch.nn.Module) or obj not in self._side_effects:
                continue
            if not isinstance(self._side_effects[obj], NNModuleHooksDictVariable):
                return f"the frame uses its {type(obj).__name__} too"
        shared = effects.writes & (self._seen | self._changed)
        shared |= effects.reads & self._changed
        if shared:
            return f"the frame uses {', '.join(sorted(shared))} too"
        tensors = [obj for obj in effects.touched if isinstance(obj, torch.Tensor)]
        touched = {memory_of(tensor) for tensor in tensors}
        if effects.edits_tensors and touched & self._inputs.keys():
            return "it edits a tensor that the graph reads"
        return None


_NOT_STATE = (torch.nn.Module, types.FunctionType, types.ModuleType)


def _can_be_guarded(source: Source) -> bool:
    while isinstance(source, ChainedSource):
        source = source.base
    return isinstance(source, (LocalSource, GlobalSource, ImportSource))


def _type(vt: VariableTracker) -> type:
    """The type of an object, or of what a variable of a function holds."""
    if isinstance(vt, CellVariable) and vt.pre_existing_contents is not None:
        vt = vt.pre_existing_contents
    if isinstance(vt, LazyVariableTracker) and not vt.is_realized():
        return vt.peek_type()
    return vt.realize().python_type()


def _names(source: Source | None) -> Iterator[str]:
    while source is not None:
        for field in dataclasses.fields(source):
            value = getattr(source, field.name, None)
            if isinstance(value, str):
                yield value
        source = source.base if isinstance(source, ChainedSource) else None
