"""Random checkpoints in which every parameter counts, and batches and labels for every task head.

A freshly initialised model hides mistakes: its LayerNorms are 1 and 0, its biases 0. Here every parameter is random.
transformers (of the extra `test`) writes the folder, minibert reads it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.config import Config, family_of
from minibert.families.albert import ALBERT
from minibert.families.base import Family
from minibert.families.bert import BERT, ERNIE
from minibert.families.distilbert import DISTILBERT
from minibert.families.electra import ELECTRA
from minibert.families.modernbert import BIASES, GLOBAL, LOCAL, MODERNBERT
from minibert.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from minibert.heads import HEAD_CLASSES
from minibert.hooks import Inputs

MASKED_SHARE = 0.2  # of the tokens carry a label of the masked language model
CHOICES = 2  # of a multiple-choice question


@dataclass(frozen=True)
class Size:
    """A random checkpoint: its name in reports, and the values of its config.json under BERT's names."""

    name: str
    family: Family
    values: dict[str, Any]
    tokens: int  # S of the batch
    full: bool = False  # whether it is one of the published sizes
    seed: int = 0

    def config(self, head: str | None) -> dict[str, Any]:
        """Return the arguments of upstream's configuration class, under the names of this model type."""
        values = dict(self.values)
        if head in ("question-answering", "pretraining"):  # a start and an end; in order or not
            values["num_labels"] = 2
        return {self.family.keys.get(name, name): value for name, value in values.items()}


