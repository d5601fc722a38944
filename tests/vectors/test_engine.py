"""The engine gives the vectors of the readable encoder, whatever the lengths, the recipe and the kernels."""

import copy
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engine import (
    CPU,
    ENCODER,
    ENGINE,
    MIXED,
    RELATIVES,
    L,
    Rows,
    V,
    cosine,
    difference,
    random_encoder,
    random_rows,
    readable,
)
from torch import Tensor, nn

from minibert import load
from minibert.config import ACTIVATIONS
from minibert.kernels.packing import PADDED_FROM, PackedTexts, pack
from minibert.utils import device
from minibert.utils.device import PendingCopy
from minibert.vectors import engine as module
from minibert.vectors.engine import Engine
from minibert.vectors.recipe import Recipe

BOUND = 1e-5


# ---------------------------------------------------------------------------------------------------------------
# Equal to the readable path


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=14),
    pooling=st.sampled_from(["cls", "mean", "max", "pooler"]),
    layers=st.lists(st.integers(-L - 1, L), min_size=1, max_size=3),
    combine=st.sampled_from(["concat", "sum", "mean"]),
    batch_tokens=st.sampled_from([1, 7, 50, 4096]),
)
def test_the_vectors_equal_the_readable_path(lengths, pooling, layers, combine, batch_tokens):
    layers, rows = [-1] if pooling == "pooler" else layers, random_rows(lengths)
    got = ENGINE.vectors(rows, Recipe(pooling, layers, combine, batch_tokens=batch_tokens))
    assert difference(got, readable(ENCODER, rows, pooling, layers, combine)) < BOUND


LENGTHS = [*range(1, 513, 23), 127, 128, 129, 511, 512]
MANY = [5] * 70  # whose first tokens are padded


@pytest.mark.parametrize(
    ("lengths", "pooling"),
    [(random.Random(1).sample(LENGTHS, len(LENGTHS)), "cls"), (MANY, "cls"), (MANY, "pooler")],
    ids=["1 to 512", "many", "many through the pooler"],
)
def test_lengths_in_any_order_and_many_texts_equal_the_readable_path(lengths, pooling):
    rows = random_rows(lengths)
    assert difference(ENGINE.vectors(rows, Recipe(pooling)), readable(ENCODER, rows, pooling)) < BOUND


@pytest.mark.parametrize("changes", [{"hidden_act": name} for name in ACTIVATIONS] + RELATIVES)
def test_what_relatives_changed_equals_the_readable_path(changes):
    encoder, rows = random_encoder(**changes), random_rows(MIXED)
    layers = tuple(range(L + 1))
    given = copy.deepcopy(encoder)
    engine = Engine(given, keep_encoder=False)
    assert all(parameter.is_meta for parameter in given.layers.parameters())  # their memory is free
    assert len(engine.encoder.layers) == len(encoder.layers)
    assert difference(engine.vectors(rows, Recipe("mean", layers)), readable(encoder, rows, "mean", layers)) < BOUND


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_real_weights_equal_the_readable_path_and_bfloat16_is_near(minilm, pooling):
    encoder = load(minilm)
    rows = [[101, *row, 102] for row in random_rows([0, 1, 1, 9, 22, 22, 22, 60], encoder.config.vocab_size)]
    exact = readable(encoder, rows, pooling)
    assert difference(Engine(encoder).vectors(rows, Recipe(pooling)), exact) < BOUND
    if device.has_bfloat16(CPU):
        got = Engine(encoder, "bfloat16").vectors(rows, Recipe(pooling))
        assert cosine(got, exact) > 0.9999
        assert difference(got, exact) > 1e-4  # it really is bfloat16


def test_the_encoder_is_not_changed_and_its_dropout_never_applied():
    encoder, rows = random_encoder(), random_rows(MIXED)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    assert difference(Engine(encoder.train()).vectors(rows), readable(ENCODER, rows)) < BOUND
    assert all(module.training for module in encoder.modules())
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


