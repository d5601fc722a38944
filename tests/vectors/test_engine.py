"""The engine gives the vectors of the readable encoder, whatever the lengths, the recipe and the kernels."""

from __future__ import annotations

import copy
import os
import platform
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from minibert import device, load
from minibert.config import Config
from minibert.kernels import matmul
from minibert.kernels.matmul import Linear, PackedLinear, PermittedLinear
from minibert.kernels.packing import FILLED_FROM, TOKEN_STEP, Packed, filler, last_step, pack
from minibert.model import Encoder
from minibert.parity.checkpoints import randomise
from minibert.vectors import engine as room
from minibert.vectors.engine import Engine
from minibert.vectors.recipe import Recipe

Rows = list[list[int]]
Matrix = NDArray[np.float32]
V, L, D = 97, 3, 32
BOUND = 1e-5
CPU = torch.device("cpu")
HERE_PACKED = pytest.mark.skipif(
    not matmul.is_right(PackedLinear, torch.float32), reason="this build of torch has no packed oneDNN products"
)
HAS_BFLOAT16 = pytest.mark.skipif(not device.has_bfloat16(CPU), reason="needs a CPU with AVX512_BF16 or AMX")


pytestmark = pytest.mark.usefixtures("one_thread")


def random_encoder(**changes: Any) -> Encoder:
    """A small encoder with every parameter random."""
    sizes = {"hidden_size": D, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": L}
    encoder = Encoder(Config(vocab_size=V, **(sizes | changes))).eval()
    randomise(encoder, 0)
    return encoder


ENCODER = random_encoder()
ENGINE = Engine(ENCODER)


def random_rows(lengths: list[int], vocabulary: int = V) -> Rows:
    numbers = random.Random(0)
    return [[numbers.randrange(vocabulary) for _ in range(length)] for length in lengths]


def readable(
    encoder: Encoder, ids: Rows, pooling: str = "cls", layers: tuple[int, ...] = (-1,), combine: str = "concat"
) -> Matrix:
    """The same request to the readable encoder, one text at a time: no batch, no padding, no order to lose."""
    pools: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "cls": lambda x: x[0],
        "mean": lambda x: x.mean(0),
        "max": lambda x: x.amax(0),
    }
    combines: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "concat": torch.flatten,
        "sum": lambda x: x.sum(0),
        "mean": lambda x: x.mean(0),
    }
    vectors = []
    for row in ids:
        tokens = torch.tensor([row])
        with torch.inference_mode():
            out = encoder(tokens, attention_mask=torch.ones_like(tokens), output_hidden_states=True)
        if pooling == "pooler":
            vectors.append(out.pooler_output[0])
        else:
            states = [out.hidden_states[layer % (encoder.config.num_hidden_layers + 1)][0] for layer in layers]
            vectors.append(combines[combine](torch.stack([pools[pooling](x) for x in states])))
    return np.stack([vector.float().numpy() for vector in vectors])


def difference(a: Matrix, b: Matrix) -> float:
    assert a.shape == b.shape
    assert a.dtype == b.dtype == np.float32
    return float(np.abs(a - b).max())


def settings_of_torch() -> tuple[Any, ...]:
    mkldnn = torch.backends.mkldnn
    return (
        torch.get_num_threads(),
        torch.get_num_interop_threads(),
        torch.get_float32_matmul_precision(),
        mkldnn.enabled,
        mkldnn.deterministic,
        mkldnn.fp32_precision,
        mkldnn.matmul.fp32_precision,
        torch.backends.cuda.matmul.allow_tf32,
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        tuple(torch.get_rng_state().tolist()),
    )


# -- equal to the readable path

