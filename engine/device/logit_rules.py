"""Per-request logit processing before sampling: bias, penalties, bans and min_p, exact at each node of a draft tree.

The order is vLLM's: `logit_bias`, `repetition_penalty`, `frequency_penalty` and `presence_penalty` change raw logits;
then tokens outside `allowed_token_ids`, `bad_words_ids` and, before `min_new_tokens`, the stop tokens become -inf;
temperature follows; min_p removes tokens after temperature and before top-k and top-p. Log-probabilities are those of
the logits after everything but min_p, top-k and top-p.

A node sees the request's known tokens and its ancestors' drafts, as plain decoding would. The known tokens are kept on
the device, where each step adds what it emitted, so that a round needs nothing from the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.engine.device.batch import count
from specmatrix.engine.device.staging import floats, integers

ALWAYS: Final = 2**63 - 1


class LogitRows(NamedTuple):
    """Parameters of B requests on the device; a field is None if no request uses it.

    prompt int64 [B, 1]: tokens of the prompt. penalties float32 [3, B, 1, 1]: repetition, frequency, presence.
    bias_ids int64 and bias float32 [B, K], allowed int64 [B, A]: padded with id V. free bool [B, 1, 1]: no allowed ids.
    ban_last int64 [B, M]: token banned after ban_prefix int64 [B, M, P] (-1: any token) while the output is shorter
    than ban_until int64 [B, M]; padded with id V. min_p float32 [B, 1, 1].
    """

    prompt: Tensor
    penalties: Tensor | None
    bias_ids: Tensor | None
    bias: Tensor | None
    allowed: Tensor | None
    free: Tensor | None
    ban_prefix: Tensor | None
    ban_last: Tensor | None
    ban_until: Tensor | None
    min_p: Tensor | None


class NodeContext(NamedTuple):
    """Where logits were computed: N nodes per request below its last known token, which is node 0.

    start [B]: index of node 0 in the request's tokens. tokens, parents and depths [B, N], ancestors [B, N, N] bool or
    None for a chain: as in a draft tree. padded_kv_len: positions to read, above every start.
    """

    start: Tensor
    padded_kv_len: int
    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestors: Tensor | None


class LogitRules:
    """The logit rules of the requests in all rows, and their known tokens, int64 [rows, positions + 1].

    The buffer is created by the first request that needs it. eos_ids: the model's, banned before `min_new_tokens`.
    """

    def __init__(
        self, vocab_size: int, eos_ids: frozenset[int], rows: int, positions: int, device: torch.device
    ) -> None:
        self.vocab_size, self.eos_ids, self.device = vocab_size, eos_ids, device
        self.history: Tensor | None = None
        self._shape = rows, positions + 1
        self._asked: dict[int, tuple[SamplingParams, int]] = {}  # row -> parameters and the prompt's length
        self._batch: tuple[tuple[int, ...], LogitRows] | None = None

    def admit(self, rows: Sequence[PlanRow]) -> None:
        """Store the parameters and known tokens of requests that begin a residence."""
        for row in rows:
            if row.admit is None:
                continue
            self._batch = None
            self._asked.pop(row.row, None)
            if row.arrived is not None and row.admit[0].adjusts:
                prompt, tokens = row.arrived
                self._asked[row.row] = row.admit[0], prompt
                if self.history is None:
                    self.history = torch.zeros(self._shape, dtype=torch.int64, device=self.device)
                self.history[row.row, : len(tokens)] = integers(tokens, self.device)

    def record(self, rows: Tensor, first: Tensor, tokens: Tensor) -> None:
        """Add emitted tokens [B, n] of rows [B] at indices first.. [B]. Those past the accepted ones are never read:
        the next step writes over them."""
        assert self.history is not None
        self.history[rows[:, None], first[:, None] + count(tokens.shape[1], tokens.device)] = tokens

    def of(self, rows: Sequence[PlanRow]) -> LogitRows:
        """The rules of a batch; the same requests get the same tensors."""
        key = tuple([row.row for row in rows])
        if self._batch is None or self._batch[0] != key:
            self._batch = key, self._gathered(key)
        return self._batch[1]

    def adjusted(self, logits: Tensor, rows: Tensor, rules: LogitRows, at: NodeContext) -> Tensor:
        """Logits [B, N, V] of a batch's rows [B] after bias, penalties and bans: float32 [B, N, V]."""
        assert self.history is not None
        known = self.history[:, : at.padded_kv_len].index_select(0, rows)
        logits = logits.float()
        if rules.bias is not None:
            blank = logits.new_zeros(len(rows), self.vocab_size + 1)
            logits = logits + blank.scatter(1, rules.bias_ids, rules.bias)[:, None, :-1]
        if rules.penalties is not None:
            logits = _penalised(logits, rules, known, at)
        banned = self._banned(rules, known, at, logits.shape)
        return logits if banned is None else logits.masked_fill(banned, float("-inf"))

    def _banned(self, rules: LogitRows, known: Tensor, at: NodeContext, shape: torch.Size) -> Tensor | None:
        """Tokens that must not be emitted: bool, broadcastable to [B, N, V]; None if no request bans any."""
        batch, nodes, vocab = shape
        banned = None
        if rules.allowed is not None:
            kept = torch.zeros(batch, vocab + 1, dtype=torch.bool, device=known.device)
            banned = ~(kept.scatter_(1, rules.allowed, True)[:, None, :-1] | rules.free)
        if rules.ban_last is not None:
            before = (at.start[:, None] + at.depths + 1 - rules.prompt)[:, :, None]
            context = _last_tokens(known, at, rules.ban_prefix.shape[2])[:, :, None]
            prefix = rules.ban_prefix[:, None]
            active = ((prefix == context) | (prefix < 0)).all(-1) & (before < rules.ban_until[:, None])
            last = torch.where(active, rules.ban_last[:, None], vocab)
            hit = torch.zeros(batch, nodes, vocab + 1, dtype=torch.bool, device=known.device)
            found = hit.scatter_(2, last, True)[..., :-1]
            banned = found if banned is None else found | banned
        return banned

    def _gathered(self, rows: tuple[int, ...]) -> LogitRows:
        """The rules of these rows, uploaded."""
        none = SamplingParams(), 0
        asked = [self._asked.get(row, none)[0] for row in rows]
        prompts = [self._asked.get(row, none)[1] for row in rows]
        device, vocab = self.device, self.vocab_size
        column = (len(rows), 1, 1)
        penalties = bias_ids = bias = allowed = free = ban_prefix = ban_last = ban_until = min_p = None
        if any(params.penalises for params in asked):
            of = [[p.repetition_penalty, p.frequency_penalty, p.presence_penalty] for p in asked]
            penalties = torch.stack([floats(part, device) for part in zip(*of, strict=True)]).view(3, *column)
        if any(params.logit_bias for params in asked):
            wide = max(len(params.logit_bias or ()) for params in asked)
            bias_ids = _padded([list(params.logit_bias or ()) for params in asked], wide, vocab, device)
            values = [[*(p.logit_bias or {}).values()] for p in asked]
            bias = floats([x for v in values for x in [*v, *[0.0] * (wide - len(v))]], device).view(len(rows), wide)
        if any(params.allowed_token_ids is not None for params in asked):
            lists = [list(params.allowed_token_ids or ()) for params in asked]
            allowed = _padded(lists, max(map(len, lists)), vocab, device)
            free = integers([params.allowed_token_ids is None for params in asked], device).view(column) > 0
        bans = [self._bans(params) for params in asked]
        if any(bans):
            wide, long = max(map(len, bans)), max([1, *(len(words) - 1 for row in bans for words, _ in row)])
            padding = [((vocab,), 0)]
            full = [row + padding * (wide - len(row)) for row in bans]
            shape = (len(rows), wide)
            ban_last = integers([words[-1] for row in full for words, _ in row], device).view(shape)
            ban_until = integers([until for row in full for _, until in row], device).view(shape)
            prefixes = [[-1] * (long + 1 - len(words)) + [*words[:-1]] for row in full for words, _ in row]
            ban_prefix = integers([token for prefix in prefixes for token in prefix], device).view(*shape, long)
        if any(params.min_p for params in asked):
            min_p = floats([params.min_p for params in asked], device).view(column)
        prompt = integers(prompts, device)[:, None]
        return LogitRows(prompt, penalties, bias_ids, bias, allowed, free, ban_prefix, ban_last, ban_until, min_p)

    def _bans(self, params: SamplingParams) -> list[tuple[tuple[int, ...], int]]:
        """(sequence, until): its last token is banned after the others while the output is shorter than `until`."""
        bans = [(tuple(words), ALWAYS) for words in params.bad_words_ids]
        if params.min_new_tokens:
            bans += [((token,), params.min_new_tokens) for token in sorted(params.stops(self.eos_ids))]
        return [(words, until) for words, until in bans if words[-1] < self.vocab_size]


