"""What is put on top of the encoder to fine-tune it for a task, and the list of all that can be put there.

What task heads are, and those of pretraining: objectives.py. Sections are those of "BERT" (Devlin et al. 2018). Beside
the letters of model.py:

    K  labels that a classifier tells apart        C  choices of a multiple-choice question
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from minibert.config import Config
from minibert.inputs import Fields, output
from minibert.losses import PROBLEM_TYPES, cross_entropy, position_cross_entropy, text_loss, token_cross_entropy
from minibert.model import ACTIVATION, EncoderOutput
from minibert.pretraining_heads import (
    Decoder,
    Head,
    MaskedLM,
    NextSentence,
    NextSentenceOutput,
    Output,
    Pretraining,
    PretrainingOutput,
    ReplacedTokenDetection,
    TokenPrediction,
    classifier_dropout,
)
from minibert.printing import brief

__all__ = [
    "HEAD_CLASSES",
    "Decoder",
    "Head",
    "MaskedLM",
    "MultipleChoice",
    "NextSentence",
    "NextSentenceOutput",
    "Output",
    "Pretraining",
    "PretrainingOutput",
    "QuestionAnswering",
    "QuestionAnsweringOutput",
    "ReplacedTokenDetection",
    "SequenceClassification",
    "TextClassifier",
    "TokenClassification",
    "TokenPrediction",
    "classifier_dropout",
    "head_class",
    "with_num_labels",
]
ACTIVATIONS_OF_HEADS = ACTIVATION | {"tanh": torch.tanh}


@output
class QuestionAnsweringOutput(Fields):
    """How well each token would begin the answer, and how well it would end it."""

    start_logits: Tensor  # (B,S)
    end_logits: Tensor  # (B,S)
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class TextClassifier(Head):
    """scores = Dropout(c) W + b, c one vector for the whole text: what the next two heads share.

    In BERT c is the pooler's output, tanh(x[CLS] V + a). A relative may have a layer of the task head's own instead,
    `pre_classifier`, with ReLU in DistilBERT, tanh in RoBERTa, GELU in ELECTRA; where texts are classified, the latter
    two have dropout before it too.
    """

    reads = frozenset({"first"})
    dropout_before = False

    @classmethod
    def begins_with(cls, config: Config) -> str:
        """The pooler, or the activation of a layer of the task head's own."""
        return config.text_head

    @classmethod
    def reads_pooler(cls, config: Config) -> bool:
        """Unless the task head begins with a layer of its own."""
        return cls.begins_with(config) == "pooler"

    @classmethod
    def dropout_share(cls, config: Config) -> float:
        """The dropout before the scores."""
        return classifier_dropout(config)

    def build(self, config: Config) -> None:
        """The layer before the scores, where the pooler is none, and the scores."""
        D, own = config.hidden_size, not self.reads_pooler(config)
        self.pre_classifier = nn.Linear(D, D) if own else None
        self.activation = ACTIVATIONS_OF_HEADS[self.begins_with(config)] if own else None
        self.dropout = nn.Dropout(self.dropout_share(config))
        self.classifier = nn.Linear(D, config.num_labels if self.has_labels else 1)

    def score(self, encoded: EncoderOutput) -> Tensor:
        """One row of scores for each text, (B, outputs)."""
        c = encoded.pooler_output
        if self.pre_classifier is not None and self.activation is not None:
            first = encoded.last_hidden_state[:, 0]  # (B,S,D) -> (B,D)
            c = self.activation(self.pre_classifier(self.dropout(first) if self.dropout_before else first))
        scores: Tensor = self.classifier(self.dropout(c))
        return scores