MIXED = [5, 2, 9, 9, 5, 30, 1, 2, 17, 9, 64, 3, 5]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=14),
    pooling=st.sampled_from(["cls", "mean", "max", "pooler"]),
    layers=st.lists(st.integers(-L - 1, L), min_size=1, max_size=3),
    combine=st.sampled_from(["concat", "sum", "mean"]),
    batch_tokens=st.sampled_from([1, 7, 50, 4096]),
)
def test_the_vectors_equal_the_readable_path(
    lengths: list[int], pooling: str, layers: list[int], combine: str, batch_tokens: int
) -> None:
    asked = (-1,) if pooling == "pooler" else tuple(layers)
    rows = random_rows(lengths)
    got = ENGINE.vectors(rows, Recipe(pooling, asked, combine, batch_tokens=batch_tokens))
    assert difference(got, readable(ENCODER, rows, pooling, asked, combine)) < BOUND


def test_every_length_from_1_to_512_in_any_order_equals_the_readable_path() -> None:
    lengths = [*range(1, 513), 1, 511, 512]
    random.Random(1).shuffle(lengths)
    rows = random_rows(lengths)
    assert difference(ENGINE.vectors(rows), readable(ENCODER, rows)) < BOUND


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_every_activation_equals_the_readable_path(activation: str) -> None:
    encoder = random_encoder(hidden_act=activation)
    rows = random_rows(MIXED)
    assert difference(Engine(encoder).vectors(rows), readable(encoder, rows)) < BOUND


def test_distilbert_without_segments_and_pooler_equals_the_readable_path() -> None:
    encoder = random_encoder(model_type="distilbert", type_vocab_size=0)
    encoder.pooler = None
    rows = random_rows(MIXED)
    assert difference(Engine(encoder).vectors(rows), readable(encoder, rows)) < BOUND


RELATIVES: list[dict[str, Any]] = [
    {"first_position": 2, "max_position_embeddings": 66},
    {"shared_layers": (0,) * L},
    {"shared_layers": (0, 1, 0)},
    {"embedding_size": 12},
    {"embedding_size": 12, "shared_layers": (0,) * L, "first_position": 1, "type_vocab_size": 1},
]


@pytest.mark.parametrize("changes", RELATIVES, ids=str)
@pytest.mark.parametrize("keep_encoder", [True, False])
def test_what_relatives_changed_equals_the_readable_path(changes: dict[str, Any], keep_encoder: bool) -> None:
    encoder, rows = random_encoder(**changes), random_rows(MIXED)
    layers = tuple(range(L + 1))
    engine = Engine(copy.deepcopy(encoder), keep_encoder=keep_encoder)
    assert len(engine.layers) == L and len(set(map(id, engine.layers))) == len(encoder.layers)
    assert difference(engine.vectors(rows, Recipe("mean", layers)), readable(encoder, rows, "mean", layers)) < BOUND


@pytest.mark.parametrize("changes", RELATIVES[:-1], ids=str)
def test_an_engine_that_overlooks_what_a_relative_changed_would_be_caught(changes: dict[str, Any]) -> None:
    encoder, rows = random_encoder(**changes), random_rows(MIXED)
    engine = Engine(encoder)
    if encoder.embeddings.embedding_projection is not None:
        engine.embeddings.embedding_projection.bias = torch.zeros_like(engine.embeddings.embedding_projection.bias)
    elif encoder.config.first_position:
        engine.embeddings.place = torch.roll(engine.embeddings.place, 1, dims=0)
    else:
        engine.layers[-1] = Engine(random_encoder()).layers[-1]
    assert difference(engine.vectors(rows), readable(encoder, rows)) > 100 * BOUND


def test_positions_before_the_first_one_leave_room_for_fewer_tokens() -> None:
    engine = Engine(random_encoder(first_position=2, max_position_embeddings=10))
    assert engine.vectors([[1] * 8]).shape == (1, D)
    with pytest.raises(ValueError, match="row 0 has 9 tokens and the checkpoint has 8 positions"):
        engine.vectors([[1] * 9])


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_real_weights_equal_the_readable_path(minilm: Path, pooling: str) -> None:
    encoder = load(minilm)
    rows = [[101, *row, 102] for row in random_rows([0, 1, 1, 9, 22, 22, 22, 60, 126, 510], encoder.config.vocab_size)]
    assert difference(Engine(encoder).vectors(rows, Recipe(pooling)), readable(encoder, rows, pooling)) < BOUND


