"""The nodes of sqlglot's trees: in the order of its own walks, which cost three times as much.

Rules look through a whole query for what they rewrite, mostly in vain: it was a seventh of planning.
"""

from __future__ import annotations

from typing import TypeVar

from sqlglot import exp

__all__ = ["children", "find_all", "nodes_of"]

E = TypeVar("E", bound=exp.Expr)


def children(node: exp.Expr) -> list[exp.Expr]:
    """The nodes right below one, in order."""
    found: list[exp.Expr] = []
    for value in node.args.values():
        if isinstance(value, exp.Expr):
            found.append(value)
        elif type(value) is list:
            found += [one for one in value if isinstance(one, exp.Expr)]
    return found


def nodes_of(tree: exp.Expr) -> list[exp.Expr]:
    """A node and all below it, level by level."""
    found = [tree]
    for node in found:  # which grows
        for value in node.args.values():
            if isinstance(value, exp.Expr):
                found.append(value)
            elif type(value) is list:
                found += [one for one in value if isinstance(one, exp.Expr)]
    return found


def find_all(tree: exp.Expr, *kinds: type[E]) -> list[E]:
    """The nodes of some classes: all that are there now, whatever becomes of the tree."""
    return [node for node in nodes_of(tree) if isinstance(node, kinds)]
