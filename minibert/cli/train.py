"""The commands that train: `minibert finetune` (one for each of tasks.TASKS), `pretrain`, `distill` and `vocab`."""

import statistics
import time
from argparse import ArgumentParser
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from minibert.cli.shared import COLUMNS, Arguments, add_options, add_overwrite, read_options
from minibert.tasks import TASKS, task_class
from minibert.text.wordpiece import MAX_WORD_LENGTH
from minibert.train.settings import (
    DistillClassifierSettings,
    DistillSettings,
    FinetuneSettings,
    PretrainSettings,
    VocabularySettings,
)
from minibert.utils.files import user_path
from minibert.utils.printing import Figures, block, counted

SKIP = ("config", "init", "dev", "objective", "phrases", "model", "freeze", "class_weight")  # not flags of distill
LANGUAGE = {one.name for one in fields(DistillSettings) if "help" in one.metadata} - {*SKIP, "epochs"}
CLASSIFY = {one.name for one in fields(DistillClassifierSettings) if "help" in one.metadata} - {*SKIP} | {*COLUMNS}


def add_output(parser: ArgumentParser) -> None:
    """Add the output folder of a training, and what happens if it exists."""
    help = "the trained checkpoint; the same command resumes a killed run"
    parser.add_argument("--out", required=True, type=user_path, metavar="FOLDER", help=help)
    parser.add_argument("--restart", action="store_true", help="start again instead of resuming a killed run")
    add_overwrite(parser)


def check_request(args: Arguments, *inputs: str | None) -> None:
    """Let only the main process print from now on, and raise what check_folder raises for the output."""
    from minibert.train import distributed
    from minibert.utils.outputs import check_folder

    distributed.silence_other_ranks()
    check_folder(args.out, args.overwrite, apart=inputs)


def train(args: Arguments, prepared: Any) -> Figures:
    """Run a prepared training, write its result, and print the report."""
    trained = prepared.finish(args.out, restart=args.restart, overwrite=args.overwrite, verbose=True)
    print_result(trained)
    return print_saved(args, trained)


def print_result(trained: Any) -> None:
    """Print the size of the model, the steps, and the score of the best epoch."""
    figures = trained.figures
    measure = trained.measure
    print(block("parameters", "{trained:,} trained, {frozen:,} frozen".format(**figures["parameters"])))
    print(block("steps", "{steps:,}, {tokens:,} tokens, {tokens_per_second:,.0f} per second".format(**figures)))
    if measure is not None:
        print(block("kept", f"epoch {figures['best_epoch']}, {measure.main} {measure.score:.4f} on dev"))
        print(measure.text)


def print_saved(args: Arguments, trained: Any) -> Figures:
    """Print the last line of the report; return the figures for --json."""
    print(block("saved in", f"{args.out} after {trained.figures['seconds']:.1f} s"))
    figures = {name: value for name, value in trained.figures.items() if name not in ("curve", "curves")}
    return figures | {"out": str(args.out)}


# ---------------------------------------------------------------------------------------------------------------
# minibert finetune


def finetune_arguments(parser: ArgumentParser, name: str) -> None:
    task = TASKS[name]
    add = parser.add_argument
    add("data", metavar="DATA", help=task.data_help)
    add("--dev", metavar="FILE", help="data for evaluation after each epoch; the best epoch is kept")
    add_output(parser)
    add_options(parser, FinetuneSettings, skip=() if name == "classify" else ("class_weight",))
    add_options(parser, task.settings)
    add("--seeds", type=int, default=1, metavar="N", help="train with N seeds, keep the best on dev (1)")
    add("--plot", type=user_path, metavar="FILE.png", help="plot the loss and the score on dev")


