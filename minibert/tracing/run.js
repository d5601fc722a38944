/* What the page asks of bert.js, in a worker or in the page: weights unpacked, texts encoded, changes tried beside controls.

   open    the settings and weights of the page, once
   encode  a text or a pair -> tokens, ids, segments, states, attentions, logits
   show    a text with the changes of the reader -> what the page draws, in the format of numbers.py, and their effect */

const UNRELATED = "The report lists the costs of a bridge across the river.";
const SHOWN = { vectors: 64, pairs: 24, units: 6, guesses: 10, masks: 6 }; // as numbers.py and journey.py have them
const KEPT = 6; // runs that are remembered
let w, c, newest = 0;
const runs = new Map();

function numbers(text, [rows, columns = 1], format) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  if (format === "float32") return new Float32Array(bytes.buffer);
  if (format === "bfloat16") return new Float32Array(Uint32Array.from(new Uint16Array(bytes.buffer), (bits) => bits << 16).buffer);
  const scales = new Float32Array(bytes.buffer, 0, rows), whole = new Int8Array(bytes.buffer, 4 * rows);
  return Float32Array.from(whole, (one, i) => one * scales[Math.floor(i / columns)]);
}
function open({ settings, weights }) {
  const lines = weights.trim().split("\n");
  w = Object.fromEntries(settings.tensors.map(([name, shape, format], i) => [name, numbers(lines[i], shape, format)]));
  w["decoder.weight"] ??= w["embeddings.token.weight"];
  c = { ...settings, vocab: new Map(settings.vocabulary.map((token, id) => [token, id])), head: "transform.weight" in w };
}

const pause = () => new Promise((resolve) => setTimeout(resolve));
/** The run of a row with changes; between layers it reports, and stops if a newer request has come. */
async function runOf(row, changes, { number, report }) {
  const key = JSON.stringify([row.ids, row.segments, changes]);
  if (!runs.has(key)) {
    const made = await encoder(row, w, c, changes, async (l) => {
      report({ layer: l, of: c.L, tokens: row.ids.length });
      await pause();
      if (number && number !== newest) throw new Error("superseded");
    });
    runs.set(key, made);
    if (runs.size > KEPT) runs.delete(runs.keys().next().value);
  }
  return runs.get(key);
}
async function encode({ text, pair }, request) {
  const row = rowOf(text, pair ?? null, c), { states, layers } = await runOf(row, [], request);
  return { tokens: row.tokens, ids: row.ids, segments: row.segments, states, attentions: layers.map((l) => l.probs),
    logits: c.head ? predictTokens(states[c.L], w, c) : null };
}

// -- what is changed, and the control beside it

/** A row with some tokens replaced by [MASK]. */
function masked(row, places) {
  const ids = row.ids.map((id, i) => (places.includes(i) ? c.vocab.get(c.mask) : id));
  return { ...row, ids, tokens: row.tokens.map((token, i) => (places.includes(i) ? c.mask : token)) };
}
/** One of the numbers below `count` that is not taken, the same for the same text; null if there is none. */
function another(count, taken, row) {
  const free = [...Array(count).keys()].filter((i) => !taken.includes(i));
  return free.length ? free[row.ids.reduce((a, b) => (31 * a + b) % 65521, 7) % free.length] : null;
}
const special = (row) => [...row.tokens.keys()].filter((i) => [c.cls, c.sep, c.mask].includes(row.tokens[i]));
/** The same changes to something else: random tokens, heads and layers, and vectors of an unrelated sentence. */
function controls(changes, row) {
  const taken = { mask: special(row) };
  const group = (change) => (change.kind === "head" ? `head${change.layer}` : change.kind);
  for (const change of changes)
    (taken[group(change)] ??= []).push(change.kind === "mask" ? change.token : change.kind === "head" ? change.head : change.layer);
  return changes.map((change) => {
    if (change.kind === "state") return { ...change, source: UNRELATED };
    const of = { mask: ["token", row.ids.length], head: ["head", c.H] }[change.kind] ?? ["layer", c.L];
    const chosen = another(of[1], taken[group(change)], row);
    taken[group(change)].push(chosen);
    return chosen === null ? null : { ...change, [of[0]]: chosen };
  }).filter(Boolean);
}
/** The run of a row with its changes: masks first, then moved vectors from a run of their source. */
async function changed(row, changes, request) {
  const places = changes.filter(({ kind }) => kind === "mask").map(({ token }) => token);
  const now = masked(row, places), own = [];
  for (const change of changes.filter(({ kind }) => kind !== "mask")) {
    if (change.kind !== "state") { own.push(change); continue; }
    const source = rowOf(change.source, null, c), { states } = await runOf(source, [], request);
    const from = Math.min(change.from, source.ids.length - 1);
    own.push({ ...change, vector: Array.from(vectorOf(states[change.layer], from)) });
  }
  return { row: now, ...(await runOf(now, own, request)) };
}

