"""What a learner's own functions do once they are right: one line each, of their numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from minibert import reference
from minibert.checking.world import World

Tokenize = Callable[[str, dict[str, int]], list[str]]
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 110  # characters of a line


def bars(numbers: Sequence[float]) -> str:
    """Return a bar per number, from the least to the greatest."""
    low, high = min(numbers), max(numbers)
    return "".join(BARS[round((x - low) / ((high - low) or 1.0) * (len(BARS) - 1))] for x in numbers)


def tokens_of(world: World, text: str, tokenize: Tokenize = reference.tokenize) -> list[str]:
    """Return [CLS], the tokens of a text, in which [MASK] is one, and [SEP]; `tokenize` is written last of all."""
    first, *others = (tokenize(part, world.vocabulary) for part in text.split("[MASK]"))
    return ["[CLS]", *first, *(token for part in others for token in ["[MASK]", *part]), "[SEP]"][:128]


def states_of_text(module: ModuleType, world: World, text: str) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Return the tokens of a text, the states of each layer, (1,S,D), and its probabilities, (1,H,S,S)."""
    tokens = tokens_of(world, text)
    ids = torch.tensor([[world.vocabulary[token] for token in tokens]])
    inputs = ids, torch.zeros_like(ids), torch.ones_like(ids)
    states, attentions = module.encode(*inputs, world.weights, world.heads, world.eps)
    return tokens, states, attentions


def cosine(x: Tensor, y: Tensor) -> float:
    """Return the cosine of two vectors."""
    return float(torch.cosine_similarity(x.flatten(), y.flatten(), dim=0))


def slopes(forward: Callable[..., Tensor], backward: Callable[..., Any], x: Tensor, *more: Any) -> str:
    """Return how much Σ forward(x) grows in a direction, by a difference and by a learner's gradient."""
    way = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).double()
    x, more = x.double(), tuple(y.double() if y.is_floating_point() else y for y in more)
    up, down = (forward(x + step * way, *more).sum() for step in (1e-4, -1e-4))
    result = backward(torch.ones_like(forward(x, *more)), x, *more)
    gradient = result[0] if isinstance(result, tuple) else result
    found = float((gradient * way).sum())
    return f"a step in one direction: by a difference {float(up - down) / 2e-4:.5f}, by your gradient {found:.5f}"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_tokens(module: ModuleType, world: World, text: str) -> str:
    """The tokens of the text."""
    return " · ".join(tokens_of(world, text, module.tokenize)[1:-1])


def of_pieces(module: ModuleType, world: World, text: str) -> str:
    """The two longest words of the text, in pieces."""
    words = ["".join(c for c in word if c.isalpha()) for word in text.lower().replace("[mask]", "").split()]
    longest = sorted([*words, "unhappily"], key=len)[-2:]
    return "; ".join(f"{word} → {' '.join(module.word_pieces(word, world.vocabulary))}" for word in longest)


def of_norm(module: ModuleType, world: World, text: str) -> str:
    """A vector before and after."""
    x = 3 * drawn(64) + 5
    y = module.layer_norm(x, torch.ones(64), torch.zeros(64), world.eps)
    values = (float(v) for v in (x.mean(), x.std(correction=0), y.mean(), y.std(correction=0)))
    return "mean {:.2f} and deviation {:.2f} become {:.2f} and {:.2f}".format(*values)


def of_embeddings(module: ModuleType, world: World, text: str) -> str:
    """Which words are near each other."""
    ids = torch.tensor([[world.vocabulary[word] for word in ("he", "she", "door")]])
    he, she, door = module.embed(ids, torch.zeros_like(ids), world.weights, world.eps)[0]
    return f"cosine of he and she {cosine(he, she):.2f}, of he and door {cosine(he, door):.2f}"


def of_attention(module: ModuleType, world: World, text: str) -> str:
    """What the second token reads in each head of the first layer."""
    tokens = tokens_of(world, text)
    ids = torch.tensor([[world.vocabulary[token] for token in tokens]])
    x = module.embed(ids, torch.zeros_like(ids), world.weights, world.eps)
    weights = world.of_layer(0)
    heads = [
        module.split_heads(
            module.linear(x, weights[f"attention.self.{name}.weight"], weights[f"attention.self.{name}.bias"]),
            world.heads,
        )
        for name in ("query", "key", "value")
    ]
    _, probabilities = module.attention(*heads, torch.ones_like(ids))
    read = probabilities[0, :, 1].mean(dim=0)  # (S), the mean over the heads
    return f"{tokens[1]} reads " + " ".join(
        f"{token}{bars([0, *read.tolist()])[n]}" for n, token in enumerate(tokens, 1)
    )


def of_layers(module: ModuleType, world: World, text: str) -> str:
    """How far the first token has moved after each layer."""
    tokens, states, _ = states_of_text(module, world, text)
    moved = " ".join(f"{cosine(states[0][0, 1], x[0, 1]):.2f}" for x in states)
    return f"{tokens[1]}, cosine with its embedding after 0 to {len(states) - 1} layers: {moved}"


