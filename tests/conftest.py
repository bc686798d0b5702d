"""The plugin in this repository: short names of its options, and no need to install it. Tests in the background too."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from specmatrix.matrix import plugin
from specmatrix.user_file import VARIABLE


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, "specmatrix")
    plugin.add_options(parser, "")


def pytest_configure() -> None:
    # A shell makes what it runs in the background ignore Ctrl-C, and some tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A loaded machine draws its examples slowly; their number bounds the time.
    settings.register_profile("specmatrix", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("specmatrix")


@pytest.fixture(autouse=True)
def _users_files_of_one_test() -> Iterator[None]:
    """Workers of later tests load no file that a test loaded."""
    before = os.environ.get(VARIABLE, "")
    yield
    os.environ[VARIABLE] = before
