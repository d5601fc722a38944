"""Random checkpoints of transformers in which every parameter counts, and batches that reach every corner.

A freshly initialised model hides mistakes: its LayerNorms are one and zero, its biases zero. Here every parameter is
drawn anew. transformers (of the extra `test`) writes the folder, minibert reads it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.config import ACTIVATIONS, Config
from minibert.families.albert import ALBERT
from minibert.families.base import Family
from minibert.families.bert import BERT, ERNIE
from minibert.families.distilbert import DISTILBERT
from minibert.families.electra import ELECTRA
from minibert.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from minibert.heads import HEAD_CLASSES
from minibert.model import Encoder
from minibert.parity.stages import Batch, as_ours

MASKED_SHARE = 0.2  # of the tokens carry a label of the masked language model
CHOICES = 2  # of a multiple-choice question


@dataclass(frozen=True)
class Size:
    """A checkpoint to be made: its name in reports, and the values of its config.json under BERT's names."""

    name: str
    family: Family
    values: dict[str, Any]
    tokens: int  # S of the batch
    full: bool = False  # whether it is one of the published sizes
    seed: int = 0

    @property
    def millions(self) -> float:
        """Millions of parameters of its encoder."""
        with torch.device("meta"):
            encoder = Encoder(Config.from_dict({"model_type": self.family.name} | self.config(None)))
        return sum(parameter.numel() for parameter in encoder.parameters()) / 1e6

    def config(self, head: str | None) -> dict[str, Any]:
        """The arguments of upstream's configuration class, under the names of this model type."""
        values = dict(self.values)
        if head in ("question-answering", "pretraining"):  # a start and an end; in order or not
            values["num_labels"] = 2
        return {self.family.keys.get(name, name): value for name, value in values.items()}


def tiny(name: str, family: Family = BERT, seed: int = 0, **changes: Any) -> Size:
    """A checkpoint of a few thousand parameters: widths that are no power of two, every dropout another one.

    max_position_embeddings, 11 by default, are those that tokens can take.
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
    values |= {name: 0.4 for name in ("qa_dropout", "choice_dropout") if name in family.keys}
    values |= changes
    tokens: int = values["max_position_embeddings"]
    before = {"model_type": family.name, "pad_token_id": values.get("pad_token_id")}
    values["max_position_embeddings"] += Config.from_dict(before).first_position
    return Size(f"tiny {family.title}: {name}", family, values, tokens, seed=seed)


TINY = (
    tiny("head width 8, three segments, intermediate 37", type_vocab_size=3),
    tiny("one layer", num_hidden_layers=1, seed=1),
    tiny("one head, one segment", num_attention_heads=1, type_vocab_size=1, seed=2),
    tiny("eps 1e-5, one label", layer_norm_eps=1e-5, num_labels=1, seed=3),
    *(tiny(f"activation {name}", hidden_act=name, seed=4) for name in ACTIVATIONS[1:]),
    tiny("head width 8, intermediate 37", DISTILBERT, seed=5),
    tiny("sinusoidal positions, one head", DISTILBERT, num_attention_heads=1, sinusoidal_pos_embds=True, seed=6),
    *(tiny(f"activation {name}", DISTILBERT, hidden_act=name, seed=7) for name in ACTIVATIONS[1:]),
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
)
DISTILBERT_BASE = Size("DistilBERT-base, random", DISTILBERT, {"num_labels": 3}, 16, full=True)
BERT_BASE = Size("BERT-base, random", BERT, {"num_labels": 3}, 16, full=True)
BERT_LARGE = Size(
    "BERT-large, random",
    BERT,
    {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "num_labels": 3,
    },
    16,
    full=True,
)


ROBERTA_BASE = Size(
    "RoBERTa-base, random",
    ROBERTA,
    {"num_labels": 3, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    16,
    full=True,
)
ALBERT_BASE = Size(
    "ALBERT-base, random",
    ALBERT,
    {"num_labels": 3, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    16,
    full=True,
)
ELECTRA_SMALL = Size("ELECTRA-small, random", ELECTRA, {"num_labels": 3}, 16, full=True)
RELATIVES = (ROBERTA_BASE, ALBERT_BASE, ELECTRA_SMALL)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' remarks on new heads, its progress bars and its deprecations, and put back what was set."""
    logging = importlib.import_module("transformers").utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def upstream_class(family: Family, head: str | None) -> Any:
    """The class in transformers for a task head (None: the bare encoder)."""
    suffix = HEAD_CLASSES[head].upstream if head else "Model"
    return getattr(importlib.import_module("transformers"), family.upstream + suffix)


def mistake_upstream(theirs: nn.Module, head: str | None, folder: Path) -> str:
    """What an older transformers has built wrongly, so that there is nothing to compare with; "" for all else.

    In 5.0: multiple choice of XLM-R and CamemBERT, and the decoder of their masked language models.
    """
    if head is None:
        return ""
    config, names = Config.from_file(folder / "config.json"), dict(theirs.named_parameters())
    if HEAD_CLASSES[head].first_layer(config) == "pooler" and not any(".pooler." in name for name in names):
        return "without the pooler that it reads"
    biases = set(config.family.decoder_bias)  # of DistilBERT there is one name
    if config.tie_word_embeddings and len(biases) == 2 and biases <= set(names):
        return "with two biases in place of one"
    return ""


def randomise(model: nn.Module, seed: int, only: set[str] | None = None) -> None:
    """Draw every parameter (or those named) anew: no bias is zero, no LayerNorm is one.

    Matrices keep the variance of what passes through them, so that scores are neither flat nor saturated.
    """
    generator = torch.Generator().manual_seed(seed)
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only is not None and name not in only:
                continue
            module = modules[name.rpartition(".")[0]]
            std = parameter.shape[-1] ** -0.5 if isinstance(module, nn.Linear) and parameter.dim() == 2 else 0.25
            parameter.normal_(std=std, generator=generator)
            if isinstance(module, nn.LayerNorm) and name.endswith("weight"):
                parameter.add_(1.0)


