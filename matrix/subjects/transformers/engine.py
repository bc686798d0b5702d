"""Runs transformers' generate() for asks, one after another, and counts its rounds with forward hooks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, RunningEngine, SubjectRequest
from specmatrix.matrix.zoo.registry import resolve_path

# Flags that transformers reads from the assistant's generation_config, not from generate().
ASSISTANT: Final = ("num_assistant_tokens", "assistant_confidence_threshold", "num_assistant_tokens_schedule")
# Flags of which a speculative run sets exactly one.
DRAFTING: Final = ("num_assistant_tokens", "prompt_lookup_num_tokens", "use_mtp")
# Fields of an ask that are no arguments of generate().
OWN_FIELDS: Final = ("seed", "logprobs", "top_logprobs")

# In place of the logarithm of 0, nats.
FORBIDDEN: Final = -1e4


@dataclass
class ForwardLog:
    """The target's forward passes during one call of generate().

    early_exit: number of layers with which the target drafts for itself; such passes are no rounds. passes: (positions
    in the KV cache before the pass, new positions).
    """

    early_exit: int | None = None
    passes: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pre-hook."""
        if self.early_exit is not None and model.config.num_hidden_layers == self.early_exit:
            return
        cache = kwargs.get("cache", kwargs.get("past_key_values"))  # the first since 5.24
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        # Once cropped by a tensor, a sliding-window layer returns its length as a tensor.
        self.passes.append((0 if cache is None else int(cache.get_seq_length()), ids.shape[1]))

    def rounds(self, prompt: int, total: int) -> tuple[tuple[int, int], ...]:
        """(emitted tokens, verified nodes) of each pass, of a text of `total` tokens after a prompt of `prompt` tokens.

        transformers verifies its first drafts together with the prompt, so the first pass emits the token that any
        prefill emits, too. Without such drafts, as in MTP, the first pass is a prefill and no round.
        """
        starts = [prompt, *(cached + 1 for cached, _ in self.passes[1:]), total]
        widths = [width for _, width in self.passes]
        if widths:
            widths[0] -= prompt - 1
        rounds = tuple(
            (end - start, width) for start, end, width in zip(starts, starts[1:], widths, strict=False) if end > start
        )
        return rounds[1:] if widths[:1] == [1] else rounds