def test_a_padding_id_inside_a_text_is_a_token_like_any_other() -> None:
    rows = [[5, 0, 0, 7], [0], [9, 0]]
    assert difference(ENGINE.vectors(rows), readable(ENCODER, rows)) < BOUND


def test_rows_come_in_the_order_of_the_texts() -> None:
    rows = random_rows(MIXED)
    assert difference(ENGINE.vectors(rows)[::-1], ENGINE.vectors(rows[::-1])) < BOUND


def test_no_text_gives_no_row_of_the_right_width() -> None:
    assert ENGINE.vectors([], Recipe(layers=(-1, -2))).shape == (0, 2 * D)


def test_layers_above_the_last_one_asked_for_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ENCODER)
    monkeypatch.setattr(engine, "layers", engine.layers[:2])
    rows = random_rows(MIXED)
    assert difference(engine.vectors(rows, Recipe(layers=(0, 2))), readable(ENCODER, rows, "cls", (0, 2))) < BOUND


def test_the_encoder_is_not_changed_and_its_dropout_never_applied() -> None:
    encoder = random_encoder()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    rows = random_rows(MIXED)
    assert difference(Engine(encoder.train()).vectors(rows), readable(ENCODER, rows)) < BOUND
    assert all(module.training for module in encoder.modules())
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


# -- mistakes that the comparison must find


def shift_a_boundary(rows: Rows, device: torch.device, second: Any = None, unplaced: Any = None) -> Packed:
    """As many texts and tokens as before, but the first two groups end elsewhere."""
    packed = pack(rows, device)
    packed.groups[:2] = packed.groups[1::-1]
    return packed


def cut_the_last_token(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed: Packed) -> torch.Tensor:
    contexts = []
    for q, k, v in zip(*(packed.by_group(x) for x in (query, key, value)), strict=True):
        q, k, v = q.transpose(1, 2), k[:, :-1].transpose(1, 2), v[:, :-1].transpose(1, 2)
        contexts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts)


def shifted(self: room.Arrival) -> Matrix:
    return np.roll(self.vectors.numpy(), 1, axis=0)


@pytest.mark.parametrize(
    ("target", "name", "mistake", "poolings"),
    [
        (room, "pack", shift_a_boundary, ("cls", "mean")),
        (room, "choose_attention", lambda *machine: cut_the_last_token, ("cls", "mean")),
        (room.Arrival, "wait", shifted, ("cls", "mean")),
        (room.Packed, "starts", property(lambda packed: packed.bounds[:-1] + 1), ("cls",)),  # the mean reads no [CLS]
    ],
    ids=["a wrong group boundary", "the last token unseen", "rows out of order", "the token after [CLS]"],
)
def test_the_comparison_finds(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, mistake: object, poolings: tuple[str, ...]
) -> None:
    rows = random_rows([3, 8, 8, 5, 13])
    monkeypatch.setattr(target, name, mistake)
    for pooling in poolings:
        got = Engine(ENCODER).vectors(rows, Recipe(pooling))
        assert difference(got, readable(ENCODER, rows, pooling)) > 100 * BOUND


# -- the kernels of a matrix product


@pytest.mark.parametrize("kernel", [pytest.param(PackedLinear, marks=HERE_PACKED), PermittedLinear, Linear])
def test_every_kernel_gives_the_same_vectors_and_leaves_the_settings_of_torch_alone(
    monkeypatch: pytest.MonkeyPatch, kernel: type[Linear]
) -> None:
    before = settings_of_torch()
    monkeypatch.setattr(room, "choose_linear", lambda dtype, device: kernel)
    engine = Engine(ENCODER)
    rows = random_rows(MIXED)
    assert difference(engine.vectors(rows), readable(ENCODER, rows)) < BOUND
    assert kernel.words in engine.kernels
    assert settings_of_torch() == before


def test_choosing_a_kernel_leaves_the_settings_of_torch_alone() -> None:
    before = settings_of_torch()
    Engine(ENCODER)
    assert settings_of_torch() == before


