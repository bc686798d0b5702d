"""Builds each algorithm's drafter. Besides the traits, the only place that names algorithms.

An external corpus for n-gram drafting: JSON Lines, one document per line, read once at the engine's start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from traceback import extract_tb
from typing import TypeAlias

import torch

from specmatrix.engine.core.config.adaptive_file import inline
from specmatrix.engine.core.config.asked import Facts, Resolved
from specmatrix.engine.core.draft.algorithms import Traits, is_registered
from specmatrix.engine.core.draft.suffix_automaton import SuffixAutomaton
from specmatrix.engine.core.draft.verify_budget import TEMPERATURES, temperatures
from specmatrix.engine.core.schedule.step import padded
from specmatrix.engine.device.kv_groups import KVGroups
from specmatrix.engine.device.pool import KVLayout, KVPool
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.dflash.model import DSpark
from specmatrix.engine.models.eagle.model import Eagle, Eagle3
from specmatrix.engine.models.layers import Masks
from specmatrix.engine.models.loader import load_dflash, load_eagle, load_eagle3, load_nextn, load_standalone
from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.engine.spec.autoregressive import AutoregressiveDrafter, DraftModel, MultiLayerDrafter
from specmatrix.engine.spec.dflash import BlockDrafter, ParallelDrafter
from specmatrix.engine.spec.drafter import Drafter, PlainDrafter
from specmatrix.engine.spec.guard import read, restore
from specmatrix.engine.spec.ngram import NgramDrafter, SuffixDrafter
from specmatrix.errors import ConfigError, EngineError, described, is_interrupt, shown, text_of
from specmatrix.files import MAX_BYTES, read_text
from specmatrix.json_text import parse_json


def read_corpus(path: Path, tokenizer: Tokenizer, vocab_size: int, max_tokens: int) -> list[list[int]]:
    """The token ids of each document, without a bos id. vocab_size: the model's.

    A line is a JSON string, an object with a string "text", or a list of token ids. Raises ConfigError, naming the file
    and line, on anything else, a token outside the vocabulary, or a corpus of more than `max_tokens` tokens.
    """
    documents: list[list[int]] = []
    total = 0
    for where, line in _lines(path):
        document = _tokens(where, line, tokenizer)
        wrong = [token for token in document if not 0 <= token < vocab_size]
        if wrong:
            raise ConfigError(f"{where}: token {wrong[0]} is outside the vocabulary of {vocab_size}")
        total += len(document)
        if total > max_tokens:
            raise ConfigError(
                f"{where}: the corpus has more than {max_tokens} tokens; raise "
                "speculative_ngram_external_corpus_max_tokens or shorten the corpus"
            )
        documents.append(document)
    if not total:
        raise ConfigError(f"corpus {path} is empty; it must hold at least one document")
    return documents


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            # A device may never end its first line.
            for number, line in enumerate(iter(partial(file.readline, MAX_BYTES), b""), 1):
                if len(line) == MAX_BYTES:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                if line.strip():
                    yield f"{path}:{number}", line.decode()
    except OSError as error:
        raise ConfigError(f"corpus {path} cannot be read ({error.strerror}); pass a JSON Lines file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"corpus {path} is not UTF-8 text; pass a JSON Lines file") from None


def _tokens(where: str, line: str, tokenizer: Tokenizer) -> list[int]:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON ({error})") from None
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, str):
        ids = tokenizer.encode(value)
        return ids[1:] if ids and ids[0] == tokenizer.bos_id else ids
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise ConfigError(f'{where}: a document must be a string, an object with a string "text" or a list of ids')
    return value


Locate: TypeAlias = Callable[[str], Path]


def located(locate: Locate) -> Locate:
    """Wraps `locate` with checks: ConfigError if it is not callable or returns no path for a name."""
    if not callable(locate):
        raise ConfigError(f"locate is {shown(locate)}; allowed: a function from a model's name to its folder")

    def checked(name: str) -> Path:
        try:
            found = locate(name)
        except OSError as error:  # a name that the file system does not allow
            raise ConfigError(f"model {shown(name)} cannot be looked for ({error.strerror})") from None
        if not isinstance(found, str | PathLike):
            raise ConfigError(f"locate returns {shown(found)} for model {shown(name)}; it must return a folder's path")
        return Path(found)

    return checked


@dataclass(frozen=True, eq=False)
class BuildContext:
    """Inputs of a drafter builder.

    kv: the KV groups; a draft's layers join the first one. locate: maps a model's name to its folder. tokenizer: the
    target's, None if the engine tokenizes nothing.
    """

    traits: Traits
    resolved: Resolved
    facts: Facts
    target: CausalLM
    kv: KVGroups
    locate: Locate
    tokenizer: Tokenizer | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.resolved.device)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.resolved.dtype)
        return found

    @property
    def draws(self) -> bool:
        """Whether sampled requests' drafts are drawn from the draft's distribution, as the rules `reject` and `block`
        need.
        """
        return self.resolved.speculative_acceptance != "match"

    @property
    def verify_tokens(self) -> int:
        """Width of the target's verify step, for a draft whose forward reuses its graphs (sglang#24999).

        ConfigError unless the trait target_verify_for_draft is set.
        """
        if not self.traits.target_verify_for_draft:
            raise ConfigError(
                f"the draft of {self.traits.name} may not use the target's verify shape; its traits need "
                "target_verify_for_draft"
            )
        return self.resolved.max_draft_tokens

    @property
    def draft_folder(self) -> Path:
        """Folder of the draft's weights; the target's own if they are bundled. ConfigError if there is none."""
        if self.resolved.draft_path is None:
            raise ConfigError(f"speculative_algorithm {self.traits.name} was resolved without a draft checkpoint")
        return self.locate(self.resolved.draft_path)

    def pool(self, layout: KVLayout, stamps: bool = False) -> KVPool:
        """A pool for draft KV that shares pages and slot numbers with the full-attention group, plus spare slots for
        one round's drafts.
        """
        r = self.resolved
        spare = padded(r.max_running_requests) * max(r.max_steps * r.topk, r.max_draft_tokens)
        made = new_pool(r, layout, r.num_pages, stamps, spare)
        self.kv.full.pools.append(made)
        return made


def new_pool(resolved: Resolved, layout: KVLayout, pages: int, stamps: bool, spare: int = 0) -> KVPool:
    """A pool with this many pages, plus the padding page and spare slots."""
    return KVPool(
        layout,
        pages + 1,
        resolved.page_size,
        getattr(torch, resolved.dtype),
        resolved.device,
        stamps=stamps,
        deterministic=resolved.enable_deterministic_inference,
        spare=spare,
    )


LoadHead: TypeAlias = Callable[[Path, CausalLM], Eagle | Eagle3]
Build: TypeAlias = Callable[[BuildContext], Drafter]
# Builds an algorithm's relay from the number of rows, the drafter and the device.
RelayOf: TypeAlias = Callable[[int, Drafter, torch.device], Relay]


def _standalone(context: BuildContext) -> Drafter:
    model = load_standalone(context.draft_folder, context.target)
    return autoregressive(context, model, (), model.masks)


def _head(load: LoadHead, context: BuildContext) -> Drafter:
    """A head over the target's states."""
    model = load(context.draft_folder, context.target)
    return autoregressive(context, model, model.aux_layers, model.masks)