const vectorOf = (x, i) => x.subarray(i * c.D, (i + 1) * c.D);
const meanOf = (x) => Float32Array.from({ length: c.D }, (_, d) => {
  let sum = 0;
  for (let i = d; i < x.length; i += c.D) sum += x[i];
  return sum / (x.length / c.D);
});
function cosine(a, b) {
  let dot = 0, left = 0, right = 0;
  for (let d = 0; d < a.length; d++) { dot += a[d] * b[d]; left += a[d] * a[d]; right += b[d] * b[d]; }
  return dot / (Math.sqrt(left * right) || 1);
}
/** The probabilities of all tokens at one place, of the state after a layer (the logit lens), (V). */
function probabilities(run, place, l = c.L) {
  const p = predictTokens(vectorOf(run.states[l], place), w, c);
  softmax(p);
  return p;
}
function best(p, count) {
  const made = [];
  for (let id = 0; id < p.length; id++) {
    if (made.length === count && p[id] <= p[made[count - 1]]) continue;
    made.push(id);
    made.sort((a, b) => p[b] - p[a]);
    made.length = Math.min(made.length, count);
  }
  return made.map((id) => [c.vocabulary[id], p[id]]);
}
/** Rows of the outcome: what is measured, and its number before the changes, with them, and with the control. */
function effect(row, before, after, control) {
  const last = (run) => run.states[c.L];
  const compare = (name, of) => [name, 1, cosine(of(last(before)), of(last(after))), control && cosine(of(last(before)), of(last(control)))];
  const rows = [compare("cosine of [CLS]", (x) => vectorOf(x, 0)), compare("cosine of the mean", meanOf)];
  const places = c.head ? [...row.ids.keys()].filter((i) => after.row.tokens[i] === c.mask).slice(0, SHOWN.masks) : [];
  for (const place of places) {
    const [p, q, r] = [before, after, control].map((run) => run && probabilities(run, place));
    const id = row.tokens[place] === c.mask ? c.vocab.get(best(p, 1)[0][0]) : row.ids[place];
    rows.push([`probability of ${c.vocabulary[id]} at ${place}`, p[id], q[id], r && r[id]]);
  }
  return rows;
}
/** Cosines of two sentences layer by layer: of [CLS] and of the mean, beside those with an unrelated sentence. */
async function compared(first, text, request) {
  const second = await runOf(rowOf(text, null, c), [], request), control = await runOf(rowOf(UNRELATED, null, c), [], request);
  return first.states.map((x, l) => [second, control].flatMap(({ states }) =>
    [cosine(vectorOf(x, 0), vectorOf(states[l], 0)), cosine(meanOf(x), meanOf(states[l]))]));
}
async function show({ text, pair, other, changes, lens }, request) {
  const row = rowOf(text, pair, c), began = performance.now();
  const fits = changes.filter(({ token = 0, to = 0 }) => Math.max(token, to) < row.ids.length);
  const given = fits.map((change) => (change.kind === "state" ? { ...change, source: other } : change));
  const others = given.filter(({ kind }) => kind !== "mask"), masks = given.filter(({ kind }) => kind === "mask");
  const after = await changed(row, given, request), seconds = (performance.now() - began) / 1000;
  const basis = others.length ? masks : []; // masks are a change only where nothing else is
  const kept = others.length ? [...masks, ...controls(others, row)] : controls(masks, row);
  const before = given.length ? await changed(row, basis, request) : after;
  const control = given.length && kept.length > basis.length ? await changed(row, kept, request) : null;
  const place = lens >= 0 && lens < row.ids.length ? lens : Math.max(after.row.tokens.indexOf(c.mask), Math.min(1, row.ids.length - 1));
  const beside = another(row.ids.length, [...special(row), place], row) ?? 0;
  const at = (where, count) => after.states.map((_, l) => best(probabilities(after, where, l), count));
  return {
    data: journey(after.row, after), seconds, longest: row.longest, unknown: row.tokens.filter((token) => token === c.unk).length,
    effect: given.length ? effect(row, before, after, control) : [], control: kept.slice(basis.length), typed: row.tokens, left: changes.length - fits.length,
    lens: { place, beside, guesses: c.head ? at(place, 3) : [], control: c.head ? at(beside, 1) : [] },
    compared: other ? await compared(after, other, request) : [], others: other ? rowOf(other, null, c).tokens : [],
    guesses: c.head ? [...row.ids.keys()].filter((i) => after.row.tokens[i] === c.mask).slice(0, SHOWN.masks)
      .map((i) => [i, best(probabilities(after, i), SHOWN.guesses)]) : [],
  };
}

