/* Attention as arcs, as a matrix and in numbers. */

/** The heads of the layer as small pictures to choose from. */
function drawHeads(place) {
  const heads = ["mean", ...data.heads.map(String), "rollout"];
  const options = heads.map((head) => {
    const input = node("input", { type: "radio", name: "head", value: head });
    input.checked = head === state.head;
    const matrix = probs(state.layer, head), largest = matrix.reduce((a, b) => Math.max(a, b), 0) || 1;
    const canvas = paint(node("canvas", { "aria-hidden": "true" }), data.S, data.S, (i) => palette.share(matrix[i] / largest));
    return node("label", {}, input, node("span", {}, canvas, /\d/.test(head) ? `head ${head}` : head));
  });
  renew(place, node("fieldset", { class: "pick heads" }, node("legend", {}, `Head of layer ${state.layer}`),
    node("div", { class: "row" }, ...options)));
}
/** Chooses two units of a view: the first token of one to follow, that of the other as the key of the steps. */
function chooseKey(from, to, v) {
  const pair = [from, to].map((unit) => v.list[unit].tokens[0]);
  choose(pair[0], pair.every((token) => token < data.pair_tokens) ? pair : null);
}
/** Two columns of tokens and a line for each weight that can be seen. */
function drawArcs(place) {
  const v = view(), from = focusedUnit(v);
  const many = v.list.length > MANY, step = many ? 15 : v.list.length > 24 ? 20 : 27;
  const width = Math.max(280, Math.min(place.clientWidth || 460, 620));
  const longest = Math.max(...v.list.map((unit) => unit.name.length));
  const side = Math.min(width * 0.36, 52 + longest * 7.7);
  const tall = Math.max(v.rows.length, v.columns.length) * step + 12;
  const svg = node("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img",
    "aria-label": `Attention as arcs, ${where()}; the table below has the numbers` });
  const y = (order) => 6 + step * (order + 0.5);
  const lines = node("g", { fill: "none" });
  const weights = [];
  v.rows.forEach((q, i) => v.columns.forEach((k, j) => {
    const least = many ? 0.1 : from < 0 ? 0.02 : 0.005;
    if ((from < 0 || q === from) && v.at(q, k) > least * v.largest) weights.push([v.at(q, k), q, i, j]);
  }));
  const [x1, x2] = [side + 4, width - side - 4], bend = (x2 - x1) / 2;
  for (const [weight, q, i, j] of weights.sort((a, b) => a[0] - b[0]).slice(-3000)) {
    const share = weight / v.largest;
    lines.append(node("path", { d: `M${x1} ${y(i)} C${x1 + bend} ${y(i)} ${x2 - bend} ${y(j)} ${x2} ${y(j)}`,
      class: v.list[q].b ? "b" : "a", "stroke-width": (0.4 + (from >= 0 ? 9 : 6) * share).toFixed(2),
      "stroke-opacity": (from >= 0 ? 0.2 + 0.8 * share : 0.75 * share).toFixed(3) }));
  }
  svg.append(lines);
  const label = (unit, order, right) => {
    const here = !right && unit === from;
    const group = node("g", { class: `unit ${v.list[unit].b ? "b" : "a"}${here ? " here" : ""}`, "data-unit": unit });
    const x = right ? width - side : side;
    const weight = right && from >= 0 && v.rows.includes(from) ? v.at(from, unit) : 0;
    group.append(node("rect", { x: right ? width - side - 2 : 0, y: y(order) - step / 2, width: side, height: step, rx: 4,
      class: "back", ...(right && from >= 0 ? { "fill-opacity": (0.5 * weight / v.largest).toFixed(3) } : {}) }));
    const space = Math.max(4, Math.floor((side - (right && from >= 0 ? 44 : 8)) / (many ? 6.2 : 7.7)));
    const name = [...v.list[unit].name];
    group.append(node("text", { x: right ? x + 4 : x - 6, y: y(order) + 4, "text-anchor": right ? "start" : "end",
      "font-size": many ? 10 : 12.5 }, name.length > space ? name.slice(0, space - 1).join("") + "…" : name.join("")));
    if (weight >= 0.005) group.append(node("text", { x: width - 6, y: y(order) + 4, "text-anchor": "end", class: "weight",
      "font-size": many ? 9 : 11.5 }, fixed(weight)));
    if (!right) {
      group.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && hover(v.list[unit].tokens[0]));
      group.addEventListener("click", () => choose(v.list[unit].tokens[0]));
    } else if (from >= 0) group.addEventListener("click", () => chooseKey(from, unit, v));
    return group;
  };
  v.rows.forEach((unit, order) => svg.append(label(unit, order, false)));
  v.columns.forEach((unit, order) => svg.append(label(unit, order, true)));
  svg.addEventListener("pointerleave", () => hover(-1));
  place.replaceChildren(svg);
  place.classList.toggle("tall", many);
  place.closest(".views").classList.toggle("many", v.list.length > 24);
}
const LABELLED = 128; // most columns of a matrix with labels
function drawMatrix(place) {
  const v = view(), from = focusedUnit(v), R = v.rows.length, C = v.columns.length;
  const space = Math.min(place.clientWidth || 460, R > 24 ? 1200 : 620);
  // A matrix that is too wide scrolls, and keeps its labels; beyond LABELLED columns it is an overview without them.
  const labelled = C <= LABELLED;
  const cell = Math.max(labelled ? 12 : 1, Math.min(34, Math.floor((space - 100) / C)));
  const canvas = paint(node("canvas", { role: "img", style: `width:${C * cell}px;height:${R * cell}px`,
    "aria-label": `Attention as a matrix of ${R} rows and ${C} columns, ${where()}; the table below has the numbers` }),
    R, C, (i) => palette.share(v.at(v.rows[Math.floor(i / C)], v.columns[i % C]) / v.largest));
  const names = (list) => list.map((unit) => node("span", { class: v.list[unit].b ? "b" : "a" }, bdi(labelled ? v.list[unit].name : "")));
  const marks = [];
  const order = v.rows.indexOf(from);
  if (order >= 0) marks.push(node("i", { class: "mark", style: `top:${order * cell}px;height:${cell}px` }));
  // Where the second text begins.
  const split = (list) => list.findIndex((unit, i) => i > 0 && v.list[unit].b && !v.list[list[i - 1]].b);
  if (split(v.rows) > 0) marks.push(node("i", { class: "cut", style: `top:${split(v.rows) * cell}px;left:0;right:0;height:0` }));
  if (split(v.columns) > 0) marks.push(node("i", { class: "cut", style: `left:${split(v.columns) * cell}px;top:0;bottom:0;width:0` }));
  const readout = readoutLine();
  explore(canvas, "matrix", R, C, (row, column) => {
    const q = v.rows[row], k = v.columns[column];
    readout.replaceChildren(bdi(v.list[q].name), " → ", bdi(v.list[k].name), `: ${fixed(v.at(q, k), 4)}`);
  }, (row, column) => chooseKey(v.rows[row], v.columns[column], v));
  const font = Math.min(12.5, cell - 1);
  const cue = C * cell + 100 > place.clientWidth ? " The matrix is wider than its frame: scroll it sideways." : "";
  renew(place, node("p", { class: "soft hint" }, `Strongest colour: ${fixed(v.largest)}. ${HOW}${cue}`), readout,
    node("div", { class: "scroll" }, node("div", { class: labelled ? "grid" : "grid bare", style: `--cell:${cell}px;--font:${font}px` },
      node("div", { class: "columns" }, ...names(v.columns)), node("div", { class: "labels" }, ...names(v.rows)),
      node("div", { class: "cells" }, canvas, ...marks))));
}
/** How much of each text's attention goes to each text. */
function drawQuadrants(place) {
  if (!data.sides.includes(1)) return place.replaceChildren();
  const shares = data.attention[state.layer].quadrants[state.head];
  const share = (name) => (shares[name] === undefined ? "–" : fixed(shares[name], 3));
  const row = (q) => node("tr", {}, node("th", { scope: "row" }, `${q} looks`),
    node("td", {}, share(`${q}→A`)), node("td", {}, share(`${q}→B`)));
  const caption = `Where the attention of each text goes, ${where()}`;
  place.replaceChildren(node("table", { class: "small" }, node("caption", {}, caption),
    node("thead", {}, node("tr", {}, node("td"), node("th", { scope: "col" }, "at A"), node("th", { scope: "col" }, "at B"))),
    node("tbody", {}, row("A"), row("B"))));
}
/** The largest weights of the focused token, or of the whole matrix. */
function drawWeights(place) {
  const v = view(), from = focusedUnit(v), looking = from < 0 ? v.rows : v.rows.filter((q) => q === from);
  const all = looking.flatMap((q) => v.columns.map((k) => [q, k, v.at(q, k)]));
  const top = all.sort((a, b) => b[2] - a[2]).slice(0, 8);
  const name = (unit) => node("code", {}, bdi(v.list[unit].name));
  const caption = from < 0 ? `The largest weights, ${where()}` : `What the token looks at most, ${where()}`;
  const rows = top.map(([q, k, weight]) => node("tr", {}, node("th", { scope: "row" }, name(q), " → ", name(k)),
    node("td", {}, fixed(weight, 3)),
    node("td", {}, node("span", { class: "bar share", "aria-hidden": "true" }, node("i", { style: `width:${100 * weight}%` })))));
  place.replaceChildren(node("table", { class: "bars" }, node("caption", {}, caption),
    node("thead", {}, node("tr", {}, node("th", { scope: "col" }, "from → to"), node("th", { scope: "col" }, "weight"), node("td"))),
    node("tbody", {}, ...rows)));
  const looks = $("#looks");
  if (from < 0) looks.replaceChildren("Choose a token here or in the row at the top of the page to see its attention alone.");
  else if (!v.rows.includes(from)) looks.replaceChildren(name(from), " is not in the text whose attention is shown.");
  else looks.replaceChildren(name(from), " looks at ", ...top.slice(0, 3).flatMap(([, k, weight], i) =>
    [i ? ", " : "", name(k), ` ${fixed(weight)}`]), `; ${where()}.`);
}
