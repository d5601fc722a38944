"""Known mistakes, of learners and of ports to other languages, each as an edit of reference.py.

`minibert check` makes each of them on the reference, and looks which one gives the numbers that it was given. The tests
make each in a finished solution, and demand that it is found. A mistake is an edit of one function, and a text that
says what is wrong.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from minibert import reference

Functions = dict[str, Callable[..., Any]]  # of the reference, or in their place, by name
SOURCE = Path(reference.__file__).read_text("utf-8")
CODE = compile(SOURCE, reference.__file__, "exec")


class Mistake(NamedTuple):
    """An edit of a function of the reference."""

    function: str
    cause: str  # what is wrong, for a message
    edits: tuple[str, ...]  # old, new, old, new, ...: parts of the function, each occurrence of which is replaced

    def apply(self, source: str) -> str:
        """Return the source of the reference with this mistake. Raises ValueError if an edit finds nothing."""
        before, body, after = parted(source, self.function)
        for old, new in zip(self.edits[::2], self.edits[1::2], strict=True):
            if old not in body:
                raise ValueError(f"{self.function} does not contain {old!r}")
            body = body.replace(old, new)
        return before + body + after


def parted(source: str, function: str) -> tuple[str, str, str]:
    """Return what is before a function, the function, and what is after it."""
    begin = source.index(f"def {function}(")
    end = source.find("\n\n\n", begin)
    return source[:begin], source[begin : end if end >= 0 else None], source[end:] if end >= 0 else ""


def text_of(mistake: Any, eps: float = 1e-12, first_position: int = 0) -> str:
    """Return what is wrong, with the values that a checkpoint has."""
    cause: str = mistake.cause
    return cause.format(eps=f"{eps:g}", first=first_position)


@cache
def functions_with(mistakes: tuple[Mistake, ...]) -> Functions:
    """Return the functions of the reference with these mistakes, by name. Raises ValueError as Mistake.apply."""
    source = SOURCE
    for mistake in mistakes:
        source = mistake.apply(source)
    names: dict[str, Any] = {}
    exec(CODE, names)
    for function in dict.fromkeys(mistake.function for mistake in mistakes):
        exec(parted(source, function)[1], names)  # our own source with our own edits
    return names


FROM_THE_END = """\
    end = len(word)
    while end > 0:
        for begin in range(end):
            piece = ("##" if begin > 0 else "") + word[begin:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.insert(0, piece)
        end = begin
"""
WORDS = """\
    begin = 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            piece = ("##" if begin > 0 else "") + word[begin:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        begin = end
"""
NFD = 'text = unicodedata.normalize("NFD", text.lower())'
NO_ACCENTS = 'text = "".join(c for c in text if unicodedata.category(c) != "Mn")'
VARIANCE = "variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)"
NORMAL = "return weight * (x - mean) / torch.sqrt(variance + eps) + bias"
GELU = "return x * (1 + torch.erf(x / math.sqrt(2))) / 2"
POSITION = "position = torch.arange(ids.shape[1])"
FROM = ' + {} - int(weights.get("first_position", 0))'
SEGMENTS = '["embeddings.token_type_embeddings.weight"][segments]'
TOKENS = 'x = weights["embeddings.word_embeddings.weight"][ids]'
EMBEDDING_NORM = 'layer_norm(x, weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"], eps)'
QKV = "query, key, value = ("
SPLIT = "return x.reshape(B, S, heads, D // heads).transpose(1, 2)"
JOIN = "return x.transpose(1, 2).reshape(B, S, H * W)"
SCORES = "scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])"
MASKED = 'scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))'
SOFTMAX = "probabilities = torch.softmax(scores, dim=-1)"
CONTEXT = "return probabilities @ value, probabilities"
FIRST_SUM = "x = layer_norm(x + attended, *norm, eps)"
SECOND_SUM = "return layer_norm(x + feed_forward(x, weights), *norm, eps), probabilities"
EXPANDED = 'x = gelu(linear(x, weights["intermediate.dense.weight"], weights["intermediate.dense.bias"]))'
CONTRACTED = 'return linear(x, weights["output.dense.weight"], weights["output.dense.bias"])'
MEAN = "return (x * real).sum(dim=1) / real.sum(dim=1)"
POOLED = "return torch.tanh(linear(x[:, 0], weight, bias))"
TRANSFORMED = 'x = gelu(linear(x, weights[before + "dense.weight"], weights[before + "dense.bias"]))'
TRANSFORM_NORM = 'x = layer_norm(x, weights[before + "LayerNorm.weight"], weights[before + "LayerNorm.bias"], eps)'
DECODED = 'return linear(x, weights["embeddings.word_embeddings.weight"], weights["cls.predictions.bias"])'
CHOSEN = "chosen = (torch.rand(ids.shape, generator=generator) < 0.15) & (special == 0)"
LABELS = "labels = torch.where(chosen, ids, IGNORED)"
LOSS = "return (torch.logsumexp(logits, dim=-1) - right).mean()"
OF_SCORES = "of_scores = p * (of_p - (of_p * p).sum(dim=-1, keepdim=True)) * scale"
UPDATE = "update = (mean / (1 - 0.9**step)) / (torch.sqrt(square / (1 - 0.999**step)) + 1e-8)"
STEPPED = "return parameter - rate * (update + decay * parameter), mean, square"

LAYER_CALL = "x, probabilities = layer(x, mask, of_layer, heads, eps)"
WITHOUT_LAST_NORM = """\
def bare(x, mask, weights, heads, eps):
        norm, calls = layer_norm, []
        globals()["layer_norm"] = lambda x, *rest: x if calls else calls.append(1) or norm(x, *rest)
        try:
            return layer(x, mask, weights, heads, eps)
        finally:
            globals()["layer_norm"] = norm

    x = embed("""
FUSED = """\
weights = dict(weights)
    for kind in ("weight", "bias"):
        fused = torch.cat([weights[f"attention.self.{name}.{kind}"] for name in ("query", "key", "value")])
        parts = fused.reshape(SHAPE, *fused.shape[1:]).movedim(AXIS, 0)
        for name, part in zip(("query", "key", "value"), parts):
            weights[f"attention.self.{name}.{kind}"] = part.reshape(-1, *fused.shape[1:])
    """
ROWS_FIRST = """\
return torch.stack([
        (torch.logsumexp(x[y != IGNORED], dim=-1) - x[y != IGNORED].gather(1, y[y != IGNORED, None])[:, 0]).mean()
        for x, y in zip(logits, labels) if bool((y != IGNORED).any())
    ]).mean()
    """
FLAT = "logits, labels = logits.flatten(0, -2), labels.flatten()"
ROUNDED = (
    "weights = {name: x.TYPE().float() if x.is_floating_point() else x for name, x in weights.items()}\n    x = embed("
)
FINITE = """\
def finite(query, key, value, mask):
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        probabilities = torch.softmax(scores + (mask[:, None, None, :] == 0) * torch.finfo(scores.dtype).min, dim=-1)
        return probabilities @ value, probabilities

    globals()["attention"] = finite  # of the functions with this mistake only
    """
INT8 = """\
weights = dict(weights)
    for name, x in weights.items():
        if x.dim() == 2 and "embeddings" not in name:
            scale = (x.abs().amax(DIM) / 127).clamp(min=1e-12)
            weights[name] = (x / scale).round() * scale
    x = embed("""
SPLIT_CALL = "split_heads(linear("
ATTEND = "context, probabilities = attention(query, key, value, mask)"

# ruff: noqa: E501  # a row per mistake
# fmt: off
MISTAKES = tuple(Mistake(function, cause, tuple(edits)) for function, cause, *edits in (
    # Text
    ("word_pieces", "the pieces are the shortest that fit, not the longest", "range(len(word), begin, -1)", "range(begin + 1, len(word) + 1)"),
    ("word_pieces", "the pieces are matched from the end of the word, not from its beginning", WORDS, FROM_THE_END),
    ("word_pieces", "pieces inside a word do not begin with ##", '("##" if begin > 0 else "")', '""'),
    ("word_pieces", "the first piece of a word begins with ## too", '("##" if begin > 0 else "")', '("##" if len(word) > 1 else "")'),
    ("word_pieces", "only the part that is not known becomes [UNK], not the whole word", 'return ["[UNK]"]', 'return [*pieces, "[UNK]"]'),
    ("word_pieces", "a word that is not known is left out, where it is [UNK]", 'return ["[UNK]"]', "return []"),
    ("word_pieces", "a word that is not known is split into characters, where it is [UNK]", 'return ["[UNK]"]', "return list(word)"),
    ("tokenize", "the text is not lower-cased", "text.lower()", "text"),
    ("tokenize", "accents are kept", NO_ACCENTS, 'text = unicodedata.normalize("NFC", text)'),
    ("tokenize", "letters with accents are left out, not only their accents", NO_ACCENTS, 'text = "".join(c for c in unicodedata.normalize("NFC", text) if c.isascii() or not unicodedata.normalize("NFD", c)[0].isascii())'),
    ("tokenize", "punctuation is not a word of its own", "elif is_punctuation:", "elif False:"),
    ("tokenize", "punctuation is left out", 'words += [c, ""]', 'words += [""]'),
    ("tokenize", "only ASCII has punctuation", 'unicodedata.category(c).startswith("P")', "False"),
    ("tokenize", "$, +, <, =, >, ^, `, | and ~ are not treated as punctuation", "(c.isascii() and c.isprintable() and not c.isalnum() and not c.isspace())", "False"),
    ("tokenize", "only spaces separate words, not tabs, line ends and other white space", "if c.isspace():", 'if c == " ":'),
    ("tokenize", "words are not split into pieces", "for piece in word_pieces(word, vocabulary)", "for piece in [word]"),
    ("tokenize", "[CLS] and [SEP] are added", "return [piece for", 'return ["[CLS]"] + [piece for', "word_pieces(word, vocabulary)]", 'word_pieces(word, vocabulary)] + ["[SEP]"]'),
    ("tokenize", "[CLS] is added", "return [piece for", 'return ["[CLS]"] + [piece for'),
    ("tokenize", "every sign is a word, except _ (the classes \\w and \\W of re)", "if c.isspace():", 'is_punctuation = not (c.isalnum() or c == "_")\n        if c.isspace():'),
    ("tokenize", "every sign is a word, not only punctuation", "if c.isspace():", "is_punctuation = not c.isalnum()\n        if c.isspace():"),
    ("tokenize", "_ is treated as a letter", "if c.isspace():", 'is_punctuation = is_punctuation and c != "_"\n        if c.isspace():'),
    ("tokenize", "Chinese characters are words of their own", "if c.isspace():", 'is_punctuation = is_punctuation or "\\u4e00" <= c <= "\\u9fff"\n        if c.isspace():'),
    # Weights
    ("read_safetensors", "data_offsets are counted from the header, not from its end", "data = bytearray", "file.seek(8)\n        data = bytearray"),
    ("read_safetensors", "data_offsets are counted from the beginning of the file, not from the end of the header", "data = bytearray", "file.seek(0)\n        data = bytearray"),
    ("read_safetensors", "BF16 is read as F16", '"BF16": torch.bfloat16', '"BF16": torch.float16'),
    ("read_safetensors", "F16 is read as BF16", '"F16": torch.float16', '"F16": torch.bfloat16'),
    ("read_safetensors", "matrices are read column by column, not row by row", 'dtype=dtypes[entry["dtype"]]).reshape(entry["shape"])', 'dtype=dtypes[entry["dtype"]]).reshape(entry["shape"][::-1]).permute(tuple(range(len(entry["shape"])))[::-1])'),
    ("read_safetensors", "F16 and BF16 are not converted to float32", "x if x.dtype == torch.int64 else x.float()", "x"),
    ("read_safetensors", "integers are converted to float32", "x if x.dtype == torch.int64 else x.float()", "x.float()"),
    # Linear
    ("linear", "the weight is not transposed", "x @ weight.T", "x @ (weight if weight.shape[0] == weight.shape[1] else weight.T)"),
    ("linear", "the bias is left out", " + bias", ""),
    ("linear", "the bias is added twice", " + bias", " + 2 * bias"),
    ("linear", "the bias is subtracted", " + bias", " - bias"),
    # LayerNorm
    ("layer_norm", "eps is 1e-5, torch's default, not {eps}", "variance + eps", "variance + 1e-5"),
    ("layer_norm", "eps is 1e-6, not {eps}", "variance + eps", "variance + 1e-6"),
    ("layer_norm", "eps is 1e-12, not {eps}", "variance + eps", "variance + 1e-12"),
    ("layer_norm", "eps is 0, not {eps}", "variance + eps", "variance"),
    ("layer_norm", "eps is added after the root, not to the variance", "torch.sqrt(variance + eps)", "(torch.sqrt(variance) + eps)"),
    ("layer_norm", "the variance is divided by D - 1, not by D", VARIANCE, "variance = x.var(dim=-1, keepdim=True)"),
    ("layer_norm", "the mean is not subtracted (RMSNorm)", NORMAL, "return weight * x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) + bias"),
    ("layer_norm", "the weight (gamma) is not used", NORMAL, NORMAL.replace("weight * ", "")),
    ("layer_norm", "the bias (beta) is not used", NORMAL, NORMAL.replace(" + bias", "")),
    ("layer_norm", "neither weight nor bias (gamma and beta) is used", NORMAL, NORMAL.replace("weight * ", "").replace(" + bias", "")),
    ("layer_norm", "weight and bias (gamma and beta) are exchanged", NORMAL, "return bias * (x - mean) / torch.sqrt(variance + eps) + weight"),
    ("layer_norm", "the factor is 1 + weight", NORMAL, NORMAL.replace("weight * ", "(1 + weight) * ")),
    ("layer_norm", "mean and variance are over the tokens, not over the numbers of a token", "dim=-1", "dim=-2"),
    ("layer_norm", "mean and variance are over all numbers, not over those of a token", "dim=-1, keepdim=True", ""),
    ("layer_norm", "it is divided by the variance, not by its root", "torch.sqrt(variance + eps)", "(variance + eps)"),
    # GELU
    ("gelu", "GELU is approximated by tanh", GELU, "return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))"),
    ("gelu", "GELU is approximated by a sigmoid, x σ(1.702 x)", GELU, "return x * torch.sigmoid(1.702 * x)"),
    ("gelu", "the activation is SiLU, x σ(x)", GELU, "return x * torch.sigmoid(x)"),
    ("gelu", "the activation is ReLU", GELU, "return x.clamp(min=0)"),
    ("gelu", "the half of GELU is missing", GELU, GELU.replace(" / 2", "")),
    ("gelu", "erf is of x, not of x / √2", "x / math.sqrt(2)", "x"),
    ("gelu", "x is forgotten: it is only its probability", GELU, GELU.replace("x * (1", "(1")),
    ("gelu", "GELU is of x rounded to float16, as a table of half floats has it", GELU, GELU.replace("return x", "x = x.half().to(x)\n    return x")),
    ("gelu", "the activation is tanh", GELU, "return torch.tanh(x)"),
    # Embeddings
    ("embed", "positions begin at 0, not at {first}", POSITION, POSITION + FROM.format(0)),
    ("embed", "positions begin at 1, not at {first}", POSITION, POSITION + FROM.format(1)),
    ("embed", "positions begin at 2, as in RoBERTa, not at {first}", POSITION, POSITION + FROM.format(2)),
    ("embed", "positions begin at 3, not at {first}", POSITION, POSITION + FROM.format(3)),
    ("embed", "positions are counted as if [PAD] were id 0, which begins each text", POSITION, "assert bool((ids[:, 0] == 0).all())\n    position = (ids != 0).long().cumsum(1) * (ids != 0)" + FROM.format(0)),
    ("embed", "all tokens have position 0", POSITION, POSITION + " * 0"),
    ("embed", "positions are not added", 'x = x + weights["embeddings.position_embeddings.weight"][position]', "pass"),
    ("embed", "positions are counted from the end", POSITION, POSITION + ".flip(0)"),
    ("embed", "segments are not added", 'x = x + weights["embeddings.token_type_embeddings.weight"][segments]', "pass"),
    ("embed", "all tokens are in segment 0", SEGMENTS, SEGMENTS.replace("[segments]", "[segments * 0]")),
    ("embed", "all tokens are in segment 1", SEGMENTS, SEGMENTS.replace("[segments]", "[segments * 0 + 1]")),
    ("embed", "segments 0 and 1 are exchanged", SEGMENTS, SEGMENTS.replace("[segments]", "[1 - segments]")),
    ("embed", "the row of token 0, [PAD], is zero", TOKENS, TOKENS + " * (ids != 0)[..., None]"),
    ("embed", "the token embedding is multiplied by √D", TOKENS, TOKENS + ' * math.sqrt(weights["embeddings.word_embeddings.weight"].shape[1])'),
    ("embed", "the LayerNorm is left out", "return " + EMBEDDING_NORM, "return x"),
    ("embed", "the LayerNorm is before positions and segments are added, not after", TOKENS, TOKENS + "\n    x = " + EMBEDDING_NORM, "return " + EMBEDDING_NORM, "return x"),
    # Heads
    ("split_heads", "the heads are cut without exchanging the axes of tokens and heads", SPLIT, "return x.reshape(B, heads, S, D // heads)"),
    ("split_heads", "the numbers of the heads are interleaved: head h gets every H-th number", SPLIT, "return x.reshape(B, S, D // heads, heads).permute(0, 3, 1, 2)"),
    ("split_heads", "the heads are in reverse order", SPLIT, SPLIT + ".flip(1)"),
    ("join_heads", "the heads are joined without exchanging the axes of tokens and heads", JOIN, "return x.reshape(B, S, H * W)"),
    ("join_heads", "the numbers of the heads are joined interleaved", JOIN, "return x.permute(0, 2, 3, 1).reshape(B, S, H * W)"),
    ("join_heads", "the heads are joined in reverse order", JOIN, "return x.flip(1).transpose(1, 2).reshape(B, S, H * W)"),
    # Attention
    ("attention", "the scores are not divided by √W", SCORES, SCORES.replace(" / math.sqrt(query.shape[-1])", "")),
    ("attention", "the scores are divided by √W twice", SCORES, SCORES.replace("math.sqrt(query.shape[-1])", "query.shape[-1]")),
    ("attention", "the scores are divided by √D, not by √W", SCORES, SCORES.replace("query.shape[-1]", "query.shape[-1] * query.shape[1]")),
    ("attention", "the scores are divided by √64, whatever W is", SCORES, SCORES.replace("query.shape[-1]", "64")),
    ("attention", "the scores are multiplied by √W, not divided", SCORES, SCORES.replace("/ math", "* math")),
    ("attention", "softmax is over the queries (dim -2), not over the keys", SOFTMAX, SOFTMAX.replace("dim=-1", "dim=-2") + ".nan_to_num()"),
    ("attention", "softmax is over the queries (dim -2), not over the keys, and padding is NaN", SOFTMAX, SOFTMAX.replace("dim=-1", "dim=-2")),
    ("attention", "softmax is over the queries (dim -2), not over the keys, with a finite mask", SOFTMAX, SOFTMAX.replace("dim=-1", "dim=-2"), 'float("-inf")', "-1e9"),
    ("attention", "the mask is minus infinity for queries too, not only for keys: rows of padding are NaN", SOFTMAX, 'scores = scores.masked_fill(mask[:, None, :, None] == 0, float("-inf"))\n    ' + SOFTMAX),
    ("attention", "softmax is over the heads (dim 1), not over the keys", SOFTMAX, SOFTMAX.replace("dim=-1", "dim=1") + ".nan_to_num()"),
    ("attention", "the mask is not used: padding is attended to", MASKED, "pass"),
    ("attention", "the mask is inverted: only padding is attended to", MASKED, MASKED.replace("== 0", "!= 0").replace('float("-inf")', "-1e9")),
    ("attention", "the scores of padding become 0 (the mask is multiplied), not minus infinity", MASKED, MASKED.replace('float("-inf")', "0.0")),
    ("attention", "the mask is added as it is: 1 to the scores of real tokens", MASKED, "scores = scores + mask[:, None, None, :]"),
    ("attention", "the probabilities of padding are set to 0 after the softmax, and no longer sum to 1", MASKED, "pass", CONTEXT, "probabilities = probabilities * mask[:, None, None, :]\n    " + CONTEXT),
    ("attention", "the mask is applied to the queries, not to the keys", MASKED, MASKED.replace("[:, None, None, :]", "[:, None, :, None]").replace('float("-inf")', "-1e9")),
    ("attention", "tokens attend only to those before them (a causal mask)", SOFTMAX, 'scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))\n    ' + SOFTMAX.replace("dim=-1)", "dim=-1).nan_to_num()")),
    ("attention", "query and key are exchanged", SCORES, SCORES.replace("query @ key", "key @ query")),
    ("attention", "the keys are averaged in place of the values", CONTEXT, CONTEXT.replace("@ value", "@ key")),
    ("attention", "there is no softmax", SOFTMAX, "probabilities = scores.masked_fill(scores.isinf(), 0.0)"),
    ("attention", "the softmax subtracts no maximum: large scores become infinite", SOFTMAX, "probabilities = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)"),
    # Feed-forward
    ("feed_forward", "there is no activation", EXPANDED, EXPANDED.replace("gelu(linear(x, weights[\"intermediate.dense.weight\"], weights[\"intermediate.dense.bias\"]))", "linear(x, weights[\"intermediate.dense.weight\"], weights[\"intermediate.dense.bias\"])")),
    ("feed_forward", "the activation is after the second linear layer", EXPANDED + "\n    " + CONTRACTED, EXPANDED.replace("gelu(", "(") + "\n    " + CONTRACTED.replace("return linear(x, ", "return gelu(linear(x, ") + ")"),
    ("feed_forward", "there is an activation after both linear layers", CONTRACTED, CONTRACTED.replace("return linear(x, ", "return gelu(linear(x, ") + ")"),
    ("feed_forward", "the first bias is left out", 'weights["intermediate.dense.bias"]', '0 * weights["intermediate.dense.bias"]'),
    ("feed_forward", "the second bias is left out", 'weights["output.dense.bias"]', '0 * weights["output.dense.bias"]'),
    # A layer
    ("layer", "the LayerNorms are before attention and feed-forward (pre-norm), not after the sums", QKV, "given = x\n    x = layer_norm(x, weights[\"attention.output.LayerNorm.weight\"], weights[\"attention.output.LayerNorm.bias\"], eps)\n    " + QKV, FIRST_SUM, "x = given + attended", SECOND_SUM, "return x + feed_forward(layer_norm(x, *norm, eps), weights), probabilities"),
    ("layer", "the input is not added after attention (no residual)", FIRST_SUM, FIRST_SUM.replace("x + attended", "attended")),
    ("layer", "the input is not added after the feed-forward layers (no residual)", SECOND_SUM, SECOND_SUM.replace("x + feed_forward(x, weights)", "feed_forward(x, weights)")),
    ("layer", "the second residual is the input of the layer, not the output of attention", FIRST_SUM, "given = x\n    " + FIRST_SUM, SECOND_SUM, SECOND_SUM.replace("x + feed", "given + feed")),
    ("layer", "the LayerNorm after attention is left out", FIRST_SUM, "x = x + attended"),
    ("layer", "the LayerNorm after the feed-forward layers is left out", SECOND_SUM, "return x + feed_forward(x, weights), probabilities"),
    ("layer", "the LayerNorm is before the input is added, not after", FIRST_SUM, "x = x + layer_norm(attended, *norm, eps)"),
    ("layer", "the second LayerNorm is before the input is added, not after", SECOND_SUM, "return x + layer_norm(feed_forward(x, weights), *norm, eps), probabilities"),
    ("layer", "both LayerNorms are before the input is added, not after", FIRST_SUM, "x = x + layer_norm(attended, *norm, eps)", SECOND_SUM, "return x + layer_norm(feed_forward(x, weights), *norm, eps), probabilities"),
    ("layer", "both LayerNorms are exchanged", '["attention.output.LayerNorm', '["first', '["output.LayerNorm', '["attention.output.LayerNorm', '["first', '["output.LayerNorm'),
    ("layer", "the first LayerNorm is used twice", '["output.LayerNorm', '["attention.output.LayerNorm'),
    ("layer", "the weights of query and key are exchanged", '("query", "key", "value")', '("key", "query", "value")'),
    ("layer", "the weights of key and value are exchanged", '("query", "key", "value")', '("query", "value", "key")'),
    ("layer", "the weights of query and value are exchanged", '("query", "key", "value")', '("value", "key", "query")'),
    ("layer", "the output of attention is not multiplied by attention.output.dense", "attended = linear(", "attended = join_heads(context)\n    _ = linear("),
    ("layer", "the feed-forward layers read the input of the layer, not the output of attention", FIRST_SUM, "given = x\n    " + FIRST_SUM, SECOND_SUM, SECOND_SUM.replace("feed_forward(x,", "feed_forward(given,")),
    ("layer", "there is only one head", QKV, "heads = 1\n    " + QKV),
    ("layer", "there are twice as many heads", QKV, "heads = 2 * heads\n    " + QKV),
    ("layer", "there are half as many heads", QKV, "heads = heads // 2\n    " + QKV),
    *(("layer", f"the bias of {name} is left out", 'weights[f"attention.self.{name}.bias"]', f'(name != "{name}") * weights[f"attention.self.{{name}}.bias"]') for name in ("query", "value")),  # that of key changes no probability
    ("layer", "the biases of query, key and value are left out", 'weights[f"attention.self.{name}.bias"]', '0 * weights[f"attention.self.{name}.bias"]'),
    ("layer", "the bias of attention.output is left out", 'weights["attention.output.dense.bias"]', '0 * weights["attention.output.dense.bias"]'),
    ("layer", "the fused weight of query, key and value is cut in Megatron's order: heads, 3, W", QKV, FUSED.replace("SHAPE", "heads, 3, -1").replace("AXIS", "1") + QKV),
    ("layer", "the fused weight of query, key and value is cut interleaved: heads, W, 3", QKV, FUSED.replace("SHAPE", "-1, 3").replace("AXIS", "1") + QKV),
    ("layer", "the heads are cut and joined interleaved", SPLIT_CALL, "(lambda y, heads: y.reshape(*y.shape[:2], -1, heads).permute(0, 3, 1, 2))(linear(", "join_heads(context)", "context.permute(0, 2, 3, 1).flatten(2)"),
    ("layer", "the heads are cut and joined without exchanging the axes of tokens and heads", SPLIT_CALL, "(lambda y, heads: y.reshape(len(y), heads, y.shape[1], -1))(linear(", "join_heads(context)", "context.reshape(x.shape)"),
    ("layer", "1 / √W is multiplied into the weight of query, but not into its bias", ATTEND, 'query = query + (math.sqrt(query.shape[-1]) - 1) * split_heads(weights["attention.self.query.bias"].expand_as(x), heads)\n    ' + ATTEND),
    # The encoder
    ("encode", "the last layer is left out", "states.append(x)", "states.append(x if f\"encoder.layer.{number + 1}.output.dense.weight\" in weights else states[-1])"),
    ("encode", "all layers have the weights of the first", 'before = f"encoder.layer.{number}."', 'before = "encoder.layer.0."'),
    ("encode", "the layers are in reverse order", "number = 0", 'number = 0\n    last = max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))', 'before = f"encoder.layer.{number}."', 'before = f"encoder.layer.{last - number}."'),
    ("encode", "the mask does not reach the layers", "layer(x, mask,", "layer(x, torch.ones_like(mask),"),
    ("encode", "the states of padding are set to 0 after each layer", "states.append(x)", "x = x * mask[:, :, None].to(x.dtype)\n        states.append(x)"),
    ("encode", "attention mask and segments are exchanged", "embed(ids, segments,", "embed(ids, mask,", "layer(x, mask,", "layer(x, segments,"),
    ("encode", "attention mask and segments are exchanged, and tokens without a key attend to all", "x = embed(ids, segments,", FINITE + "x = embed(ids, mask,", "layer(x, mask,", "layer(x, segments,"),
    *(("encode", f"eps is {eps} in the embeddings alone, not {{eps}}", "embed(ids, segments, weights, eps)", f"embed(ids, segments, weights, {eps})") for eps in ("1e-5", "1e-6", "1e-12")),
    *(("encode", f"eps is {eps} in the layers alone, not {{eps}}", LAYER_CALL, LAYER_CALL.replace("eps", eps)) for eps in ("1e-5", "1e-6", "1e-12")),
    ("encode", "the LayerNorm of the last layer is left out", "layer(x, mask,", '(layer if f"encoder.layer.{number + 1}.output.dense.weight" in weights else bare)(x, mask,', "x = embed(", WITHOUT_LAST_NORM),
    ("encode", "the weights are rounded to float16", "x = embed(", ROUNDED.replace("TYPE", "half")),
    ("encode", "the weights are rounded to bfloat16", "x = embed(", ROUNDED.replace("TYPE", "bfloat16")),
    ("encode", "the weights of the linear layers are rounded to int8, with a scale per row", "x = embed(", INT8.replace("DIM", "1, keepdim=True")),
    ("encode", "the weights of the linear layers are rounded to int8, with a scale per matrix", "x = embed(", INT8.replace("DIM", "")),
    ("encode", "padding is where the id is 0, not where the mask is 0", "layer(x, mask,", "layer(x, (ids != 0).to(mask),"),
    ("encode", "the layers are sorted as text: 0, 1, 10, 11, 2, ...", "number = 0", 'number = 0\n    order = sorted({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})', 'before = f"encoder.layer.{number}."', 'before = f"encoder.layer.{order[number]}."'),
    ("encode", "a prefix without its dot: layer 1 gets the weights of 10 and 11", "name[len(before) :]: x for name, x in weights.items() if name.startswith(before)", 'name.split(".", 3)[3]: x for name, x in weights.items() if name.startswith(before[:-1])'),
    *(("encode", f"layer {k} is left out", LAYER_CALL, f"given = x\n        {LAYER_CALL}\n        x = given if number == {k} else x") for k in range(12)),
    *(("encode", f"layer {k} is used twice", LAYER_CALL, f"{LAYER_CALL}\n        if number == {k}:\n            {LAYER_CALL}") for k in range(12)),
    # On top
    ("pooler", "tanh is left out", POOLED, "return linear(x[:, 0], weight, bias)"),
    ("pooler", "it reads the mean of all tokens, not [CLS]", "x[:, 0]", "x.mean(dim=1)"),
    ("pooler", "it reads the last token, not [CLS]", "x[:, 0]", "x[:, -1]"),
    ("pooler", "it returns [CLS] as it is, without linear layer and tanh", POOLED, "return x[:, 0]"),
    ("mean_of_tokens", "padding is averaged too", MEAN, "return x.mean(dim=1)"),
    ("mean_of_tokens", "the sum is divided by the length with padding", MEAN, "return (x * real).mean(dim=1)"),
    ("mean_of_tokens", "the sum is not divided", MEAN, "return (x * real).sum(dim=1)"),
    ("mean_of_tokens", "it is the maximum, not the mean", MEAN, 'return x.masked_fill(real == 0, float("-inf")).amax(dim=1)'),
    ("mean_of_tokens", "[CLS] is left out", MEAN, "real = real.clone()\n    real[:, 0] = 0\n    return (x * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)"),
    ("predict_tokens", "the transform (linear layer, GELU and LayerNorm) is left out", TRANSFORMED + "\n    " + TRANSFORM_NORM, "pass"),
    ("predict_tokens", "the activation of the transform is left out", TRANSFORMED, TRANSFORMED.replace("gelu(", "(")),
    ("predict_tokens", "the LayerNorm of the transform is left out", TRANSFORM_NORM, "pass"),
    ("predict_tokens", "the LayerNorm is before the activation", TRANSFORMED + "\n    " + TRANSFORM_NORM, TRANSFORMED.replace("gelu(", "(") + "\n    " + TRANSFORM_NORM.replace("x = layer_norm", "x = gelu(layer_norm") + ")"),
    ("predict_tokens", "the bias of the decoder is left out", 'weights["cls.predictions.bias"])', '0 * weights["cls.predictions.bias"])'),
    ("predict_tokens", "the bias of the decoder is added twice", 'weights["cls.predictions.bias"])', '2 * weights["cls.predictions.bias"])'),
    ("predict_tokens", "it returns probabilities (softmax), not scores", DECODED, DECODED.replace("return ", "return torch.softmax(") + ".double(), dim=-1).to(x)"),
    ("predict_tokens", "it returns logarithms of probabilities, not scores", DECODED, DECODED.replace("return ", "return torch.log_softmax(") + ", dim=-1)"),
    ("predict_tokens", "GELU is approximated by tanh in the transform alone", TRANSFORMED, TRANSFORMED.replace("gelu(", "torch.nn.functional.gelu(")[:-1] + ', approximate="tanh")'),
    *(("predict_tokens", f"eps is {eps} in the transform alone, not {{eps}}", TRANSFORM_NORM, TRANSFORM_NORM.replace("eps)", f"{eps})")) for eps in ("1e-5", "1e-6", "1e-12")),
    ("predict_tokens", "the bias of the transform is left out", 'weights[before + "dense.bias"]', '0 * weights[before + "dense.bias"]'),
    # Learning
    ("mask_tokens", "every chosen token becomes [MASK]: none is replaced or kept", "how < 0.8", "how < 2"),
    ("mask_tokens", "chosen tokens become [MASK] (80 %) or random (20 %): none is kept", "how >= 0.9", "how >= 0.8"),
    ("mask_tokens", "chosen tokens become [MASK] (80 %) or stay (20 %): none is random", "how >= 0.9", "how > 2"),
    ("mask_tokens", "80, 10 and 10 % are of all tokens, not of the chosen ones", CHOSEN, "chosen = special == 0"),
    ("mask_tokens", "special tokens are chosen too", CHOSEN, CHOSEN.replace(" & (special == 0)", "")),
    ("mask_tokens", "the special tokens are the only ones that are chosen", CHOSEN, CHOSEN.replace("special == 0", "special != 0")),
    ("mask_tokens", "every token has a label, not only the chosen ones", LABELS, "labels = ids.clone()"),
    ("mask_tokens", "only tokens that became [MASK] have a label", "return torch.where(chosen & (how >= 0.9), random, inputs), labels", "return torch.where(chosen & (how >= 0.9), random, inputs), torch.where(how < 0.8, labels, IGNORED)"),
    ("mask_tokens", "random tokens and [MASK] are chosen among all tokens, not among the chosen ones", "chosen & (how >= 0.9)", "(special == 0) & (how >= 0.9)"),
    ("mask_tokens", "the labels are the changed ids, not the original ones", "return torch.where(chosen & (how >= 0.9), random, inputs), labels", "inputs = torch.where(chosen & (how >= 0.9), random, inputs)\n    return inputs, torch.where(chosen, inputs, IGNORED)"),
    ("mask_tokens", "the share of chosen tokens is 0.8, not 0.15", "< 0.15", "< 0.8"),
    ("mask_tokens", "the random numbers are torch's global ones, not the generator's", ", generator=generator", ""),
    ("mask_tokens", "the random numbers have a seed of their own: the generator is not used", "chosen = (torch.rand", "generator = torch.Generator().manual_seed(0)\n    chosen = (torch.rand"),
    ("mask_tokens", "random tokens are tokens of the texts, not of the vocabulary", "torch.randint(vocabulary_size, ids.shape, generator=generator)", "ids.flatten()[torch.randint(ids.numel(), ids.shape, generator=generator)]"),
    ("mask_tokens", "one random token replaces all, not a new one for each", "torch.randint(vocabulary_size, ids.shape, generator=generator)", "torch.randint(vocabulary_size, (1,), generator=generator).expand_as(ids)"),
    ("cross_entropy", "it is the sum over the tokens, not the mean", LOSS, LOSS.replace(".mean()", ".sum()")),
    ("cross_entropy", "the sum is divided by the number of all tokens, not of those with a label", LOSS, "return (torch.logsumexp(logits, dim=-1) - right).sum() / len(kept)"),
    ("cross_entropy", "it is the mean of the means of each text, not of all tokens", FLAT, ROWS_FIRST + FLAT),
    ("cross_entropy", "tokens without a label count as label 0", "logits, labels = logits[kept], labels[kept]", "labels = labels.clamp(min=0)"),
    ("cross_entropy", "the logarithm is of exp(logits) or of a softmax, which are infinite or 0 for large logits", "torch.logsumexp(logits, dim=-1)", "logits.exp().sum(dim=-1).log()"),
    ("cross_entropy", "the sign is wrong", LOSS, LOSS.replace("return (", "return -(")),
    ("cross_entropy", "the logarithm has base 2", LOSS, LOSS + " / math.log(2)"),
    ("cross_entropy", "it is the mean of 1 - p, without a logarithm", LOSS, "return (1 - (right - torch.logsumexp(logits, dim=-1)).exp()).mean()"),
    ("linear_backward", "the gradient of x is multiplied by the transposed weight", "gradient @ weight", "gradient @ (weight.T if weight.shape[0] == weight.shape[1] else weight)"),
    ("linear_backward", "the gradient of the weight is transposed", "gradient.T @ x", "x.T @ gradient"),
    ("linear_backward", "the gradient of the bias is the mean over the rows, not the sum", "gradient.sum(dim=0)", "gradient.mean(dim=0)"),
    ("linear_backward", "the gradient of the weight is the mean over the rows, not the sum", "gradient.T @ x", "gradient.T @ x / len(x)"),
    ("layer_norm_backward", "the mean is treated as a constant", "inner - mean - normal * along", "inner - normal * along"),
    ("layer_norm_backward", "the variance is treated as a constant", "inner - mean - normal * along", "inner - mean"),
    ("layer_norm_backward", "mean and variance are treated as constants", "inner - mean - normal * along", "inner"),
    ("layer_norm_backward", "the gradient of x leaves out the weight", "inner = gradient * weight", "inner = gradient"),
    ("layer_norm_backward", "the gradient of x is not divided by the deviation", ") / deviation, ", "), "),
    ("layer_norm_backward", "the gradient of the weight is multiplied by x, not by the normalised x", "(gradient * normal)", "(gradient * x)"),
    ("cross_entropy_backward", "it is not divided by the number of tokens with a label", " / kept.sum()", ""),
    ("cross_entropy_backward", "it is divided by the number of all tokens", "kept.sum()", "len(labels)"),
    ("cross_entropy_backward", "tokens without a label have a gradient", " * kept[:, None]", ""),
    ("cross_entropy_backward", "1 is not subtracted at the label", "-= 1", "-= 0"),
    ("cross_entropy_backward", "the sign is wrong", "return gradient", "return -gradient"),
    ("attention_backward", "the scale 1 / √W is left out", ".sum(dim=-1, keepdim=True)) * scale", ".sum(dim=-1, keepdim=True))"),
    ("attention_backward", "the gradient of softmax is only p (1 - p), its diagonal", OF_SCORES, "of_scores = p * (1 - p) * of_p * scale"),
    ("attention_backward", "the gradient of softmax leaves out its sum", OF_SCORES, "of_scores = p * of_p * scale"),
    ("attention_backward", "the gradients of query and key are exchanged", "return of_scores @ key, of_scores.transpose(-1, -2) @ query", "return of_scores.transpose(-1, -2) @ query, of_scores @ key"),
    ("attention_backward", "the probabilities are not transposed for the gradient of value", "p.transpose(-1, -2) @ gradient", "p @ gradient"),
    ("attention_backward", "the mask is not used", '.masked_fill(mask[:, None, None, :] == 0, float("-inf"))', ""),
    ("adamw_step", "the decay is added to the gradient (L2), not decoupled", "mean = 0.9 * mean", "gradient, decay = gradient + decay * parameter, 0.0\n    mean = 0.9 * mean"),
    ("adamw_step", "the averages are not corrected for their start at 0", UPDATE, "update = mean / (torch.sqrt(square) + 1e-8)"),
    ("adamw_step", "only the average of the gradient is corrected for its start at 0", "square / (1 - 0.999**step)", "square"),
    ("adamw_step", "the square average decays by 0.99, not by 0.999", "square = 0.999 * square + 0.001 * gradient**2", "square = 0.99 * square + 0.01 * gradient**2"),
    ("adamw_step", "the correction is one step ahead: steps are counted from 1", "**step", "**(step + 1)"),
    ("adamw_step", "the correction is one step behind: steps are counted from 1", "**step", "**(step - 1)"),
    ("adamw_step", "the averages that it returns are the corrected ones", STEPPED, STEPPED.replace("mean, square", "mean / (1 - 0.9**step), square / (1 - 0.999**step)")),
    ("adamw_step", "1e-8 is added inside the root", UPDATE, "update = (mean / (1 - 0.9**step)) / torch.sqrt(square / (1 - 0.999**step) + 1e-8)"),
    ("adamw_step", "the decay is not multiplied by the rate", STEPPED, "return parameter - rate * update - decay * parameter, mean, square"),
    ("adamw_step", "there is no decay", STEPPED, "return parameter - rate * update, mean, square"),
    ("adamw_step", "it is divided by the square average, not by its root", UPDATE, UPDATE.replace("torch.sqrt(square / (1 - 0.999**step))", "square / (1 - 0.999**step)")),
    ("adamw_step", "the update is not divided by the root of the square average (momentum only)", UPDATE, "update = mean / (1 - 0.9**step)"),
    ("train", "biases and norms have decay too", "decay if x.dim() > 1 else 0.0", "decay"),
    ("train", "nothing has decay", "decay if x.dim() > 1 else 0.0", "0.0"),
    ("train", "step is not counted: every step is the first for AdamW", "mean, square, step, rate", "mean, square, 1, rate"),
    ("train", "steps are counted from 0, not from 1", "range(1, steps + 1)", "range(steps)"),
    ("train", "the averages of AdamW start at 0 in every step", "state[name] = adamw_step(x, gradient, mean, square,", "state[name] = adamw_step(x, gradient, 0 * mean, 0 * square,"),
    ("train", "the losses are those after each step, not before", "return losses", "return [*losses[1:], float(loss_of({name: x for name, (x, _, _) in state.items()}))]"),
))
# fmt: on
