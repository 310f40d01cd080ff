"""The small causal transformer that the examples of sequence models share; which token sees which is the caller's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and a two-layer network, each added to its input (pre-norm, as in GPT-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Transform tokens, float32[B, T, W]; `seen`, bool[B or 1, T, T], says which (row) sees which (column)."""
        batch, tokens, width = x.shape
        parts = self.attend(self.before(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(), attn_mask=seen.unsqueeze(1))
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.think(self.between(x))


class Transformer(nn.Module):
    """Blocks and a last normalisation: embedded tokens in, features out, both float32[B, T, W]."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Transform embedded tokens; `seen` as in `Block`."""
        for block in self.blocks:
            x = block(x, seen)
        return self.last(x)


def causal(tokens: int) -> Tensor:
    """Every token sees itself and those before it: bool[T, T]."""
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()
