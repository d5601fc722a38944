"""Training: minibert beside transformers' own Trainer, used as its users use it.

Both learn from rows of ids, tokenized beforehand. A turn is one epoch; weights and optimizer carry over to the next.
Both get the same batches in the same order with the same padding, and the same recipe. Each has its own attention,
optimizer, clipping and loop.

    classify   sentences with a label, as in `minibert finetune classify`
    mlm        sentences packed into rows of 128 tokens, with the same tokens masked

Speed that is gained by leaving something out would prove nothing, so equality comes first. After a few readable steps,
minibert's weights must equal those of the Trainer (eager attention, unfused AdamW) bit for bit, dropout included. The
packed step sums in another order; its loss and gradients must agree with those of the readable step.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from minibert.bench import embed, peers
from minibert.bench.harness import Benchmark, Session
from minibert.bench.plan import BenchSettings
from minibert.bench.results import BenchRow, Contestant, Context
from minibert.checkpoints import load as checkpoints
from minibert.heads import Head
from minibert.hooks import Place
from minibert.kernels.parts import with_parts
from minibert.kernels.training import onednn_is_float32
from minibert.parity import compare
from minibert.parity.checkpoints import quiet, upstream_class
from minibert.prediction.collate import ExampleBatch
from minibert.quick import QUICK
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train import batches, loop
from minibert.train.batches import Packing, masked
from minibert.train.settings import TrainSettings
from minibert.utils.printing import progress_bar

HEADS = {"classify": "sequence-classification", "mlm": "masked-lm"}  # by objective
BATCH = 32  # rows in a step
LENGTH = 128  # tokens of a row that sentences are packed into
NO_CLIP = 1e9  # larger than any gradient norm
SEED = 0  # of the order of the rows, of dropout, and of a new task head
STEPS = 3  # that are compared
WARM_UP = 2  # steps that are not timed
TOLERANCE = 1e-5  # relative, between the packed and the readable step


def prepare(model: str, scratch: Path, settings: BenchSettings) -> Path:
    """Write the checkpoint that both start from: tokenizer and task head, a new one if there is none."""
    source = peers.checkpoint_folder(model, scratch, settings)
    folder = scratch / "checkpoint"
    torch.manual_seed(SEED)  # in a process of its own
    labels = 2 if settings.objective == "classify" else None
    head = checkpoints.load(source, head=HEADS[settings.objective], new_head=True, num_labels=labels)
    checkpoints.save(head, folder, load_tokenizer(source))
    return folder


def make_examples(objective: str, texts: Sequence[str], tokenizer: Tokenizer) -> list[Example]:
    """Return the texts with labels 0 and 1 in turn, which do not change the work; or all texts packed into rows."""
    if objective == "classify":
        return [Example(ids, [0] * len(ids), {"labels": number % 2}) for number, ids in enumerate(tokenizer.ids(texts))]
    document = [list(encoding.ids) for encoding in tokenizer.encode_each(texts)]
    return Packing(None, LENGTH, tokenizer.template).rows([document], Random(SEED))


def make_batches(objective: str, examples: Sequence[Example], tokenizer: Tokenizer) -> batches.Batches:
    """Return the same batches for both sides; tokens are masked when a batch is made."""
    masking = Masking.of(tokenizer, seed=SEED) if objective == "mlm" else None
    augment = None if masking is None else lambda row, epoch, number: masked(row, masking, number)
    return batches.Batches(examples, BATCH, SEED, tokenizer.pad_id, augment=augment)


def recipe(precision: str, objective: str, exact: bool) -> TrainSettings:
    """Return the settings of one epoch as in BERT's paper. exact: equal to the Trainer bit for bit, with unfused AdamW.

    The gradient norm is summed in the order of the parameters, which differs in transformers' masked LM. So its
    rounding differs, and with it all clipped gradients. The exact recipe of a masked LM therefore does not clip.
    """
    clip = NO_CLIP if exact and objective == "mlm" else TrainSettings.clip
    return TrainSettings(1, BATCH, seed=SEED, precision=precision, clip=clip, fused=not exact, exact=exact)


class MinibertTrainer:
    """minibert's loop: examples -> the loss of each step. exact: the readable step, else the packed one.

    The packed step has the defaults of `minibert finetune` and `pretrain`: fast matmuls and torch's fused AdamW.
    """

    def __init__(self, context: Context, precision: str, objective: str, exact: bool = False) -> None:
        self.objective = objective
        self.settings = recipe(precision, objective, exact)
        self.model = checkpoints.load(context.folder, device=context.device, head=HEADS[objective])
        self.tokenizer = load_tokenizer(context.folder)
        self.loss = loop.readable_loss if exact else loop.packed_loss
        self.optimizer = loop.new_optimizer(self.model, self.settings)
        quick = context.device == "cpu" and precision == "float32"
        self.route = f"packed step{', matmul by oneDNN' * (quick and onednn_is_float32())}, AdamW fused"

    def __call__(self, examples: Sequence[Example]) -> peers.Vectors:
        """Train for one epoch."""
        torch.manual_seed(SEED)
        made = make_batches(self.objective, examples, self.tokenizer)
        *_, progress = loop.train(self.model, made, self.settings, loss_of=self.loss, optimizer=self.optimizer)
        return np.array(progress.curve, dtype=np.float32)


class TransformersTrainer:
    """transformers' Trainer: examples -> the mean loss. exact: eager attention and unfused AdamW, else its defaults."""

    def __init__(self, context: Context, precision: str, objective: str, exact: bool = False) -> None:
        import transformers

        self.objective = objective
        self.tokenizer = load_tokenizer(context.folder)
        self.family = checkpoints.load(context.folder).config.family
        settings = recipe(precision, objective, exact)
        with quiet():
            upstream = upstream_class(self.family, HEADS[objective])
            attention = {"attn_implementation": "eager"} if exact else {}
            self.model: Any = upstream.from_pretrained(context.folder, **attention)
            arguments = transformers.TrainingArguments(
                output_dir=str(context.scratch / "trainer"),
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                warmup_steps=settings.warmup,  # a ratio
                weight_decay=settings.weight_decay,
                max_grad_norm=settings.clip,
                bf16=precision == "bfloat16",
                use_cpu=context.device == "cpu",
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                **({"optim": "adamw_torch"} if exact else {}),
            )
            self.trainer = transformers.Trainer(model=self.model, args=arguments)
        self.route = f"attention {self.model.config._attn_implementation}, {arguments.optim.value}"

    def batches(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return our batches, and seed the generator that dropout draws from."""
        torch.manual_seed(SEED)
        fields = ["input_ids", "attention_mask"] + ["token_type_ids"] * self.family.has_segments
        made = make_batches(self.objective, examples, self.tokenizer).epoch_batches(0)
        return [{name: getattr(batch, name) for name in fields} | batch.labels for batch in made]

    def __call__(self, examples: Sequence[Example]) -> peers.Vectors:
        """Train for one epoch."""
        self.trainer.get_train_dataloader = lambda: self.batches(examples)
        with quiet():
            return np.array([self.trainer.train().training_loss], dtype=np.float32)


def load_side(
    context: Context, precision: str, side: type[MinibertTrainer | TransformersTrainer], objective: str
) -> peers.Loaded:
    """Return a trainer and its route."""
    loaded = side(context, precision, objective)
    return loaded, loaded.route


def contestants_for(objective: str) -> list[Contestant]:
    """Return both sides in both precisions."""
    sides = (
        ("minibert", "minibert", MinibertTrainer, "minibert"),
        ("trainer", "transformers' Trainer", TransformersTrainer, "accelerate"),
    )
    return [
        Contestant(f"{name}-{precision}", title, precision, partial(load_side, side=side, objective=objective), package)
        for precision in ("float32", "bfloat16")
        for name, title, side, package in sides
    ]


# ---------------------------------------------------------------------------------------------------------------
# Equality


def compare_training(context: Context, examples: Sequence[Example], objective: str) -> tuple[int, int, float]:
    """Train both sides for STEPS, and compare the packed with the readable step on the first batch.

    Returns the number of parameters, how many of them are not bit-identical, and the relative difference of the packed
    step.
    """
    some = examples[: STEPS * BATCH]
    theirs = TransformersTrainer(context, "float32", objective, exact=True)
    ours = MinibertTrainer(context, "float32", objective, exact=True)
    first = make_batches(objective, some, ours.tokenizer).of_rows(range(min(BATCH, len(some))))
    packed = packed_difference(ours.model, first)
    theirs(some)
    ours(some)
    pairs = compare.parameter_pairs(ours.model, theirs.model)
    return len(pairs), sum(other is None or not torch.equal(mine, other) for _, mine, other in pairs), packed


def packed_difference(model: Head, batch: ExampleBatch) -> float:
    """Return the largest relative difference of loss and gradients between both steps, without dropout."""
    packed = with_parts(copy.deepcopy(model), QUICK).eval()
    readable = copy.deepcopy(model).eval()
    loss = loop.packed_loss(packed, batch)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    expected = loop.readable_loss(readable, batch)
    expected.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    compared = [compare.compare_tensor(compare.LOSSES, Place("loss"), loss, expected, TOLERANCE)]
    compared += compare.compare_parameters(compare.GRADIENTS, packed, readable, lambda p: p.grad, TOLERANCE)
    # A gradient that one side lacks has no allowed difference.
    return max(
        (TOLERANCE * r.largest / r.allowed if r.allowed else np.inf for r in compared if not r.equal), default=0.0
    )


# ---------------------------------------------------------------------------------------------------------------
# The stages of the measurement


def load(session: Session) -> None:
    """Compare both sides, then load every contestant and warm it up with a few steps.

    Raises ValueError if there are too few sentences for two steps.
    """
    embed.find_texts(session)
    result = session.result
    objective = session.settings.objective
    session.work = make_examples(objective, session.work, session.tokenizer)
    if len(session.work) <= BATCH:
        raise ValueError(
            f"{len(result.lengths)} sentences make {len(session.work)} rows; more than {BATCH} are needed, because the "
            "learning rate of the first step is 0 and nothing would be compared; increase --sentences"
        )
    parameters, differing, packed = session.call(
        compare_training, replace(session.context, device="cpu"), session.work, objective
    )
    result.notes["equality"] = (
        f"after {STEPS} readable steps, {parameters - differing} of {parameters} parameters equal the Trainer's bit "
        f"for bit (float32, unfused AdamW{', no clipping' if objective == 'mlm' else ''}); the packed step is within "
        f"{packed:.1e} of the readable one, at most {TOLERANCE:.0e} is allowed"
    )
    if not parameters or differing or not packed <= TOLERANCE:
        result.failures.append(result.notes["equality"])
    result.lengths = [len(example.ids) for example in session.work]
    rows = session.enter(contestants_for(objective), {"tokens": sum(result.lengths)})
    session.load(rows)
    session.turn(rows, session.work[: WARM_UP * BATCH], counts=False)


def check_losses(row: BenchRow, losses: peers.Vectors) -> None:
    """Leave a contestant out of the ranking if a loss is not finite."""
    row.reason = "" if np.isfinite(losses).all() else "its loss is not finite"


def rounds(session: Session) -> None:
    """In each round, every contestant trains for an epoch in turn."""
    for _ in progress_bar(range(session.settings.rounds), "rounds"):
        session.turn(session.result.rows, session.work, check_losses)


BENCHMARK = Benchmark(prepare, (load, rounds))
