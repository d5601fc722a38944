"""Trainings that train/test_distributed.py runs in one process and in two.

    torchrun --nproc-per-node 2 -m support.ranks FOLDER

Each rank writes its last weights to FOLDER/CASE-RANK.safetensors. Without transformers, which takes longer to import
than all of it takes to compute.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor

from minibert.config import Config
from minibert.heads import HEAD_CLASSES, Head, SentenceVectors
from minibert.inputs import IGNORED
from minibert.prediction import packed
from minibert.prediction.packed import packed_output
from minibert.tasks.base import Example
from minibert.tasks.embedding import Embedding
from minibert.train.batches import Batches
from minibert.train.checkpointer import Checkpointer
from minibert.train.distillation import Distillation
from minibert.train.distributed import DistributedContext, context
from minibert.train.loop import Loss, Progress, WeightedLoss, new_optimizer, packed_loss, readable_loss, train
from minibert.train.objectives import OBJECTIVES
from minibert.train.pretraining import PretrainRun
from minibert.train.sentence_vectors import VectorLoss
from minibert.train.settings import DistillSettings, PretrainSettings, TrainSettings
from support import training
from support.training import VOCABULARY, WIDTH

LABELS = 3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": WIDTH,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# Batches of 4 rows, the last of an epoch of 17 being one row, which one of two ranks has not. With two batches to a
# step an epoch has three steps, the last of this one row alone.
ROWS = 17
TWENTY = TrainSettings(epochs=7, batch_size=4, learning_rate=1e-3, accumulate=2, epsilon=1e-6)

CONFIG = {"seed": 0, "processes": 1, "tokenizer": "words"}  # what every run states of itself


def examples(head: str) -> list[Example]:
    """Random rows of different lengths; of the masked LM every third without a masked token."""
    found = training.examples(head, training.lengths_of(ROWS, seed=1), seed=1)
    if head in ("masked-lm", "pretraining"):
        for example in found[::3]:
            example.labels["labels"] = [IGNORED] * len(example.ids)
    return found


def new_model(head: str, seed: int = 3, **sizes: Any) -> Head:
    """A random model, the same each time; all that a fresh one has at 0 or 1 is random too."""
    torch.manual_seed(seed)
    outputs = {} if head == "question-answering" else {"id2label": {str(k): f"L{k}" for k in range(LABELS)}}
    model = HEAD_CLASSES[head](Config.from_dict({"model_type": "bert"} | SIZES | outputs | sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@dataclass(frozen=True)
class Case:
    head: str
    loss_of: Callable[[], Loss] = lambda: packed_loss
    settings: TrainSettings = TWENTY
    sizes: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def new_model(self) -> Head:
        return new_model(self.head, **self.sizes).to(self.dtype)

    def batches(self, context: DistributedContext) -> Batches:
        return Batches(examples(self.head), self.settings.batch_size, 0, 0, rank=context.rank, ranks=context.size)

    def run(self, context: DistributedContext, folder: Path) -> Ended:
        """Train; checkpoints are kept in the folder, and resumed."""
        context.start("cpu")
        model = self.new_model()
        context.seed(self.settings.seed)
        optimizer = new_optimizer(model, self.settings)
        batches = self.batches(context)
        with Checkpointer(folder, CONFIG, context=context) as checkpointer:
            progress = checkpointer.resume(model, optimizer)
            how: dict[str, Any] = {"progress": progress, "optimizer": optimizer, "context": context}
            for progress in train(model, batches, self.settings, loss_of=self.loss_of(), **how):
                if progress.batch and progress.step % 4 == 0:
                    checkpointer.save(progress, model, optimizer)
        return Ended(progress, {name: value.detach().clone() for name, value in model.named_parameters()})


@dataclass(frozen=True)
class VectorCase(Case):
    """Pairs of texts, each of which must find the other."""

    def new_model(self) -> Head:
        return SentenceVectors(new_model("masked-lm", **self.sizes).encoder, "mean")

    def batches(self, context: DistributedContext) -> Batches:
        return replace(super().batches(context), examples=training.pairs_of_texts(ROWS), choices=2)


@dataclass
class Ended:
    progress: Progress
    weights: dict[str, Tensor]


def weighted() -> Loss:
    """Texts that count unevenly."""
    return WeightedLoss(torch.linspace(0.2, 5.0, ROWS), packed_output)


def distilled() -> Loss:
    """The predictions of a teacher."""
    return Distillation(new_model("masked-lm", seed=5).requires_grad_(False), DistillSettings())


def of_vectors(kind: type[VectorLoss] = VectorLoss) -> Loss:
    """Which text belongs to which."""
    return kind(Embedding().step_loss, packed_output)


class OwnTexts(VectorLoss):
    """A mistake: each batch of each rank is compared only with itself."""

    def of_step(self, *_: Any) -> VectorLoss:
        return self


CASES: dict[str, Case] = {
    "classify": Case("sequence-classification"),
    "weighted": Case("sequence-classification", weighted, replace(TWENTY, accumulate=1, epochs=4)),
    # The same number added to all scores changes nothing: the gradient of their bias is rounding, which Adam enlarges.
    "answer": Case("question-answering", lambda: readable_loss, replace(TWENTY, epsilon=1e-4)),
    "mlm+nsp": Case("pretraining", OBJECTIVES["mlm+nsp"]),
    "mlm": Case("masked-lm", settings=replace(TWENTY, batch_size=2, accumulate=1, epochs=3)),
    "distill": Case("masked-lm", distilled),
    "vectors": VectorCase("masked-lm", of_vectors),
}
CASES |= {f"{name}, double": replace(CASES[name], dtype=torch.float64) for name in ("answer", "mlm+nsp")}
CASES["readable"] = Case("pretraining", lambda: OBJECTIVES["mlm+nsp"]("readable"))
CASES["fast parts"] = replace(CASES["mlm+nsp"], settings=replace(TWENTY, exact=False))
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


class MeanOfMeans(DistributedContext):
    """A mistake: each rank takes the mean of its own rows, as if the others had as many."""

    def sum(self, values: Tensor) -> Tensor:
        return values.clamp(min=1) * self.size if values.dtype == torch.float64 else super().sum(values)


class NeverSummed(DistributedContext):
    """A mistake: gradients are not summed."""

    def no_sync(self, unless: bool) -> AbstractContextManager[None]:
        return super().no_sync(False)


class LeftOut(DistributedContext):
    """A mistake: gradients of a step in which a loss is left out are not averaged."""

    def average_gradients(self, model: torch.nn.Module) -> None:
        pass


class OneState(DistributedContext):
    """A mistake: all ranks continue with the random state of the first."""

    def set_random_states(self, states: dict[str, Tensor], device: torch.device) -> None:
        torch.set_rng_state(states["random"])


MISTAKES = {
    "mean of means": ("classify", MeanOfMeans),
    "never summed": ("classify", NeverSummed),
    "left out": ("mlm+nsp", LeftOut),
}


def cast_weights(name: str, folder: Path) -> Iterator[tuple[str, Ended]]:
    """A training in bfloat16 whose weights autocast casts, and one whose weights are cast together, as on CUDA."""
    case = replace(CASES[name], settings=replace(CASES[name].settings, epochs=2, precision="bfloat16"))
    for ending, devices in (("one by one", ["cpu"]), ("together", [])):
        with (
            mock.patch.object(packed, "CAST_ONE_BY_ONE", devices),
            mock.patch.object(packed, "cast_together", wraps=packed.cast_together) as casts,
        ):
            yield f"{name}, {ending}", case.run(context(), folder / f"{name}, {ending}")
        assert bool(casts.call_count) == (ending == "together")


def resumed(name: str, folder: Path) -> Iterator[tuple[str, Ended]]:
    """A training with dropout, and its second half once more, from the state that was saved in the middle."""
    case = replace(CASES[name], sizes=DROPOUT)
    yield f"{name}, whole", case.run(context(), folder)
    for ending, kind in (("resumed", DistributedContext), ("resumed wrongly", OneState)):
        if context().is_main:
            max(folder.glob("state-*")).unlink()
        yield f"{name}, {ending}", case.run(kind(context().rank, context().size), folder)


# ---------------------------------------------------------------------------------------------------------------
# A corpus


def write_corpus(folder: Path) -> None:
    """A tokenizer of a few words, the config of a model, and documents about one thing each."""
    words = ["good", "fine", "lovely", "bad", "dull", "awful", "film", "book", "play", "meal", "very", "the"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | SIZES | {"vocab_size": len(vocabulary)}))
    lines = [f"the {words[6 + row % 4]} very {words[row % 6]}\n" for row in range(200)]
    (folder / "corpus.txt").write_text("".join(line + "\n" * (row % 3 == 2) for row, line in enumerate(lines)))


def corpus_run(folder: Path) -> PretrainRun:
    """Ten steps on it, in windows of 400 bytes."""
    how: dict[str, Any] = {"steps": 10, "batch_size": 4, "max_length": WIDTH, "accumulate": 2, "epsilon": 1e-6}
    settings = PretrainSettings(tokenizer=str(folder), config=str(folder / "config.json"), precision="float32", **how)
    run = PretrainRun.of(folder / "corpus.txt", settings)
    return replace(run, corpus=replace(run.corpus, window=400))


def trainings(folder: Path) -> Iterator[tuple[str, Ended]]:
    for name, case in CASES.items():
        yield name, case.run(context(), folder / name)
    for name, (case, kind) in MISTAKES.items():
        yield name, CASES[case].run(kind(context().rank, context().size), folder / name)
    yield "own texts", replace(CASES["vectors"], loss_of=lambda: of_vectors(OwnTexts)).run(context(), folder / "own")
    yield from cast_weights("mlm+nsp", folder)
    yield from resumed("classify", folder / "classify, saved")
    done = corpus_run(folder).train(folder / "run")
    weights = {name: value.detach() for name, value in done.model.named_parameters()}
    yield "corpus", Ended(Progress(curve=done.figures["curve"]), weights)


def main(folder: Path) -> None:
    for name, ended in trainings(folder):
        save_file(ended.weights, folder / f"{name}-{context().rank}.safetensors")
        (folder / f"{name}-{context().rank}.json").write_text(json.dumps(ended.progress.curve))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
