"""The exception tree of the engine.

Exception
├── EngineError            speaks to a user: what was wrong, the value, what is allowed
│   ├── ConfigError        a launch that cannot run as asked
│   └── RequestError       one bad request; the rest of the batch goes on
└── EngineBug              a broken invariant of our own; never caught
    ├── LedgerError        KV pages and accounts disagree
    └── KernelError        a device operation broke its contract
"""


def text_of(error: BaseException) -> str:
    """The text of any exception on one line, whatever its own code does."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return "its text cannot be made"


def described(error: BaseException) -> str:
    """The type and text of any exception, on one line."""
    return ": ".join(filter(None, (type(error).__name__, text_of(error))))


class EngineError(Exception):
    """A mistake in what was asked; the text is one sentence that a user can act on."""


class ConfigError(EngineError):
    """A configuration that cannot run; the text names the fix."""


class RequestError(EngineError):
    """A request that cannot be served; it is refused alone."""


class EngineBug(Exception):
    """A broken invariant inside the engine; nothing may catch it and go on."""


class LedgerError(EngineBug):
    """A law of KV page ownership does not hold."""


class KernelError(EngineBug):
    """A device operation was called outside its contract or broke it."""
