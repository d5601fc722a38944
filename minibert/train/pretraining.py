"""Pretraining: a model learns a language from raw text, by predicting masked tokens and pairs of sentences.

    corpus -> statistics -> rows, masked -> model of random weights -> train, each loss by name
           -> evaluated on held-out text -> an ordinary checkpoint

Devlin et al. 2018, section 3.1 and appendix A.2; the objectives are in objectives.py.
"""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Any, Self

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.config import Config
from minibert.heads import Head
from minibert.inputs import IGNORED
from minibert.tasks.base import Example, Measure
from minibert.text.masking import Masking
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train import distributed
from minibert.train.batches import NextSentencePairs, Packing, SentenceOrder, Stream, masked, one_text
from minibert.train.corpus import FORMAT, CorpusFile, Document
from minibert.train.objectives import OBJECTIVES, MaskedLanguageModel
from minibert.train.run import Goal, Run, resolve_precision
from minibert.train.settings import PretrainSettings
from minibert.utils.files import AnyPath, read_json, regular, user_path
from minibert.utils.outputs import check_folder
from minibert.utils.printing import Figures, block
from minibert.utils.settings import with_settings
from minibert.utils.wording import advice

HELD_OUT_ROWS = 512
EXAMINED_WINDOWS = 4  # of the corpus, for its statistics
MOST_UNKNOWN = 0.5  # of the tokens: beyond that nothing can be learned
MANY_REPEATED, MANY_SINGLE = 0.2, 0.5  # fractions that are worth a note
LEAST_RANDOM = 0.3  # the fraction of pairs that should be random
ENOUGH = 20  # pairs, to judge that
ALWAYS_MASK = {"masked": 1.0, "replaced": 0.0}
PRIOR = 50.0  # K of the bigram baseline


