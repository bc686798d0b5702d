"""The builders' table: each row builds its algorithm's drafter, and an algorithm without a row is an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, Topology, Traits, algorithm
from specmatrix.engine.device.kv_groups import KVGroup, KVGroups
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.device.slot_table import SlotTable
from specmatrix.engine.models.loader import facts, load_target
from specmatrix.engine.spec import builders
from specmatrix.engine.spec.builders import BUILDERS, RELAYS, BuildContext, build_drafter, build_relay, located
from specmatrix.errors import ConfigError


def context(zoo, name="NONE", draft=None, **asked: object) -> BuildContext:
    config = EngineConfig("llama-mini", name, draft, page_size=4, max_total_tokens=400, **asked)
    known = facts(zoo("llama-mini"), None if draft is None else zoo(draft), "cpu")
    resolved = resolve(config, known)
    target = load_target(zoo("llama-mini"), "cpu", torch.float32)
    table = SlotTable(2, 8, 4, torch.device("cpu"), stamps=False)
    kv = KVGroups([KVGroup(builders.new_pool(resolved, target.kv, resolved.num_pages, stamps=False), table)], ())
    return BuildContext(algorithm(name), resolved, known, target, kv, zoo)


@pytest.mark.parametrize(
    ("name", "draft", "carries"),
    [
        ("NONE", None, []),
        ("STANDALONE", "llama-mini-standalone", ["ids"]),
        ("EAGLE3", "llama-mini-eagle3", ["ids", "probs", "hidden"]),
        ("EAGLE", "llama-mini-eagle", ["ids", "probs", "hidden"]),
        ("DFLASH", "llama-mini-dflash", []),
    ],
)
def test_a_builder_makes_the_drafter_of_its_row(zoo, name, draft, carries):
    built = context(zoo, name, draft)
    drafter = build_drafter(built)
    assert drafter.traits is algorithm(name) and drafter.nodes == built.resolved.num_draft_tokens
    assert [carry.name for carry in drafter.carries] == carries
    assert drafter.key_span == drafter.traits.key_span
    assert len(built.kv.full.pools) == 1 + drafter.traits.own_kv


def test_every_built_in_algorithm_has_a_builder():
    assert set(BUILDERS) == {traits.name for traits in ALGORITHMS}


def test_a_draft_pool_has_the_targets_pages_and_spare_slots(zoo):
    built = context(zoo)
    draft, target = built.pool(built.target.kv, stamps=True), built.kv.full.pool
    assert built.kv.full.pools == [target, draft] and draft.data.dtype is torch.float32
    assert target.data.shape[1] == 4 * (400 // 4 + 1) == draft.data.shape[1] - len(draft.spare)
    assert len(draft.spare) > 0 and draft.stamps is not None and target.stamps is None


def test_an_algorithm_without_a_builder_is_refused_with_those_that_run(zoo):
    built = context(zoo)
    odd = BuildContext(Traits("ODD", "", Topology.TREE), built.resolved, built.facts, built.target, built.kv, zoo)
    with pytest.raises(ConfigError, match=f"ODD has no drafter in this engine; allowed: {', '.join(BUILDERS)}$"):
        build_drafter(odd)


def test_a_drafter_that_lacks_an_attribute_is_refused_with_all_that_it_needs(zoo, monkeypatch):
    lacking = SimpleNamespace(traits=algorithm("NONE"), nodes=1, steps=0, topk=0)
    monkeypatch.setitem(BUILDERS, "NONE", lambda built: lacking)
    with pytest.raises(ConfigError, match=r"^the drafter of NONE has no attribute capture; it needs traits, nodes,"):
        build_drafter(context(zoo))


def test_a_draft_folder_that_was_not_resolved_is_refused(zoo):
    with pytest.raises(ConfigError, match="NONE was resolved without a draft checkpoint"):
        _ = context(zoo).draft_folder


def test_the_relay_is_the_standard_one_unless_the_algorithm_has_its_own(zoo, monkeypatch):
    drafter = build_drafter(context(zoo))
    standard = build_relay(algorithm("NONE"), 3, drafter, torch.device("cpu"))
    assert type(standard) is Relay and len(standard.length) == 3 and not standard.carried

    class OwnRelay(Relay):
        pass

    def own(rows, drafter, device):
        return OwnRelay(rows, (*drafter.carries, DraftStateSpec("more", (2,), torch.int64)), device)

    monkeypatch.setitem(RELAYS, "NONE", own)
    made = build_relay(algorithm("NONE"), 5, drafter, torch.device("cpu"))
    assert type(made) is OwnRelay and made.carried["more"].shape == (5, 2)


def test_a_locate_that_finds_no_folder_is_refused_with_what_it_is():
    with pytest.raises(ConfigError, match=r"^locate is 'zoo'; allowed: a function from a model's name to its folder$"):
        located("zoo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^locate returns 3 for model 'tiny'; it must return a folder's path$"):
        located(lambda name: 3)("tiny")  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match=r"^model 'aaa.*\.\.\. cannot be looked for \(File name too long\)$"):
        located(lambda name: Path(name).resolve(strict=True))("a" * 999)
