"""Guards on what the hooks of a module are: which, in which order, marked how.

``variables`` installs them, and the seams in ``break_graph_if_unsupported`` those of
a call that breaks the graph. Their create functions are called by ``Guard.create`` as
the methods of ``GuardBuilder`` are. Must not import ``variables``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TYPE_CHECKING

from torch._dynamo import config
from torch._dynamo.guards import (
    _get_closure_vars,
    get_verbose_code_parts,
    GuardBuilder,
    install_guard,
)
from torch._dynamo.source import AttrSource, ConstDictKeySource, DictGetItemSource
from torch._dynamo.utils import guard_failures
from torch._guards import ChainedSource, TracingContext
from torch.nn.modules import module as nn_module

from .hook_frames import run_restless_hooks_eagerly
from .hook_identity import HookIdentity
from .module_paths import ExpectedHooks, ModulePaths
from .state import (
    global_hook_dict,
    GLOBAL_HOOK_DICTS,
    global_hook_state,
    has_call_hooks,
    HookDict,
    HookKind,
    HookState,
    kind_of,
    MARKS,
    MODULE_HOOK_DICTS,
)


if TYPE_CHECKING:
    import types

    from torch._dynamo.symbolic_convert import (
        InstructionTranslatorBase,
        SpeculationEntry,
    )
    from torch._guards import Guard, Source
    from torch.nn import Module


_HOOK_DICTS = MODULE_HOOK_DICTS | GLOBAL_HOOK_DICTS


def install_module_guards(
    module: Module, source: Source, name: str, hooks: HookDict
) -> None:
    """Guard on the hooks of a module, all that its call depends on.

    Args:
        module: the module, as it is now.
        source: where the compiled frame finds it.
        name: the attribute of the hook dict that the frame reads.
        hooks: that dict.
    """
    guards = TracingContext.get().guards_context.dynamo_guards
    # A call reads all hook dicts of its module, and one guard is for all of them.
    if not any(map(_is_of_module, guards.get_guards_for_source(source))):
        install_guard(source.make_guard(_module_guard(ExpectedHooks.of(module))))
        if has_call_hooks(module):
            _hooked_modules().append(module)
    kind = kind_of(name)
    if (
        name in MARKS
        and not module.__dict__[kind.hooks]
        and global_hook_dict(kind.hooks)
    ):
        # Eager looks the ids of global hooks up here too.
        install_size_guard(hooks, AttrSource(source, name))


def install_size_guard(hooks: HookDict, source: Source) -> None:
    """Guard on the size of one hook dict, global or of marks that mark nothing.

    Args:
        hooks: the hook dict, as it is now.
        source: where the compiled frame finds it.
    """
    # Upstream's guard for empty dicts, so that what reads its name still does.
    create_fn = (
        GuardBuilder.SEQUENCE_LENGTH
        if hooks
        else GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT
    )
    _install_once(source, create_fn)


def install_global_guard(source: Source, name: str) -> None:
    """Guard on order and marks of the global hooks of one kind.

    Args:
        source: where the compiled frame finds ``torch.nn.modules.module``.
        name: the hook dict, of the kind or of its marks, that the frame reads.
    """
    kind = kind_of(name)
    _install_once(source, _global_guard(kind, global_hook_state(kind)))


def failed_guards(code: types.CodeType, source: Source) -> int:
    """How many guards on the state of a hook have failed in a frame so far.

    Args:
        code: that of the frame.
        source: where the frame finds the hook. Guards on its own code do not count.
    """
    # Reasons name local variables as they are in the program.
    path = re.sub(r"L\['(\w+)'\]", r"\1", source.name)
    state = re.compile(re.escape(path) + r"\.(?!__code__)")
    return sum(bool(state.search(str(reason))) for reason in guard_failures[code])


def remember_hook_guards(speculation: SpeculationEntry) -> None:
    """Keep the guards on hooks that a call made before it turned out to break.

    Args:
        speculation: the attempt to trace the call. Analysis starts again without it,
            and would forget that the call has to be broken only while hooks are there.
    """
    if config.skip_nnmodule_hook_guards:
        return
    guards = TracingContext.get().guards_context.dynamo_guards
    speculation.hook_guards = [  # type: ignore[attr-defined]
        (guard.originating_source, guard.create_fn)
        for guard in guards
        if _is_of_hooks(guard)
    ]
    run_hooks_met_eagerly()


def install_remembered_guards(
    tx: InstructionTranslatorBase, speculation: SpeculationEntry
) -> None:
    """Guard a frame that is broken at a call on the hooks that the call has.

    Args:
        tx: the frame, now about to be broken there.
        speculation: the attempt that failed.
    """
    remembered = getattr(speculation, "hook_guards", ())
    if remembered:
        # Guards on global hooks name what this puts among the frame's globals.
        tx.import_source(nn_module.__name__)
    for source, create_fn in remembered:
        tx.output.guard_on_key_order.update(_dicts_read_by_position(source))
        _install_once(source, create_fn)


def run_hooks_met_eagerly() -> None:
    """See that no hook with state is compiled by itself, where a frame is not compiled.

    Of the modules that the frame has called so far.
    """
    for module in _hooked_modules():
        run_restless_hooks_eagerly(module)


def _hooked_modules() -> list[Module]:
    context: Any = TracingContext.get()
    if not hasattr(context, "nn_modules_with_hooks"):
        context.nn_modules_with_hooks = []
    return context.nn_modules_with_hooks


def _dicts_read_by_position(source: Source) -> Iterator[Source]:
    while isinstance(source, ChainedSource):
        key = source.index if isinstance(source, DictGetItemSource) else source
        if isinstance(key, ConstDictKeySource):
            yield key.base
        source = source.base


def _is_of_hooks(guard: Guard) -> bool:
    source, create_fn = guard.originating_source, guard.inner_create_fn()
    if create_fn is GuardBuilder.SEQUENCE_LENGTH:
        return isinstance(source, AttrSource) and source.member in _HOOK_DICTS
    return _is_of_module(guard) or create_fn is GLOBAL_NN_MODULE_HOOKS


def _is_of_module(guard: Guard) -> bool:
    return guard.inner_create_fn() is NN_MODULE_HOOKS


def _install_once(source: Source, create_fn: Callable[..., None]) -> None:
    # Guards that differ in their stacks alone are not equal, and each would be run.
    guards = TracingContext.get().guards_context.dynamo_guards
    if all(g.create_fn is not create_fn for g in guards.get_guards_for_source(source)):
        install_guard(source.make_guard(create_fn))


@functools.cache
def _module_guard(expected: ExpectedHooks) -> Callable[..., None]:
    # Guards are told apart by the id of their create function.
    return functools.partial(NN_MODULE_HOOKS, expected=expected)


@functools.cache
def _global_guard(kind: HookKind, expected: HookState) -> Callable[..., None]:
    return functools.partial(GLOBAL_NN_MODULE_HOOKS, kind=kind, expected=expected)


def NN_MODULE_HOOKS(
    builder: GuardBuilder, guard: Guard, *, expected: ExpectedHooks
) -> None:
    """Create the guard on the hooks of the module at a source.

    All modules of a frame share one leaf guard, at the root of the guard tree.
    """
    frame: Any = builder
    if not hasattr(frame, "nn_module_paths"):
        report: list[str] = []
        frame.nn_module_paths = ModulePaths(report)
        _add_root_guard(builder, guard, frame.nn_module_paths.guard, report)
    evaluate = functools.partial(_path, builder)
    frame.nn_module_paths.expect(guard.originating_source, expected, evaluate)
    code = f"hooks of {guard.name}: {expected!r}"
    guard.set_export_info(guard.create_fn_name(), None, [code], None)


def install_call_guard(
    source: Source,
    module: Source,
    others: Sequence[str],
    accepts: Callable[[Any, Any, Iterable[Any]], bool],
) -> None:
    """Guard on whether a hook may be called at run time.

    Args:
        source: where the compiled frame finds the hook.
        module: where it finds the module that the hook is called with.
        others: paths of the objects that the frame itself uses.
        accepts: says whether a hook leaves these objects alone, which are looked up
            only when it asks for them.
    """
    create_fn = functools.partial(
        NN_MODULE_HOOK_CALL,
        module=module.name,
        others=tuple(others),
        accepts=accepts,
    )
    install_guard(source.make_guard(create_fn))


def NN_MODULE_HOOK_CALL(
    builder: GuardBuilder,
    guard: Guard,
    *,
    module: str,
    others: Sequence[str],
    accepts: Callable[[Any, Any, Iterable[Any]], bool],
) -> None:
    """Create the guard on whether the hook at a source may be called at run time."""
    hook_path = _path(builder, guard.name)
    module_path = _path(builder, module)
    other_paths = [_path(builder, other) for other in others]

    @_false_where_gone
    def check(frame_locals: Mapping[str, Any]) -> bool:
        return accepts(
            hook_path(frame_locals),
            module_path(frame_locals),
            (path(frame_locals) for path in other_paths),
        )

    what = f"{guard.name} leaves alone what the frame uses"
    guard.set_export_info(guard.create_fn_name(), None, [what], None)
    _add_root_guard(builder, guard, check, get_verbose_code_parts(what, guard))


def install_identity_guard(source: Source, hook: Callable[..., Any]) -> None:
    """Guard on which hook there is, for where the code is saved.

    Args:
        source: where the compiled frame finds the hook.
        hook: the hook, as it is now.
    """
    create_fn = functools.partial(NN_MODULE_HOOK, identity=HookIdentity(hook))
    install_guard(source.make_guard(create_fn))


def NN_MODULE_HOOK(
    builder: GuardBuilder, guard: Guard, *, identity: HookIdentity
) -> None:
    """Create the guard on which hook there is at a source, if it is a saved one.

    In code that is not saved, upstream's guards by identity do the same.
    """
    what = f"{guard.name} is {identity}"
    guard.set_export_info(guard.create_fn_name(), None, [what], None)
    if not builder.save_guards and not identity.is_loaded:
        return
    path = _path(builder, guard.name)

    @_false_where_gone
    def check(frame_locals: Mapping[str, Any]) -> bool:
        return identity.is_of(path(frame_locals))

    _add_root_guard(builder, guard, check, get_verbose_code_parts(what, guard))


def GLOBAL_NN_MODULE_HOOKS(
    builder: GuardBuilder, guard: Guard, *, kind: HookKind, expected: HookState
) -> None:
    """Create the guard on order and marks of the global hooks of one kind."""

    def check(frame_locals: Mapping[str, Any]) -> bool:
        return global_hook_state(kind) == expected

    what = f"order and marks of _global{kind.hooks} == {expected}"
    guard.set_export_info(guard.create_fn_name(), None, [what], None)
    _add_root_guard(builder, guard, check, get_verbose_code_parts(what, guard))


def _false_where_gone(
    check: Callable[[Mapping[str, Any]], bool],
) -> Callable[[Mapping[str, Any]], bool]:
    def safe(frame_locals: Mapping[str, Any]) -> bool:
        try:
            return check(frame_locals)
        except (AttributeError, IndexError, KeyError, TypeError):
            return False

    return safe


def _path(builder: GuardBuilder, name: str) -> Callable[[Mapping[str, Any]], Any]:
    scope = {**_get_closure_vars(), "G": builder.runtime_global_scope}
    return eval(f"lambda L: {name}", scope)


def _add_root_guard(
    builder: GuardBuilder,
    guard: Guard,
    check: Callable[[Mapping[str, Any]], bool],
    parts: list[str],
) -> None:
    # At the root, for dict tags below would skip it: no tag tells of a reordering.
    builder.guard_manager.root.add_lambda_guard(check, parts, guard.user_stack)
