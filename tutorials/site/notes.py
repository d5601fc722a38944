"""What the code cannot say: for each definition its equation, the reason for it, diagrams and tutorials.

In equations `_x` and `_{...}` are subscripts, `^x` and `^{...}` superscripts. Indices: s, t tokens; d, f elements of a
vector; h heads; l layers.
"""

from typing import NamedTuple

TITLES = {
    "1_first_contact": "1. First contact",
    "2_through_the_encoder": "2. A token's way through the encoder",
    "3_wordpiece": "3. WordPiece by hand",
    "4_official_weights": "4. Official weights",
    "5_is_it_right": "5. How do we know it is right",
    "6_what_is_in_a_vector": "6. What is in a vector",
    "7_reading_attention": "7. Reading attention",
    "8_making_it_fast": "8. Making it fast",
    "9_gradients": "9. Gradients",
    "10_fine_tuning": "10. Fine-tuning",
    "11_the_family": "11. The family",
    "12_pretraining": "12. Pretraining",
    "13_ablation": "13. Remove each part",
    "14_distillation": "14. Distillation",
    "15_what_came_after": "15. What came after",
    "16_sentence_vectors": "16. Sentence vectors",
    "17_retrieval": "17. Retrieval",
    "18_inside_the_model": "18. Inside the model",
    "19_cheap_tuning": "19. Cheap tuning",
    "20_evaluation": "20. Evaluation that holds",
}


class Note(NamedTuple):
    """The explanation beside one definition."""

    equations: tuple[str, ...] = ()
    text: str = ""  # paragraphs
    diagrams: tuple[str, ...] = ()  # files of data/diagrams
    tutorials: tuple[str, ...] = ()  # notebooks, or parts of one: "2_through_the_encoder#Pooler"


ENCODER, FAST = "2_through_the_encoder", "8_making_it_fast"
WEIGHTS, VECTORS = "4_official_weights", "6_what_is_in_a_vector"
GRADIENTS, ABLATION = "9_gradients", "13_ablation"
TUNING, FAMILY, PRETRAINING, DISTILLATION = "10_fine_tuning", "11_the_family", "12_pretraining", "14_distillation"
MODERN, SENTENCES = "15_what_came_after", "16_sentence_vectors"
RETRIEVAL, INSIDE = "17_retrieval", "18_inside_the_model"
CHEAP, EVALUATION = "19_cheap_tuning", "20_evaluation"

# The modules that have a page, in reading order, and the tutorials that explain each.
MODULES: dict[str, tuple[str, ...]] = {
    "reference": (ENCODER, "3_wordpiece", WEIGHTS, PRETRAINING, GRADIENTS),
    "config": (WEIGHTS, FAMILY),
    "model": (ENCODER, "5_is_it_right", "7_reading_attention", ABLATION, MODERN, INSIDE),
    "pretraining_heads": (ENCODER, PRETRAINING, FAMILY, INSIDE),
    "heads": (VECTORS, TUNING, CHEAP, EVALUATION),
    "families/base": (FAMILY,),
    "families/bert": (FAMILY, WEIGHTS),
    "families/distilbert": (FAMILY, DISTILLATION),
    "families/modernbert": (FAMILY, MODERN),
    "checkpoints/load": (WEIGHTS,),
    "text/wordpiece": ("3_wordpiece",),
    "text/masking": (PRETRAINING,),
    "vectors/pooling": ("1_first_contact", VECTORS, SENTENCES),
    "kernels/matmul": (FAST,),
    "kernels/training": (FAST,),
    "vectors/engine": (FAST,),
    "vectors/search": (RETRIEVAL,),
    "train/loop": (GRADIENTS, TUNING, PRETRAINING),
    "train/distillation": (DISTILLATION,),
}

