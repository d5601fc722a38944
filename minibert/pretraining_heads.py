"""Task heads of pretraining: one class per objective of BERT and its relatives.

The encoder gives each token a vector; a task head turns vectors into an answer: a label, a masked token, a position in
the text. (It is not an attention head.) Each class here is a complete model: the encoder under `.encoder`, and the few
layers that read its output. This file has what all heads share, and the objectives whose labels come from the text
itself; heads.py has the heads of fine-tuning. Arguments, fields and losses have the names of transformers 5.23; the
losses are in losses.py. Sections refer to "BERT" (Devlin et al. 2018). Besides the letters of model.py:

    K  labels of a classifier        C  choices of a multiple-choice question
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.activations import ACTIVATION
from minibert.config import Config
from minibert.families.base import Family
from minibert.fields import Fields, output
from minibert.inputs import IGNORED, KINDS, attended
from minibert.losses import cross_entropy, detection_loss, token_cross_entropy
from minibert.model import Encoder
from minibert.utils.habits import from_pretrained, save_pretrained
from minibert.utils.printing import brief


@output
class Output(Fields):
    """Logits, the scores before softmax, and the mean loss if labels were given."""

    # (B,S,V) masked LM, (B,2) next sentence, (B,S) detection, (B,K) or (B,S,K) classification, (B,C) multiple choice
    logits: Tensor
    loss: Tensor | None = None  # ()
    hidden_states: tuple[Tensor, ...] | None = None  # as in EncoderOutput
    attentions: tuple[Tensor, ...] | None = None


@output
class PretrainingOutput(Fields):
    """Both logits of pretraining; the loss is the sum of both losses."""

    prediction_logits: Tensor  # (B,S,V)
    seq_relationship_logits: Tensor | None = None  # (B,2): next sentence
    sop_logits: Tensor | None = None  # (B,2): sentence order
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class Reads(Flag):
    """What a head reads of a row of tokens: one of the first two, one of the others, or both.

    Training computes the last layer only for these.
    """

    FIRST = auto()  # [CLS], through the pooler if there is one
    MEAN = auto()  # the mean of the tokens that are not padding
    LABELLED = auto()  # each token that has a label
    REAL = auto()  # each token that is not padding
    ALL = auto()  # each token, and padding too


@dataclass(frozen=True)
class HeadInput:
    """What the encoder gives a head."""

    tokens: Tensor  # (B,S,D), the states of the last layer; of a packed batch (1,N,D), of the tokens that are read
    text: Tensor | None = None  # (B,D): what the pooler returns, the first token if there is no pooler, or Reads.MEAN
    hidden_states: tuple[Tensor, ...] | None = None  # as in EncoderOutput
    attentions: tuple[Tensor, ...] | None = None


class Head(nn.Module, ABC):
    """An encoder with a task head, all weights fresh; encoder: one of this config that exists already.

    A head of your own is a subclass with `build`, `read`, `reads`, `name`, `upstream` and `names`; HEAD_CLASSES lists
    it for minibert.load. Raises ValueError if the relative has no such head.
    """

    name: ClassVar[str]  # as in minibert.load(..., head=name)
    upstream: ClassVar[str]  # the class in transformers, after the name of the relative
    names: ClassVar[Mapping[str, str] | None] = None  # see names_in; None: only relatives that list the head have it
    has_labels: ClassVar[bool] = False  # True if num_labels is the number of outputs
    from_pretrained = staticmethod(from_pretrained)
    save_pretrained = staticmethod(save_pretrained)

    def __init__(self, config: Config, attention: str = "eager", encoder: Encoder | None = None) -> None:
        super().__init__()
        family = config.family
        if self.names is None and self.name not in family.heads:
            why = family.lacks.get(self.name, f"it has {', '.join(family.heads)}")
            raise ValueError(f"{family.name} has no head {self.name!r}: {why}")
        for name, implemented in family.settings.get(self.name, {}).items():
            if config.extra.get(name) not in (None, implemented):
                raise ValueError(f"{name} {brief(config.extra[name])} is not implemented; only {implemented!r} is")
        if self.has_labels and config.problem_type == "single_label_classification" and config.num_labels == 1:
            raise ValueError(f"problem_type is {config.problem_type!r}, of 1 label in id2label; is it a 'regression'?")
        self.config = config
        self.head_is_trained = False  # until it is read from a checkpoint or trained; before, predict is refused
        self.checkpoint: Any = None  # what the weights were loaded from
        self.tokenizer: Any = None  # of `predict`; None: the checkpoint's
        self.task: Any = None  # the settings of tasks.base.Task
        if encoder is None:
            encoder = Encoder(config, attention, pooler=self.first_layer(config) == "pooler")
        self.encoder = encoder
        self.build(config)
        for name, module in self.named_children():
            if module is not self.encoder:  # which is initialised already
                config.architecture.initialise(module, config, name)

    @property
    @abstractmethod
    def reads(self) -> Reads:
        """What the head reads of a row of tokens."""

    @abstractmethod
    def build(self, config: Config) -> None:
        """Create the modules on top of the encoder."""

    @abstractmethod
    def read(self, encoded: HeadInput, *labels: Any, **more: Any) -> Any:
        """Return the output of the head, an Output or the like, with the loss if there are labels."""

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        return_dict: bool | None = None,
        **more: Any,
    ) -> Any:
        """Encode (B, S) token ids as Encoder does, and apply the head to the result; more: the labels, see `read`.

        return_dict=False returns a tuple of the output's fields that are not None, the loss first.
        """
        kinds = {name: more.pop(name) for name in KINDS if name in more}
        encoded = self.encoder(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            **kinds,
        )
        x = encoded.last_hidden_state  # (B,S,D)
        text = x[:, 0] if encoded.pooler_output is None else encoded.pooler_output  # (B,D)
        if Reads.MEAN in self.reads:
            real = attended(self.config, input_ids, attention_mask).long()  # (B,S)
            text = (x * real.unsqueeze(-1)).sum(dim=1) / real.sum(dim=1, keepdim=True)  # (B,S,D) -> (B,D)
        found = self.read(HeadInput(x, text, encoded.hidden_states, encoded.attentions), **more)
        return found.to_tuple() if return_dict is False else found

    def predict(self, texts: object, pairs: object = None) -> list[dict[str, Any]]:
        """Predict as minibert.predict does, with the tokenizer and the settings of the checkpoint.

        Raises TypeError if the model has no tokenizer, and what minibert.predict raises.
        """
        import minibert  # here, because most of its modules import this one

        return minibert.predict(self, texts, pairs)

    def output(self, encoded: HeadInput, logits: Tensor, loss: Tensor | None) -> Output:
        """Return the output of a head with one kind of logits."""
        return Output(logits, loss, encoded.hidden_states, encoded.attentions)

    @classmethod
    def names_in(cls, family: Family) -> Mapping[str, str]:
        """Return the head's modules, ours -> their names in files of this relative; {} if it has no such head."""
        return family.heads.get(cls.name, cls.names or {})

    @classmethod
    def first_layer(cls, config: Config) -> str:
        """Return "pooler", or the activation of the head's own first layer; "" if it has neither."""
        return "pooler" if isinstance(cls.reads, Reads) and Reads.FIRST in cls.reads else ""

    @property
    def device(self) -> torch.device:
        """Return the device of the weights, on which the inputs must be."""
        return self.encoder.device


