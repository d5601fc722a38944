"""How much grammar a masked language model knows: which sentence of a minimal pair it finds likelier.

    python tutorials/experiments/grammar.py [FOLDER] --model NAME [--pairs N] [--plain] [--published FOLDER] [--json]

FOLDER has a file for each paradigm, such as agreement of subject and verb. Odd lines are wrong, and the even line after
each is right:

    the lies on the foot is flat .
    the lie on the foot is flat .

The files of Zorro have this form (Huebner et al. 2021, "BabyBERTa"; repository phueb/Zorro). The model is right if the
right sentence has the higher score (tasks/scoring.py). A tie is wrong; chance is 0.5.

--published FOLDER has the scores of another program, in the form in which that repository keeps those of RoBERTa-base
and others: files called *_results*.txt, with a sentence, a space and its loss in each line. These losses are computed
without [MASK]: the mean of -log p over all tokens of the sentence, each of which the model sees. Compare them only with
each other.
"""

import argparse
import importlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from minibert.bench.embed import product_rates, text_flops
from minibert.config import Config
from minibert.storage.hub import locate
from minibert.tasks.metrics import standard_error
from minibert.tasks.scoring import Scorer
from minibert.utils.files import user_path
from minibert.utils.printing import block, table

Paradigms = Mapping[str, Sequence[tuple[str, str]]]  # name -> pairs of a wrong sentence and a right one


@dataclass(frozen=True)
class Accuracy:
    """The share of pairs whose right sentence has the higher score."""

    accuracy: float
    standard_error: float
    pairs: int


def read_pairs(folder: Path, count: int | None) -> Paradigms:
    """Return the pairs of each paradigm, or a sample of `count` of them, always the same.

    Raises ValueError for a file with an odd number of lines or with an empty line, FileNotFoundError for no file.
    """
    found = {}
    for path in sorted(folder.glob("*.txt")):
        lines = path.read_text("utf-8").splitlines()
        if not lines or len(lines) % 2 or not all(map(str.strip, lines)):
            needed = "each wrong sentence needs the right one in the next line, and no line may be empty"
            raise ValueError(f"{path} has {len(lines):,} lines; {needed}")
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        found[path.stem] = Random(f"0 {path.stem}").sample(pairs, min(count or len(pairs), len(pairs)))
    if not found:
        raise FileNotFoundError(f"{folder} has no pairs of sentences; it needs a .txt file for each paradigm")
    return found


def read_published(folder: Path) -> dict[str, float]:
    """Return the loss of each sentence. Raises ValueError for a line without one, FileNotFoundError for no file."""
    lines = [line for path in folder.rglob("*_results*.txt") for line in path.read_text("utf-8").splitlines()]
    if not lines:
        raise FileNotFoundError(f"{folder} has no published scores, which are files called *_results*.txt")
    return {sentence: float(loss) for sentence, _, loss in (line.rpartition(" ") for line in lines)}


def measure(paradigms: Paradigms, scores: Mapping[str, float]) -> dict[str, Accuracy]:
    """Return the accuracy on each paradigm and their "mean", from the score of each sentence.

    The standard error of the mean is due to the pairs; the paradigms are taken as given. Raises ValueError for a
    sentence without a score.
    """
    found: dict[str, Accuracy] = {}
    for name, pairs in paradigms.items():
        if missing := [one for pair in pairs for one in pair if one not in scores]:
            raise ValueError(f"{missing[0]!r} of {name} has no published score; the scores are for other sentences")
        share = sum(scores[right] > scores[wrong] for wrong, right in pairs) / len(pairs)
        found[name] = Accuracy(share, standard_error(share, len(pairs)), len(pairs))
    each = list(found.values())
    error = math.hypot(*(one.standard_error for one in each)) / len(each)
    mean = statistics.mean(one.accuracy for one in each)
    return found | {"mean": Accuracy(mean, error, sum(one.pairs for one in each))}


def plain_scorer(folder: Path) -> Callable[[Sequence[str]], list[float]]:
    """Return sentences -> scores with transformers, as people write it: the masked copies of one sentence at a time."""
    library: Any = importlib.import_module("transformers")
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    reader = library.AutoModelForMaskedLM.from_pretrained(folder).eval()

    @torch.inference_mode()
    def score(sentence: str) -> float:
        ids = tokenizer(sentence, return_tensors="pt").input_ids[0]  # (S)
        copy = torch.arange(len(ids) - 2)  # (n), one for each token but [CLS] and [SEP]
        place = copy + 1
        copies = ids.repeat(len(copy), 1)  # (n,S)
        copies[copy, place] = tokenizer.mask_token_id
        logits = reader(copies).logits[copy, place]  # (n,S,V) -> (n,V)
        return float(logits.log_softmax(dim=-1)[copy, ids[place]].sum())

    return lambda sentences: [score(sentence) for sentence in sentences]


