// Charts as SVG, drawn in pixels of the page, so that labels keep their size on a phone.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 118, TOP = 8, BOTTOM = 20, LEFT = 52, RIGHT = 8;

function shape(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function canvas(figure, height, label) {
  figure.querySelector("svg")?.remove();
  const style = getComputedStyle(figure);
  const width = figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const svg = shape(figure, "svg", {
    viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label,
  });
  return [svg, width];
}

/** Return a round number that is at least `value`: 1, 2 or 5 times a power of ten. */
export function roundedUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((limit) => limit >= value * 0.9999);
}

/**
 * Draw values over time.
 *
 * times: seconds from now, not positive. series: [{kind, values}], with null for unknown values.
 * show: turns a value into its label. marks: seconds from now of vertical lines.
 */
export function lineChart(figure, { times, series, show, marks, label, span, least }) {
  const [svg, width] = canvas(figure, HEIGHT, label);
  const known = series.flatMap((one) => one.values).filter((value) => value !== null);
  const top = roundedUp(Math.max(least, ...known));
  const x = (time) => LEFT + ((time + span) / span) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  for (const value of [0, top / 2, top]) {
    shape(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) });
    shape(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, show(value));
  }
  shape(svg, "text", { x: LEFT, y: HEIGHT - 5 }, `${span} s ago`);
  shape(svg, "text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, "now");
  for (const mark of marks) {
    if (mark >= -span && mark <= 0) {
      const line = { class: "mark", x1: x(mark), x2: x(mark), y1: TOP, y2: HEIGHT - BOTTOM };
      shape(shape(svg, "line", line), "title", {}, "failover");
    }
  }
  for (const { kind, values } of series) {
    let path = "", isDrawing = false;
    values.forEach((value, i) => {
      const isShown = value !== null && times[i] >= -span;
      if (isShown) path += `${isDrawing ? "L" : "M"}${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`;
      if (isShown && !isDrawing) path += "h0.1"; // a value alone is a dot
      isDrawing = isShown;
    });
    shape(svg, "path", { class: `curve ${kind}`, d: path, "stroke-linecap": "round" });
  }
}

/**
 * Draw failovers on an axis of time; the height of each is the pause of writes, logarithmic.
 *
 * failovers: [{at, paused_ms, title}], with `at` in milliseconds since 1970.
 */
export function timeline(figure, { failovers, now, clock, label }) {
  figure.hidden = !failovers.length;
  if (!failovers.length) return;
  const height = 96, floor = 1, [svg, width] = canvas(figure, height, label);
  const start = Math.min(now - 600e3, ...failovers.map((one) => one.at));
  const most = Math.max(1000, ...failovers.map((one) => one.paused_ms));
  const x = (at) => LEFT + ((at - start) / (now - start)) * (width - LEFT - RIGHT - 6);
  const y = (ms) => {
    const share = Math.log10(Math.max(ms, floor) / floor) / Math.log10(most / floor);
    return TOP + (1 - share) * (height - TOP - BOTTOM);
  };
  for (const [ms, text] of [[1, "1 ms"], [100, "100 ms"], [10000, "10 s"]]) {
    if (ms > most) continue;
    shape(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(ms), y2: y(ms) });
    shape(svg, "text", { x: LEFT - 6, y: y(ms) + 4, "text-anchor": "end" }, text);
  }
  shape(svg, "text", { x: LEFT, y: height - 5 }, clock(start));
  shape(svg, "text", { x: width - RIGHT, y: height - 5, "text-anchor": "end" }, "now");
  for (const { at, paused_ms, title } of failovers) {
    const group = shape(svg, "g", {});
    shape(group, "title", {}, title);
    shape(group, "line", { class: "stem", x1: x(at), x2: x(at), y1: y(floor), y2: y(paused_ms) });
    shape(group, "circle", { class: "dot", cx: x(at), cy: y(paused_ms), r: 4.5 });
  }
}
