"""A student: a DistilBERT that begins as some of the layers of its teacher.

    teacher, 6 layers     embeddings   0   1   2   3   4   5   task head
                              |        |       |           |       |
    student, 3 layers     embeddings   0       1           2   task head

What is left between two layers that were not neighbours is close enough to begin with: a layer changes a token's
vector by adding to it. Segments and the pooler are cut, and all else is as wide as the teacher, whose weights fit
therefore unchanged (Sanh et al. 2019, section 2: one layer out of two; the script of its authors: 0 2 4 7 9 11 of 12).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from minibert.checkpoints.load import has_head
from minibert.config import Config
from minibert.heads import HEAD_CLASSES, Head
from minibert.pretraining_heads import TokenPrediction

STUDENT = "distilbert"
CARRIED = (  # over to the student's config; what else there is, a DistilBERT decides or lacks
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "pad_token_id",
    "tie_word_embeddings",
)
NO_HEAD = {
    "masked-lm": "guesses no masked words, and its guesses are what a student learns from; a checkpoint of pretraining "
    "does (bert-base-uncased, distilbert-base-uncased, what `minibert pretrain` wrote), a sentence encoder or a "
    "fine-tuned one does not",
    "sequence-classification": "has no classifier; a teacher of a task is what `minibert finetune classify` wrote",
}


def layers_taken(deep: int, layers: int | None = None, take: Sequence[int] | None = None) -> tuple[int, ...]:
    """Which of a teacher's `deep` layers the student's begin as.

    layers: how many, from the first to the last at equal distances; None: half of them. take: these. Raises ValueError
    for a layer that the teacher does not have.
    """
    if take is not None and layers not in (None, len(take)):
        raise ValueError(f"layers is {layers}, and take names {len(take)} layers; leave out one of the two")
    layers = len(take) if take is not None else max(1, deep // 2) if layers is None else layers
    if not 1 <= layers <= deep:
        raise ValueError(f"layers is {layers}; it must be at least 1 and at most {deep}, which the teacher has")
    if take is None:
        return tuple(round(number * (deep - 1) / max(1, layers - 1)) for number in range(layers))
    if wrong := [number for number in take if not 0 <= number < deep]:
        raise ValueError(f"take names layer {wrong[0]}; the teacher has 0 to {deep - 1}")
    return tuple(take)


def check_teacher(folder: Path, head: str) -> Config:
    """The teacher's config. Raises ValueError where no DistilBERT can begin as it, or where it lacks the task head."""
    config = Config.from_file(folder / "config.json")
    if why := unlike(config):
        raise ValueError(
            f"{folder} is of type {config.family.title}, and {why}: its layers do not fit into a DistilBERT; a BERT or "
            "a DistilBERT can be the teacher"
        )
    if not has_head(folder, head):
        raise ValueError(f"{folder} {NO_HEAD[head]}")
    return config


def unlike(config: Config) -> str:
    """What a DistilBERT cannot have; "" where there is nothing."""
    if config.first_position or not config.padding_has_position:
        return f"its positions begin at {config.first_position}, where those of a DistilBERT begin at 0"
    if len(set(config.shared_layers)) < config.num_hidden_layers:
        return "its layers share their weights, so that there is none to be left out"
    if config.embedding_size != config.hidden_size or config.always_projected:
        return "its embeddings are mapped to the width of the layers"
    return ""


def student_config(teacher: Config, layers: int) -> Config:
    """That of a DistilBERT, as wide as its teacher."""
    carried = {name: getattr(teacher, name) for name in CARRIED}
    return Config.from_dict({"model_type": STUDENT, "num_hidden_layers": layers} | carried)


def new_student(teacher: Head, take: Sequence[int]) -> Head:
    """A model with the task head of the teacher that begins as its embeddings and these of its layers.

    The prediction of tokens is the teacher's too; any other task head is fresh. In eval mode, on the CPU.
    """
    student = HEAD_CLASSES[teacher.name](student_config(teacher.config, len(take)))
    for ours, theirs in pairs(student, teacher, take):
        ours.load_state_dict(theirs.state_dict())
    return student.eval()


def pairs(student: Head, teacher: Head, take: Sequence[int]) -> list[tuple[nn.Module, nn.Module]]:
    """Modules of the student, each with the one that it begins as."""
    parts = ["encoder.embeddings.token", "encoder.embeddings.position", "encoder.embeddings.norm"]
    if isinstance(student, TokenPrediction):
        parts += ["transform", "transform_norm", "decoder"]
    same = [(student.get_submodule(part), teacher.get_submodule(part)) for part in parts]
    return [*same, *zip(student.encoder.layers, (teacher.encoder.layers[number] for number in take), strict=True)]
