"""State of the Python interpreter and of torch that an algorithm must leave as it is."""

from __future__ import annotations

import builtins
import gc
import locale
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from specmatrix.engine.spec.torch_settings import Setting

STREAMS: Final = {"stdin": (0, "r"), "stdout": (1, "w"), "stderr": (2, "w")}


def _streams() -> dict[str, tuple[Any, bool]]:
    """Each with whether it is closed."""
    streams = {name: getattr(sys, name) for name in STREAMS}
    return {name: (stream, getattr(stream, "closed", False)) for name, stream in streams.items()}


def _set_streams(streams: dict[str, tuple[Any, bool]]) -> None:
    """A closed stream is opened anew; its descriptor is restored before."""
    for name, (stream, was_closed) in streams.items():
        if getattr(stream, "closed", False) and not was_closed:
            fd, mode = STREAMS[name]
            stream = open(fd, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _hooks() -> dict[str, Any]:
    return {
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "sys.displayhook": sys.displayhook,
        "threading.excepthook": threading.excepthook,
    }


def _set_hooks(hooks: dict[str, Any]) -> None:
    for name, hook in hooks.items():
        module, attribute = name.split(".")
        setattr({"sys": sys, "threading": threading}[module], attribute, hook)


def _traces() -> dict[str, Any]:
    return {"settrace": sys.gettrace(), "setprofile": sys.getprofile()}


def _set_traces(traces: dict[str, Any]) -> None:
    for name, function in traces.items():
        getattr(sys, name)(function)


def _collector() -> dict[str, Any]:
    return {"enabled": gc.isenabled(), "threshold": gc.get_threshold(), "debug": gc.get_debug()}


def _set_collector(values: dict[str, Any]) -> None:
    (gc.enable if values["enabled"] else gc.disable)()
    gc.set_threshold(*values["threshold"])
    gc.set_debug(values["debug"])


def _print_options() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _set_print_options(options: dict[str, Any]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(options)


def _listed(values: list[str]) -> tuple[Callable[[], list[str]], Callable[[list[str]], None]]:
    """How to read and restore a list that is changed in place."""

    def restore(before: list[str]) -> None:
        values[:] = before

    return lambda: list(values), restore


def _kept(values: dict[str, Any]) -> tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], None]]:
    """How to read and restore what a dictionary holds by now; further keys do not count."""
    known = set(values)
    return lambda: {name: values[name] for name in known if name in values}, values.update


def interpreter_state() -> tuple[Setting, ...]:
    """What counts from now on."""
    return (
        Setting("the standard streams", _streams, _set_streams),
        Setting("the modules of sys.modules", *_kept(sys.modules)),
        Setting("the builtins", *_kept(vars(builtins))),
        Setting("sys.path", *_listed(sys.path)),
        Setting("sys.argv", *_listed(sys.argv)),
        Setting("the hooks", _hooks, _set_hooks),
        Setting("what is called by", _traces, _set_traces),
        Setting("the switch interval", sys.getswitchinterval, sys.setswitchinterval),
        Setting("the most digits of an integer", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        Setting("the garbage collector's", _collector, _set_collector),
        Setting("the level of logging.disable", lambda: logging.root.manager.disable, logging.disable),
        Setting(
            "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda old: locale.setlocale(locale.LC_ALL, old)
        ),
        Setting("torch's print options", _print_options, _set_print_options),
        Setting(
            "torch's autocast of the CPU",
            lambda: torch.is_autocast_enabled("cpu"),
            lambda old: torch.set_autocast_enabled("cpu", old),
        ),
    )
