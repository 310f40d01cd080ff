"""Sums of two digits as a language, ``3+9=`` and then ``12``, END, and a small model of it that writes answers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from examples.transformer import Transformer, causal

PLUS, EQUALS, END, TOKENS = 10, 11, 12, 13
PROMPT, ANSWER = 4, 3
"""Tokens of a prompt, and of the longest answer: two digits and END."""


class Model(nn.Module):
    """Scores of the next token."""

    def __init__(self, width: int = 64, heads: int = 2, layers: int = 1) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, width), nn.Embedding(PROMPT + ANSWER, width)
        self.body, self.score = Transformer(width, heads, layers), nn.Linear(width, TOKENS)

    def forward(self, token: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """Log-probabilities, float32[B, T, TOKENS], from int64[B, T]; `seen` as in `Transformer`."""
        return self.score(self.body(self.token(token) + self.position(position), seen)).log_softmax(-1)


def imitate(model: Model, rng: np.random.Generator, updates: int) -> None:
    """Teach the form of an answer by sums, half of them wrong: what is to be improved."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(updates):
        digits, told = rng.integers(10, size=(128, 2)), rng.integers(19, size=128)
        told = np.where(rng.random(128) < 0.5, told, digits.sum(1))
        answers = [([*map(int, str(n)), END, END])[:ANSWER] for n in told]
        token = torch.cat([ask(digits), torch.tensor(answers)], 1)
        scores = model(token[:, :-1], torch.arange(token.shape[1] - 1), causal(token.shape[1] - 1)[None])
        loss = nn.functional.nll_loss(scores[:, PROMPT - 1 :].flatten(0, 1), token[:, PROMPT:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ask(digits: np.ndarray) -> Tensor:
    """Prompts int64[B, PROMPT] of digits int64[B, 2]."""
    columns = [digits[:, 0], np.full(len(digits), PLUS), digits[:, 1], np.full(len(digits), EQUALS)]
    return torch.from_numpy(np.stack(columns, 1))


@torch.no_grad()
def answer(model: Model, prompts: Tensor, dice: torch.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw an answer to each prompt: tokens int64[B, T], their log-probabilities float32[B, T], lengths int64[B]."""
    token, logprob = prompts, torch.zeros(prompts.shape)
    for _ in range(ANSWER):
        length = token.shape[1]
        scores = model(token, torch.arange(length), causal(length)[None])[:, -1]
        chosen = scores.exp().multinomial(1, generator=dice)
        token, logprob = torch.cat([token, chosen], 1), torch.cat([logprob, scores.gather(1, chosen)], 1)
    before_end = (token[:, PROMPT:] != END).cumprod(1).sum(1)
    return token.numpy(), logprob.numpy(), (PROMPT + before_end + 1).clamp(max=PROMPT + ANSWER).numpy()
