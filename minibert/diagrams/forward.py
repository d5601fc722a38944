"""The forward pass in pictures: from a sentence to its label, and each class of model.py by itself."""

from __future__ import annotations

from itertools import pairwise

from minibert.diagrams.drawing import MARGIN, ROW, WIDTH, Box, Drawing, Point, across, shape
from minibert.diagrams.example import CONFIG, IDS, SENTENCE, TOKENS, D, F, H, L, S, V, W

THIN = 9  # from one vector to the next in a matrix
MIDDLE = WIDTH / 2


def matrix(drawing: Drawing, x: float, y: float, width: float, step: float = THIN, cells: int = 8) -> Box:
    """A vector for each token, one close below the other; their whole, from `x` to the right."""
    drawing.vectors(x, y, width, S, step, cells)
    return Box(x, y, width, step * S)


def way() -> Drawing:
    """Sentence, tokens, encoder, [CLS], classifier."""
    drawing = Drawing(
        "way",
        "From a sentence to its label",
        f"""The sentence "{SENTENCE}" is cut into {S} tokens, {" ".join(TOKENS)}. The encoder, {L} layers whose weights
        stay as they are, turns each token into a vector of {D} numbers. The first vector, that of [CLS],
        goes into a logistic regression, which is trained, and which says positive or negative.""",
    )
    text = drawing.box(Box(MARGIN, 48, WIDTH - 2 * MARGIN, 30), SENTENCE)
    tokens = drawing.tokens(MARGIN, 124, TOKENS)
    drawing.arrow(Point(tokens[0].top.x, text.bottom.y), tokens[0].top)
    drawing.text(Point(tokens[0].top.x + 12, 101), f"tokenizer: {S} tokens", "start soft")
    vectors = drawing.vectors(274, 124, 90, S, chosen=0)
    drawing.text(Point(vectors[0].centre.x, 101), shape(S, D), "mono")
    encoder = drawing.box(Box(140, 122, 110, ROW * S + 4), f"encoder,\n{L} layers", "frozen")
    for token, vector in zip(tokens, vectors, strict=True):
        drawing.arrow(token.right, Point(encoder.x, token.centre.y))
        drawing.arrow(Point(encoder.right.x, vector.centre.y), vector.left)
    drawing.text(Point(vectors[-1].right.x, 378), f"[CLS] alone: {shape(D)}", "end soft")
    regression = drawing.box(Box(188, 404, 130, 46), "logistic\nregression", "trained")
    corner = WIDTH - MARGIN
    drawing.arrow(
        vectors[0].right, Point(corner, vectors[0].centre.y), Point(corner, regression.centre.y), regression.right
    )
    label = drawing.box(Box(MARGIN, 409, 130, 36), "positive", style="strong")
    drawing.arrow(regression.left, label.right)
    return drawing


def embeddings() -> Drawing:
    """The sum of three embeddings."""
    drawing = Drawing(
        "embeddings",
        "Three vectors are added",
        f"""Three tables hold a learned vector of {D} numbers in each row. Each of the {S} tokens takes a row of every
        table: by its id from {V:,} rows, by its segment (0, the first text) from {CONFIG.type_vocab_size},
        and by its position (0 to {S - 1}) from {CONFIG.max_position_embeddings}. [CLS] takes the rows
        {IDS[0]}, 0 and 0. The three are added, and LayerNorm makes of the sums x, of shape {shape(S, D)}.""",
    )
    tables = (
        ("token", V, IDS),
        ("segment", CONFIG.type_vocab_size, (0,) * S),
        ("position", CONFIG.max_position_embeddings, range(S)),
    )
    columns, y = across(3, 20, left=130), 146
    drawing.text(Point(MARGIN, 82), f"tables of\nvectors,\n{D} wide", "start soft")
    drawing.tokens(MARGIN, y, TOKENS, 98)
    for (x, width), (name, size, rows) in zip(columns, tables, strict=True):
        table = drawing.box(Box(x, 48, width, 68), f"{name}\n{size:,}\nrows", "trained")
        drawing.arrow(table.bottom, Point(table.centre.x, y + 2))
        for place, row in enumerate(rows):
            drawing.box(Box(x, y + ROW * place + 2, width, ROW - 4), str(row), "vector", "mono", 2)
            if name != "token":
                drawing.text(Point(x - 10, y + ROW * (place + 0.5)), "+")
    middle, below = columns[1][0] + columns[1][1] / 2, y + ROW * S
    norm = drawing.box(Box(130, below + 30, WIDTH - MARGIN - 130, 30), "sum, then LayerNorm", "trained")
    drawing.arrow(Point(middle, below), norm.top)
    result = matrix(drawing, middle - 50, norm.bottom.y + 30, 100)
    drawing.arrow(norm.bottom, result.top)
    drawing.text(result.left.moved(-12), f"x {shape(S, D)}", "end mono")
    return drawing


