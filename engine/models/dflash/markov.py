"""DSPARK (arXiv 2607.05147): DFLASH's block, whose drafts a Markov head chooses from left to right, and a head that
says how likely each one is right."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.dflash.model import DFlash
from specmatrix.engine.models.draft_config import MarkovConfig
from specmatrix.engine.models.layers import Norm
from specmatrix.engine.models.weights import WeightReader
from specmatrix.errors import ConfigError

HEADS = ("markov_head.", "confidence_head.")
# Copies of the target's tensors in some checkpoints, which SGLang skips too.
SHARED = ("embed_tokens.", "lm_head.", "rotary_emb.")


class DSpark(DFlash):
    """A DSparkDraftModel in SGLang's checkpoint layout."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], target: CausalLM) -> None:
        assert config.draft is not None and config.draft.markov is not None
        named = {key.removeprefix("model."): w for key, w in weights.items()}
        own = {key: w for key, w in named.items() if key.startswith(HEADS)}
        super().__init__(config, {k: w for k, w in named.items() if not k.startswith(HEADS + SHARED)}, target)
        self.first = int(not config.draft.from_anchor)
        self.block_head = MarkovHead(config.draft.markov, config, own, self.norm)

    def confidences(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """As DFlash's: by the confidence head."""
        assert isinstance(self.block_head, MarkovHead)
        return self.block_head.confidences(hidden, previous)

    def calibrate(self, temperatures: Tensor) -> None:
        """Divide the logits of the confidences by temperatures float32 [drafts]. ConfigError for another number."""
        assert self.config.draft is not None and isinstance(self.block_head, MarkovHead)
        drafts = (self.config.draft.block_size or 1) - 1
        if len(temperatures) != drafts:
            raise ConfigError(
                f"speculative_dspark_confidence_sts_path has {len(temperatures)} temperatures, but the draft's block "
                f"has {drafts} drafts; it needs one for each"
            )
        self.block_head.temperatures = temperatures.to(self.device)


class MarkovHead:
    """logits_i + W2 code_i, with e_i = W1[draft i - 1] and by kind: code = e; sigmoid(G [h; e]) * e; or of a state s
    that starts at 0, (g, c, o) = J [s; e; h], s <- sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c), code = tanh(o).

    temperatures float32 [D]: calibration of each draft's confidence; None: 1.
    """

    temperatures: Tensor | None = None

    def __init__(self, markov: MarkovConfig, config: ModelConfig, weights: dict[str, Tensor], norm: Norm) -> None:
        take, rank, wide = WeightReader(weights, config.architecture), markov.rank, config.hidden_size + markov.rank
        self.kind, self.seeing, self.norm, self.rank = markov.kind, markov.seeing, norm, rank
        self.embedding = take("markov_head.markov_w1.weight", config.vocab_size, rank)
        self.out = norm.stored(take("markov_head.markov_w2.weight", config.vocab_size, rank))
        if markov.kind != "vanilla":
            name, out, width = (
                ("gate_proj", rank, wide) if markov.kind == "gated" else ("joint_proj", 3 * rank, wide + rank)
            )
            self.gate = norm.stored(take(f"markov_head.{name}.weight", out, width))
            self.gate_bias = take(f"markov_head.{name}.bias", out)
        self.confident = markov.confident
        if markov.confident:
            width = wide if markov.seeing else config.hidden_size
            self.confidence = norm.stored(take("confidence_head.proj.weight", 1, width))
            self.confidence_bias = take("confidence_head.proj.bias", 1)
        take.done()

    def begin(self, logits: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        return logits, hidden, hidden.new_zeros(len(hidden), self.rank)

    def step(self, state: tuple[Tensor, ...], column: int, previous: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits, hidden, carried = state
        code, row, sigmoid = self.embedding.index_select(0, previous), hidden[:, column], self.norm.sigmoid
        if self.kind == "gated":
            code = sigmoid(self._gates(row, code)) * code
        if self.kind == "rnn":
            keep, new, out = self._gates(carried, code, row).chunk(3, -1)
            keep = sigmoid(keep)
            carried = keep * carried + (1 - keep) * self._tanh(new)
            code = self._tanh(out)
        return logits[:, column] + head_logits(code, self.out, self.norm.own), (logits, hidden, carried)

    def confidences(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """The probability float32 [B, D] that each draft is right if those before it are, from hidden [B, D, H] and the
        tokens [B, D] before the drafts; None without a confidence head."""
        if not self.confident:
            return None
        features = torch.cat((hidden, self.embedding[previous]), -1) if self.seeing else hidden
        raw = self.norm.own.linear(features.flatten(0, 1), self.confidence) + self.confidence_bias
        raw = raw.float().view(previous.shape)
        return self.norm.sigmoid(raw if self.temperatures is None else raw / self.temperatures[: raw.shape[1]])

    def _gates(self, *parts: Tensor) -> Tensor:
        return self.norm.own.linear(torch.cat(parts, -1), self.gate) + self.gate_bias

    def _tanh(self, x: Tensor) -> Tensor:
        # By the sigmoid, whose bits do not depend on the position.
        return 2 * self.norm.sigmoid(2 * x) - 1
