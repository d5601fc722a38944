"""The stages of a BERT, in the order in which they are written: for each the inputs on which a solution is tried.

Inputs are real weights (minibert-novels) and real texts, and the odd cases that a wrong solution gets wrong: one token,
padding inside a batch, pairs, large scores, small variances, accents, unknown characters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from minibert import reference
from minibert.checking.numbers import Bound, Bounds, Outputs, flatten
from minibert.checking.world import TEXTS, World

DRAWS = 200_000  # tokens that are masked
ERRORS = 5.0  # standard errors by which their shares may differ from what they should be


@dataclass(frozen=True)
class Case:
    """Inputs of a function, and what is odd about them."""

    arguments: tuple[Any, ...]
    what: str


Cases = dict[str, tuple[Any, ...]]  # the arguments of each case, by what is odd about them


@dataclass(frozen=True)
class Stage:
    """A function that a learner writes."""

    function: str  # its name
    title: str
    explained: str  # where the course explains it
    inputs: Callable[[World], Cases]
    names: tuple[str, ...] = ()  # of its results, if there are several

    def cases(self, world: World) -> list[Case]:
        """Return the cases on which the function is tried."""
        return [Case(arguments, what) for what, arguments in self.inputs(world).items()]


def inputs_of(case: Case) -> tuple[Any, ...]:
    """Return copies of the arguments of a case."""
    return tuple(map(copied, case.arguments))


def copied(value: Any) -> Any:
    """Return a copy of tensors and of dicts; a generator begins anew."""
    if isinstance(value, torch.Generator):
        return torch.Generator().manual_seed(value.initial_seed())
    if isinstance(value, dict):
        return {key: item.clone() if isinstance(item, Tensor) else item for key, item in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def outcome(stage: Stage, function: Callable[..., Any], given: tuple[Any, ...]) -> Outputs:
    """Return what the function returns, by name; of random numbers also if they begin anew, and from another seed."""
    runs = {"": given}
    if any(isinstance(x, torch.Generator) for x in given):
        other = (torch.Generator().manual_seed(77) if isinstance(x, torch.Generator) else copied(x) for x in given)
        runs |= {"again.": tuple(map(copied, given)), "other.": tuple(other)}
    return {
        f"{run}{name}": x
        for run, values in runs.items()
        for name, x in flatten(function(*values), names=stage.names).items()
    }


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return normal numbers, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


# ---------------------------------------------------------------------------------------------------------------
# Cases


def of_words(world: World) -> Cases:
    """Words of a real vocabulary, and of a small one in which the order of matching matters."""
    words = ["he", "unhappiness", "x", "door", "thequickly", "qzxv", "東", "he東", "opened" * 4, "5", ","]
    small = {"a": 0, "ab": 1, "##b": 2, "##bc": 3, "##c": 4, "abc": 5, "##ab": 6, "b": 7, "[UNK]": 8, "##": 9, "c": 10}
    return {f"the word {word!r}": (word, world.vocabulary) for word in words} | {
        f"the word {word!r} and the vocabulary {', '.join(small)}": (word, small)
        for word in ("abc", "abcc", "abbc", "aab", "bab", "abx", "xab", "c", "aabc")
    }


def of_texts(world: World) -> Cases:
    """Texts with accents, signs and white space of all kinds."""
    texts = [
        *TEXTS,
        "  two  spaces,\ta tab\nand a line ",
        "“Quoted” — yes… ¿no?",
        "ÀÉÎÕÜ Ångström",
        "a+b=c <d> ~e^f`g|h",
        "",
        "don't e-mail me@x.org",
        "東京 x",
        "UPPER",
        "a_b __c__ snake_case",
        "5€ at 30°, 2½ x² №7 ©y",
        "x5 5x 3rd 10km",
        "東京都の人 café 東",
        "q\u0301o\u0308 e\u0327\u0301s x\u20dd",
    ]
    return {f"the text {text!r}": (text, world.vocabulary) for text in texts}


def of_files(world: World) -> Cases:
    """A file with every dtype."""
    tensors = {
        "matrix": drawn(3, 4),
        "half": drawn(2, 5, seed=1).half(),
        "brain": drawn(5, seed=2).bfloat16(),
        "numbers": torch.arange(6).reshape(2, 3),
        "one": torch.tensor(2.5),
    }
    path = world.folder / "five_tensors.safetensors"
    save_file(tensors, path, {"format": "pt"})
    return {"a file of five tensors of four dtypes, with __metadata__": (str(path),)}


def of_linear(world: World) -> Cases:
    """Real weights, a square weight and a single vector."""
    weights = world.of_layer(0)
    return {
        "(B,S,D) to (B,S,F)": (world.states, weights["intermediate.dense.weight"], weights["intermediate.dense.bias"]),
        "a square weight": (drawn(3, 5), drawn(5, 5, seed=1), drawn(5, seed=2)),
        "a single vector": (drawn(4), drawn(2, 4, seed=1), drawn(2, seed=2)),
    }


def of_norm(world: World) -> Cases:
    """Usual numbers, very small ones, and a large eps."""
    weights = world.weights
    norm = weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"]
    D = len(norm[0])
    return {
        "(B,S,D)": (drawn(2, 3, D, scale=3.0) + 1, *norm, world.eps),
        "numbers so small that eps matters": (drawn(4, D, seed=1, scale=1e-3), *norm, world.eps),
        "an eps of 0.5": (drawn(2, 6, seed=2), drawn(6, seed=3), drawn(6, seed=4), 0.5),
    }


def of_gelu(world: World) -> Cases:
    """Where the approximations of GELU differ, and far away."""
    return {
        "numbers from -6 to 6": (torch.linspace(-6.1, 6.1, 97),),
        "very small and very large numbers": (torch.tensor([0.0, -1e-3, 20.0, -20.0, 100.0]),),
    }


def of_embeddings(world: World) -> Cases:
    """A batch, and one token."""
    ids, segments, _ = world.batch
    return {
        "a batch with padding and a pair": (ids, segments, world.weights, world.eps),
        "one token": (ids[:1, :1], segments[:1, :1], world.weights, world.eps),
    }


def of_split(world: World) -> Cases:
    """Sizes that differ, and equal ones."""
    return {
        "4 heads of width 3": (drawn(2, 3, 12), 4),
        "one token": (world.states[:, :1], world.heads),
        "as many tokens as numbers in a head": (drawn(2, 4, 8), 2),
    }


def of_join(world: World) -> Cases:
    """Sizes that all differ, and one token."""
    return {
        "4 heads of width 5, 3 tokens": (drawn(2, 4, 3, 5),),
        "one token": (drawn(1, 2, 1, 4),),
    }


def of_attention(world: World) -> Cases:
    """Padding, large scores, and one token."""
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
    q, k, v = (drawn(3, 2, 5, 4, seed=seed) for seed in range(3))
    return {
        "padding; the last text has one real token": (q, k, v, mask),
        "large scores": (30 * q, 30 * k, v, mask),
        "one token": (q[:, :, :1], k[:, :, :1], v[:, :, :1], mask[:, :1]),
    }


def of_feed_forward(world: World) -> Cases:
    """Real weights."""
    return {"the weights of layer 1": (world.states, world.of_layer(1))}


def of_layers(world: World) -> Cases:
    """Real weights of two layers."""
    _, _, mask = world.batch
    x = world.states
    return {
        "layer 0, a batch with padding": (x, mask, world.of_layer(0), world.heads, world.eps),
        "layer 2, one token": (x[:1, :1], mask[:1, :1], world.of_layer(2), world.heads, world.eps),
    }


def of_encoder(world: World) -> Cases:
    """The whole model."""
    ids, segments, mask = world.batch
    return {
        "a batch with padding and a pair": (ids, segments, mask, world.weights, world.heads, world.eps),
        "twelve layers, no padding": (ids[:2, :4] % 7, segments[:2, :4], mask[:2, :4], twelve_layers(world), 2, 1e-12),
    }


def twelve_layers(world: World) -> dict[str, Tensor]:
    """Return weights named as the real ones, of twelve small layers: the number of a layer has one digit or two."""
    shapes = {name: x.shape for name, x in world.weights.items() if name.startswith("embeddings.")}
    for number in range(12):
        shapes |= {f"encoder.layer.{number}.{name}": x.shape for name, x in world.of_layer(0).items()}
    small = {256: 8, 1024: 16, 8192: 7, 128: 4, 2: 2}  # the sizes of minibert-novels: D, F, V, positions, segments
    weights = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        is_norm = "LayerNorm" in name
        weights[name] = drawn(*(small[size] for size in shape), seed=seed, scale=0.1 if is_norm else 0.5)
        if is_norm and name.endswith("weight"):
            weights[name] += 1
    return weights


def of_pooler(world: World) -> Cases:
    """Drawn weights, which are not symmetric."""
    return {"3 texts of 4 tokens": (drawn(3, 4, 6, seed=1), drawn(6, 6, seed=2), drawn(6, seed=3))}


def of_mean(world: World) -> Cases:
    """A batch with padding."""
    return {"a batch with padding": (world.states, world.batch[2])}


def of_prediction(world: World) -> Cases:
    """The whole head."""
    ids, segments, mask = world.batch
    states, _ = reference.encode(ids[:2], segments[:2], mask[:2], world.weights, world.heads, world.eps)
    return {"the last states of two texts": (states[-1], world.weights, world.eps)}


def of_masking(world: World) -> Cases:
    """So many tokens that the shares are certain."""
    ids = torch.randint(10, 800, (DRAWS // 100, 100), generator=torch.Generator().manual_seed(1))
    special = torch.zeros_like(ids)
    special[:, [0, 40, 99]] = 1
    return {f"{DRAWS:,} tokens, of which 3 % are special": (ids, special, 4, 8000, torch.Generator().manual_seed(2))}


SHARES = (
    "share of chosen tokens",
    "share of [MASK] among the chosen",
    "share of random tokens among the chosen",
    "share of changed tokens among the others",
    "share of chosen tokens among the special ones",
    "share of labels that are not the original ids",
    "whether tokens differ if the generator begins anew",
    "whether tokens are the same if the generator has another seed",
    "mean of the random tokens, as a share of the vocabulary",
    "mean of their squares",
)


def shares(case: Case, result: Outputs) -> Outputs:
    """Return what masking did, as shares that every right solution has, whatever numbers it draws in which order."""
    ids, special, mask_id, size, _ = case.arguments
    inputs, labels = result["inputs"], result["labels"]
    chosen = labels != reference.IGNORED
    changed = inputs != ids
    random = inputs[changed & (inputs != mask_id)] / size
    parts = (
        chosen[special == 0],
        (inputs == mask_id)[chosen],
        (changed & (inputs != mask_id))[chosen],
        changed[~chosen],
        chosen[special == 1],
        (labels != ids)[chosen],
        (inputs != result["again.inputs"]).any()[None],
        (inputs == result["other.inputs"]).all()[None],
        random,
        random.square(),
    )
    none = torch.zeros((), dtype=torch.float64)
    return {name: x.double().mean() if x.numel() else none for name, x in zip(SHARES, parts, strict=True)}


def right_shares(case: Case) -> tuple[Outputs, Bounds]:
    """Return the shares as the paper gives them, and how much they may differ by chance."""
    tokens = float((case.arguments[1] == 0).sum())
    expected = {
        "share of chosen tokens": (0.15, tokens),
        "share of [MASK] among the chosen": (0.8, 0.15 * tokens),
        "share of random tokens among the chosen": (0.1, 0.15 * tokens),
    }
    values = {name: (share, math.sqrt(share * (1 - share) / of)) for name, (share, of) in expected.items()}
    root = math.sqrt(0.1 * 0.15 * tokens)
    values |= {SHARES[-2]: (1 / 2, math.sqrt(1 / 12) / root), SHARES[-1]: (1 / 3, math.sqrt(4 / 45) / root)}  # uniform
    values = dict.fromkeys(SHARES, (0.0, 0.0)) | values
    right = {name: torch.tensor(value, dtype=torch.float64) for name, (value, _) in values.items()}
    return right, {name: Bound(ERRORS * error, ERRORS * error) for name, (_, error) in values.items()}


def of_loss(world: World) -> Cases:
    """Labels that do not count, and logits whose exponential is infinite."""
    labels = torch.tensor([[3, -100, 0, 5], [-100, 2, -100, -100]])
    return {
        "4 of 8 tokens have a label": (drawn(2, 4, 7, scale=3.0), labels),
        "large logits": (drawn(2, 4, 7, scale=200.0), labels),
    }


def of_linear_backward(world: World) -> Cases:
    """Sizes that differ, and square matrices."""
    return {
        "4 rows, 5 numbers to 3": (drawn(4, 3), drawn(4, 5, seed=1), drawn(3, 5, seed=2)),
        "square matrices": (drawn(4, 4), drawn(4, 4, seed=1), drawn(4, 4, seed=2)),
    }


def of_norm_backward(world: World) -> Cases:
    """A mean and a deviation that are not 0 and 1."""
    return {"4 rows of 6 numbers": (drawn(4, 6), drawn(4, 6, seed=1, scale=2.0) + 1, drawn(6, seed=2), 1e-12)}


def of_loss_backward(world: World) -> Cases:
    """Labels that do not count."""
    return {"3 of 5 tokens have a label": (drawn(5, 7, scale=2.0), torch.tensor([3, -100, 0, 6, -100]))}


def of_attention_backward(world: World) -> Cases:
    """Padding."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    return {"2 texts, one of them with padding": (*(drawn(2, 3, 4, 5, seed=seed) for seed in range(4)), mask)}


