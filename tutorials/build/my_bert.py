"""My BERT: one file of functions that loads real weights, guesses masked words, classifies and learns.

Write the functions from the first to the last; each needs only those before it. After each:

    minibert check my_bert.py            what is right, what is wrong and why, and what is next

It runs once they are right:

    python my_bert.py guess "He opened the [MASK] and went in."
    python my_bert.py classify samples/train.tsv samples/dev.tsv
    python my_bert.py train "He opened the door and went in." "She closed the window."

Only torch's tensors are needed: no layer, loss or optimizer of a library. README.md beside this file has the path,
HINTS.md three hints per function. Letters, as in the papers:

    B texts    S tokens    D hidden size    H heads    W = D / H width of a head    F feed-forward width    V vocabulary

Weights are a dict of tensors with the names of BERT's official files. Sections are those of "BERT" (Devlin et al. 2018)
and "Attention Is All You Need" (Vaswani et al. 2017, "AIAYN").
"""

import json
import math
import struct
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

IGNORED = -100  # the label of a token that is not predicted

# ---------------------------------------------------------------------------------------------------------------
# The encoder


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x Wᵀ + b, (..., in) -> (..., out); weight: (out, in), as files have it."""
    raise NotImplementedError


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """weight · (x - mean) / sqrt(variance + eps) + bias over the last axis, (..., D) -> (..., D).

    The variance is the mean of the squared deviations (Ba et al. 2016). BERT's eps is 1e-12.
    """
    raise NotImplementedError


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x), Φ the normal distribution: x (1 + erf(x / √2)) / 2 (Hendrycks and Gimpel 2016; BERT, appendix A.2)."""
    raise NotImplementedError


def embed(ids: Tensor, segments: Tensor, weights: dict[str, Tensor], eps: float) -> Tensor:
    """LayerNorm(token + position + segment), (B,S), (B,S) -> (B,S,D) (BERT, section 3, figure 2).

    weights: embeddings.word_embeddings.weight (V,D), .position_embeddings.weight, .token_type_embeddings.weight, and
    embeddings.LayerNorm.weight and .bias. Positions count from 0.
    """
    raise NotImplementedError


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B,S,D) -> (B,H,S,W): head h gets the numbers h·W to (h+1)·W - 1 of each token (AIAYN, section 3.2.2)."""
    raise NotImplementedError


def join_heads(x: Tensor) -> Tensor:
    """(B,H,S,W) -> (B,S,D): the inverse of split_heads."""
    raise NotImplementedError


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √W) V and the probabilities, (B,H,S,W) x 3, (B,S) -> (B,H,S,W), (B,H,S,S) (AIAYN, section 3.2.1).

    mask: 1 for a real token, 0 for padding, to which no token attends. Each query's probabilities sum to 1. A text has
    at least one real token.
    """
    raise NotImplementedError


