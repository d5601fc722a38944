/* How one weight of attention comes about: products of a query and a key, their sum over √W, softmax. */

const LISTED = 6; // products, and keys beside the chosen one

/** The head of the steps: the chosen one; the mean and the rollout have no queries, and the first head stands in. */
const headOfSteps = () => (/^\d+$/.test(state.head) ? Number(state.head) : data.heads[0]);
/** Query or key, (W), of one token in one head of the layer. */
function ofHead(kind, head, token) {
  const all = once(`${kind}${state.layer}`, () => floats(data.pairs[state.layer][kind]));
  const W = data.D / data.H, start = (data.heads.indexOf(head) * data.pair_tokens + token) * W;
  return all.subarray(start, start + W);
}
/** Whether a query of this layer reads a key: a local layer reads only the tokens nearby. */
const reads = (from, to) => Math.abs(from - to) <= (data.reach[state.layer] ?? data.S);
/** Everything on the way to the weights of one query token; largest is the score that is taken from all, so that no e^ overflows. */
function steps(head, from, to) {
  const q = ofHead("queries", head, from), k = ofHead("keys", head, to);
  const root = Math.sqrt(q.length), product = Array.from(q, (x, w) => x * k[w]);
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const scores = Array.from({ length: data.pair_tokens }, (_, j) =>
    reads(from, j) ? sum(Array.from(q, (x, w) => x * ofHead("keys", head, j)[w])) / root : -Infinity);
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  // Over all S tokens; where the page does not have all keys, it has the logarithm of this sum.
  const logSums = data.pairs[state.layer].log_sums;
  const total = logSums ? Math.exp(logSums[data.heads.indexOf(head)][from] - largest) : sum(powers);
  return { q, k, product, dot: sum(product), root, scores, largest, powers, total, weight: powers[to] / total };
}
/** The query and key token of the steps: the chosen pair, else the followed token and what it looks at most. */
function pairShown() {
  if (state.pair) return state.pair;
  const from = Math.max(state.token, 0);
  if (from >= data.pair_tokens) return null;
  const row = probs(state.layer, String(headOfSteps())).subarray(from * data.S, from * data.S + data.pair_tokens);
  return [from, row.indexOf(Math.max(...row))];
}

const token = (i) => node("code", {}, bdi(data.tokens[i]));
const cells = (name, ...columns) => node("tr", {}, node("th", { scope: "row" }, ...[name].flat()),
  ...columns.map((column) => node("td", {}, column)));
/** A bar of a share, -1 to 1, from the middle where it has a sign. */
const signedBar = (share) => node("span", { class: `bar ${share < 0 ? "minus" : "plus"}`, "aria-hidden": "true" },
  node("i", { style: `width:${(100 * Math.min(1, Math.abs(share))).toFixed(1)}%` }));
/** A table that scrolls by itself. */
function steppedTable(kind, caption, columns, rows) {
  const head = columns.map((title) => (title ? node("th", { scope: "col" }, title) : node("td")));
  return node("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    node("table", { class: kind }, node("caption", {}, caption), node("thead", {}, node("tr", {}, ...head)),
      node("tbody", {}, ...rows)));
}
const step = (number, ...parts) => node("p", { class: "step" }, node("b", {}, `${number} `), ...parts);

