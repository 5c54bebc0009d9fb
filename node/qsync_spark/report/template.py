"""The template of a report's page (Jinja).

Below 40rem, tables become one card for each row. In print the page is black on white, without the
colours of a dark screen, and no row is divided by a page break.
"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {{ name }}: {{ r.verdict }}</title>
<style>
:root{--ink:#111;--paper:#fff;--dim:#5b6470;--line:#d8dce2;--track:#eef1f5;color-scheme:light dark}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:54rem;
color:var(--ink);background:var(--paper)}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .4rem}
p{margin:.4rem 0}.dim{color:var(--dim);font-size:.9rem}a{color:inherit}
code{font-size:.85em;overflow-wrap:anywhere}
.banner{border-left:.5rem solid;padding:.6rem 1rem;border-radius:.3rem;background:var(--track)}
.banner strong{font-size:1.15rem}
.banner.Passed{border-color:#15803d}.banner.Violated{border-color:#b91c1c}
.banner.Incomplete{border-color:#b45309}
.badge{display:inline-block;padding:.05rem .6rem;border-radius:.4rem;color:#fff;font-weight:600;
font-size:.9rem;white-space:nowrap;text-decoration:none}
.badge.Passed{background:#15803d}.badge.Violated{background:#b91c1c}
.badge.Incomplete{background:#b45309}.badge.NotApplicable{background:#6b7280}
table{border-collapse:collapse;width:100%;font-size:.94rem}
td,th{text-align:left;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--line);
vertical-align:top}
th{font-weight:600;white-space:nowrap}td[data-label=finding],td[data-label=reason]{min-width:15rem}
td.n,th.n{text-align:right;padding-right:0;white-space:nowrap}
ol,ul{padding-left:1.3rem}li{margin:.25rem 0}
.chart{margin:.6rem 0}
.row,.axis{display:grid;grid-template-columns:8rem 1fr 11.5rem;gap:.6rem;align-items:center;
min-height:1.6rem;font-size:.92rem}
.row>:first-child{overflow:hidden;text-overflow:ellipsis}
.track{position:relative;height:1rem;background:var(--track);border-radius:.15rem;overflow:hidden}
.track i{position:absolute;top:0;bottom:0;min-width:2px}
.axis{min-height:1.4rem;color:var(--dim);font-size:.8rem}
.ticks{position:relative;height:1.2rem;border-top:1px solid var(--line)}
.ticks span{position:absolute;transform:translateX(-50%);white-space:nowrap;padding-top:.15rem}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.9rem;margin:.3rem 0}
.legend i{display:inline-block;width:.9rem;height:.9rem;border-radius:.15rem;margin-right:.4rem;
vertical-align:-.1rem}
@media (max-width:40rem){
.row{grid-template-columns:1fr auto;gap:.1rem .6rem;margin:.5rem 0}.row .track{grid-column:1/3;
grid-row:2}.axis{grid-template-columns:1fr}.axis>:first-child,.axis>:last-child{display:none}
.ticks span:nth-last-child(even){display:none}
.ticks span.first{transform:none}.ticks span.last{transform:translateX(-100%)}
table.cards thead{display:none}table.cards tr{display:block;border:1px solid var(--line);
border-radius:.4rem;padding:.4rem .7rem;margin:.6rem 0}
table.cards td{display:block;border:0;padding:.15rem 0;text-align:left;white-space:normal}
table.cards td::before{content:attr(data-label);display:block;font-size:.8rem;color:var(--dim)}
table.cards td:empty{display:none}table.cards td[data-label]{min-width:0}}
@media (prefers-color-scheme:dark){
:root{--ink:#eceff3;--paper:#12151a;--dim:#a2abb8;--line:#3a414c;--track:#222831}}
@media print{
:root{--ink:#000;--paper:#fff;--dim:#444;--line:#bbb;--track:#eee;color-scheme:light}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{max-width:none;padding:0;font-size:10.5pt}h2{break-after:avoid}
tr,.row,.chart,.banner,li{break-inside:avoid}a{text-decoration:none}}
</style></head><body>
<h1>Audit of {{ name }}</h1>
<div class="banner {{ r.verdict }}"><p><strong>{{ marks[r.verdict] }} {{ r.verdict }}.
{{ headline }}</strong></p>
{% for sentence in summary %}<p>{{ sentence }}</p>{% endfor %}</div>
<p class="dim">{{ when }} UTC, {{ "%.1f"|format(r.seconds) }} s {{ engine }} on
{{ r.hosts|join(", ") }}. Archive <code>{{ r.archive }}</code>.</p>
<h2>Next steps</h2>
<ol>{% for step in steps %}<li>{{ step }}</li>{% endfor %}</ol>
<h2>Proofs</h2>
<table class="cards"><thead><tr><th>no.</th><th>statement</th><th class="n">verdict</th></tr>
</thead><tbody>
{% for n, verdict in r.proofs.items() %}<tr><td data-label="proof">{{ n }}</td>
<td data-label="statement">{{ proofs[n] }}</td><td class="n" data-label="verdict">
{% if verdict == "Violated" %}<a class="badge Violated" href="#violations">{{ verdict }}</a>
{% elif verdict == "Incomplete" %}<a class="badge Incomplete" href="#unknown">{{ verdict }}</a>
{% else %}<span class="badge {{ verdict }}">{{ shown_verdict(verdict) }}</span>{% endif %}</td></tr>
{% endfor %}</tbody></table>
{% if r.violations %}<h2 id="violations">Violations: {{ number(r.violation_count) }}</h2>
{% if r.violation_count > shown %}<p class="dim">The first {{ shown }} are listed.
violations.parquet beside this page has more.</p>{% endif %}
<table class="cards"><thead><tr><th>proofs</th><th>finding</th><th>members</th><th>place</th></tr>
</thead><tbody>
{% for v in r.violations[:shown] %}<tr><td data-label="proofs">{{ v.proofs|join(", ") }}</td>
<td data-label="finding">{{ v.message }}</td>
<td data-label="members">{{ v.members|join(", ") }}</td>
<td data-label="place">{% if v.file %}<code>{{ v.file }}</code> at {{ v.offset }}{% endif %}</td>
</tr>{% endfor %}</tbody></table>{% endif %}
{% if r.gaps %}<h2 id="unknown">Parts that could not be judged: {{ r.gaps|length }}</h2>
<table class="cards"><thead><tr><th>proofs</th><th>reason</th><th>indexes</th><th>place</th></tr>
</thead><tbody>
{% for g in r.gaps[:shown] %}<tr><td data-label="proofs">{{ g.proofs|join(", ") }}</td>
<td data-label="reason">{{ g.message }}</td><td data-label="indexes">{% if g.last %}
{{ number(g.after + 1) }} to {{ number(g.last) }}{% endif %}</td>
<td data-label="place">{% if g.file %}<code>{{ g.file }}</code> at {{ g.offset }}{% endif %}</td>
</tr>{% endfor %}</tbody></table>{% endif %}
{% if r.notes %}<h2>Notes</h2><ul>{% for note in r.notes %}<li>{{ note }}</li>{% endfor %}</ul>
{% endif %}
{% for chart in charts %}<h2>{{ chart.title }}</h2><p class="dim">{{ chart.note }}</p>
<div class="chart">
{% if chart.legend %}<p class="legend">{% for colour, text in chart.legend %}<span><i
 style="background:{{ colour }}"></i>{{ text }}</span>{% endfor %}</p>{% endif %}
{% for row in chart.rows %}<div class="row"><span title="{{ row.name }}">{{ row.name }}</span>
<div class="track">{% for bar in row.bars %}<i title="{{ bar.title }}"
 style="left:{{ bar.left }}%;width:{{ bar.width }}%;background:{{ bar.colour }}"></i>{% endfor %}
</div><span>{{ row.text }}</span></div>{% endfor %}
{% if chart.ticks %}<div class="axis"><span>time (UTC)</span><div class="ticks">
{% for tick in chart.ticks %}<span class="{{ 'first' if tick.left < 8 else 'last' if tick.left > 92
 }}" style="left:{{ tick.left }}%">{{ tick.label }}</span>{% endfor %}</div><span></span></div>
{% endif %}</div>{% endfor %}
<h2>Counts</h2><table><tbody>{% for key, value in r.counts.items() %}<tr>
<td>{{ counts.get(key, key) }}</td><td class="n">{{ number(value) }}</td></tr>{% endfor %}
</tbody></table>
</body></html>
"""