# ---------------------------------------------------------------------------------------------------------------
# Mistakes that the comparison must find


def shift_a_boundary(rows: Rows, device: torch.device, *others: Any) -> PackedTexts:
    """As many texts and tokens as before, but the first two groups end elsewhere."""
    packed = pack(rows, device)
    packed.groups[:2] = packed.groups[1::-1]
    return packed


def read_the_second(self: PackedTexts, x: Tensor) -> Tensor:
    return x[self.bounds[:-1] + 1] if self.is_last and self.read is not None else x


def cut_the_last_token(query: Tensor, key: Tensor, value: Tensor, packed: PackedTexts) -> Tensor:
    contexts = []
    for q, k, v in zip(*(packed.by_group(x) for x in (query, key, value)), strict=True):
        q, k, v = q.transpose(1, 2), k[:, :-1].transpose(1, 2), v[:, :-1].transpose(1, 2)
        contexts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts)


@pytest.mark.parametrize(
    ("target", "name", "mistake", "poolings"),
    [
        (module, "pack", shift_a_boundary, ("cls", "mean")),
        (module, "choose_attention", lambda *machine: cut_the_last_token, ("cls", "mean")),
        (PendingCopy, "wait", lambda self: self.x.roll(1, dims=0), ("cls", "mean")),
        (PackedTexts, "wanted", read_the_second, ("cls",)),
    ],
    ids=["a wrong group boundary", "the last token unseen", "rows out of order", "the token after [CLS]"],
)
def test_the_comparison_finds(monkeypatch, target, name, mistake, poolings):
    rows = random_rows([3, 8, 8, 5, 13])
    monkeypatch.setattr(target, name, mistake)
    for pooling in poolings:
        got = Engine(ENCODER).vectors(rows, Recipe(pooling))
        assert difference(got, readable(ENCODER, rows, pooling)) > 100 * BOUND


# ---------------------------------------------------------------------------------------------------------------
# Precision


def test_bfloat16_needs_the_hardware_and_auto_takes_it_where_it_is(monkeypatch):
    monkeypatch.setattr(device, "cpu_features", set)
    assert Engine(ENCODER, "auto").dtype == torch.float32
    with pytest.warns(UserWarning, match="AVX512_BF16"):
        assert Engine(ENCODER, "bfloat16").kernels.startswith("float32 on cpu")
    for feature in ("avx512_bf16", "amx_bf16"):
        monkeypatch.setattr(device, "cpu_features", lambda feature=feature: {feature})
        assert Engine(ENCODER, "auto").dtype == torch.bfloat16


# ---------------------------------------------------------------------------------------------------------------
# Batches, and what a GPU does as far as a CPU can show it


def limit_memory(monkeypatch: pytest.MonkeyPatch, engine: Engine, tokens: int = 10**9) -> list[int]:
    """Make every batch over `tokens` run out of memory; the list fills with the sizes that were tried."""
    forward, tried = engine.forward, []

    def limited(packed, *request):
        tried.append(len(packed.ids))
        if tried[-1] > tokens:
            raise torch.OutOfMemoryError("out of memory")
        return forward(packed, *request)

    monkeypatch.setattr(engine, "forward", limited)
    return tried


def test_out_of_memory_halves_the_batch_unless_it_is_a_single_text(monkeypatch):
    engine, rows = Engine(ENCODER), random_rows([8] * 32)
    tried = limit_memory(monkeypatch, engine, 70)
    assert difference(engine.vectors(rows), readable(ENCODER, rows)) < BOUND
    assert tried == [256, 128, 64, 64, 64, 64]
    with pytest.raises(torch.OutOfMemoryError):
        engine.vectors(random_rows([3, 71, 3]))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_batches_hold_batch_tokens_and_large_ones_are_padded_to_few_sizes(monkeypatch, pooling):
    engine, rows = Engine(ENCODER), random_rows([37] * 9 + [29] * 12 + [3])
    tried = limit_memory(monkeypatch, engine)
    vectors = engine.vectors(rows, Recipe(pooling, batch_tokens=PADDED_FROM + 50))
    assert tried == [304, 304, 90]  # 296 and 298 are padded; the rest is a small batch
    assert difference(vectors, readable(ENCODER, rows, pooling)) < BOUND
    tried.clear()
    engine.vectors(random_rows([8, 3, 8, 20, 8, 5]), Recipe("cls", batch_tokens=16))
    assert tried == [20, 16, 16]  # a text longer than that alone


