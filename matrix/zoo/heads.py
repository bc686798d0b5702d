"""Draft heads (token and hidden state in), and their unrolling over a whole sequence.

Each base slot q is unrolled independently: at step j it holds token t[q+1+j] at position q+j and predicts t[q+2+j]. It
attends to the step-0 keys at slots up to q, and to its own key of each later step. The hidden state of step 0 comes
from the target's captured states at q, that of later steps is the previous step's output.
(training-time test of EAGLE-3, arXiv 2503.01840)

Draft heads over the target's hidden states: EAGLE (arXiv 2406.16858) and EAGLE3 (arXiv 2503.01840).

A draft that predicts a whole block in one forward, from the last known token followed by mask tokens, attending to
projections of the target's hidden states (DFlash; checkpoint layout of z-lab's DFlashDraftModel).

A block draft whose tokens are chosen from left to right by a Markov head, with a confidence for each (DSpark,
arXiv 2607.05147; checkpoint layout of SGLang's DSparkDraftModel).

DFLASH2's draft (z-lab's DFlash2DraftModel): DFLASH's block, with convolutions along it and a selector of pairs.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo import net as nets
from specmatrix.matrix.zoo.net import Attend, Layer, RMSNorm, Table, initialise, rope_table, widened
from specmatrix.matrix.zoo.registry import Recipe, Shape


class Head(Protocol):
    """A draft head over the target's hidden states."""

    shape: Shape

    def features(self, captured: Tensor) -> Tensor:
        """The hidden state of step 0 from the target's captured states [B, T, A]."""
        ...

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """Hidden state for the next step [B, T, H] and logits [B, T, Vd], from tokens [B, T] and hidden [B, T, H]."""
        ...


class LanguageHead:
    """A language model as a draft head, which reads no states; its mask tokens are `mask_id`, None if it drafts one
    token after the other."""

    def __init__(self, net: nets.CausalNet, mask_id: int | None) -> None:
        self.net, self.shape = net, net.shape
        self.mask = None if mask_id is None else (mask_id, torch.zeros(0))

    def features(self, captured: Tensor) -> Tensor:
        """Nothing of the target's states."""
        return captured[..., :0]

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """The unchanged `hidden`, and logits [B, T, V] for tokens [B, T]."""
        x = self.net.model.embed_tokens(tokens)
        for layer in self.net.model.layers:
            x = layer(x, position_embeddings=nets.by_row(table), attend=attend)
        return hidden, self.net.lm_head(self.net.model.norm(x))


def mask_of(head: Head) -> tuple[int, Tensor] | None:
    """The mask token of a head that drafts in parallel and the hidden state [H] in place of its target's; else None."""
    found: tuple[int, Tensor] | None = getattr(head, "mask", None)
    return found