def make(size: Size, head: str | None, folder: Path) -> nn.Module:
    """Write a random checkpoint of this size and head into `folder`; return upstream's model, in eval mode."""
    with quiet():
        config_class = getattr(importlib.import_module("transformers"), size.family.upstream + "Config")
        config = config_class(**size.config(head), attn_implementation="eager")
        model: nn.Module = upstream_class(size.family, head)(config).eval()
        randomise(model, size.seed)
        model.save_pretrained(folder)  # type: ignore[operator]  # an upstream model, typed as Module
    return model


def open_upstream(folder: Path, family: Family, head: str | None, pooler: bool) -> tuple[nn.Module, bool]:
    """Upstream's model of a checkpoint, and whether that was complete for it; what it lacks is drawn at random."""
    options: dict[str, Any] = {} if head or not family.has_pooler else {"add_pooling_layer": pooler}
    kind = upstream_class(family, head)
    with quiet():
        if head in ("question-answering", "pretraining"):
            options["num_labels"] = 2
        model, account = kind.from_pretrained(
            folder,
            attn_implementation="eager",
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    for parameter in model.parameters():
        # Read from a file it may begin at any multiple of 4 bytes, and there a product with a matrix of one row, such
        # as the classifier of multiple choice, rounds differently than in memory of its own.
        parameter.data = parameter.data.clone()
    new = {*account["missing_keys"], *(key if isinstance(key, str) else key[0] for key in account["mismatched_keys"])}
    randomise(model, 0, only=new)
    return model.eval(), not new


@dataclass(frozen=True)
class Task:
    """What is asked of one head: a batch in its shape and labels for its loss."""

    batch: Batch
    labels: dict[str, Tensor] = field(default_factory=dict)


def make_batch(config: Any, tokens: int, rows: int = 6, seed: int = 0) -> Batch:
    """Random ids (rows, tokens): a row of full length, one of length 1, others between; every segment in turn.

    Padding is pad_token_id in every other row and random ids in between: under the mask, what stands there must not
    matter. No row is padding alone. In the row of full length one token is [PAD] and is not masked.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (rows,), generator=generator)
    lengths[0], lengths[1] = tokens, 1
    position = torch.arange(tokens)
    mask = (position < lengths[:, None]).long()
    ids = torch.randint(0, config.vocab_size, (rows, tokens), generator=generator)
    pad = torch.full_like(ids, config.pad_token_id or 0)
    ids = torch.where((mask == 0) & (torch.arange(rows)[:, None] % 2 == 0), pad, ids)
    ids[0, 1:2] = pad[0, 1:2]
    kinds = max(getattr(config, "type_vocab_size", 0), 1)
    segments = (position * kinds // lengths[:, None]).clamp(max=kinds - 1)  # 0 ... 0 1 ... 1; padding is the last
    return Batch(ids, mask, segments)


def task(head: str | None, config: Any, tokens: int, seed: int = 0) -> Task:
    """A batch and labels for one head; `config` is upstream's or ours."""
    batch = make_batch(config, tokens, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    B, S = batch.input_ids.shape

    def draw(limit: int, *shape: int) -> Tensor:
        return torch.randint(0, limit, shape, generator=generator)

    if head in ("masked-lm", "pretraining"):
        chosen = (torch.rand(B, S, generator=generator) < MASKED_SHARE) & (batch.attention_mask == 1)
        chosen[:, 0] = True
        labels = {"labels": torch.where(chosen, batch.input_ids, -100)}
        mask_id = min(103, config.vocab_size - 1)
        batch = Batch(torch.where(chosen, mask_id, batch.input_ids), batch.attention_mask, batch.token_type_ids)
        asks_order = "sentence_order" in as_ours(config).family.heads.get("pretraining", {})
        of_pairs = "sentence_order_label" if asks_order else "next_sentence_label"
        return Task(batch, labels | ({of_pairs: draw(2, B)} if head == "pretraining" else {}))
    if head == "replaced-token-detection":
        return Task(batch, {"labels": draw(2, B, S).masked_fill(batch.attention_mask == 0, -100)})
    if head == "next-sentence":
        return Task(batch, {"labels": draw(2, B)})
    if head == "sequence-classification":
        return Task(batch, {"labels": text_labels(config, B, generator)})
    if head == "token-classification":
        return Task(batch, {"labels": draw(config.num_labels, B, S).masked_fill(batch.attention_mask == 0, -100)})
    if head == "question-answering":
        start, end = draw(S, B), draw(S, B)
        start[-1], end[0] = S + 3, -4  # past the last token: must not count; before the first: counts as 0
        return Task(batch, {"start_positions": start, "end_positions": end})
    if head == "multiple-choice":
        parts = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return Task(Batch(*(x.view(B // CHOICES, CHOICES, S) for x in parts)), {"labels": draw(CHOICES, B // CHOICES)})
    return Task(batch)


def text_labels(config: Any, rows: int, generator: torch.Generator) -> Tensor:
    """Labels of whole texts by problem_type: classes, several at once, or numbers where there is one output."""
    K = config.num_labels
    if config.problem_type == "multi_label_classification":
        return torch.randint(0, 2, (rows, K), generator=generator).float()
    if config.problem_type == "regression" or K == 1:
        return torch.randn((rows, K) if K > 1 else (rows,), generator=generator)
    return torch.randint(0, K, (rows,), generator=generator)
