"""Pretraining: a model learns a language from raw text, by predicting masked tokens and pairs of sentences.

    corpus -> statistics -> rows, masked -> model of random weights -> train, each loss by name
           -> evaluated on held-out text -> an ordinary checkpoint

Devlin et al. 2018, section 3.1 and appendix A.2; the objectives are in objectives.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Self

from minibert.checkpoints import hub
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.config import Config
from minibert.files import read_json, regular
from minibert.heads import Head
from minibert.tasks.base import Example, Measure
from minibert.text.masking import Masking
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train import distributed
from minibert.train.batches import Packing, Stream, masked
from minibert.train.corpus import Corpus
from minibert.train.loop import Loss
from minibert.train.objectives import OBJECTIVES, MaskedLanguageModel
from minibert.train.run import Run, check_out, resolve_precision
from minibert.train.settings import PretrainSettings
from minibert.train.stats import CorpusStats, baselines, examine

HELD_OUT_ROWS = 512


@dataclass(frozen=True)
class PretrainRun(Run):
    """A corpus, and a config or a checkpoint."""

    settings: PretrainSettings
    model_config: Config
    source: hub.Source | None  # the checkpoint to continue from
    corpus: Corpus
    packing: Packing
    masking: Masking
    phrases: list[str]
    stats: CorpusStats
    baselines: dict[str, float]  # nats a masked token, without a model
    held_out: list[Example]  # masked once

    @classmethod
    def of(cls, corpus: str | os.PathLike[str], settings: PretrainSettings) -> Self:
        """Check and prepare. Raises ValueError, FileNotFoundError for what cannot be learned."""
        distributed.check(settings.batch_size, settings.shard)
        if (settings.config is None) == (settings.init is None):
            raise ValueError("give either config, for a new model, or init, to continue from a checkpoint")
        if settings.tokenizer is None and settings.init is None:
            raise ValueError("a new model needs a tokenizer: a folder written by `minibert vocab`, or a checkpoint")
        objective = OBJECTIVES[settings.objective](settings.step)
        objective.check(settings)
        whole = Corpus.of(corpus, settings.paragraphs)
        learned, rest = (whole, Corpus.of(settings.dev, settings.paragraphs)) if settings.dev else whole.split()
        source = None if settings.init is None else hub.locate(settings.init)
        tokenizer = load_tokenizer(settings.tokenizer or source.folder)  # type: ignore[union-attr]  # one of the two
        config = config_of(settings, source, tokenizer)
        if settings.max_length > config.max_tokens:
            raise ValueError(f"max_length is {settings.max_length}; the model has {config.max_tokens} positions")
        packing = Packing(objective.pairing, settings.max_length, tokenizer.template)
        phrases = [] if settings.phrases is None else regular(Path(settings.phrases)).read_text("utf-8").split("\n")
        phrases = [phrase.strip() for phrase in phrases if phrase.strip()]
        masking = objective.masking(
            Masking.of(tokenizer, settings.mask_rate, settings.whole_words, settings.seed, phrases)
        )
        stats, documents = examine(learned, tokenizer, packing, masking)
        rows = packing.rows(rest.tokenized(0, tokenizer), Random("held out"))[:HELD_OUT_ROWS]
        if not rows:
            raise ValueError(f"{rest.path} gives no row of held-out text; name another file: --dev, dev=")
        held_out = [masked(row, replace(masking, seed=0), number) for number, row in enumerate(rows)]
        losses = baselines(documents, max(tokenizer.vocab.values()) + 1, held_out)
        settings, learned = resolve_precision(settings, epochs=1), learned.for_ranks(distributed.context().size)
        rest_of = (learned, packing, masking, phrases, stats, losses, held_out)
        return cls(settings, tokenizer, config, source, *rest_of)

    @cached_property
    def objective(self) -> MaskedLanguageModel:
        """The losses and the score."""
        return OBJECTIVES[self.settings.objective](self.settings.step)

    @property
    def config(self) -> dict[str, Any]:
        """With the config of the model, and hashes of corpus and starting weights."""
        return super().config | {
            "config": self.model_config.to_dict(),
            "phrases": self.phrases,
            "weights_sha256": None if self.source is None else weights_sha256(self.source.folder),
            "corpus": self.corpus.fingerprint,
        }

    @property
    def report(self) -> dict[str, Any]:
        """The statistics of the corpus."""
        return {"corpus": asdict(self.stats), "baselines": self.baselines}

    @property
    def inputs(self) -> list[str | os.PathLike[str] | None]:
        """Tokenizer and checkpoint."""
        return [self.settings.tokenizer, self.source.folder if self.source else None]

    def new_model(self) -> Any:
        """The model of the objective."""
        return self.objective.new_model(self.model_config, self.source.folder if self.source else None)

    def models(self, model: Any) -> dict[str, Head]:
        """Those of the objective."""
        return self.objective.models(model)

    def batches(self, folder: Path) -> Stream:
        """The batches of the corpus; their journal is in the folder."""
        settings, context = self.settings, distributed.context()
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

    def functions(self, model: Any) -> tuple[Loss, Callable[[Any], Measure]]:
        """Those of the objective."""
        return self.objective, lambda model: Measure(self.score(model), "masked_accuracy", "")

    def score(self, model: Any) -> dict[str, Any]:
        """Loss and accuracy on held-out text."""
        return self.objective.score(model, self.held_out, self.settings.precision)


def config_of(settings: PretrainSettings, source: hub.Source | None, tokenizer: Tokenizer) -> Config:
    """The config of the model. Raises ValueError where it does not fit the tokenizer."""
    size = max(tokenizer.vocab.values()) + 1
    if source is not None:
        config = Config.from_file(source.folder / "config.json")
        if size > config.vocab_size:
            raise ValueError(
                f"{settings.init} has {config.vocab_size:,} tokens and the tokenizer {size:,}; use its own"
            )
        return config
    given = read_json(Path(str(settings.config)))
    if given.get("vocab_size", size) != size:
        raise ValueError(f"{settings.config}: vocab_size is {given['vocab_size']:,}; the tokenizer has {size:,} tokens")
    return Config.from_dict({"model_type": "bert"} | given | {"vocab_size": size, "pad_token_id": tokenizer.pad_id})


def pretrain(
    corpus: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    init: str | os.PathLike[str] | None = None,
    dev: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> Head:
    """Learn a language from a text file and return the model, in eval mode; `out` is an ordinary checkpoint.

    corpus: one sentence a line, an empty line between documents. config: a config.json for a new model, or init: a
    checkpoint to continue from. settings: objective, steps, max_length, batch_size, ... (settings.PretrainSettings). Of
    ELECTRA the discriminator is returned; its generator is in out/generator. The same call resumes a killed run.
    overwrite: replace an earlier result of minibert in `out`.
    Raises ValueError for an `out` that is taken and for what cannot be learned, before anything is trained, and what
    Run.train raises.
    """
    check_out(Path(out), overwrite, tokenizer, init)
    paths = {"config": config, "tokenizer": tokenizer, "init": init, "dev": dev}
    given = {name: None if path is None else os.fspath(path) for name, path in paths.items()}
    run = PretrainRun.of(corpus, PretrainSettings(**{"precision": "float32"} | given | settings))
    return run.models(run.finish(Path(out), restart=restart, overwrite=overwrite).model)[""]
