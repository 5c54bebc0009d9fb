// Draws the data of /api/cluster. Every text is written as text: nothing here parses HTML.

import { lineChart, timeline } from "./charts.js";
import { drawJournals } from "./journals.js";
import { UNKNOWN, clock, count, drawn, duration, fill, get, made, show, size } from "./tables.js";

const TIMEOUT_MS = 8000, RETRY_MS = 2000, SPAN_S = 120, JOURNALS_MS = 3000, TYPING_MS = 250;

// --- one cluster ------------------------------------------------------------------------------

function drawHead(data) {
  document.title = `${data.phase} · ${data.key}`;
  show(get("name"), data.key);
  const phase = get("phase");
  show(phase, data.phase);
  phase.className = `badge ${data.health}`;
  phase.hidden = false;
  show(get("updated"), `updated ${clock(data.time)}`);
  show(get("summary"), headline(data));
  const problems = get("problems"), key = JSON.stringify(data.problems);
  problems.hidden = !data.problems.length;
  if (drawn.get("problems") !== key) {
    drawn.set("problems", key);
    problems.replaceChildren(...data.problems.map((text) => made("li", {}, text)));
  }
}

function headline(data) {
  const voters = `${data.ready_voters} of ${data.voters} voters ready, ${data.quorum} needed`;
  const leading = data.members.find((member) => member.role === "leader");
  if (data.leader) return `${data.leader} leads in term ${data.term} · ${voters}`;
  if (leading) return `${leading.name} leads and accepts no writes · ${voters}`;
  return `No member leads: no writes are possible · ${voters}`;
}

function drawTotals(data) {
  const total = data.total, lag = Math.max(...data.members.map((one) => one.archive_lag ?? -1));
  const free = data.members.map((one) => one.disk).filter((bytes) => bytes !== null);
  const tiles = {
    "Writes per second": count(total.writes),
    "Median latency": duration(total.p50),
    "99th percentile": duration(total.p99),
    "Wait for the quorum": duration(total.quorum_wait),
    "Errors per second": count(total.errors),
    Connections: count(total.connections),
    "Least free disk": free.length ? size(Math.min(...free)) : UNKNOWN,
    "Archive behind": lag < 0 ? "none" : duration(lag),
    "Last audit": data.audits[0]?.verdict ?? "none",
  };
  const list = get("totals");
  if (!list.children.length) {
    for (const name of Object.keys(tiles)) {
      const tile = made("div", {});
      tile.append(made("dt", {}, name), made("dd", {}));
      list.append(tile);
    }
  }
  Object.values(tiles).forEach((text, i) => show(list.children[i].lastChild, text));
}

// A change that is shorter than the time between two observations is not measured.
const pause = (ms) => (ms === null ? "not measured" : `${count(ms)} ms`);

function drawCharts(data) {
  const column = (i) => data.points.map((point) => point[i]);
  const times = column(0), now = new Date(data.time).getTime();
  const marks = data.failovers.map((one) => (new Date(one.time).getTime() - now) / 1000);
  const span = Math.max(SPAN_S, Math.ceil(data.interval_s * SPAN_S));
  const common = { times, marks, span };
  const last = (i) => data.points.at(-1)[i];
  lineChart(get("chart-writes"), {
    ...common, series: [{ kind: "", values: column(1) }], show: count, least: 10,
    label: `Writes per second, now ${count(last(1))}`,
  });
  lineChart(get("chart-latency"), {
    ...common, show: duration, least: 0.001,
    series: [{ kind: "p50", values: column(2) }, { kind: "p99", values: column(3) }],
    label: `Write latency, now ${duration(last(2))} median, ${duration(last(3))} 99th percentile`,
  });
  lineChart(get("chart-lag"), {
    ...common, series: [{ kind: "", values: column(4) }], show: count, least: 10,
    label: `Lag of the slowest member, now ${count(last(4))} rows`,
  });
  const failovers = data.failovers.map((one) => ({
    at: new Date(one.time).getTime(), paused_ms: one.paused_ms,
    title: `${clock(one.time)}: ${one.leader} after ${one.before}, ${pause(one.paused_ms)}`,
  }));
  timeline(get("chart-failovers"), {
    failovers, now, clock, label: `${failovers.length} failovers, listed below`,
  });
}

function drawMembers(data) {
  const columns = [
    ["Member", "title"], ["Role", "role"], ["Lag", "number"], ["Term", "number"],
    ["Writes/s", "number"], ["p50", "number"], ["p99", "number"], ["Flush", "number"],
    ["Free disk", "number"], ["Connections", "number"], ["Address", ""],
  ];
  fill("members", columns, data.members.map((one) => [
    one.name,
    { text: one.answers ? one.role + (one.fenced ? ", fenced" : "") : "does not answer", kind: one.role },
    one.lag === "-" ? UNKNOWN : one.lag, one.term === "-" ? UNKNOWN : one.term,
    count(one.writes), duration(one.p50), duration(one.p99), duration(one.flush),
    size(one.disk), count(one.connections), one.location,
  ]));
}

