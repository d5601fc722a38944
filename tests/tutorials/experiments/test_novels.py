import novels
import torch
from support.models import open_upstream
from transformers import AutoModelForMaskedLM, AutoTokenizer

import minibert
from minibert.cli import main as cli
from minibert.storage import hub


def test_the_text_becomes_a_checkpoint_that_transformers_loads_bit_equal(data, tmp_path, monkeypatch):
    monkeypatch.setattr(novels, "command", lambda *words: cli.main([*map(str, words)]))
    novels.pretrain_novels(data, tmp_path / "run", steps=2)
    made = tmp_path / "run" / hub.SHIPPED
    assert AutoTokenizer.from_pretrained(made).mask_token == "[MASK]"
    theirs = open_upstream(AutoModelForMaskedLM, made)
    ours = minibert.load(made, head="masked-lm")
    ids = torch.tensor([[2, 9, 10, 3]])
    with torch.no_grad():
        logits = ours(ids).logits
        assert logits.dtype == torch.float32 and torch.equal(logits, theirs(ids).logits)
    assert (made / "model.safetensors").stat().st_size < 0.6 * (
        tmp_path / "run" / "trained" / "model.safetensors"
    ).stat().st_size
    before = (made / "model.safetensors").read_bytes()
    novels.pretrain_novels(data, tmp_path / "run", steps=2)  # nothing is left to do
    assert (made / "model.safetensors").read_bytes() == before