def whole(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over the whole sequence."""
    del index
    k, v = widened(k, q.shape[1]), widened(v, q.shape[1])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def unrolled_attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """q [B, H, S, D] attends to step-0 keys (causal by slot) and its slot's key of later steps; keys [B, Hkv, S, D]."""
    slots, heads = q.shape[2], q.shape[1]
    first = (q @ widened(keys[0], heads).transpose(-1, -2)).float()
    future = torch.ones(slots, slots, dtype=torch.bool, device=q.device).triu(1)
    scores = [first.masked_fill(future, float("-inf"))]
    scores += [(q.float() * widened(key, heads).float()).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.softmax(torch.cat(scores, -1) * q.shape[-1] ** -0.5, -1).to(q.dtype)
    mixed = weights[..., :slots] @ widened(values[0], heads)
    for step, value in enumerate(values[1:]):
        mixed = mixed + weights[..., slots + step, None] * widened(value, heads)
    return mixed


def unroll(head: Head, tokens: Tensor, captured: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
    """State [B, S, H] and logits [B, S, Vd] of each step for tokens [B, T] and states [B, T, A]; S = T - 1 slots.

    The later steps of a head that drafts in parallel read its mask token and the hidden state of that.
    """
    mask = mask_of(head)
    slots = tokens.shape[1] - 1
    hidden = head.features(captured[:, :slots])
    kept: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    made: list[tuple[Tensor, Tensor]] = []

    def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = kept.setdefault(index, ([], []))
        keys.append(k)
        values.append(v)
        return unrolled_attention(q, keys, values)

    for step in range(steps):
        table = rope_table(head.shape, torch.arange(step, step + slots, device=tokens.device))
        words = ahead(tokens, 1 + step, slots)
        if step and mask is not None:
            words, hidden = torch.full_like(words, mask[0]), mask[1].expand(*words.shape, -1)
        made.append(head.step(words, hidden, table, attend))
        hidden = made[-1][0]
    return made


def rotated(heads: Sequence[Head], tokens: Tensor, captured: Tensor) -> list[tuple[Tensor, Tensor]]:
    """State and logits per head of a chain: head i reads t[q+1+i] and head i-1's state, and predicts t[q+2+i]."""
    slots = tokens.shape[1] - 1
    hidden = heads[0].features(captured[:, :slots])
    made: list[tuple[Tensor, Tensor]] = []
    for index, head in enumerate(heads):
        table = rope_table(head.shape, torch.arange(slots, device=tokens.device))
        made.append(head.step(ahead(tokens, 1 + index, slots), hidden, table, whole))
        hidden = made[-1][0]
    return made


def ahead(tokens: Tensor, by: int, slots: int) -> Tensor:
    """tokens [B, T] shifted left by `by`, padded with 0 and cut to `slots`."""
    return torch.nn.functional.pad(tokens[:, by:], (0, by), value=0)[:, :slots]


class Shared:
    """The target's embedding [V, H] and head [V, H], frozen and not part of the draft's checkpoint."""

    def __init__(self, embedding: Tensor, head: Tensor) -> None:
        self.embedding = embedding.detach()
        self.head = head.detach()

    def width(self, recipe: Recipe) -> int:
        """Of the target's captured states that a draft reads."""
        return len(recipe.aux_layers) * self.embedding.shape[1]


class FeatureNet(nn.Module):
    """EAGLE head in the checkpoint layout of LlamaForCausalLMEagle; embedding and head are the target's."""

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__()
        shape = recipe.shape
        self.shape, self.shared = shape, shared
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(shape)])
        del self.layers[0].input_layernorm  # EAGLE's first layer has none
        initialise(self)

    def features(self, captured: Tensor) -> Tensor:
        """The target's final state, unchanged."""
        return captured

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """State [B, T, H], trained to match the target's final state, and logits [B, T, V]."""
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        word = nn.functional.embedding(tokens, self.shared.embedding)
        x = self.fc(torch.cat((word, hidden.to(word.dtype)), -1))
        x = layer.onward(x, attend(0, *layer.self_attn.project(x, table)))
        return x, nn.functional.linear(x, self.shared.head)


class MidLayer(Layer):
    """The first layer of EAGLE3; attention reads the normed embedding and normed hidden state concatenated."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 2 * shape.hidden_size)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class EagleNet(nn.Module):
    """EAGLE3 head in the checkpoint layout of LlamaForCausalLMEagle3 (`checkpoint.write` adds d2t and t2d).

    Without a vocabulary of its own, embedding and head are the target's; ordinary decoder layers follow the first one.
    If the recipe is `parallel` (P-EAGLE, arXiv 2602.01469), `mask_hidden` takes the place of captured states.
    """

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__()
        self.shape, self.shared = recipe.shape, None if recipe.draft_vocab else shared
        shape, width = self.shape, shared.width(recipe)
        self.fc = nn.Linear(width, shape.hidden_size, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        if shape.num_hidden_layers > 1:
            self.layers = nn.ModuleDict({str(index): Layer(shape) for index in range(1, shape.num_hidden_layers)})
        if self.shared is None:
            self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
            self.lm_head = nn.Linear(shape.hidden_size, recipe.draft_vocab, bias=False)
        self.mask_id = recipe.mask_id if recipe.parallel else None
        if recipe.parallel:
            self.mask_hidden = nn.Parameter(torch.empty(1, width))
        initialise(self)

    @property
    def mask(self) -> tuple[int, Tensor] | None:
        """See `heads.mask_of`."""
        return None if self.mask_id is None else (self.mask_id, self.features(self.mask_hidden)[0])

    def features(self, captured: Tensor) -> Tensor:
        """The captured states projected to the draft's width."""
        fused: Tensor = self.fc(captured)
        return fused

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """The hidden state before the final norm [B, T, H], and logits [B, T, Vd]."""
        layer = self.midlayer
        table_of_words = self.embed_tokens.weight if self.shared is None else self.shared.embedding
        word = nn.functional.embedding(tokens, table_of_words)
        joined = torch.cat((layer.input_layernorm(word), layer.hidden_norm(hidden)), -1)
        x = layer.onward(hidden, attend(0, *layer.self_attn.project(joined, table)))
        for index in range(1, self.shape.num_hidden_layers):
            plain = self.layers[str(index)]
            assert isinstance(plain, Layer)
            x = plain.onward(x, attend(index, *plain.self_attn.project(plain.input_layernorm(x), table)))
        head = self.lm_head.weight if self.shared is None else self.shared.head
        return x, nn.functional.linear(self.norm(x), head)


class DflashNet(nn.Module):
    """Qwen3-style layers over context keys projected from the target's states; embedding and head are the target's.
    first: the first row of a block that predicts a token."""

    first = 1

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__()
        self.shape, self.block, self.mask_id, self.shared = recipe.shape, recipe.block, recipe.mask_id, shared
        shape = self.shape
        self.fc = nn.Linear(shared.width(recipe), shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        initialise(self)

    def corrected(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Logits [..., D, V] of drafts at hidden [..., D, H]; the tokens before them, `previous`, do not matter."""
        del previous
        return F.linear(hidden, self.shared.head)

    def around(self, layer: nn.Module, part: str, x: Tensor, block: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The input of a sublayer ("attention" or "mlp") from its normed input x [B, A * block, H], and what is done to
        its output."""
        del layer, part, block
        return x, lambda out: out

    def rows(self, tokens: Tensor, captured: Tensor, anchors: Tensor, block: int | None = None) -> Tensor:
        """Hidden states [B, A, block - 1, H] that predict the tokens after each anchor.

        tokens [B, T]; captured [B, T, S]: the target's states at these tokens; anchors [B, A]: positions of the last
        known token. A block attends to the context before its anchor and to all of itself; `block`: a length below
        the net's own.
        """
        drafts = (block or self.block) - 1
        length = drafts + self.first
        context = self.hidden_norm(self.fc(captured))
        places = anchors[..., None] + torch.arange(length, device=tokens.device)
        masked = torch.full_like(places, self.mask_id)
        masked[..., 0] = tokens.gather(1, anchors)
        x = F.embedding(masked.flatten(1), self.shared.embedding)
        seen = _seen(anchors, tokens.shape[1], length)
        over_context = rope_table(self.shape, torch.arange(tokens.shape[1], device=tokens.device))
        over_blocks: Table = tuple(each[:, None] for each in rope_table(self.shape, places.flatten(1)))  # type: ignore[assignment]  # two of them
        for layer in self.layers:
            assert isinstance(layer, Layer)
            attention = layer.self_attn
            normed, finish = self.around(layer, "attention", layer.input_layernorm(x), length)
            before, own = attention.keys_values(context, over_context), attention.keys_values(normed, over_blocks)
            k, v = (
                widened(torch.cat((old, new.to(old.dtype)), 2), self.shape.num_attention_heads)
                for old, new in zip(before, own, strict=True)
            )
            q = nets.rotate(attention.queries(normed), over_blocks).to(k.dtype)
            x = x + finish(attention.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))
            normed, finish = self.around(layer, "mlp", layer.post_attention_layernorm(x), length)
            x = x + finish(layer.mlp(normed))
        out: Tensor = self.norm(x)
        return out.view(*places.shape, -1)[:, :, self.first :]


def _seen(anchors: Tensor, length: int, block: int) -> Tensor:
    """Attention mask, bool [B, 1, A * block, length + A * block]: what each block position attends to."""
    each = anchors.repeat_interleave(block, 1)
    context = torch.arange(length, device=anchors.device) < each[..., None]
    number = torch.arange(each.shape[1], device=anchors.device) // block
    own = (number[:, None] == number).expand(len(anchors), -1, -1)
    return torch.cat((context, own), -1)[:, None]


class Markov(nn.Module):
    """Adds to a draft's logits what the token before it makes likely, at a low rank."""

    def __init__(self, kind: str, rank: int, shape: Shape) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = nn.Embedding(shape.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, shape.vocab_size, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(shape.hidden_size + rank, rank)
        if kind == "rnn":
            self.joint_proj = nn.Linear(shape.hidden_size + 2 * rank, 3 * rank)
        initialise(self)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The addition [..., D, V] for drafts at hidden [..., D, H], each after its `previous` [..., D]."""
        code = self.markov_w1(previous)
        if self.kind == "gated":
            code = self.gate_proj(torch.cat((hidden, code), -1)).sigmoid() * code
        if self.kind == "rnn":
            state, codes = torch.zeros_like(code[..., 0, :]), []
            for each, row in zip(code.unbind(-2), hidden.unbind(-2), strict=True):
                keep, new, out = self.joint_proj(torch.cat((state, each, row), -1)).chunk(3, -1)
                state = keep.sigmoid() * state + (1 - keep.sigmoid()) * new.tanh()
                codes.append(out.tanh())
            code = torch.stack(codes, -2)
        added: Tensor = self.markov_w2(code)
        return added


class Confidence(nn.Module):
    """How likely each draft is right, given that those before it are; as a logit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)
        initialise(self)


class DsparkNet(DflashNet):
    """`block`: nodes of a round, one more than its drafts."""

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__(recipe, shared)
        heads = recipe.heads
        assert heads is not None
        self.first = int(not heads.from_anchor)
        self.markov_head = Markov(heads.kind, heads.rank, self.shape)
        self.confidence_head = Confidence(self.shape.hidden_size + heads.rank)

    def corrected(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Logits [..., D, V] of drafts at hidden [..., D, H], each after its `previous` [..., D]."""
        added: Tensor = self.markov_head(hidden, previous)
        return F.linear(hidden, self.shared.head) + added

    def sure(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The logit [..., D] of each draft's confidence."""
        features = torch.cat((hidden, self.markov_head.markov_w1(previous).to(hidden.dtype)), -1)
        raw: Tensor = self.confidence_head.proj(features)
        return raw[..., 0]


class GroupedConv(nn.Module):
    """y_i = sum over taps t of (base_t + d_it) * x_(i-t) within a block, once for a sublayer's input and once for its
    output; d_it, one number for each group of channels, is a projection of the sublayer's input. The identity at first.
    """

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * taps * hidden // group, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def kernels(self, x: Tensor) -> Tensor:
        """x [..., H] -> the kernels of the input and the output [..., 2, taps, H]."""
        shape = 2, self.taps, x.shape[-1] // self.group
        made: Tensor = self.kernel_projection(x).view(*x.shape[:-1], *shape)
        return self.base_kernel + made.repeat_interleave(self.group, -1)

    def mixed(self, x: Tensor, kernel: Tensor) -> Tensor:
        """x [..., block, H] with kernel [..., block, taps, H]; 0 before the block."""
        length = x.shape[-2]
        padded = F.pad(x, (0, 0, self.taps - 1, 0))
        parts = [padded[..., self.taps - 1 - t :, :][..., :length, :] * kernel[..., t, :] for t in range(self.taps)]
        return torch.stack(parts).sum(0)


class Selector(nn.Module):
    """Scores a pair of neighbouring tokens p, c at hidden h by sum(A[p] * (P h) * B[c]). Zero at first."""

    def __init__(self, vocab: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, rank))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Scores [..., V] of the tokens after `previous` [...] at hidden [..., H]."""
        code = F.embedding(previous, self.predecessor_codebook) * self.hidden_projection(hidden)
        return F.linear(code, self.successor_codebook)


class Dflash2Net(DflashNet):
    """While it is trained all tokens are candidates, else the `parts.selector_top_k` likeliest ones of each row."""

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__(recipe, shared)
        parts, hidden = recipe.dflash2, recipe.shape.hidden_size
        assert parts is not None
        self.candidates = parts.selector_top_k
        for layer in self.layers:
            for part in ("attention", "mlp"):
                layer.add_module(f"{part}_conv", GroupedConv(hidden, parts.conv_kernel_size, parts.conv_group_size))
        self.candidate_selector = Selector(recipe.shape.vocab_size, hidden, parts.selector_rank)

    def around(self, layer: nn.Module, part: str, x: Tensor, block: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """As DFLASH's: convolved."""
        conv = getattr(layer, f"{part}_conv")
        assert isinstance(conv, GroupedConv)
        shape = len(x), -1, block, x.shape[-1]
        blocks = x.view(shape)
        kernels = conv.kernels(blocks)

        def finish(out: Tensor) -> Tensor:
            return conv.mixed(out.view(shape), kernels[..., 1, :, :]).flatten(1, 2)

        return conv.mixed(blocks, kernels[..., 0, :, :]).flatten(1, 2), finish

    def corrected(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Logits [..., V] of drafts at hidden [..., H], each after its `previous` [...]; -inf if no candidate."""
        logits = F.linear(hidden, self.shared.head)
        scores: Tensor = logits + self.candidate_selector(hidden, previous)
        if self.training:
            return scores
        ids = logits.topk(self.candidates).indices
        return torch.full_like(scores, -torch.inf).scatter(-1, ids, scores.gather(-1, ids))
