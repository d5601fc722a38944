"""Who trains in `minibert bench --train`: minibert, and transformers' own Trainer as its users have it.

Each is loaded in a process of its own and learns from rows of ids, tokenized before: one epoch for each call, the
weights and the optimizer going on from call to call. Both are given the same batches in the same order, padded in the
same way, and the same recipe; each has its own attention, optimizer, clipping and loop.

    classify   sentences with a label, as `minibert finetune classify` has them
    mlm        sentences packed into rows of 128 tokens, whose words each hides by its own means as the rows come by
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from minibert.bench.backends import SHAPES, Backend, Loaded, Setting, Vectors, write_shape
from minibert.bench.session import MINILM
from minibert.checkpoints.hub import locate
from minibert.checkpoints.load import load, save
from minibert.kernels.products import permitted
from minibert.parity.checkpoints import quiet, upstream_class
from minibert.tasks.base import Example
from minibert.text.masking import RATE, Masking
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train.batches import Batches, order
from minibert.train.loop import Loss, Settings, new_optimizer, packed_loss, train
from minibert.train.pairs import Packing
from minibert.train.stream import masked

HEADS = {"classify": "sequence-classification", "mlm": "masked-lm"}  # by what is learned
BATCH = 32  # rows in a step
LENGTH = 128  # tokens of a row that sentences are packed into
NO_CLIP = 1e9  # longer than any gradient
SEED = 0  # of the order of the rows, of dropout, and of a fresh task head


def write_checkpoint(model: str, folder: Path, objective: str) -> None:
    """The checkpoint with its task head on top, fresh where it has none, and its tokenizer: what both begin from."""
    if model in SHAPES:
        write_shape(model, folder, locate(MINILM).folder)
    source = folder if model in SHAPES else locate(model).folder
    torch.manual_seed(SEED)  # in a process of its own
    labels = 2 if objective == "classify" else None
    save(load(source, head=HEADS[objective], new_head=True, num_labels=labels), folder)
    load_tokenizer(source).save(folder)


def examples_of(objective: str, texts: Sequence[str], tokenizer: Tokenizer) -> list[Example]:
    """Texts with a label, 0 and 1 in turn, which changes nothing of the work; or one text after the other in rows."""
    if objective == "classify":
        rows = tokenizer.ids(texts)
        return [Example(ids, [0] * len(ids), {"labels": number % 2}) for number, ids in enumerate(rows)]
    document = [list(made.ids) for made in tokenizer.encode_each(texts)]
    return Packing("mlm", LENGTH, tokenizer.template).rows([document], Random(SEED))


def recipe(precision: str, exact: bool, objective: str = "classify") -> Settings:
    """One epoch as in BERT's paper. exact: to the bit, with the plain AdamW.

    The length of all gradients is a sum over the parameters in their order, and transformers has those of a masked LM
    in another one: its last bit differs, and with it all that is clipped. So to the bit means there, without clipping.
    """
    clip = NO_CLIP if exact and objective == "mlm" else Settings.clip
    return Settings(epochs=1, batch_size=BATCH, seed=SEED, precision=precision, clip=clip, fused=not exact, exact=exact)


def batches_of(objective: str, examples: Sequence[Example], tokenizer: Tokenizer) -> Batches:
    """The same for everyone; words are hidden when a batch is asked for."""
    change = None
    if objective == "mlm":
        masking = Masking.of(tokenizer, seed=SEED)

        def change(row: Example, epoch: int, number: int) -> Example:
            return masked(row, masking, number)

    return Batches(examples, BATCH, SEED, tokenizer.pad_id, change=change)


class Ours:
    """minibert's loop: examples -> the loss of each step of an epoch."""

    def __init__(
        self, setting: Setting, precision: str, loss_of: Loss, exact: bool, objective: str = "classify"
    ) -> None:
        self.model, self.tokenizer = load(setting.folder, head=HEADS[objective]), load_tokenizer(setting.folder)
        self.settings, self.loss_of, self.objective = recipe(precision, exact, objective), loss_of, objective
        self.optimizer = new_optimizer(self.model, self.settings)

    def __call__(self, examples: Sequence[Example]) -> Vectors:
        """Learn for one epoch."""
        torch.manual_seed(SEED)
        batches = batches_of(self.objective, examples, self.tokenizer)
        progress = train(self.model, batches, self.settings, loss_of=self.loss_of, optimizer=self.optimizer)
        return np.array(progress.curve, dtype=np.float32)


