"""What is put on top of the encoder: one class for each task that BERT is trained or fine-tuned for.

The encoder gives each token a vector; a task head turns vectors into an answer: a label, a missing word, a place in
the text. (A head alone is an attention head.) It is a model of its own: the encoder under `.encoder`, and the few
layers that read what the encoder returns. Arguments, fields and losses carry the names of transformers 5.23, the
losses stand in losses.py. Sections are those of "BERT" (Devlin et al. 2018). Beside the letters of model.py:

    K  labels that a classifier tells apart        C  choices of a multiple-choice question
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.config import Config
from minibert.inputs import Fields, output
from minibert.losses import PROBLEM_TYPES, cross_entropy, position_cross_entropy, text_loss, token_cross_entropy
from minibert.model import ACTIVATION, Encoder, EncoderOutput, initialise
from minibert.printing import brief


@output
class Output(Fields):
    """Logits, the scores before softmax, and the mean loss where labels were given."""

    logits: Tensor  # (B,S,V) masked LM, (B,2) next sentence, (B,K) or (B,S,K) classification, (B,C) multiple choice
    loss: Tensor | None = None  # ()
    hidden_states: tuple[Tensor, ...] | None = None  # as in EncoderOutput
    attentions: tuple[Tensor, ...] | None = None


@output
class NextSentenceOutput(Output):
    """Output of NextSentence; class 0 means that the second text follows the first."""

    @property
    def p_is_next(self) -> Tensor:
        """(B): the probability that the second text follows the first."""
        return self.logits.softmax(dim=-1)[:, 0]  # (B,2) -> (B)


@output
class PretrainingOutput(Fields):
    """Both scores of BERT's pretraining; the loss is the sum of both losses."""

    prediction_logits: Tensor  # (B,S,V)
    seq_relationship_logits: Tensor  # (B,2)
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@output
class QuestionAnsweringOutput(Fields):
    """How well each token would begin the answer, and how well it would end it."""

    start_logits: Tensor  # (B,S)
    end_logits: Tensor  # (B,S)
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class Head(nn.Module):
    """An encoder with something on top, all weights fresh. Raises ValueError where the relative has no such task head.

    `head_is_trained` is False until a checkpoint has filled the task head: who trains a fresh one sets it to True, who
    predicts with it refuses while it is False.
    """

    name: ClassVar[str]  # as in minibert.load(..., head=name)
    upstream: ClassVar[str]  # the class in transformers, after the name of the relative
    has_labels: ClassVar[bool] = False  # whether num_labels speaks of this task head
    read: Callable[..., Any]  # what the encoder returned, and labels, to the output: each task head has its own

    def __init__(self, config: Config, attention: str = "eager") -> None:
        super().__init__()
        family = config.family
        if self.name not in family.heads:
            why = family.lacks.get(self.name, f"it has {', '.join(family.heads)}")
            raise ValueError(f"{family.name} has no head {self.name!r}: {why}")
        self.config = config
        self.head_is_trained = False
        self.encoder = Encoder(config, attention, pooler=self.reads_pooler(config))
        self.build(config)
        for module in self.children():
            if module is not self.encoder:  # which has begun already
                initialise(module, config)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **labels: Any,
    ) -> Any:
        """Encode (B, S) token ids as Encoder does, and read the answer from what comes out; labels: see `read`."""
        encoded = self.encoder(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return self.read(encoded, **labels)

    @staticmethod
    def reads_pooler(config: Config) -> bool:
        """Whether the encoder needs a pooler."""
        return False

    def build(self, config: Config) -> None:
        """Make the modules on top of the encoder."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the weights are, and the inputs must be."""
        return self.encoder.device


class Decoder(nn.Module):
    """logits = x Eᵀ + b, a score for each token of the vocabulary, where E is the token embedding itself.

    A token scores high where x points the way of its own embedding. E is passed in and not kept, so that the two cannot
    come apart: one parameter, one gradient, saved once. Only where config.tie_word_embeddings is false does a weight of
    its own take E's place.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        V, D = config.vocab_size, config.embedding_size
        self.weight = None if config.tie_word_embeddings else nn.Parameter(torch.empty(V, D))
        self.bias = nn.Parameter(torch.empty(V))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Score every token of the vocabulary; `embedding`, (V, D), is the token embedding."""
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)  # (B,S,D) -> (B,S,V)


class TokenPrediction(Head):
    """logits = LayerNorm(activation(x W + a)) Eᵀ + b: what MaskedLM and Pretraining share.

    Mirrors BertLMPredictionHead; in DistilBertForMaskedLM vocab_transform, vocab_layer_norm, vocab_projector.
    """

    def build(self, config: Config) -> None:
        """Back to the width of the token embedding, and a score for each of its rows."""
        self.transform = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATION[config.hidden_act]
        self.transform_norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.decoder = Decoder(config)

    def predict_tokens(self, encoded: EncoderOutput) -> Tensor:
        """Score every token of the vocabulary at every place."""
        x = self.transform_norm(self.activation(self.transform(encoded.last_hidden_state)))  # (B,S,D)
        logits: Tensor = self.decoder(x, self.encoder.embeddings.token.weight)  # (B,S,D) -> (B,S,V)
        return logits


class MaskedLM(TokenPrediction):
    """p(token at i | text) = softmax(logits_i), learned where tokens were masked (section 3.1, task 1).

    Masked: replaced by [MASK], to be guessed from the words on both sides. labels: (B, S), the ids that stood there,
    and -100 wherever nothing is to be predicted. Mirrors Bert- and DistilBertForMaskedLM.
    """

    name = "masked-lm"
    upstream = "ForMaskedLM"

    def read(self, encoded: EncoderOutput, labels: Tensor | None = None) -> Output:
        """Logits (B, S, V)."""
        logits = self.predict_tokens(encoded)
        loss = None if labels is None else token_cross_entropy(logits, labels)
        return Output(logits, loss, encoded.hidden_states, encoded.attentions)