class SequenceClassification(TextClassifier):
    """p(label | text) = softmax(Dropout(c) W + b) (section 4.1). Mirrors BertForSequenceClassification and kin.

    labels: (B) whole numbers for one label a text; (B, K) floats for several; (B) floats for a regression, when
    there is one output. config.problem_type decides where that is not what is wanted (losses.text_loss).
    """

    name = "sequence-classification"
    upstream = "ForSequenceClassification"
    has_labels = True

    def build(self, config: Config) -> None:
        """Checks that the loss is known."""
        super().build(config)
        self.dropout_before = config.dropout_before_text_head
        if config.problem_type not in (None, *PROBLEM_TYPES):
            raise ValueError(f"problem_type {config.problem_type!r} is not known: {', '.join(PROBLEM_TYPES)}")

    def read(self, encoded: EncoderOutput, labels: Tensor | None = None) -> Output:
        """Logits (B, K)."""
        logits = self.score(encoded)
        loss = None if labels is None else text_loss(logits, labels, self.config.problem_type)
        return Output(logits, loss, encoded.hidden_states, encoded.attentions)


class MultipleChoice(TextClassifier):
    """p(choice i) = softmax over the choices of Dropout(c_i) w + b (section 4.4, SWAG).

    All inputs are (B, C, S): every choice written out as a text, or pair, of its own. labels: (B), the right one.
    Hidden states and attentions are those of B·C texts. Mirrors BertForMultipleChoice and its relatives'.
    """

    name = "multiple-choice"
    upstream = "ForMultipleChoice"

    @classmethod
    def begins_with(cls, config: Config) -> str:
        """As for a classification, unless the relative says otherwise."""
        return config.choice_head or config.text_head

    @classmethod
    def dropout_share(cls, config: Config) -> float:
        """As for a classification, unless the relative says otherwise."""
        return classifier_dropout(config) if config.choice_dropout is None else config.choice_dropout

    def forward(self, input_ids: Tensor, **given: Any) -> Output:
        """Encode (B, C, S) token ids."""
        if input_ids.dim() != 3:
            raise ValueError(f"input_ids have shape {tuple(input_ids.shape)}; expected (batch, choices, tokens)")
        for name in ("attention_mask", "token_type_ids", "task_type_ids"):
            given[name] = one_text_each(name, given.get(name), input_ids.shape)
        output: Output = super().forward(input_ids.flatten(0, 1), **given, choices=input_ids.shape[1])  # to (B·C,S)
        return output

    def read(self, encoded: EncoderOutput, choices: int = 1, labels: Tensor | None = None) -> Output:
        """Logits (B, C)."""
        logits = self.score(encoded).view(-1, choices)  # (B·C,1) -> (B,C)
        loss = None if labels is None else cross_entropy(logits, labels)
        return Output(logits, loss, encoded.hidden_states, encoded.attentions)


def one_text_each(name: str, given: Tensor | None, shape: torch.Size) -> Tensor | None:
    """(B, C, S) -> (B·C, S). Raises ValueError for another shape than that of input_ids."""
    if given is None:
        return None
    if given.shape != shape:
        raise ValueError(f"{name} have shape {tuple(given.shape)}, input_ids {tuple(shape)}")
    return given.flatten(0, 1)


