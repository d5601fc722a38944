"""The student of a distillation, and the layers of its teacher that it begins with.

    teacher, 6 layers     embeddings   0   1   2   3   4   5   task head
                              |        |       |           |       |
    student, 3 layers     embeddings   0       1           2   task head

A layer changes the vector of a token by adding to it, so the layers fit each other well enough to begin with. The
student of a BERT is a DistilBERT, without segments and pooler; that of any other relative is a smaller one of the same
relative. All is as wide as in the teacher, whose weights fit unchanged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.config import Config
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import HEAD_CLASSES, Head
from minibert.pretraining_heads import TokenPrediction
from minibert.utils.files import AnyPath

CARRIED = (  # from the config of a BERT to that of its student
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


def layers_taken(depth: int, layers: int | None = None, take: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the layers of a teacher of `depth` layers that initialise those of the student.

    layers: how many, evenly spaced from the first to the last; None: half of them. take: these. Raises ValueError for
    a layer that the teacher does not have, and for another number of layers than those of `take`.
    """
    count = max(1, depth // 2) if layers is None else layers
    if take is None:
        take = [round(number * (depth - 1) / max(1, count - 1)) for number in range(count)]
    if not 1 <= len(take) <= depth or not set(take) <= set(range(depth)) or layers not in (None, len(take)):
        raise ValueError(
            f"layers is {layers} and take is {tuple(take)}; a student has 1 to {depth} layers, and they begin as these "
            f"layers of the teacher: 0 to {depth - 1}"
        )
    return tuple(take)


def with_layers(settings: Any, teacher: Checkpoint) -> Any:
    """Return the settings with the layers to take. Raises ValueError if a student cannot begin with them."""
    take = layers_taken(teacher.config.num_hidden_layers, settings.layers, settings.take)
    student_config(teacher.config, take)
    return replace(settings, take=take)


def check_teacher(name: AnyPath | Checkpoint, head: str) -> Checkpoint:
    """Open the teacher. Raises ValueError if no student can begin with its layers or it lacks the head."""
    teacher = Checkpoint.open(name)
    config, folder = teacher.config, teacher.folder
    if config.architecture.order != tuple(range(config.num_hidden_layers)):
        raise ValueError(
            f"{folder} is of type {config.family.title}, whose layers share their weights, so that none can be left "
            "out; the teacher can be of any type with a set of weights for each layer, such as BERT"
        )
    if not teacher.has_head(head):
        raise ValueError(
            f"{folder} has no head {head!r}; a teacher of a language is a pretrained checkpoint that predicts masked "
            "tokens (bert-base-uncased, distilbert-base-uncased, the output of `minibert pretrain`), and a teacher of "
            "a task the output of `minibert finetune classify`"
        )
    return teacher


def new_student(teacher: Head, take: Sequence[int]) -> Head:
    """Return a student with these layers of the teacher, its embeddings, and its prediction of tokens if it has one.

    Any other task head is fresh. In eval mode, on the CPU. Raises what student_config raises.
    """
    student = HEAD_CLASSES[teacher.name](student_config(teacher.config, take))
    state, theirs = student.state_dict(), teacher.state_dict()
    for name in state:
        if name.startswith("encoder.layers."):
            number, _, rest = name.removeprefix("encoder.layers.").partition(".")
            state[name] = theirs[f"encoder.layers.{take[int(number)]}.{rest}"]
        elif name.startswith("encoder.") or isinstance(student, TokenPrediction):
            state[name] = theirs[name]
    student.load_state_dict(state)
    return student.eval()


def student_config(teacher: Config, take: Sequence[int]) -> Config:
    """Return the config of a student with these layers: of a DistilBERT for a BERT, else of the same relative.

    Raises ValueError for a layer that computes otherwise in its new place, such as the first of a ModernBERT.
    """
    if teacher.family in (BERT, DISTILBERT):
        carried = {name: getattr(teacher, name) for name in CARRIED}
        sizes = {"num_hidden_layers": len(take), "num_labels": teacher.num_labels}
        return Config.from_dict({"model_type": "distilbert"} | sizes | carried)
    student = teacher.with_layers(take)
    for ours, theirs in enumerate(take):
        if kind_of_layer(student, ours) != kind_of_layer(teacher, theirs):
            raise ValueError(
                f"take is {tuple(take)}; layer {theirs} of {teacher.family.title} computes otherwise than layer {ours} "
                f"of one with {len(take)} layers, so it cannot begin as that layer"
            )
    return student


def kind_of_layer(config: Config, number: int) -> tuple[object, ...]:
    """Return what tells layers of one model apart: their modules, and their windows and angles if they have any."""
    own = config.architecture
    with torch.device("meta"):
        modules = [(name, type(module)) for name, module in own.layer(config, number).named_modules()]
    return modules, *(values[number] for values in (own.windows, own.rotary_thetas) if values)


def load_teacher(checkpoint: Checkpoint, head: str) -> Head:
    """Return a teacher: in eval mode, so without dropout, and frozen."""
    return load(checkpoint, head=head).requires_grad_(False)
