"use strict";
// Numbers as text: the same functions as in numbers.py.
const Numbers = (() => {
  const DIGITS = 12, LEAST = 4, OF_SPREAD = 5;
  const known = value => value !== null && value !== undefined && Number.isFinite(value);
  const exponent = value => Number(value.toExponential().split("e")[1]);
  const minus = text => text.replace(/^-/, "−"), exponential = value => value.toExponential().replace("e+", "e");

  // A number of significant digits, or all digits before the point: for sizes.
  function short(value, digits = 3) {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e6 || size < 1e-4) return minus(exponential(Number(value.toPrecision(digits))));
    return minus(size >= 10 ** digits ? value.toFixed(0) : String(Number(value.toPrecision(digits))));
  }

  // As many digits as distinguish a value from others of its column, whose spread is given: for data.
  function distinct(value, spread = 0) {
    if (!known(value)) return "–";
    if (value === 0) return "0";
    const top = exponent(Math.abs(value)), wanted = spread > 0 ? top - exponent(spread) + OF_SPREAD : LEAST;
    const digits = Math.min(DIGITS, Math.max(LEAST, wanted));
    if (top < -4 || top >= DIGITS) return minus(exponential(Number(value.toPrecision(digits))));
    const text = value.toFixed(Math.max(0, digits - 1 - top));
    return minus(text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  }

  // Two significant digits of the half width, and as many decimal places of the value.
  function readable(value, half) {
    if (!known(value) || !known(half)) return distinct(value) + " (no interval)";
    if (half <= 0) return distinct(value) + " ± 0";
    const top = exponent(Math.max(Math.abs(value), half)), power = top < -5 || top > 8 ? top : 0;
    const places = 1 - exponent(half) + power, ending = power ? "e" + power : "";
    const fixed = number => minus(places >= 0 ? number.toFixed(places)
      : (Math.round(number / 10 ** -places) * 10 ** -places).toFixed(0));
    return fixed(value / 10 ** power) + ending + " ± " + fixed(half / 10 ** power) + ending;
  }

  const share = value => known(value) ? minus(value.toFixed(2)) : "–";
  return { known, short, distinct, readable, share, minus, exponential };
})();
