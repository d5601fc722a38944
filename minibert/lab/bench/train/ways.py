"""Who trains in `minibert bench --train`: minibert, and transformers' own Trainer as its users have it.

Each is loaded in a process of its own and learns from rows of ids, tokenized before: one epoch for each call, the
weights and the optimizer going on from call to call. Both are given the same batches in the same order, padded in the
same way, and the same recipe; each has its own attention, optimizer, clipping and loop.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minibert.checkpoints.hub import locate
from minibert.checkpoints.load import load, save
from minibert.lab.bench.backends import SHAPES, Backend, Loaded, Setting, Vectors, write_shape
from minibert.lab.bench.session import MINILM
from minibert.lab.parity.checkpoints import quiet, upstream_class
from minibert.tasks.base import Example
from minibert.text.tokenizer import load_tokenizer
from minibert.train.batches import Batches
from minibert.train.loop import Loss, Settings, new_optimizer, packed_loss, train

HEAD = "sequence-classification"
BATCH = 32  # texts in a step
SEED = 0  # of the order of the rows, and of dropout


def write_checkpoint(model: str, folder: Path) -> None:
    """The checkpoint with a fresh classifier on top, and its tokenizer: what both begin from."""
    if model in SHAPES:
        write_shape(model, folder, locate(MINILM).folder)
    source = folder if model in SHAPES else locate(model).folder
    torch.manual_seed(SEED)  # in a process of its own
    save(load(source, head=HEAD, new_head=True, num_labels=2), folder)
    load_tokenizer(source).save(folder)


def examples_of(rows: Sequence[Sequence[int]]) -> list[Example]:
    """Rows of ids with a label each, 0 and 1 in turn: which label it is changes nothing of the work."""
    return [Example(ids, [0] * len(ids), {"labels": number % 2}) for number, ids in enumerate(rows)]


def recipe(precision: str, fused: bool) -> Settings:
    """One epoch as in BERT's paper."""
    return Settings(epochs=1, batch_size=BATCH, seed=SEED, precision=precision, fused=fused)


def batches_of(examples: Sequence[Example], pad_id: int) -> Batches:
    """The same for everyone."""
    return Batches(examples, BATCH, SEED, pad_id)


class Ours:
    """minibert's loop: examples -> the loss of each step of an epoch."""

    def __init__(self, setting: Setting, precision: str, loss_of: Loss, fused: bool) -> None:
        self.model = load(setting.folder, head=HEAD)
        self.settings, self.loss_of = recipe(precision, fused), loss_of
        self.optimizer = new_optimizer(self.model, self.settings)

    def __call__(self, examples: Sequence[Example]) -> Vectors:
        """Learn for one epoch."""
        torch.manual_seed(SEED)
        batches = batches_of(examples, self.model.config.pad_token_id)
        progress = train(self.model, batches, self.settings, loss_of=self.loss_of, optimizer=self.optimizer)
        return np.array(progress.curve, dtype=np.float32)


def load_ours(setting: Setting, precision: str, loss_of: Loss = packed_loss, fused: bool = True) -> Loaded:
    """Without padding and with torch's fused AdamW, which are the defaults of `minibert finetune`."""
    return Ours(setting, precision, loss_of, fused), f"{loss_of.__name__}, AdamW{' fused' * fused}"


class InOurOrder:
    """Batches as the Trainer asks for them: something with a length that is gone through once an epoch."""

    def __init__(self, batches: Batches, segments: bool) -> None:
        self.batches, self.segments = batches, segments

    def __len__(self) -> int:
        return self.batches.an_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        torch.manual_seed(SEED)
        for batch in self.batches.of_epoch(0):
            given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
            yield given | ({"token_type_ids": batch.token_type_ids} if self.segments else {}) | batch.labels


class Theirs:
    """transformers' Trainer: examples -> the mean loss of an epoch."""

    def __init__(self, setting: Setting, precision: str, attention: str | None, **arguments: Any) -> None:
        library: Any = importlib.import_module("transformers")
        family = load(setting.folder).config.family
        options = {"attn_implementation": attention} if attention else {}
        settings = recipe(precision, fused=True)
        with quiet():
            self.model: Any = upstream_class(family, HEAD).from_pretrained(setting.folder, **options)
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
        self.words = f"attention {self.model.config._attn_implementation}, {asked.optim.value}"
        self.segments, self.pad_id = family.has_segments, int(self.model.config.pad_token_id)

    def __call__(self, examples: Sequence[Example]) -> Vectors:
        """Learn for one epoch."""
        batches = batches_of(examples, self.pad_id)
        self.trainer.get_train_dataloader = lambda: InOurOrder(batches, self.segments)
        with quiet():
            return np.array([self.trainer.train().training_loss], dtype=np.float32)


def load_trainer(setting: Setting, precision: str, attention: str | None = None, **arguments: Any) -> Loaded:
    """With the attention and the optimizer that it takes by itself, unless others are named."""
    theirs = Theirs(setting, precision, attention, **arguments)
    return theirs, theirs.words


WAYS = tuple(
    Backend(f"{name}-{precision}", title, precision, loader, package)
    for precision in ("float32", "bfloat16")
    for name, title, loader, package in (
        ("minibert", "minibert", load_ours, "minibert"),
        ("trainer", "transformers' Trainer", load_trainer, "accelerate"),
    )
)