def without_unlikely(logits: Tensor, temperature: Tensor, min_p: Tensor) -> Tensor:
    """Logits [B, N, V] with -inf for tokens less likely than min_p [B, 1, 1] times the likeliest one, at each request's
    temperature [B] (0: greedy, unchanged in effect)."""
    heat = temperature.masked_fill(temperature <= 0, 1.0)[:, None, None]
    ratio = (logits - logits.amax(-1, keepdim=True)).div_(heat).exp_()
    return logits.masked_fill(ratio < min_p, float("-inf"))


def _penalised(logits: Tensor, rules: LogitRows, known: Tensor, at: NodeContext) -> Tensor:
    """Repetition over prompt and output, frequency and presence over the output only."""
    batch, nodes, vocab = logits.shape
    device = logits.device
    assert rules.penalties is not None
    repetition, frequency, presence = rules.penalties
    index = count(at.padded_kv_len, device)
    past = index <= at.start[:, None]
    one = torch.ones((), dtype=torch.int32, device=device)
    blank = torch.zeros(batch, vocab + 1, dtype=torch.int32, device=device)
    emitted = torch.where(past & (index >= rules.prompt), known, vocab)
    output = blank.scatter_add(1, emitted, one.expand_as(emitted).contiguous())
    seen = blank.bool().scatter(1, torch.where(past, known, vocab), True)
    # The drafts on the way to a node, the node's own included; node 0 is among the known tokens.
    order = count(nodes, device)
    line = order[:, None] >= order if at.ancestors is None else at.ancestors
    drafts = torch.where(line & (order > 0), at.tokens[:, None, :], vocab).expand(batch, nodes, nodes)
    drafted = torch.zeros(batch, nodes, vocab + 1, dtype=torch.int32, device=device)
    drafted.scatter_add_(2, drafts, one.expand(batch, nodes, nodes).contiguous())
    times = (output[:, None] + drafted)[..., :-1]
    repeated = (seen[:, None] | (drafted > 0))[..., :-1]
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(repeated, scaled, logits)
    return logits - frequency * times - presence * (times > 0)


def _last_tokens(known: Tensor, at: NodeContext, size: int) -> Tensor:
    """The last `size` tokens of each node's text, its own last: int64 [B, N, size], -1 before the text's start."""
    batch, nodes = at.tokens.shape
    device = known.device
    # Before the tree, the size - 1 tokens before node 0 and a first entry that is its own parent.
    index = at.start[:, None] + count(size, device) - size
    head = torch.where(index >= 0, known.gather(1, index.clamp(min=0)), -1)
    head[:, 0] = -1
    text = torch.cat((head, at.tokens), 1)
    parents = torch.cat((count(size, device).sub(1).clamp(min=0).expand(batch, -1), at.parents + size), 1)
    node = (count(nodes, device) + size).expand(batch, -1)
    last = []
    for _ in range(size):
        last.append(text.gather(1, node))
        node = parents.gather(1, node)
    return torch.stack(last[::-1], 2)


def _padded(lists: Iterable[list[int]], wide: int, filling: int, device: torch.device) -> Tensor:
    """Lists of numbers -> int64 [B, wide]."""
    rows = [[*numbers, *[filling] * (wide - len(numbers))] for numbers in lists]
    return integers([number for row in rows for number in row], device).view(len(rows), wide)
