"""How BERT learns, in pictures: pretraining, what is trained for a task, and a student that learns from a teacher."""

from __future__ import annotations

from itertools import pairwise

from minibert.diagrams.drawing import LINE, MARGIN, ROW, WIDTH, Box, Drawing, Point, across
from minibert.diagrams.example import HIDDEN, TOKENS, D, L, S, V, weights_of_encoder

MIDDLE = WIDTH / 2
NEXT = ("a", "rare", "film", "[SEP]")  # the second text of a pair


def pretraining() -> Drawing:
    """Masked LM and next sentence."""
    drawing = Drawing(
        "pretraining",
        "What raw text teaches: two questions",
        f"""Two texts stand in one row, {" ".join(TOKENS)} and {" ".join(NEXT)}, and one token, "{TOKENS[HIDDEN]}", is
        replaced by [MASK]. The encoder, trained, makes a vector of each token. Masked LM: the vector at
        [MASK] is scored against all {V:,} tokens, and "{TOKENS[HIDDEN]}" is wanted. Next sentence: the
        vector of [CLS] says whether the second text followed the first.""",
    )
    tokens = list(TOKENS)
    tokens[HIDDEN] = "[MASK]"
    y, below = 58.0, 58.0 + ROW * S + 14
    rows = drawing.tokens(MARGIN, y, tokens, 98, chosen=HIDDEN) + drawing.tokens(MARGIN, below, NEXT, 98)
    vectors = drawing.vectors(236, y, 50, S, chosen=HIDDEN) + drawing.vectors(236, below, 50, len(NEXT))
    encoder = drawing.box(Box(134, y, 82, rows[-1].bottom.y - y), "encoder", "trained")
    for token, vector in zip(rows, vectors, strict=True):
        drawing.arrow(token.right, Point(encoder.x, token.centre.y))
        drawing.arrow(Point(encoder.right.x, vector.centre.y), vector.left)
    follows = drawing.box(Box(306, y - 10, 78, 46), "next\nsentence", "trained")
    answer = drawing.box(Box(306, follows.bottom.y + 24, 78, 24), "yes", style="strong")
    guess = drawing.box(Box(306, answer.bottom.y + 40, 78, 46), "masked\nLM", "trained")
    word = drawing.box(Box(304, guess.bottom.y + 24, 82, 24), TOKENS[HIDDEN], "token", "mono", 4)
    drawing.arrow(vectors[0].right, Point(follows.x, vectors[0].centre.y))
    turn = Point(296, vectors[HIDDEN].centre.y)
    drawing.arrow(vectors[HIDDEN].right, turn, Point(turn.x, guess.centre.y), guess.left)
    drawing.arrow(follows.bottom, answer.top)
    drawing.arrow(guess.bottom, word.top)
    drawing.text(word.bottom.moved(0, 26), f"one of\n{V:,}", "soft")
    return drawing


def features() -> Drawing:
    """Fine-tuning against frozen features."""
    millions = f"{weights_of_encoder() / 1e6:.1f} million"
    drawing = Drawing(
        "features",
        "Frozen features or fine-tuning",
        f"""Two ways to a label. Frozen features: the encoder stays as it is and reads each text once; of its vectors
        that of [CLS] is kept, and a logistic regression of {D + 1} numbers learns. Fine-tuning: the same
        encoder with a task head on top; the error goes back through all of it, and at every step all
        {millions} weights change.""",
    )
    ways = (
        ("frozen features", "frozen", "logistic\nregression", f"{D + 1} numbers learn,\neach text is\nread once"),
        ("fine-tuning", "trained", "task head", f"{millions}\nlearn, all texts are\nread every epoch"),
    )
    for (x, width), (name, kind, head, note) in zip(across(2, 24), ways, strict=True):
        trunk, side = x + width / 2 - 8, x + width - 6
        drawing.text(Point(trunk, 58), name, "strong")
        tokens = drawing.box(Box(trunk - 55, 78, 110, 26), f"{S} tokens", "token")
        encoder = drawing.box(Box(trunk - 65, 128, 130, 70), f"encoder,\n{L} layers", kind)
        vector = drawing.vector(Box(trunk - 45, 250, 90, 14))
        drawing.text(Point(trunk + 10, 230), "[CLS]", "start mono")
        top = drawing.box(Box(trunk - 65, 288, 130, 46), head, "trained")
        label = drawing.box(Box(trunk - 55, 358, 110, 30), "positive", style="strong")
        steps = (tokens, encoder, vector, top, label)
        for before, after in pairwise(steps):
            drawing.arrow(before.bottom, after.top)
        last = encoder if kind == "trained" else top
        drawing.arrow(label.right, Point(side, label.centre.y), Point(side, last.centre.y), last.right, kind="back")
        drawing.text(Point(trunk, 400 + LINE * 1.5), note, "soft")
    drawing.arrow(Point(MARGIN, 484), Point(MARGIN + 40, 484), kind="back")
    drawing.text(Point(MARGIN + 50, 484), "the error goes back", "start soft")
    return drawing


