"""Where a server under test is."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from specmatrix.errors import ConfigError, shown, text_of

FLAGS: Final = "{flags}"
SPEC_VERSION: Final = "{spec_version}"
# Paths at which servers report their configuration, in current and earlier versions of SGLang.
INFO: Final = ("/server_info", "/get_server_info")
# Aliases. SGLang runs NEXTN as EAGLE with the draft in the target's checkpoint.
ALIASES: Final = {"NEXTN": ("NEXTN", "EAGLE"), "float32": ("float32", "float")}
# The variant of a command that goes to the baseline server.
BASELINE: Final = "baseline"
NO_BASELINE: Final = "there is no server without speculation to compare with; give --baseline-url"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server under test. url: of a running server. baseline_url: of the same server without speculation.

    launch: a command that starts one, with `{flags}` where a cell's flags go, and perhaps `{spec_version}` for v1, v2
    or auto. key: sent as a bearer token.
    """

    url: str | None = None
    baseline_url: str | None = None
    launch: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        for option, url in (("--url", self.url), ("--baseline-url", self.baseline_url)):
            if url is not None and not url.startswith(("http://", "https://")):
                raise ConfigError(f"{option} is {shown(url)}; allowed: a URL such as http://127.0.0.1:30000")
        if (self.url is None) == (self.launch is None):
            raise ConfigError("--url and --launch: exactly one of them must be given")
        if self.url is not None and self.baseline_url is not None and same_url(self.url, self.baseline_url):
            raise ConfigError(f"--baseline-url is --url, {shown(self.url)}; it must be another server")
        if self.baseline_url is not None and self.launch is not None:
            raise ConfigError("--baseline-url goes with --url; --launch starts the baseline itself")
        if self.launch is not None and FLAGS not in self.launch:
            raise ConfigError(f"--launch is {shown(self.launch)}; it must hold {FLAGS}, where the flags of a cell go")
        try:
            shlex.split(self.launch or "")
        except ValueError as error:
            raise ConfigError(f"--launch is {shown(self.launch)}, which is no command: {text_of(error)}") from None

    @property
    def options(self) -> str:
        """The command-line options that name it, without the key."""
        named = {"--url": self.url, "--baseline-url": self.baseline_url, "--launch": self.launch}
        return " ".join(f"{option} {shlex.quote(value)}" for option, value in named.items() if value is not None)


def same_url(one: str, other: str) -> bool:
    """Whether two URLs are equal, ignoring trailing slashes and the case of scheme and host."""
    first, second = (urlsplit(url.rstrip("/")) for url in (one, other))
    return (first.scheme, first.netloc.lower(), first.path) == (second.scheme, second.netloc.lower(), second.path)


def endpoint_of(url: str | None, baseline_url: str | None, launch: str | None, key: str | None) -> Endpoint | None:
    """The endpoint that a command line names, None if it names none. ConfigError if it is named only in part."""
    if (url, baseline_url, launch) == (None, None, None):
        if key is not None:
            raise ConfigError("--api-key is for a server; give --url or --launch too")
        return None
    return Endpoint(url, baseline_url, launch, key)


def same(flag: str, asked: object, running: object) -> bool:
    """Whether a running value is what was asked for."""
    if isinstance(asked, str):
        return running in ALIASES.get(asked, (asked,))
    return asked == running or (not asked and running in (None, False))
