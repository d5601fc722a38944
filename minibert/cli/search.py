"""`minibert search` and `minibert mine`: the nearest texts of a corpus, and its closest pairs."""

from argparse import ArgumentParser
from typing import Any

from minibert.cli.shared import Arguments, add_device, add_options, check_texts, read_options, standard_input
from minibert.utils.printing import Figures
from minibert.vectors.recipe import Recipe


def add_corpus(parser: ArgumentParser) -> None:
    """Add the corpus and the options that say how it becomes vectors."""
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="a .npy file of `minibert embed`, or a file of texts, which is embedded")
    add("--texts", dest="own_texts", metavar="FILE", help="the texts of the .npy file, if they were moved")
    add("--model", metavar="NAME", help="checkpoint: a Hub name or a folder (default: what made the .npy file)")
    add_device(parser)
    add_options(parser, Recipe, skip=("missing", "batch_tokens"))


def chosen(args: Arguments) -> dict[str, Any]:
    """Return the arguments that search and mine share."""
    named = {name: getattr(args, name) for name in ("top", "model", "device")}
    return named | {"texts": args.own_texts, "recipe": read_options(args, Recipe)}


def search_arguments(parser: ArgumentParser) -> None:
    add_corpus(parser)
    help = "a text to search for (default: --file, or standard input)"
    parser.add_argument("texts", nargs="*", metavar="QUERY", help=help)
    help = "queries: .txt, .tsv, .csv, .jsonl, .json or .parquet, or a folder of .txt files; - is standard input"
    parser.add_argument("--file", default="-", metavar="FILE", help=help)
    help = "the column of the queries in the file (default: sentence, text, or the only one)"
    parser.add_argument("--column", metavar="NAME", help=help)
    parser.add_argument("--top", type=int, default=10, metavar="N", help="texts to show for each query (%(default)s)")
    help = "sort these texts by a classifier of pairs, query and text: its score is shown in place of the cosine"
    parser.add_argument("--rerank", metavar="FOLDER", help=help)


def search(args: Arguments) -> Figures:
    """Print one line per text that is near: its cosine or score, its row from 0, and the text, separated by tabs."""
    from minibert.prediction.rerank import open_reranker, rerank
    from minibert.tables.reading import TextFile
    from minibert.tables.writing import one_line
    from minibert.vectors.search import search

    check_texts(args, args.texts)
    if (queries := args.texts) and (args.file, args.column) != ("-", None):
        raise ValueError("give either queries or --file, with --column")
    if not queries:
        if args.file == "-":
            standard_input()  # tells a user at a terminal what to type
        with TextFile(args.file, args.column) as file:
            queries = list(file)
    if not queries:
        raise ValueError("there is no query; give a text to search for")
    reranker = None if args.rerank is None else open_reranker(args.rerank, args.device)
    hits_of_queries = search(args.corpus, queries, **chosen(args))
    if reranker:
        hits_of_queries = rerank(reranker, queries, hits_of_queries)
    for query, hits in zip(queries, hits_of_queries, strict=True):
        if len(queries) > 1:
            print(one_line("query", query))
        for hit in hits:
            print(one_line(f"{hit.score:.4f}", str(hit.row), *texts_of(hit.text)))
    results = [
        {"query": query, "hits": [hit._asdict() for hit in hits]}
        for query, hits in zip(queries, hits_of_queries, strict=True)
    ]
    return {"queries": results}


def mine_arguments(parser: ArgumentParser) -> None:
    add_corpus(parser)
    parser.add_argument("--top", type=int, default=100, metavar="N", help="pairs to show (%(default)s)")
    parser.add_argument("--above", type=float, default=-1.0, metavar="X", help="the smallest cosine (%(default)s)")


def mine(args: Arguments) -> Figures:
    """Print one line per pair: its cosine, both rows from 0, and both texts, separated by tabs."""
    from minibert.tables.writing import one_line
    from minibert.vectors.search import mine

    pairs = mine(args.corpus, above=args.above, **chosen(args))
    for pair in pairs:
        rows = str(pair.row), str(pair.other_row)
        print(one_line(f"{pair.score:.4f}", *rows, *texts_of(pair.text), *texts_of(pair.other_text)))
    return {"pairs": [pair._asdict() for pair in pairs]}


def texts_of(row: Any) -> tuple[str, ...]:
    """Return a text, or both texts of a pair, as columns."""
    return (row,) if isinstance(row, str) else tuple(row)