def distillation() -> Drawing:
    """Teacher and student."""
    from minibert.train.distillation import layers_taken  # imported here: all of training comes with it, which the
    from minibert.train.settings import DistillSettings  # trace page, with its pictures of the forward pass, needs not

    taken, temperature = layers_taken(L), DistillSettings.temperature
    drawing = Drawing(
        "distillation",
        "A student learns from its teacher",
        f"""A teacher of {L} layers, frozen, and a student of {len(taken)}, trained, which begins as the teacher's
        embeddings and its layers {", ".join(map(str, taken))}. Both read the same text, in which
        "{TOKENS[HIDDEN]}" is hidden. Three losses teach the student: the cosine between its last vectors
        and the teacher's; the divergence (KL) of its guesses, softened by a temperature of {temperature:g},
        from the teacher's; and masked LM, the word that was hidden.""",
    )
    text = drawing.box(Box(MARGIN, 44, WIDTH - 2 * MARGIN, 28), "a visually [MASK] rum ##ination …", "token", "mono", 4)
    (left, width), (right, _) = across(2, 112)
    teacher = [drawing.box(Box(left, 128, width, 28), "embeddings", "frozen")]
    student = [drawing.box(Box(right, 128, width, 28), "embeddings", "trained")]
    for number in range(L):
        y = 174.0 + 44 * number
        teacher.append(drawing.box(Box(left, y, width, 26), f"layer {number}", "frozen"))
        if number in taken:
            student.append(drawing.box(Box(right, y, width, 26), f"layer {taken.index(number)}", "trained"))
    drawing.text(teacher[0].top.moved(12, -30), "teacher", "start strong")
    drawing.text(student[0].top.moved(-12, -30), "student", "end strong")
    for column in (teacher, student):
        drawing.arrow(Point(column[0].centre.x, text.bottom.y), column[0].top)
        for before, after in pairwise(column):
            drawing.arrow(before.bottom, after.top)
    for source, copy in zip([teacher[0], *(teacher[number + 1] for number in taken)], student, strict=True):
        drawing.arrow(source.right, copy.left)
    drawing.text(Point(MIDDLE, 214), "begins\nas", "soft")
    end = teacher[-1].bottom.y
    states = [drawing.vector(Box(x, end + 38, width, 14)) for x in (left, right)]
    guesses = [drawing.vector(Box(x, end + 114, width, 14)) for x in (left, right)]
    for side, column in enumerate((teacher, student)):
        drawing.arrow(column[-1].bottom, states[side].top)
        drawing.arrow(states[side].bottom, guesses[side].top)
        drawing.text(guesses[side].bottom.moved(0, 15), "guesses", "soft")
    words = drawing.box(Box(left, end + 190, width, 26), TOKENS[HIDDEN], "token", "mono", 4)
    for ours, theirs, name in ((states[0], states[1], "cosine"), (guesses[0], guesses[1], "KL")):
        loss = drawing.box(Box(MIDDLE - 34, ours.centre.y - 15, 68, 30), name, style="strong")
        drawing.arrow(ours.right, loss.left)
        drawing.arrow(theirs.left, loss.right)
    guessed = drawing.box(Box(MIDDLE - 36, words.centre.y - 23, 72, 46), "masked\nLM", style="strong")
    drawing.arrow(words.right, guessed.left)
    corner = Point(guesses[1].centre.x, guesses[1].bottom.y + 28)
    drawing.arrow(corner, Point(corner.x, guessed.centre.y), guessed.right)
    return drawing
