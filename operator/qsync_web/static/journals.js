// Draws the data of /api/journals: brokers, and the journals whose names contain a text.

import { UNKNOWN, count, fill, get, show, size } from "./tables.js";

const KINDS = { ready: "follower", "hands over": "", "no lease": "down", "does not answer": "down" };
const COUNTS = [
  ["without_primary", "without a primary"],
  ["under_replicated", "with too few brokers"],
  ["unsynchronised", "not synchronised"],
  ["failing_stores", "with a failing store"],
  ["suspended", "suspended"],
];

function summary(data) {
  if (data.brokers.every((one) => one.assignments === null)) return "No broker answers.";
  const counts = data.counts, all = counts.journals ?? 0;
  const found = COUNTS.filter(([name]) => counts[name]);
  const parts = found.map(([name, text]) => `${count(counts[name])} ${text}`);
  return [`${count(all)} ${all === 1 ? "journal" : "journals"}`, ...parts].join(" · ");
}

function stored(one) {
  if (one.has_store === null) return UNKNOWN;
  if (!one.has_store) return "no store";
  return one.lag === null ? UNKNOWN : size(one.lag);
}

export function drawJournals(data, part) {
  fill("brokers", [
    ["Broker", "title"], ["State", "role"], ["Zone", ""], ["Journals", "number"],
    ["Primary of", "number"], ["On disk", "number"], ["Not uploaded", "number"], ["Address", ""],
  ], data.brokers.map((one) => [
    one.name, { text: one.state, kind: KINDS[one.state] ?? "" }, one.zone || UNKNOWN,
    count(one.assignments), count(one.primaries), size(one.bytes), count(one.unpersisted),
    one.address || UNKNOWN,
  ]));
  show(get("journals-counts"), summary(data));
  fill("journals", [
    ["Journal", "title"], ["State", "state"], ["Primary", "word"], ["Brokers", "number"],
    ["Head", "number"], ["Size", "number"], ["Fragments", "number"], ["Not in store", "number"],
  ], data.journals.map((one) => [
    one.name,
    { text: one.message ? `${one.state}: ${one.message}` : one.state, kind: one.is_failing ? "broken" : "" },
    one.primary || "none",
    { text: `${one.brokers.length} of ${one.replication ?? UNKNOWN}`, hint: one.brokers.join(", ") },
    count(one.head), size(one.bytes), count(one.fragments), stored(one),
  ]));
  const empty = get("journals").parentElement.querySelector(".empty");
  empty.hidden = Boolean(data.journals.length);
  show(empty, part ? `No journal has a name that contains “${part}”.` : "No journal is known.");
  const rest = data.total - data.journals.length;
  const more = rest > 0 ? `${count(rest)} more journals are not shown: enter a part of their names. ` : "";
  show(get("journals-more"), `${more}${data.note}`.trim());
}