// -- what the page draws: numbers.py and journey.py again, unpacked

const lengths = (x) => Array.from({ length: x.length / c.D }, (_, i) => Math.hypot(...vectorOf(x, i)));
const turns = (x, y) => Array.from({ length: x.length / c.D }, (_, i) => cosine(vectorOf(x, i), vectorOf(y, i)));
function journey(row, { embedded, states, layers }) {
  const S = row.ids.length, T = Math.min(S, SHOWN.vectors), P = Math.min(S, SHOWN.pairs), words = wordsOf(row);
  const { x: _, ...looked } = embedded, drawn = { ...looked }, norms = {}, cosines = {}, attention = {}, pairs = {}, units = {};
  states.forEach((x, l) => { drawn[`hidden${l}`] = x; });
  let rolled = null;
  layers.forEach((layer, l) => {
    for (const name of ["attention", "middle", "feed_forward"]) drawn[name + l] = layer[name];
    norms[`attention_sum${l}`] = lengths(residual(layer.attention, states[l]));
    norms[`feed_forward_sum${l}`] = lengths(residual(layer.feed_forward, layer.middle));
    cosines[`attention${l}`] = turns(states[l], layer.middle);
    cosines[`feed_forward${l}`] = turns(layer.middle, states[l + 1]);
    const mean = Float32Array.from({ length: S * S }, (_, i) => {
      let sum = 0;
      for (let h = 0; h < c.H; h++) sum += layer.probs[h * S * S + i];
      return sum / c.H;
    });
    rolled = rollout(mean, rolled, S);
    const all = { mean, rollout: rolled };
    for (let h = 0; h < c.H; h++) all[h] = layer.probs.subarray(h * S * S, (h + 1) * S * S);
    const quadrants = Object.fromEntries(Object.entries(all).map(([name, matrix]) => [name, quadrantsOf(matrix, row.sides)]));
    attention[l] = { heads: layer.probs, mean, rollout: rolled, quadrants };
    pairs[l] = { queries: byHead(layer.query, P), keys: byHead(layer.key, P), log_sums: S > P ? Array.from({ length: c.H }, (_, h) => layer.logSums.subarray(h * S, h * S + P)) : null };
    units[l] = strongestUnits(layer, l, T);
  });
  if (w["pooler.dense.weight"]) drawn.pooled = pooler(states[c.L], w, c);
  for (const [name, x] of Object.entries(drawn)) norms[name] = lengths(x);
  const names = words.map((word, i) => [word, row.tokens[i].replace(/^##/, "")]);
  return { S, tokens: row.tokens, ids: row.ids, sides: row.sides, segments: row.segments, words,
    names: [...new Set(words)].map((word) => names.filter(([of]) => of === word).map(([, piece]) => piece).join("")),
    vector_tokens: T, pair_tokens: P, attention, pairs, units, norms, cosines,
    vectors: Object.fromEntries(Object.entries(drawn).map(([name, x]) => [name, x.slice(0, T * c.D)])) };
}
/** The number of each token's word: a piece that begins with ## continues the one before it. */
function wordsOf(row) {
  let word = -1;
  return row.tokens.map((token) => (token.startsWith("##") ? word : ++word));
}
/** Queries or keys of the first P tokens, (S,D) -> (H,P,W). */
function byHead(x, P) {
  const W = c.D / c.H;
  return Float32Array.from({ length: c.H * P * W }, (_, i) => x[Math.floor(i / W) % P * c.D + Math.floor(i / (P * W)) * W + i % W]);
}
/** Attention rollout: (mean + I) / 2, multiplied through the layers, (S,S). */
function rollout(mean, before, S) {
  const mixed = mean.map((p, i) => (p + Number(i % (S + 1) === 0)) / 2);
  if (!before) return mixed;
  const rolled = new Float32Array(S * S);
  for (let q = 0; q < S; q++) for (let k = 0; k < S; k++) for (let j = 0; j < S; j++) rolled[q * S + j] += mixed[q * S + k] * before[k * S + j];
  return rolled;
}
/** The share of the attention from each text to each text. */
function quadrantsOf(matrix, sides) {
  const S = sides.length, shares = {};
  for (const [q, from] of ["A", "B"].entries()) for (const [k, to] of ["A", "B"].entries()) {
    const rows = [...sides.keys()].filter((i) => sides[i] === q), columns = [...sides.keys()].filter((i) => sides[i] === k);
    if (rows.length && columns.length)
      shares[`${from}→${to}`] = rows.reduce((sum, i) => sum + columns.reduce((all, j) => all + matrix[i * S + j], 0), 0) / rows.length;
  }
  return shares;
}
/** The units that make most of FFN(x), in its direction, for the first T tokens; all shares add up to 1. */
function strongestUnits({ activation, feed_forward: out }, l, T) {
  const weight = w[`layers.${l}.feed_forward.contract.weight`], bias = w[`layers.${l}.feed_forward.contract.bias`], F = weight.length / c.D;
  return Array.from({ length: T }, (_, i) => {
    const y = vectorOf(out, i), share = new Float64Array(F), square = y.reduce((sum, one) => sum + one * one, 0) || 1;
    for (let d = 0; d < c.D; d++) for (let f = 0, from = d * F; f < F; f++, from++) share[f] += y[d] * weight[from];
    for (let f = 0; f < F; f++) share[f] *= activation[i * F + f] / square;
    const unit = [...share.keys()].sort((a, b) => Math.abs(share[b]) - Math.abs(share[a])).slice(0, SHOWN.units);
    const all = share.reduce((a, b) => a + b, 0), listed = unit.map((f) => share[f]);
    return { unit, activation: unit.map((f) => activation[i * F + f]), share: listed,
      rest: all - listed.reduce((a, b) => a + b, 0), bias: y.reduce((sum, one, d) => sum + one * bias[d], 0) / square };
  });
}

/** The answer to one request; report is called with the progress. */
function answer({ kind, number, ...asked }, report) {
  if (kind === "show") newest = number;
  return { open, encode, show }[kind](asked, { number: kind === "show" ? number : 0, report });
}
