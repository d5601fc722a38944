"""`minibert score`: how likely a masked language model finds each text, or which of two it finds likelier."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from minibert.cli.predict import Answers, add_rows, answer_rows, check_request, input_rows
from minibert.cli.shared import Arguments, add_machine, add_masked_lm, add_options, masked_lm
from minibert.utils.printing import Figures
from minibert.vectors.recipe import Recipe

if TYPE_CHECKING:
    from minibert.tasks.base import Row


def arguments(parser: argparse.ArgumentParser) -> None:
    add_rows(parser)
    add_masked_lm(parser)
    add = parser.add_argument
    add("--pairs", action="store_true", help="two texts per row, the better one first: columns --text and --pair")
    add("--tokens", action="store_true", help="the score of each token too")
    add_machine(parser)
    add_options(parser, Recipe, only=["precision", "long"], long="error")


def run(args: Arguments) -> Figures:
    """Print one line per text: its score, the number of its tokens, and the text, separated by tabs.

    The score is the pseudo-log-likelihood: the sum of log p of each token when only that token is masked, in nats. With
    --pairs a line has "text" or "pair", the better one of the two, both scores and both texts, the better one first.
    """
    pairs = args.pairs or args.pair is not None
    if pairs and args.file is not None and args.pair is None:
        raise ValueError("--pairs compares two columns of a file; name that of the second texts: --pair")
    model = masked_lm(args)
    check_request(args, model)
    from minibert.tasks.scoring import Scorer

    settings = {name: getattr(args, name) for name in ("device", "precision", "batch_tokens", "long")}
    scorer = Scorer(model, **settings)
    return answer_rows(args, input_rows(args, pairs), partial(answer, scorer, args.tokens), "scores", 1 + pairs)


def answer(scorer: Any, tokens: bool, rows: list[Row]) -> Answers:
    """Return the lines and the dicts of some texts or pairs."""
    from minibert.tables.writing import one_line

    lines, dicts = [], []
    texts, seconds, *_ = zip(*rows, strict=True)
    scores = scorer(texts)
    others = [None] * len(rows) if seconds[0] is None else scorer(seconds)
    for text, second, one, other in zip(texts, seconds, scores, others, strict=True):
        ranked = [(one, text)]
        figures = figures_of(one, "", tokens)
        cells = [f"{one.score:.4f}", str(len(one.tokens))]
        if other is not None:
            ranked = sorted([*ranked, (other, second)], key=lambda each: -each[0].score)
            better = "equal" if one.score == other.score else "text" if one.score > other.score else "pair"
            figures = {"better": better} | figures | figures_of(other, "pair_", tokens)
            cells = [better, *(f"{each.score:.4f}" for each, _ in ranked)]
        dicts.append(figures)
        lines.append(one_line(*cells, *(each for _, each in ranked)))
        if tokens:
            lines += [f"  {p:.4f}  {token}" for each, _ in ranked for token, p in token_scores(each)]
    return lines, dicts


def figures_of(score: Any, prefix: str, tokens: bool) -> Figures:
    """Return the columns of a score; their names begin with the prefix."""
    figures = {f"{prefix}score": score.score, f"{prefix}tokens": len(score.tokens)}
    if tokens:
        figures[f"{prefix}token_scores"] = [{"token": token, "log_probability": p} for token, p in token_scores(score)]
    return figures


def token_scores(score: Any) -> list[tuple[str, float]]:
    """Return each token with its log-probability."""
    return list(zip(score.tokens, score.log_probabilities, strict=True))
