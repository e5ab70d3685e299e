"""Row patterns: SQL:2016's row pattern recognition over sorted rows, and what Python's patterns add to it.

text, tree     a pattern's text and its tree
spec           the whole clause, as plain values
program        the tree as a backtracking automaton
expressions    definitions and measures: the row of each column
leaves         their parts of one row, computed on columns
conditions     definitions as columns, or as code for a stack machine
machine        the stack machine
kernels        the search
measures       the columns of matches
compiling      all of it: `Matcher`
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.patterns.compiling import Matcher
    from penstock.patterns.searching import Matches, Partial, Resume
    from penstock.patterns.spec import RowPattern
    from penstock.patterns.text import parse_pattern, pattern_text
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "compiling": ("Matcher",),
            "searching": ("Matches", "Partial", "Resume"),
            "spec": ("RowPattern",),
            "text": ("parse_pattern", "pattern_text"),
        },
    )

__all__ = [
    "Matcher",
    "Matches",
    "Partial",
    "Resume",
    "RowPattern",
    "parse_pattern",
    "pattern_text",
]
