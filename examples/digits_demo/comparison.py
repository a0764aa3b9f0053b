"""Judge whether a compiled scenario did what the eager one did."""

from __future__ import annotations

import dataclasses

import torch

from .run import Named, Recording
from .scenarios import Scenario


# Of float64 numbers: rounding differs by less than a thousandth of this even at the
# end of the training, and no hook of the scenarios has so small an effect.
RTOL = 1e-6
ATOL = 1e-9


@dataclasses.dataclass(frozen=True)
class Tally:
    """How many things were compared, and how the first that differs does so."""

    compared: int
    difference: str = ""

    @property
    def equal(self) -> bool:
        return not self.difference


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One line of the table.

    Attributes:
        error: the exception that ended the compiled scenario, if any.
        problems: what is wrong though nothing differs: code that did not run
            compiled, more graphs than the scenario needs.
    """

    title: str
    values: Tally
    gradients: Tally
    calls: Tally
    graphs: int
    breaks: int
    pieces: int
    eager_ms: float
    compiled_ms: float
    note: str
    error: str
    problems: list[str]

    @property
    def equal(self) -> bool:
        tallies = (self.values, self.gradients, self.calls)
        return not self.error and all(tally.equal for tally in tallies)

    @property
    def good(self) -> bool:
        return self.equal and not self.problems


def judge(scenario: Scenario, eager: Recording, compiled: Recording) -> Verdict:
    """Compare all that two playings of a scenario recorded."""
    return Verdict(
        title=scenario.title,
        values=_tensors(eager.values, compiled.values),
        gradients=_tensors(eager.gradients, compiled.gradients),
        calls=_calls(eager.calls, compiled.calls),
        graphs=compiled.graphs,
        breaks=compiled.breaks,
        pieces=compiled.pieces,
        eager_ms=compiled.eager_ms,
        compiled_ms=compiled.compiled_ms,
        note=compiled.note,
        error=compiled.error,
        problems=_problems(scenario, eager, compiled),
    )


def _tensors(eager: list[Named], compiled: list[Named]) -> Tally:
    for i, ((name, expected), (other_name, actual)) in enumerate(zip(eager, compiled)):
        where = f"{name} (number {i} of {len(eager)})"
        if name != other_name:
            return Tally(len(eager), f"{where} is missing: {other_name} in its place")
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            return Tally(len(eager), f"{where}: other shape or dtype")
        if not torch.allclose(expected, actual, rtol=RTOL, atol=ATOL, equal_nan=True):
            worst = (expected.double() - actual.double()).abs().max().item()
            return Tally(len(eager), f"{where} is off by {worst:.2g}")
    if len(eager) != len(compiled):
        return Tally(len(eager), f"{len(compiled)} recorded instead of {len(eager)}")
    return Tally(len(eager))


def _calls(eager: list[list[str]], compiled: list[list[str]]) -> Tally:
    total, other = (sum(map(len, calls)) for calls in (eager, compiled))
    if total != other:
        return Tally(total, f"{other} hook calls instead of {total}")
    if eager != compiled:
        return Tally(total, "hooks ran in another order")
    return Tally(total)


def _problems(scenario: Scenario, eager: Recording, compiled: Recording) -> list[str]:
    problems = []
    if not all(compiled.runs):
        problems.append("some calls ran no compiled graph: equal says nothing")
    if scenario.hooked and not any(eager.calls):
        problems.append("no hook ran in eager: equal says nothing")
    if not scenario.hooked and compiled.pieces != 1:
        problems.append(f"{compiled.pieces} graphs per step of a model without hooks")
    most = scenario.most_graphs
    if most is not None and compiled.graphs > most:
        problems.append(f"compiled {compiled.graphs} graphs where {most} will do")
    return problems
