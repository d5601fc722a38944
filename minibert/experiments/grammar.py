"""How much grammar a masked language model knows: which sentence of a minimal pair it finds likelier.

    python -m minibert.experiments.grammar [FOLDER] --model NAME [--pairs 300] [--plain] [--plot FILE.png] [--json]

FOLDER has a file for each paradigm, such as agreement of subject and verb. Odd lines are wrong, and the even line after
each is right:

    the lies on the foot is flat .
    the lie on the foot is flat .

So are the files of Zorro (Huebner et al. 2021, "BabyBERTa"; repository phueb/Zorro). The model is right where the right
sentence has the higher score (tasks/scoring.py); a tie is wrong, chance is 0.5.

--published FOLDER has the scores of another program, as that repository keeps them for RoBERTa-base and others: files
called *_results*.txt, with a sentence, a space and its loss in each line. These losses are made without [MASK]: the
mean of -log p over all tokens of the sentence, each of which the model sees. Compare them with each other only.
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
from pathlib import Path
from random import Random
from typing import Any

import torch

from minibert.bench.embedding import PRODUCT_TOKENS, product_rates, text_flops
from minibert.checkpoints.hub import locate
from minibert.config import Config
from minibert.tasks.metrics import standard_error
from minibert.tasks.scoring import Scorer
from minibert.utils.files import user_path
from minibert.utils.plotting import check_picture, pyplot, save_figure
from minibert.utils.printing import block, table

COLUMNS = ("accuracy", "standard_error")
Paradigms = Mapping[str, Sequence[tuple[str, str]]]  # by name the pairs: the wrong sentence and the right one


def read_pairs(folder: Path, count: int | None, seed: int) -> Paradigms:
    """The pairs of each paradigm, or a sample of `count` of them.

    Raises ValueError for a file with an odd number of lines or with an empty line, FileNotFoundError for no file.
    """
    found = {}
    for path in sorted(folder.glob("*.txt")):
        lines = path.read_text("utf-8").splitlines()
        if not lines or len(lines) % 2 or not all(map(str.strip, lines)):
            needed = "each wrong sentence needs the right one in the next line, and no line is empty"
            raise ValueError(f"{path} has {len(lines):,} lines; {needed}")
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        found[path.stem] = Random(f"{seed} {path.stem}").sample(pairs, min(count or len(pairs), len(pairs)))
    if not found:
        raise FileNotFoundError(f"{folder} has no pairs of sentences, a .txt file for each paradigm")
    return found


def read_published(folder: Path) -> dict[str, float]:
    """The loss of each sentence. Raises ValueError for a line without one, FileNotFoundError for no file."""
    lines = [line for path in folder.rglob("*_results*.txt") for line in path.read_text("utf-8").splitlines()]
    if not lines:
        raise FileNotFoundError(f"{folder} has no published scores, files called *_results*.txt")
    return {sentence: float(loss) for sentence, _, loss in (line.rpartition(" ") for line in lines)}


def measure(paradigms: Paradigms, scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The accuracy on each paradigm and on "mean", with standard errors, by the score of each sentence.

    The standard error of the mean is that of the pairs, for these paradigms. Raises ValueError for a sentence without a
    score.
    """
    found: dict[str, dict[str, float]] = {}
    for name, pairs in paradigms.items():
        if missing := [one for pair in pairs for one in pair if one not in scores]:
            raise ValueError(f"{missing[0]!r}, of {name}, has no published score: those are of other sentences")
        share = sum(scores[right] > scores[wrong] for wrong, right in pairs) / len(pairs)
        found[name] = {"accuracy": share, "standard_error": standard_error(share, len(pairs)), "pairs": len(pairs)}
    shares, errors, counts = ([one[key] for one in found.values()] for key in (*COLUMNS, "pairs"))
    error = math.hypot(*errors) / len(errors)
    return found | {"mean": {"accuracy": statistics.mean(shares), "standard_error": error, "pairs": sum(counts)}}


def plain_scorer(folder: Path) -> Callable[[Sequence[str]], list[float]]:
    """Sentences to scores by transformers, as people write it: the masked copies of one sentence after the other."""
    library: Any = importlib.import_module("transformers")
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    reader = library.AutoModelForMaskedLM.from_pretrained(folder).eval()

    @torch.inference_mode()
    def score(sentence: str) -> float:
        ids = tokenizer(sentence, return_tensors="pt").input_ids[0]  # (S)
        copy, place = torch.arange(len(ids) - 2), torch.arange(1, len(ids) - 1)  # n of each
        copies = ids.repeat(len(copy), 1)  # (n,S)
        copies[copy, place] = tokenizer.mask_token_id
        logits = reader(copies).logits[copy, place]  # (n,S,V) -> (n,V)
        return float(logits.log_softmax(dim=-1)[copy, ids[place]].sum())

    return lambda sentences: [score(sentence) for sentence in sentences]