def of_mean(module: ModuleType, world: World, text: str) -> str:
    """Which sentences are near each other."""
    texts = "He opened the door.", "She closed the window.", "It cost five dollars."
    states = [states_of_text(module, world, x)[1][-1] for x in texts]
    one, near, far = (module.mean_of_tokens(x, torch.ones(x.shape[:2], dtype=torch.long)) for x in states)
    return f"cosine of {texts[0]!r} with {texts[1]!r} {cosine(one, near):.2f}, with {texts[2]!r} {cosine(one, far):.2f}"


def of_guesses(module: ModuleType, world: World, text: str) -> str:
    """The likeliest tokens for the first [MASK], or for the last token."""
    tokens, states, _ = states_of_text(module, world, text if "[MASK]" in text else f"{text} [MASK]")
    at = tokens.index("[MASK]")
    scores = module.predict_tokens(states[-1], world.weights, world.eps)[0, at]
    best = torch.softmax(scores, dim=-1).topk(3)
    words = list(world.vocabulary)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return "[MASK] is " + ", ".join(f"{words[n]} {p:.2f}" for n, p in pairs)


def of_masks(module: ModuleType, world: World, text: str) -> str:
    """The text as the model sees it in pretraining."""
    tokens = tokens_of(world, text)
    ids = torch.tensor([[world.vocabulary[token] for token in tokens] * 3])
    special = torch.tensor([[int(token in ("[CLS]", "[SEP]")) for token in tokens] * 3])
    generator = torch.Generator().manual_seed(3)
    inputs, _ = module.mask_tokens(ids, special, world.vocabulary["[MASK]"], len(world.vocabulary), generator)
    words = list(world.vocabulary)
    return " ".join(words[n] for n in inputs[0].tolist() if words[n] not in ("[CLS]", "[SEP]"))


def of_step(module: ModuleType, world: World, text: str) -> str:
    """A way down a parabola."""
    x, mean, square = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1)
    way = [1.0]
    for step in range(1, 31):
        x, mean, square = module.adamw_step(x, 2 * x, mean, square, step, 0.1, 0.0)
        way.append(float(x) ** 2)
    return f"down x² in 30 steps: {bars(way)} {way[0]:.2f} to {way[-1]:.4f}"


def of_training(module: ModuleType, world: World, text: str) -> str:
    """The loss of a regression, step by step."""
    x, target = drawn(16, 4), drawn(16, 1, seed=1)
    start = {"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}
    losses = module.train(start, lambda now: ((x @ now["weight"].T + now["bias"] - target) ** 2).mean(), 40, 0.05, 0.0)
    return f"loss {bars(losses)} {losses[0]:.3f} to {losses[-1]:.3f}"


def of_loss(module: ModuleType, world: World, text: str) -> str:
    """The loss of one who knows nothing."""
    V = len(world.vocabulary)
    loss = float(module.cross_entropy(torch.zeros(1, 1, V), torch.zeros(1, 1, dtype=torch.long)))
    return f"who knows nothing of {V:,} tokens has {loss:.2f}"


Show = Callable[[ModuleType, World, str], str]
SHOWS: dict[str, Show] = {
    "layer_norm": of_norm,
    "gelu": lambda module, *_: f"from -4 to 4: {bars(module.gelu(torch.linspace(-4, 4, 41)).tolist())}",
    "embed": of_embeddings,
    "attention": of_attention,
    "encode": of_layers,
    "predict_tokens": of_guesses,
    "mean_of_tokens": of_mean,
    "cross_entropy": of_loss,
    "linear_backward": lambda module, *_: slopes(
        module.linear,
        lambda g, x, weight, bias: module.linear_backward(g, x, weight),
        drawn(3, 4),
        drawn(2, 4),
        drawn(2),
    ),
    "layer_norm_backward": lambda module, *_: slopes(
        lambda x, weight, bias: module.layer_norm(x, weight, bias, 1e-12),
        lambda g, x, weight, bias: module.layer_norm_backward(g, x, weight, 1e-12),
        *(drawn(3, 4), drawn(4), drawn(4)),
    ),
    "cross_entropy_backward": lambda module, *_: slopes(
        module.cross_entropy,
        lambda g, logits, labels: module.cross_entropy_backward(logits, labels),
        *(drawn(3, 5), torch.tensor([1, -100, 4])),
    ),
    "adamw_step": of_step,
    "train": of_training,
    "mask_tokens": of_masks,
    "word_pieces": of_pieces,
    "tokenize": of_tokens,
}


def show(function: str, module: ModuleType, world: World, text: str) -> str:
    """Return what a function of the file does, in one line."""
    return SHOWS[function](module, world, text)[:WIDTH]