def load_ours(setting: Setting, precision: str, objective: str = "classify") -> Loaded:
    """Without padding, with quick products and torch's fused AdamW: the defaults of `minibert finetune`, `pretrain`."""
    products = ", products by oneDNN" if precision == "float32" and permitted() else ""
    return Ours(setting, precision, packed_loss, False, objective), f"packed step{products}, AdamW fused"


class InOurOrder:
    """Batches as the Trainer asks for them: something with a length that is gone through once an epoch.

    collator: makes a batch of rows, and hides words in them, in place of ours.
    """

    def __init__(self, batches: Batches, segments: bool, collator: Callable[..., Any] | None = None) -> None:
        self.batches, self.segments, self.collator = batches, segments, collator

    def __len__(self) -> int:
        return self.batches.an_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        torch.manual_seed(SEED)
        if self.collator is not None:
            rows = [{"input_ids": list(row.ids)} for row in self.batches.examples]
            shuffled = order(len(rows), SEED, 0)
            for start in range(0, len(rows), BATCH):
                yield dict(self.collator([rows[number] for number in shuffled[start : start + BATCH]]))
            return
        for batch in self.batches.of_epoch(0):
            given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
            yield given | ({"token_type_ids": batch.token_type_ids} if self.segments else {}) | batch.labels


class Theirs:
    """transformers' Trainer: examples -> the mean loss of an epoch. collator: words are hidden by its own."""

    def __init__(
        self,
        setting: Setting,
        precision: str,
        attention: str | None,
        objective: str = "classify",
        collator: bool = False,
        exact: bool = False,
        **arguments: Any,
    ) -> None:
        library: Any = importlib.import_module("transformers")
        family = load(setting.folder).config.family
        options = {"attn_implementation": attention} if attention else {}
        settings = recipe(precision, exact, objective)
        with quiet():
            self.model: Any = upstream_class(family, HEADS[objective]).from_pretrained(setting.folder, **options)
            asked = library.TrainingArguments(
                output_dir=str(setting.converted / "trainer"),
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                warmup_steps=settings.warmup,  # a share of the steps
                weight_decay=settings.weight_decay,
                max_grad_norm=settings.clip,
                bf16=precision == "bfloat16",
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                **arguments,
            )
            self.trainer = library.Trainer(model=self.model, args=asked)
            self.collator = None
            if collator:
                theirs = library.AutoTokenizer.from_pretrained(setting.folder)
                self.collator = library.DataCollatorForLanguageModeling(theirs, mlm_probability=RATE)
        self.words = f"attention {self.model.config._attn_implementation}, {asked.optim.value}"
        self.words += f", {type(self.collator).__name__}" if collator else ""
        self.segments, self.objective, self.tokenizer = family.has_segments, objective, load_tokenizer(setting.folder)

    def __call__(self, examples: Sequence[Example]) -> Vectors:
        """Learn for one epoch."""
        batches = batches_of(self.objective, examples, self.tokenizer)
        self.trainer.get_train_dataloader = lambda: InOurOrder(batches, self.segments, self.collator)
        with quiet():
            return np.array([self.trainer.train().training_loss], dtype=np.float32)


def load_trainer(setting: Setting, precision: str, objective: str = "classify") -> Loaded:
    """With the attention, the optimizer and, for masked words, the collator that it takes by itself."""
    theirs = Theirs(setting, precision, None, objective, collator=objective == "mlm")
    return theirs, theirs.words


def ways_of(objective: str) -> tuple[Backend, ...]:
    """Everybody who learns this."""
    return tuple(
        Backend(f"{name}-{precision}", title, precision, partial(loader, objective=objective), package)
        for precision in ("float32", "bfloat16")
        for name, title, loader, package in (
            ("minibert", "minibert", load_ours, "minibert"),
            ("trainer", "transformers' Trainer", load_trainer, "accelerate"),
        )
    )
