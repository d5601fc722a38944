"""Official checkpoints give the values that transformers' own tests and documents publish, to the digits given there.

A checkpoint that is not on this machine is skipped.
"""

import pytest
import torch

import minibert
from minibert.checkpoints.hub import locate_locally

ROW = [0, 345, 232, 328, 740, 140, 1695, 69, 6078, 1588, 2]  # the first token is masked
PAIR = [101, 1045, 2001, 24907, 999, 102, 1045, 10749, 2300, 1024, 1040, 102]  # "I was thirsty!", "I drank water :D"
WITHOUT_PADDING = {
    "FacebookAI/roberta-base": [0, 31414, 232, 328, 740, 1140, 12695, 69, 46078, 1588, 2],
    "FacebookAI/xlm-roberta-base": [0, 581, 10269, 83, 99942, 136, 60742, 23, 70, 80583, 18276, 2],
    "almanach/camembert-base": [5, 121, 11, 660, 16, 730, 25543, 110, 83, 6],  # "J'aime le camembert !"
}
LAST_HIDDEN_STATE = {
    "distilbert-base-uncased": [[-0.1639, 0.3299, 0.1648], [-0.1746, 0.3289, 0.1710], [-0.1884, 0.3357, 0.1810]],
    "bert-base-uncased": [[0.4249, 0.1008, 0.7531], [0.3771, 0.1188, 0.7467], [0.4152, 0.1098, 0.7108]],
    "albert/albert-base-v2": [[-0.6513, 1.5035, -0.2766], [-0.6515, 1.5046, -0.2780], [-0.6512, 1.5049, -0.2784]],
    "google/electra-small-discriminator": [
        [0.4471, 0.6821, -0.3265],
        [0.4627, 0.5255, -0.3668],
        [0.4532, 0.3313, -0.4344],
    ],
    "FacebookAI/roberta-base": [[-0.0231, 0.0782, 0.0074], [-0.1854, 0.0540, -0.0175], [0.0548, 0.0799, 0.1687]],
    "almanach/camembert-base": [[-0.0254, 0.0235, 0.1027], [0.0606, -0.1811, -0.0418], [-0.1561, -0.1127, 0.2687]],
    "FacebookAI/xlm-roberta-base": [  # the last number of each token
        *(-0.0101, 0.1218, -0.0803, 0.0801, 0.1327, 0.0776, -0.1215, 0.2383, 0.3338, 0.3106, 0.0300, 0.0252)
    ],
}
ROBERTA_LOGITS = [[33.8802, -4.3103, 22.7761], [4.6539, -2.8098, 13.6253], [1.8228, -3.6898, 8.8600]]
CLS_OF_PAIR = [-0.23, 0.37, -0.34, -0.35, -0.91, 0.01, 0.67, 0.64, 0.1, -0.32]
POOLER_OF_PAIR = [-0.9803, -0.7672, -0.9958, 0.9636, 0.9004, -0.5488, 0.9910, 0.6867, -0.9878, -1.0000]


@pytest.mark.parametrize("name", LAST_HIDDEN_STATE)
@torch.no_grad()
def test_an_official_checkpoint_gives_its_published_values(name: str) -> None:
    if locate_locally(name) is None:
        pytest.skip(f"{name} is not on this machine; `minibert download {name}` fetches it")
    encoder = minibert.load(name)
    ids = torch.tensor([WITHOUT_PADDING.get(name, ROW)])
    mask = torch.ones_like(ids) if name in WITHOUT_PADDING else (torch.arange(len(ROW)) > 0).long()[None]
    state = encoder(ids, attention_mask=mask).last_hidden_state[0]
    first = slice(3) if name in WITHOUT_PADDING else slice(1, 4)
    shown = state[:, -1] if name == "FacebookAI/xlm-roberta-base" else state[first, first]
    published = [(shown, LAST_HIDDEN_STATE[name], 1e-3 if shown.dim() == 1 else 1e-4)]
    if name == "bert-base-uncased":
        pair = encoder(torch.tensor([PAIR]), token_type_ids=torch.tensor([[0] * 6 + [1] * 6]))
        published.append((pair.last_hidden_state[0, 0, :10], CLS_OF_PAIR, 6e-3))
        published.append((pair.pooler_output[0, :10], POOLER_OF_PAIR, 1e-4))
    if name == "FacebookAI/roberta-base":
        logits = minibert.load(name, head="masked-lm")(ids).logits[0, :3, :3]
        published.append((logits, ROBERTA_LOGITS, 1e-4))
    for ours, expected, within in published:
        torch.testing.assert_close(ours, torch.tensor(expected), rtol=0, atol=within)
