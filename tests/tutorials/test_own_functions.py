"""Models of the notebooks on functions of one's own: every part computes with them, and a wrong one shows."""

from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from own_functions import computing_with, own
from support.models import small_config

from minibert import reference
from minibert.checking.mistakes import SOURCE
from minibert.heads import HEAD_CLASSES


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return HEAD_CLASSES["masked-lm"](small_config()).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])).logits  # type: ignore[no-any-return]


def test_all_parts_compute_with_the_functions_also_in_a_copy(model: Any) -> None:
    calls = dict.fromkeys(("linear", "layer_norm", "gelu", "attention"), 0)
    functions = ModuleType("counted")

    def counted(name: str, *given: Any) -> Any:
        calls[name] += 1
        return getattr(reference, name)(*given)

    for name in calls:
        setattr(functions, name, lambda *given, name=name: counted(name, *given))
    found = logits(deepcopy(computing_with(functions, deepcopy(model))))
    layers = len(model.encoder.layers)
    assert calls == {"linear": 6 * layers + 1, "layer_norm": 2 * layers + 2, "gelu": layers + 1, "attention": layers}
    torch.testing.assert_close(found, logits(model))


def test_own_takes_the_file_from_the_environment(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = logits(model)
    monkeypatch.delenv("MY_BERT", raising=False)
    assert own(model) is model and torch.equal(logits(model), right)
    (tmp_path / "wrong.py").write_text(SOURCE.replace("1 + torch.erf", "2 + torch.erf"), "utf-8")
    monkeypatch.setenv("MY_BERT", str(tmp_path / "wrong.py"))
    assert (logits(own(model)) - right).abs().max() > 1e-3


def test_a_file_that_is_missing_is_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_BERT", "nowhere.py")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py"):
        own(model)
