"""User-defined algorithms: `register_algorithm` adds one to the command line, the resolution and the builders.

One file is enough (`examples/`). The extension points are those of sglang#24999 and of SGLang's `register`: whether
the draft may use the target's verify shape (trait `target_verify_for_draft`), its own relay, and a check of the
requested configuration. A registered drafter is validated (`engine.spec.guard`): invalid output fails only its own
request, never the batch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, get_type_hints

from specmatrix.engine.core.draft import algorithms
from specmatrix.engine.core.draft.algorithms import Check, Topology, Traits, forget_traits, known_algorithms
from specmatrix.engine.spec.builders import BUILDERS, RELAYS, Build, BuildContext, RelayOf
from specmatrix.engine.spec.guard import read, restore
from specmatrix.errors import ConfigError, shown
from specmatrix.user_file import DEFINED, load_file

__all__ = ["BuildContext", "Topology", "Traits", "forget_algorithm", "register_algorithm"]

HOOKS: Final = ("prime", "propose", "absorb")
NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")


def register_algorithm(
    traits: Traits, build: Build, *, check: Check | None = None, relay: RelayOf | None = None
) -> Traits:
    """Register an algorithm; returns its traits, with the name in upper case.

    build: the drafter's class, called with a BuildContext, or a function of one whose return annotation is that class.
        The class must have the hooks prime, propose and absorb (`engine.spec.drafter.Drafter`).
    check: called with the requested configuration and the facts before anything is resolved; it raises ConfigError
        with a message that names the fix.
    relay: rows, drafter and device -> the relay that stores the drafter's carried state (`engine.device.relay.Relay`,
        or a subclass); by default one buffer per carry.
    Raises ConfigError, with the algorithm's name, on a bad, built-in or taken name, a hook that is missing or not a
    function, or contradictory traits.
    """
    traits = replace(traits, name=traits.name.upper())
    _check_traits(traits)
    _check_hooks(traits.name, build)
    for hook, given in (("check", check), ("relay", relay)):
        if given is not None and not callable(given):
            raise ConfigError(f"algorithm {traits.name}: {hook} must be a function, got {shown(given)}")
    algorithms.register_traits(traits, check)
    DEFINED.append(f"algorithm {traits.name}")
    BUILDERS[traits.name] = build
    if relay is not None:
        RELAYS[traits.name] = relay
    return traits


def forget_algorithm(name: str) -> None:
    """Unregister an algorithm. ConfigError if it is not registered; engines that run it are not affected."""
    forget_traits(name.upper())
    del BUILDERS[name.upper()]
    RELAYS.pop(name.upper(), None)


def _check_traits(traits: Traits) -> None:
    name = traits.name
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"algorithm name {shown(name)} must consist of letters, digits and underscores and start with a letter"
        )
    wrong = (
        (traits.max_lag not in (0, 1), f"max_lag must be 0 or 1, got {traits.max_lag}"),
        (
            traits.reads_host and traits.max_lag != 0,
            "reads_host needs max_lag 0, because tokens on the host must be resolved",
        ),
        (traits.key_span < 0, f"key_span must be at least 0, got {traits.key_span}"),
        (
            traits.block and traits.topology is not Topology.CHAIN,
            f"a block is a chain, so topology must be chain, got {traits.topology}",
        ),
        (
            bool(traits.draft_architectures) and not traits.needs_draft_model,
            "draft_architectures has no effect with draft_weights none",
        ),
    )
    for broken, why in wrong:
        if broken:
            raise ConfigError(f"algorithm {name}: {why}")


def _check_hooks(name: str, build: Callable[..., object]) -> None:
    """The drafter's class, found without building it, must have every hook."""
    if not callable(build):
        raise ConfigError(f"algorithm {name}: build must be a drafter class or a function, got {shown(build)}")
    made = build if inspect.isclass(build) else get_type_hints(build).get("return")
    if not inspect.isclass(made):
        raise ConfigError(
            f"algorithm {name}: build must be a drafter class, or a function whose return annotation is that class"
        )
    for hook in HOOKS:
        if not callable(getattr(made, hook, None)):
            raise ConfigError(f"algorithm {name}: {made.__name__} has no hook {hook}; it needs {', '.join(HOOKS)}")


KIND: Final = "algorithm"
HINT: Final = "call register_algorithm(traits, drafter) at its top level"


def load_algorithms(path: Path) -> tuple[Traits, ...]:
    """Run a Python file and return the traits of the algorithms that it registers, in registration order.

    ConfigError as `load_file`, and if it changes torch's settings or registers nothing. In these cases none of its
    registrations remain.
    """
    before, settings = known_algorithms(), read()
    try:
        try:
            load_file(path, KIND, HINT)
        finally:
            changed = restore(settings)
        if changed is not None:
            raise ConfigError(
                f"{KIND} file {path} cannot be loaded: it {changed}; it must leave torch's settings alone"
            )
    except BaseException:  # user code may raise anything
        for traits in _since(before):
            forget_algorithm(traits.name)
        raise
    found = _since(before)
    if not found:
        raise ConfigError(f"{KIND} file {path} registers no algorithm; it must {HINT}")
    return found


def _since(before: tuple[Traits, ...]) -> tuple[Traits, ...]:
    return known_algorithms()[len(before) :]
