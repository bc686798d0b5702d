"""The problem templates of gsm-mini: TRAINED ones, and HELDOUT ones that are used for tests only."""

from specmatrix.matrix.zoo.templates.comparing import COMPARING
from specmatrix.matrix.zoo.templates.counting import COUNTING
from specmatrix.matrix.zoo.templates.form import Template
from specmatrix.matrix.zoo.templates.heldout import HELDOUT
from specmatrix.matrix.zoo.templates.journeys import JOURNEYS
from specmatrix.matrix.zoo.templates.money import MONEY
from specmatrix.matrix.zoo.templates.percents import PERCENTS
from specmatrix.matrix.zoo.templates.rates import RATES
from specmatrix.matrix.zoo.templates.sharing import SHARING

TRAINED: tuple[Template, ...] = COUNTING + MONEY + SHARING + COMPARING + RATES + PERCENTS + JOURNEYS

__all__ = ["HELDOUT", "TRAINED", "Template"]
