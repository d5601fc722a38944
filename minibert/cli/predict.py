"""The commands that use a model with a task head: `minibert evaluate`, `predict` and `fill-mask`."""

from __future__ import annotations

import time
import warnings
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from minibert.cli.shared import (
    COLUMNS,
    Arguments,
    add_data,
    add_machine,
    add_masked_lm,
    add_options,
    add_overwrite,
    check_texts,
    masked_lm,
    read_options,
    standard_input,
)
from minibert.tables.formats import FileSettings
from minibert.tasks.settings import AnsweringSettings, ClassificationSettings, TaggingSettings
from minibert.utils.files import user_path
from minibert.utils.outputs import check_file
from minibert.utils.printing import Figures, block, counted, require
from minibert.vectors.recipe import Recipe

if TYPE_CHECKING:
    from minibert.tasks.base import Row

OF_TASKS = ("columns", "tag_names", "repair")  # options about files of tasks other than classify
TEXTS_AT_ONCE = 64  # texts in a batch
Answers = tuple[list[str], list[Figures]]  # one line and one dict per row
Answer = Callable[["list[Row]"], Answers]  # of some rows


def load_arguments(parser: ArgumentParser) -> None:
    help = "of `minibert classify train`, `minibert finetune` or transformers (also a Hub name), with a task head"
    parser.add_argument("folder", metavar="FOLDER", help=help)
    parser.add_argument("--model", metavar="NAME", help="the checkpoint of a frozen classifier, if it was moved")
    add_machine(parser)


def load_reader(args: Arguments) -> Any:
    """Return the folder, of any kind, ready to predict."""
    from minibert.prediction.reader import open_reader

    return open_reader(args.folder, model=args.model, device=args.device, batch_tokens=args.batch_tokens)


def with_file_options(task: Any, args: Arguments, path: str) -> Any:
    """Return the task with the options about a file; one that is not given is as in training, if this format has it.

    Raises ValueError for an option that files of the task do not have.
    """
    from minibert.tables.formats import DELIMITERS, FORMATS, format_by_name

    own = {field.name for field in fields(task)}
    given = {name: value for name in (*COLUMNS, *OF_TASKS) if (value := getattr(args, name, None)) is not None}
    if wrong := [name for name in given if name not in own]:
        raise ValueError(f"files of the task {task.name!r} have no {', '.join(wrong)} to choose")
    changed: dict[str, Any] = {}
    if "format" in own:
        known = format_by_name(path)
        changed["format"] = given.get("format") or (None if known else task.format)
        format = changed["format"] or known
        changed |= {} if format in DELIMITERS else {"delimiter": None}
        changed |= {} if format in FORMATS[1:] else {"text": None, "pair": None, "label": None}
    return replace(task, **{name: value for name, value in changed.items() if name in own} | given)


# ---------------------------------------------------------------------------------------------------------------
# minibert evaluate


def evaluate_arguments(parser: ArgumentParser) -> None:
    load_arguments(parser)
    add_data(parser)
    add_options(parser, TaggingSettings, only=("columns", "tag_names"))
    add_options(parser, AnsweringSettings, only=("repair",))
    parser.set_defaults(encoding=None, missing=None, repair=None)  # None: as in training


def evaluate_any_arguments(parser: ArgumentParser) -> None:
    evaluate_arguments(parser)
    add = parser.add_argument
    add(
        "--vectors",
        choices=("similarity", "retrieval"),
        help="measure the vectors of any checkpoint, not its head: similarity: two texts and a score; retrieval: "
        "a query and the text to find (default for a checkpoint without a head: similarity)",
    )
    add_options(parser, Recipe, only=("pooling", "layers", "normalize", "precision", "max_length"))


def evaluate_any(args: Arguments) -> Figures:
    """Measure a model with a task head on labelled data, or the vectors of any checkpoint on pairs of texts."""
    from minibert.prediction.reader import folder_kind, open_folder

    args.folder = open_folder(args.folder)
    if args.vectors is None and folder_kind(args.folder) != "encoder":
        return evaluate(args)
    from minibert.tasks.vector_measures import measure_file

    given = {field.name: getattr(args, field.name) for field in fields(FileSettings)}
    measured = measure_file(
        args.data,
        args.vectors or "similarity",
        args.folder,
        columns=(args.text, args.pair, args.label),
        files=FileSettings(**{name: value for name, value in given.items() if value is not None}),
        recipe=read_options(args, Recipe, missing="error"),
        device=args.device,
    )
    print(measured)
    return {"rows": measured.rows} | measured.with_errors