class NextSentence(Head):
    """p(second text follows the first) = softmax(c W + b)₀, c the pooler's output (section 3.1, task 2).

    The two texts are one row of ids, told apart by their segments. labels: (B), 0 for "is next", 1 for "is random".
    Mirrors BertForNextSentencePrediction.
    """

    name = "next-sentence"
    upstream = "ForNextSentencePrediction"

    @staticmethod
    def reads_pooler(config: Config) -> bool:
        """Next sentences are told by the pooler's output."""
        return True

    def build(self, config: Config) -> None:
        """Two scores: is next, is random."""
        self.next_sentence = nn.Linear(config.hidden_size, 2)

    def read(self, encoded: EncoderOutput, labels: Tensor | None = None) -> NextSentenceOutput:
        """Logits (B, 2)."""
        logits = self.next_sentence(encoded.pooler_output)  # (B,D) -> (B,2)
        loss = None if labels is None else cross_entropy(logits, labels)
        return NextSentenceOutput(logits, loss, encoded.hidden_states, encoded.attentions)


class Pretraining(TokenPrediction):
    """Both of the above on one encoder; loss = masked LM loss + next sentence loss (section 3.1, appendix A.2).

    labels: (B, S) and next_sentence_label: (B), both or neither. Mirrors BertForPreTraining.
    """

    name = "pretraining"
    upstream = "ForPreTraining"

    @staticmethod
    def reads_pooler(config: Config) -> bool:
        """Next sentences are told by the pooler's output."""
        return True

    def build(self, config: Config) -> None:
        """What both objectives need."""
        super().build(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)

    def read(
        self, encoded: EncoderOutput, labels: Tensor | None = None, next_sentence_label: Tensor | None = None
    ) -> PretrainingOutput:
        """Prediction logits (B, S, V) and next sentence logits (B, 2)."""
        tokens = self.predict_tokens(encoded)
        relationship = self.next_sentence(encoded.pooler_output)  # (B,D) -> (B,2)
        loss = None
        if labels is not None and next_sentence_label is not None:
            next_loss = cross_entropy(relationship, next_sentence_label, "next_sentence_label")
            loss = token_cross_entropy(tokens, labels) + next_loss
        elif labels is not None or next_sentence_label is not None:
            raise ValueError("the loss needs both labels and next_sentence_label, and one of them is missing")
        return PretrainingOutput(tokens, relationship, loss, encoded.hidden_states, encoded.attentions)


class TextClassifier(Head):
    """scores = Dropout(c) W + b, c one vector for the whole text: what the next two heads share.

    In BERT c is the pooler's output, tanh(x[CLS] V + a), in DistilBERT relu(x[CLS] V + a), a layer of the task head's
    own: `pre_classifier`.
    """

    @staticmethod
    def reads_pooler(config: Config) -> bool:
        """Unless the relative's text heads begin with a layer of their own."""
        return config.text_head == "pooler"

    def build(self, config: Config) -> None:
        """The layer before the scores, where the pooler is none, and the scores."""
        D, own = config.hidden_size, not self.reads_pooler(config)
        self.pre_classifier = nn.Linear(D, D) if own else None
        self.activation = ACTIVATION[config.text_head] if own else None
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(D, config.num_labels if self.has_labels else 1)

    def score(self, encoded: EncoderOutput) -> Tensor:
        """One row of scores for each text, (B, outputs)."""
        c = encoded.pooler_output
        if self.pre_classifier is not None and self.activation is not None:
            c = self.activation(self.pre_classifier(encoded.last_hidden_state[:, 0]))  # (B,S,D) -> (B,D)
        scores: Tensor = self.classifier(self.dropout(c))
        return scores


def classifier_dropout(config: Config) -> float:
    """The dropout before a classifier; where the checkpoint names none, that of the encoder."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


class SequenceClassification(TextClassifier):
    """p(label | text) = softmax(Dropout(c) W + b) (section 4.1). Mirrors Bert- and DistilBertForSequenceClassification.

    labels: (B) whole numbers for one label a text; (B, K) floats for several; (B) floats for a regression, when
    there is one output. config.problem_type decides where that is not what is wanted (losses.text_loss).
    """

    name = "sequence-classification"
    upstream = "ForSequenceClassification"
    has_labels = True

    def build(self, config: Config) -> None:
        """Checks that the loss is known."""
        super().build(config)
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
    Hidden states and attentions are those of B·C texts. Mirrors Bert- and DistilBertForMultipleChoice.
    """

    name = "multiple-choice"
    upstream = "ForMultipleChoice"

    def forward(self, input_ids: Tensor, **given: Any) -> Output:
        """Encode (B, C, S) token ids."""
        if input_ids.dim() != 3:
            raise ValueError(f"input_ids have shape {tuple(input_ids.shape)}; expected (batch, choices, tokens)")
        for name in ("attention_mask", "token_type_ids"):
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

    labels: (B, S), -100 at tokens that have none, such as [CLS] and the later pieces of a word. Mirrors Bert- and
    DistilBertForTokenClassification.
    """

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
    has dropout here. Mirrors Bert- and DistilBertForQuestionAnswering.
    """

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
    if num_labels is None and new_head and head == QuestionAnswering.name:
        num_labels = 2  # whatever the checkpoint told apart before
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
    return replace(config, id2label={i: f"LABEL_{i}" for i in range(num_labels)}, problem_type=None)
