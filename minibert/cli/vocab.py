"""`minibert vocab`: a WordPiece vocabulary of one's own."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from minibert.cli.shared import Arguments, Figures, add_overwrite


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("corpus", nargs="+", metavar="CORPUS", help="files of text, .txt or a table with a column of texts, also .gz")
    add("--size", type=int, default=8000, metavar="N", help="tokens, special ones included (%(default)s)")
    add("--out", required=True, type=Path, metavar="FOLDER", help="a new folder, for --tokenizer of pretrain")
    add("--cased", action="store_true", help="keep case and accents")
    add("--by", default="library", metavar="WAY", help="library, or hand, which is slower: the same (%(default)s)")
    add("--min-frequency", type=int, default=2, metavar="N", help="how often a pair must be met (%(default)s)")
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """Learn the tokens of a corpus: letters first, then again and again the pair that is met most, joined."""
    from minibert.checkpoints.convert import check_out
    from minibert.printing import block
    from minibert.train.vocabulary import FILES, learn_vocabulary

    check_out(args.out, args.overwrite, FILES)
    begin = time.perf_counter()
    found = learn_vocabulary(
        args.corpus, args.size, lowercase=not args.cased, min_frequency=args.min_frequency, by=args.by
    )
    found.save(args.out, args.overwrite)
    seconds = time.perf_counter() - begin
    tokens = len(found.tokens)
    print(
        block("corpus", f"{found.words:,} words, {found.different_words:,} different ones, {found.letters:,} letters")
    )
    print(block("vocabulary", f"{tokens:,} tokens; {found.whole:.1%} of the words of the corpus are one token"))
    if tokens < found.size:
        why = f"no other pair is met {args.min_frequency} times; more text gives more"
        print(block("note", f"{tokens:,} tokens are fewer than the {found.size:,} that were asked for: {why}"))
    if found.dropped:
        print(block("note", f"{found.dropped:,} words are so rare that they were not held, and taught nothing"))
    print(block("written", f"{args.out}, in {seconds:.1f} s"))
    return {
        "tokens": tokens,
        "words": found.words,
        "different_words": found.different_words,
        "letters": found.letters,
        "whole_words": round(found.whole, 6),
        "dropped_words": found.dropped,
        "out": str(args.out),
        "seconds": round(seconds, 3),
    }
