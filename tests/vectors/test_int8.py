"""int8: exact products of bytes, rounding within half a step, and vectors that keep their meaning."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_engine import ENCODER, MIXED, L, difference, random_encoder, random_rows, readable
from torch import Tensor, nn

import minibert
from minibert import device, load, load_tokenizer
from minibert.cli.main import main
from minibert.kernels import calibration, int8
from minibert.kernels.calibration import LARGEST_ERROR, roundings, smoothing
from minibert.kernels.int8 import LEAST, MOST, PackedWholeLinear, Rounding, Whole, WholeLinear, divided, is_exact
from minibert.kernels.memory import Scratch
from minibert.model import Encoder
from minibert.vectors import engine as room
from minibert.vectors.embedder import Embedder, samples
from minibert.vectors.engine import Engine
from minibert.vectors.recipe import Recipe

Matrix = NDArray[np.float32]
CPU = torch.device("cpu")
SAMPLES = random_rows([7, 30, 12, 19, 5, 24, 40, 11])
EXACT = pytest.mark.skipif(
    not (device.has_int8(CPU) and is_exact()), reason="this CPU or this torch has no quick and exact products of bytes"
)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations are kept in a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def cosine(a: Matrix, b: Matrix) -> float:
    """The smallest, of all rows."""
    x, y = torch.from_numpy(a).double(), torch.from_numpy(b).double()
    return float(torch.cosine_similarity(x, y, dim=1).min())


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight = nn.Parameter(weight)
    layer.bias = nn.Parameter(torch.zeros(len(weight)) if bias is None else bias)
    return layer


# -- the arithmetic

KERNELS = [WholeLinear, PackedWholeLinear]
SHAPES = [(384, 384), (384, 768), (384, 1536), (1536, 384), (768, 768), (768, 1536), (768, 3072), (3072, 768), (31, 7)]


@EXACT
@pytest.mark.parametrize("tokens", [1, 2, 67, 256])
@pytest.mark.parametrize(("channels", "outputs"), SHAPES)
@torch.inference_mode()
def test_products_of_bytes_are_the_exact_whole_numbers(tokens: int, channels: int, outputs: int) -> None:
    random = torch.Generator().manual_seed(channels)
    x = torch.randint(LEAST, MOST + 1, (tokens, channels), generator=random).to(torch.int8)
    weight = torch.randint(-MOST, MOST + 1, (outputs, channels), generator=random)
    x[0], x[-1], weight[0], weight[:, 0] = LEAST, MOST, MOST, MOST  # the largest sums of all; and every scale is 1
    product = WholeLinear([linear(weight.float())], Rounding())
    product(Whole(x, torch.ones(tokens, 1)))
    assert torch.equal(product.scratch.take("whole", tokens, outputs, torch.int32).long(), x.long() @ weight.T)
    packed = PackedWholeLinear([linear(weight.float())], Rounding())
    y = packed(Whole(packed.form(x.clone()), torch.ones(tokens, 1)))
    assert torch.equal(y, (x.long() @ weight.T).float())


@settings(max_examples=50)
@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.floats(1e-3, 1e3),
    st.integers(-120, 100),
    st.booleans(),
    st.integers(0, 2**31),
)
@torch.inference_mode()
def test_every_number_is_rounded_to_within_half_a_step(
    tokens: int, channels: int, size: float, offset: int, smoothed: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x = size * torch.randn(tokens, channels, generator=random)
    c = 0.5 + torch.rand(channels, generator=random) if smoothed else None
    product = WholeLinear([linear(torch.randn(3, channels, generator=random))], Rounding(c, offset))
    entered = product.enter(x)
    exact = x if c is None else x / c
    away = (entered.scale * (entered.values.float() - offset) - exact).abs()
    assert bool((away <= entered.scale * 0.501).all())
    used = entered.values.float() - offset  # the largest or the smallest number of a row is at its end
    ends = torch.maximum(used.amax(1) / (MOST - offset), used.amin(1) / (LEAST - offset))
    assert bool((ends > 0.99).all())


@EXACT
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("offset", [0, -110, 60])
@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_product_with_bias_residual_and_activation_is_within_its_rounding(
    kernel: type[WholeLinear], offset: int, smoothed: bool, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(0)
    x, residual = torch.randn(67, 256, generator=random).to(dtype), torch.randn(67, 320, generator=random)
    layer = linear(torch.randn(320, 256, generator=random) / 16, torch.randn(320, generator=random))
    c = 0.5 + torch.rand(256, generator=random) if smoothed else None
    exact = layer(x.float())
    bound = {0: 0.1, 60: 0.2, -110: 0.6}[offset]  # of numbers on both sides of 0, an offset wastes bytes
    for activation in (None, "gelu", "relu"):
        product = kernel([layer], Rounding(c, offset), activation)
        wanted = exact if activation is None else getattr(nn.functional, activation)(exact)
        assert float((product(product.enter(x)) - wanted).abs().max()) < bound
    product = kernel([layer], Rounding(c, offset))
    assert float((product(product.enter(x), residual) - exact - residual).abs().max()) < bound


@EXACT
@pytest.mark.parametrize("kernel", KERNELS)
@torch.inference_mode()
def test_rows_of_zeros_give_the_bias_and_a_row_that_is_not_finite_stays_so(kernel: type[WholeLinear]) -> None:
    product = kernel([linear(torch.eye(8), torch.arange(8.0))], Rounding())
    x = torch.zeros(4, 8)
    x[1, 3], x[2, 3] = float("nan"), float("inf")
    y = product(product.enter(x))
    assert torch.equal(y[0], torch.arange(8.0)) and torch.equal(y[3], torch.arange(8.0))
    assert not bool(y[1].isfinite().any()) and not bool(y[2].isfinite().any())


# -- smoothing


@torch.inference_mode()
def test_a_smoothed_model_that_is_not_rounded_equals_the_unsmoothed_one(minilm: Path) -> None:
    rows = [[101, *row, 102] for row in random_rows([3, 9, 22, 60], 30_000)]
    encoder, given = load(minilm), load(minilm)
    seen: dict[nn.Module, Tensor] = {}

    def divide(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (arguments[0] / seen[module],)

    for layer in encoder.layers:
        own, ffn = layer.attention, layer.feed_forward
        for product in (own.query, own.key, own.value, ffn.expand, ffn.contract):
            largest = torch.rand(product.in_features, generator=torch.Generator().manual_seed(0)) * 30
            seen[product] = smoothing(largest, product.weight.abs().amax(dim=0))
            product.weight *= seen[product]
            product.register_forward_pre_hook(divide)
        c = smoothing(torch.rand(own.output.in_features), own.output.weight.abs().amax(dim=0))
        own.output.weight *= c
        own.value.weight, own.value.bias = divided(own.value, c).weight, divided(own.value, c).bias
    for pooling in ("cls", "mean"):
        assert difference(readable(encoder, rows, pooling), readable(given, rows, pooling)) < 1e-5


def test_smoothing_gives_x_and_w_channels_of_like_size() -> None:
    c = smoothing(torch.tensor([100.0, 1.0]), torch.tensor([1.0, 1.0]))
    assert torch.allclose(c[0] / c[1], torch.tensor(100.0**calibration.SHARE))
    assert torch.allclose(c.mean(), torch.tensor(1.0))
    assert bool(smoothing(torch.zeros(3), torch.zeros(3)).isfinite().all())


@torch.inference_mode()
def test_an_offset_is_tried_that_fits_what_gelu_lets_through() -> None:
    x = nn.functional.gelu(4 * torch.randn(50, 64, generator=torch.Generator().manual_seed(0)))
    plain, smoothed, moved = roundings([linear(torch.randn(8, 64))], x, folded=False)
    assert plain == Rounding() and smoothed.smoothing is not None
    assert LEAST < moved.offset < -100


# -- the engine


def both(encoder: Encoder, rows: Any, pooling: str = "cls") -> tuple[Matrix, Matrix]:
    engine = Engine(encoder, "int8", samples=SAMPLES)
    return engine.vectors(rows, Recipe(pooling)), readable(encoder, rows, pooling)


@EXACT
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_a_checkpoint_without_outliers_keeps_its_vectors(pooling: str) -> None:
    got, exact = both(ENCODER, random_rows(MIXED), pooling)
    assert cosine(got, exact) > 0.999
    assert difference(got, exact) > 1e-4  # it really is int8


@EXACT
def test_texts_of_1_to_512_tokens_keep_their_vectors() -> None:
    lengths = [*range(1, 40), 63, 64, 65, 127, 128, 255, 256, 257, 300, 511, 512]
    got, exact = both(ENCODER, random_rows(lengths), "mean")
    assert cosine(got, exact) > 0.999


RELATIVES: list[dict[str, Any]] = [
    {"first_position": 2, "max_position_embeddings": 66},
    {"shared_layers": (0, 1, 0)},
    {"embedding_size": 12, "shared_layers": (0,) * L, "first_position": 1, "type_vocab_size": 1},
    {"hidden_act": "gelu_new"},
    {"hidden_act": "relu"},
    {"hidden_act": "silu"},
]


@EXACT
@pytest.mark.parametrize("changes", RELATIVES, ids=str)
def test_relatives_keep_their_vectors(changes: dict[str, Any]) -> None:
    got, exact = both(random_encoder(**changes), random_rows(MIXED))
    assert cosine(got, exact) > 0.99  # width 32: in a text of two tokens few rounding errors meet to cancel out


@EXACT
def test_the_residual_stream_and_layernorm_stay_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, seen = room.Norm.__call__, []

    def watch(self: room.Norm, x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return norm(self, x)

    engine = Engine(ENCODER, "int8", samples=SAMPLES)
    monkeypatch.setattr(room.Norm, "__call__", watch)
    engine.vectors(random_rows(MIXED))
    assert seen == [torch.float32] * (1 + 2 * L)


@EXACT
def test_the_encoder_stays_as_it_is_unless_it_is_given_up() -> None:
    encoder = copy.deepcopy(ENCODER)
    kept = Engine(encoder, "int8", samples=SAMPLES).vectors(random_rows(MIXED))
    assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), ENCODER.parameters(), strict=True))
    given = Engine(encoder, "int8", keep_encoder=False, samples=SAMPLES).vectors(random_rows(MIXED))
    assert np.array_equal(kept, given)
    assert all(parameter.is_meta for parameter in encoder.layers.parameters())


@EXACT
def test_threads_that_share_an_engine_do_not_disturb_each_other() -> None:
    engine, found = Engine(ENCODER, "int8", samples=SAMPLES), {}
    work = {number: random_rows([5 + number] * 40) for number in range(4)}
    alone = {number: engine.vectors(rows) for number, rows in work.items()}

    def compute(number: int) -> None:
        found[number] = [engine.vectors(work[number]) for _ in range(3)]

    threads = [threading.Thread(target=compute, args=(number,)) for number in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(one, alone[number]) for number in work for one in found[number])


def test_scratch_memory_is_used_again_and_grows_where_it_must() -> None:
    scratch = Scratch()
    first = scratch.take("a", 4, 8)
    assert scratch.take("a", 2, 8).data_ptr() == first.data_ptr()
    assert scratch.take("a", 8, 8).shape == (8, 8)
    assert scratch.take("b", 4, 8).data_ptr() != scratch.take("a", 4, 8).data_ptr()


# -- real weights, with their outlier dimension, and mistakes that the cosine must show


@pytest.fixture(scope="module")
def real(minilm: Path) -> tuple[Encoder, list[list[int]], list[list[int]], Matrix]:
    """all-MiniLM-L6-v2, the texts that calibrate it, other texts, and their vectors in float32."""
    encoder, tokenizer = load(minilm), load_tokenizer(minilm)
    reviews = Path(minibert.__file__).parent / "data" / "reviews.tsv"
    texts = [line.partition("\t")[0] for line in reviews.read_text("utf-8").splitlines()[100:160]]
    rows = tokenizer.ids(texts)
    return encoder, samples(tokenizer, "int8") or [], rows, Engine(encoder).vectors(rows)


@EXACT
def test_real_vectors_keep_their_meaning_and_three_mistakes_would_be_seen(
    real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, texts, rows, exact = real
    engine = Engine(encoder, "int8", samples=texts)
    assert "int8 in 24 of 24 products" in engine.kernels
    assert cosine(engine.vectors(rows), exact) > 0.998
    expand = engine.layers[2].feed_forward.expand
    with monkeypatch.context() as changed:
        changed.setattr(expand, "inverse", None)
        assert cosine(engine.vectors(rows), exact) < 0.99  # smoothing forgotten
    with monkeypatch.context() as changed:
        changed.setattr(expand, "scale", expand.scale.roll(1))
        assert cosine(engine.vectors(rows), exact) < 0.99  # wrong scales
    enter = WholeLinear.enter

    def one_scale(self: WholeLinear, x: Tensor) -> Whole:
        entered = enter(self, x)
        signed = (
            self.form(entered.values.clone()).view(torch.int8)
            if entered.values.dtype == torch.uint8
            else entered.values
        )
        largest = entered.scale.max().expand_as(entered.scale)
        values = self.form((signed * (entered.scale / largest)).round().to(torch.int8))
        return Whole(values, largest.contiguous())

    with monkeypatch.context() as changed:
        changed.setattr(WholeLinear, "enter", one_scale)
        assert cosine(engine.vectors(rows), exact) < 0.998  # one scale a tensor


@EXACT
def test_a_product_that_does_not_bear_int8_stays_as_it_was_and_is_named(
    real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, texts, rows, _ = real
    monkeypatch.setattr(calibration, "LARGEST_ERROR", 0.0)
    engine = Engine(encoder, "int8", samples=texts)
    assert engine.kernels.startswith("int8 in 0 of 24 products (not attention of layer 0, output of layer 0, ")
    others = Engine(encoder, "auto")
    others.embeddings.token = others.embeddings.token.bfloat16()  # as it is in int8
    assert np.array_equal(engine.vectors(rows), others.vectors(rows))


@EXACT
def test_what_is_decided_is_decided_by_the_error(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, texts, rows, exact = real
    engine = Engine(encoder, "int8", samples=texts)
    (path,) = calibration.cache_folder().iterdir()
    sizes = {(n, name): 1536 if name == "contract" else 384 for n in range(6) for name in calibration.PRODUCTS}
    found = calibration.kept(path, sizes)
    assert found is not None and len(found.products) == 24
    errors = sorted(one.error for one in found.products.values())
    assert errors[0] > 0 and errors[-1] <= LARGEST_ERROR
    monkeypatch.setattr(calibration, "LARGEST_ERROR", errors[11])  # half of them
    half = Engine(encoder, "int8", samples=texts)
    assert half.kernels.startswith("int8 in 12 of 24 products (not ")
    assert cosine(half.vectors(rows), exact) > cosine(engine.vectors(rows), exact)


SHORT_TEXTS = [
    "too bad",
    "fantastic !",
    "why ?",
    "no",
    "wow",
    "i like it",
    "this is one of the best films of the year so far",
]


@EXACT
def test_the_mean_of_a_short_text_keeps_its_meaning_since_it_is_computed_in_bfloat16(real: Any, minilm: Path) -> None:
    encoder, texts, _, _ = real
    rows, exact = load_tokenizer(minilm).ids(SHORT_TEXTS), Engine(encoder)
    engine = Engine(encoder, "int8", samples=texts)
    assert "but none for the mean or largest of up to 16 tokens" in engine.kernels
    assert max(map(len, rows)) <= calibration.SHORT
    for pooling in ("mean", "max"):
        recipe = Recipe(pooling=pooling)
        assert cosine(engine.vectors(rows, recipe), exact.vectors(rows, recipe)) > 0.9995
    again = Engine(encoder, "int8", samples=texts)  # by the calibration that was kept
    assert np.array_equal(again.vectors(rows, Recipe("mean")), engine.vectors(rows, Recipe("mean")))
    engine.careful_layers = []
    assert cosine(engine.vectors(rows, Recipe("mean")), exact.vectors(rows, Recipe("mean"))) < 0.997


@EXACT
def test_short_and_long_texts_are_in_batches_of_their_own_and_come_back_in_order(
    real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, texts, _, _ = real
    engine, exact = Engine(encoder, "int8", samples=texts), Engine(encoder)
    rows, forward, seen = (
        [[101, *row, 102] for row in random_rows([3, 40, 14, 15, 9, 200, 14], 30_000)],
        engine.forward,
        [],
    )

    def watch(packed: Any, *request: Any) -> Any:
        seen.append(packed.longest)
        return forward(packed, *request)

    monkeypatch.setattr(engine, "forward", watch)
    assert cosine(engine.vectors(rows, Recipe("mean")), exact.vectors(rows, Recipe("mean"))) > 0.998
    assert seen == [202, 16]
    engine.vectors(rows)
    assert seen == [202, 16, 202]  # [CLS] of all in int8


@EXACT
@pytest.mark.parametrize(("least", "careful"), [(-1.0, 0), (1.1, L)])
def test_whether_short_texts_bear_int8_is_decided_by_their_means(
    least: float, careful: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "LEAST_COSINE", least)
    assert len(Engine(ENCODER, "int8", samples=SAMPLES).careful_layers) == careful


@EXACT
def test_an_encoder_in_bfloat16_gives_the_same_vectors_as_its_float32_copy() -> None:
    encoder = random_encoder().bfloat16()
    rows, exact = random_rows(MIXED), copy.deepcopy(encoder).float()
    assert cosine(Engine(encoder, "int8", samples=SAMPLES).vectors(rows), readable(exact, rows)) > 0.999


# -- where it cannot be computed


def off_by_one(monkeypatch: pytest.MonkeyPatch, kernel: type[WholeLinear]) -> None:
    product = kernel.product
    monkeypatch.setattr(kernel, "product", lambda self, values: product(self, values).add_(1))


@EXACT
def test_the_packed_product_is_taken_where_it_is_exact_and_else_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert int8.choose_int8(CPU) is PackedWholeLinear
    packed = Engine(ENCODER, "int8", samples=SAMPLES)
    off_by_one(monkeypatch, PackedWholeLinear)
    assert int8.choose_int8(CPU) is WholeLinear
    plain, rows = Engine(ENCODER, "int8", samples=SAMPLES), random_rows(MIXED)
    assert "int8 by packed oneDNN" in packed.kernels and "int8 by torch._int_mm" in plain.kernels
    monkeypatch.undo()
    assert difference(packed.vectors(rows), plain.vectors(rows)) < 1e-3  # the same bytes; floats in another order


@pytest.mark.parametrize("broken", [False, True], ids=["no VNNI", "products that are not exact"])
def test_where_there_is_no_fast_and_exact_product_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:
        monkeypatch.setattr(int8, "has_int8", lambda device: True)
        off_by_one(monkeypatch, WholeLinear)
        off_by_one(monkeypatch, PackedWholeLinear)
    else:
        monkeypatch.setattr(device, "cpu_features", lambda: {"avx2"})
    message = "no product of bytes that is exact" if broken else "does not multiply bytes in hardware"
    with pytest.warns(UserWarning, match=message):
        engine = Engine(ENCODER, "int8", samples=SAMPLES)
    assert engine.precision in ("bfloat16", "float32")
    assert engine.kernels.startswith(engine.precision)
    assert cosine(engine.vectors(random_rows(MIXED)), readable(ENCODER, random_rows(MIXED))) > 0.999


def overflowing(x: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
    """What a CPU without VNNI does: bytes from 0 to 255, and sums of two products in 16 bits, which end at 32,767."""
    products = (x.int() + 128)[:, :, None] * weight.int()[None]
    sums = products.unflatten(1, (-1, 2)).sum(dim=2).clamp(-32_768, 32_767)
    return out.copy_(sums.sum(dim=1) - 128 * weight.int().sum(dim=0))


def missing(*arguments: Any, **named: Any) -> Tensor:
    raise AttributeError("no such operator")


@pytest.mark.parametrize("fault", [overflowing, missing])
def test_a_product_that_overflows_or_is_missing_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Tensor]
) -> None:
    monkeypatch.setattr(torch, "_int_mm", fault)
    assert not is_exact()


@EXACT
def test_without_texts_to_calibrate_it_there_is_no_int8() -> None:
    for texts in (None, []):
        with pytest.raises(ValueError, match="calibrated on texts: pass samples="):
            Engine(ENCODER, "int8", samples=texts)
    with pytest.raises(ValueError, match="row 1 holds the id 5000"):
        Engine(ENCODER, "int8", samples=[[1, 2], [5000]])


# -- the calibration is kept


def no_calibration(*arguments: Any) -> Any:
    raise AssertionError("it was to be known already")


@EXACT
def test_a_calibration_is_made_once_for_the_same_weights_and_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Engine(ENCODER, "int8", samples=SAMPLES).vectors(random_rows(MIXED))
    monkeypatch.setattr(calibration, "calibrate", no_calibration)
    assert np.array_equal(Engine(ENCODER, "int8", samples=SAMPLES).vectors(random_rows(MIXED)), first)
    other = copy.deepcopy(ENCODER)
    other.layers[0].feed_forward.expand.weight.data[0, 0] += 1
    for encoder, texts in ((other, SAMPLES), (ENCODER, SAMPLES[1:])):
        with pytest.raises(AssertionError, match="known already"):
            Engine(encoder, "int8", samples=texts)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def negative(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("smoothing"))
    save_file(tensors | {name: -tensors[name]}, path)


def incomplete(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    tensors.pop("0.expand")
    save_file(tensors, path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@EXACT
@pytest.mark.parametrize("damage", [cut, negative, incomplete, a_folder])
def test_a_damaged_file_is_not_believed(damage: Callable[[Path], None]) -> None:
    first = Engine(ENCODER, "int8", samples=SAMPLES).vectors(random_rows(MIXED))
    (path,) = calibration.cache_folder().iterdir()
    damage(path)
    assert np.array_equal(Engine(ENCODER, "int8", samples=SAMPLES).vectors(random_rows(MIXED)), first)


@EXACT
def test_where_nothing_can_be_kept_it_works_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert np.isfinite(Engine(ENCODER, "int8", samples=SAMPLES).vectors(random_rows(MIXED))).all()


# -- for users

TEXTS = ["a visually stunning rumination on love", "a mess", "one of the year 's best films", "so dull"] * 3


@EXACT
def test_embed_in_int8_is_near_float32_and_is_another_vector(minilm: Path) -> None:
    whole, exact = minibert.embed(TEXTS, minilm, precision="int8"), minibert.embed(TEXTS, minilm)
    assert 0.998 < cosine(whole, exact) < 0.999999
    identities = [Embedder(minilm, Recipe(precision=one)).identity for one in ("int8", "bfloat16", "float32")]
    assert len({str(identity["precision"]) for identity in identities}) == 3


@EXACT
@pytest.mark.parametrize("long", ["cut", "windows"])
def test_the_command_says_how_near_to_float32_the_users_own_texts_are(
    minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], long: str
) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "x.npy"
    texts.write_text("\n".join([*TEXTS, "word " * 600 if long == "windows" else "word"]), encoding="utf-8")
    command = ["embed", str(texts), "--out", str(out), "--model", str(minilm), "--long", long, "--json"]
    assert main([*command, "--precision", "int8"]) == 0
    printed = capsys.readouterr().out
    said = float(printed.split("int8: the smallest cosine to float32 is ")[1].split(",")[0])
    exact = minibert.embed(texts.read_text("utf-8").split("\n"), minilm, long=long)
    assert abs(said - cosine(np.load(out), exact)) < 2e-4
    assert '"cosine": 0.99' in printed
    assert main([*command, "--restart"]) == 0
    printed = capsys.readouterr().out
    assert "smallest cosine" not in printed and '"cosine": null' in printed


def test_training_in_int8_is_refused() -> None:
    with pytest.raises(ValueError, match="precision 'int8' is for vectors, not for training"):
        device.choose_dtype("int8", CPU)
