"""Every package that a sentence names is in the extra that the sentence names."""

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.extras import EXTRA_OF, require


def test_the_extra_that_is_named_brings_the_package(monkeypatch):
    extras = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    monkeypatch.setattr("specmatrix.extras.find_spec", lambda name: None)
    for package, extra in EXTRA_OF.items():
        brought = {canonicalize_name(Requirement(text).name) for text in extras[extra]}
        assert canonicalize_name(package) in brought, package
        with pytest.raises(ConfigError, match=rf"^{package} is not installed; .*'specmatrix\[{extra}\]'$"):
            require(package)
