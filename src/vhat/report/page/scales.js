"use strict";
// The limits of the axes of a figure, and their tick marks.
const Scales = (() => {
  const { known, short, minus, exponential } = Numbers;
  // Values more than FENCE interquartile ranges beyond the quartiles are far. They are left out of the limits if there are
  // at least FEW values, and if the range with them is more than FLAT times the range without them.
  const FENCE = 6, FEW = 8, FLAT = 3;

  function ticks(low, high, wanted) {
    const raw = (high - low) / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map(k => k * power).find(k => k >= raw * .999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (String(step / power) === "2.5" ? 1 : 0));
    const big = Math.max(Math.abs(low), Math.abs(high));
    const digits = Math.min(Math.max(3, Math.ceil(Math.log10(big / step)) + 1), 17);  // so that neighbouring marks differ
    const text = big >= 1e6 || places > 5
      ? value => value === 0 ? "0" : minus(exponential(Number(value.toPrecision(digits))))
      : value => minus(value.toFixed(places)).replace(/^−(0(\.0*)?)$/, "$1");
    return found.map(value => [value, text(value)]);
  }

  function powers(low, high) {
    const found = [];
    for (let k = Math.ceil(low - 1e-9); k <= high + 1e-9; k++) found.push([k, short(10 ** k)]);
    if (found.length >= 4) return found;
    const steps = [];
    for (let k = Math.floor(low); k <= high; k++)
      for (const m of [1, 2, 5]) {
        const at = k + Math.log10(m);
        if (at >= low && at <= high) steps.push([at, short(m * 10 ** k)]);
      }
    return steps;
  }

  const LOOSE = { dots: true, bars: true };
  const quantile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];

  // The values without far ones: those far outside the quartiles that take up most of the range.
  function near(values) {
    if (values.length < FEW) return values;
    const sorted = values.slice().sort((a, b) => a - b);
    const [low, high] = [.25, .05].map(share => [quantile(sorted, share), quantile(sorted, 1 - share)]).find(([a, b]) => b > a) || [0, 0];
    const reach = FENCE * (high - low), kept = sorted.filter(value => value >= low - reach && value <= high + reach);
    const range = ends => ends[ends.length - 1] - ends[0];
    return reach > 0 && range(sorted) > FLAT * range(kept) ? kept : values;
  }

  function ends(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    if (!known(low)) [low, high] = [0, 1];
    if (low === high) { const size = Math.abs(low) || 1; low -= size / 2; high += size / 2; }
    const room = (high - low) * .04;
    return [low - room, high + room];
  }

  // The limits of an axis: those of all marks, or of all except far dots and bars.
  function extent(marks, axis, log, everything) {
    const firm = [], loose = [], names = axis === "x" ? ["x", "from", "to"] : ["y", "low", "high"];
    for (const mark of marks) {
      if (mark.free === true || mark.free === axis) continue;
      for (const name of names) for (const value of mark[name] || []) {
        const at = value !== null && log ? Math.log10(value) : value;
        if (known(at)) (LOOSE[mark.kind] ? loose : firm).push(at);
      }
    }
    return ends(firm.concat(everything ? loose : near(loose)));
  }

  return { ticks, powers, extent };
})();