@pytest.mark.parametrize("lengths", [MIXED, [5] * 70], ids=["all lengths", "one length, padded"])
def test_the_token_at_its_place_is_read_in_place_of_the_first(lengths):
    rows, numbers = random_rows(lengths), random.Random(0)
    places = [numbers.randrange(length) for length in lengths]
    states = []
    for row, place in zip(rows, places, strict=True):
        ids = torch.tensor([row])
        with torch.no_grad():
            states.append(ENCODER(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, place])
    expected = torch.stack(states).numpy()
    assert difference(ENGINE.vectors(rows, places=places), expected) < BOUND
    assert difference(ENGINE.vectors(rows), expected) > 0.1


# ---------------------------------------------------------------------------------------------------------------
# What it refuses

FORK = r"""
import multiprocessing, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of a fork beside threads
import torch
from support.engine import ENCODER, ENGINE
from minibert.vectors.engine import Engine
torch.set_num_threads(2)
rows = [[5] * 40] * 40
ENGINE.vectors(rows)
def work(threads):
    torch.set_num_threads(threads)
    for attempt in (lambda: ENGINE.vectors(rows), lambda: Engine(ENCODER)):
        try:
            attempt()
            print("computed")
        except RuntimeError as error:
            print(error)
    sys.stdout.flush()
for threads in (2, 1):
    process = multiprocessing.get_context("fork").Process(target=work, args=(threads,))
    process.start()
    process.join(60)
    process.kill()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_of_a_process_that_has_computed_is_refused_instead_of_waiting_forever():
    tests = Path(__file__).parent.parent
    result = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, cwd=tests)
    refused, refused_too, *one_thread = result.stdout.splitlines()
    assert refused == refused_too
    assert refused.startswith("this process was forked")
    assert one_thread == ["computed", "computed"]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([[1, 2], []], {}, r"row 1\b"),
        ([[1] * 513], {}, r"row 0 .*513.* 512\b"),
        ([[1, 2], [3], [4, V]], {}, rf"row 2 .* {V}\b.*vocab_size {V}: 0 to {V - 1}$"),
        ([[-1]], {}, r"row 0 .* -1\b"),
        ([[1]], {"layers": (L + 1,)}, rf"layers .* {L + 1};.* {L} layers"),
        ([[1]], {"precision": "float16"}, r"'float16'.*\bcpu\b.*CUDA"),
        ([[1]], {"precision": "int4"}, r"precision is 'int4'.*float32, bfloat16, float16, int8, auto"),
    ],
)
def test_what_the_engine_cannot_compute_is_refused(rows, settings, message):
    with pytest.raises(ValueError, match=message):
        Engine(ENCODER, settings.get("precision", "float32")).vectors(rows, Recipe("cls", **settings))


@pytest.mark.parametrize("changes", RELATIVES[:-1], ids=str)
def test_an_engine_that_overlooks_what_a_relative_changed_would_be_caught(changes):
    encoder, rows = random_encoder(**changes), random_rows(MIXED)
    engine = Engine(encoder)
    if len(encoder.layers) < L:
        engine.encoder.layers[-1] = Engine(random_encoder()).encoder.layers[-1]
    elif hasattr(encoder.embeddings, "embedding_projection"):
        own = engine.encoder.embeddings.embedding_projection
        own.bias = torch.zeros_like(own.bias)
    else:
        table = engine.encoder.embeddings.position
        table.weight = nn.Parameter(torch.roll(table.weight, 1, dims=0))
    assert difference(engine.vectors(rows), readable(encoder, rows)) > 100 * BOUND
