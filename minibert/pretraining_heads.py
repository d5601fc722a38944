"""What is put on top of the encoder to pretrain it: one class for each objective of BERT and its relatives.

The encoder gives each token a vector; a task head turns vectors into an answer: a label, a missing word, a place in
the text. (A head alone is an attention head.) It is a model of its own: the encoder under `.encoder`, and the few
layers that read what the encoder returns. Here is what all of them share, and those that need no labels but the text
itself; heads.py has those of fine-tuning. Arguments, fields and losses carry the names of transformers 5.23, the
losses stand in losses.py. Sections are those of "BERT" (Devlin et al. 2018). Beside the letters of model.py:

    K  labels that a classifier tells apart        C  choices of a multiple-choice question
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.config import Config
from minibert.inputs import Fields, attended, output
from minibert.losses import cross_entropy, detection_loss, token_cross_entropy
from minibert.model import ACTIVATION, Encoder, EncoderOutput, initialise


@output
class Output(Fields):
    """Logits, the scores before softmax, and the mean loss where labels were given."""

    # (B,S,V) masked LM, (B,2) next sentence, (B,S) detection, (B,K) or (B,S,K) classification, (B,C) multiple choice
    logits: Tensor
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
    """Both scores of pretraining; the loss is the sum of both losses."""

    prediction_logits: Tensor  # (B,S,V)
    seq_relationship_logits: Tensor | None = None  # (B,2): next sentence
    sop_logits: Tensor | None = None  # (B,2): sentence order
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
    # The states that the loss depends on: of the "first" token of each text, the "labelled" tokens or all "tokens";
    # with "padding" also those of padding. The packed training step computes no others.
    reads: ClassVar[frozenset[str]]
    read: Callable[..., Any]  # what the encoder returned, and labels, to the output: each task head has its own

    def __init__(self, config: Config, attention: str = "eager") -> None:
        super().__init__()
        family = config.family
        if self.name not in family.heads:
            why = family.lacks.get(self.name, f"it has {', '.join(family.heads)}")
            raise ValueError(f"{family.name} has no head {self.name!r}: {why}")
        for name, implemented in family.settings.get(self.name, {}).items():
            if config.extra.get(name) not in (None, implemented):
                raise ValueError(f"{name} {config.extra[name]!r} is not implemented; only {implemented!r} is")
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
        task_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **labels: Any,
    ) -> Any:
        """Encode (B, S) token ids as Encoder does, and read the answer from what comes out; labels: see `read`."""
        encoded = self.encoder(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            task_type_ids=task_type_ids,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return self.read(encoded, **labels)

    @classmethod
    def reads_pooler(cls, config: Config) -> bool:
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

    Mirrors BertLMPredictionHead, RobertaLMHead, AlbertMLMHead, ElectraGeneratorPredictions with generator_lm_head, and
    vocab_transform, vocab_layer_norm and vocab_projector of DistilBertForMaskedLM.
    """

    reads = frozenset({"labelled"})

    def build(self, config: Config) -> None:
        """Back to the width of the token embedding, and a score for each of its rows."""
        self.transform = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATION[config.prediction_act or config.hidden_act]
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
    and -100 wherever nothing is to be predicted. Mirrors BertForMaskedLM and its relatives'.
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

    reads = frozenset({"first"})
    name = "next-sentence"
    upstream = "ForNextSentencePrediction"

    @classmethod
    def reads_pooler(cls, config: Config) -> bool:
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
    """Masked tokens, and a question about the two texts of a row; loss = the sum of both (section 3.1, appendix A.2).

    BERT asks whether the second text follows the first: next_sentence_label (B). ALBERT asks in which order two texts
    stand that do follow each other: sentence_order_label (B), 0 for their own, 1 for exchanged (Lan et al. 2019, 3.1).
    Beside it labels, (B, S); both or neither. Mirrors Bert- and AlbertForPreTraining.
    """

    reads = frozenset({"first", "labelled"})
    name = "pretraining"
    upstream = "ForPreTraining"

    @classmethod
    def reads_pooler(cls, config: Config) -> bool:
        """How the two texts belong together is told by the pooler's output."""
        return True

    def build(self, config: Config) -> None:
        """What both objectives need; dropout before the order of sentences alone."""
        super().build(config)
        asks_order = "sentence_order" in config.family.heads[self.name]
        if asks_order and config.num_labels != 2:
            raise ValueError(f"num_labels is {config.num_labels}; the order of sentences has 2 outputs")
        self.dropout = nn.Dropout(classifier_dropout(config)) if asks_order else None
        self.sentence_order = nn.Linear(config.hidden_size, 2) if asks_order else None
        self.next_sentence = None if asks_order else nn.Linear(config.hidden_size, 2)

    def read(
        self,
        encoded: EncoderOutput,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
    ) -> PretrainingOutput:
        """Prediction logits (B, S, V), and logits (B, 2) of next sentence or of sentence order."""
        tokens, c = self.predict_tokens(encoded), encoded.pooler_output
        follows, order, name, label = None, None, "next_sentence_label", next_sentence_label
        if self.next_sentence is not None:
            pair = follows = self.next_sentence(c)  # (B,D) -> (B,2)
        elif self.sentence_order is not None and self.dropout is not None:
            pair = order = self.sentence_order(self.dropout(c))  # (B,D) -> (B,2)
            name, label = "sentence_order_label", sentence_order_label
        loss = None
        if labels is not None and label is not None:
            loss = token_cross_entropy(tokens, labels) + cross_entropy(pair, label, name)
        elif any(given is not None for given in (labels, next_sentence_label, sentence_order_label)):
            raise ValueError(f"the loss needs both labels and {name}, and one of them is missing")
        return PretrainingOutput(tokens, follows, order, loss, encoded.hidden_states, encoded.attentions)


class ReplacedTokenDetection(Head):
    """p(token at i was replaced) = sigmoid(activation(x_i W + a) w + b), learned from every token (Clark et al. 2020).

    Some tokens were replaced by what a small masked language model guessed there. labels: (B, S), 1 for a replaced
    token, 0 for one that stood there already; padding does not count. The loss is binary cross entropy. Mirrors
    ElectraForPreTraining.
    """

    reads = frozenset({"tokens"})
    name = "replaced-token-detection"
    upstream = "ForPreTraining"

    def build(self, config: Config) -> None:
        """One score for each token."""
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATION[config.hidden_act]
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids: Tensor, *, attention_mask: Tensor | None = None, **given: Any) -> Output:
        """Encode (B, S) token ids; the loss needs to know which of them are padding."""
        real = attended(self.config, input_ids, attention_mask)
        found: Output = super().forward(input_ids, attention_mask=attention_mask, **given, real=real)
        return found

    def read(self, encoded: EncoderOutput, labels: Tensor | None = None, real: Tensor | None = None) -> Output:
        """Logits (B, S), above 0 where the token looks replaced; real: False for padding, None where there is none."""
        x = self.activation(self.transform(encoded.last_hidden_state))  # (B,S,D)
        logits = self.classifier(x).squeeze(-1)  # (B,S,D) -> (B,S,1) -> (B,S)
        loss = None if labels is None else detection_loss(logits, labels, real)
        return Output(logits, loss, encoded.hidden_states, encoded.attentions)


def classifier_dropout(config: Config) -> float:
    """The dropout before a classifier; where the checkpoint names none, that of the encoder."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