class Decoder(nn.Module):
    """logits = x Eᵀ + b, a score per token of the vocabulary, where E is the token embedding itself.

    A token scores high where x points in the direction of its embedding. E is passed in and not stored, so that it
    stays one parameter, with one gradient, saved once. The decoder has a weight only if config.tie_word_embeddings is
    false.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        V, D = config.vocab_size, config.architecture.embedding_size
        self.weight = None if config.tie_word_embeddings else nn.Parameter(torch.empty(V, D))
        self.bias = nn.Parameter(torch.empty(V)) if config.architecture.decoder_bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Score every token of the vocabulary; `embedding`, (V, D), is the token embedding."""
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)  # (B,S,D) -> (B,S,V)


class TokenPrediction(Head):
    """logits = LayerNorm(activation(x W + a)) Eᵀ + b: what MaskedLM and Pretraining share.

    Mirrors BertLMPredictionHead, RobertaLMHead, AlbertMLMHead, ElectraGeneratorPredictions with generator_lm_head, and
    vocab_transform, vocab_layer_norm and vocab_projector of DistilBertForMaskedLM.
    """

    def build(self, config: Config) -> None:
        """Create the transform to the width of the token embedding, and the decoder."""
        self.transform = nn.Linear(
            config.hidden_size, config.architecture.embedding_size, config.architecture.head_bias
        )
        self.activation = ACTIVATION[config.architecture.prediction_act or config.hidden_act]
        self.transform_norm = config.architecture.norm(config, config.architecture.embedding_size)
        self.decoder = Decoder(config)

    def predict_tokens(self, x: Tensor) -> Tensor:
        """Score every token of the vocabulary at every position."""
        x = self.transform_norm(self.activation(self.transform(x)))  # (B,S,D)
        # (B,S,D) -> (B,S,V)
        return self.decoder(x, self.encoder.embeddings.token.weight)  # type: ignore[no-any-return]  # a Tensor