def layer() -> Drawing:
    """One layer with its two residual arrows."""
    drawing = Drawing(
        "layer",
        "One layer",
        f"""x, {S} vectors of {D} numbers, takes two ways. One goes through multi-head attention, where tokens gather
        from each other; the other, the residual, leaves x as it is. Both are added, and LayerNorm scales
        the sum. The same again with the feed-forward, which works on each token by itself. The shape stays
        {shape(S, D)}. The encoder has {L} such layers, one after the other, each with weights of its own.""",
    )
    trunk, around = 190.0, 42.0
    before = matrix(drawing, trunk - 60, 46, 120)
    drawing.text(before.right.moved(10), f"x {shape(S, D)}", "start mono")
    drawing.frame(Box(MARGIN, 138, WIDTH - 2 * MARGIN, 394))
    start = before.bottom
    feed_forward = f"feed-forward\n{D} → {F} → {D}"
    for name, note in (("multi-head\nattention", "between\ntokens"), (feed_forward, "each token\nalone")):
        split = start.moved(0, 27)
        step = drawing.box(Box(trunk - 90, split.y + 22, 180, 46), name, "trained")
        plus = drawing.sign(Point(trunk, step.bottom.y + 36), "+")
        norm = drawing.box(Box(trunk - 90, plus.bottom.y + 18, 180, 30), "LayerNorm", "trained")
        drawing.arrow(start, step.top)
        drawing.arrow(split, Point(around, split.y), Point(around, plus.centre.y), plus.left)
        drawing.text(Point(around + 10, step.centre.y), "x as\nit is", "start soft")
        drawing.text(step.right.moved(10), note, "start soft")
        drawing.arrow(step.bottom, plus.top)
        drawing.arrow(plus.bottom, norm.top)
        start = norm.bottom
    drawing.text(Point(WIDTH - MARGIN - 14, start.y - 15), f"{L} times", "end strong")
    after = matrix(drawing, trunk - 60, start.y + 36, 120)
    drawing.arrow(start, after.top)
    drawing.text(after.right.moved(10), f"x {shape(S, D)}", "start mono")
    return drawing


def attention() -> Drawing:
    """Multi-head attention, with one head opened."""
    drawing = Drawing(
        "attention",
        "Multi-head attention",
        f"""Three matrices of {D} by {D} make of x, {shape(S, D)}, the queries, keys and values. Each is cut into {H}
        heads, {W} wide. In each head Q K transposed, over the root of {W}, gives {S} by {S} scores; softmax
        makes each row sum to 1; these probabilities times V give {shape(S, W)}, what each token gathered.
        The {H} heads side by side are {shape(S, D)} again, and a last matrix of {D} by {D} mixes them.""",
    )
    x = matrix(drawing, MIDDLE - 50, 42, 100)
    drawing.text(x.right.moved(10), f"x {shape(S, D)}", "start mono")
    split = x.bottom.moved(0, 18)
    frame = drawing.frame(Box(MARGIN, 238, WIDTH - 2 * MARGIN, 454))
    bottoms = []
    for (left, width), name in zip(across(3, 14), ("query", "key", "value"), strict=True):
        linear = drawing.box(Box(left, split.y + 20, width, 46), f"{name}\n{D} × {D}", "trained")
        drawing.arrow(x.bottom, split, Point(linear.top.x, split.y), linear.top)
        part = matrix(drawing, linear.centre.x - 30, 292, 60, 7)
        drawing.arrow(linear.bottom, part.top)
        bottoms.append(part.bottom.moved(0, 26))
        drawing.text(part.bottom.moved(0, 13), f"{name[0].upper()} {shape(S, W)}", "mono")
    query, key, value = bottoms
    drawing.text(Point((query.x + key.x) / 2, 264), f"each of\n{H} heads", "strong")
    scores = drawing.grid(Point((query.x + key.x) / 2 - 45, 396), 10, [[True] * S] * S)
    for side, end in ((query, scores.left), (key, scores.right)):
        drawing.arrow(side, Point(side.x, end.y), end)
    drawing.text(scores.bottom.moved(0, 14), f"Q Kᵀ / √{W}")
    drawing.text(Point(scores.centre.x + 64, scores.bottom.y + 14), shape(S, S), "start mono")
    softmax = drawing.box(Box(scores.centre.x - 50, scores.bottom.y + 42, 100, 28), "softmax")
    drawing.arrow(scores.bottom.moved(0, 25), softmax.top)
    drawing.text(softmax.right.moved(12), "each row\nsums to 1", "start soft")
    times = drawing.sign(softmax.bottom.moved(0, 30), "×")
    drawing.arrow(softmax.bottom, times.top)
    drawing.arrow(value, Point(value.x, times.centre.y), times.right)
    drawing.text(Point(times.left.x - 10, times.centre.y), "probs\ntimes V", "end soft")
    context = matrix(drawing, times.centre.x - 30, times.bottom.y + 18, 60, 7)
    drawing.arrow(times.bottom, context.top)
    drawing.text(context.right.moved(10), shape(S, W), "start mono")
    joined = matrix(drawing, MIDDLE - 50, frame.bottom.y + 44, 100)
    turn = frame.bottom.y + 22
    drawing.arrow(context.bottom, Point(context.centre.x, turn), Point(MIDDLE, turn), joined.top)
    drawing.text(joined.right.moved(10), f"{H} side\nby side", "start soft")
    drawing.text(joined.left.moved(-10), shape(S, D), "end mono")
    output = drawing.box(Box(MIDDLE - 90, joined.bottom.y + 24, 180, 30), f"output, {D} × {D}", "trained")
    drawing.arrow(joined.bottom, output.top)
    drawing.arrow(output.bottom, output.bottom.moved(0, 26))
    drawing.text(output.bottom.moved(0, 40), shape(S, D), "mono")
    return drawing