def flops(tokens: int, config: Config) -> int:
    """Operations of the score of a sentence of so many tokens: its masked copies, each with one prediction."""
    D, V = config.hidden_size, config.vocab_size
    return tokens * (text_flops(tokens + 2, config) + 2 * D * (D + V))


def draw(found: Mapping[str, Mapping[str, float]], title: str, path: Path) -> None:
    """A bar for each paradigm and the mean, with its standard error, and a line at chance."""
    figure, axes = pyplot().subplots(figsize=(8, 0.6 + 0.3 * len(found)), layout="constrained")
    values, errors = ([one[key] for one in found.values()] for key in COLUMNS)
    axes.barh(list(found), values, xerr=errors)
    axes.axvline(0.5, color="black", linestyle=":")
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), title=title, xlabel="accuracy; dotted: chance")
    save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the pairs and print the table; exit status 2 for a wrong request."""
    parser = argparse.ArgumentParser(description="Which sentence of a minimal pair does a masked LM find likelier?")
    add, data = parser.add_argument, user_path(os.environ.get("MINIBERT_DATA", "")) / "zorro"
    add("folder", nargs="?", type=Path, default=data, metavar="FOLDER", help="files of pairs ($MINIBERT_DATA/zorro)")
    add("--model", required=True, metavar="NAME", help="checkpoint with a masked-LM head")
    add("--precision", default="float32", help="float32, bfloat16 or auto (%(default)s)")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    add("--pairs", type=int, metavar="N", help="a sample of N pairs of each paradigm (all)")
    add("--seed", type=int, default=0, metavar="N", help="of the sample (%(default)s)")
    add("--plain", action="store_true", help="score by a plain loop with transformers too, and compare")
    add("--published", type=Path, metavar="FOLDER", help="the losses of another program, compared with this model's")
    add("--plot", type=Path, metavar="FILE.png", help="draw the accuracies")
    add("--overwrite", action="store_true", help="replace the file of --plot")
    add("--json", action="store_true", help="print the figures as JSON too")
    args = parser.parse_args(arguments)
    try:
        if args.pairs is not None and args.pairs < 1:
            raise ValueError(f"--pairs is {args.pairs}; it must be at least 1")
        if args.plot:
            check_picture(args.plot, args.overwrite)
        figures = run(args)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.plot:
        draw(figures["accuracy"], Path(args.model).name, args.plot)
    if args.json:
        print(json.dumps(figures))
    return 0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the pairs, print the table, and return the figures."""
    paradigms = read_pairs(args.folder, args.pairs, args.seed)
    sentences = [sentence for pairs in paradigms.values() for pair in pairs for sentence in pair]
    scorer = Scorer(args.model, precision=args.precision, device=args.device)
    scored, seconds = timed(lambda: scorer(sentences))
    scores = [one.score for one in scored]
    found = measure(paradigms, dict(zip(sentences, scores, strict=True)))
    figures: dict[str, Any] = {"accuracy": found, "sentences": len(sentences), "seconds": seconds}
    rows = [(name, *(f"{one[key]:.3f}" for key in COLUMNS), f"{one['pairs']:,}") for name, one in found.items()]
    print(table([("paradigm", "accuracy", "standard error", "pairs"), *rows]))
    speed = f"{len(sentences):,} sentences in {seconds:.1f} s, {len(sentences) / seconds:,.0f} a second"
    print(block("speed", f"{speed}, {torch.get_num_threads()} threads, {scorer.engine.kernels}"))
    config, precision = scorer.model.config, str(scorer.engine.dtype).removeprefix("torch.")
    if (device := scorer.model.encoder.device.type) in PRODUCT_TOKENS:
        rate = max(product_rates(config, [precision], device).values())
        figures["roofline"] = sum(flops(len(one.tokens), config) for one in scored) / rate / seconds
        print(block("roofline", f"{figures['roofline']:.0%} of the rate of this machine's matrix products"))
    if args.plain:
        plain = plain_scorer(locate(args.model).folder)
        theirs, longer = timed(lambda: plain(sentences))
        figures |= {"plain_seconds": longer, "plain_difference": difference(scores, theirs)}
        apart = f"the largest difference is {figures['plain_difference']:.1e}"
        print(block("transformers", f"a plain loop takes {longer / seconds:.2f} times as long; {apart}"))
    if args.published:
        losses = read_published(args.published)
        figures["published"] = measure(paradigms, {sentence: -loss for sentence, loss in losses.items()})
        ours = [-one.score / len(one.tokens) for one in Scorer(args.model, masked=False)(sentences)]
        figures["published_difference"] = difference(ours, [losses[sentence] for sentence in sentences])
        mean = f"mean accuracy {figures['published']['mean']['accuracy']:.4f}"
        apart = f"the largest difference of this model's losses is {figures['published_difference']:.4f}"
        print(block("published", f"{mean}; {apart}"))
    return figures


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and the seconds it took."""
    began = time.perf_counter()
    return function(), time.perf_counter() - began


def difference(scores: Sequence[float], others: Sequence[float]) -> float:
    """The largest between two lists."""
    return max(abs(one - other) for one, other in zip(scores, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
