"""The golden of single flags is exact, reaches every rule, and its gate is red where one says something else."""

import yaml

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.golden.flags import FLAGS_FILE, changed_flag, flags_of, golden_flags, outcome_of, with_flags

GOLDEN = golden_flags()


def test_what_flags_do_is_golden(file_regression):
    found = {start: {words: outcome_of(Cell.from_id(start), words) for words in rows} for start, rows in GOLDEN.items()}
    text = yaml.safe_dump(found, sort_keys=False, width=118, allow_unicode=True)
    file_regression.check(text, extension=".yaml", fullpath=FLAGS_FILE)


def test_every_rule_is_broken_by_some_flags():
    reached = set()
    for start, rows in GOLDEN.items():
        for words in rows:
            flags, facts = with_flags(Cell.from_id(start), words)
            try:
                context = RuleContext.of(EngineConfig.from_flags(flags), facts)
            except ConfigError:
                continue
            reached |= {rule.name for rule in RULES if rule.broken(context)}
    # Only an algorithm of a user's own breaks that one.
    assert {rule.name for rule in RULES} - reached == {"registered-on-ranks"}


def test_the_first_flags_with_another_outcome_are_named():
    cell, other, words = Cell.from_id("ngram.qwen3.pair"), Cell.from_id("standalone.pair"), "--spec-version v2"
    assert changed_flag(GOLDEN, cell) == changed_flag(GOLDEN, other) == changed_flag({}, cell) == ""
    golden = {**GOLDEN, "ngram": {**GOLDEN["ngram"], words: "refused: no"}}
    text = f"ngram with {words} {GOLDEN['ngram'][words]!r}; the golden file expects 'refused: no'"
    assert (changed_flag(golden, other), changed_flag(golden, cell)) == ("", text)


def test_flags_are_what_is_typed_on_a_command_line():
    config = EngineConfig("m", page_size=16, enable_multi_layer_eagle=False, disable_radix_cache=True)
    flags = flags_of(config)
    assert EngineConfig.from_flags(flags) == config
    assert (flags["--page-size"], flags["--disable-radix-cache"], flags["--spec-version"]) == ("16", "true", "auto")
    assert "--speculative-draft-model-path" not in flags
