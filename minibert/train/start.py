"""The model with which fine-tuning starts: its task head kept or new, some of its layers frozen."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.heads import Head
from minibert.tables.columns import listed
from minibert.tasks.base import Task
from minibert.tasks.names import in_order_of


def fitting_labels(checkpoint: Checkpoint, task: Task, labels: list[str]) -> tuple[list[str] | None, str]:
    """Return the labels in the order of the checkpoint's head for the task; None if the task needs a new head.

    With it comes the reason, if a trained head does not fit: it has other labels, or another type of label.
    """
    config = checkpoint.config
    if not checkpoint.has_head(task.head) or (labels and checkpoint.head not in (None, task.head)):
        return None, ""
    if not labels:
        return labels, ""
    known = [str(name) for _, name in sorted(config.id2label.items())]
    numbers = task.problem_type == "regression"
    order = known if numbers and len(known) == 1 else in_order_of(known, labels)
    if order is None:
        given = "numbers" if numbers else listed(labels)
        return None, f"the checkpoint's head knows the labels {listed(known)}, and the data has {given}"
    if task.problem_type and config.problem_type not in (None, task.problem_type):
        return None, f"the checkpoint's head is for {config.problem_type}, and the data is for {task.problem_type}"
    return order, ""


def new_model(checkpoint: Checkpoint, task: Task, labels: Sequence[str]) -> Head:
    """Return the checkpoint with the task's head: its own if that has these labels in this order, else a fresh one."""
    kept = fitting_labels(checkpoint, task, list(labels))[0] == list(labels)
    model = load(checkpoint, head=task.head, new_head=not kept, num_labels=None if kept else len(labels) or None)
    if labels:
        model.config = replace(model.config, problem_type=task.problem_type, id2label=dict(enumerate(labels)))
    return model


def freeze(model: Head, part: str) -> Head:
    """Freeze "none", "embeddings", "encoder", or the embeddings and a number of layers from the bottom.

    Returns the model. Raises ValueError for anything else.
    """
    encoder = model.encoder
    count = len(encoder.layers)
    parts: dict[str, list[nn.Module]] = {"none": [], "embeddings": [encoder.embeddings], "encoder": [encoder]}
    parts |= {str(number): [encoder.embeddings, *list(encoder.layers)[:number]] for number in range(count + 1)}
    if part not in parts:
        raise ValueError(f"freeze is {part!r}; choose none, embeddings, encoder, or a number of layers up to {count}")
    for module in parts[part]:
        module.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"freeze is {part!r}, and this model has no weights beside it: nothing would be trained")
    return model
