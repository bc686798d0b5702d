"""DFLASH2's convolutions: each sublayer of a block draft is between two short ones along the block."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Attend, DecoderLayer, Norm, Workspace
from specmatrix.engine.models.weights import WeightReader


class ConvolvedLayer(DecoderLayer):
    """A layer x + after(attention(before(norm(x)))), then the same with the feed-forward part.

    Its context's keys and values are of projected states, without a convolution (SGLang's models/dflash.py).
    """

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, norm: Norm) -> None:
        norm.compiled = False  # a compiled layer has no place for what is between norm and projection
        super().__init__(take, prefix, config, norm)
        assert self.input_norm is not None
        self.around_attention = BlockConvolution(take, f"{prefix}.attention_conv", config, norm, self.input_norm)
        self.around_mlp = BlockConvolution(take, f"{prefix}.mlp_conv", config, norm, self.post_norm)

    def __call__(self, x: Tensor, rotation: Tensor, attend: Attend, layer: int, workspace: Workspace) -> None:
        h = self.front(x)
        kernels, out = self.around_attention.kernels(h), torch.zeros_like(x)
        self.attention(out, convolved(h, kernels[:, 0], workspace.width), rotation, attend, layer, workspace)
        x.add_(convolved(out, kernels[:, 1], workspace.width))
        h = self.norm(x, self.post_norm)
        kernels, out = self.around_mlp.kernels(h), torch.zeros_like(x)
        self.gated(out, convolved(h, kernels[:, 0], workspace.width), workspace)
        x.add_(convolved(out, kernels[:, 1], workspace.width))


class BlockConvolution:
    """The kernels of a sublayer's input and output: base [2, taps, H] plus a number for each group of channels, which
    is a projection of the sublayer's normed input. front: the norm's weight."""

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, norm: Norm, front: Tensor) -> None:
        assert config.draft is not None and config.draft.dflash2 is not None
        hidden, taps, group = config.hidden_size, config.draft.dflash2.taps, config.draft.dflash2.group
        self.linear = norm.own.linear
        self.base = take(f"{prefix}.base_kernel", 2, taps, hidden).view(2, taps, -1, group)
        projection = take(f"{prefix}.kernel_projection.weight", 2 * taps * hidden // group, hidden)
        self.projection = norm.stored(norm.fold(projection, front))

    def kernels(self, h: Tensor) -> Tensor:
        """h [R, H] -> [R, 2, taps, H]."""
        groups = self.linear(h, self.projection).view(len(h), *self.base.shape[:-1], 1)
        return (self.base + groups).flatten(-2)


def convolved(x: Tensor, kernel: Tensor, width: int) -> Tensor:
    """y_i = sum over taps t of kernel_it * x_(i-t), for rows x [R, H] of blocks of `width` rows and kernel
    [R, taps, H]; x is 0 before its block."""
    rows, weights = x.view(-1, width, x.shape[1]), kernel.view(-1, width, *kernel.shape[1:])
    y = rows * weights[:, :, 0]
    for tap in range(1, min(kernel.shape[1], width)):
        y[:, tap:].add_(rows[:, :-tap] * weights[:, tap:, tap])
    return y.view_as(x)