def evaluate(args: Arguments) -> Figures:
    """Measure a model with a task head on labelled data, by default in the columns of its training data."""
    reader = load_reader(args)
    measure = reader.measure(with_file_options(reader.task, args, args.data).read(args.data))
    print(measure.text)
    return dict(measure.figures)


# ---------------------------------------------------------------------------------------------------------------
# minibert predict


def predict_arguments(parser: ArgumentParser) -> None:
    load_arguments(parser)
    add_rows(parser)
    parser.add_argument("--pretokenized", action="store_true", help="for a tagger: words are separated only by spaces")


def add_rows(parser: ArgumentParser) -> None:
    """Add the options for the texts, and for the table of the answers."""
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="or pairs, with a tab between (default: --file, or standard input)")
    add(
        "--file",
        metavar="FILE",
        help="texts: .txt, .tsv, .csv, .jsonl, .json or .parquet, or a folder of .txt files; - is standard input",
    )
    add_options(parser, ClassificationSettings, only=set(COLUMNS) - {"label"})
    parser.set_defaults(encoding=None, missing=None)  # None: not given, so as in training
    add(
        "--out",
        type=user_path,
        metavar="FILE",
        help="a table of the predictions and all columns of the input: .tsv, .csv, .jsonl or .parquet; an input column "
        "that is named like a prediction becomes NAME_input",
    )
    add_overwrite(parser)


def predict(args: Arguments) -> Figures:
    """Print one line per text: the prediction, its probability, and the text, separated by tabs.

    Control characters are escaped, as in all that is printed; --out and --json keep each text as it is. On standard
    input a text is a line; a pair, such as a question and its passage, is a line with a tab between. A file may also be
    as the task's training reads it: SQuAD, questions with choices, or for a tagger CoNLL, by any ending such as .conll.
    """
    check_request(args, args.folder)
    from minibert.prediction.reader import with_given_words

    reader = load_reader(args)
    if args.pretokenized:
        reader = with_given_words(reader)
    rows = input_rows(args, reader.pairs, reader.task, reader.labels)
    return answer_rows(args, rows, partial(answers_of, reader), "predictions")


def check_request(args: Arguments, model: str) -> None:
    """Raise ValueError for options about texts or output that contradict each other, and what check_file raises."""
    check_texts(args, args.texts)
    about = [f"--{name}" for name in COLUMNS if name != "label" and getattr(args, name) is not None]
    if args.file is None and about:
        raise ValueError(f"{', '.join(about)} is about --file, which is not given; --file - is standard input")
    if args.texts and args.file is not None:
        raise ValueError("give either texts or --file")
    from minibert.tables.writing import ENDINGS

    if args.out is not None:
        check_file(args.out, args.overwrite, endings=ENDINGS, apart=[model, args.file])
        require("parquet", *["pyarrow"] * (args.out.suffix.lower() == ".parquet"))


def answer_rows(args: Arguments, rows: Iterator[Row], answer: Answer, name: str, texts: int = 1) -> Figures:
    """Answer the rows, some at a time: print one line each, or write the table. Warn once of texts that were cut.

    name: of the answers in --json. texts: how many a row has; each may be cut.
    """
    from minibert.tables.texts import rows_from
    from minibert.tables.writing import table_writer
    from minibert.tasks.names import in_order

    begin = time.perf_counter()
    typed = not args.texts and args.file in (None, "-") and standard_input().isatty()
    counts: Counter[str] = Counter()
    every: list[Any] = []
    total = 0
    with kept_cuts() as cuts, table_writer(args.out) if args.out else nullcontext() as write:
        while portion := list(islice(rows, 1 if typed else TEXTS_AT_ONCE)):
            with rows_from(total):
                lines, answers = answer(portion)
            table = [with_given(one, row.columns) for one, row in zip(answers, portion, strict=True)]
            if write is None:
                print("\n".join(lines), flush=True)
                every += table if args.json else []
            else:
                write(table)
            total += len(table)
            counts.update(one["label"] for one in answers if "label" in one)
        if not total:
            raise ValueError(f"{args.file if args.file not in (None, '-') else 'standard input'} holds no texts")
        if args.out is not None:
            check_file(args.out, args.overwrite)  # it may have appeared meanwhile
    if cuts:
        truncated = sum(one.truncated for one in cuts)
        longest = max(one.longest for one in cuts)
        at_least = any(one.at_least for one in cuts)
        whole = replace(cuts[0], truncated=truncated, texts=texts * total, longest=longest, at_least=at_least)
        warnings.warn(whole, stacklevel=2)
    if args.out is None:
        return {name: every}
    seconds = round(time.perf_counter() - begin, 3)
    labels = {label: counts[label] for label in in_order(counts)}
    shown = ", ".join(f"{count:,} {label}" for label, count in labels.items())
    print(block("saved in", f"{args.out}: {counted(total, 'row')}{f' ({shown})' if shown else ''}, {seconds:.1f} s"))
    return {"out": str(args.out), "rows": total, "labels": labels, "seconds": seconds}


