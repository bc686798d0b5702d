"""Engine flags among the words of a command line: `--page-size 4 "How many?" --disable-radix-cache`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Final

from specmatrix.engine.core.config.asked import KINDS, UNASKED, field_of, respelled, spellings_of
from specmatrix.errors import ConfigError

# What each flag is for, in one line.
HELP: Final[Mapping[str, str]] = {
    "model_path": "folder of the target model, or its name in the zoo",
    "speculative_algorithm": "NONE, EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM, SUFFIX, DFLASH or a registered one",
    "speculative_draft_model_path": "folder of the draft model, or its name in the zoo",
    "speculative_num_steps": "draft forwards per round: the depth of the draft",
    "speculative_eagle_topk": "children per draft node; 1: a chain",
    "speculative_num_draft_tokens": "tokens verified per round, the root included",
    "speculative_adaptive": "choose the steps by the acceptance so far",
    "speculative_adaptive_config": "its candidates and thresholds, a JSON file or text",
    "speculative_accept_threshold_single": "only 1 is allowed: a lower one is lossy",
    "speculative_accept_threshold_acc": "only 1 is allowed: a lower one is lossy",
    "speculative_acceptance": "what accepts sampled drafts: match, reject or block",
    "speculative_ragged_verify": "verify no more drafts of a request than what is left of its length",
    "speculative_confidence_threshold": "nor drafts that the draft model finds less likely than this",
    "speculative_constrained_drafts": "drafts follow the grammars of requests, if these have token tables",
    "speculative_ngram_min_bfs_breadth": "fewest children of an n-gram node",
    "speculative_ngram_max_bfs_breadth": "most children of an n-gram node",
    "speculative_ngram_match_type": "expand n-gram drafts by recency (BFS) or frequency (PROB)",
    "speculative_ngram_max_trie_depth": "longest n-gram that is indexed",
    "speculative_ngram_capacity": "most nodes of the index",
    "speculative_ngram_external_corpus_path": "a JSONL file of texts to draft from",
    "speculative_ngram_external_sam_budget": "draft tokens reserved for that corpus",
    "speculative_ngram_external_corpus_max_tokens": "longest corpus",
    "speculative_suffix_max_tree_depth": "most tokens of a match and its draft together",
    "speculative_suffix_max_cached_requests": "requests whose outputs are drafted from; 0: the own ones only",
    "speculative_suffix_max_spec_factor": "most drafts per matching token",
    "speculative_suffix_max_spec_offset": "and drafts besides those",
    "speculative_suffix_min_token_prob": "least probability of a draft",
    "spec_version": "v2 drafts while the last step is in flight, v1 after it",
    "disable_overlap_schedule": "schedule each step after the last one's result",
    "page_size": "tokens per KV page",
    "disable_radix_cache": "no prefix cache",
    "state_interval": "tokens between two checkpoints of a recurrent state",
    "swa_full_tokens_ratio": "KV positions of sliding-window layers per one of full attention",
    "chunked_prefill_size": "most prompt tokens per prefill step",
    "max_total_tokens": "KV positions of the pool",
    "max_running_requests": "most requests that run at once",
    "context_length": "longest prompt and answer together",
    "dtype": "auto, float32, bfloat16 or float16",
    "device": "auto, cpu or cuda",
    "tp_size": "tensor-parallel ranks",
    "disable_cuda_graph": "launch each kernel by itself",
    "cuda_graph_max_bs": "largest batch that is captured",
    "cuda_graph_max_gb": "most GiB of captured graphs",
    "enable_multi_layer_eagle": "one draft layer per step, for models with several",
    "enable_streaming_session": "sessions whose KV pages stay between turns",
    "random_seed": "seed of requests that bring none",
    "strict_memory": "check the KV ledger per request (1) or per step (2)",
    "kv_stamps": "prove on the device which tokens' KV is read",
    "disable_grammar_tables": "compute the masks of every grammar on the host",
    "enable_deterministic_inference": "answers that do not depend on the batch",
}

FLAGS: Final = tuple(f"--{name.replace('_', '-')}" for name in KINDS)
TRUTHS: Final = ("true", "false")


def rows() -> list[tuple[str, str]]:
    """(flag with its kind of value, description with its default) of each flag."""
    found = []
    for flag, (name, kind) in zip(FLAGS, KINDS.items(), strict=True):
        default = "" if kind is bool or UNASKED[name] in (None, "", MISSING) else f"  [default: {UNASKED[name]}]"
        found.append((flag if kind is bool else f"{flag} <{kind.__name__}>", HELP[name] + default))
    return found


def flags_of(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words that are not flags, in order, and the value of each field set by a flag (`true` for a switch).

    ConfigError on an unknown flag, a flag without its value, and a flag given twice. A word with blanks is not a flag.
    """
    others: list[str] = []
    flags: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not _is_flag(name):
            others.append(word)
            continue
        field = field_of(name)
        spellings = spellings_of(name)
        switch = KINDS[field] is bool or TRUTHS[0] in spellings
        if not equals and switch:
            value = rest.pop(0) if rest and rest[0] in TRUTHS else "true"
        elif not equals:
            if not rest or _is_flag(rest[0].partition("=")[0]):
                raise ConfigError(f"{name} needs a value")
            value = rest.pop(0)
        if field in flags:
            raise ConfigError(f"{name} is given twice; give it once")
        flags[field] = respelled(name, value, spellings) if spellings else value
    return others, flags


def _is_flag(name: str) -> bool:
    return name.startswith("--") and len(name) > 2 and not any(letter.isspace() for letter in name)
