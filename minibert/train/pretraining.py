"""Pretraining: BERT learns a language from raw text, by guessing hidden words and which sentences belong together.

    corpus -> a look at it -> rows, masked -> model from random weights -> train, each loss by itself
           -> scored on held-out text -> an ordinary checkpoint

Devlin et al. 2018, section 3.1 and appendix A.2; the script of its authors, and ALBERT's for the order of sentences.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any, Self

import torch
from torch import Tensor

from minibert.checkpoints import hub
from minibert.checkpoints.load import has_head, load
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.config import Config
from minibert.device import choose_device, choose_dtype
from minibert.files import read_json, regular
from minibert.heads import HEAD_CLASSES, Head
from minibert.inputs import unchecked
from minibert.losses import cross_entropy, token_cross_entropy
from minibert.tasks.base import Example
from minibert.text.masking import RATE, Masking
from minibert.text.tables import read_lines
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train import baselines, distributed, electra
from minibert.train.batches import Batch, collate
from minibert.train.corpus import Corpus
from minibert.train.doctor import Findings, examine
from minibert.train.electra import Electra
from minibert.train.folder import check_out, figures, write_checkpoint
from minibert.train.keeper import Keeper, forget
from minibert.train.loop import Loss, Losses, Progress, Settings, new_optimizer, train
from minibert.train.packed import packed_states
from minibert.train.pairs import LABELS, Packing
from minibert.train.stream import Stream, masked
from minibert.vectors.pooling import inference

HEADS = {"mlm": "masked-lm", "mlm+nsp": "pretraining", "mlm+sop": "pretraining", "electra": "replaced-token-detection"}
SECOND = {"mlm+nsp": "next-sentence", "mlm+sop": "sentence-order"}
Model = Head | Electra
ROWS_SCORED = 512  # of held-out text
AT_ONCE = 32  # of them


@dataclass(frozen=True)
class Request:
    """What to learn from what, and how; Settings has the rest. The defaults are BERT's, at a size that one core has."""

    corpus: str
    tokenizer: str | None = None  # a folder or a Hub name; None: that of `init`
    config: str | None = None  # a config.json, whose vocabulary is the tokenizer's
    init: str | None = None  # a checkpoint to go on from, in place of a config
    objective: str = "mlm+nsp"
    dev: str | None = None  # held-out text; None: the end of the corpus
    steps: int = 1000
    settings: Settings = field(default_factory=lambda: Settings(epochs=1, learning_rate=1e-4, warmup=0.01))
    max_length: int = 128
    mask_rate: float = RATE
    whole_words: bool = False
    phrases: str | None = None  # a file with a phrase a line, whose tokens are hidden together
    paragraphs: bool = False
    step: str = "packed"  # or "readable"
    device: str = "auto"
    save_every: int = 500  # steps, after which it is scored too

    def __post_init__(self) -> None:
        if self.objective not in HEADS:
            raise ValueError(f"objective is {self.objective!r}; choose from {', '.join(HEADS)}")
        if self.step not in ("packed", "readable"):
            raise ValueError(f"step is {self.step!r}; choose packed or readable")
        for name in ("steps", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if (self.config is None) == (self.init is None):
            raise ValueError("either config, for a new model, or init, to go on from a checkpoint, must be given")
        if self.objective == "electra" and (self.step == "readable" or self.init):
            raise ValueError("objective electra needs a config, for a new generator and discriminator, and step packed")
        if self.tokenizer is None and self.init is None:
            raise ValueError("a new model needs a tokenizer: a folder that `minibert vocab` wrote, or a checkpoint")


# ---------------------------------------------------------------------------------------------------------------
# One run


@dataclass(frozen=True)
class Job:
    """All that can be known before anything is trained."""

    request: Request
    config: Config
    tokenizer: Tokenizer
    source: hub.Source | None  # the checkpoint to go on from
    corpus: Corpus
    packing: Packing
    masking: Masking
    findings: Findings
    held_out: list[Example]  # masked once and for all

    @classmethod
    def of(cls, request: Request) -> Self:
        """Look at everything beforehand. Raises ValueError, FileNotFoundError for what cannot be learned."""
        distributed.check(request.settings.batch_size, request.settings.shard)
        whole = Corpus.of(request.corpus, request.paragraphs)
        learned, rest = (whole, Corpus.of(request.dev, request.paragraphs)) if request.dev else whole.split()
        source = None if request.init is None else hub.locate(request.init)
        place = request.tokenizer or source
        assert place is not None  # Request has seen to it
        tokenizer = load_tokenizer(place if isinstance(place, str) else place.folder)
        config = config_of(request, source, tokenizer)
        if not SHORTEST_ROW <= request.max_length <= config.max_tokens:
            raise ValueError(
                f"max_length is {request.max_length}; it must be at least {SHORTEST_ROW}, and the model has positions "
                f"for {config.max_tokens} tokens"
            )
        packing = Packing(request.objective, request.max_length, tokenizer.template)
        seed, phrases = request.settings.seed, phrases_of(request)
        masking = Masking.of(tokenizer, request.mask_rate, request.whole_words, seed, phrases)
        if request.objective == "electra":
            masking = replace(masking, masked=electra.MASKED, replaced=electra.REPLACED)
        findings = examine(learned, tokenizer, packing, masking)
        rows = packing.rows(rest.tokenized(0, tokenizer), Random("held out"))[:ROWS_SCORED]
        if not rows:
            raise ValueError(f"{rest.path} gives no row of held-out text; name another file: --dev, dev=")
        held_out = [masked(row, replace(masking, seed=0), number) for number, row in enumerate(rows)]
        learned = learned.for_ranks(distributed.here().size)
        return cls(request, config, tokenizer, source, learned, packing, masking, findings, held_out)

    @cached_property
    def settings(self) -> Settings:
        """With the precision that the hardware has."""
        given = self.request.settings
        dtype = choose_dtype(given.precision, torch.device(choose_device(self.request.device)))
        scales = {"replaced-token-detection": electra.SCALE} if self.request.objective == "electra" else given.scales
        precision = "bfloat16" if dtype == torch.bfloat16 else "float32"
        exact = self.request.step == "readable"
        return replace(given, epochs=1, precision=precision, scales=scales, exact=exact)

    @property
    def asked(self) -> dict[str, Any]:
        """All that decides which weights come out, as JSON has it."""
        names = ("objective", "steps", "max_length", "mask_rate", "whole_words", "paragraphs", "step")
        return {
            **{name: getattr(self.request, name) for name in names},
            **asdict(self.settings),
            "processes": distributed.here().size,
            "config": self.config.to_dict(),
            "phrases": phrases_of(self.request),
            "weights_sha256": None if self.source is None else weights_sha256(self.source.folder),
            "tokenizer": self.tokenizer.fingerprint,
            "corpus": self.corpus.fingerprint,
        }

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Nats a hidden word of the held-out text that need no model: by frequency, and by the word before."""
        return baselines.losses(self.findings.counts, self.held_out)

    def new_model(self) -> Model:
        """The checkpoint to go on from, with a fresh task head where it has none; or a new model."""
        head = HEADS[self.request.objective]
        if self.request.objective == "electra":
            return Electra(self.config)
        if self.source is None:
            return HEAD_CLASSES[head](self.config)
        return load(self.source.folder, head=head, new_head=not has_head(self.source.folder, head))

    @property
    def loss_of(self) -> Loss:
        """How the losses of a batch are computed."""
        return partial(losses, self.request.objective, self.request.step)

    def stream(self, folder: Path) -> Stream:
        """The batches of this rank; `folder` keeps what a resumed run needs to find its place."""
        world = distributed.here()
        return Stream(
            self.corpus,
            self.tokenizer,
            self.packing,
            self.masking,
            self.settings.batch_size,
            self.request.steps * self.settings.accumulate,
            self.settings.seed,
            self.config.pad_token_id,
            folder / ("windows.txt" if world.size == 1 else f"windows-{world.rank}.txt"),
            rank=world.rank,
            ranks=world.size,
        )

    def score(self, model: Model) -> dict[str, Any]:
        """Loss and accuracy of each objective on held-out text."""
        return score(model, self.held_out, self.request.objective, self.settings.precision)


SHORTEST_ROW = 8  # tokens: a pair with a word to guess on each side


def phrases_of(request: Request) -> list[str]:
    """The lines of the file with phrases. Raises FileNotFoundError, and ValueError where it has none."""
    if request.phrases is None:
        return []
    path = regular(Path(request.phrases))
    with path.open("rb") as file:
        found = [line.strip() for line in read_lines(file, str(path)) if line.strip()]
    if not found:
        raise ValueError(f"{request.phrases} holds no phrase; it needs one a line")
    return found


def config_of(request: Request, source: hub.Source | None, tokenizer: Tokenizer) -> Config:
    """The config of the model. Raises ValueError where it does not fit the tokenizer."""
    if source is not None:
        config = Config.from_file(source.folder / "config.json")
        if max(tokenizer.vocab.values()) >= config.vocab_size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer.vocab):,} tokens and {request.init} is made for "
                f"{config.vocab_size:,}; take the tokenizer of that checkpoint"
            )
        return config
    given = read_json(Path(str(request.config)))
    size = max(tokenizer.vocab.values()) + 1
    if given.get("vocab_size", size) != size:
        raise ValueError(
            f"{request.config}: vocab_size is {given['vocab_size']:,}, and the tokenizer has {size:,} tokens"
        )
    return Config.from_dict({"model_type": "bert"} | given | {"vocab_size": size, "pad_token_id": tokenizer.pad_id})


@dataclass
class Pretrained:
    """A model that was trained, and how that went."""

    model: Model
    tokenizer: Tokenizer
    progress: Progress
    figures: dict[str, Any]  # what training.json has


def run(
    job: Job, folder: Path, *, restart: bool = False, say: Callable[[Progress], None] = lambda progress: None
) -> Pretrained:
    """Train. The state of the run is kept in `folder`; a run that was begun there is resumed.

    say: told each time that the model was scored. Raises what Keeper and train raise.
    """
    request, settings, begin = job.request, job.settings, time.perf_counter()
    world = distributed.here()
    device = world.begin(request.device)
    with Keeper(folder, job.asked, request.save_every, restart, world) as keeper:
        stream = job.stream(keeper.folder)
        if restart and stream.journal:
            stream.journal.unlink(missing_ok=True)
        torch.manual_seed(settings.seed)
        model = job.new_model().to(device)
        world.join(model, settings.shard)
        world.seed(settings.seed)
        optimizer = new_optimizer(model, settings)
        progress = keeper.resume(model, optimizer)
        before = progress.tokens

        def after_step(progress: Progress) -> None:
            if progress.step % request.save_every == 0 or progress.step == request.steps:
                progress.scores.append({"step": progress.step} | world.ask(model, job.score))
                keeper.save(progress, model, optimizer)
                say(progress)

        train(
            model,
            stream,
            settings,
            loss_of=job.loss_of,
            progress=progress,
            optimizer=optimizer,
            world=world,
            after_step=after_step,
        )
        model = world.plain(model, lambda: job.new_model().to(device))
    seconds = time.perf_counter() - begin
    speed = {"seconds": round(seconds, 3), "tokens_per_second": round((progress.tokens - before) / seconds, 1)}
    sizes = {"trained": sum(parameter.numel() for parameter in model.parameters()), "frozen": 0}
    told = figures(job.asked, progress, sizes, None, corpus=job.findings.figures, baselines=job.baselines, **speed)
    return Pretrained(model, job.tokenizer, progress, told | {"dev": progress.scores[-1]})


# ---------------------------------------------------------------------------------------------------------------
# Objectives


def losses(objective: str, step: str, model: Model, batch: Batch) -> Losses:
    """The loss of each objective for one batch, whose sum is what transformers calls the loss."""
    if isinstance(model, Electra):
        return electra.losses(model, batch)
    if step == "packed":
        encoded, labels = packed_states(model, batch)
        out = model.read(encoded)  # logits of the masked tokens alone, (1,N,V)
    else:
        out, labels = (
            model(batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids),
            batch.labels,
        )
    tokens, second = scores_of(out)
    found = {"masked-lm": token_cross_entropy(tokens, labels["labels"])}
    if second is not None:
        found[SECOND[objective]] = cross_entropy(second, labels[str(LABELS[objective])])
    return found


def scores_of(out: Any) -> tuple[Tensor, Tensor | None]:
    """The scores of tokens and, where there are any, of the second objective (B, 2)."""
    if not hasattr(out, "prediction_logits"):
        return out.logits, None
    return out.prediction_logits, out.seq_relationship_logits if out.sop_logits is None else out.sop_logits


def score(model: Model, rows: Sequence[Example], objective: str, precision: str = "float32") -> dict[str, Any]:
    """How well hidden words are guessed, and second texts told: mean loss, perplexity and accuracy of each."""
    in_order = sorted(range(len(rows)), key=lambda row: len(rows[row].ids))
    portions = [in_order[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
    pad_id, device = model.config.pad_token_id, model.device
    batches = (collate([rows[row] for row in portion], portion, pad_id).to(device) for portion in portions)
    lower = torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with inference(model), unchecked(), lower:
        found = electra.figures(model, batches) if isinstance(model, Electra) else figures_of(objective, model, batches)
    return {"perplexity": math.exp(min(700.0, found["masked_lm_loss"]))} | found


def figures_of(objective: str, model: Head, batches: Iterable[Batch]) -> dict[str, Any]:
    """Loss and accuracy of each objective, means over hidden words and over rows."""
    words, texts = [], []
    for batch in batches:
        encoded, labels = packed_states(model, batch)
        tokens, second = scores_of(model.read(encoded))
        words.append(sums(tokens[0], labels["labels"][0]))  # (N,V), (N)
        if second is not None:
            texts.append(sums(second, labels[str(LABELS[objective])]))  # (B,2), (B)
    masked, loss, right = map(sum, zip(*words, strict=True))
    found = {"masked_lm_loss": loss / masked, "masked_accuracy": right / masked, "masked_tokens": masked}
    if texts:
        rows, loss, right = map(sum, zip(*texts, strict=True))
        name = SECOND[objective].replace("-", "_")
        found |= {f"{name}_loss": loss / rows, f"{name}_accuracy": right / rows}
    return found


def sums(logits: Tensor, labels: Tensor) -> tuple[int, float, int]:
    """How many answers there are, (N,K) and (N), the sum of their losses, and how many are right."""
    loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
    return len(labels), float(loss), int((logits.argmax(dim=-1) == labels).sum())


# ---------------------------------------------------------------------------------------------------------------
# From Python


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
    **how: Any,
) -> Head:
    """Learn a language from a text file and return the model, in eval mode; `out` is an ordinary checkpoint.

    corpus: one sentence a line, an empty line between documents. config: a config.json for a new model, or init: a
    checkpoint to go on from. how: fields of Request (objective, steps, max_length, ...) and of train.loop.Settings
    (batch_size, learning_rate, seed, ...). Of ELECTRA the discriminator is returned; its generator is in out/generator.
    A killed run is resumed by the same call. overwrite: what minibert wrote in `out` is replaced, and nothing else.
    Raises ValueError for an `out` that holds something and for what cannot be learned, before anything is trained, and
    what Keeper and train raise.
    """
    check_out(Path(out), overwrite, tokenizer, init)
    paths = {"config": config, "tokenizer": tokenizer, "init": init, "dev": dev}
    given = {name: None if path is None else os.fspath(path) for name, path in paths.items()}
    model = finish(Job.of(request_of(os.fspath(corpus), given | how)), Path(out), restart, overwrite=overwrite).model
    return model.discriminator if isinstance(model, Electra) else model


def request_of(corpus: str, given: dict[str, Any]) -> Request:
    """A Request with Settings from the fields of both. Raises TypeError for a name that is of neither."""
    own = {name: value for name, value in given.items() if name in Request.__dataclass_fields__}
    rest = {name: value for name, value in given.items() if name not in own}
    request = Request(corpus, **own)
    return replace(request, settings=replace(request.settings, **rest))


def finish(
    job: Job,
    out: Path,
    restart: bool = False,
    say: Callable[[Progress], None] = lambda progress: None,
    overwrite: bool = False,
) -> Pretrained:
    """Run, write the folder, and forget the state of the run. Raises ValueError for a folder that holds something."""
    check_out(out, overwrite, job.request.tokenizer, job.source.folder if job.source else None)
    state = out.with_name(out.name + ".training")
    trained = run(job, state, restart=restart, say=say)
    model = trained.model
    models = {"": model.discriminator, "generator": model.generator} if isinstance(model, Electra) else {"": model}
    write_checkpoint(models, trained.tokenizer, trained.figures, out, overwrite)
    forget(state)
    return trained