def feed_forward() -> Drawing:
    """The feed-forward, on each token by itself."""
    drawing = Drawing(
        "feed_forward",
        "Feed-forward: each token alone",
        f"""x, {S} vectors of {D} numbers; a matrix makes each {F} wide, four times as wide; GELU, a smooth step that
        leaves little of numbers below 0, works on each number; a second matrix makes the vectors {D} wide
        again. No token sees another.""",
    )
    narrow, wide = (WIDTH - 2 * MARGIN) * D / F, WIDTH - 2 * MARGIN
    x = matrix(drawing, MIDDLE - narrow / 2, 46, narrow)
    drawing.text(x.right.moved(10), f"x {shape(S, D)}", "start mono")
    expand = drawing.box(Box(MIDDLE - 90, x.bottom.y + 24, 180, 30), f"expand, {D} × {F}", "trained")
    hidden = matrix(drawing, MARGIN, expand.bottom.y + 30, wide, cells=8 * F // D)
    drawing.text(Point(MARGIN, hidden.y - 14), shape(S, F), "start mono")
    gelu = drawing.box(Box(MIDDLE - 90, hidden.bottom.y + 24, 180, 30), "GELU")
    contract = drawing.box(Box(MIDDLE - 90, gelu.bottom.y + 24, 180, 30), f"contract, {F} × {D}", "trained")
    result = matrix(drawing, MIDDLE - narrow / 2, contract.bottom.y + 24, narrow)
    drawing.text(result.right.moved(10), shape(S, D), "start mono")
    steps = (x, expand, hidden, gelu, contract, result)
    for before, after in pairwise(steps):
        drawing.arrow(before.bottom, after.top)
    return drawing


def pooler() -> Drawing:
    """The pooler: [CLS] once more through a matrix."""
    drawing = Drawing(
        "pooler",
        "The pooler: one vector for the text",
        f"""Of x, {S} vectors of {D} numbers after the last layer, only the first is taken, that of [CLS]. A matrix of
        {D} by {D} and tanh make the pooled vector of it, {D} numbers between -1 and 1.""",
    )
    tokens = drawing.tokens(MARGIN, 46, TOKENS, chosen=0)
    vectors = drawing.vectors(132, 46, 120, S, chosen=0)
    drawing.text(Point(262, vectors[S // 2].centre.y), f"x {shape(S, D)}", "start mono")
    dense = drawing.box(Box(212, tokens[-1].bottom.y + 28, 172, 46), f"dense, {D} × {D},\nthen tanh", "trained")
    turn = WIDTH - MARGIN - 10
    drawing.arrow(vectors[0].right, Point(turn, vectors[0].centre.y), Point(turn, dense.y))
    pooled = drawing.vector(Box(16, dense.centre.y - 7, 90, 14))
    drawing.arrow(dense.left, pooled.right)
    drawing.text(pooled.bottom.moved(0, 16), shape(D), "mono")
    return drawing


def directions() -> Drawing:
    """BERT against a left-to-right model."""
    drawing = Drawing(
        "directions",
        "Who sees whom",
        f"""Two squares of {S} by {S} cells: the token of a row gathers from the tokens whose cells are filled. In BERT
        all are filled: "rum" sees "##ination", which tells it that no drink is meant. In a left-to-right
        model, such as GPT, a token sees itself and what stands before it: "rum" sees nothing of what
        follows.""",
    )
    row, x, cell = TOKENS.index("rum"), 128.0, ROW
    for place, token in enumerate(TOKENS):
        drawing.upright(Point(x + cell * (place + 0.5), 132), token)
    squares = (
        ("BERT: every token sees all", [[True] * S] * S),
        ("left to right: what came before", [[column <= line for column in range(S)] for line in range(S)]),
    )
    y = 138.0
    for name, seen in squares:
        drawing.tokens(MARGIN, y, TOKENS, chosen=row)
        square = drawing.grid(Point(x, y), cell, seen, chosen=row)
        drawing.text(square.bottom.moved(0, 18), name, "strong")
        y = square.bottom.y + 50
    drawing.text(Point(MARGIN, y + 12), "filled: the token of the row\ngathers from that of the column", "start soft")
    return drawing