class TokenClassification(Head):
    """p(label of token i) = softmax(Dropout(x_i) W + b) (figure 4d; named entities in section 5.3).

    labels: (B, S), -100 at tokens that have none, such as [CLS] and the later pieces of a word. Mirrors
    BertForTokenClassification and its relatives'.
    """

    reads = frozenset({"labelled"})
    name = "token-classification"
    upstream = "ForTokenClassification"
    has_labels = True

    def build(self, config: Config) -> None:
        """A score for each label."""
        for_tokens = config.classifier_dropout_on_tokens
        self.dropout = nn.Dropout(classifier_dropout(config) if for_tokens else config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def read(self, encoded: EncoderOutput, labels: Tensor | None = None) -> Output:
        """Logits (B, S, K)."""
        logits = self.classifier(self.dropout(encoded.last_hidden_state))  # (B,S,D) -> (B,S,K)
        loss = None if labels is None else token_cross_entropy(logits, labels)
        return Output(logits, loss, encoded.hidden_states, encoded.attentions)


class QuestionAnswering(Head):
    """p(answer begins at i) = exp(s·x_i) / Σ_j exp(s·x_j), and with e for s where it ends (sections 4.2, 4.3).

    The answer is a stretch of the text itself, behind the question in the same row. start_positions and end_positions:
    (B), both or neither; the loss is the mean of both. A position past the last token does not count. Only DistilBERT
    has dropout here. Mirrors BertForQuestionAnswering and its relatives'.
    """

    reads = frozenset({"tokens", "padding"})
    name = "question-answering"
    upstream = "ForQuestionAnswering"
    has_labels = True

    def build(self, config: Config) -> None:
        """Two scores for each token."""
        if config.num_labels != 2:
            raise ValueError(f"num_labels is {config.num_labels}; question answering has 2 outputs, start and end")
        self.dropout = nn.Dropout(config.qa_dropout)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)  # the vectors s and e

    def read(
        self, encoded: EncoderOutput, start_positions: Tensor | None = None, end_positions: Tensor | None = None
    ) -> QuestionAnsweringOutput:
        """Start and end logits, (B, S) each."""
        logits = self.qa_outputs(self.dropout(encoded.last_hidden_state))  # (B,S,D) -> (B,S,2)
        start, end = (part.contiguous() for part in logits.unbind(dim=-1))  # (B,S,2) -> (B,S), (B,S)
        loss = None
        if start_positions is not None and end_positions is not None:
            start_loss = position_cross_entropy(start, start_positions, "start_positions")
            loss = (start_loss + position_cross_entropy(end, end_positions, "end_positions")) / 2
        elif start_positions is not None or end_positions is not None:
            raise ValueError("the loss needs both start_positions and end_positions, and one of them is missing")
        return QuestionAnsweringOutput(start, end, loss, encoded.hidden_states, encoded.attentions)


CLASSES = (
    MaskedLM,
    NextSentence,
    Pretraining,
    ReplacedTokenDetection,
    SequenceClassification,
    TokenClassification,
    QuestionAnswering,
    MultipleChoice,
)
HEAD_CLASSES: dict[str, type[Head]] = {head.name: head for head in CLASSES}


def head_class(name: str) -> type[Head]:
    """The class of a head. Raises ValueError, naming those that are known, for any other name."""
    if name not in HEAD_CLASSES:
        raise ValueError(f"head {brief(name)} is not known; choose from {', '.join(HEAD_CLASSES)}")
    return HEAD_CLASSES[name]


def with_num_labels(config: Config, head: str, num_labels: int | None, new_head: bool) -> Config:
    """The config with as many labels as asked for; new ones are called LABEL_0, LABEL_1, ...

    Raises ValueError where the head has no labels to count, or where the checkpoint has another number of them and
    no new head was asked for.
    """
    two_outputs = head == QuestionAnswering.name or "sentence_order" in config.family.heads.get(head, {})
    if num_labels is None and new_head and two_outputs and config.num_labels != 2:
        return labelled(config, 2)  # whatever the checkpoint told apart before
    if num_labels is None or (num_labels == config.num_labels and head_class(head).has_labels):
        return config
    if not head_class(head).has_labels:
        raise ValueError(f"num_labels is {num_labels}, and the head {head!r} has no labels to count; leave it out")
    if num_labels < 1:
        raise ValueError(f"num_labels is {num_labels}; it must be at least 1")
    if not new_head:
        names = ", ".join(config.id2label.values())
        raise ValueError(
            f"num_labels is {num_labels}, and the checkpoint has {config.num_labels}: {names}; "
            "new_head=True makes a fresh head"
        )
    return labelled(config, num_labels)


def labelled(config: Config, count: int) -> Config:
    """The config with so many labels that have no names yet."""
    return replace(config, id2label={i: f"LABEL_{i}" for i in range(count)}, problem_type=None)
