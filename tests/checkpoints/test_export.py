"""The encoder and every task head as graphs: no check in them, any batch and length, the same numbers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import HEADS, TESTED, small_config
from torch.export import Dim

import minibert
from minibert.checkpoints import export as export_module
from minibert.checkpoints.export import Positional, export, inputs_of
from minibert.families import FAMILIES
from minibert.heads import HEAD_CLASSES

CASES = [*((family, "") for family in TESTED), *HEADS]


def small(family: str, head: str = "") -> Any:
    config = small_config(FAMILIES[family], max_position_embeddings=70, num_labels=2)
    return (HEAD_CLASSES[head] if head else minibert.Encoder)(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), [(family.name, head) for family, head in CASES])
def test_a_graph_for_any_batch_and_length_computes_what_the_model_computes(family, head):
    model = small(family, head)
    wrapped, axes = Positional(model), 3 if head == "multiple-choice" else 2
    program = torch.export.export(
        wrapped,
        inputs_of(model, (2, 7)),
        dynamic_shapes=[dict.fromkeys(range(axes), Dim.AUTO) for _ in wrapped.inputs],
    )
    for shape in ((1, 2), (5, 31)):
        given = inputs_of(model, shape)
        found, expected = program.module()(*given), wrapped(*given)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    # A check would look at values: nothing in the graph reads one.
    assert not [node for node in program.graph.nodes if str(node.target).startswith(("aten.any", "aten._local_scalar"))]


@pytest.mark.slow
def test_the_encoder_itself_exports_with_its_own_arguments_and_its_own_output():
    encoder = small("bert")
    ids, mask, segments = inputs_of(encoder, (2, 7))
    given = {"attention_mask": mask, "token_type_ids": segments}
    shapes = {name: {0: Dim.AUTO, 1: Dim.AUTO} for name in ["input_ids", *given]}
    program = torch.export.export(encoder, (ids,), given, dynamic_shapes=shapes)
    out = program.module()(ids, **given)
    assert torch.equal(out.last_hidden_state, encoder(ids, **given).last_hidden_state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "head", "inputs", "outputs"),
    [
        ("bert", "", ["input_ids", "attention_mask", "token_type_ids"], ["last_hidden_state", "pooler_output"]),
        ("distilbert", "question-answering", ["input_ids", "attention_mask"], ["start_logits", "end_logits"]),
    ],
)
def test_the_command_writes_a_file_that_onnxruntime_runs(family, head, inputs, outputs, tmp_path, run):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    folder, out = tmp_path / "checkpoint", tmp_path / "model.onnx"
    minibert.save(small(family, head), folder)
    printed = run("export", folder, "--out", out, "--json", *(["--head", head] if head else []))
    assert json.loads(printed.splitlines()[-1])["difference"] <= 3e-5
    session = onnxruntime.InferenceSession(out.read_bytes(), providers=["CPUExecutionProvider"])
    assert [[one.name for one in part] for part in (session.get_inputs(), session.get_outputs())] == [inputs, outputs]
    model = minibert.load(folder, **({"head": head} if head else {}))
    given = inputs_of(model, (4, 23))
    found = session.run(None, {name: x.numpy() for name, x in zip(inputs, given, strict=True)})
    with torch.inference_mode():
        expected = Positional(model)(*given)
    assert all(float((torch.from_numpy(x) - y).abs().max()) <= 3e-5 for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize(("family", "segments"), [("bert", True), ("roberta", False), ("xlm-roberta", False)])
def test_a_relative_whose_tokenizer_gives_no_segments_needs_none(family, segments):
    model = small(family)
    wrapped = Positional(model)
    assert ("token_type_ids" in wrapped.inputs) == segments
    ids, mask, *given = inputs_of(model, (2, 7))
    assert torch.equal(
        wrapped(ids, mask, *given)[0], model(ids, attention_mask=mask, token_type_ids=(*given, None)[0])[0]
    )


@pytest.mark.parametrize(
    ("held", "requested", "exported"),
    [
        ("sequence-classification", None, "sequence-classification"),
        ("question-answering", None, "question-answering"),
        ("sequence-classification", "encoder", ""),
        ("masked-lm", None, ""),  # of pretraining: the encoder is what its users need
        ("masked-lm", "masked-lm", "masked-lm"),
        ("", None, ""),
    ],
)
def test_a_fine_tuned_folder_is_exported_with_its_head(held, requested, exported, tmp_path, monkeypatch):
    minibert.save(small("bert", held), tmp_path / "checkpoint")
    found = []

    def stop(wrapped, *given, output_names, **more):
        found.extend([wrapped.model, output_names])
        raise RuntimeError("no graph is needed here")

    monkeypatch.setattr(torch.onnx, "export", stop)
    with pytest.raises(RuntimeError, match="graph"):
        export(tmp_path / "checkpoint", tmp_path / "model.onnx", head=requested)
    assert getattr(found[0], "name", "") == exported
    assert ("last_hidden_state" in found[1]) == (not exported)


def test_what_cannot_be_exported_is_refused_and_leaves_no_file(tmp_path, monkeypatch):
    for out, message in (("model.bin", "ends in .onnx"), ("nowhere/model.onnx", "there is no folder")):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            export("no such checkpoint", tmp_path / out)
    graph = SimpleNamespace(inputs=[], outputs=[])
    program = SimpleNamespace(model=SimpleNamespace(graph=graph), save=lambda path: Path(path).write_bytes(b""))
    monkeypatch.setattr(export_module, "largest_difference", lambda wrapped, file: 1e-3)
    monkeypatch.setattr(torch.onnx, "export", lambda *given, **more: program)
    minibert.save(small("bert"), tmp_path / "checkpoint")
    with pytest.raises(RuntimeError, match=r"0\.001.*3e-05"):
        export(tmp_path / "checkpoint", tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