/** Query, key and products as strips: the same colours for query and key. */
function pairStrips(s) {
  const both = extent(s.q, s.k), products = extent(s.product);
  const strips = [["q", s.q, both], ["k", s.k, both], ["q × k", s.product, products]].map(([name, values, limit]) => {
    const label = `${name}: ${values.length} numbers; colours end at ±${fixed(limit)}`;
    const canvas = node("canvas", { role: "img", "aria-label": label });
    paint(canvas, 1, values.length, (w) => palette.signed(values[w] / limit));
    return node("div", { class: "strip" }, node("span", { class: "name" }, name), canvas);
  });
  return [...strips, node("p", { class: "soft hint" },
    `Colours end at ±${fixed(both)} for q and k, at ±${fixed(products)} for the products; larger numbers have the last colour.`)];
}
function productTable(s) {
  const order = [...s.product.keys()].sort((a, b) => Math.abs(s.product[b]) - Math.abs(s.product[a]));
  const top = order.slice(0, LISTED), rest = order.slice(LISTED);
  const rows = top.map((w) => cells(`${w}`, fixed(s.q[w]), fixed(s.k[w]), fixed(s.product[w]),
    signedBar(s.product[w] / Math.abs(s.product[top[0]] || 1))));
  if (rest.length) rows.push(cells(`the other ${rest.length} together`, "", "", fixed(rest.reduce((a, w) => a + s.product[w], 0)), ""));
  rows.push(cells(node("b", {}, "q · k"), "", "", fixed(s.dot), ""));
  return steppedTable("bars sums", "The products that count most, by dimension of the head", ["dimension", "q", "×\u00a0k", "=\u00a0product", ""], rows);
}
function softmaxTable(s, from, to) {
  const order = [...s.scores.keys()].filter((j) => reads(from, j)).sort((a, b) => s.scores[b] - s.scores[a]);
  const top = order.slice(0, LISTED);
  if (!top.includes(to)) top.push(to);
  const all = data.tokens.filter((_, j) => reads(from, j) || j === to).length;
  const others = all - top.length, left = Math.max(0, s.total - top.reduce((a, j) => a + s.powers[j], 0));
  const rows = top.map((j) => {
    const row = cells([token(j), ` ${j}`], reads(from, j) ? fixed(s.scores[j]) : "−∞", fixed(s.powers[j], 3), fixed(s.powers[j] / s.total, 3),
      node("span", { class: "bar", "aria-hidden": "true" }, node("i", { style: `width:${(100 * s.powers[j] / s.total).toFixed(1)}%` })));
    row.classList.toggle("here", j === to);
    return row;
  });
  if (others) rows.push(cells(`the other ${others} together`, "", fixed(left, 3), fixed(left / s.total, 3), ""));
  rows.push(cells(node("b", {}, "sum"), "", fixed(s.total, 3), fixed(1, 3), ""));
  return steppedTable("bars sums", "Softmax against the others", ["looked at", "score", "e^(score\u00a0−\u00a0largest)", "weight", ""], rows);
}
function drawPair(place) {
  const pair = pairShown(), head = headOfSteps();
  for (const [i, name] of ["from", "to"].entries()) $(`#${name}`).value = pair ? String(pair[i]) : "";
  if (!pair) {
    return place.replaceChildren(node("p", { class: "soft" },
      `This page has queries and keys only for the first ${data.pair_tokens} tokens. Choose two of them.`));
  }
  const [from, to] = pair, s = steps(head, from, to), W = s.q.length;
  const softmax = !reads(from, to)
    ? step(3, `Window: this layer reads at most ${data.reach[state.layer]} tokens to each side, and this key is ${Math.abs(from - to)} away. Its score becomes −∞, so softmax gives it the weight `, node("b", {}, "0"), ".")
    : step(3, `Softmax: e^(${fixed(s.scores[to])} − ${fixed(s.largest)}) / ${fixed(s.total, 3)} = ${fixed(s.powers[to], 3)} / ${fixed(s.total, 3)} = `,
      node("b", {}, fixed(s.weight, 3)), ". (The largest score is subtracted from every score. This leaves the weights unchanged and avoids overflow.)");
  const stands = /^\d+$/.test(state.head) ? "" : `; the ${state.head} has no queries, so this is head ${head}. You can choose one above`;
  place.replaceChildren(
    node("p", { class: "of" }, token(from), " looks at ", token(to), `, layer ${state.layer}, head ${head}${stands}.`),
    step(1, `Multiply and add: q · k = ${fixed(s.dot)}.`), ...pairStrips(s), productTable(s),
    step(2, `Scale: score = ${fixed(s.dot)} / √${W} = ${fixed(s.dot)} / ${fixed(s.root)} = `, node("b", {}, fixed(s.dot / s.root)), "."),
    softmax, softmaxTable(s, from, to));
}
/** The result of the steps in words, for screen readers. */
function pairText() {
  const pair = pairShown();
  if (!pair) return "";
  const s = steps(headOfSteps(), ...pair), score = reads(...pair) ? `score ${fixed(s.scores[pair[1]])}` : "outside the window";
  return `${data.tokens[pair[0]]} looks at ${data.tokens[pair[1]]}, layer ${state.layer}, head ${headOfSteps()}: ` +
    `${score}, weight ${fixed(s.weight, 3)}.`;
}