def flops(tokens: int, config: Config) -> int:
    """Return the operations of one score: as many masked copies as a sentence has tokens, each with one prediction."""
    D, V = config.hidden_size, config.vocab_size
    return tokens * (text_flops(tokens + 2, config) + 2 * D * (D + V))


def timed(score: Callable[[Sequence[str]], Any], sentences: Sequence[str]) -> tuple[Any, float]:
    """Return the scores, and the seconds that they took."""
    began = time.perf_counter()
    return score(sentences), time.perf_counter() - began


def difference(scores: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest difference between two lists."""
    return max(abs(one - other) for one, other in zip(scores, others, strict=True))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the pairs, print the table, and return the figures."""
    paradigms = read_pairs(args.folder, args.pairs)
    published = read_published(args.published) if args.published else {}
    sentences = [sentence for pairs in paradigms.values() for pair in pairs for sentence in pair]
    scorer = Scorer(args.model, device="cpu")
    scored, seconds = timed(scorer, sentences)
    scores = [one.score for one in scored]
    found = measure(paradigms, dict(zip(sentences, scores, strict=True)))
    rows = [(name, f"{one.accuracy:.3f}", f"{one.standard_error:.3f}", f"{one.pairs:,}") for name, one in found.items()]
    print(table([("paradigm", "accuracy", "standard error", "pairs"), *rows]))
    speed = f"{len(sentences):,} sentences in {seconds:.1f} s, {len(sentences) / seconds:,.0f} per second"
    print(block("speed", f"{speed}, {torch.get_num_threads()} threads, {scorer.engine.kernels}"))
    config = scorer.model.config
    rate = max(product_rates(config, ["float32"], "cpu").values())
    roofline = sum(flops(len(one.tokens), config) for one in scored) / rate / seconds
    print(block("roofline", f"{roofline:.0%} of the rate of this machine's matrix products"))
    figures = {
        "accuracy": {name: asdict(one) for name, one in found.items()},
        "sentences": len(sentences),
        "seconds": seconds,
        "roofline": roofline,
    }
    if args.plain:
        theirs, longer = timed(plain_scorer(locate(args.model).folder), sentences)
        figures |= {"plain_seconds": longer, "plain_difference": difference(scores, theirs)}
        apart = f"the largest difference is {figures['plain_difference']:.1e}"
        print(block("transformers", f"a plain loop takes {longer / seconds:.2f} times as long; {apart}"))
    if published:
        theirs = measure(paradigms, {sentence: -loss for sentence, loss in published.items()})
        figures["published"] = {name: asdict(one) for name, one in theirs.items()}
        ours = [-one.score / len(one.tokens) for one in Scorer(args.model, masked=False)(sentences)]
        figures["published_difference"] = difference(ours, [published[sentence] for sentence in sentences])
        apart = f"the largest difference of this model's losses is {figures['published_difference']:.4f}"
        print(block("published", f"mean accuracy {theirs['mean'].accuracy:.4f}; {apart}"))
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the pairs and print the table; exit status 2 for a wrong request."""
    parser = argparse.ArgumentParser(description="Which sentence of a minimal pair does a masked LM find likelier?")
    data = user_path(os.environ.get("MINIBERT_DATA") or ".") / "zorro"
    add = parser.add_argument
    add("folder", nargs="?", type=Path, default=data, metavar="FOLDER", help="files of pairs ($MINIBERT_DATA/zorro)")
    add("--model", required=True, metavar="NAME", help="checkpoint with a masked-LM head")
    add("--pairs", type=int, metavar="N", help="only a sample of N pairs per paradigm")
    add("--plain", action="store_true", help="also score with a plain loop around transformers, and compare")
    add("--published", type=Path, metavar="FOLDER", help="losses of another program, to compare with this model's")
    add("--json", action="store_true", help="print the figures as JSON too")
    args = parser.parse_args(arguments)
    try:
        if args.pairs is not None and args.pairs < 1:
            raise ValueError(f"--pairs is {args.pairs}; it must be at least 1")
        figures = run(args)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
