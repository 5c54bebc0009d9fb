// Values as text, and tables. Every text is written as text: nothing here parses HTML.

export const get = (id) => document.getElementById(id);
export const UNKNOWN = "–";

// --- values as text ---------------------------------------------------------------------------

export const count = (value) => (value === null || value === undefined ? UNKNOWN
  : value.toLocaleString("en", { maximumFractionDigits: value && value < 10 ? 1 : 0 }));

export function duration(seconds) {
  if (seconds === null) return UNKNOWN;
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  const ms = seconds * 1000;
  return ms >= 9.95 || ms === 0 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

export function size(bytes) {
  if (bytes === null) return UNKNOWN;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (bytes < 1024) return `${bytes >= 10 || unit === "B" ? bytes.toFixed(0) : bytes.toFixed(1)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(1)} TiB`;
}

/** Return a time as this machine's clock shows it, with the day if it is not today. */
export function clock(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  const text = date.toLocaleTimeString("en-GB");
  if (date.toDateString() === new Date().toDateString()) return text;
  return `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${text}`;
}

// --- tables -----------------------------------------------------------------------------------

export function made(tag, attributes, text) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

export function show(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const drawn = new Map();

/**
 * Fill a table, if its content changed; cells are changed in place, so that a selection survives.
 *
 * columns: [[title, classes]]. rows: lists of texts, or of {text, kind, link, hint}.
 */
export function fill(id, columns, rows) {
  const table = get(id), key = JSON.stringify(rows);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  const empty = table.parentElement.querySelector(".empty");
  table.hidden = !rows.length;
  if (empty) empty.hidden = Boolean(rows.length);
  if (!table.tHead) {
    table.setAttribute("role", "table"); // small screens lay tables out as blocks
    const head = table.createTHead().insertRow();
    head.setAttribute("role", "row");
    for (const [title, kind] of columns) {
      head.append(made("th", { scope: "col", role: "columnheader", class: kind }, title));
    }
    table.createTBody();
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, i) => {
    const row = body.rows[i] ?? body.insertRow();
    row.setAttribute("role", "row");
    cells.forEach((given, j) => {
      const cell = typeof given === "string" ? { text: given } : given;
      const place = row.cells[j] ?? row.insertCell();
      place.setAttribute("role", "cell");
      place.setAttribute("data-label", columns[j][0]);
      place.className = `${columns[j][1]} ${cell.kind ?? ""}`.trim();
      place.title = cell.hint ?? "";
      const link = place.querySelector("a");
      if (!cell.link) {
        link?.remove();
        show(place, cell.text);
      } else if (!link || link.getAttribute("href") !== cell.link) {
        place.replaceChildren(made("a", { href: cell.link }, cell.text));
      } else {
        show(link, cell.text);
      }
    });
  });
}