def tiny(name: str, family: Family = BERT, seed: int = 0, **changes: Any) -> Size:
    """Return a checkpoint of a few thousand parameters: no width is a power of two, no two dropouts are equal.

    max_position_embeddings, 11 by default, counts the positions that tokens can take.
    """
    values: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 37,
        "max_position_embeddings": 11,
        "num_labels": 3,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.2,
        "classifier_dropout": 0.3,
    }
    if family.has_segments:
        values["type_vocab_size"] = 2
    if "embeddings.embedding_projection" in family.modules:
        values["embedding_size"] = 13
    if "embeddings.task" in family.modules:
        values["use_task_id"] = True
    values |= {own.name: 0.4 for own in fields(family.config) if own.name in ("qa_dropout", "choice_dropout")}
    if family.config.pad_token_id >= values["vocab_size"]:
        values["pad_token_id"] = 3
    if family.name == MODERNBERT.name:
        values |= {"local_attention": 4, "feed_forward_dropout": 0.15}
    values |= changes
    tokens: int = values["max_position_embeddings"]
    before = {"model_type": family.name, "pad_token_id": values.get("pad_token_id")}
    values["max_position_embeddings"] += Config.from_dict(before).architecture.first_position
    return Size(f"tiny {family.title}: {name}", family, values, tokens, seed=seed)


ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "relu", "silu")  # the common ones besides gelu
TINY = (
    tiny("head width 8, three segments, intermediate 37", type_vocab_size=3),
    tiny("one layer", num_hidden_layers=1, seed=1),
    tiny("one head, one segment", num_attention_heads=1, type_vocab_size=1, seed=2),
    tiny("eps 1e-5, one label", layer_norm_eps=1e-5, num_labels=1, seed=3),
    *(tiny(f"activation {name}", hidden_act=name, seed=4) for name in ACTIVATIONS),
    tiny("head width 8, intermediate 37", DISTILBERT, seed=5),
    tiny("sinusoidal positions, one head", DISTILBERT, num_attention_heads=1, sinusoidal_pos_embds=True, seed=6),
    *(tiny(f"activation {name}", DISTILBERT, hidden_act=name, seed=7) for name in ACTIVATIONS),
    tiny("one segment, eps 1e-5", ROBERTA, type_vocab_size=1, layer_norm_eps=1e-5, seed=8),
    tiny("[PAD] is 5, gelu_new, two segments", ROBERTA, pad_token_id=5, hidden_act="gelu_new", seed=9),
    tiny("one segment", XLM_ROBERTA, type_vocab_size=1, seed=10),
    tiny("one segment", CAMEMBERT, type_vocab_size=1, seed=11),
    tiny("tables 13 wide, one group", ALBERT, num_hidden_layers=3, seed=12),
    tiny("2 groups of 2 layers, 5 steps", ALBERT, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2, seed=13),
    tiny("tables as wide as the layers, one label", ALBERT, embedding_size=24, num_labels=1, seed=14),
    tiny("tables 13 wide, relu", ELECTRA, hidden_act="relu", seed=15),
    tiny("tables as wide as the layers", ELECTRA, embedding_size=24, seed=16),
    tiny("three tasks", ERNIE, seed=17),
    tiny("no tasks", ERNIE, use_task_id=False, seed=18),
    tiny("four layers, window 4", MODERNBERT, num_hidden_layers=4, seed=19),
    tiny("means, one label, window 3", MODERNBERT, classifier_pooling="mean", num_labels=1, local_attention=3, seed=20),
    tiny("all biases", MODERNBERT, **dict.fromkeys(BIASES, True), decoder_bias=False, seed=21),
    tiny("the first layer is local", MODERNBERT, num_hidden_layers=3, layer_types=[LOCAL, GLOBAL, LOCAL], seed=22),
)
BASE = (
    Size("DistilBERT-base, random", DISTILBERT, {"num_labels": 3}, 16, full=True),
    Size("BERT-base, random", BERT, {"num_labels": 3}, 16, full=True),
)
LARGER = tuple(
    Size(f"{name}, random", family, {"num_labels": 3} | values, 16, full=True)
    for name, family, values in (
        ("RoBERTa-base", ROBERTA, {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
        ("ALBERT-base", ALBERT, {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
        ("ELECTRA-small", ELECTRA, {}),
        (
            "BERT-large",
            BERT,
            {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        ),
    )
)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings within the block; from then on also transformers' messages on new heads and its bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings(action="ignore"):
        yield


def upstream_class(family: Family, head: str | None) -> Any:
    """Return the class in transformers for a task head (None: the bare encoder)."""
    suffix = HEAD_CLASSES[head].upstream if head else "Model"
    import transformers

    return getattr(transformers, family.upstream + suffix)


def mistake_upstream(theirs: nn.Module, head: str | None, folder: Path) -> str:
    """Return how an older transformers builds this head wrongly, so that there is no reference; "" if it is right.

    In 5.0: multiple choice of XLM-R and CamemBERT, the decoder of their masked language models, and a ModernBERT whose
    config.json lists the types of its layers.
    """
    config = Config.from_file(folder / "config.json")
    names = dict(theirs.named_parameters())
    windows = [module.local_attention for module in theirs.modules() if hasattr(module, "local_attention")]
    # Newer versions keep no local_attention: there is nothing to compare, hence strict=False.
    if any(
        (here == (-1, -1)) != (ours is None) for here, ours in zip(windows, config.architecture.windows, strict=False)
    ):
        return "with other local layers than its config.json lists"
    if head is None:
        return ""
    if HEAD_CLASSES[head].first_layer(config) == "pooler" and not any(".pooler." in name for name in names):
        return "without the pooler that it reads"
    biases = set(config.family.decoder_bias)  # DistilBERT has one name for it
    if config.tie_word_embeddings and len(biases) == 2 and biases <= set(names):
        return "with two biases in place of one"
    return ""


def randomise(model: nn.Module, seed: int, only: set[str] | None = None) -> None:
    """Make every parameter random (or those in `only`): no bias stays 0, no LayerNorm 1.

    Matrices preserve the variance of their input, so that attention scores are neither flat nor saturated.
    """
    generator = torch.Generator().manual_seed(seed)
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module = modules[name.rpartition(".")[0]]
            std = parameter.shape[-1] ** -0.5 if isinstance(module, nn.Linear) and parameter.dim() == 2 else 0.25
            if only is None or name in only:
                parameter.normal_(std=std, generator=generator)
                parameter.add_(float(parameter.dim() == 1 and name.endswith("weight")))  # the scale of a norm


def make(size: Size, head: str | None, folder: Path) -> nn.Module:
    """Write a random checkpoint of this size and head into `folder`; return upstream's model in eval mode."""
    with quiet():
        kind = upstream_class(size.family, head)
        model: nn.Module = kind(kind.config_class(**size.config(head), attn_implementation="eager")).eval()
        randomise(model, size.seed)
        model.save_pretrained(folder)  # type: ignore[operator]  # an upstream model, typed as Module
    return model


def open_upstream(folder: Path, family: Family, head: str | None, pooler: bool) -> tuple[nn.Module, bool]:
    """Load the checkpoint with transformers. The second value is False if weights were missing; those are random."""
    two = {"num_labels": 2} if head in ("question-answering", "pretraining") else {}
    options = {"add_pooling_layer": pooler} if head is None and family.has_pooler else two
    with quiet():
        model, account = upstream_class(family, head).from_pretrained(
            folder,
            attn_implementation="eager",
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    for parameter in model.parameters():
        # A tensor read from a file may begin at any multiple of 4 bytes. There, the product with a matrix of one row,
        # such as the classifier of multiple choice, rounds differently than in memory of its own.
        parameter.data = parameter.data.clone()
    new = {*account["missing_keys"], *(key if isinstance(key, str) else key[0] for key in account["mismatched_keys"])}
    randomise(model, 0, only=new)
    return model.eval(), not new


@dataclass(frozen=True)
class LabelledBatch:
    """What one head computes: a batch in its shape, and labels for its loss."""

    batch: Inputs
    labels: dict[str, Tensor] = field(default_factory=dict)


def make_batch(config: Any, tokens: int, rows: int = 6, seed: int = 0) -> Inputs:
    """Return random ids (rows, tokens): a row of full length, one of length 1, others between; every segment occurs.

    Padding is pad_token_id in every other row and random ids in the rest: masked ids must not matter. No row is all
    padding. In the row of full length one token is [PAD] and is not masked.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (rows,), generator=generator)
    lengths[0] = tokens
    lengths[1] = 1
    position = torch.arange(tokens)
    mask = (position < lengths[:, None]).long()
    ids = torch.randint(0, config.vocab_size, (rows, tokens), generator=generator)
    pad = torch.full_like(ids, config.pad_token_id or 0)
    ids = torch.where((mask == 0) & (torch.arange(rows)[:, None] % 2 == 0), pad, ids)
    ids[0, 1:2] = pad[0, 1:2]
    kinds = max(getattr(config, "type_vocab_size", 0), 1)
    segments = (position * kinds // lengths[:, None]).clamp(max=kinds - 1)  # 0 ... 0 1 ... 1; padding is the last
    return Inputs(ids, mask, segments)


def task(head: str | None, config: Any, tokens: int, seed: int = 0) -> LabelledBatch:
    """Return a batch and labels for one head; `config` is upstream's or ours."""
    batch = make_batch(config, tokens, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    B, S = batch.input_ids.shape

    def draw(limit: int, *shape: int) -> Tensor:
        return torch.randint(0, limit, shape, generator=generator)

    if head in ("masked-lm", "pretraining"):
        chosen = (torch.rand(B, S, generator=generator) < MASKED_SHARE) & (batch.attention_mask == 1)
        chosen[:, 0] = True
        labels = {"labels": torch.where(chosen, batch.input_ids, -100)}
        if head == "pretraining":
            predicts_order = "sentence_order" in family_of(config.model_type).heads["pretraining"]
            labels["sentence_order_label" if predicts_order else "next_sentence_label"] = draw(2, B)
        ids = torch.where(chosen, min(103, config.vocab_size - 1), batch.input_ids)
        return LabelledBatch(replace(batch, input_ids=ids), labels)
    if head == "question-answering":
        start, end = draw(S, B), draw(S, B)
        start[-1] = S + 3  # past the last token: must not count
        end[0] = -4  # before the first: counts as 0
        return LabelledBatch(batch, {"start_positions": start, "end_positions": end})
    if head == "multiple-choice":
        parts = (x.view(B // CHOICES, CHOICES, S) for x in vars(batch).values())
        return LabelledBatch(Inputs(*parts), {"labels": draw(CHOICES, B // CHOICES)})
    if head is None:
        return LabelledBatch(batch)
    K = 2 if head in ("next-sentence", "replaced-token-detection") else config.num_labels
    if head == "next-sentence":
        target = draw(K, B)
    elif head != "sequence-classification":  # a label for every token
        target = draw(K, B, S).masked_fill(batch.attention_mask == 0, -100)
    elif config.problem_type == "multi_label_classification":
        target = draw(2, B, K).float()
    elif config.problem_type == "regression" or K == 1:
        target = torch.randn((B, K) if K > 1 else (B,), generator=generator)
    else:
        target = draw(K, B)
    return LabelledBatch(batch, {"labels": target})
