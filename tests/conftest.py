"""The plugin in this repository: short names of its options, and no need to install it."""

import pytest

from specmatrix.matrix import plugin


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, "specmatrix")
    plugin.add_options(parser, "")