class MaskedLM(TokenPrediction):
    """p(token at i | text) = softmax(logits_i), learned where tokens were masked (section 3.1, task 1).

    A masked token is replaced by [MASK] and predicted from the words on both sides. labels: (B, S), the original ids,
    and -100 where nothing is predicted. Mirrors BertForMaskedLM and its relatives.
    """

    name = "masked-lm"
    upstream = "ForMaskedLM"
    reads = Reads.LABELLED

    def read(self, encoded: HeadInput, labels: Tensor | None = None) -> Output:
        """Return logits (B, S, V); with labels and sparse_prediction those of the N labelled tokens, (N, V)."""
        x = encoded.tokens
        if labels is not None and self.config.architecture.sparse_prediction:
            labelled = labels != IGNORED
            x, labels = x[labelled], labels[labelled]
        logits = self.predict_tokens(x)
        return self.output(encoded, logits, None if labels is None else token_cross_entropy(logits, labels))


class NextSentence(Head):
    """p(second text follows the first) = softmax(c W + b)₀, where c is the pooler's output (section 3.1, task 2).

    The two texts are one row of ids in two segments. labels: (B), 0 for "is next", 1 for "is random". Mirrors
    BertForNextSentencePrediction.
    """

    name = "next-sentence"
    upstream = "ForNextSentencePrediction"
    reads = Reads.FIRST

    def build(self, config: Config) -> None:
        """Create the layer with two scores: is next, is random."""
        self.next_sentence = nn.Linear(config.hidden_size, 2)

    def read(self, encoded: HeadInput, labels: Tensor | None = None) -> Output:
        """Return logits (B, 2)."""
        logits = self.next_sentence(encoded.text)  # (B,D) -> (B,2)
        return self.output(encoded, logits, None if labels is None else cross_entropy(logits, labels))


class Pretraining(TokenPrediction):
    """Masked tokens, and a classification of the two texts of a row; loss = the sum of both (section 3.1, app. A.2).

    BERT predicts whether the second text follows the first: next_sentence_label (B). ALBERT predicts the order of two
    consecutive texts: sentence_order_label (B), 0 for the original order, 1 for swapped (Lan et al. 2019, 3.1). The
    loss needs this label and labels, (B, S). Mirrors BertForPreTraining and AlbertForPreTraining.
    """

    name = "pretraining"
    upstream = "ForPreTraining"
    reads = Reads.FIRST | Reads.LABELLED

    def build(self, config: Config) -> None:
        """Create the layers of both objectives; only sentence order has dropout."""
        super().build(config)
        predicts_order = "sentence_order" in config.family.heads[self.name]
        self.dropout = nn.Dropout(config.architecture.text_dropout if predicts_order else 0.0)
        self.sentence_order = nn.Linear(config.hidden_size, 2) if predicts_order else None
        self.next_sentence = None if predicts_order else nn.Linear(config.hidden_size, 2)

    def read(
        self,
        encoded: HeadInput,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
    ) -> PretrainingOutput:
        """Return prediction logits (B, S, V), and logits (B, 2) of next sentence or sentence order."""
        tokens = self.predict_tokens(encoded.tokens)
        c = self.dropout(encoded.text)
        follows = None if self.next_sentence is None else self.next_sentence(c)  # (B,D) -> (B,2)
        order = None if self.sentence_order is None else self.sentence_order(c)  # (B,D) -> (B,2)
        name = "next_sentence_label" if order is None else "sentence_order_label"
        pair, label = (follows, next_sentence_label) if order is None else (order, sentence_order_label)
        loss = None
        if pair is not None and labels is not None and label is not None:
            loss = token_cross_entropy(tokens, labels) + cross_entropy(pair, label, name)
        elif any(given is not None for given in (labels, next_sentence_label, sentence_order_label)):
            raise ValueError(f"the loss needs both labels and {name}, and one of them is missing")
        return PretrainingOutput(tokens, follows, order, loss, encoded.hidden_states, encoded.attentions)


class ReplacedTokenDetection(Head):
    """p(token at i was replaced) = sigmoid(activation(x_i W + a) w + b), learned from every token (Clark et al. 2020).

    Some tokens were replaced by samples of a small masked language model. labels: (B, S), 1 for a replaced token, 0 for
    an original one; padding does not count. The loss is binary cross entropy. Mirrors ElectraForPreTraining.
    """

    name = "replaced-token-detection"
    upstream = "ForPreTraining"
    reads = Reads.REAL

    def build(self, config: Config) -> None:
        """Create the layers with one score per token."""
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATION[config.hidden_act]
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids: Tensor, *, attention_mask: Tensor | None = None, **given: Any) -> Any:
        """Encode (B, S) token ids; the loss leaves out padding."""
        given["real"] = attended(self.config, input_ids, attention_mask)
        return super().forward(input_ids, attention_mask=attention_mask, **given)

    def read(self, encoded: HeadInput, labels: Tensor | None = None, real: Tensor | None = None) -> Output:
        """Return logits (B, S), above 0 where the token looks replaced; real: False for padding, None if there is
        none.
        """
        x = self.activation(self.transform(encoded.tokens))  # (B,S,D)
        logits = self.classifier(x).squeeze(-1)  # (B,S,D) -> (B,S,1) -> (B,S)
        return self.output(encoded, logits, None if labels is None else detection_loss(logits, labels, real))
