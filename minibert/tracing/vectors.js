/* Vectors as strips and fields of colour, their lengths, and the cube of the result. */

const add = (a, b) => a && b && a.map((x, i) => x + b[i]);
/** The strips of one stage: [sign before it, name, vector, length]. Vectors that share a `scale` share colours. */
function strips(stage) {
  const i = shownToken(), l = state.layer;
  const row = (sign, face, name, scale = 0, at = i) =>
    ({ sign, face, values: vector(name, at), norm: data.norms[name]?.[at], scale });
  if (stage === "embeddings") {
    const signs = { token: "", segment: "+", position: "+", sum: "=" };
    const kept = LOOKED_UP.filter((name) => data.vectors[name]);
    const last = data.normed ? [row("→", data.E === data.D ? data.norm : "projected", "hidden0", 1)]
      : kept.length > 1 ? [row("=", "sum", "hidden0")] : [];
    const summed = kept.length > (data.normed ? 2 : 1);
    return [...(summed ? kept : ["token"]).map((name) => row(signs[name], name, name)), ...last];
  }
  if (stage === "way")
    return Object.keys(data.vectors).filter((name) => /^hidden\d/.test(name))
      .map((name) => Number(name.slice(6))).sort((a, b) => a - b)
      .map((n) => row("", data.norm_first && n === data.L ? "final norm" : n ? `layer ${n - 1}` : "embeddings", "hidden" + n));
  if (stage === "pooled")
    return [row("", data.tokens[0], "hidden" + data.L, 0, 0), row("→", "pooled", "pooled", 1, 0)];
  const first = stage === "attention";
  const before = (first ? "hidden" : "middle") + l;
  const sum = { ...row("=", "sum", `${stage}_sum${l}`), values: add(vector(before, i), vector(stage + l, i)) };
  const rows = [row("", "x", before), row("+", result(stage), stage + l), sum];
  if (data.norm_first && !isLast(stage)) return rows;
  return [...rows, row("→", data.norm_first ? "final norm" : data.norm, first ? "middle" + l : "hidden" + (l + 1), 1)];
}
/** The name of what half a layer adds to x: with norms first it is computed of a norm of x, which is too long here. */
const result = (stage) => (stage === "attention" ? "Attention" : "FFN") + (data.norm_first ? "" : "(x)");
/** Whether this is the last half of the last layer. */
const isLast = (stage) => stage === "feed_forward" && state.layer === data.L - 1;
function drawStrips(place) {
  const rows = strips(place.dataset.stage), scales = new Map();
  for (const scale of new Set(rows.map((row) => row.scale)))
    scales.set(scale, extent(...rows.filter((row) => row.scale === scale && row.values).map((row) => row.values)));
  const fixedToken = place.dataset.stage === "pooled";
  const title = node("p", { class: "of" }, fixedToken ? "Vector of " : "Vectors of ",
    node("code", {}, bdi(data.tokens[fixedToken ? 0 : shownToken()])),
    fixedToken || state.token >= 0 || state.hover >= 0 ? "" : node("span", { class: "soft" }, " (choose a token above to follow another)"));
  place.replaceChildren(title, ...rows.map((row) => {
    const name = node("span", { class: "name" }, node("b", {}, row.sign), row.face);
    const length = node("span", { class: "norm" }, `length ${fixed(row.norm)}`);
    if (!row.values) return node("div", { class: "strip" }, name, node("span", { class: "soft" }, "not stored for this token"), length);
    const limit = scales.get(row.scale);
    const first = Array.from(row.values.slice(0, 6), (x) => fixed(x)).join(", ");
    const top = row.values.reduce((best, x, d) => (Math.abs(x) > Math.abs(row.values[best]) ? d : best), 0);
    const caption = `[${first}, …]  colours end at ±${fixed(limit)}; farthest from 0: dimension ${top}, ${fixed(row.values[top])}`;
    const canvas = node("canvas", { role: "img", "aria-label": `${row.face}: ${row.values.length} numbers, the first ${first}` });
    paint(canvas, 1, row.values.length, (d) => palette.signed(row.values[d] / limit));
    const numbers = node("span", { class: "numbers" }, caption);
    explore(canvas, canvas, 1, row.values.length, (_, d) => {
      numbers.textContent = `dimension ${d}: ${fixed(row.values[d], 3)}`;
    });
    for (const event of ["pointerleave", "blur"]) canvas.addEventListener(event, () => { numbers.textContent = caption; });
    return node("div", { class: "strip" }, name, canvas, length, numbers);
  }));
}
/** Every token's vector, a row each. */
function drawField(place) {
  const named = place.dataset.vectors;
  const name = named === "output" ? `hidden${state.layer + 1}` : named === "feed_forward" ? named + state.layer : named;
  const all = vectors(name), T = data.vector_tokens;
  if (!all) return place.replaceChildren();
  const limit = once("e" + name, () => extent(all));
  const canvas = node("canvas", { role: "img", "aria-label": `${place.dataset.caption}: ${T} rows of ${data.D} numbers` });
  paint(canvas, T, data.D, (i) => palette.signed(all[i] / limit));
  const labels = node("div", { class: "labels" }, ...data.tokens.slice(0, T).map((token, i) =>
    node("span", { class: data.sides[i] ? "b" : "a", "data-token": i }, bdi(token))));
  const readout = readoutLine();
  explore(canvas, place, T, data.D, (i, d) =>
    readout.replaceChildren(bdi(data.tokens[i]), `, dimension ${d}: ${fixed(all[i * data.D + d], 3)}`));
  const hint = `Blue is negative, orange positive; colours end at ±${fixed(limit)}. ${HOW}`;
  renew(place, node("figure", {}, node("figcaption", {}, place.dataset.caption),
    node("div", { class: "rows", style: `--rows:${T}` }, labels, canvas), node("p", { class: "soft hint" }, hint), readout));
}
/** Lengths before and after a step, and how far it turned each vector. */
function drawNorms(place) {
  const stage = place.dataset.stage, l = state.layer, first = stage === "attention";
  const columns = [
    ["‖x‖ before", data.norms[(first ? "hidden" : "middle") + l]],
    [`‖${result(stage)}‖`, data.norms[stage + l]],
    ["‖sum‖", data.norms[`${stage}_sum${l}`]],
    ...(data.norm_first && !isLast(stage) ? [] : [[`‖x‖ after ${data.norm_first ? "the final norm" : data.norm}`,
      data.norms[first ? "middle" + l : "hidden" + (l + 1)]]]),
    [data.norm_first ? "cosine of x and sum" : "cosine of before and after", data.cosines[stage + l]],
  ];
  const head = node("tr", {}, node("th", { scope: "col" }, "token"),
    ...columns.map(([title]) => node("th", { scope: "col" }, title)));
  const body = data.tokens.map((token, i) => node("tr", { "data-token": i },
    node("th", { scope: "row" }, node("code", {}, bdi(token))),
    ...columns.map(([, values]) => node("td", {}, fixed(values[i])))));
  const caption = `Length of the vectors around the ${first ? "attention" : "feed-forward"} of layer ${l}`;
  const open = place.firstChild ? place.firstChild.open : data.S <= 24;
  place.replaceChildren(node("details", open ? { open: "" } : {},
    node("summary", {}, `Length and direction, token by token: ${data.S} rows`),
    node("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
      node("table", {}, node("caption", {}, caption), node("thead", {}, head), node("tbody", {}, ...body)))));
}

