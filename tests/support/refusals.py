"""The sentence with which a call is refused."""

from collections.abc import Callable

import pytest

from specmatrix.errors import ConfigError


def refusal(call: Callable[..., object], *given: object, **named: object) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*given, **named)
    return str(caught.value)