@dataclass(frozen=True)
class PretrainRun(Run):
    """A corpus, and a config or a checkpoint."""

    settings: PretrainSettings
    objective: Any  # of the subclass: the losses and the score
    model_config: Config
    checkpoint: Checkpoint | None  # the checkpoint to continue from
    corpus: CorpusFile
    packing: Packing
    masking: Masking
    phrases: list[str]
    stats: dict[str, float]
    baselines: dict[str, float]  # nats per masked token, without a model
    held_out: list[Example]  # masked once

    @classmethod
    def of(cls, corpus: AnyPath, settings: PretrainSettings, checkpoint: Checkpoint | None = None) -> Self:
        """Check corpus and settings, and build the run. checkpoint: settings.init, if it is open already.

        Raises ValueError or FileNotFoundError if it cannot learn.
        """
        distributed.check(settings.batch_size)
        new = settings.init is None
        if new == (settings.config is None) or (new and settings.tokenizer is None):
            raise ValueError(
                "give either config and tokenizer (a folder of `minibert vocab`, or a checkpoint), for a new model, or "
                "init, to continue from a checkpoint"
            )
        if settings.objective == "electra" and (settings.step == "readable" or not new):
            raise ValueError("objective electra needs a config, for a new generator and discriminator, and step packed")
        if settings.init is not None:
            checkpoint = checkpoint or Checkpoint.open(settings.init)
        objective = cls.objective_of(settings, checkpoint)
        if settings.rows == "sentence" and objective.pairing is not None:
            raise ValueError(
                f"objective {settings.objective} has two texts per row; rows 'sentence' needs mlm or electra"
            )
        learned, rest = CorpusFile.of(corpus, settings.paragraphs).split()
        if settings.dev:
            learned, rest = (CorpusFile.of(path, settings.paragraphs) for path in (corpus, settings.dev))
        tokenizer = load_tokenizer(settings.tokenizer or checkpoint)  # type: ignore[arg-type]  # one of the two
        config = config_to_train(settings, checkpoint, tokenizer)
        packing = Packing(objective.pairing, settings.max_length, tokenizer.template, settings.rows == "sentence")
        file = None if settings.phrases is None else regular(user_path(settings.phrases))
        phrases = file.read_text("utf-8").splitlines() if file else []
        masking = Masking.of(tokenizer, settings.mask_rate, settings.whole_words, settings.seed, phrases)
        masking = replace(masking, **(ALWAYS_MASK if settings.always_mask else objective.masking))
        stats, documents = examine(learned, tokenizer, packing)
        rows = packing.rows(rest.tokenized(0, tokenizer), Random("held out"))[:HELD_OUT_ROWS]
        if not rows:
            raise ValueError(f"{rest.path} gives no row of held-out text" + advice("; name another file: {}", dev=...))
        held_out = [masked(row, replace(masking, seed=0), number) for number, row in enumerate(rows)]
        losses = baselines(documents, config.vocab_size, held_out)
        settings = resolve_precision(settings, epochs=1)
        learned = learned.for_ranks(distributed.context().size)
        data = learned, packing, masking, phrases, stats, losses, held_out
        return cls(settings, tokenizer, objective, config, checkpoint, *data)

    @classmethod
    def objective_of(cls, settings: Any, checkpoint: Checkpoint | None) -> MaskedLanguageModel:
        """Return the losses and the score."""
        return OBJECTIVES[settings.objective](settings.step)

    @property
    def summary(self) -> str:
        """The statistics of the corpus with notes on possible problems, and the loss without a model, for people."""
        lines = [
            "{documents:,} documents, {sentences:,} sentences, {tokens:,} tokens, {rows:,} rows, in {examined:.0%} of "
            "it".format(**self.stats),
            "{single:.1%} of the documents have one sentence, {repeated:.1%} of the sentences are repeated, "
            "{unknown:.2%} of the tokens are unknown".format(**self.stats),
            self.computed_in,
        ]
        notes = {
            "many sentences are repeated: they will be memorized": self.stats["repeated"] > MANY_REPEATED,
            "many documents have one sentence, so no sentence follows it: is there an empty line after each sentence, "
            "instead of after each document?": self.packing.pairing and self.stats["single"] > MANY_SINGLE,
            "{one_token:,} documents have one token and are left out: two texts need two".format(**self.stats): (
                isinstance(self.packing.pairing, SentenceOrder) and self.stats["one_token"]
            ),
        }
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in self.baselines.items())
        without = block("without model", f"loss of the masked tokens of held-out text: {losses}")
        return "\n".join([block("corpus", *lines), *(block("note", note) for note in notes if notes[note]), without])

    @property
    def config(self) -> dict[str, Any]:
        """The config with the model's, and hashes of corpus and starting weights."""
        return super().config | {
            "config": self.model_config.to_dict(),
            "phrases": self.phrases,
            "weights_sha256": self.checkpoint and self.checkpoint.weights_sha256,
            "corpus": self.corpus.fingerprint,
        }

    @property
    def report(self) -> Figures:
        """The statistics of the corpus."""
        return {"corpus": self.stats, "baselines": self.baselines}

    def new_model(self) -> Any:
        """Return the model of the objective."""
        return self.objective.new_model(self.model_config, self.checkpoint)

    def batches(self, folder: Path) -> Stream:
        """Return the batches of the corpus; their journal is in the folder."""
        settings = self.settings
        context = distributed.context()
        journal = folder / ("windows.txt" if context.size == 1 else f"windows-{context.rank}.txt")
        return Stream(
            self.corpus,
            self.tokenizer,
            self.packing,
            self.masking,
            settings.batch_size,
            settings.steps * settings.accumulate,
            settings.seed,
            self.model_config.pad_token_id,
            journal,
            rank=context.rank,
            ranks=context.size,
        )

    def goal(self, model: Any) -> Goal:
        """Return the losses of the objective, and its score on held-out text."""
        return Goal(self.objective, self.measure)

    def measure(self, model: Any) -> Measure:
        """Return the score on held-out text."""
        return Measure(self.objective.score(model, self.held_out, self.settings.precision), "masked_accuracy", "")

    def finished(self, model: Any) -> dict[str, Head]:
        """Return the models that the objective trains, with their tokenizer."""
        models: dict[str, Head] = self.objective.finished(model)
        for head in models.values():
            head.tokenizer = self.tokenizer
        return models


def config_to_train(settings: PretrainSettings, checkpoint: Checkpoint | None, tokenizer: Tokenizer) -> Config:
    """Return the config of the model. Raises ValueError if it does not fit the tokenizer or max_length."""
    size = max(tokenizer.vocab.values()) + 1
    if checkpoint is None:
        given = {"model_type": "bert", "vocab_size": size} | read_json(user_path(str(settings.config)))
        config = Config.from_dict(given | {"pad_token_id": tokenizer.pad_id})
    else:
        config = checkpoint.config
    for name, value, limit in (
        ("max_length", settings.max_length, config.max_tokens),
        ("the vocabulary of the tokenizer", size, config.vocab_size),
    ):
        if value > limit:
            raise ValueError(f"{name} is {value:,}; the model of {settings.init or settings.config} has {limit:,}")
    return config


