"use strict";
// Draw one figure as SVG from a specification, and redraw it at the width of the page; with hover, zoom and keys.
const Chart = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const { ticks, powers, extent } = Scales, finite = Number.isFinite;
  const EDGE = 7, TURN = { above: 0, "to the right": 90, below: 180, "to the left": 270 };
  let count = 0;

  function node(name, attributes, parent) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    if (parent) parent.appendChild(made);
    return made;
  }

  // Draw a figure. The specification has two axes (label, log, domain), marks (band, line, bars, dots, rows, spans,
  // shade, strip), a legend whose buttons hide groups of marks, and, for figures of named rows, their names.
  function draw(figure, spec) {
    const host = figure.querySelector(".plot");
    // Hidden groups, the view after a zoom, whether far points are in the view, and the point whose numbers are shown.
    const state = { off: new Set(), domain: null, everything: false, at: null };
    const shown = () => spec.marks.filter(mark => !state.off.has(mark.group));
    // The limits of both axes, with or without far points.
    const view = everything => {
      const marks = shown(), of = axis => spec[axis].domain || extent(marks, axis, spec[axis].log, everything);
      return { x: of("x"), y: of("y") };
    };
    const current = () => state.domain || view(state.everything);
    // The side of a view on which a point lies, in words; empty if it lies inside.
    function side({ x, y }, across, up) {
      const [a, b] = [spec.x.log ? Math.log10(across) : across, spec.y.log ? Math.log10(up) : up];
      const [foot, top] = y[0] < y[1] ? y : [y[1], y[0]];  // rows are numbered from the top
      return b > top ? "above" : b < foot ? "below" : a < x[0] ? "to the left" : a > x[1] ? "to the right" : "";
    }
    // A clause on the points that the usual view leaves out; empty if there are none.
    function beyond() {
      const near = view(false), found = {};
      for (const mark of shown()) if (mark.kind === "dots" && !mark.echo) mark.x.forEach((value, i) => {
        const where = value === null || mark.y[i] === null ? "" : side(near, value, mark.y[i]);
        if (where) found[where] = (found[where] || 0) + 1;
      });
      const count = Object.values(found).reduce((a, b) => a + b, 0), where = Object.entries(found);
      if (!count) return "";
      return (count === 1 ? "1 point lies" : count + " points lie") + " far beyond this view ("
        + (where.length === 1 ? where[0][0] : where.map(([words, some]) => some + " " + words).join(", ")) + ")";
    }
    host.replaceChildren();
    const svg = node("svg", { role: "img", tabindex: 0 }, host), beyondNote = figure.querySelector(".beyond");
    const tip = document.createElement("div");
    tip.className = "tip"; tip.hidden = true; tip.setAttribute("role", "status");
    host.appendChild(tip);
    // The frame in pixels, the scales of both axes, the usual view if it leaves out points, and the points with numbers.
    let box, scale, near = null, spots = [];

    function render() {
      const width = Math.max(host.clientWidth, 240), height = spec.height || Math.round(Math.min(440, Math.max(280, width * .52)));
      const domain = current(), hidden = beyond();
      near = hidden && !state.domain && !state.everything ? domain : null;
      beyondNote.hidden = !near;
      beyondNote.textContent = hidden + ", marked by triangles on the frame; “all” shows everything to scale.";
      svg.setAttribute("aria-label", spec.label + (near ? "; " + hidden : ""));
      const rows = spec.rows ? spec.rows.map((name, k) => [k, name]) : null;
      const up = rows || (spec.y.log ? powers(...domain.y) : ticks(...domain.y, height / 60));
      const left = Math.min(width * .4, 14 + 7.2 * Math.max(...up.map(([, text]) => text.length), 2));
      box = { left, right: width - 12, top: 26, bottom: height - 42 };
      const wanted = Math.max(2, (box.right - box.left) / 85);
      const along = spec.x.log ? powers(...domain.x) : ticks(...domain.x, wanted);
      const place = ([low, high], from, to, log) => value => from + ((log ? Math.log10(value) : value) - low) / (high - low) * (to - from);
      scale = { x: place(domain.x, box.left, box.right, spec.x.log), y: place(domain.y, box.bottom, box.top, spec.y.log) };
      const raw = { x: place(domain.x, box.left, box.right), y: place(domain.y, box.bottom, box.top) };
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("height", height);
      const id = "clip" + ++count, defs = node("defs", {}, svg);
      node("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top },
        node("clipPath", { id }, defs));
      const back = node("g", { class: "axes" }, svg);
      for (const [value, text] of along) {
        const at = raw.x(value);
        if (at < box.left - .5 || at > box.right + .5) continue;
        if (!rows || value === 0) node("line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom }, back);
        const label = node("text", { x: Math.min(at, width - 4 - 3.5 * text.length), y: box.bottom + 17, "text-anchor": "middle" }, back);
        label.textContent = text;
      }
      for (const [value, text] of up) {
        const at = raw.y(value);
        if (at < box.top - .5 || at > box.bottom + .5) continue;
        if (!rows) node("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }, back);
        const label = node("text", { x: box.left - 7, y: at + 4, "text-anchor": "end" }, back);
        label.textContent = rows ? fit(text, box.left - 9) : text;
        if (rows && (spec.heads || []).includes(value)) label.setAttribute("class", "axis");
      }
      const below = fit(spec.x.label, width - 16), half = 3.15 * below.length + 4;
      const middle = Math.max(half, Math.min(width - half, (box.left + box.right) / 2));
      const across = node("text", { class: "axis", x: middle, y: height - 7, "text-anchor": "middle" }, back);
      across.textContent = below;
      const upwards = node("text", { class: "axis", x: 0, y: 13 }, back);
      upwards.textContent = fit(spec.y.label, width - 8);
      const marks = node("g", { class: "marks", "clip-path": `url(#${id})` }, svg);
      spots = [];
      for (const mark of spec.marks) if (!state.off.has(mark.group)) paint(mark, marks);
      node("path", { class: "frame", d: `M${box.left},${box.top}V${box.bottom}H${box.right}` }, svg);
      if (state.at !== null) show(state.at);
    }

    const fit = (text, room) => text.length * 6.3 <= room ? text : text.slice(0, Math.max(3, Math.floor(room / 6.3) - 1)) + "…";
    const f = value => Math.round(value * 100) / 100;

    // Draw one mark, and collect its points for hover and keys.
    function paint(mark, parent) {
      const { x, y } = scale, group = node("g", { "data-kind": mark.kind, class: "group-" + mark.kind + " of-" + mark.class.split(" ")[0] }, parent);
      const good = (...values) => values.every(value => value !== null && finite(value));
      const spot = (i, at, up) => { if (mark.tip && good(at, up) && at >= box.left - 1 && at <= box.right + 1 && up >= box.top - 1 && up <= box.bottom + 1) spots.push({ mark, i, x: at, y: up }); };
      const held = (value, low, high) => Math.min(high - EDGE, Math.max(low + EDGE, value));
      const runs = ok => { const found = []; let run = []; for (let i = 0; i < mark.x.length; i++) { if (ok(i)) run.push(i); else if (run.length) { found.push(run); run = []; } } if (run.length) found.push(run); return found; };
      if (mark.kind === "band") for (const run of runs(i => good(mark.x[i], mark.low[i], mark.high[i]))) {
        const there = run.map(i => `${f(x(mark.x[i]))},${f(y(mark.high[i]))}`), back = run.slice().reverse().map(i => `${f(x(mark.x[i]))},${f(y(mark.low[i]))}`);
        node("path", { class: mark.class, d: `M${there.concat(back).join("L")}Z` }, group);
      } else if (mark.kind === "line") for (const run of runs(i => good(mark.x[i], mark.y[i]))) {
        node("path", { class: mark.class, d: "M" + run.map(i => `${f(x(mark.x[i]))},${f(y(mark.y[i]))}`).join("L") }, group);
        for (const i of run) spot(i, x(mark.x[i]), y(mark.y[i]));
      } else if (mark.kind === "bars") mark.x.forEach((value, i) => {
        if (good(value, mark.low[i], mark.high[i])) node("line", { class: mark.class, x1: f(x(value)), x2: f(x(value)), y1: f(y(mark.low[i])), y2: f(y(mark.high[i])) }, group);
      });
      else if (mark.kind === "dots") mark.x.forEach((value, i) => {
        if (!good(value, mark.y[i]) || (mark.where && !mark.where[i])) return;
        const where = near ? side(near, value, mark.y[i]) : "", r = mark.r || 3;
        const at = f(where ? held(x(value), box.left, box.right) : x(value)), up = f(where ? held(y(mark.y[i]), box.top, box.bottom) : y(mark.y[i]));
        if (where && !mark.echo) node("path", { class: mark.class, d: "M0,-5L5,4H-5Z", transform: `translate(${at},${up}) rotate(${TURN[where]})` }, group);
        else if (mark.shape === "diamond") node("path", { class: mark.class, d: `M${at},${up - r * 1.35}l${r * 1.35},${r * 1.35}l${-r * 1.35},${r * 1.35}l${-r * 1.35},${-r * 1.35}z` }, group);
        else node("circle", { class: mark.class, cx: at, cy: up, r }, group);
        spot(i, at, up);
      });
      else if (mark.kind === "rows") mark.to.forEach((value, i) => {
        if (!good(value)) return;
        const from = x(0), to = x(value), middle = y(mark.y[i]);
        node("rect", { class: mark.class + (value < 0 ? " down" : ""), x: f(Math.min(from, to)), y: f(middle - 8), width: Math.max(f(Math.abs(to - from)), .5), height: 16 }, group);
        spot(i, to, middle);
      });
      else if (mark.kind === "spans") mark.y.forEach((value, i) => {
        if (good(value, mark.from[i], mark.to[i])) node("line", { class: mark.class + (mark.off && mark.off[i] ? " off" : ""), x1: f(x(mark.from[i])), x2: f(x(mark.to[i])), y1: f(y(value)), y2: f(y(value)) }, group);
      });
      else if (mark.kind === "shade") mark.from.forEach((value, i) => {
        const from = Math.max(x(value), box.left), to = Math.min(x(mark.to[i]), box.right);
        if (to > from) node("rect", { class: "ground-shade", x: f(from), y: box.top, width: f(to - from), height: box.bottom - box.top }, group);
      });
      else if (mark.kind === "strip") mark.x.forEach((value, i) => {
        if (!good(value, mark.share[i])) return;
        const before = i ? (mark.x[i - 1] + value) / 2 : value, after = i + 1 < mark.x.length ? (mark.x[i + 1] + value) / 2 : value;
        const from = Math.max(x(before), box.left), to = Math.min(x(after), box.right);
        if (to > from) node("rect", { class: "strip", x: f(from), y: box.bottom - 7, width: f(to - from + .3), height: 7, "fill-opacity": f(Math.min(1, Math.max(0, mark.share[i]))) }, group);
      });
    }

    // -- hover, keys, zoom --------------------------------------------------------------------
    // Show the numbers of a point, or none.
    function show(spot) {
      state.at = spot;
      svg.querySelectorAll(".halo").forEach(old => old.remove());
      if (!spot) { tip.hidden = true; return; }
      const live = spots.find(each => each.mark === spot.mark && each.i === spot.i);
      if (!live) { tip.hidden = true; return; }
      node("circle", { class: "halo", cx: live.x, cy: live.y, r: 7 }, svg);
      const [title, ...lines] = live.mark.tip(live.i);
      tip.replaceChildren();
      const head = document.createElement("b"); head.textContent = title; tip.appendChild(head);
      for (const [name, value] of lines) {
        const line = document.createElement("span"), label = document.createElement("i"), text = document.createElement("span");
        label.textContent = name; text.textContent = value; line.append(label, text); tip.appendChild(line);
      }
      tip.hidden = false;
      const ratio = host.clientWidth / svg.viewBox.baseVal.width, room = host.clientWidth - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(room, live.x * ratio + (live.x * ratio > room - 14 ? -tip.offsetWidth - 14 : 14))) + "px";
      tip.style.top = Math.max(0, live.y * ratio - tip.offsetHeight - 10) + "px";
    }
    // The point nearest to a place. Along a line (sweep), vertical distance counts for little.
    function nearest(at, reach) {
      let best = null, least = reach * reach;
      for (const spot of spots) {
        const away = (spot.x - at.x) ** 2 + (spot.y - at.y) ** 2 * (spec.sweep ? .02 : 1);
        if (away < least) { least = away; best = spot; }
      }
      return best;
    }
    const where = event => {
      const bounds = svg.getBoundingClientRect(), ratio = svg.viewBox.baseVal.width / bounds.width;
      return { x: (event.clientX - bounds.left) * ratio, y: (event.clientY - bounds.top) * ratio };
    };
    const inside = at => ({ x: Math.min(box.right, Math.max(box.left, at.x)), y: Math.min(box.bottom, Math.max(box.top, at.y)) });
    function zoom(to, everything = false) { state.domain = to; state.everything = everything; show(null); render(); }
    // The place of a pixel in units of the axes.
    function back(at) {
      const domain = current();
      return {
        x: domain.x[0] + (at.x - box.left) / (box.right - box.left) * (domain.x[1] - domain.x[0]),
        y: domain.y[0] + (box.bottom - at.y) / (box.bottom - box.top) * (domain.y[1] - domain.y[0]),
      };
    }
    // Zoom around the middle. Figures of named rows zoom along the horizontal axis only.
    function by(factor) {
      const domain = current();
      const stretch = ([low, high]) => { const middle = (low + high) / 2, half = (high - low) / 2 * factor; return [middle - half, middle + half]; };
      zoom({ x: stretch(domain.x), y: spec.rows ? domain.y : stretch(domain.y) });
    }
    let start = null, brush = null;
    svg.addEventListener("pointerdown", event => { if (event.button === 0 && event.pointerType !== "touch") { start = inside(where(event)); svg.setPointerCapture(event.pointerId); } });
    svg.addEventListener("pointermove", event => {
      const at = where(event);
      if (!start) { if (event.pointerType !== "touch") show(nearest(at, 36)); return; }
      const end = inside(at);
      if (!brush && Math.hypot(end.x - start.x, end.y - start.y) > 6) { show(null); brush = node("rect", { class: "brush" }, svg); }
      if (brush) for (const [key, value] of Object.entries({ x: Math.min(start.x, end.x), y: Math.min(start.y, end.y), width: Math.abs(end.x - start.x), height: Math.abs(end.y - start.y) })) brush.setAttribute(key, value);
    });
    svg.addEventListener("pointerup", event => {
      const from = start, dragged = brush, to = inside(where(event));
      start = brush = null;
      if (dragged) {
        dragged.remove();
        if (Math.abs(to.x - from.x) > 6 && Math.abs(to.y - from.y) > 6) {
          const a = back(from), b = back(to);
          zoom({ x: [Math.min(a.x, b.x), Math.max(a.x, b.x)], y: [Math.min(a.y, b.y), Math.max(a.y, b.y)] });
        }
        return;
      }
      const spot = nearest(where(event), 36);
      show(spot);
      if (spot && spot.mark.pick) spot.mark.pick(spot.i);
    });
    svg.addEventListener("pointercancel", () => { start = null; if (brush) brush.remove(); brush = null; });
    svg.addEventListener("pointerleave", event => { if (event.pointerType !== "touch" && !start) show(null); });
    svg.addEventListener("dblclick", () => zoom(null));
    svg.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step && spots.length) {
        const order = spots.slice().sort((a, b) => spec.rows ? a.y - b.y : a.x - b.x);
        const now = state.at ? order.findIndex(each => each.mark === state.at.mark && each.i === state.at.i) : -1;
        show(order[(now + step + order.length) % order.length]);
        event.preventDefault();
      } else if (event.key === "Enter" && state.at && state.at.mark.pick) state.at.mark.pick(state.at.i);
      else if (event.key === "Escape") show(null);
      else if (event.key === "+") by(.6);
      else if (event.key === "-") by(1 / .6);
      else if (event.key === "0") zoom(null);
    });
    figure.querySelectorAll("[data-zoom]").forEach(button => {
      button.onclick = () => button.dataset.zoom === "reset" ? zoom(null, !state.everything && beyond() !== "") : by(button.dataset.zoom === "in" ? .6 : 1 / .6);
    });

    const legend = figure.querySelector(".legend");
    legend.replaceChildren();
    for (const item of spec.legend || []) {
      const button = document.createElement("button");
      button.type = "button"; button.setAttribute("aria-pressed", "true");
      const sample = node("svg", { width: 18, height: 12, "aria-hidden": "true", class: "sample" });
      swatch(item, sample);
      button.append(sample, item.text);
      button.onclick = () => {
        if (!state.off.delete(item.group)) state.off.add(item.group);
        button.setAttribute("aria-pressed", String(!state.off.has(item.group)));
        show(null); render();
      };
      legend.appendChild(button);
    }
    if (figure.watcher) figure.watcher.disconnect();
    let last = host.clientWidth;
    figure.watcher = new ResizeObserver(() => { if (host.clientWidth && host.clientWidth !== last) { last = host.clientWidth; render(); } });
    figure.watcher.observe(host);
    render();
  }

  function swatch(item, parent) {
    if (item.kind === "area") node("rect", { class: item.class, x: 0, y: 1, width: 18, height: 10 }, parent);
    else if (item.kind === "line") node("path", { class: item.class, d: "M0,6H18" }, parent);
    else if (item.kind === "diamond") node("path", { class: item.class, d: "M9,1l5,5l-5,5l-5,-5z" }, parent);
    else node("circle", { class: item.class, cx: 9, cy: 6, r: 4 }, parent);
  }

  return { draw };
})();
