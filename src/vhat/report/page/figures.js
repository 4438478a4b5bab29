"use strict";
// The figures, drawn from the data in this page. Text is inserted as text: nothing in the data is read as markup.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const { draw } = Chart, { short, distinct, share, readable } = Numbers;
  const $ = id => document.getElementById(id);
  const level = page.level;
  const sum = (a, b, sign = 1) => a.map((value, i) => value === null || b[i] === null ? null : value + sign * b[i]);
  let output = 0, chosen = { kind: "training", at: 0 };
  const current = () => page.outputs[output];
  const groups = () => [["training", current().training], ["held-out", current().held_out]].filter(([, group]) => group);
  const title = (kind, group, i) => (kind === "training" ? "Training " : "Held-out ") + group.name[i];

  // The lines that are shown for a row under the pointer.
  function pointTip(kind, group) {
    return i => {
      const lines = [title(kind, group, i), ["predicted, " + level, readable(group.center[i], group.half_width[i])]];
      if (group.observation) lines.push(["new response, " + level, readable(group.center[i], group.observation[i])]);
      lines.push(["observed", distinct(group.observed[i], current().spread)]);
      if (group.left_out) lines.push(["predicted without this row", distinct(group.left_out[i], current().spread)]);
      lines.push(["unsupported", share(group.unsupported[i])], ["distance", short(group.distance[i], 2)]);
      return lines;
    };
  }

  // Observed against predicted values, with both intervals as vertical bars; misses have a ring.
  function predictions() {
    const marks = [], legend = [];
    const joined = field => groups().flatMap(([, group]) => group[field]);
    for (const [field, name] of [["observation", "outer"], ["half_width", "inner"]]) {
      if (field === "observation" && !current().training.observation) continue;
      const x = joined("center"), half = joined(field);
      marks.push({ kind: "bars", class: name, group: name, x, low: sum(x, half, -1), high: sum(x, half) });
    }
    const every = groups().flatMap(([, group]) => group.center).filter(value => value !== null);
    const ends = [every.reduce((a, b) => Math.min(a, b)), every.reduce((a, b) => Math.max(a, b))];
    marks.push({ kind: "line", class: "rule", free: true, x: ends, y: ends });
    for (const [kind, group] of groups()) {
      const seen = kind === "training";
      const dot = { kind: "dots", group: kind, x: group.center, y: group.observed, r: seen ? 2.6 : 3.4, tip: pointTip(kind, group), pick: at => choose(kind, at) };
      marks.push({ ...dot, class: seen ? "seen" : "unseen", shape: seen ? "circle" : "diamond" });
      if (group.observation) marks.push({ ...dot, tip: null, pick: null, echo: true, class: "missed", r: 5.5, shape: "circle", where: group.observed.map((value, i) => Math.abs(value - group.center[i]) > group.observation[i]) });
      legend.push({ group: kind, kind: seen ? "dot" : "diamond", class: seen ? "seen" : "unseen", text: seen ? "training rows" : "held-out rows" });
    }
    legend.push({ group: "inner", kind: "area", class: "inner", text: level + " interval of the prediction" });
    if (current().training.observation) legend.push({ group: "outer", kind: "area", class: "outer", text: level + " interval of a new response" }, { group: "none", kind: "dot", class: "missed", text: "outside this interval" });
    draw($("fig-predictions"), { label: "observed against predicted " + current().name, x: { label: "predicted " + current().name }, y: { label: "observed " + current().name }, marks, legend });
  }

  // The prediction along one column.
  function slice() {
    if (!$("choose-slice")) return;
    const line = current().slices[Number($("choose-slice").value)], name = page.columns[line.column];
    const data = page.inputs.training[line.column], marks = [], legend = [];
    const low = sum(line.center, line.half_width, -1), high = sum(line.center, line.half_width);
    const tip = i => {
      const lines = [name + " = " + distinct(line.grid[i], page.spreads[line.column]), ["predicted, " + level, readable(line.center[i], line.half_width[i])]];
      if (line.observation) lines.push(["new response, " + level, readable(line.center[i], line.observation[i])]);
      lines.push(["unsupported", share(line.unsupported[i])], ["distance", short(line.distance[i], 2)]);
      return lines;
    };
    if (data && !line.discrete) {
      const least = data.reduce((a, b) => Math.min(a, b)), most = data.reduce((a, b) => Math.max(a, b)), first = line.grid[0], last = line.grid[line.grid.length - 1];
      marks.push({ kind: "shade", class: "shade", free: true, from: [first - (last - first), most], to: [least, last + (last - first)] });
    }
    const kind = line.discrete ? "bars" : "band";
    if (line.observation) marks.push({ kind, class: "outer", group: "outer", x: line.grid, low: sum(line.center, line.observation, -1), high: sum(line.center, line.observation) });
    if (data) marks.push({ kind: "dots", class: "faint", group: "data", x: data, y: current().training.observed, r: 2.4 });
    marks.push({ kind, class: "inner", group: "inner", x: line.grid, low, high });
    marks.push(line.discrete ? { kind: "dots", class: "chosen", x: line.grid, y: line.center, r: 4, tip } : { kind: "line", class: "center", x: line.grid, y: line.center, tip });
    if (!line.discrete) marks.push({ kind: "strip", class: "strip", free: true, group: "strip", x: line.grid, share: line.unsupported });
    legend.push({ group: "inner", kind: "area", class: "inner", text: "prediction" });
    if (line.observation) legend.push({ group: "outer", kind: "area", class: "outer", text: "new response" });
    if (data) legend.push({ group: "data", kind: "dot", class: "faint", text: "training rows" });
    if (!line.discrete) legend.push({ group: "strip", kind: "area", class: "strip", text: "unsupported" });
    draw($("fig-slices"), { label: current().name + " along " + name, sweep: true, x: { label: name }, y: { label: current().name }, marks, legend });
  }

  // Width and unsupported share against the distance to the data.
  function distances() {
    for (const [id, field, label] of [["fig-width", "half_width", "half width, " + current().name], ["fig-unsupported", "unsupported", "unsupported share"]]) {
      const marks = [], legend = [];
      const made = { x: [], y: [], of: [] };
      current().slices.forEach(line => line.grid.forEach((value, i) => { made.x.push(line.distance[i]); made.y.push(line[field][i]); made.of.push([line, i]); }));
      if (made.x.length) {
        marks.push({ kind: "dots", class: "made", group: "slices", x: made.x, y: made.y, r: 2.6, tip: k => { const [line, i] = made.of[k]; return ["Slice, " + page.columns[line.column] + " = " + distinct(line.grid[i], page.spreads[line.column]), ["predicted, " + level, readable(line.center[i], line.half_width[i])], ["unsupported", share(line.unsupported[i])], ["distance", short(line.distance[i], 2)]]; } });
        legend.push({ group: "slices", kind: "dot", class: "made", text: "points of the slices" });
      }
      for (const [kind, group] of groups()) {
        const seen = kind === "training";
        marks.push({ kind: "dots", group: kind, class: seen ? "seen" : "unseen", shape: seen ? "circle" : "diamond", x: group.distance, y: group[field], r: seen ? 2.6 : 3.2, tip: pointTip(kind, group), pick: at => choose(kind, at) });
        legend.push({ group: kind, kind: seen ? "dot" : "diamond", class: seen ? "seen" : "unseen", text: seen ? "training rows" : "held-out rows" });
      }
      if (field === "unsupported") {
        const far = marks.flatMap(mark => mark.x).filter(value => value !== null).reduce((a, b) => Math.max(a, b), 0);
        marks.push({ kind: "line", class: "rule dashed", free: "x", x: [0, far], y: [page.max_unsupported, page.max_unsupported] });
      }
      draw($(id), { label: label + " against distance to the data", height: 320, x: { label: "distance to the nearest training row" }, y: { label }, marks, legend });
    }
  }

  // Coverage against nominal level, with two binomial standard errors.
  function calibration() {
    const found = current().calibration;
    if (!$("fig-calibration") || !found.curves.length) return;
    const marks = [], legend = [{ group: "chance", kind: "area", class: "outer", text: "chance alone" }];
    const first = found.curves[0];
    const order = first.level.map((_, i) => i).sort((a, b) => first.level[a] - first.level[b]);
    marks.push({ kind: "band", class: "outer", group: "chance", x: order.map(i => first.level[i]), low: order.map(i => Math.max(0, first.level[i] - 2 * first.error[i])), high: order.map(i => Math.min(1, first.level[i] + 2 * first.error[i])) });
    marks.push({ kind: "line", class: "rule dashed", x: [.45, 1], y: [.45, 1] });
    const calibrated = first.bound.startsWith("calibrated");
    for (const curve of found.curves) {
      const main = calibrated ? curve === first : curve.bound === "asymptotic";
      const tip = i => [curve.nominal[i] + " nominal", ["covered", Number((100 * curve.coverage[i]).toPrecision(3)) + "% (" + Math.round(curve.coverage[i] * found.rows) + " of " + found.rows + ")"], ["bound", curve.bound]];
      marks.push({ kind: "line", class: main ? "center" : "rule", group: curve.bound, x: curve.level, y: curve.coverage });
      marks.push({ kind: "dots", class: main ? "chosen" : "open", shape: main ? "circle" : "diamond", group: curve.bound, x: curve.level, y: curve.coverage, r: 4.5, tip });
      legend.push({ group: curve.bound, kind: main ? "dot" : "diamond", class: main ? "chosen" : "open", text: (main && calibrated ? "" : "bound ") + curve.bound });
    }
    draw($("fig-calibration"), { label: "coverage against nominal level", x: { label: "nominal level" }, y: { label: "share of responses covered" }, marks, legend });
  }

  // The most influential training rows of the chosen prediction, as bars and as a table.
  function influence() {
    const kind = chosen.kind, group = kind === "training" ? current().training : current().held_out, at = chosen.at, found = group.influence;
    const rows = found.row[at].map(row => current().influential_rows[row]), moves = found.sensitivity[at], without = found.without[at];
    const response = i => distinct(rows[i].response, current().spread);
    const tip = i => {
      const lines = ["Training " + rows[i].name, ["its response", response(i)], ["change per unit", short(moves[i])]];
      if (without) lines.push(["change without it", short(without[i])]);
      return lines;
    };
    const marks = [{ kind: "rows", class: "bar", y: rows.map((_, i) => i), to: moves, from: rows.map(() => 0), tip }];
    draw($("fig-influence"), { label: "training rows with the most influence on " + title(kind, group, at), rows: rows.map(row => row.name), height: 60 + 30 * rows.length + 20, sweep: false, x: { label: "change of the prediction per unit of the response" }, y: { label: title(kind, group, at) + ": " + readable(group.center[at], group.half_width[at]), domain: [rows.length - .4, -.6] }, marks });
    $("influence-share").textContent = found.share[at] === null ? "" : "Together these " + rows.length + " rows make up " + Number((100 * found.share[at]).toPrecision(2)) + "% of its variance.";
    const body = $("influence-table").querySelector("tbody");
    body.replaceChildren();
    rows.forEach((row, i) => {
      const line = document.createElement("tr");
      [row.name, response(i), short(moves[i]), without ? short(without[i]) : "–"].forEach((text, column) => {
        const cell = document.createElement("td");
        cell.textContent = text;
        if (column) cell.className = "number";
        line.appendChild(cell);
      });
      body.appendChild(line);
    });
  }

  function choose(kind, at) {
    chosen = { kind, at };
    $("choose-point").value = kind + " " + at;
    influence();
  }

  // Scores of the weight decays that were tried.
  function decay() {
    const curve = page.curve;
    if (!$("fig-decay")) return;
    const tip = i => ["λ = " + short(curve.weight_decay[i]), ["score", readable(curve.score[i], curve.standard_error[i])], ["fit", curve.status[i]]].concat(curve.remark[i] ? [["", curve.remark[i].slice(0, 120)]] : []);
    const marks = [
      { kind: "line", class: "rule", x: curve.weight_decay, y: curve.score },
      { kind: "bars", class: "error", x: curve.weight_decay, low: sum(curve.score, curve.standard_error, -1), high: sum(curve.score, curve.standard_error) },
      { kind: "dots", class: "open", x: curve.weight_decay, y: curve.score, r: 5, tip },
      { kind: "dots", class: "chosen", x: curve.weight_decay, y: curve.score, r: 5, where: curve.score.map((_, i) => i === curve.best) },
    ];
    draw($("fig-decay"), { label: "score against weight decay", height: 300, x: { label: "weight decay λ", log: true }, y: { label: "score, " + curve.unit }, marks });
  }

  function everything() {
    document.querySelectorAll(".output").forEach(part => { part.hidden = Number(part.dataset.output) !== output; });
    decay();
    if (!page.outputs.length) return;
    predictions(); slice(); distances(); calibration(); influence();
    Quality.draw(page, current(), choose);
  }

  if (page.outputs.length) {
    const menu = $("choose-point");
    for (const [kind, group] of groups()) group.name.forEach((name, at) => menu.add(new Option((kind === "training" ? "training " : "held-out ") + name, kind + " " + at)));
    const widest = current().widest[0];
    if (widest) chosen = { kind: widest.kind, at: widest.at };
    menu.value = chosen.kind + " " + chosen.at;
    menu.onchange = () => { const [kind, at] = menu.value.split(" "); choose(kind, Number(at)); };
    if ($("choose-slice")) {
      const moved = current().slices.map(({ center }) => { const known = center.filter(value => value !== null); return known.length ? Math.max(...known) - Math.min(...known) : 0; });
      $("choose-slice").value = moved.indexOf(Math.max(...moved));
      $("choose-slice").onchange = slice;
    }
    document.querySelectorAll(".pick").forEach(button => { button.onclick = () => { choose(button.dataset.kind, Number(button.dataset.at)); $("influence").scrollIntoView(); }; });
  }
  if ($("choose-output")) $("choose-output").onchange = event => { output = Number(event.target.value); everything(); };
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(each => { each.open = true; }));
  everything();
  document.documentElement.dataset.drawn = "true";
})();