def feed_forward(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """gelu(x W1ᵀ + b1) W2ᵀ + b2, (B,S,D) -> (B,S,F) -> (B,S,D) (AIAYN, section 3.3).

    weights: intermediate.dense.weight (F,D) and .bias, output.dense.weight (D,F) and .bias.
    """
    raise NotImplementedError


def layer(x: Tensor, mask: Tensor, weights: dict[str, Tensor], heads: int, eps: float) -> tuple[Tensor, Tensor]:
    """Attention, then feed-forward, each added to its input and normalised after the sum (AIAYN, section 3.1).

    (B,S,D), (B,S) -> (B,S,D), and the probabilities of attention (B,H,S,S). weights of attention: attention.self.query,
    .key, .value and attention.output.dense, each .weight (D,D) and .bias. Norms: attention.output.LayerNorm and
    output.LayerNorm.
    """
    raise NotImplementedError


def encode(
    ids: Tensor, segments: Tensor, mask: Tensor, weights: dict[str, Tensor], heads: int, eps: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the embeddings and the output of each layer, L + 1 times (B,S,D), and each layer's probabilities.

    weights: as for embed, and for layer l as for `layer`, after "encoder.layer.l.". Count the layers by their names.
    """
    raise NotImplementedError


# ---------------------------------------------------------------------------------------------------------------
# On top of it


def pooler(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """tanh(x[CLS] Wᵀ + b), (B,S,D) -> (B,D): what next-sentence prediction reads (BERT, section 3.1, task 2)."""
    raise NotImplementedError


def predict_tokens(x: Tensor, weights: dict[str, Tensor], eps: float) -> Tensor:
    """Return a score for every token at every position, (B,S,D) -> (B,S,V) (BERT, section 3.1, task 1).

    LayerNorm(gelu(x Wᵀ + a)) Eᵀ + b, E the token embedding. weights: cls.predictions.transform.dense,
    cls.predictions.transform.LayerNorm, cls.predictions.bias (V), embeddings.word_embeddings.weight.
    """
    raise NotImplementedError


def mean_of_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the real tokens of each text, (B,S,D), (B,S) -> (B,D): a sentence vector."""
    raise NotImplementedError


# ---------------------------------------------------------------------------------------------------------------
# Learning


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of -log softmax(logits)[label] over the tokens whose label is not IGNORED, (B,S,V), (B,S) -> ().

    Logits may be large: exp(200) is infinite in float32.
    """
    raise NotImplementedError


def linear_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias, given the one of x Wᵀ + b: (N,out), (N,in), (out,in), no autograd."""
    raise NotImplementedError


def layer_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias, given the one of its output, (N,D), (N,D), (D); without autograd."""
    raise NotImplementedError


def cross_entropy_backward(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of cross_entropy for the logits, (N,V), (N) -> (N,V), 0 without a label; without autograd."""
    raise NotImplementedError


def attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, given the one of the context, (B,H,S,W) each; without autograd."""
    raise NotImplementedError


def adamw_step(
    parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: int, rate: float, decay: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parameter, mean and square after one step of AdamW; step: 1, 2, ... (Loshchilov and Hutter 2017).

    mean and square: the running averages of the gradient (0.9) and of its square (0.999), both 0 before step 1, and
    corrected for that. The root has 1e-8 added. decay, times the rate, shrinks the parameter, and no average sees it.
    """
    raise NotImplementedError


def train(
    parameters: dict[str, Tensor], loss_of: Callable[[dict[str, Tensor]], Tensor], steps: int, rate: float, decay: float
) -> list[float]:
    """Take steps of AdamW on one batch, and return the loss before each; autograd is allowed here.

    loss_of: the loss of the parameters, (). Vectors (biases and norms) have no decay. The tensors that were passed in
    stay as they are. BERT, appendix A.2.
    """
    raise NotImplementedError


def mask_tokens(
    ids: Tensor, special: Tensor, mask_id: int, vocabulary_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of masked language modelling, (B,S), (B,S) -> (B,S), (B,S) (BERT, section 3.1, task 1).

    Each token that is not special is chosen with probability 0.15. Of the chosen, 80 % become [MASK], 10 % a random
    token of the vocabulary, and 10 % stay. Labels: the original id of a chosen token, IGNORED (-100) elsewhere.
    special: 1 for [CLS], [SEP] and padding. All random numbers are drawn from the generator.
    """
    raise NotImplementedError


# ---------------------------------------------------------------------------------------------------------------
# Text


def word_pieces(word: str, vocabulary: dict[str, int]) -> list[str]:
    """Split a word into the longest pieces of the vocabulary, from left to right.

    Each piece is the longest that fits there; all but the first begin with "##". A word that cannot be split as a whole
    is ["[UNK]"]. Wu et al. 2016, section 4.1; BERT, section 3, "Input/Output Representations".
    """
    raise NotImplementedError


def tokenize(text: str, vocabulary: dict[str, int]) -> list[str]:
    """Return the tokens of a text, without [CLS] and [SEP]: lower case, no accents, words, then word_pieces of each.

    Accents are the characters of category Mn after NFD (unicodedata). White space separates words, and each character
    of punctuation is a word: every ASCII character that is no letter, digit or space, and every category P*.
    """
    raise NotImplementedError


# ---------------------------------------------------------------------------------------------------------------
# Weights


def read_safetensors(path: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name, in float32 (integers as int64), with struct and json only.

    The file: 8 bytes, the length N of the header as a little-endian unsigned integer; N bytes of JSON, by name
    {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, perhaps with "__metadata__"; then all data, from
    whose beginning the offsets count. dtypes: F32, F16, BF16 and I64.
    """
    raise NotImplementedError


# ---------------------------------------------------------------------------------------------------------------
# The model at work: `guess`, `classify` and `train` of the command line. They are given, and call the functions above.


def load_model() -> tuple[dict[str, Tensor], dict[str, int], int, float]:
    """Return the weights, the vocabulary, the number of heads and eps of minibert-novels. Raises FileNotFoundError."""
    places = [above / "weights" / "minibert-novels" for above in Path(__file__).resolve().parents]
    folder = next(filter(Path.is_dir, places), None)
    if folder is None:
        raise FileNotFoundError("no folder above this file has weights/minibert-novels; work in a checkout of minibert")
    weights = read_safetensors(str(folder / "model.safetensors"))
    weights = {name.removeprefix("bert."): x for name, x in weights.items()}
    config = json.loads((folder / "config.json").read_text("utf-8"))
    vocabulary = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    return weights, vocabulary, config["num_attention_heads"], config["layer_norm_eps"]


def batch_of(texts: list[str], vocabulary: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Return ids and mask of texts, (B,S) each, at most 128 tokens of a text; [MASK] in a text is that token."""
    rows = []
    for text in texts:
        first, *others = (tokenize(part, vocabulary) for part in text.split("[MASK]"))
        tokens = first + [token for part in others for token in ["[MASK]", *part]]
        rows.append([vocabulary[token] for token in ["[CLS]", *tokens[:126], "[SEP]"]])
    longest = max(map(len, rows))
    ids = torch.tensor([row + [vocabulary["[PAD]"]] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def guess(text: str) -> None:
    """Print the five likeliest tokens for each [MASK], with their probabilities."""
    weights, vocabulary, heads, eps = load_model()
    ids, mask = batch_of([text], vocabulary)
    if vocabulary["[MASK]"] not in ids:
        sys.exit("the text has no [MASK] in its first 126 tokens")
    states, _ = encode(ids, torch.zeros_like(ids), mask, weights, heads, eps)
    tokens = list(vocabulary)  # in the order of their ids
    for scores in predict_tokens(states[-1], weights, eps)[ids == vocabulary["[MASK]"]]:
        best = torch.softmax(scores, dim=-1).topk(5)
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        print(", ".join(f"{tokens[number]} {p:.2f}" for p, number in pairs))


def classify(train_file: str, dev_file: str) -> None:
    """Learn labels from vectors of frozen texts, and print the accuracy on other texts.

    The files: a header, then a text, a tab and a label per line.
    """
    weights, vocabulary, heads, eps = load_model()
    files = [
        [line.rpartition("\t")[::2] for line in Path(path).read_text("utf-8").splitlines()[1:]]
        for path in (train_file, dev_file)
    ]
    names, others = (sorted({label for _, label in rows}) for rows in files)
    if len(names) < 2 or not others or not set(others) <= set(names):
        sys.exit(f"{train_file} needs two labels or more, and {dev_file} some of them: text, tab, label per line")
    vectors, labels = [], []
    for rows in files:
        ids, mask = batch_of([text for text, _ in rows], vocabulary)
        states, _ = encode(ids, torch.zeros_like(ids), mask, weights, heads, eps)
        vectors.append(mean_of_tokens(states[-1], mask))
        labels.append(torch.tensor([names.index(label) for _, label in rows]))
    center, spread = vectors[0].mean(dim=0), vectors[0].std(dim=0)
    x, y = ((vector - center) / spread for vector in vectors)
    last: dict[str, Tensor] = {}

    def loss_of(now: dict[str, Tensor]) -> Tensor:
        last.update(now)
        return cross_entropy(linear(x, now["weight"], now["bias"])[:, None], labels[0][:, None])

    start = {"weight": torch.zeros(len(names), x.shape[1]), "bias": torch.zeros(len(names))}
    losses = train(start, loss_of, steps=60, rate=0.01, decay=1.0)
    right = (linear(y, last["weight"], last["bias"]).argmax(dim=-1) == labels[1]).float()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; accuracy on {len(right)} other texts {float(right.mean()):.3f}")


def learn(texts: list[str]) -> None:
    """Train the whole model to predict masked tokens of these texts, and print the loss of each step."""
    weights, vocabulary, heads, eps = load_model()
    ids, mask = batch_of(texts, vocabulary)
    special = (mask == 0) | (ids == vocabulary["[CLS]"]) | (ids == vocabulary["[SEP]"])
    generator = torch.Generator().manual_seed(1)
    inputs, labels = mask_tokens(ids, special.long(), vocabulary["[MASK]"], len(vocabulary), generator)
    if bool((labels == IGNORED).all()):
        sys.exit("no token was chosen; give more text")

    def loss_of(now: dict[str, Tensor]) -> Tensor:
        states, _ = encode(inputs, torch.zeros_like(ids), mask, now, heads, eps)
        return cross_entropy(predict_tokens(states[-1], now, eps), labels)

    used = {name: x for name, x in weights.items() if not name.startswith(("pooler", "cls.seq"))}
    losses = train(used, loss_of, steps=8, rate=1e-3, decay=0.01)
    print("loss of each step:", " ".join(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["guess", text]:
                guess(text)
            case ["classify", train_file, dev_file]:
                classify(train_file, dev_file)
            case ["train", *texts] if texts:
                learn(texts)
            case _:
                sys.exit('usage: guess "... [MASK] ..." | classify TRAIN.tsv DEV.tsv | train TEXT ...')
    except OSError as error:
        sys.exit(str(error))
