"use strict";
// The figures that test the fit: residuals, coverage by part, importance of the columns.
const Quality = (() => {
  const { draw } = Chart, { short, distinct, readable } = Numbers;
  const $ = id => document.getElementById(id);
  const percent = value => Number((100 * value).toPrecision(3)) + "%";

  function residuals(page, output, choose) {
    const found = output.quality.residuals;
    if (!$("fig-residuals") || !found) return;
    const held = output.quality.source === "held-out", marks = [], x = found.prediction;
    const tip = i => {
      const lines = [(held ? "Held-out " : "Training ") + found.name[i], ["predicted", distinct(x[i], output.spread)], ["observed minus predicted", distinct(found.residual[i], output.spread)]];
      if (found.low) lines.push([page.level + " interval", distinct(found.low[i], output.spread) + " to " + distinct(found.high[i], output.spread)]);
      return lines;
    };
    if (found.low) {
      const order = x.map((_, i) => i).filter(i => x[i] !== null).sort((a, b) => x[a] - x[b]), of = values => order.map(i => values[i]);
      marks.push({ kind: "band", class: "outer", group: "outer", x: of(x), low: of(found.low), high: of(found.high) });
    }
    const known = x.filter(value => value !== null);
    if (!known.length) return;
    marks.push({ kind: "line", class: "rule", free: true, x: [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))], y: [0, 0] });
    const dot = { kind: "dots", group: "rows", x, y: found.residual, r: held ? 3.4 : 2.6, tip, pick: held ? at => choose("held-out", at) : null };
    marks.push({ ...dot, class: held ? "unseen" : "seen", shape: held ? "diamond" : "circle" });
    const legend = [{ group: "rows", kind: held ? "diamond" : "dot", class: held ? "unseen" : "seen", text: held ? "held-out rows" : "training rows, left out" }];
    if (found.low) {
      marks.push({ ...dot, tip: null, pick: null, echo: true, class: "missed", r: 5.5, shape: "circle", where: found.residual.map((value, i) => value !== null && (value < found.low[i] || value > found.high[i])) });
      legend.push({ group: "outer", kind: "area", class: "outer", text: page.level + " interval of a new response" }, { group: "none", kind: "dot", class: "missed", text: "outside this interval" });
    }
    draw($("fig-residuals"), { label: "residuals against predicted " + output.name, height: 340, x: { label: "predicted " + output.name }, y: { label: "observed minus predicted" }, marks, legend });
  }

  // One line per part, below the name of the column by which the rows were divided.
  function parts(page, output) {
    const found = output.quality.parts, total = output.quality.coverage;
    if (!$("fig-parts") || !found.length) return;
    const rows = ["all rows"], heads = [0], lines = [{ ...total, named: "All rows", at: 0 }];
    let last = null;
    for (const part of found) {
      if (part.of !== last) { last = part.of; heads.push(rows.length); rows.push(part.of); }
      lines.push({ ...part, named: part.of + " " + part.label, at: rows.length });
      rows.push(part.label);
    }
    const of = name => lines.map(line => line[name]), off = of("off").map(side => side !== "");
    const tip = i => [lines[i].named, ["inside", lines[i].inside + " of " + lines[i].rows + " (" + percent(lines[i].share) + ")"], ["two standard errors", percent(lines[i].low) + " to " + percent(lines[i].high)], ["nominal", page.level]];
    const dot = { kind: "dots", x: of("share"), y: of("at"), r: 4.5, tip };
    const marks = [
      { kind: "line", class: "rule dashed", x: [total.level, total.level], y: [-.6, rows.length - .4] },
      { kind: "spans", class: "error", y: of("at"), from: of("low"), to: of("high"), off },
      { ...dot, class: "chosen", group: "within", where: off.map(value => !value) },
      { ...dot, class: "astray", group: "off", shape: "diamond", where: off },
    ];
    const legend = [{ group: "within", kind: "dot", class: "chosen", text: "within chance" }];
    if (off.includes(true)) legend.push({ group: "off", kind: "diamond", class: "astray", text: "clearly off" });
    draw($("fig-parts"), { label: "share of responses inside their interval, by part of the rows", rows, heads, height: 68 + 20 * rows.length, x: { label: "share inside the " + page.level + " interval of a new response" }, y: { label: "", domain: [rows.length - .4, -.6] }, marks, legend });
  }

  function importance(page, output) {
    const found = output.quality.importance;
    if (!$("fig-importance") || !found) return;
    const names = found.name, at = names.map((_, i) => i);
    const tip = i => [names[i], ["error increases by", readable(found.increase[i], found.spread[i])], ["from", short(found.rms)]];
    const ends = sign => found.increase.map((value, i) => value + sign * found.spread[i]);
    const marks = [
      { kind: "rows", class: "bar", y: at, to: found.increase, from: at.map(() => 0), tip },
      { kind: "spans", class: "spread", y: at, from: ends(-1), to: ends(1) },
    ];
    draw($("fig-importance"), { label: "increase of the error when a column is shuffled", rows: names, height: 68 + 24 * names.length, x: { label: "increase of the root mean square error, from " + short(found.rms) }, y: { label: "", domain: [names.length - .4, -.6] }, marks });
  }

  return { draw: (page, output, choose) => { residuals(page, output, choose); parts(page, output); importance(page, output); } };
})();
