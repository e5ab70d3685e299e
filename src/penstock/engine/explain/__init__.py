"""What a pipeline will do, as text and as a drawing."""

from penstock.engine.explain.drawing import Arranged, arrange, draw
from penstock.engine.explain.text import explain

__all__ = ["Arranged", "arrange", "draw", "explain"]