/** The cube of the result, with the slice of [CLS] taken out of it. */
function drawCube(place) {
  const all = vectors("hidden" + data.L), T = data.vector_tokens, limit = extent(all);
  const front = paint(node("canvas", { class: "front", role: "img",
    "aria-label": `The cube of hidden states: 1 text, ${data.S} tokens, ${data.D} numbers; its first row is [CLS]` }),
    T, data.D, (i) => palette.signed(all[i] / limit));
  const slice = paint(node("canvas", { class: "slice", role: "img", "aria-label": `The vector of [CLS], ${data.D} numbers` }),
    1, data.D, (d) => palette.signed(all[d] / limit));
  const numbers = Array.from(all.slice(0, 8), (x) => fixed(x, 3)).join(", ");
  place.replaceChildren(
    node("div", { class: "solid", style: `--rows:${T}` },
      node("span", { class: "axis s" }, `S = ${data.S} tokens`), node("div", { class: "box" },
        node("i", { class: "lid" }), node("i", { class: "flank" }), front, node("i", { class: "cls" })),
      node("span", { class: "axis b" }, "B = 1 text"), node("span", { class: "axis d" }, `D = ${data.D} numbers`)),
    node("p", { class: "arrow" }, "↓ x[:, 0]"), slice,
    node("p", { class: "numbers" }, `[${numbers}, …]`));
}
