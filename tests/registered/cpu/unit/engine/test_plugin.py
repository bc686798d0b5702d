"""What a registration refuses, always naming the algorithm, and that it leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specmatrix.engine.core.draft.algorithms import ALGORITHMS, Topology, Traits, algorithm, known_algorithms
from specmatrix.engine.plugin import forget_algorithm, register_algorithm
from specmatrix.engine.spec.builders import BUILDERS, RELAYS
from specmatrix.errors import ConfigError

MINE = Traits("mine", "a test's own", Topology.CHAIN)


class CompleteDrafter:
    def __init__(self, context) -> None: ...

    def prime(self): ...

    def propose(self): ...

    def absorb(self): ...


class NoAbsorb:
    def prime(self): ...

    def propose(self): ...


class PrimeIsNoFunction(CompleteDrafter):
    prime = 3


def makes_whole(context: object) -> CompleteDrafter:
    return CompleteDrafter(context)


def makes_half(context: object) -> NoAbsorb:
    return NoAbsorb()


def makes_something(context):
    return CompleteDrafter(context)


@pytest.mark.parametrize("build", [CompleteDrafter, makes_whole])
def test_a_registered_algorithm_is_known_until_it_is_forgotten(build):
    def check(asked, facts): ...

    def relay(rows, drafter, device): ...

    before = known_algorithms()
    made = register_algorithm(MINE, build, check=check, relay=relay)
    try:
        assert made == replace(MINE, name="MINE") == algorithm("Mine")
        assert known_algorithms() == (*before, made)
        assert BUILDERS["MINE"] is build and RELAYS["MINE"] is relay
        with pytest.raises(ConfigError, match=r"^algorithm MINE is already registered; forget it first or choose"):
            register_algorithm(MINE, build)
    finally:
        forget_algorithm("mine")
    assert known_algorithms() == before and "MINE" not in BUILDERS and "MINE" not in RELAYS


def test_what_is_not_registered_cannot_be_forgotten():
    for name in ("mine", "EAGLE"):
        with pytest.raises(ConfigError, match=f"algorithm {name.upper()} is not registered; allowed: none"):
            forget_algorithm(name)


@pytest.mark.parametrize("name", [*(traits.name.lower() for traits in ALGORITHMS)])
def test_built_in_names_are_reserved(name):
    with pytest.raises(ConfigError, match=f"^algorithm {name.upper()} is built in; choose another name$"):
        register_algorithm(replace(MINE, name=name), CompleteDrafter)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (NoAbsorb, "algorithm MINE: NoAbsorb has no hook absorb; it needs prime, propose, absorb"),
        (makes_half, "algorithm MINE: NoAbsorb has no hook absorb; it needs prime, propose, absorb"),
        (PrimeIsNoFunction, "algorithm MINE: PrimeIsNoFunction has no hook prime; it needs prime, propose, absorb"),
        (makes_something, "algorithm MINE: build must be a drafter class, or a function whose return annotation is"),
        (7, "algorithm MINE: build must be a drafter class or a function, got 7"),
    ],
)
def test_a_missing_hook_is_named_at_the_registration(build, sentence):
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        register_algorithm(MINE, build)
    assert all(traits.name != "MINE" for traits in known_algorithms())


@pytest.mark.parametrize("hook", ["check", "relay"])
def test_an_optional_hook_must_be_a_function(hook):
    with pytest.raises(ConfigError, match=f"^algorithm MINE: {hook} must be a function, got 'x'$"):
        register_algorithm(MINE, CompleteDrafter, **{hook: "x"})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "two words"}, "algorithm name 'TWO WORDS' must consist of letters, digits and underscores and start"),
        ({"name": ""}, "algorithm name '' must consist of letters, digits and underscores and start with a letter"),
        ({"max_lag": 2}, "algorithm MINE: max_lag must be 0 or 1, got 2"),
        ({"reads_host": True}, "algorithm MINE: reads_host needs max_lag 0, because tokens on the host must be"),
        ({"key_span": -1}, "algorithm MINE: key_span must be at least 0, got -1"),
        ({"topology": Topology.TREE, "block": True}, "algorithm MINE: a block is a chain, so topology must be chain"),
        ({"draft_architectures": ("X",)}, "algorithm MINE: draft_architectures has no effect with draft_weights none"),
    ],
)
def test_contradicting_traits_are_refused(changes, sentence):
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        register_algorithm(replace(MINE, **changes), CompleteDrafter)