def of_adamw(world: World) -> Cases:
    """The first step, a later one, and gradients as small as the 1e-8."""
    zero = torch.zeros(3, 4)
    x = drawn(3, 4)
    gradient = drawn(3, 4, seed=1, scale=1e-3)
    return {
        "step 1, small gradients": (x, gradient, zero, zero, 1, 0.01, 0.1),
        "step 7": (x, gradient, 0.5 * gradient, gradient**2, 7, 0.01, 0.1),
        "gradients of about 1e-7, no decay": (x, 1e-7 * x, zero, zero, 2, 0.01, 0.0),
    }


def of_training(world: World) -> Cases:
    """A weight and a bias."""
    x = drawn(8, 4)
    target = drawn(8, 2, seed=3)
    parameters = {"weight": drawn(2, 4, seed=1), "bias": drawn(2, seed=2)}

    def loss_of(now: dict[str, Tensor]) -> Tensor:
        return ((x.to(now["weight"]) @ now["weight"].T + now["bias"] - target.to(now["weight"])) ** 2).mean()

    return {"12 steps of a regression": (parameters, loss_of, 12, 0.1, 0.2)}


ENCODER = "notebook 2 (2_through_the_encoder)"
GRADIENTS = "notebook 9 (9_gradients), Backward through each part"
PRETRAINING = "notebook 12 (12_pretraining)"
STAGES = (
    Stage("linear", "linear layer", f"{ENCODER}, One attention head, in a loop", of_linear),
    Stage("layer_norm", "LayerNorm", f"{ENCODER}, Residual and LayerNorm", of_norm),
    Stage("gelu", "GELU", f"{ENCODER}, Feed-forward and GELU", of_gelu),
    Stage("embed", "embeddings", f"{ENCODER}, Embeddings: from ids to vectors", of_embeddings),
    Stage("split_heads", "cutting into heads", f"{ENCODER}, All heads", of_split),
    Stage("join_heads", "joining heads", f"{ENCODER}, All heads", of_join),
    Stage(
        "attention",
        "attention",
        f"{ENCODER}, Self-attention on paper to Masks",
        of_attention,
        ("context", "probabilities"),
    ),
    Stage("feed_forward", "feed-forward", f"{ENCODER}, Feed-forward and GELU", of_feed_forward),
    Stage("layer", "a layer", f"{ENCODER}, Residual and LayerNorm", of_layers, ("states", "probabilities")),
    Stage("encode", "the encoder", f"{ENCODER}, The whole encoder", of_encoder, ("states", "attentions")),
    Stage("pooler", "pooler", f"{ENCODER}, Pooler", of_pooler),
    Stage("predict_tokens", "masked-LM head", f"{ENCODER}, The masked-LM head", of_prediction),
    Stage(
        "mean_of_tokens", "mean of the tokens", "notebook 6 (6_what_is_in_a_vector), Ways to make one vector", of_mean
    ),
    Stage("cross_entropy", "cross entropy", f"{GRADIENTS}: Softmax and cross-entropy", of_loss),
    Stage(
        "linear_backward",
        "backward of a linear layer",
        f"{GRADIENTS}: Linear",
        of_linear_backward,
        ("gradient of x", "gradient of weight", "gradient of bias"),
    ),
    Stage(
        "layer_norm_backward",
        "backward of LayerNorm",
        f"{GRADIENTS}: LayerNorm",
        of_norm_backward,
        ("gradient of x", "gradient of weight", "gradient of bias"),
    ),
    Stage(
        "cross_entropy_backward", "backward of the loss", f"{GRADIENTS}: Softmax and cross-entropy", of_loss_backward
    ),
    Stage(
        "attention_backward",
        "backward of attention",
        f"{GRADIENTS}: Attention",
        of_attention_backward,
        ("gradient of query", "gradient of key", "gradient of value"),
    ),
    Stage(
        "adamw_step",
        "a step of AdamW",
        "notebook 9 (9_gradients), The size of a step",
        of_adamw,
        ("parameter", "mean", "square"),
    ),
    Stage("train", "the training loop", "notebook 10 (10_fine_tuning), The loop by hand", of_training),
    Stage("mask_tokens", "masking", f"{PRETRAINING}, Masking by hand", of_masking, ("inputs", "labels")),
    Stage("word_pieces", "word pieces", "notebook 3 (3_wordpiece), Longest match first", of_words),
    Stage("tokenize", "tokens of a text", "notebook 3 (3_wordpiece), Cleaning to Splitting at punctuation", of_texts),
    Stage("read_safetensors", "reading weights", "notebook 4 (4_official_weights)", of_files),
)