@contextmanager
def kept_cuts() -> Iterator[list[Any]]:
    """Within the block, collect warnings of texts that were cut, a TruncationWarning each, and show all others."""
    from minibert.text.tokenized import TruncationWarning

    kept = list[Any]()
    show = warnings.showwarning

    def keep(message: Warning | str, *more: Any, **named: Any) -> None:
        if isinstance(message, TruncationWarning):
            kept.append(message)
        else:
            show(message, *more, **named)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TruncationWarning)
        warnings.showwarning = keep
        yield kept


def input_rows(args: Arguments, pairs: bool | None, task: Any = None, labels: Sequence[str] = ()) -> Iterator[Row]:
    """Return the rows of the file, or of the texts that were given as arguments or lines.

    pairs: whether the model reads pairs; None: it may read either. task, labels: the model's, if it has them.
    Raises ValueError for single texts if the model reads pairs, and for pairs if it reads single texts.
    """
    from minibert.tables.reading import TextFile
    from minibert.tasks.base import Row
    from minibert.tasks.classification import Classification

    if args.file is not None:
        encoding = {} if task is None else {"encoding": task.encoding}
        trained = task if isinstance(task, Classification) else Classification(**encoding)
        how = with_file_options(trained, args, args.file)
        if args.missing is None and how.missing == "drop":
            how = replace(how, missing="error")  # training may leave rows out; here each row gets its prediction
        if task is not None and (rows := task.rows(args.file, how)) is not None:
            yield from rows
            return
        if pairs is not None and pairs != (how.pair is not None):
            wanted = (
                "pairs: name the column of the second texts, --pair" if pairs else "one text per row, without --pair"
            )
            raise ValueError(f"this model reads {wanted}")
        with TextFile(args.file, how.text, column2=how.pair, whole=True, **how.reading) as file:
            for row in file:
                text, pair = (row, None) if isinstance(row, str) else row
                yield Row(text, pair, file.record)
        return
    source = TextFile("-", format="txt" if task is not None and task.name == "choose" else None)  # a line is JSON there
    source.cells = None if pairs is False else [*labels, "label"]
    with nullcontext(args.texts) if args.texts else source as lines:
        for number, line in enumerate(lines):
            pairs = "\t" in line if pairs is None else pairs
            text, tab, second = line.partition("\t") if pairs else (line, "", "")
            if pairs and not tab:
                raise ValueError(f"row {number} has no tab; this model reads pairs, with a tab between their texts")
            yield Row(text, second, {"text": text, "pair": second}) if pairs else Row(text, None, {"text": text})


def answers_of(reader: Any, rows: list[Row]) -> Answers:
    """Return the lines and the dicts of the predictions."""
    data = reader.task.from_rows(rows)
    answers = reader.answer(data)
    return reader.task.format_predictions(answers, data), reader.task.as_dicts(answers, data)


def with_given(prediction: Figures, given: Figures) -> Figures:
    """Return one row of the table: a column of the input that is named like a prediction becomes NAME_input."""
    row = dict(prediction)
    for name, value in given.items():
        while name in row:
            name += "_input"
        row[name] = value
    return row


# ---------------------------------------------------------------------------------------------------------------
# minibert fill-mask


def fill_mask_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help='with one or more [MASK]: "The capital of France is [MASK]."')
    add_masked_lm(parser)
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="tokens for each mask (%(default)s)")


def fill_mask(args: Arguments) -> Figures:
    """Print the most probable tokens at each [MASK], with their probabilities."""
    from minibert.tasks import masked_text

    check_texts(args, [args.text])
    masks = masked_text.fill_mask(args.text, masked_lm(args), args.top_k)
    for number, guesses in enumerate(masks, start=1):
        print(f"mask {number}", *(f"  {p:.4f}  {token}" for token, p in guesses), sep="\n")
    return {"masks": [[guess._asdict() for guess in guesses] for guesses in masks]}