class TransformersEngine(RunningEngine):
    """A target, and an assistant if the command has a draft, in float32 on one thread. A variant's draft has another
    vocabulary."""

    def __init__(self, command: EngineCommand) -> None:
        quiet: tuple[Callable[[], None], ...] = (logging.set_verbosity_error, logging.disable_progress_bar)
        for silence in quiet:
            silence()
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        self._flags = dict(command.flags)
        dtype = self._flags["dtype"]
        self.model: Any = _load(command.checkpoints["target"], dtype)
        self.tokenizer = AutoTokenizer.from_pretrained(resolve_path(command.checkpoints["target"]))
        draft = command.checkpoints.get("draft")
        self.assistant: Any = None if draft is None else _load(draft, dtype)
        # Drafts with their own vocabulary, and their tokenizers, by do_sample: sampling prunes its draft permanently.
        self.others: list[tuple[Any, Any]] = []
        if draft is not None and command.variant:
            drafts = [_load(draft, dtype) for _ in (False, True)]
            self.others = [(other, with_other_vocabulary(other, resolve_path(draft))) for other in drafts]
        drafting = self.assistant or self.model
        for model, name in product((drafting, *(other for other, _ in self.others)), ASSISTANT):
            model.generation_config.eos_token_id = None
            if name in self._flags:
                setattr(model.generation_config, name, self._flags[name])
        if "use_mtp" in self._flags:
            _show_prediction_layers(self.model)
        # generate() would take these two from the checkpoint where an ask says None.
        self.model.generation_config.eos_token_id = None
        self._counts: Counter[str] = Counter()
        self._unchunked = False

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        """Run the asks one after another. Exceptions of generate() propagate."""
        return [self._answer(ask) for ask in asks]

    def readback(self) -> Mapping[str, Any]:
        """The running values: the assistant's from its generation_config; prefill_chunk_size None once a prompt was
        prefilled at once."""
        drafting = (self.assistant or self.model).generation_config
        found = {name: value for name, value in self._flags.items() if name not in ASSISTANT}
        found |= {name: getattr(drafting, name) for name in ASSISTANT if name in self._flags}
        found["dtype"] = str(self.model.dtype).removeprefix("torch.")
        if self._unchunked:
            found["prefill_chunk_size"] = None
        return found

    def counters(self) -> Mapping[str, int]:
        """spec.drafted, spec.accepted and spec.verify_rounds since the start."""
        return dict(self._counts)

    def close(self) -> None:
        del self.model, self.assistant, self.others

    def _answer(self, ask: SubjectRequest) -> Answer:
        log = ForwardLog(self._flags.get("assistant_early_exit"))
        prompt = len(ask.input_ids)
        longest = self.model.config.max_position_embeddings
        if prompt + ask.fields["max_new_tokens"] > longest:
            # generate() would continue past the positions that the model knows.
            text = f"{prompt} prompt tokens and {ask.fields['max_new_tokens']} new ones; the model takes {longest}"
            return Answer(ask.id, ask.input_ids, (), "", "refused", None, 0, (), refusal=text)
        hook = self.model.register_forward_pre_hook(log, with_kwargs=True)
        try:
            output = self._call(ask)
        finally:
            hook.remove()
        ids = tuple(output.sequences[0, prompt:].tolist())
        self._note(log, prompt)
        rounds = log.rounds(prompt, prompt + len(ids)) if self._drafts else ()
        self._counts["spec.verify_rounds"] += len(rounds)
        self._counts["spec.drafted"] += sum(width - 1 for _, width in rounds)
        self._counts["spec.accepted"] += sum(emitted - 1 for emitted, _ in rounds)
        text, finish, matched = ending(ask, ids, self._decode)
        logprobs, top = _logprobs(ask, output, ids)
        return Answer(
            ask.id,
            ask.input_ids,
            ids,
            text,
            finish,
            matched,
            cached_tokens=0,
            accept_lengths=tuple(emitted for emitted, _ in rounds),
            logprobs=logprobs,
            top_logprobs=top,
            round_widths=tuple(width for _, width in rounds),
            drafts_first=sum(emitted for emitted, _ in rounds) == len(ids),
        )

    @property
    def _drafts(self) -> bool:
        return any(name in self._flags for name in DRAFTING)

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The shape of MTP's drafts, which follows from the checkpoint."""
        if "use_mtp" not in self._flags:
            return {}
        layers = self.model.config.num_mtp_layers
        return {"num_steps": layers, "topk": 1, "num_draft_tokens": layers + 1}

    def _call(self, ask: SubjectRequest) -> Any:
        torch.manual_seed(int(ask.fields["seed"]))
        ids = torch.tensor([ask.input_ids])
        arguments = {name: value for name, value in ask.fields.items() if name not in OWN_FIELDS}
        arguments |= {name: value for name, value in self._flags.items() if name not in (*ASSISTANT, "dtype")}
        if self.assistant is not None:
            arguments["assistant_model"] = self.assistant
        if self.others:
            draft, tokenizer = self.others[arguments["do_sample"]]
            arguments |= {"assistant_model": draft, "assistant_tokenizer": tokenizer, "tokenizer": self.tokenizer}
        if number := arguments.pop("prefix_allowed_tokens_fn", 0):
            arguments["prefix_allowed_tokens_fn"] = partial(_after, number, self.model.config.vocab_size)
        if "stop_strings" in arguments:
            arguments["tokenizer"] = self.tokenizer
        return self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
            output_scores=True,
            **arguments,
        )

    def _note(self, log: ForwardLog, prompt: int) -> None:
        chunk = self._flags.get("prefill_chunk_size")
        if chunk is not None and log.passes and log.passes[0][1] > max(chunk, prompt % chunk):
            self._unchunked = True

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).rstrip("�")


