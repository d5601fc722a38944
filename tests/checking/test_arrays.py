"""Numbers in a file: right within rounding, wrong with their cause, or refused in one line."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.words import write_words_checkpoint

import minibert
from minibert.checking.expected import Expected
from minibert.checking.numbers import INPUTS
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.reference import read_safetensors

NOVELS = "minibert-novels"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from minibert.cli.main import main

    path = tmp_path_factory.mktemp("exported") / "inputs.npz"
    assert main(["check", "--export", str(path), "--model", NOVELS]) == 0
    return path


@pytest.fixture(scope="module")
def right(exported: Path) -> dict[str, Any]:
    """What the outputs should be."""
    with np.load(exported) as file:
        return {name.removeprefix("expected."): file[name] for name in file.files if name.startswith("expected.")}


def check_written(folder: Path, arrays: dict[str, Any], **how: Any) -> Any:
    np.savez(folder / "outputs.npz", **arrays)
    return minibert.check(folder / "outputs.npz", NOVELS, **how)


def test_the_exported_outputs_are_right_and_as_described(exported, right, tmp_path):
    with np.load(exported) as file:
        arrays = dict(file)
    B, S = arrays["input_ids"].shape
    assert all(arrays[name].dtype == np.int64 for name in INPUTS)
    assert arrays["expected.hidden_states"].shape == (5, B, S, 256)
    assert arrays["expected.attentions"].shape == (4, B, 4, S, S)
    assert arrays["expected.logits"].dtype == np.float32
    assert check_written(tmp_path, right).ok


def numpy_bert(arrays: Any, weights: Any, eps: float = 1e-12) -> Any:
    """The embeddings and the first layer, by numpy alone."""
    w = {name.removeprefix("bert."): x for name, x in weights.items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def heads(x):
        return x.reshape(*x.shape[:2], 4, -1).transpose(0, 2, 1, 3)

    ids, mask, segments = (arrays[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    states = [norm(x + w["embeddings.token_type_embeddings.weight"][segments], "embeddings.LayerNorm")]
    x, layer = states[0], "encoder.layer.0."
    q, k, v = (heads(linear(x, f"{layer}attention.self.{name}")) for name in ("query", "key", "value"))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]) + (mask[:, None, None] - 1) * 1e9
    p = np.exp(scores - scores.max(-1, keepdims=True))
    context = (p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = norm(x + linear(context, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
    y = linear(x, layer + "intermediate.dense")
    y = 0.5 * y * (1 + np.vectorize(__import__("math").erf)(y / np.sqrt(2)))
    return [*states, norm(x + linear(y, layer + "output.dense"), layer + "output.LayerNorm")]


@pytest.mark.parametrize(("eps", "cause"), [(1e-12, ""), (1e-5, "eps is 1e-5")])
def test_numbers_of_numpy_are_right_as_far_as_they_go_and_their_mistake_is_named(eps, cause, exported, tmp_path):
    weights = read_safetensors(str(Checkpoint.open(NOVELS).folder / "model.safetensors"))
    states = numpy_bert(dict(np.load(exported)), {name: x.numpy() for name, x in weights.items()}, eps)
    named = {f"hidden_states.{number}": x.astype(np.float32) for number, x in enumerate(states)}
    report = check_written(tmp_path, named)
    assert report.ok == (not cause)
    assert cause in "".join(report.causes[:1])


@pytest.mark.parametrize("shape", ["(10000000000000,)", "(-5,)", "(3,", "(99999999999999999999999,)"])
def test_an_array_with_a_damaged_header_is_refused(shape, tmp_path):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    with zipfile.ZipFile(tmp_path / "outputs.npz", "w") as file:
        file.writestr("logits.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(100))
    with pytest.raises(ValueError, match=r"outputs\.npz (is not an \.npz|has logits of shape)"):
        minibert.check(tmp_path / "outputs.npz", NOVELS)


def test_a_file_that_is_empty_or_no_npz_or_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no output"):
        check_written(tmp_path, {})
    (tmp_path / "outputs.npz").write_text("numbers")
    with pytest.raises(ValueError, match=r"outputs\.npz"):
        minibert.check(tmp_path / "outputs.npz", NOVELS)
    with pytest.raises(FileNotFoundError, match="--export"):
        minibert.check(tmp_path / "none.npz", NOVELS)


def layers(arrays: dict[str, Any], kind: str = "hidden_states") -> dict[str, Any]:
    return {f"{kind}.{number}": x for number, x in enumerate(arrays[kind])}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda right: {"states": np.zeros(3)}, "'states'.*hidden_states"),
        (lambda right: {"hidden_states.x": np.zeros(3)}, "hidden_states.x"),
        (lambda right: {"input_ids": np.zeros((5, 11), np.int64)}, "other input_ids"),
        (lambda right: {"logits": right["logits"].astype(np.int64)}, "int64"),
        (lambda right: {"hidden_states.5": right["hidden_states"][4]}, r"hidden_states\.5.*hidden_states\.4"),
        (lambda right: {"attentions.4": right["attentions"][3]}, r"attentions\.4.*attentions\.3"),
        (lambda right: {"hidden_states.00": right["hidden_states"][0]}, r"'hidden_states\.00'"),
        (lambda right: {"last_hidden": right["last_hidden_state"]}, "'last_hidden'"),
        (lambda right: {"pooler_output": right["logits"][:, 0]}, "pooler_output"),
        (lambda right: {"hidden_states": right["hidden_states"]}, "as a whole and by layers"),
        (lambda right: {"attentions.1": right["attentions"][1]}, r"layers \[1\]"),
        (lambda right: {"logits": right["logits"][:, :, :5]}, r"\(5, \d+, 5\); expected"),
        (lambda right: {"logits": right["logits"][:0]}, r"\(0, "),
        (lambda right: {"logits": right["logits"].astype("S3")}, "S3"),
    ],
)
def test_an_array_that_cannot_be_compared_is_refused_by_its_name_beside_right_ones(more, said, right, tmp_path):
    assert check_written(tmp_path, layers(right)).ok
    with pytest.raises(ValueError, match=said):
        check_written(tmp_path, layers(right) | more(right))


@pytest.mark.parametrize(
    ("kind", "count", "said"),
    [("hidden_states", 6, "6 parts; expected 5"), ("hidden_states", 3, "3 parts"), ("attentions", 3, "3 parts")],
)
def test_too_many_or_too_few_layers_are_wrong(kind, count, said, right, tmp_path):
    parts = right[kind]
    report = check_written(tmp_path, {kind: np.concatenate([parts, parts])[:count]})
    assert not report.ok
    assert said in str(report)
    assert f"the first {min(count, len(parts))} are right" in str(report)


@pytest.mark.slow
def test_states_without_the_embeddings_and_exchanged_axes_and_other_orders_are_named(exported, right, tmp_path):
    with np.load(exported) as file:
        mask = file["attention_mask"]
    states = right["hidden_states"].copy()
    states[:, mask == 0] = 7.0  # at padding anything may be
    order = [3, 0, 4, 1, 2]
    cases = {
        "the first is the embeddings": {"hidden_states": states[1:]},
        "axes of attentions are exchanged": {"attentions": right["attentions"].swapaxes(-1, -2)},
        "another order: 3, 0, 4, 1, 2": {"hidden_states": states[:, order], "logits": right["logits"][order]},
        "another order: 1, 0, 2, 3, 4": {"last_hidden_state": states[-1][[1, 0, 2, 3, 4]]},
    }
    for cause, arrays in cases.items():
        report = check_written(tmp_path, arrays)
        assert not report.ok
        assert len(report.causes) == 1
        assert cause in report.causes[0]
    wrong = states[-1][order] + 0.01
    assert not check_written(tmp_path, {"last_hidden_state": wrong}).causes  # the control


@pytest.mark.parametrize("form", [">f4", "<f8", "F"])
def test_numbers_of_the_other_byte_order_of_eight_bytes_and_by_columns_are_read(form, right, tmp_path):
    states = right["hidden_states"]
    written = np.asfortranarray(states) if form == "F" else states.astype(form)
    assert check_written(tmp_path, {"hidden_states": written}).ok


@pytest.mark.slow
def test_numbers_of_float16_have_its_bound(right, tmp_path):
    states = right["last_hidden_state"].astype(np.float16)
    assert check_written(tmp_path, {"last_hidden_state": states}).ok
    rounded = {"last_hidden_state": states.astype(np.float32)}
    assert "--precision float16" in str(check_written(tmp_path, rounded))
    assert check_written(tmp_path, rounded, precision="float16").ok


@pytest.mark.parametrize("at", [10, 100, -1000, -30])
def test_a_damaged_or_a_cut_file_is_refused(at, exported, tmp_path):
    content = bytearray(exported.read_bytes())
    (tmp_path / "outputs.npz").write_bytes(content[:at])
    with pytest.raises(ValueError, match=r"outputs\.npz"):
        minibert.check(tmp_path / "outputs.npz", NOVELS)
    content[at : at + 20] = bytes(255 - x for x in content[at : at + 20])
    (tmp_path / "outputs.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"outputs\.npz") as error:
        minibert.check(tmp_path / "outputs.npz", NOVELS)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(("window", "positions", "longest"), [(40, 80, 48), (40, 45, 45), (4, 80, 26)])
def test_a_text_is_longer_than_the_windows_of_the_layers(window, positions, longest, tmp_path):
    folder = write_words_checkpoint(tmp_path, "modernbert", local_attention=window, max_position_embeddings=positions)
    mask = Expected(Checkpoint.open(folder)).inputs["attention_mask"]
    assert mask.sum(dim=1).max() == longest