def examine(corpus: CorpusFile, tokenizer: Tokenizer, packing: Packing) -> tuple[dict[str, float], list[Document]]:
    """Return the statistics of a few windows of the whole corpus, in rows as in training; and their documents.

    Raises ValueError for a corpus from which nothing can be learned with these rows: each line is a document, so that
    no sentence follows another, or the vocabulary is of another language.
    """
    windows = sorted({corpus.windows * part // EXAMINED_WINDOWS for part in range(EXAMINED_WINDOWS)})
    texts = [document for number in windows for document in corpus.documents(number)]
    tokenized = {number: corpus.tokenized(number, tokenizer) for number in windows}
    rows = [row for number, of_window in tokenized.items() for row in packing.rows(of_window, Random(number))]
    documents = [*chain.from_iterable(tokenized.values())]
    sentences = Counter(chain.from_iterable(texts))
    ids = [id for document in documents for id in one_text(document)]
    stats = {
        "examined": len(windows) / max(1, corpus.windows),
        "documents": len(texts),
        "sentences": sentences.total(),
        "tokens": len(ids),
        "rows": len(rows),
        "single": sum(len(document) == 1 for document in texts) / max(1, len(texts)),
        "repeated": 1 - len(sentences) / max(1, sentences.total()),
        "one_token": sum(len(one_text(document)) == 1 for document in documents),
        "unknown": ids.count(tokenizer.unk_id) / max(1, len(ids)),
    }
    labels = [label for row in rows for label in row.labels.values()]  # of pairs: 1 for a random second text
    random = sum(labels) / max(1, len(labels))
    too_few = len(texts) < 2 or (len(labels) >= ENOUGH and random < LEAST_RANDOM)
    problems = {
        f"{stats['unknown']:.0%} of its tokens are unknown to the vocabulary; learn one from it: minibert vocab": (
            stats["unknown"] > MOST_UNKNOWN
        ),
        "each document has one sentence, so none follows another"
        + advice(" (is each line a paragraph? {})", paragraphs=True): packing.pairing and stats["single"] == 1,
        f"{random:.0%} of the second texts are from another document, and half should be; it has too few documents "
        f"within {corpus.window:,} bytes": isinstance(packing.pairing, NextSentencePairs) and texts and too_few,
        "it gives no row to learn from": not rows,
    }
    for problem in (problem for problem, holds in problems.items() if holds):
        raise ValueError(f"nothing can be learned from {corpus.path}: " + problem + f"; {FORMAT}")
    return stats, documents


def baselines(documents: Sequence[Document], vocabulary_size: int, rows: Sequence[Example]) -> dict[str, float]:
    """Return nats per masked token without a model: the mean of -log p, by counts of the documents.

        unigram    p(w)          = (count(w) + 1) / (all + V)
        bigram     p(w | before) = (count(before, w) + K p(w)) / (count(before) + K)

    A masked language model that does not beat the second has learned nothing of the context. K smooths the counts of
    unseen pairs (Bayesian smoothing with a Dirichlet prior: MacKay and Peto 1995).
    """
    texts = [one_text(document) for document in documents]
    tokens = Counter(chain.from_iterable(texts))
    pairs = Counter(pair for ids in texts for pair in pairwise(ids))
    before = Counter(id for ids in texts for id in ids[:-1])
    sums: Counter[str] = Counter()
    for row in rows:
        for at, token in enumerate(row.labels["labels"]):
            if token != IGNORED:
                left = row.ids[at - 1]  # never seen where it is masked itself: then the bigram is the unigram
                unigram = (tokens[token] + 1) / (tokens.total() + vocabulary_size)
                bigram = (pairs[left, token] + PRIOR * unigram) / (before[left] + PRIOR)
                sums.update({"unigram": -math.log(unigram), "bigram": -math.log(bigram), "": 1})
    return {name: sums[name] / max(1, sums[""]) for name in ("unigram", "bigram")}


@with_settings(PretrainSettings)
def pretrain(
    corpus: AnyPath,
    *,
    out: AnyPath,
    config: AnyPath | None = None,
    tokenizer: AnyPath | None = None,
    init: AnyPath | None = None,
    dev: AnyPath | None = None,
    restart: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> Head:
    """Learn a language from a text file and return the model, in eval mode; `out` is an ordinary checkpoint.

    corpus: one sentence per line, an empty line between documents. config: a config.json for a new model, or init: a
    checkpoint to continue from. settings: objective, steps, max_length, batch_size, ... (settings.PretrainSettings).
    For ELECTRA the discriminator is returned; its generator is in out/generator. The same call resumes a killed run.
    overwrite: replace an earlier result of minibert in `out`.
    Raises ValueError for an `out` that is taken and for what cannot be learned, before anything is trained, and what
    Run.train raises.
    """
    check_folder(user_path(out), overwrite, apart=[tokenizer, init])
    paths = {"config": config, "tokenizer": tokenizer, "init": init, "dev": dev}
    given = {name: None if path is None else os.fspath(path) for name, path in paths.items()}
    run = PretrainRun.of(corpus, PretrainSettings(**{"precision": "float32"} | given | settings))
    return run.finish(user_path(out), restart=restart, overwrite=overwrite).model
