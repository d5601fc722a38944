/* The units of the feed-forward that make most of what it adds to one token. */

function drawUnits(place) {
  const i = shownToken(), one = data.units[state.layer][i];
  const title = node("p", { class: "of" }, "Units for ", token(i), `, layer ${state.layer}`);
  if (!one) return place.replaceChildren(title, node("p", { class: "soft" }, "Not stored for this token."));
  const percent = (share) => `${fixed(100 * share, 1)}\u00a0%`;
  const largest = Math.max(...one.share.map(Math.abs)) || 1;
  const rows = one.unit.map((unit, n) => cells(`${unit}`, fixed(one.activation[n]), percent(one.share[n]),
    signedBar(one.share[n] / largest)));
  rows.push(cells("all others together", "", percent(one.rest), ""));
  if (data.ffn_bias) rows.push(cells("b₂", "", percent(one.bias), ""));
  const all = one.share.reduce((a, b) => a + b, one.rest + one.bias);
  rows.push(cells([node("b", {}, "FFN(x)"), ", the sum"], "", percent(all), ""));
  place.replaceChildren(title, steppedTable("bars sums", "The strongest units, and the sum with the others",
    ["unit", "activation", "share of FFN(x)", ""], rows));
}
