/* Draws the numbers of the page and follows the chosen token.

   data (from data.py):
     S, E, D, H, L      sizes; tokens, ids, sides (0: A, 1: B), words (the word that each token belongs to)
     layers, heads      those that the page has; vector_tokens: of how many tokens it has the vectors, T
     attention[layer]   heads (heads,S,S), mean (S,S), rollout (S,S): uint16 in base64, 65535 for 1
     vectors[name]      (T,D) float16 in base64, before hidden0 (T,E); hidden0 is the embeddings, hidden1 what layer 0 returns
     norms[name]        (S) length of each vector; cosines[name]: of before and after a step

   Every change of the state ends in draw(), which draws what depends on it. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("trace-data").textContent);
  const state = { token: -1, hover: -1, layer: data.layers[0], head: "mean", merge: false, part: "all" };
  const MANY = 64; // tokens from which arcs are drawn finer and labels left out
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // -- small helpers

  /** An element: node("span", {class: "a"}, "text", child). Text never becomes HTML. */
  function node(name, attributes = {}, ...children) {
    const svg = ["svg", "path", "text", "rect", "g", "line", "polygon"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }
  const bdi = (text) => node("bdi", { dir: "auto" }, text);
  const fixed = (x, digits = 2) => x.toFixed(digits).replace("-", "−");
  /** The token that pictures of one token show: under the pointer, else the chosen one, else [CLS]. */
  const shownToken = () => (state.hover >= 0 ? state.hover : Math.max(state.token, 0));
  const focused = () => (state.hover >= 0 ? state.hover : state.token);

  // -- unpacking

  const cache = new Map();
  function once(key, make) {
    if (!cache.has(key)) cache.set(key, make());
    return cache.get(key);
  }
  function uint16(text) {
    const bytes = atob(text);
    const numbers = new Uint16Array(bytes.length / 2);
    for (let i = 0; i < numbers.length; i++) numbers[i] = bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8);
    return numbers;
  }
  function half(bits) {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
    return bits & 0x8000 ? -size : size;
  }
  /** Vectors of the first T tokens, row by row; null where the page does not have them. */
  const vectors = (name) => once("v" + name, () =>
    data.vectors[name] ? Float32Array.from(uint16(data.vectors[name]), half) : null);
  const LOOKED_UP = ["token", "segment", "position", "sum"];
  function vector(name, token) {
    const all = vectors(name), width = LOOKED_UP.includes(name) ? data.E : data.D;
    return all && token < data.vector_tokens ? all.subarray(token * width, (token + 1) * width) : null;
  }
  /** Attention of one layer and head, (S,S). */
  function probs(layer, head) {
    return once(`p${layer}.${head}`, () => {
      const of = data.attention[layer], size = data.S * data.S;
      const place = data.heads.indexOf(Number(head));
      const named = head === "mean" || head === "rollout";
      const all = named ? uint16(of[head]) : once("p" + layer, () => uint16(of.heads));
      const start = named ? 0 : place * size;
      return Float32Array.from(all.subarray(start, start + size), (x) => x / 65535);
    });
  }

  // -- tokens or words, the whole or a part of a pair

  /** What the attention is drawn between: names, first token and members of each unit, and unit of each token. */
  function units() {
    const of = state.merge ? data.words : data.tokens.map((_, i) => i);
    const list = [];
    of.forEach((unit, token) => {
      if (list[unit]) list[unit].tokens.push(token);
      else {
        const name = state.merge ? data.names[unit] : data.tokens[token];
        list[unit] = { name, tokens: [token], b: data.sides[token] === 1 };
      }
    });
    return { list, of };
  }
  /** Attention between units: summed over the keys of a word, averaged over its queries, so rows still sum to 1. */
  function merged(matrix, { list, of }) {
    if (!state.merge) return matrix;
    const n = list.length, out = new Float32Array(n * n);
    for (let q = 0; q < data.S; q++)
      for (let k = 0; k < data.S; k++)
        out[of[q] * n + of[k]] += matrix[q * data.S + k] / list[of[q]].tokens.length;
    return out;
  }
  /** The attention now on show: units, those that look (rows), those looked at (columns), and at(row, column). */
  function view() {
    return once(["view", state.layer, state.head, state.merge, state.part].join(), () => {
      const all = units(), matrix = merged(probs(state.layer, state.head), all), n = all.list.length;
      const side = (letter) => [...all.list.keys()].filter((i) => all.list[i].b === (letter === "B"));
      const whole = [...all.list.keys()];
      const rows = state.part === "all" ? whole : side(state.part[0]);
      const columns = state.part === "all" ? whole : side(state.part[1]);
      let largest = 0;
      for (const q of rows) for (const k of columns) largest = Math.max(largest, matrix[q * n + k]);
      return { ...all, rows, columns, largest: largest || 1, at: (q, k) => matrix[q * n + k] };
    });
  }
  const focusedUnit = (v) => (focused() < 0 ? -1 : v.of[focused()]);
  const where = () => state.head === "rollout" ? `rollout to layer ${state.layer}`
    : `layer ${state.layer}, ${state.head === "mean" ? "mean of the heads" : `head ${state.head}`}`;

  // -- colours, from the style sheet, so that light and dark agree with it

  let palette;
  function readPalette() {
    const style = getComputedStyle(document.documentElement);
    const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
    const [zero, high, negative, positive] = ["--zero", "--high", "--negative", "--positive"].map(rgb);
    const mix = (a, b, t) => a.map((x, i) => x + (b[i] - x) * t);
    palette = {
      share: (t) => mix(zero, high, Math.min(1, t) ** 0.8),
      signed: (t) => mix(zero, t < 0 ? negative : positive, Math.min(1, Math.abs(t)) ** 0.8),
    };
  }
  /** A picture with one pixel for each number; the style sheet stretches it. */
  function paint(canvas, rows, columns, colour) {
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) {
      const [r, g, b] = colour(i);
      image.data.set([r, g, b, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
  /** The number at which colours end: 99 of 100 numbers are below it. */
  function extent(...lists) {
    const sizes = lists.flatMap((list) => Array.from(list, Math.abs)).sort((a, b) => a - b);
    return sizes[Math.floor(0.99 * (sizes.length - 1))] || 1;
  }

  // -- vectors

  const add = (a, b) => a && b && a.map((x, i) => x + b[i]);
  /** The strips of one stage: [sign before it, name, vector, length]. Vectors that share a `scale` share colours. */
  function strips(stage) {
    const i = shownToken(), l = state.layer;
    const row = (sign, face, name, scale = 0, at = i) =>
      ({ sign, face, values: vector(name, at), norm: data.norms[name]?.[at], scale });
    if (stage === "embeddings") {
      const signs = { token: "", segment: "+", position: "+", sum: "=" };
      return [...LOOKED_UP.filter((name) => data.vectors[name]).map((name) => row(signs[name], name, name)),
        row("→", data.E === data.D ? "LayerNorm" : "widened", "hidden0", 1)];
    }
    if (stage === "way")
      return Object.keys(data.vectors).filter((name) => /^hidden\d/.test(name))
        .map((name) => Number(name.slice(6))).sort((a, b) => a - b)
        .map((n) => row("", n ? `layer ${n - 1}` : "embeddings", "hidden" + n));
    if (stage === "pooled")
      return [row("", data.tokens[0], "hidden" + data.L, 0, 0), row("→", "pooled", "pooled", 1, 0)];
    const first = stage === "attention";
    const before = first ? "hidden" + l : "attention_norm" + l;
    const after = first ? "attention_norm" + l : "hidden" + (l + 1);
    const sum = { ...row("=", "sum", `${stage}_sum${l}`), values: add(vector(before, i), vector(stage + l, i)) };
    return [row("", "x", before), row("+", first ? "Attention(x)" : "FFN(x)", stage + l), sum,
      row("→", "LayerNorm", after, 1)];
  }
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
      if (!row.values) return node("div", { class: "strip" }, name, node("span", { class: "soft" }, "not kept for this token"), length);
      const limit = scales.get(row.scale);
      const first = Array.from(row.values.slice(0, 6), (x) => fixed(x)).join(", ");
      const top = row.values.reduce((best, x, d) => (Math.abs(x) > Math.abs(row.values[best]) ? d : best), 0);
      const said = `[${first}, …]  colours end at ±${fixed(limit)}; farthest from 0: dimension ${top}, ${fixed(row.values[top])}`;
      const canvas = node("canvas", { role: "img", "aria-label": `${row.face}: ${row.values.length} numbers, the first ${first}` });
      paint(canvas, 1, row.values.length, (d) => palette.signed(row.values[d] / limit));
      const numbers = node("span", { class: "numbers" }, said);
      canvas.addEventListener("pointermove", (event) => {
        const d = Math.min(row.values.length - 1, Math.floor(event.offsetX / canvas.clientWidth * row.values.length));
        numbers.textContent = `dimension ${d}: ${fixed(row.values[d], 3)}`;
      });
      canvas.addEventListener("pointerleave", () => { numbers.textContent = said; });
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
    const readout = node("p", { class: "soft readout" }, `Blue is negative, orange positive; colours end at ±${fixed(limit)}.`);
    canvas.addEventListener("pointermove", (event) => {
      const d = Math.min(data.D - 1, Math.floor(event.offsetX / canvas.clientWidth * data.D));
      const i = Math.max(0, Math.min(T - 1, Math.floor(event.offsetY / canvas.clientHeight * T)));
      readout.replaceChildren(bdi(data.tokens[i]), `, dimension ${d}: ${fixed(all[i * data.D + d], 3)}`);
    });
    place.replaceChildren(node("figure", {}, node("figcaption", {}, place.dataset.caption),
      node("div", { class: "rows", style: `--rows:${T}` }, labels, canvas), readout));
  }
  /** Lengths before and after a step, and how far it turned each vector. */
  function drawNorms(place) {
    const stage = place.dataset.stage, l = state.layer, first = stage === "attention";
    const columns = [
      ["‖x‖ before", data.norms[first ? "hidden" + l : "attention_norm" + l]],
      [first ? "‖Attention(x)‖" : "‖FFN(x)‖", data.norms[stage + l]],
      ["‖sum‖", data.norms[`${stage}_sum${l}`]],
      ["‖x‖ after LayerNorm", data.norms[first ? "attention_norm" + l : "hidden" + (l + 1)]],
      ["cosine of before and after", data.cosines[stage + l]],
    ].filter(([, values]) => values);
    const head = node("tr", {}, node("th", { scope: "col" }, "token"),
      ...columns.map(([title]) => node("th", { scope: "col" }, title)));
    const body = data.tokens.map((token, i) => node("tr", { "data-token": i },
      node("th", { scope: "row" }, node("code", {}, bdi(token))),
      ...columns.map(([, values]) => node("td", {}, fixed(values[i])))));
    const caption = `Length of the vectors around the ${first ? "attention" : "feed-forward"} of layer ${l}`;
    place.replaceChildren(node("details", place.firstChild && !place.firstChild.open ? {} : { open: "" },
      node("summary", {}, "Length and direction, token by token"),
      node("div", { class: "wide tall", tabindex: "0", role: "region", "aria-label": caption },
        node("table", {}, node("caption", {}, caption), node("thead", {}, head), node("tbody", {}, ...body)))));
  }

  // -- attention

  /** The heads of the layer as small pictures to choose from. */
  function drawHeads(place) {
    const kept = place.contains(document.activeElement);
    const heads = ["mean", ...data.heads.map(String), "rollout"];
    const options = heads.map((head) => {
      const input = node("input", { type: "radio", name: "head", value: head });
      input.checked = head === state.head;
      const matrix = probs(state.layer, head), largest = matrix.reduce((a, b) => Math.max(a, b), 0) || 1;
      const canvas = paint(node("canvas", { "aria-hidden": "true" }), data.S, data.S, (i) => palette.share(matrix[i] / largest));
      return node("label", {}, input, node("span", {}, canvas, /\d/.test(head) ? `head ${head}` : head));
    });
    place.replaceChildren(node("fieldset", { class: "pick heads" }, node("legend", {}, `Head of layer ${state.layer}`),
      node("div", { class: "row" }, ...options)));
    if (kept) $("input:checked", place).focus();
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
      const room = Math.max(4, Math.floor((side - (right && from >= 0 ? 44 : 8)) / (many ? 6.2 : 7.7)));
      const name = [...v.list[unit].name];
      group.append(node("text", { x: right ? x + 4 : x - 6, y: y(order) + 4, "text-anchor": right ? "start" : "end",
        "font-size": many ? 10 : 12.5 }, name.length > room ? name.slice(0, room - 1).join("") + "…" : name.join("")));
      if (weight >= 0.005) group.append(node("text", { x: width - 6, y: y(order) + 4, "text-anchor": "end", class: "weight",
        "font-size": many ? 9 : 11.5 }, fixed(weight)));
      if (!right) {
        group.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && hover(v.list[unit].tokens[0]));
        group.addEventListener("click", () => choose(v.list[unit].tokens[0]));
      }
      return group;
    };
    v.rows.forEach((unit, order) => svg.append(label(unit, order, false)));
    v.columns.forEach((unit, order) => svg.append(label(unit, order, true)));
    svg.addEventListener("pointerleave", () => hover(-1));
    place.replaceChildren(svg);
    place.classList.toggle("tall", tall > 900);
  }
  function drawMatrix(place) {
    const v = view(), from = focusedUnit(v), R = v.rows.length, C = v.columns.length;
    const room = Math.min(place.clientWidth || 460, 620);
    const cell = Math.max(1, Math.min(34, Math.floor((room - 100) / C)));
    const labelled = cell >= 8;
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
    const readout = node("p", { class: "soft readout" }, `Strongest colour: ${fixed(v.largest)}. Point at a cell for its number.`);
    canvas.addEventListener("pointermove", (event) => {
      const q = v.rows[Math.max(0, Math.min(R - 1, Math.floor(event.offsetY / cell)))];
      const k = v.columns[Math.max(0, Math.min(C - 1, Math.floor(event.offsetX / cell)))];
      readout.replaceChildren(bdi(v.list[q].name), " → ", bdi(v.list[k].name), `: ${fixed(v.at(q, k), 4)}`);
    });
    canvas.addEventListener("click", (event) =>
      choose(v.list[v.rows[Math.min(R - 1, Math.floor(event.offsetY / cell))]].tokens[0]));
    const font = Math.min(12.5, cell - 1);
    place.replaceChildren(node("div", { class: labelled ? "grid" : "grid bare", style: `--cell:${cell}px;--font:${font}px` },
      node("div", { class: "columns" }, ...names(v.columns)), node("div", { class: "labels" }, ...names(v.rows)),
      node("div", { class: "cells" }, canvas, ...marks)), readout);
  }
  /** How much of each text's attention goes to each text. */
  function drawQuadrants(place) {
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
    if (from < 0) looks.replaceChildren("Choose a token, here or in the row at the top of the page, to see only what it looks at.");
    else if (!v.rows.includes(from)) looks.replaceChildren(name(from), " is not in the text that looks here.");
    else looks.replaceChildren(name(from), " looks at ", ...top.slice(0, 3).flatMap(([, k, weight], i) =>
      [i ? ", " : "", name(k), ` ${fixed(weight)}`]), `; ${where()}.`);
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

  // -- what happens when

  const drawers = { strips: drawStrips, field: drawField, norms: drawNorms, heads: drawHeads, arcs: drawArcs,
    matrix: drawMatrix, quadrants: drawQuadrants, weights: drawWeights, cube: drawCube };
  // What a change of the state concerns; the rest stays as it is.
  const ofToken = ["strips", "arcs", "matrix", "weights"];
  const ofAttention = ["arcs", "matrix", "quadrants", "weights"];
  function draw(names = Object.keys(drawers)) {
    for (const name of names) for (const place of $$(`.draw.${name}`)) drawers[name](place);
    mark();
  }
  /** Marks the token wherever its name stands. */
  function mark() {
    for (const one of $$("[data-token]")) one.classList.toggle("here", Number(one.dataset.token) === focused());
  }
  function hover(token) {
    if (state.hover === token) return;
    state.hover = token;
    // The arcs under the pointer are drawn anew only when it is on another token.
    draw(ofToken);
  }
  function choose(token) {
    state.token = token;
    state.hover = -1;
    const input = $(`input[name=token][value="${token}"]`);
    input.checked = true;
    input.parentElement.scrollIntoView({ block: "nearest", inline: "nearest" });
    draw(ofToken);
    $("#said").textContent = $("#looks").textContent;
  }
  document.addEventListener("change", ({ target }) => {
    if (target.name === "token") return choose(Number(target.value));
    if (target.name === "layer") state.layer = Number(target.value);
    else if (target.name === "head") state.head = target.value;
    else if (target.name === "part") state.part = target.value;
    else if (target.id === "merge") state.merge = target.checked;
    else return;
    draw(target.name === "layer" ? ["heads", "norms", "strips", "field", ...ofAttention] : ofAttention);
    $("#said").textContent = `${where()}. ${$("#looks").textContent}`;
  });

  const dark = matchMedia("(prefers-color-scheme: dark)"), button = $("#theme");
  function theme(name) {
    if (name) document.documentElement.dataset.theme = name;
    const isDark = (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
    button.textContent = isDark ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark ? "light" : "dark"} colours`);
    readPalette();
    draw();
  }
  button.addEventListener("click", () => theme(button.textContent.toLowerCase()));
  dark.addEventListener("change", () => theme());
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(["arcs", "matrix"]); } });

  // The map: open beside the page, closed above it, and the stop in view is marked.
  if (innerWidth < 1080) $("#map").open = false;
  const seen = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting))
      for (const link of $$("nav a")) link.ariaCurrent = link.hash === `#${target.id}` ? "true" : null;
  }, { rootMargin: "-20% 0px -70% 0px" });
  $$("section.stop").forEach((section) => seen.observe(section));

  // Tests look at what is drawn through this.
  window.trace = { data, state, view, probs, vector };
  theme();
})();