def _nextn(context: BuildContext) -> Drafter:
    r = context.resolved
    count = r.num_steps if r.enable_multi_layer_eagle else 1
    layers = load_nextn(context.draft_folder, context.target, count)
    first = layers[0]
    if not r.enable_multi_layer_eagle:
        return autoregressive(context, first, first.aux_layers)
    pool = context.pool(replace(first.kv, layers=count))
    options = r.num_draft_tokens, context.draws, r.speculative_constrained_drafts
    return MultiLayerDrafter(context.traits, layers, pool, first.aux_layers, *options)


def _dflash(context: BuildContext) -> Drafter:
    model = load_dflash(context.draft_folder, context.target)
    r = context.resolved
    if isinstance(model, DSpark) and r.speculative_dspark_confidence_sts_path is not None:
        text = named_text(TEMPERATURES, r.speculative_dspark_confidence_sts_path)
        model.calibrate(torch.tensor(temperatures(text), dtype=torch.float32))
    options = context.draws, r.speculative_confidence_threshold, r.speculative_dspark_sps_table_path is not None
    return BlockDrafter(context.traits, model, context.pool(model.kv), context.verify_tokens, *options)


def named_text(field: str, name: str) -> str:
    """The text of the JSON file that a field names, or the field's own text. ConfigError if it cannot be read."""
    if inline(name):
        return name
    try:
        return read_text(Path(name))
    except (OSError, ValueError) as error:
        undecoded = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        why = error.strerror if isinstance(error, OSError) else undecoded
        raise ConfigError(f"{field} {text_of(name)} cannot be read ({why}); pass a JSON file") from None


