import pytest

from specmatrix.errors import ConfigError, EngineBug, EngineError, KernelError, LedgerError, RequestError

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


@pytest.mark.parametrize("error", [ConfigError, RequestError])
def test_user_errors_can_be_caught_together(error):
    assert issubclass(error, EngineError) and not issubclass(error, EngineBug)


@pytest.mark.parametrize("error", [LedgerError, KernelError])
def test_bugs_escape_a_handler_for_user_errors(error):
    assert issubclass(error, EngineBug) and not issubclass(error, EngineError)
