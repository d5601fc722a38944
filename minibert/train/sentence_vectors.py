"""Training sentence vectors: a loss that compares all texts of a step, and the run that uses it.

The loss of a step is not a sum over its batches: a text is compared with those of all batches and ranks. So, as in
GradCache (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"):

    1. all batches without gradients   -> the vectors of all texts of the step, exchanged between the ranks
    2. each batch again, with gradients, the vectors of the others constant -> loss -> its share of the gradient

With the same dropout in both passes the shares add up to the gradient of one large batch. A step of a single batch
needs only the second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.checkpoints.sentence_files import read_stated
from minibert.heads import Head, SentenceVectors
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.packed import OutputFunction
from minibert.tasks.base import Task
from minibert.tasks.embedding import MEASURED, Embedding
from minibert.train.distributed import DistributedContext, random_states, set_random_states
from minibert.train.finetuning import FinetuneRun
from minibert.train.loop import Loss, Term
from minibert.train.settings import FinetuneSettings
from minibert.train.start import freeze
from minibert.utils.device import autocast, move


@dataclass(frozen=True)
class TextVectors:
    """The vectors of the rows of a batch, and what the loss knows about them."""

    vectors: Tensor  # (B,C,D)
    numbers: Tensor  # (B,C): equal for equal texts
    similarity: Tensor | None  # (B)


# Vectors (N,C,D), numbers (N,C) and similarities (N) of all rows of a step -> ().
CompareTexts = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class VectorLoss(Loss):
    """A loss of the vectors of all texts of a step."""

    compare: CompareTexts
    output_of: OutputFunction
    # For each batch of this rank the vectors of all other batches of the step.
    others: Sequence[Sequence[TextVectors]] = ((),)
    batches: Sequence[ExampleBatch] = ()  # of this rank
    states: Sequence[dict[str, Tensor]] = ()  # of the random numbers before each

    def of_step(self, model: Any, batches: Sequence[ExampleBatch], precision: str, context: DistributedContext) -> Self:
        """Compute the vectors of all batches, unless there is only one."""
        if len(batches) * context.size == 1:
            return self
        states, own = [], []
        for batch in batches:
            states.append(random_states(model.device))
            with torch.no_grad(), autocast(model.device, precision):
                own.append(self.vectors(model, batch))
        counted = [
            None if batch.idle else move(rows, torch.device("cpu")) for batch, rows in zip(batches, own, strict=True)
        ]
        everywhere = {
            (rank, number): move(rows, model.device)
            for rank, of_rank in enumerate(context.gather(counted))
            for number, rows in enumerate(of_rank)
            if rows is not None
        }
        others = [
            [rows for place, rows in everywhere.items() if place != (context.rank, number)]
            for number in range(len(batches))
        ]
        return replace(self, others=others, batches=batches, states=states)

    def terms(self, model: Any, batch: ExampleBatch) -> dict[str, Term]:
        """Return one term; every batch has the same share of the loss, which is that of the whole step."""
        return {"loss": Term(0.0 if batch.idle else 1.0)}

    def means(self, model: Any, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return the loss of the step; its gradient is that of this batch, times the number of batches."""
        number = next((at for at, other in enumerate(self.batches) if other is batch), 0)
        if self.states:
            set_random_states(self.states[number], model.device)
        all_rows = [self.vectors(model, batch), *self.others[number]]
        similarity = [rows.similarity for rows in all_rows if rows.similarity is not None]
        loss = self.compare(
            torch.cat([rows.vectors for rows in all_rows]),
            torch.cat([rows.numbers for rows in all_rows]),
            torch.cat(similarity) if similarity else None,
        )
        # The loop gives each batch an equal share, and the shares of the gradient are a sum.
        return {"loss": loss.detach() + len(all_rows) * (loss - loss.detach()) if self.states else loss}

    def vectors(self, model: Any, batch: ExampleBatch) -> TextVectors:
        """Return the vectors of a batch, in float32 even if the model computes in bfloat16."""
        labels: dict[str, Any] = move(batch.labels, model.device)
        vectors = self.output_of(model, replace(batch, choices=0, labels={})).logits  # (B·C,D)
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        return TextVectors(vectors.unflatten(0, (-1, batch.choices)), labels["numbers"], labels.get("similarity"))


@dataclass(frozen=True)
class EmbeddingRun(FinetuneRun):
    """Texts that belong together, and a checkpoint without a task head."""

    task: Embedding

    @classmethod
    def of(
        cls, task: Task, data: Any, dev: Any, settings: FinetuneSettings, checkpoint: Checkpoint | None = None
    ) -> Self:
        """Check and encode; pooling, normalize and dimensions become what the files of the checkpoint state.

        Raises ValueError for data that cannot be learned.
        """
        if dev is not None:
            try:
                Embedding.check_measurable(dev)
            except ValueError as error:
                raise ValueError("dev cannot be measured: " + str(error)) from None
        run = super().of(task, data, dev, settings, checkpoint)
        rows = min(settings.batch_size * settings.accumulate, len(data))
        if rows < 2 and len(data.columns) < 3:
            raise ValueError(
                f"a step has {rows} row, and a text is compared with those of other rows; choose a batch of 2 rows or "
                "more"
            )
        stated = read_stated(run.checkpoint)
        pooling = run.task.pooling
        if pooling == "auto":
            pooling = stated.pooling if stated else "mean"
        if pooling == "max":
            raise ValueError(
                f"{run.checkpoint.folder} states pooling max, which is not trained; choose pooling mean or cls"
            )
        normalize = bool(stated and stated.normalize) if run.task.normalize is None else run.task.normalize
        dimensions = stated.dimensions if stated else None
        return replace(run, task=replace(run.task, pooling=pooling, normalize=normalize, dimensions=dimensions))

    @property
    def main(self) -> str:
        """Return the main figure on dev: spearman of similarities, mrr@10 of pairs."""
        return self.task.main if self.dev is None else MEASURED[self.dev.similarity is not None]

    def new_model(self) -> Head:
        """Return the checkpoint with the pooling of the task, frozen as the settings say."""
        task = self.task
        model = SentenceVectors(load(self.checkpoint), task.pooling, bool(task.normalize), task.dimensions)
        return freeze(model, self.settings.freeze)

    def loss_of(self, output_of: OutputFunction) -> Loss:
        """Return the loss of the vectors of all texts of a step."""
        return VectorLoss(self.task.step_loss, output_of)
