"""What only ModernBERT has: two sets of keys in config.json, windows, angles, heads that begin with a layer."""

import dataclasses
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.models import HARD_TEXTS, Pair, edit_json, small_config, unequal
from support.tokenizers import differences, write_config
from support.training import Found, batch_of, examples, to_the_end
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library
from torch import Tensor
from transformers import AutoTokenizer, ModernBertConfig, PreTrainedTokenizerFast

import minibert
from minibert.families.modernbert import GLOBAL, LOCAL, MODERNBERT
from minibert.heads import HEAD_CLASSES
from minibert.kernels import training
from minibert.parity.checkpoints import make, randomise, task, tiny
from minibert.text.byte_pairs import BytePairs
from minibert.train.batches import Batches
from minibert.train.loop import packed_loss, readable_loss, train
from minibert.train.settings import TrainSettings
from minibert.train.student import new_student
from minibert.utils.files import read_json
from minibert.vectors.engine import Engine
from minibert.vectors.readable import readable_vectors

Raw = dict[str, Any]
OLDER = {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 70.0}
NEWER: Raw = {
    "layer_types": [GLOBAL, LOCAL, GLOBAL, LOCAL],
    "rope_parameters": {
        GLOBAL: {"rope_type": "default", "rope_theta": 500.0},
        LOCAL: {"rope_type": "default", "rope_theta": 70.0},
    },
}
FOUR: Raw = {"num_hidden_layers": 4, "local_attention": 5}


def config(**raw: Any) -> minibert.Config:
    return small_config(MODERNBERT, **FOUR | raw)


def compared(folder: Path, head: str | None, tokens: int = 11, **sizes: Any) -> list[Any]:
    """The tensors in which a random checkpoint differs between the two sides."""
    size = tiny("drawn", MODERNBERT, **{"max_position_embeddings": 40} | FOUR | sizes)
    theirs = make(size, head, folder)
    both = Pair(minibert.load(folder, head=head), theirs, task(head, theirs.config, tokens), head)
    return unequal(both.climb(train=head is not None).rows)


# ---------------------------------------------------------------------------------------------------------------
# config.json


def test_older_and_newer_keys_say_the_same_and_a_file_without_either_has_the_defaults():
    older, newer, neither = config(**OLDER), config(**NEWER), config()
    assert older.architecture.windows == newer.architecture.windows == (None, 5, None, 5)
    assert older.architecture.rotary_thetas == newer.architecture.rotary_thetas == (500.0, 70.0, 500.0, 70.0)
    assert neither.architecture.windows == (None, 5, 5, None)
    assert neither.architecture.rotary_thetas == (160_000.0, 10_000.0, 10_000.0, 160_000.0)
    assert small_config(MODERNBERT, num_hidden_layers=2, local_attention=None).architecture.windows == (None, 128)


@pytest.mark.parametrize("raw", [OLDER, NEWER, {}, {"layer_types": [LOCAL, LOCAL, GLOBAL, LOCAL]}])
def test_what_we_write_transformers_reads_as_the_same_layers_and_angles(raw):
    ours = config(**raw)
    theirs = ModernBertConfig(**{name: value for name, value in ours.to_dict().items() if name != "model_type"})
    assert [GLOBAL if window is None else LOCAL for window in ours.architecture.windows] == theirs.layer_types
    assert ours.architecture.rotary_thetas == tuple(
        theirs.rope_parameters[kind]["rope_theta"] for kind in theirs.layer_types
    )
    assert minibert.Config.from_dict(ours.to_dict()) == ours


def test_a_regular_pattern_fits_another_number_of_layers_and_a_list_does_not():
    assert dataclasses.replace(config(**NEWER), num_hidden_layers=3).architecture.windows == (None, 5, None)
    with pytest.raises(ValueError, match="layer_types has 4 values, for 3 layers"):
        dataclasses.replace(config(layer_types=[LOCAL, LOCAL, GLOBAL, LOCAL]), num_hidden_layers=3)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"layer_types": [GLOBAL]}, "layer_types has 1 values, for 4 layers"),
        ({"layer_types": [GLOBAL, LOCAL, LOCAL, "chunked_attention"]}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
        ({"local_attention": -1}, "local_attention is -1"),
        ({"local_attention": 2.5}, "local_attention is 2.5"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "yarn"}}}, f"rope_type 'yarn' of {GLOBAL} .*'default'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
        ({"rope_parameters": {LOCAL: {"rope_theta": 0.0}}}, "local_rope_theta is 0.0"),
        ({"global_rope_theta": "big"}, "global_rope_theta is 'big'"),
        ({"classifier_activation": "swoosh"}, "is 'swoosh'; choose from gelu, "),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'.* cls, mean"),
        ({"hidden_size": 9, "num_attention_heads": 3}, "3 wide"),
        ({"initializer_cutoff_factor": 0.0}, "initializer_cutoff_factor is 0.0"),
    ],
)
def test_a_config_that_no_modernbert_can_have_is_refused_by_name(raw, message):
    with pytest.raises((ValueError, TypeError), match=message):
        config(**raw)


