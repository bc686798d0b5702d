"""Draft heads over the target's hidden states: EAGLE (arXiv 2406.16858) and EAGLE3 (arXiv 2503.01840)."""

import torch
from torch import Tensor, nn

from specmatrix.matrix.zoo.net import Attend, Layer, RMSNorm, Table, initialise
from specmatrix.matrix.zoo.recipes import Recipe, Shape


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