def test_the_permission_is_taken_back_after_an_error() -> None:
    before = settings_of_torch()
    with pytest.raises(ZeroDivisionError), matmul.permission():
        assert settings_of_mkldnn() == "bf16"
        raise ZeroDivisionError
    assert settings_of_torch() == before


def settings_of_mkldnn() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)


def no_operator(*arguments: Any, **named: Any) -> torch.Tensor:
    raise AttributeError("no such operator")


def other_arguments(*arguments: Any, **named: Any) -> torch.Tensor:
    raise RuntimeError("expected at most 5 arguments")


def rounded(self: Linear, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """What a CPU with AMX makes of the permission: a product in bfloat16, under the name of float32."""
    y = torch.nn.functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16()).float()
    return y if residual is None else y + residual


def off_by_one_row(self: Linear, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    return torch.nn.functional.linear(x, self.weight, self.bias).roll(1, dims=0)


def without_activation(self: Linear, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    y = torch.nn.functional.linear(x, self.weight, self.bias)
    return y if residual is None else y + residual


FAULTS = [no_operator, other_arguments, rounded, off_by_one_row, without_activation]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_packed_kernel_falls_back_to_the_public_ones(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., torch.Tensor]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(PackedLinear, "__call__", fault)
    assert matmul.choose_linear(torch.float32, CPU) in (PermittedLinear, Linear)
    monkeypatch.setattr(PermittedLinear, "__call__", fault)
    assert matmul.choose_linear(torch.float32, CPU) is Linear
    rows = random_rows(MIXED)
    assert difference(Engine(ENCODER).vectors(rows), readable(ENCODER, rows)) < BOUND


def test_a_build_of_torch_without_the_operators_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedLinear, "__init__", no_operator)
    assert matmul.choose_linear(torch.float32, CPU) is not PackedLinear


def test_arm_computes_by_f_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert Engine(ENCODER).kernels == "float32 on cpu; products: F.linear; attention: groups of equal length"


@HERE_PACKED
def test_the_packed_kernel_is_taken_where_it_is_right() -> None:
    assert "packed oneDNN" in Engine(ENCODER).kernels


# -- precision


def test_bfloat16_warns_and_stays_float32_where_the_cpu_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cpu_features", set)
    with pytest.warns(UserWarning, match="AVX512_BF16"):
        engine = Engine(ENCODER, "bfloat16")
    assert engine.kernels.startswith("float32 on cpu")


def test_auto_is_float32_without_a_warning_where_the_cpu_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cpu_features", set)
    assert Engine(ENCODER, "auto").dtype == torch.float32


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16"])
def test_auto_is_bfloat16_where_the_cpu_has_it(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    monkeypatch.setattr(device, "cpu_features", lambda: {feature})
    assert Engine(ENCODER, "auto").dtype == torch.bfloat16


def test_the_features_of_the_cpu_are_the_same_from_torch_and_from_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.system() != "Linux" or not hasattr(torch.cpu, "get_capabilities"):
        pytest.skip("needs Linux and a torch that names the features")
    known = {"avx512_bf16", "amx_bf16", "avx2"}
    from_torch = device.cpu_features() & known
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert device.cpu_features() & known == from_torch


@HAS_BFLOAT16
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_bfloat16_keeps_a_cosine_above_0_9999_on_real_weights(minilm: Path, pooling: str) -> None:
    encoder = load(minilm)
    rows = [[101, *row, 102] for row in random_rows([1, 9, 22, 22, 40, 130], encoder.config.vocab_size)]
    got, exact = Engine(encoder, "bfloat16").vectors(rows, Recipe(pooling)), readable(encoder, rows, pooling)
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(exact, axis=1)
    assert ((got * exact).sum(axis=1) / lengths).min() > 0.9999
    assert difference(got, exact) > 1e-4  # it really is bfloat16


@HAS_BFLOAT16
def test_in_bfloat16_the_residual_stream_stays_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, seen = room.Norm.__call__, []

    def watch(self: room.Norm, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return norm(self, x)

    monkeypatch.setattr(room.Norm, "__call__", watch)
    Engine(ENCODER, "bfloat16").vectors(random_rows(MIXED))
    assert seen == [torch.float32] * (1 + 2 * L)


def test_float16_on_a_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="'float16' needs a CUDA device"):
        Engine(ENCODER, "float16")


def test_an_unknown_precision_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="precision is 'int4'; choose from float32, bfloat16, float16, int8, auto"):
        Engine(ENCODER, "int4")


def test_an_encoder_in_bfloat16_is_computed_in_float32() -> None:
    encoder = random_encoder().bfloat16()
    rows = random_rows(MIXED)
    assert difference(Engine(encoder).vectors(rows), readable(encoder.float(), rows)) < BOUND


# -- what a GPU does, as far as a CPU can show it


def varlen_by_loop(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
    /,
) -> torch.Tensor:
    """What torch's varlen_attn computes, text by text; positional arguments only."""
    assert queries.dtype == keys.dtype == torch.int32
    assert (most_queries, most_keys) == (int(queries.diff().max()), int(keys.diff().max()))
    contexts = []
    for (q0, q1), (k0, k1) in zip(queries.unfold(0, 2, 1).tolist(), keys.unfold(0, 2, 1).tolist(), strict=True):
        q, k, v = (x.transpose(0, 1) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        contexts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1))
    return torch.cat(contexts)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_packed_sequences_with_their_bounds_equal_the_readable_path(
    monkeypatch: pytest.MonkeyPatch, pooling: str
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_by_loop)
    monkeypatch.setattr(room, "choose_attention", lambda *machine: room.varlen_attention)
    engine, rows = Engine(ENCODER), random_rows(MIXED)
    assert engine.kernels.endswith("one kernel for all lengths")
    assert difference(engine.vectors(rows, Recipe(pooling)), readable(ENCODER, rows, pooling)) < BOUND


