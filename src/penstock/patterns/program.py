"""A pattern as a program for the matcher's kernel: a backtracking automaton, its instructions in order of
preference.

The automaton is Thompson's construction with ordered alternatives: of two ways, the first one that leads to a
match is the preferred one (ISO/IEC 19075-5, chapter 7). Quantifiers with numbers are written out.

Invariant: between two visits of one instruction at one row lies a `CHECK`, which fails where no row was
    taken.
So no way is endless.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock.core.vectors import Vector
from penstock.errors import SchemaError
from penstock.patterns.tree import (
    Absent,
    Bounded,
    Choice,
    Empty,
    End,
    Excluded,
    Gap,
    Name,
    Node,
    Permute,
    Repeat,
    Sequence,
    Start,
    Then,
    Until,
    can_be_empty,
    first_names,
    names_of,
)

__all__ = ["Program", "program_of"]

MATCH: Final = 0
"""The end of a match."""
TAKE: Final = 1
"""Takes the next row as a variable: a = which, b = 1 if it is excluded."""
SPLIT: Final = 2
"""Continues at a, or else at b."""
JUMP: Final = 3
"""Continues at a."""
START: Final = 4
"""Before the first row of the partition."""
END: Final = 5
"""Behind its last row."""
CLEAR: Final = 6
"""Begins an iteration, which notes in bit a whether it takes a row."""
CHECK: Final = 7
"""Ends it: fails where it took none."""
UNLESS: Final = 8
"""Fails if the next row is one of the set a."""
PASS: Final = 9
"""Passes over the next row, which is none of the set a."""
IF_ANY: Final = 10
"""Continues at b if the next row is one of the set a."""
DEADLINE: Final = 11
"""From here rows lie at most `amounts[b]` behind the last one that was taken: register a."""
NO_DEADLINE: Final = 12
"""Ends that."""
ABSENT: Final = 13
"""Passes over rows, none of the set a, up to the deadline."""

INSTRUCTIONS_MAX: Final = 20_000
"""Of a program: quantifiers with numbers, and PERMUTE, are written out."""
NESTED_MAX: Final = 60
"""Loops in each other whose iterations may be empty: each has a bit."""


@dataclass
class Program:
    """Instructions.

    Attributes:
        names: of variables: those that rows may be, and those that rows must not be.
        operations: int64[n].
        a: int64[n], the first argument of each.
        b: int64[n], the second one.
        sets: sets of variables, by their numbers.
        amounts: microseconds.
        bits: how many iterations note whether they took a row.
        deadlines: how many there are at once.
        needs_within: whether one waits for that of the whole match.
        has_gaps: whether rows may be passed over.
    """

    names: tuple[str, ...]
    operations: list[int] = field(default_factory=list)
    a: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)
    sets: list[tuple[int, ...]] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)
    bits: int = 0
    deadlines: int = 0
    needs_within: bool = False
    has_gaps: bool = False

    def emit(self, operation: int, a: int = 0, b: int = 0) -> int:
        """Adds an instruction; its place."""
        if len(self.operations) >= INSTRUCTIONS_MAX:
            raise SchemaError(
                f"expected a pattern of at most {INSTRUCTIONS_MAX:,} steps; found more, as quantifiers are "
                "written out. Use smaller numbers, or count in a definition"
            )
        self.operations.append(operation)
        self.a.append(a)
        self.b.append(b)
        return len(self.operations) - 1

    def here(self) -> int:
        """The place of the next instruction."""
        return len(self.operations)

    def set_of(self, names: Iterable[str]) -> int:
        """The number of a set of variables."""
        wanted = tuple(sorted({self.names.index(one) for one in names}))
        if wanted not in self.sets:
            self.sets.append(wanted)
        return self.sets.index(wanted)

    def joins(self) -> Vector:
        """Of each instruction its number among those that several ways lead to; -1: one way does."""
        ways = np.zeros(self.here() + 1, np.int64)
        for at, (operation, a, b) in enumerate(zip(self.operations, self.a, self.b, strict=True)):
            if operation in (SPLIT, JUMP):
                ways[a] += 1
            if operation in (SPLIT, IF_ANY):
                ways[b] += 1
            if operation not in (SPLIT, JUMP, MATCH):
                ways[at + 1] += 1
        several = ways[:-1] > 1
        return np.where(several, np.cumsum(several) - 1, -1)


def program_of(pattern: Node) -> Program:
    """The program of a pattern.

    Raises:
        SchemaError: it is too long, or it has an absence where none can be.
    """
    writer = _Writer(Program(names_of(pattern)))
    writer.write(pattern)
    writer.program.emit(MATCH)
    return writer.program


class _Writer:
    """Writes a program, node by node."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._excluded = 0
        self._untils: list[str] = []
        self._bits = 0
        self._deadlines = 0

    def write(self, node: Node) -> None:
        emit = self.program.emit
        match node:
            case Name(name):
                for until in self._untils:
                    emit(UNLESS, self.program.set_of([until]))
                emit(TAKE, self.program.names.index(name), int(self._excluded > 0))
            case Sequence(parts):
                for part in parts:
                    self.write(part)
            case Choice(parts):
                self._choice(parts)
            case Permute(parts):
                self._choice([Sequence(one) for one in itertools.permutations(parts)])
            case Repeat():
                self._repeat(node)
            case Excluded(part):
                self._excluded += 1
                self.write(part)
                self._excluded -= 1
            case Until(part, name):
                self._untils.append(name)
                self.write(part)
                self._untils.pop()
            case Start():
                emit(START)
            case End():
                emit(END)
            case Absent(name):
                emit(UNLESS, self.program.set_of([name]))
            case Bounded():
                self._step(node, None, ())
            case Then():
                self._then(node)
            case Empty():
                pass

    def _choice(self, parts: Iterable[Node]) -> None:
        *first, last = parts
        ends = []
        for part in first:
            split = self.program.emit(SPLIT)
            self.program.a[split] = self.program.here()
            self.write(part)
            ends.append(self.program.emit(JUMP))
            self.program.b[split] = self.program.here()
        self.write(last)
        for end in ends:
            self.program.a[end] = self.program.here()

    def _repeat(self, node: Repeat) -> None:
        ends: list[int] = []
        if node.most is None and node.least and not can_be_empty(node.part):
            for _ in range(node.least - 1):
                self.write(node.part)
            begin = self.program.here()
            self.write(node.part)
            split = self._split(begin, greedy=node.greedy)
            self._close([split])
            return
        for _ in range(node.least):
            self.write(node.part)
        if node.most is None:
            begin = self.program.here()
            split = self._split(begin + 1, greedy=node.greedy)
            self._iteration(node.part)
            self.program.emit(JUMP, begin)
            self._close([split])
            return
        for _ in range(node.most - node.least):
            ends.append(self._split(self.program.here() + 1, greedy=node.greedy))
            self._iteration(node.part)
        self._close(ends)

    def _split(self, inside: int, *, greedy: bool) -> int:
        """A choice between an iteration and the end, which is yet to be closed."""
        return self.program.emit(SPLIT, *((inside, -1) if greedy else (-1, inside)))

    def _close(self, splits: list[int]) -> None:
        """Lets what is open in some choices be the next instruction."""
        for at in splits:
            for side in (self.program.a, self.program.b):
                if side[at] == -1:
                    side[at] = self.program.here()

    def _iteration(self, part: Node) -> None:
        """An iteration beyond the least, which has a row."""
        if not can_be_empty(part):
            self.write(part)
            return
        self._begin_rows()
        self.write(part)
        self._end_rows()

    def _begin_rows(self) -> None:
        if self._bits == NESTED_MAX:
            raise SchemaError(
                f"expected at most {NESTED_MAX} quantifiers in each other over parts that may be empty; "
                "found more. Write the pattern without them"
            )
        self.program.emit(CLEAR, self._bits)
        self._bits += 1
        self.program.bits = max(self.program.bits, self._bits)

    def _end_rows(self) -> None:
        self._bits -= 1
        self.program.emit(CHECK, self._bits)

    def _then(self, node: Then) -> None:
        self.write(node.parts[0])
        absent: list[str] = []
        last = len(node.parts) - 1
        for i, (part, gap) in enumerate(zip(node.parts[1:], node.gaps, strict=True), 1):
            match part:
                case Absent(name) | Bounded(Absent(name)) if i == last:
                    within = part.within_us if isinstance(part, Bounded) else None
                    self._absence([*absent, name], within)
                case Absent(name):
                    absent.append(name)
                case Bounded(Absent(name)):
                    raise SchemaError(
                        f"expected the bound of !{name} at the step behind it; found it at !{name}. "
                        "Only an absence at the end has a bound of its own"
                    )
                case _:
                    self._part(part, gap, absent)
                    absent = []

    def _part(self, part: Node, gap: Gap, absent: list[str]) -> None:
        if not can_be_empty(part):
            self._step(part, gap, absent)
            return
        # Rows are passed over only if the part has one.
        prefers = not (isinstance(part, Repeat) and not part.greedy)
        split = self._split(self.program.here() + 1, greedy=prefers)
        self._begin_rows()
        self._step(part, gap, absent)
        self._end_rows()
        self._close([split])

    def _step(self, part: Node, gap: Gap | None, absent: Iterable[str]) -> None:
        """A part behind a gap, within its bound."""
        program = self.program
        bounded = isinstance(part, Bounded)
        if isinstance(part, Bounded):
            self._begin_deadline(part.within_us)
            part = part.part
        if gap is not None:
            program.has_gaps = True
            forbidden = program.set_of(absent)
            if gap == "any":
                begin = program.emit(SPLIT)
                target = program.b
                target[begin] = begin + 1
                target = program.a
            else:
                begin = program.emit(IF_ANY, program.set_of(first_names(part)))
                target = program.b
            program.emit(PASS, forbidden)
            program.emit(JUMP, begin)
            target[begin] = program.here()
        self.write(part)
        if bounded:
            self._end_deadline()

    def _absence(self, names: list[str], within_us: int | None) -> None:
        if within_us is not None:
            self._begin_deadline(within_us)
        elif not self._deadlines:
            self.program.needs_within = True
        self.program.has_gaps = True
        self.program.emit(ABSENT, self.program.set_of(names))
        if within_us is not None:
            self._end_deadline()

    def _begin_deadline(self, within_us: int) -> None:
        self.program.amounts.append(within_us)
        self.program.emit(DEADLINE, self._deadlines, len(self.program.amounts) - 1)
        self._deadlines += 1
        self.program.deadlines = max(self.program.deadlines, self._deadlines)

    def _end_deadline(self) -> None:
        self._deadlines -= 1
        self.program.emit(NO_DEADLINE, self._deadlines)
