"""`minibert vocab`: a WordPiece vocabulary learned from text."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from minibert.cli.options import add_options, read_options
from minibert.cli.shared import Arguments, Figures, add_overwrite
from minibert.printing import block
from minibert.train.settings import VocabularySettings


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("corpus", nargs="+", metavar="CORPUS", help="files of text, .txt or a table with a column of texts, also .gz")
    add("--out", required=True, type=Path, metavar="FOLDER", help="a new folder, for --tokenizer of pretrain")
    add("--cased", action="store_true", help="keep case and accents")
    add_options(parser, VocabularySettings)
    add_overwrite(parser)


def run(args: Arguments) -> Figures:
    """Learn the tokens of a corpus: letters first, then the most frequent pair, joined, again and again."""
    from minibert.checkpoints.convert import check_out
    from minibert.train.vocabulary import FILES, learn_vocabulary

    check_out(args.out, args.overwrite, FILES)
    begin, settings = time.perf_counter(), asdict(read_options(args, VocabularySettings))
    found = learn_vocabulary(args.corpus, lowercase=not args.cased, **settings)
    found.save(args.out, args.overwrite)
    seconds, tokens = time.perf_counter() - begin, len(found.tokens)
    words = f"{found.words:,} words, {found.different_words:,} different ones, {found.letters:,} letters"
    print(block("corpus", words))
    print(block("vocabulary", f"{tokens:,} tokens; {found.whole:.1%} of the words of the corpus are one token"))
    if tokens < found.size:
        why = f"no other pair occurs {args.min_frequency} times; more text gives more"
        print(block("note", f"{tokens:,} tokens are fewer than the {found.size:,} requested: {why}"))
    if found.dropped:
        print(block("note", f"{found.dropped:,} words are so rare that they were not counted"))
    print(block("written", f"{args.out}, in {seconds:.1f} s"))
    figures = {"tokens": tokens, "whole_words": round(found.whole, 6), "dropped_words": found.dropped}
    figures |= {name: getattr(found, name) for name in ("words", "different_words", "letters")}
    return figures | {"out": str(args.out), "seconds": round(seconds, 3)}