def autoregressive(
    context: BuildContext, model: DraftModel, capture: tuple[int, ...], masks: Masks | None = None
) -> Drafter:
    """The autoregressive drafter of a draft model with KV, in the resolved shape, or with `masks` one of a forward per
    round. capture: target layers it reads."""
    resolved = context.resolved
    make: Callable[..., Drafter] = AutoregressiveDrafter
    if masks is not None:
        make = partial(ParallelDrafter, masks=masks, positions=context.target.positions)
    return make(
        context.traits,
        model,
        context.pool(model.kv),
        steps=resolved.max_steps,
        topk=resolved.topk,
        nodes=resolved.max_draft_tokens,
        capture=capture,
        vocab_size=context.target.vocab_size,
        draws=context.draws,
        constrained=resolved.speculative_constrained_drafts,
        threshold=resolved.speculative_confidence_threshold,
    )


def corpus_file(name: str, locate: Locate) -> Path:
    """Path of a corpus; a name without a suffix is looked up in the model store."""
    path = Path(name)
    if path.suffix:
        return path
    try:
        return locate(name)
    except ConfigError:
        if os.path.lexists(path):  # the reader reports unreadable paths
            return path
        raise


def _ngram(context: BuildContext) -> Drafter:
    resolved, options = context.resolved, context.resolved.ngram
    if options is None:
        raise ConfigError(f"speculative_algorithm {context.traits.name} was resolved without n-gram options")
    corpus = None
    if options.external_corpus_path is not None:
        if context.tokenizer is None:
            raise ConfigError("an external n-gram corpus needs the target's tokenizer")
        file = corpus_file(options.external_corpus_path, context.locate)
        vocab_size = context.target.vocab_size
        documents = read_corpus(file, context.tokenizer, vocab_size, options.external_corpus_max_tokens)
        corpus = SuffixAutomaton(documents)
    return NgramDrafter(
        context.traits,
        options,
        steps=resolved.num_steps,
        topk=resolved.topk,
        nodes=resolved.num_draft_tokens,
        rows=resolved.max_running_requests,
        corpus=corpus,
    )


def _suffix(context: BuildContext) -> Drafter:
    resolved, options = context.resolved, context.resolved.suffix
    if options is None:
        raise ConfigError(f"speculative_algorithm {context.traits.name} was resolved without suffix options")
    return SuffixDrafter(context.traits, options, resolved.num_steps, resolved.max_running_requests)


BUILDERS: dict[str, Build] = {
    "NONE": lambda context: PlainDrafter(),
    "NGRAM": _ngram,
    "SUFFIX": _suffix,
    "EAGLE": partial(_head, load_eagle),
    "EAGLE3": partial(_head, load_eagle3),
    "NEXTN": _nextn,
    "STANDALONE": _standalone,
    "DFLASH": _dflash,
    "DSPARK": _dflash,
}
RELAYS: dict[str, RelayOf] = {}
# Attributes that a drafter must have once it is built.
ATTRIBUTES = ("traits", "nodes", "steps", "topk", "capture", "carries", "key_span")


def build_drafter(context: BuildContext) -> Drafter:
    """Build the resolved algorithm's drafter. ConfigError for a bad checkpoint or an algorithm without a builder."""
    name = context.traits.name
    if name not in BUILDERS:
        raise ConfigError(f"speculative_algorithm {name} has no drafter in this engine; allowed: {', '.join(BUILDERS)}")
    with as_config_error(name, "drafter"):
        drafter = BUILDERS[name](context)
    missing = [attribute for attribute in ATTRIBUTES if not hasattr(drafter, attribute)]
    if missing:
        raise ConfigError(f"the drafter of {name} has no attribute {missing[0]}; it needs {', '.join(ATTRIBUTES)}")
    return drafter


def build_relay(traits: Traits, rows: int, drafter: Drafter, device: torch.device) -> Relay:
    """The algorithm's own relay, or the default one with a buffer per carried tensor."""
    own = RELAYS.get(traits.name)
    if own is None:
        return Relay(rows, drafter.carries, device)
    with as_config_error(traits.name, "relay"):
        return own(rows, drafter, device)


@contextmanager
def as_config_error(name: str, made: str) -> Iterator[None]:
    """Converts exceptions of a registered algorithm's code to ConfigError for its author. Changed torch settings are
    restored and reported in the same way.
    """
    before = read()
    try:
        yield
    except BaseException as error:  # user code may raise anything
        if isinstance(error, EngineError) or not is_registered(name) or is_interrupt(error):
            raise
        *_, last = extract_tb(error.__traceback__)
        place = f"{Path(last.filename).name}, line {last.lineno}"
        raise ConfigError(f"the {made} of {name} cannot be built ({place}): {described(error)}") from error
    finally:
        changed = restore(before) if is_registered(name) else None
    if changed is not None:
        raise ConfigError(f"the {made} of {name} {changed} while it was built; it must leave torch's settings alone")
