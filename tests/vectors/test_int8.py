"""int8: exact integer products, quantization within half a step, and vectors that keep their meaning."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine import (
    CPU,
    ENCODER,
    EXACT,
    MIXED,
    RELATIVES,
    L,
    Matrix,
    cosine,
    difference,
    random_encoder,
    random_rows,
)
from support.engine import readable as readable_vectors
from torch import Tensor, nn

import minibert
from minibert import load, load_tokenizer
from minibert.kernels import int8
from minibert.kernels.int8 import Int8Linear
from minibert.utils import device
from minibert.vectors import calibration
from minibert.vectors.calibration import MAX_ERROR
from minibert.vectors.embedder import Embedder
from minibert.vectors.engine import Engine
from minibert.vectors.loading import samples

SAMPLES, ROWS = random_rows([7, 30, 12, 19, 5, 24, 40, 11]), random_rows(MIXED)
BFLOAT16 = pytest.mark.skipif(not device.has_bfloat16(CPU), reason="needs a CPU with AVX512_BF16 or AMX")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Calibrations are cached in a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "minibert" / "int8"


def int8_engine(encoder: minibert.Encoder = ENCODER, **settings: Any) -> Engine:
    return Engine(encoder, "int8", **({"samples": SAMPLES} | settings))


# ---------------------------------------------------------------------------------------------------------------
# The engine


@EXACT
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_a_checkpoint_without_outliers_keeps_its_vectors_at_any_length(pooling):
    rows = ROWS + random_rows([63, 64, 65, 127, 128, 129, 257, 512])
    got, exact = int8_engine().vectors(rows, minibert.Recipe(pooling)), readable_vectors(ENCODER, rows, pooling)
    assert cosine(got, exact) > 0.999
    assert difference(got, exact) > 1e-4  # it really is int8


@EXACT
@pytest.mark.parametrize("changes", [*RELATIVES, {"hidden_act": "gelu_new"}, {"hidden_act": "relu"}], ids=str)
def test_relatives_keep_their_vectors(changes):
    encoder = random_encoder(**changes)
    # Width 32: in a text of two tokens few rounding errors cancel out.
    assert cosine(int8_engine(encoder).vectors(ROWS), readable_vectors(encoder, ROWS)) > 0.99


@pytest.mark.parametrize(
    ("precision", "least"),
    [
        pytest.param("bfloat16", 0.9999, marks=BFLOAT16),
        pytest.param("int8", 0.999, marks=EXACT),
        ("float32", 0.9999999),
    ],
)
def test_layernorm_stays_float32_and_a_bfloat16_encoder_gives_the_vectors_of_its_float32_copy(
    precision, least, monkeypatch
):
    seen, norm, encoder = [], nn.functional.layer_norm, random_encoder().bfloat16()
    monkeypatch.setattr(nn.functional, "layer_norm", lambda x, *a, **how: (seen.append(x.dtype), norm(x, *a, **how))[1])
    exact = readable_vectors(copy.deepcopy(encoder).float(), ROWS)
    engine = Engine(encoder, precision, samples=SAMPLES)
    seen.clear()
    assert cosine(engine.vectors(ROWS), exact) > least
    assert seen == [torch.float32] * (1 + 2 * L)


@EXACT
def test_threads_share_an_engine_and_the_encoder_is_not_changed_unless_it_is_not_kept():
    encoder = copy.deepcopy(ENCODER)
    engine, work = int8_engine(encoder), [random_rows([5 + number] * 40) for number in range(4)]
    alone = [engine.vectors(rows) for rows in work]
    assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), ENCODER.parameters(), strict=True))
    with ThreadPoolExecutor(4) as threads:
        assert all(map(np.array_equal, threads.map(engine.vectors, work * 3), alone * 3))
    assert np.array_equal(alone[0], int8_engine(encoder, keep_encoder=False).vectors(work[0]))
    assert all(parameter.is_meta for parameter in encoder.layers.parameters())


@EXACT
@pytest.mark.parametrize(("least", "layers"), [(-1.0, 0), (1.1, L)])
def test_whether_short_texts_are_computed_in_int8_depends_on_their_means(least, layers, monkeypatch):
    monkeypatch.setattr(calibration, "MIN_COSINE", least)
    fallback = int8_engine().fallback
    assert (len(fallback.layers) if fallback else 0) == layers


# ---------------------------------------------------------------------------------------------------------------
# Real weights, with their outlier dimension, and mistakes that the cosine must show


@pytest.fixture(scope="module")
def real(minilm: Path) -> tuple[minibert.Encoder, list[list[int]], list[list[int]], Matrix]:
    """all-MiniLM-L6-v2, the texts that calibrate it, other texts, and their vectors in float32."""
    encoder, tokenizer = load(minilm), load_tokenizer(minilm)
    reviews = Path(minibert.__file__).parent / "data" / "reviews.tsv"
    texts = [line.partition("\t")[0] for line in reviews.read_text("utf-8").splitlines()[100:160]]
    rows = tokenizer.ids(texts)
    return encoder, samples(tokenizer, "int8") or [], rows, Engine(encoder).vectors(rows)


@EXACT
def test_real_vectors_keep_their_meaning_and_three_mistakes_would_be_seen(real, monkeypatch):
    encoder, texts, rows, exact = real
    engine = int8_engine(encoder, samples=texts)
    assert "int8 in 24 of 24 products" in engine.kernels
    assert cosine(engine.vectors(rows), exact) > 0.998
    expand, prepare = engine.encoder.layers[2].feed_forward.expand, Int8Linear.prepare

    def one_scale(self, x):
        values, scale = prepare(self, x)
        largest = scale.max().expand_as(scale)
        moved = (values.float() - self.zero_point) * (scale / largest)
        return (moved.round() + self.zero_point).to(torch.uint8), largest.contiguous()

    for target, name, mistake, bound in (
        (expand, "inverse", None, 0.99),  # smoothing forgotten
        (expand, "scale", getattr(expand, "scale").roll(1), 0.99),  # wrong scales  # noqa: B009
        (Int8Linear, "prepare", one_scale, 0.998),  # one scale for all rows
    ):
        with monkeypatch.context() as changed:
            changed.setattr(target, name, mistake)
            assert cosine(engine.vectors(rows), exact) < bound, name


@EXACT
def test_the_error_decides_which_products_are_computed_in_int8(real, cache, monkeypatch):
    encoder, texts, rows, exact = real
    engine = int8_engine(encoder, samples=texts)
    found = calibration.read_calibration(next(cache.iterdir()), encoder)
    assert found is not None and len(found.products) == 24
    errors = sorted(one.error for one in found.products.values())
    assert errors[0] > 0 and errors[-1] <= MAX_ERROR
    monkeypatch.setattr(calibration, "MAX_ERROR", errors[11])  # half of them
    half = int8_engine(encoder, samples=texts)
    assert half.kernels.startswith("int8 in 12 of 24 products")
    assert cosine(half.vectors(rows), exact) > cosine(engine.vectors(rows), exact)


SHORT_TEXTS = ["too bad", "fantastic !", "why ?", "no", "i like it", "this is one of the best films of the year so far"]


@EXACT
def test_the_mean_of_a_short_text_is_computed_in_bfloat16_in_batches_of_its_own(real, minilm, monkeypatch):
    encoder, texts, _, _ = real
    rows, exact, engine = load_tokenizer(minilm).ids(SHORT_TEXTS), Engine(encoder), int8_engine(encoder, samples=texts)
    assert "none for means of texts of up to 16 tokens" in engine.kernels
    assert max(map(len, rows)) <= calibration.SHORT
    for recipe in (minibert.Recipe("mean"), minibert.Recipe("max")):
        assert cosine(engine.vectors(rows, recipe), exact.vectors(rows, recipe)) > 0.9995
    with monkeypatch.context() as changed:
        changed.setattr(engine, "fallback", None)
        assert (
            cosine(engine.vectors(rows, minibert.Recipe("mean")), exact.vectors(rows, minibert.Recipe("mean"))) < 0.997
        )
    mixed = [[101, *row, 102] for row in random_rows([3, 40, 14, 15, 9, 200, 14], 30_000)]
    seen, forward = [], engine.forward
    monkeypatch.setattr(engine, "forward", lambda p, *more: (seen.append(p.longest), forward(p, *more))[1])
    assert cosine(engine.vectors(mixed, minibert.Recipe("mean")), exact.vectors(mixed, minibert.Recipe("mean"))) > 0.998
    engine.vectors(mixed)
    assert seen == [202, 16, 202]  # [CLS] of all in int8


# ---------------------------------------------------------------------------------------------------------------
# Where it cannot be computed


def overflowing(x: Tensor, scale: float, zero: int, weight: Tensor, scales: Tensor, *others: Any) -> Tensor:
    """A CPU without VNNI: sums of two products in 16 bits, which end at 32,767; weights are not packed."""
    sums = (x.int()[:, :, None] * weight.T.int()[None]).unflatten(1, (-1, 2)).sum(dim=2).clamp(-32_768, 32_767)
    return (sums.sum(dim=1) - zero * weight.int().sum(dim=1)) * scales


missing = Mock(side_effect=AttributeError("no such operator"))


@pytest.mark.parametrize("fault", [None, overflowing, missing], ids=["no VNNI", "overflowing", "missing"])
def test_without_a_fast_and_exact_product_a_warning_says_so(monkeypatch, fault):
    monkeypatch.setattr(device, "cpu_features", lambda: {"avx2"})
    if fault:
        monkeypatch.setattr(int8, "has_int8", lambda device: True)
        monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", lambda weight, shape: weight)
        monkeypatch.setattr(torch.ops.onednn, "qlinear_pointwise", fault)
    message = "no int8 product that is exact" if fault else "not multiply int8 in hardware"
    with pytest.warns(UserWarning, match=message):
        engine = int8_engine()
    assert engine.kernels.startswith(engine.precision) and engine.precision == "float32"
    assert cosine(engine.vectors(ROWS), readable_vectors(ENCODER, ROWS)) > 0.999


@EXACT
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "samples="),
        ([], "samples="),
        ([[1, 2], [5000]], r"row 1 .* 5000"),
    ],
)
def test_samples_that_cannot_calibrate_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        int8_engine(samples=texts)


# ---------------------------------------------------------------------------------------------------------------
# The cache


@EXACT
def test_a_calibration_is_made_once_for_the_same_weights_and_texts(monkeypatch):
    first = int8_engine().vectors(ROWS)
    monkeypatch.setattr(calibration, "calibrate", missing)
    assert np.array_equal(int8_engine().vectors(ROWS), first)
    other = copy.deepcopy(ENCODER)
    other.layers[0].feed_forward.expand.weight.data[0, 0] += 1
    for encoder, texts in ((other, SAMPLES), (ENCODER, SAMPLES[1:])):
        with pytest.raises(AttributeError, match="no such operator"):
            int8_engine(encoder, samples=texts)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "incomplete": lambda path: save_file({n: x for n, x in load_file(path).items() if n != "0.expand"}, path),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-40]),
}


@EXACT
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_measured_again_and_none_is_needed(damage, cache, monkeypatch):
    first = int8_engine().vectors(ROWS)
    (path,) = cache.iterdir()
    damage(path)
    assert np.array_equal(int8_engine().vectors(ROWS), first)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # which is no folder
    assert np.array_equal(int8_engine().vectors(ROWS), first)


# ---------------------------------------------------------------------------------------------------------------
# For users

TEXTS = ["a visually stunning rumination on love", "a mess", "one of the year 's best films", "so dull"] * 3


@EXACT
@pytest.mark.slow
def test_the_command_reports_the_cosine_of_the_users_own_texts_to_float32(minilm, tmp_path, run):
    texts, out = tmp_path / "texts.txt", tmp_path / "x.npy"
    texts.write_text("\n".join([*TEXTS, "word " * 300]), encoding="utf-8")
    options = ("--model", minilm, "--long", "windows", "--precision", "int8", "--json")
    printed = run("embed", texts, "--out", out, *options)
    reported = float(printed.split("int8: the smallest cosine to float32 is ")[1].split(",")[0])
    exact = minibert.embed(texts.read_text("utf-8").split("\n"), minilm, long="windows")
    assert abs(reported - cosine(np.load(out), exact)) < 2e-4 and 0.998 < reported < 0.999999
    assert '"cosine": 0.99' in printed
    identities = [Embedder(minilm, minibert.Recipe(precision=one)).identity for one in ("int8", "float32")]
    assert len({str(identity["precision"]) for identity in identities}) == 2