def test_another_ignored_label_is_refused():
    with pytest.raises(ValueError, match="sparse_pred_ignore_index 0"):
        HEAD_CLASSES["masked-lm"](config(sparse_pred_ignore_index=0))


def test_a_fused_tensor_is_several_of_ours_in_order_and_its_whole_shape_is_named(tmp_path):
    model = HEAD_CLASSES["masked-lm"](config())
    minibert.save(model, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    layer = model.encoder.layers[1]
    for name, modules in (
        ("attn.Wqkv", (layer.attention.query, layer.attention.key, layer.attention.value)),
        ("mlp.Wi", (layer.feed_forward.expand, layer.feed_forward.gate)),
    ):
        whole = torch.cat([module.weight for module in modules])
        assert torch.equal(stored[f"model.layers.1.{name}.weight"], whole)
    edit_json(tmp_path / "config.json", intermediate_size=36)
    with pytest.raises(ValueError, match=r"mlp\.Wi\.weight.*74, 24.*72, 24"):
        minibert.load(tmp_path)
    with pytest.raises(ValueError, match=r"attention\.query is layers\.\{\}\.attn\.Wqkv.* 3 "):
        dataclasses.replace(MODERNBERT, fused=("layers.{}.mlp.Wi",))


# ---------------------------------------------------------------------------------------------------------------
# Beside transformers


@pytest.mark.parametrize("tokens", [1, 2, 3, 39, 40])
@pytest.mark.parametrize("window", [0, 1, 4, 5, 77, 78])
def test_texts_shorter_longer_and_as_long_as_the_window_are_bit_identical(window, tokens, tmp_path):
    assert compared(tmp_path, None, tokens, local_attention=window) == []


@pytest.mark.parametrize("head", MODERNBERT.heads)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_every_head_is_bit_identical_with_each_pooling_and_activation(head, pooling, tmp_path):
    activation = {"classifier_activation": "silu"}
    assert compared(tmp_path, head, classifier_pooling=pooling, **activation, **OLDER, head_bias=True) == []


def test_float64_rotates_in_float64_where_upstream_rounds_to_float32(tmp_path):
    size = tiny("drawn", MODERNBERT, **FOUR)
    theirs = make(size, None, tmp_path).double()
    ours = minibert.load(tmp_path, dtype=torch.float64)
    ids = torch.arange(4, 14)[None]
    with torch.no_grad():
        difference = (ours(ids).last_hidden_state - theirs(ids).last_hidden_state).abs().max()
    assert 1e-12 < difference < 1e-5


# ---------------------------------------------------------------------------------------------------------------
# The fast paths


def encoder(window: int, tokens: int = 300) -> Any:
    made = minibert.Encoder(config(local_attention=window, max_position_embeddings=tokens)).eval()
    randomise(made, 3)
    return made


@pytest.mark.parametrize("window", [0, 3, 8, 50, 1000])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_fast_vectors_are_the_readable_ones_at_the_edges_of_blocks_and_windows(window, pooling):
    made = encoder(window)
    lengths = sorted({1, 2, window + 1, window // 2 + 1, window // 2 + 2, 2 * window, 3 * window + 1, 299, 300})
    rows = [[3 + (7 * at + length) % 90 for at in range(length)] for length in lengths if 0 < length <= 300]
    recipe = minibert.Recipe(pooling, layers=(1, -1), combine="concat")
    found = Engine(made, "float32").vectors(rows, recipe)
    assert np.abs(found - readable_vectors(made, rows, recipe)).max() < 1e-5


@pytest.mark.parametrize("head", MODERNBERT.heads)
@pytest.mark.parametrize("window", [2, 7])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_packed_step_is_the_readable_one_with_texts_longer_than_the_window(head, window, pooling):
    """In float64, so that nothing hides in rounding; a text of one token beside a long one has windows of padding."""
    last_is_local = {"layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL]}
    sizes = {"local_attention": window, "classifier_pooling": pooling, "max_position_embeddings": 70, "num_labels": 3}
    sizes |= {"sparse_prediction": window == 2}
    model = HEAD_CLASSES[head](config(vocab_size=101, **sizes, **last_is_local)).eval().double()
    randomise(model, 4)
    batch = batch_of(head, [3, 60, 12, 1, 33], family=MODERNBERT)
    assert max(Found.of(packed_loss, model, batch).apart(Found.of(readable_loss, model, batch)).values()) < 1e-10


class Largest:
    """The most scores that one call of attention has in a text and head."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.scores, self.right = 0, getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, query: Tensor, key: Tensor, *given: Any, **how: Any) -> Tensor:
        self.scores = max(self.scores, query.shape[2] * key.shape[2])
        context = self.right(query, key, *given, **how)
        return context


LONG, WINDOW = 512, 16


def test_local_layers_hold_no_more_scores_than_a_block_of_the_window_in_both_fast_paths(monkeypatch):
    made = encoder(WINDOW, LONG)
    local = dataclasses.replace(made.config, layer_types=(LOCAL,) * 4)
    made = minibert.Encoder(local).eval()
    row = [3 + at % 90 for at in range(LONG)]
    largest = Largest(monkeypatch, torch.nn.functional, "scaled_dot_product_attention")
    Engine(made, "float32").vectors([row], minibert.Recipe("mean"))
    assert 0 < largest.scores <= WINDOW * 2 * WINDOW
    model = HEAD_CLASSES["sequence-classification"](dataclasses.replace(local, classifier_pooling="mean"))
    largest = Largest(monkeypatch, training, "fused_attention")
    packed_loss(model, batch_of("sequence-classification", [LONG, 3], family=MODERNBERT)).backward()
    assert 0 < largest.scores <= WINDOW * 2 * WINDOW


def test_it_learns_in_bfloat16_without_padding():
    made = HEAD_CLASSES["sequence-classification"](config(vocab_size=101, num_labels=3))
    rows = examples("sequence-classification", [3, 9, 5, 7], family=MODERNBERT)
    settings = TrainSettings(epochs=40, batch_size=4, learning_rate=5e-3, precision="bfloat16", exact=False)
    curve = to_the_end(train(made, Batches(rows, 4, 0, made.config.pad_token_id), settings)).curve
    assert curve[-1] < 0.3 < curve[0]


# ---------------------------------------------------------------------------------------------------------------
# Its tokenizer, and its students


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer in the layout of the official one: NFC, bytes, [CLS] ... [SEP], runs of spaces."""
    path = tmp_path_factory.mktemp("modernbert")
    library = Library(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    learned = {"special_tokens": special, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    texts = [*HARD_TEXTS, *(f"the film is {word}" for word in ("good", "bad", "fine", "dull"))]
    library.train_from_iterator(texts * 3, trainers.BpeTrainer(vocab_size=400, **learned))
    library.add_tokens([AddedToken("  ", normalized=True), AddedToken("|||EMAIL|||", normalized=True)])
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad")}
    PreTrainedTokenizerFast(
        tokenizer_object=library,
        mask_token=AddedToken("[MASK]", lstrip=True, special=True),
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    ).save_pretrained(path)
    write_config(path, MODERNBERT.name, library.get_vocab_size(), max_position_embeddings=64)
    return path


def test_ids_are_those_of_transformers_and_of_the_byte_pairs_by_hand(folder):
    ours, theirs = minibert.load_tokenizer(folder, max_length=64), AutoTokenizer.from_pretrained(folder)
    with warnings.catch_warnings(action="ignore"):  # two of them are too long
        assert differences(ours, theirs, HARD_TEXTS, max_length=64) == []
    assert differences(ours, theirs, ["one film"], ["another  film |||EMAIL||| [MASK]"], 64) == []
    file = read_json(folder / "tokenizer.json")
    merges = [tuple(merge) for merge in file["model"]["merges"]]
    special = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    taking_space = [token["content"] for token in file["added_tokens"] if token["lstrip"]]
    by_hand = BytePairs(file["model"]["vocab"], merges, special_tokens=special, taking_space=taking_space)
    for text in (text for text in HARD_TEXTS if "  " not in text):  # two spaces are a token of its own
        normal = unicodedata.normalize("NFC", text)
        assert by_hand.ids(normal) == theirs(text, add_special_tokens=False)["input_ids"], text


def test_a_student_keeps_layer_0_which_has_no_norm_as_its_first():
    teacher = HEAD_CLASSES["masked-lm"](config())
    student = new_student(teacher, (0, 2))
    assert student.config.architecture.windows == (None, 5)
    assert torch.equal(student.encoder.layers[1].attention_norm.weight, teacher.encoder.layers[2].attention_norm.weight)
    for take, message in (((1, 2), "layer 1 of ModernBERT .* layer 0"), ((0, 0), "layer 0 of ModernBERT .* layer 1")):
        with pytest.raises(ValueError, match=message):
            new_student(teacher, take)
