"""Task heads of fine-tuning, and the list of all heads.

pretraining_heads.py explains task heads and has the heads of pretraining. Sections are those of "BERT" (Devlin et al.
2018). Besides the letters of model.py:

    K  labels of a classifier        C  choices of a multiple-choice question
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from minibert.activations import ACTIVATION
from minibert.config import Config
from minibert.fields import Fields, output
from minibert.inputs import KINDS, check_tensor
from minibert.losses import cross_entropy, position_cross_entropy, text_loss, token_cross_entropy
from minibert.model import Encoder
from minibert.pretraining_heads import (
    Head,
    HeadInput,
    MaskedLM,
    NextSentence,
    Output,
    Pretraining,
    Reads,
    ReplacedTokenDetection,
    TokenPrediction,
)
from minibert.utils.printing import brief, cut
from minibert.utils.wording import advice

__all__ = [  # what other modules import from here, pretraining heads included
    "HEAD_CLASSES",
    "Head",
    "HeadInput",
    "MaskedLM",
    "MultipleChoice",
    "NextSentence",
    "Pretraining",
    "QuestionAnswering",
    "Reads",
    "ReplacedTokenDetection",
    "SentenceVectors",
    "SequenceClassification",
    "TextClassifier",
    "TokenClassification",
    "TokenPrediction",
    "head_class",
    "with_num_labels",
]


@output
class QuestionAnsweringOutput(Fields):
    """For each token, the scores that the answer begins and that it ends there."""

    start_logits: Tensor  # (B,S)
    end_logits: Tensor  # (B,S)
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class Classifying(Head):
    """A head that may have a first layer, LayerNorm(activation(x V)), before its scores.

    BERT's heads have none. ModernBERT's heads all have one, with GELU and LayerNorm, like its masked LM.
    """

    def build(self, config: Config) -> None:
        """Create the first layer, unless there is none or it is the pooler."""
        D = config.hidden_size
        first = self.first_layer(config)
        own = first not in ("", "pooler")
        self.pre_classifier = nn.Linear(D, D, config.architecture.head_bias) if own else None
        self.activation = ACTIVATION[first if own else "linear"]
        self.pre_norm = config.architecture.norm(config, D) if own and config.architecture.norm_in_heads else None

    def through_first_layer(self, x: Tensor) -> Tensor:
        """Apply the first layer, if there is one, (..., D) -> (..., D)."""
        x = x if self.pre_classifier is None else self.activation(self.pre_classifier(x))
        return x if self.pre_norm is None else self.pre_norm(x)

    @classmethod
    def first_layer(cls, config: Config) -> str:
        """Return the first layer below scores of tokens."""
        return config.architecture.token_head


class TextClassifier(Classifying):
    """scores = Dropout(c) W + b, where c is one vector for the whole text: what the next two heads share.

    In BERT c is the pooler's output, tanh(x[CLS] V + a). Some relatives replace the pooler by `pre_classifier`, with
    ReLU in DistilBERT, tanh in RoBERTa, GELU in ELECTRA; for text classification, the latter two also apply dropout
    before it. ModernBERT may read the mean of all tokens instead of [CLS].
    """

    @property
    def reads(self) -> Reads:
        """The mean of all tokens, or [CLS]."""
        return Reads.MEAN if self.config.architecture.reads_mean else Reads.FIRST

    def build(self, config: Config) -> None:
        """Create the first layer, unless that is the pooler, and the layer of scores."""
        super().build(config)
        self.dropout_before = self.has_labels and config.architecture.dropout_before_text_head
        self.dropout = nn.Dropout(self.dropout_rate(config))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels if self.has_labels else 1)

    def score(self, c: Any) -> Tensor:
        """Return one row of scores per text, (B,D) -> (B, outputs)."""
        c = self.through_first_layer(self.dropout(c) if self.dropout_before else c)
        return self.classifier(self.dropout(c))  # type: ignore[no-any-return]  # a Tensor

    @staticmethod
    def dropout_rate(config: Config) -> float:
        """Return the dropout before the scores."""
        return config.architecture.text_dropout

    @classmethod
    def first_layer(cls, config: Config) -> str:
        """Return the first layer below scores of texts."""
        return config.architecture.text_head


class SequenceClassification(TextClassifier):
    """p(label | text) = softmax(Dropout(c) W + b) (section 4.1).

    labels: (B) integers for one label per text; (B, K) floats for several; (B) floats for a regression, which has one
    output. config.problem_type overrides that choice (losses.text_loss). Mirrors BertForSequenceClassification and its
    relatives.
    """

    name = "sequence-classification"
    upstream = "ForSequenceClassification"
    has_labels = True

    def read(self, encoded: HeadInput, labels: Tensor | None = None) -> Output:
        """Return logits (B, K)."""
        logits = self.score(encoded.text)
        loss = None if labels is None else text_loss(logits, labels, self.config.problem_type)
        return self.output(encoded, logits, loss)


class MultipleChoice(TextClassifier):
    """p(choice i) = softmax over the choices of Dropout(c_i) w + b (section 4.4, SWAG).

    All inputs are (B, C, S): each choice is a separate text or pair. labels: (B), the right choice. Hidden states and
    attentions have B·C rows. Mirrors BertForMultipleChoice and its relatives.
    """

    name = "multiple-choice"
    upstream = "ForMultipleChoice"

    @staticmethod
    def dropout_rate(config: Config) -> float:
        """Return the dropout before the score, which some relatives have of their own."""
        return config.architecture.choice_dropout

    @classmethod
    def first_layer(cls, config: Config) -> str:
        """Return the first layer below scores of choices."""
        return config.architecture.choice_head or config.architecture.text_head

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        """Encode (B, C, S) token ids. Raises ValueError for inputs of other shapes."""
        inputs = {"input_ids": input_ids, **given}
        for name in ("input_ids", "attention_mask", *KINDS):
            values: Any = inputs.get(name)
            if values is not None or name == "input_ids":
                check_tensor(name, values)
                if values.dim() != 3 or values.shape != input_ids.shape:
                    raise ValueError(
                        f"{name} has shape {tuple(values.shape)}; expected (batch, choices, tokens) for all inputs"
                    )
                inputs[name] = values.flatten(0, 1)  # (B,C,S) -> (B·C,S)
        return super().forward(**inputs, choices=input_ids.shape[1])

    def read(self, encoded: HeadInput, choices: int = 1, labels: Tensor | None = None) -> Output:
        """Return logits (B, C).

        ModernBertForMultipleChoice copies the rows of [CLS], the other classes do not. It matters for equality bit for
        bit: if D is not a multiple of 4, some processors round the product of a copy differently.
        """
        c: Any = encoded.text  # (B·C,D)
        c = c.contiguous() if self.config.architecture.norm_in_heads else c
        logits = self.score(c).view(-1, choices)  # (B·C,1) -> (B,C)
        return self.output(encoded, logits, None if labels is None else cross_entropy(logits, labels))


class TokenClassification(Classifying):
    """p(label of token i) = softmax(Dropout(x_i) W + b) (figure 4d; named entities in section 5.3).

    labels: (B, S), -100 at tokens without a label, such as [CLS] and the later pieces of a word. Mirrors
    BertForTokenClassification and its relatives.
    """

    name = "token-classification"
    upstream = "ForTokenClassification"
    has_labels = True
    reads = Reads.LABELLED

    def build(self, config: Config) -> None:
        """Create the layer with one score per label."""
        super().build(config)
        self.dropout = nn.Dropout(config.architecture.token_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def read(self, encoded: HeadInput, labels: Tensor | None = None) -> Output:
        """Return logits (B, S, K)."""
        x = self.through_first_layer(encoded.tokens)  # (B,S,D)
        logits = self.classifier(self.dropout(x))  # (B,S,D) -> (B,S,K)
        return self.output(encoded, logits, None if labels is None else token_cross_entropy(logits, labels))


class QuestionAnswering(Classifying):
    """p(answer begins at i) = exp(s·x_i) / Σ_j exp(s·x_j); its end likewise, with e for s (sections 4.2, 4.3).

    The answer is a span of the text, which follows the question in the same row. start_positions and end_positions:
    (B), both or neither; the loss is the mean of the two cross entropies, whose softmax includes padding. A position
    past the row does not count. Only DistilBERT and ModernBERT have dropout here. Mirrors BertForQuestionAnswering and
    its relatives.
    """

    name = "question-answering"
    upstream = "ForQuestionAnswering"
    reads = Reads.ALL

    def build(self, config: Config) -> None:
        """Create the layer with two scores per token."""
        super().build(config)
        self.dropout = nn.Dropout(config.architecture.answer_dropout)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)  # the vectors s and e

    def read(
        self, encoded: HeadInput, start_positions: Tensor | None = None, end_positions: Tensor | None = None
    ) -> QuestionAnsweringOutput:
        """Return start and end logits, (B, S) each."""
        x = self.through_first_layer(encoded.tokens)  # (B,S,D)
        logits = self.qa_outputs(self.dropout(x))  # (B,S,D) -> (B,S,2)
        start, end = (part.contiguous() for part in logits.unbind(dim=-1))  # (B,S,2) -> (B,S), (B,S)
        loss = None
        if start_positions is not None and end_positions is not None:
            start_loss = position_cross_entropy(start, start_positions, "start_positions")
            loss = (start_loss + position_cross_entropy(end, end_positions, "end_positions")) / 2
        elif start_positions is not None or end_positions is not None:
            raise ValueError("the loss needs both start_positions and end_positions, and one of them is missing")
        return QuestionAnsweringOutput(start, end, loss, encoded.hidden_states, encoded.attentions)


class SentenceVectors(Head):
    """One vector for each text, the mean of its tokens or [CLS]: an encoder that learns to compare texts.

    It adds no weights to the encoder, so it is not a head of a checkpoint: `save` writes the encoder, and pooling,
    normalize and dimensions to the files of sentence-transformers. The encoder's pooler is kept as it is.
    """

    name = "sentence-vectors"
    upstream = "Model"
    names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, encoder: Encoder, pooling: str, normalize: bool = False, dimensions: int | None = None) -> None:
        super().__init__(encoder.config, encoder=encoder)
        self.pooling = pooling
        self.normalize = normalize  # whether users of the vectors scale them to length 1
        self.dimensions = dimensions  # how many numbers of a vector they keep; None: all
        if encoder.pooler is not None:
            encoder.pooler.requires_grad_(False)

    @property
    def reads(self) -> Reads:
        """The mean of all tokens, or [CLS]."""
        return {"mean": Reads.MEAN, "cls": Reads.FIRST}[self.pooling]

    def build(self, config: Config) -> None:
        """Create nothing."""

    def read(self, encoded: HeadInput) -> Output:
        """Return vectors (B, D), not scaled."""
        vectors: Any = encoded.tokens[:, 0] if self.pooling == "cls" else encoded.text
        return self.output(encoded, vectors, None)


HEAD_CLASSES: dict[str, type[Head]] = {
    head.name: head
    for head in (
        *(MaskedLM, NextSentence, Pretraining, ReplacedTokenDetection),
        *(SequenceClassification, TokenClassification, QuestionAnswering, MultipleChoice),
    )
}


def head_class(name: str) -> type[Head]:
    """Return the class of a head. Raises ValueError with the known names for any other name."""
    if name not in HEAD_CLASSES:
        raise ValueError(f"head {brief(name)} is not known; choose from {', '.join(HEAD_CLASSES)}")
    return HEAD_CLASSES[name]


def with_num_labels(config: Config, head: str, num_labels: int | None, new_head: bool) -> Config:
    """Return the config with this number of labels; new ones are called LABEL_0, LABEL_1, ...

    Raises ValueError if the head has no labels, or if the checkpoint has another number of labels and no new head was
    requested.
    """
    if num_labels is None:
        two_outputs = head == QuestionAnswering.name or "sentence_order" in config.family.heads.get(head, {})
        num_labels = 2 if two_outputs and new_head else config.num_labels
    elif not head_class(head).has_labels:
        raise ValueError(f"num_labels is {num_labels}, and the head {head!r} has no labels to count; leave it out")
    if num_labels == config.num_labels:
        return config
    if num_labels < 1 or not new_head:
        raise ValueError(
            f"num_labels is {num_labels}, and the checkpoint has {config.num_labels}: "
            f"{cut(', '.join(map(str, config.id2label.values())), 400)}"
            + advice("; {} makes a fresh head of 1 or more", new_head=True)
        )
    return replace(config, id2label={i: f"LABEL_{i}" for i in range(num_labels)}, problem_type=None)
