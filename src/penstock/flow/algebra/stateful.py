"""The node of an operator: its schema is the operator's."""

from __future__ import annotations

from penstock.core.schema import Schema
from penstock.flow.graph import Node, Stateful
from penstock.ops import Operator

__all__ = ["stateful"]


def stateful(operator: Operator, *inputs: Node, single: bool = False) -> Stateful:
    """The node of an operator.

    Args:
        operator: what it computes.
        inputs: of its ports.
        single: whether it has one row at most, which follows from the operator and its inputs.
    """
    return Stateful(inputs, operator, Schema.from_arrow(operator.traits.schema), single=single)
