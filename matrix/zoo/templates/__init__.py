"""The problem templates of gsm-mini: TRAINED ones, and HELDOUT ones that are only ever tested on."""

from matrix.zoo.templates.comparing import COMPARING
from matrix.zoo.templates.counting import COUNTING
from matrix.zoo.templates.form import Template
from matrix.zoo.templates.heldout import HELDOUT
from matrix.zoo.templates.journeys import JOURNEYS
from matrix.zoo.templates.money import MONEY
from matrix.zoo.templates.percents import PERCENTS
from matrix.zoo.templates.rates import RATES
from matrix.zoo.templates.sharing import SHARING

TRAINED: tuple[Template, ...] = COUNTING + MONEY + SHARING + COMPARING + RATES + PERCENTS + JOURNEYS

__all__ = ["HELDOUT", "TRAINED", "Template"]