def finetune(args: Arguments, name: str) -> Figures:
    """Train with one seed or several, write the folder of the best, and report the scores."""
    from minibert.train import distributed
    from minibert.train.checkpointer import remove_run, reported
    from minibert.train.estimator import prepare
    from minibert.train.run import plot_runs, write
    from minibert.utils.plotting import check_picture
    from minibert.utils.settings import check_number

    check_request(args, args.model)
    check_number("--seeds", args.seeds, int, minimum=1, maximum=1000)
    if args.seeds > 1 and args.dev is None:
        raise ValueError(f"--seeds is {args.seeds}, and several seeds are compared on held-out data; add --dev FILE")
    if args.plot:
        check_picture(args.plot, args.overwrite)
    task = read_options(args, task_class(name))
    data = task.read(args.data)
    task = task.resolve(data)
    dev = None if args.dev is None else task.read(args.dev)
    prepared = prepare(task, data, dev, read_options(args, FinetuneSettings))
    print(prepared.summary)
    context = distributed.context()
    context.start(prepared.settings.device)
    context.compare({"seeds": args.seeds})
    trained: dict[Path, Any] = {}  # by the folder of its checkpoints
    for seed in range(args.seed, args.seed + args.seeds):
        run = replace(prepared, settings=replace(prepared.settings, seed=seed))
        print(block("seed", str(seed)), flush=True)
        folder = args.out.with_name(f"{args.out.name}.training" + (f"-{seed}" if args.seeds > 1 else ""))
        with reported(folder):
            trained[folder] = run.train(folder, restart=args.restart, verbose=True)
        print_result(trained[folder])
    best = best_of(list(trained.values()))
    with reported(folder):
        write(best, args.out, args.overwrite)
    for folder in trained:
        remove_run(folder)
    if args.plot and context.is_main:
        plot_runs([result.figures for result in trained.values()], prepared.main, args.plot)
        print(block("picture", str(args.plot)))
    return print_saved(args, best)


def best_of(trained: list[Any]) -> Any:
    """Return the best of several seeds, after a line about their spread, which its figures have too."""
    best = max(trained, key=lambda result: result.measure.score if result.measure else 0.0)
    if len(trained) > 1:
        scores = [result.measure.score for result in trained if result.measure]
        spread = {"mean": statistics.mean(scores), "std": statistics.stdev(scores)}
        best.figures["seeds"] = {"scores": scores} | spread
        print(block("seeds", "mean {mean:.4f}, standard deviation {std:.4f}; the best is kept".format(**spread)))
    return best


# ---------------------------------------------------------------------------------------------------------------
# minibert pretrain


def pretrain_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="CORPUS", help="text: one sentence per line, an empty line between documents")
    add_output(parser)
    add_options(parser, PretrainSettings, skip=("epochs",))


def pretrain(args: Arguments) -> Figures:
    """Check the corpus, learn from it, and write an ordinary checkpoint."""
    from minibert.train.pretraining import PretrainRun

    check_request(args, args.tokenizer, args.init)
    prepared = PretrainRun.of(args.corpus, read_options(args, PretrainSettings))
    print(prepared.summary, flush=True)
    return train(args, prepared)


# ---------------------------------------------------------------------------------------------------------------
# minibert distill


def distill_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="text: one sentence per line, an empty line between documents; or a table")
    add("--teacher", required=True, metavar="NAME", help="a masked LM, or the output of `minibert finetune classify`")
    add_output(parser)
    add("--task", default="language", choices=("language", "classify"), help="what is learned (%(default)s)")
    add("--dev", metavar="FILE", help="held-out data (default: the end of the text; of a task none)")
    add_options(parser, DistillSettings, skip=(*SKIP, "epochs"))
    group: Any = parser.add_argument_group("--task classify", "other defaults: those of `minibert finetune classify`")
    group.add_argument("--epochs", type=int, metavar="N", help="passes over the training data (3)")
    add_options(group, TASKS["classify"].settings, skip=("separator", "regression"))
    parser.set_defaults(**dict.fromkeys(LANGUAGE | CLASSIFY))  # None: the settings have their own default