def ending(
    ask: SubjectRequest, ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> tuple[str, str, int | str | None]:
    """(text, finish, matched) of an output, as generate() does not say why it ended. decode: tokens to text."""
    if ids and ids[-1] in (ask.fields["eos_token_id"] or ()):
        return decode(ids[:-1]), "stop", ids[-1]
    text = decode(ids)
    hits = [(text.find(stop), -len(stop), stop) for stop in ask.fields.get("stop_strings", ()) if stop in text]
    if hits:
        start, _, stop = min(hits)
        return text[:start], "stop", stop
    return text, "length" if len(ids) >= ask.fields["max_new_tokens"] else "abort", None


def _show_prediction_layers(model: Any) -> None:
    """Declare the layers after the last one as prediction layers; transformers expects a DeepSeek-V3 checkpoint's in
    layer 61."""
    layers, more = model.config.num_hidden_layers, model.config.num_mtp_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{n}\." for n in range(layers, layers + more)]


def _after(number: int, vocabulary: int, _: int, ids: torch.Tensor) -> list[int]:
    """The tokens that may follow a text: those whose sum with its last token is not a multiple of `number`."""
    last = int(ids[-1])
    return [token for token in range(vocabulary) if (token + last) % number]


def _load(name: str, dtype: str) -> Any:
    """A zoo model or a folder. ConfigError if transformers cannot load it."""
    path = resolve_path(name)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        return model.eval()
    except Exception as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"transformers cannot load {name}: {type(error).__name__}: {text}") from error


def _logprobs(
    ask: SubjectRequest, output: Any, ids: Sequence[int]
) -> tuple[tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]:
    """Log-probabilities in nats of the output tokens and of their likeliest alternatives, if the ask requests them.

    Those of the logits after temperature and every rule, but before top_k, top_p and min_p, which the processed scores
    cannot show; with one of these, of the logits after temperature alone.
    """
    alternatives = ask.fields["top_logprobs"]
    if not ids or not (alternatives or ask.fields["logprobs"]):
        return (), ()
    cuts = ask.fields.get("top_k", 0) > 0 or ask.fields.get("top_p", 1.0) < 1 or ask.fields.get("min_p", 0) > 0
    logits = torch.cat(list(output.logits)) / ask.fields.get("temperature", 1.0) if cuts else torch.cat(output.scores)
    rows = logits.float().log_softmax(-1).clamp(min=FORBIDDEN)
    chosen = rows[torch.arange(len(ids)), torch.tensor(ids)]
    if not alternatives:
        return tuple(chosen.tolist()), ()
    best = rows.topk(min(alternatives, rows.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    top = tuple(tuple(zip(tokens, values, strict=True)) for tokens, values in pairs)
    return tuple(chosen.tolist()), top


# Special tokens keep their ids; all others move up by SHIFT. Additional tokens, which occur in no text, stand for
# draft-only ones; the sizes must differ, as transformers treats vocabularies of equal size as the same.
SPECIAL: Final = 2
SHIFT: Final = 101
MORE: Final = 32


def with_other_vocabulary(draft: Any, path: Path) -> Any:
    """Change a draft in place and return its new tokenizer. path: of its checkpoint. The additional tokens copy the
    rows of BOS, which is never drafted."""
    size = draft.config.vocab_size
    total = size + MORE
    moved = [*range(SPECIAL), *((n - SPECIAL + SHIFT) % (total - SPECIAL) + SPECIAL for n in range(SPECIAL, total))]
    draft.resize_token_embeddings(total, mean_resizing=False)
    with torch.no_grad():
        for layer in (draft.get_input_embeddings(), draft.get_output_embeddings()):
            layer.weight[size:] = layer.weight[0]
            layer.weight[moved] = layer.weight.clone()
    content = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = {token: moved[place] for token, place in content["model"]["vocab"].items()}
    content["model"]["vocab"] = vocabulary | {f"<other {n}>": moved[size + n] for n in range(MORE)}
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=Tokenizer.from_str(json.dumps(content)))