function drawLists(data) {
  fill("failovers", [["Time", "time"], ["Change", "title"], ["Reason", "word"], ["Writes paused", "number"]],
    data.failovers.map((one) => [
      { text: clock(one.time), hint: one.time }, `${one.before || "no leader"} → ${one.leader}`,
      one.reason, pause(one.paused_ms),
    ]));
  const spaces = data.spaces?.largest ?? [];
  fill("spaces", [["Space", "title"], ["Id", "number"], ["Rows", "number"], ["Size", "number"], ["Waits for", "word"]],
    spaces.map((one) => [one.name, String(one.id), count(one.rows), size(one.bytes), one.is_sync ? "the quorum" : "the leader"]));
  const empty = get("spaces").parentElement.querySelector(".empty");
  show(empty, data.spaces ? "No space is created yet." : "Unknown: no member answers, or its version is too old.");
  empty.hidden = Boolean(spaces.length);
  const more = get("spaces-more"), rest = (data.spaces?.total ?? 0) - spaces.length;
  more.hidden = rest <= 0;
  show(more, `${rest} smaller spaces are not shown.`);
  fill("audits", [["Audit", "title"], ["Verdict", "word"], ["Up to index", "number"], ["Report", ""]],
    data.audits.map((one) => [
      { text: one.finished_at ? clock(one.finished_at) : one.name, hint: one.name },
      one.violations ? `${one.verdict}, ${count(one.violations)} violations` : one.verdict || "failed",
      count(one.index),
      one.has_page ? { text: "report", link: reportOf(data.key, one.name) } : one.report || UNKNOWN,
    ]));
  fill("events", [["Time", "time plain"], ["Reason", "plain word"], ["Object", "plain"], ["Message", "text"]],
    data.events.map((one) => [
      { text: clock(one.time), hint: one.time }, { text: one.reason, kind: one.type },
      one.object, one.message,
    ]));
}

const reportOf = (key, audit) => `report?${new URLSearchParams({ cluster: key, audit })}`;

function draw(data) {
  get("main").hidden = false;
  drawHead(data);
  drawTotals(data);
  drawCharts(data);
  drawMembers(data);
  drawLists(data);
}

function drawList(data) {
  get("list").hidden = false;
  show(get("summary"), data.clusters.length === 1 ? "1 cluster" : `${data.clusters.length} clusters`);
  show(get("updated"), `updated ${clock(Date.now())}`);
  fill("clusters", [["Cluster", "title"], ["Phase", ""], ["Leader", ""]], data.clusters.map((one) => [
    { text: one.key, link: `?${new URLSearchParams({ cluster: one.key })}` }, one.phase, one.leader || UNKNOWN,
  ]));
}

// --- updates ----------------------------------------------------------------------------------

let hint = "", answeredAt = 0, last = null, part = "", journalsAt = 0;

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  const isJson = answer.headers.get("Content-Type")?.startsWith("application/json");
  const body = isJson ? await answer.json() : { error: (await answer.text()).trim() };
  if (!answer.ok) throw new Refusal(body.error || `the server answered with HTTP ${answer.status}`);
  return body;
}

class Refusal extends Error {}

function complain(error) {
  const since = answeredAt ? ` Figures are those of ${clock(answeredAt)}.` : "";
  const text = error instanceof Refusal ? `${error.message}.`
    : `The page lost its connection and retries every ${RETRY_MS / 1000} s.${hint ? ` If it does not return, ${hint}.` : ""}`;
  const trouble = get("trouble");
  trouble.hidden = false;
  show(trouble, text + since);
  document.body.classList.add("stale");
}

async function update(cluster) {
  try {
    const chosen = cluster ?? (await only());
    const data = await ask(chosen === null ? "api/clusters"
      : `api/cluster?${new URLSearchParams({ cluster: chosen })}`);
    hint = data.hint;
    answeredAt = Date.now();
    get("trouble").hidden = true;
    document.body.classList.remove("stale");
    if (chosen === null) drawList(data);
    else {
      draw((last = data));
      await updateJournals(JOURNALS_MS);
    }
    return data.interval_s * 1000;
  } catch (error) {
    complain(error);
    return RETRY_MS;
  }
}

/** Ask for brokers and journals, unless the last answer is younger than `age` ms. */
async function updateJournals(age) {
  get("brokers-journals").hidden = !last?.has_brokers;
  if (!last?.has_brokers || Date.now() - journalsAt < age) return;
  journalsAt = Date.now();
  const wanted = part;
  const data = await ask(`api/journals?${new URLSearchParams({ cluster: last.key, part })}`);
  if (wanted === part) drawJournals(data, part);
}

let typing = 0;

get("journals-part").addEventListener("input", (event) => {
  part = event.target.value.trim();
  clearTimeout(typing);
  typing = setTimeout(() => updateJournals(0).catch(complain), TYPING_MS);
});

let single;

/** Return the key of the only cluster, or null if there are several or none. */
async function only() {
  if (single) return single;
  const found = (await ask("api/clusters")).clusters;
  return found.length === 1 ? (single = found[0].key) : null;
}

async function run() {
  const cluster = new URLSearchParams(location.search).get("cluster");
  get("all").hidden = cluster === null;
  for (;;) {
    const pause = document.hidden ? RETRY_MS : await update(cluster);
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

addEventListener("resize", () => last && drawCharts(last));
run();