# Module -> definition, "" for the module itself -> its note.
NOTES: dict[str, dict[str, Note]] = {
    "model": {
        "Embeddings": Note(
            (
                "x_s = LayerNorm(E[id_s] + G[segment_s] + P[s])",
                "LayerNorm(x)_d = γ_d (x_d − μ) / √(σ² + ε) + β_d",
            ),
            """The three vectors are added, not concatenated: a matrix still reads each part of a sum,
            (a + b) W = a W + b W, and training can give the parts different directions. The vectors stay D wide.

            Nothing after this step sees the order: attention treats its tokens as a set. Without P, “love on
            rumination” would get the same vectors as “rumination on love”. μ and σ² are computed over the numbers of
            one token, so neither the length of the row nor the other texts of the batch change them.""",
            ("embeddings",),
            (f"{ENCODER}#Embeddings: from ids to vectors",),
        ),
        "eager_attention": Note(
            (
                "score_{hst} = q_{hs} · k_{ht} / √W",
                "p_{hst} = exp(score_{hst}) / Σ_u exp(score_{hsu})",
                "context_{hs} = Σ_t p_{hst} v_{ht}",
            ),
            """A soft dictionary look-up: a query is compared with all keys, and the result is a mean of the
            values, weighted by how well each key matches. A sum of W independent products with mean 0 has W times
            the variance of one; after the division by √W, the spread of the scores does not depend on the width.

            The mask is the same for every query: each token sees all others, before and after it. A left-to-right
            model such as GPT has a mask (S,S) here, which hides from each token what follows it. The keys' bias
            adds one number to a whole row of scores, which softmax cancels: no output would show that it is
            missing.""",
            ("directions",),
            (
                f"{ENCODER}#One attention head, in a loop",
                f"{ENCODER}#Scaling: why divide by √W",
                f"{ENCODER}#Masks: what a padded token changes",
            ),
        ),
        "SelfAttention": Note(
            (
                "head_h = Attention(x W^Q_h + b^Q_h, x W^K_h + b^K_h, x W^V_h + b^V_h)",
                "out = [head_1 … head_H] W^O + b^O = Σ_h head_h W^O_h + b^O",
            ),
            """H heads of width W need as many multiplications as one of width D, and each has its own softmax, so a
            token can attend to H places for H reasons. The second form shows what W^O does: each head has W rows
            of it and adds its own part to the token's vector.

            So a head is two small maps: W^Q_h (W^K_h)^T, of rank W, decides which token attends to which, and
            W^V_h W^O_h, of rank W, what is copied. To remove a head is to leave its term out of the sum.""",
            ("attention",),
            (f"{ENCODER}#All heads", "7_reading_attention#One tensor per layer"),
        ),
        "FeedForward": Note(
            (
                "FFN(x) = b + Σ_f activation(x · w_f + a_f) u_f",
                "GELU(x) = x Φ(x) ≈ ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))",
            ),
            """This can be read as a memory of F entries: unit f fires when x resembles its key w_f (a column of
            the first matrix), and then adds its value u_f (a row of the second) to the token's vector (Geva et al.
            2021). Two thirds of a layer's weights are here.

            Φ(x) is the probability that a standard normal variable is below x: GELU is x times that probability. The
            form with tanh differs by less than 5e-4, which fresh weights hide and trained ones show.

            No token sees another here: this is why padding can be removed, and all tokens of a batch multiplied as
            one matrix.""",
            ("feed_forward",),
            (f"{ENCODER}#Feed-forward and GELU", f"{FAST}#5. Packed: no padding at all"),
        ),
        "Residual": Note(
            ("y = x + Dropout(f(x))", "∂y/∂x = 1 + ∂f/∂x"),
            """The 1 is the short path of the gradient: it reaches the lowest layer through 2 L sums, in BERT each with
            its LayerNorm, without passing a single matrix. The diagram of the layer, below, draws it as the line
            around each block.""",
            tutorials=(f"{ENCODER}#Residual and LayerNorm", f"{ABLATION}#3. Without a residual"),
        ),
        "Layer": Note(
            ("y = LayerNorm(x + Attention(x))", "x′ = LayerNorm(y + FFN(y))"),
            """With the residual each block is a correction: a block that has nothing to add writes nearly 0, and
            the gradient has a short path back, along the sums. BERT normalises after each sum (post-norm), on this
            path, which makes the first steps of training delicate (Xiong et al. 2020); most models since 2019
            normalise the input of the block instead (pre-norm).""",
            ("layer",),
            (f"{ENCODER}#Residual and LayerNorm", f"{ABLATION}#3. Without a residual"),
        ),
        "Pooler": Note(
            ("pooled_e = tanh(b_e + Σ_d W_{ed} x_{[CLS] d})",),
            """Only next sentence prediction, or fine-tuning, trains it. In a checkpoint that was trained in
            another way, such as all-MiniLM-L6-v2, it is as it was initialised: a random projection of [CLS].
            `minibert inspect` reports it.""",
            ("pooler",),
            (f"{ENCODER}#Pooler", "6_what_is_in_a_vector#Is this weight trained?"),
        ),
        "Encoder": Note(
            ("x^0 = Embeddings(ids, segments)", "x^{l+1} = Layer_l(x^l), l = 0 … L − 1"),
            """The shape is (B,S,D) from end to end: this is why layers can be stacked, left out, shared (ALBERT)
            or copied into a student (DistilBERT), and why the hidden states of all layers can be compared.""",
            ("way",),
            (f"{ENCODER}#The whole encoder", f"{VECTORS}#One dimension that drowns the others"),
        ),
    },
    "pretraining_heads": {
        "": Note(
            (
                "p_s = softmax(LayerNorm(activation(x_s W + a)) E^T + b)",
                "loss = −mean over the masked s of log p_s[token_s]",
            ),
            """Why tokens are masked: an encoder that sees both sides sees the token itself too, and could copy
            it. A left-to-right model needs no [MASK], since it has not seen what follows, but it cannot use
            what follows either.

            E is the embedding table again: the vector that represents a token in the input is the vector that a
            prediction must resemble. Next sentence prediction was added in the hope that tasks on pairs of texts
            would benefit. RoBERTa dropped it without a loss; ALBERT predicts the order of the two texts instead.""",
            ("pretraining",),
            (f"{PRETRAINING}#4. A BERT learns the language",),
        )
    },
    "heads": {
        "": Note(
            ("p = softmax(c W + b), W (D,K)",),
            """A task head is small: two labels take 2 D + 2 numbers. The classes must already lie on the two
            sides of a plane; that is the encoder's job. With a frozen encoder, the plane is fitted to vectors that
            were made for another purpose; fine-tuning moves the texts to the right sides of it.

            Every task works this way: a plane for the whole text (classification), one for each token (tagging),
            two that score where an answer begins and where it ends (question answering).""",
            ("features",),
            (f"{TUNING}#3. Frozen and unfrozen",),
        )
    },
    "families/base": {
        "initialise": Note(
            text="""A fresh LayerNorm has scale 1 and shift 0, and a fresh bias is 0, so swapping or omitting them
            changes nothing. A test on fresh weights misses such mistakes, so the parity tests randomise every
            weight.""",
            tutorials=("5_is_it_right#4. Why fresh weights hide mistakes",),
        ),
    },
    "families/modernbert": {
        "rotate": Note(
            ("θ_{pi} = p θ^{−2i/W}", "(a, b) → (a cos θ_{pi} − b sin θ_{pi}, b cos θ_{pi} + a sin θ_{pi})"),
            """A pair of numbers is a point in a plane, and the position turns it. If a query at p and a key at r are
            turned by θ_{pi} and θ_{ri}, their product depends only on the difference of the two angles, so on p − r:
            what a head learns about the word before holds at every place of a text, and no table ends at 512.

            The first pairs turn by 1 radian per token and tell neighbours apart; the last ones turn so slowly that
            they hardly notice 8,192 tokens.""",
            tutorials=(f"{ENCODER}#One attention head, in a loop",),
        ),
        "PreNormLayer": Note(
            ("y = x + Attention(LayerNorm(x))", "x′ = y + FFN(LayerNorm(y))"),
            """The same parts in another order: the sums are never normalised, so the residual path leads from the
            last layer straight to the embeddings. Its values grow with depth, which is why one more norm follows the
            last layer.""",
            ("norm_first",),
            tutorials=(f"{ABLATION}#6. Trained anew: the small language", f"{MODERN}#3. Norm first"),
        ),
    },
    "text/wordpiece": {
        "": Note(
            text="""Longest match first is greedy: it ignores what follows the piece. Byte-pair
            encoding (text/byte_pairs.py) merges in the order in which the merges were learned; a unigram model
            (text/unigram.py) takes the most probable segmentation. So three relatives may split a word in three
            ways.""",
            tutorials=("3_wordpiece#Longest match first",),
        )
    },
    "text/masking": {
        "": Note(
            text="""80 % become [MASK], so that there is something to predict. Texts in use have no [MASK], so 10 %
            stay as they are: the vector of a visible token must also say which token it is. If every visible token
            were the true one, the model could simply trust it; so 10 % become a random token. That is 1.5 % of all
            tokens: too few to spoil the context, enough that each token is checked against those around it.""",
            tutorials=(f"{PRETRAINING}#1. Masking by hand",),
        )
    },
    "kernels/training": {
        "sdpa_attention": Note(
            text="""The kernel goes through the keys in blocks and keeps a running maximum and a running sum for each
            query, so that the (S,S) matrix never exists: memory grows with S, not with its square. It sums in
            another order, so its results differ in rounding.""",
            tutorials=(f"{FAST}#4. Attention in one kernel",),
        ),
    },
    "vectors/engine": {
        "": Note(
            ("padding = 1 − T / (B S)",),
            """A linear layer multiplies T rows instead of B S, and a text's attention costs the square of its
            own length instead of the longest one's. Sorting the texts by length first makes both smaller.""",
            tutorials=(f"{FAST}#5. Packed: no padding at all",),
        )
    },
    "train/loop": {
        "": Note(
            (
                "m ← β_1 m + (1 − β_1) g, v ← β_2 v + (1 − β_2) g²",
                "w ← w − rate (m̂ / (√v̂ + ε) + λ w)",
            ),
            """m̂ and v̂ are m and v divided by 1 − β^t, because both start at 0. The gradient is divided by its
            own size, so a step moves each weight by about the learning rate if its gradients are steady, however flat
            the loss is there. Gradients that come late or grow make longer steps, up to seven rates. After a few
            steps v̂ is still a poor estimate, one of the two reasons given for the warm-up. Weight decay λ is added to
            the step, not to the gradient, or it would be divided too (AdamW).""",
            tutorials=(f"{TUNING}#1. The loop by hand",),
        )
    },
    "train/distillation": {
        "": Note(
            (
                "q = softmax(z / τ) of the student, p = softmax(u / τ) of the teacher",
                "∂ (τ² KL) / ∂ z_i = τ (q_i − p_i)",
            ),
            """For large τ, this approaches (z_i − u_i) / V, with both centred (mean 0): the student then matches
            the teacher's logits themselves, even for very improbable tokens. At τ = 1 only the probable tokens count.
            Without τ² the gradient would shrink at least with the square of τ; with it, its size still changes with τ:
            by a factor of four in the toy of the tutorial, of thirteen with minibert-novels.

            The student learns more than the right answer: that “gorgeous” would have been nearly as good as
            “stunning”, and “table” would not.""",
            ("distillation",),
            (f"{DISTILLATION}#3. Temperature", f"{DISTILLATION}#5. Three losses"),
        )
    },
}

# The functions of reference.py have the equations of what computes the same; text and diagrams are on that page.
NOTES["reference"] = {
    function: Note(NOTES[module][name].equations, tutorials=NOTES[module][name].tutorials)
    for function, module, name in (
        ("embed", "model", "Embeddings"),
        ("attention", "model", "eager_attention"),
        ("feed_forward", "model", "FeedForward"),
        ("layer", "model", "Layer"),
        ("encode", "model", "Encoder"),
        ("pooler", "model", "Pooler"),
        ("predict_tokens", "pretraining_heads", ""),
        ("adamw_step", "train/loop", ""),
    )
}