def distill(args: Arguments) -> Figures:
    """Initialise a student with every second of the teacher's layers, and teach it the teacher's predictions."""
    from minibert.tasks.classification import Classification
    from minibert.train.distillation import distill_run
    from minibert.train.student import student_config

    check_request(args, args.teacher, args.tokenizer)
    given = {name: value for name in LANGUAGE | CLASSIFY if (value := getattr(args, name)) is not None}
    if wrong := given.keys() - (LANGUAGE if args.task == "language" else CLASSIFY):
        raise ValueError(f"--{min(wrong).replace('_', '-')} has no meaning for --task {args.task}")
    columns = {name: given.pop(name) for name in COLUMNS if name in given}
    task: Any = "language" if args.task == "language" else Classification(**columns)
    prepared = distill_run(args.data, args.teacher, task, args.dev, **given)
    layers = prepared.settings.take or ()
    title = student_config(prepared.checkpoint.config, layers).family.title
    student = f"a {title} of {counted(len(layers), 'layer')}, initialised with layers {', '.join(map(str, layers))}"
    print(prepared.summary)
    print(block("student", f"{student} of the teacher"), flush=True)
    return train(args, prepared)


# ---------------------------------------------------------------------------------------------------------------
# minibert vocab


def vocab_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("corpus", nargs="+", metavar="CORPUS", help="files of text, .txt or a table with a column of texts, also .gz")
    add("--out", required=True, type=user_path, metavar="FOLDER", help="a new folder, for --tokenizer of pretrain")
    add("--cased", action="store_true", help="keep case and accents")
    add_options(parser, VocabularySettings)
    add_overwrite(parser)


def vocab(args: Arguments) -> Figures:
    """Learn the tokens of a corpus: letters first, then again and again the most frequent pair, joined."""
    from minibert.train.vocabulary import learn_vocabulary
    from minibert.utils.outputs import check_folder

    check_folder(args.out, args.overwrite, apart=args.corpus)
    begin = time.perf_counter()
    settings = asdict(read_options(args, VocabularySettings))
    learned = learn_vocabulary(args.corpus, lowercase=not args.cased, **settings)
    learned.save(args.out, args.overwrite)
    figures: Figures = {
        "tokens": len(learned.tokens),
        "whole_words": round(learned.whole, 6),
        "words": learned.words,
        "different_words": learned.different_words,
        "letters": learned.letters,
        "stripped_words": round(learned.stripped, 6),
        "words_too_long": learned.too_long,
        "out": str(args.out),
        "seconds": round(time.perf_counter() - begin, 3),
    }
    print(block("corpus", "{words:,} words, {different_words:,} different ones, {letters:,} letters".format(**figures)))
    print(block("vocabulary", "{tokens:,} tokens; {whole_words:.1%} of the words are one token".format(**figures)))
    for note in vocabulary_notes(learned, settings["size"], settings["min_frequency"]):
        print(block("note", note))
    print(block("written", "{out}, in {seconds:.1f} s".format(**figures)))
    return figures


def vocabulary_notes(made: Any, size: int, min_frequency: int) -> list[str]:
    """Return what a user of this train.vocabulary.Vocabulary may not expect."""
    notes = []
    if made.stripped >= 0.01:
        notes.append(
            f"{made.stripped:.1%} of the words lost accents or vowel signs, as in BERT's uncased vocabularies; "
            "--no-strip-accents keeps them, which Hindi, Thai, Vietnamese and Japanese need"
        )
    if made.too_long:
        notes.append(
            f"{made.too_long:,} of {made.words:,} words have over {MAX_WORD_LENGTH} characters ({made.unknown:.1%} "
            "of all characters): nothing is learned from them, and each becomes one [UNK]. If the language has no "
            "spaces between words, as Thai, Khmer and Japanese, split its texts into words first, also those for which "
            "the vocabulary is used"
        )
    if len(made.tokens) < size:
        why = f"no other pair occurs {min_frequency} times; more text gives more"
        notes.append(f"fewer tokens than the {size:,} requested: {why}")
    return notes