def limit_memory(monkeypatch: pytest.MonkeyPatch, engine: Engine, tokens: int) -> list[int]:
    """Make every batch over `tokens` run out of memory; the list fills with the sizes that were tried."""
    forward, tried = engine.forward, []

    def limited(packed: Packed, *request: Any) -> list[torch.Tensor]:
        tried.append(len(packed.ids))
        if tried[-1] > tokens:
            raise torch.OutOfMemoryError("out of memory")
        return forward(packed, *request)

    monkeypatch.setattr(engine, "forward", limited)
    return tried


def test_out_of_memory_halves_the_batch_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rows = Engine(ENCODER), random_rows([8] * 32)
    tried = limit_memory(monkeypatch, engine, 70)
    assert difference(engine.vectors(rows), readable(ENCODER, rows)) < BOUND
    assert tried == [256, 128, 64, 64, 64, 64]


def test_a_single_text_that_does_not_fit_in_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ENCODER)
    limit_memory(monkeypatch, engine, 10)
    with pytest.raises(torch.OutOfMemoryError):
        engine.vectors(random_rows([3, 11, 3]))


def test_a_batch_holds_at_most_batch_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ENCODER)
    tried = limit_memory(monkeypatch, engine, 10**9)
    engine.vectors(random_rows([8, 3, 8, 20, 8, 5]), Recipe(batch_tokens=16))
    assert tried == [20, 16, 16]  # a text longer than that alone


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_large_batches_have_few_numbers_of_tokens_and_what_fills_them_up_is_not_returned(
    monkeypatch: pytest.MonkeyPatch, pooling: str
) -> None:
    engine, rows = Engine(ENCODER), random_rows([37] * 9 + [29] * 12 + [3])
    tried = limit_memory(monkeypatch, engine, 10**9)
    vectors = engine.vectors(rows, Recipe(pooling, batch_tokens=FILLED_FROM + 50))
    assert tried == [304, 304, 90]  # 296 and 298 filled up; what is left is a small batch
    assert len(vectors) == len(rows)
    assert difference(vectors, readable(ENCODER, rows, pooling)) < BOUND


