"""The engine's exceptions.

Exception
├── EngineError            a user error: what was wrong, the value, what is allowed
│   ├── ConfigError        a configuration that cannot run
│   └── RequestError       one bad request; the rest of the batch continues
└── EngineBug              a broken invariant of the engine; never caught and ignored
    ├── LedgerError        KV pages and accounts disagree
    └── KernelError        a device operation broke its contract
"""


def text_of(error: BaseException) -> str:
    """An exception's text on one line, even if its own `__str__` raises."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return "its text is unavailable"


def described(error: BaseException) -> str:
    """An exception's type and text on one line."""
    return ": ".join(filter(None, (type(error).__name__, text_of(error))))


class EngineError(Exception):
    """A user error; the text is one sentence that a user can act on."""


class ConfigError(EngineError):
    """A configuration that cannot run; the text names the fix."""


class RequestError(EngineError):
    """A request that cannot be served; only this request is refused."""


class EngineBug(Exception):
    """A broken invariant of the engine; it must not be caught and ignored."""


class LedgerError(EngineBug):
    """A KV ownership invariant does not hold."""


class KernelError(EngineBug):
    """A device operation was called outside its contract or broke it."""