@pytest.mark.parametrize("pooling", ["cls", "pooler"])
def test_first_tokens_are_filled_up_and_what_fills_them_up_is_not_returned(pooling: str) -> None:
    rows = random_rows([5] * 70)
    batch = pack(sorted(rows, key=len), torch.device("cpu"))
    assert len(batch.first_tokens(torch.zeros(350, D))) == 96
    assert len(pack([[1]] * 300, torch.device("cpu")).first_tokens(torch.zeros(300, D))) == 300  # T: no more fit in
    assert difference(Engine(ENCODER).vectors(rows, Recipe(pooling)), readable(ENCODER, rows, pooling)) < BOUND


def test_the_last_batch_of_many_has_one_of_four_sizes() -> None:
    assert last_step(1000, 1024) == TOKEN_STEP  # of few, a fuller one would be felt
    assert last_step(64 * 100, 1024) == 64
    assert {last_step(total, 1024) for total in range(64 * 256, 10**6, 997)} == {256}
    assert last_step(10**6, 40) == TOKEN_STEP
    assert [len(text) for text in filler(300, 64)] == [16, 4]
    assert filler(40, TOKEN_STEP) == filler(320, TOKEN_STEP) == []


# -- forks

FORK = r"""
import multiprocessing, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of a fork beside threads
import torch
from minibert.vectors import engine
from test_engine import ENCODER
from minibert.vectors.engine import Engine
torch.set_num_threads(2)
ready = Engine(ENCODER)
rows = [[5] * 40] * 40
ready.vectors(rows)
def work(threads):
    torch.set_num_threads(threads)
    for attempt in (lambda: ready.vectors(rows), lambda: Engine(ENCODER)):
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_of_a_process_that_has_computed_is_told_instead_of_waiting_forever() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    refused, refused_too, *one_thread = result.stdout.splitlines()
    assert refused == refused_too
    assert refused.startswith("this process was forked from one that had computed vectors, and would wait forever")
    assert one_thread == ["computed", "computed"]


# -- what it refuses


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2], []], "row 1 has no tokens"),
        ([[1] * 513], "row 0 has 513 tokens and the checkpoint has 512 positions"),
        ([[1, 2], [3], [4, V]], f"row 2 holds the id {V}; the checkpoint has vocab_size {V}: 0 to {V - 1}"),
        ([[-1]], "row 0 holds the id -1"),
    ],
)
def test_ids_that_the_encoder_cannot_take_are_refused_with_their_row(rows: Rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ENGINE.vectors(rows)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"pooling": "first"}, "pooling is 'first'; choose from cls, mean, max, pooler"),
        ({"combine": "max"}, "combine is 'max'; choose from concat, sum, mean"),
        ({"layers": ()}, "layers is empty"),
        ({"layers": (L + 1,)}, f"layers has {L + 1}; the encoder has {L} layers"),
        ({"layers": (-L - 2,)}, f"layers has {-L - 2}; "),
        ({"pooling": "pooler", "layers": (1,)}, "reads the last layer alone"),
        ({"batch_tokens": 0}, "batch_tokens is 0; it must be at least 1"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ENGINE.vectors([[1, 2]], Recipe(**request_))


def test_the_pooler_of_a_checkpoint_without_one_is_refused() -> None:
    encoder = random_encoder()
    encoder.pooler = None
    with pytest.raises(ValueError, match="this checkpoint has no pooler"):
        Engine(encoder).vectors([[1]], Recipe("pooler"))


# -- memory


@pytest.mark.parametrize("kernel", [Linear, PackedLinear])
def test_an_engine_that_gives_up_its_encoder_frees_the_layers_and_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, kernel: type[Linear]
) -> None:
    monkeypatch.setattr(room, "choose_linear", lambda dtype, device: kernel)
    rows, encoder = random_rows(MIXED), copy.deepcopy(ENCODER)
    kept = Engine(encoder)
    expected = kept.vectors(rows, Recipe("pooler"))
    assert not any(p.is_meta for p in encoder.parameters())
    given = Engine(encoder, keep_encoder=False)
    assert all(p.is_meta for p in encoder.layers.parameters())
    assert np.array_equal(given.vectors(rows, Recipe("pooler")), expected)
