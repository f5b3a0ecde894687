// Views of the cluster: nodes, models, cache, tenants.
import { el, get, post, metrics, count, ms, bytes, percent, meter, table, cell, ask, again } from "./page.js";

/* ---- nodes ---- */

const total = (n) => (n.router_inflight ?? 0) + (n.others?.inflight ?? 0);
const nodeColumns = [
	{ name: "Node", sort: (n) => n.id }, { name: "State", sort: (n) => n.cordoned ? "cordoned" : n.state }, { name: "Role", wide: true },
	{ name: "Engine", wide: true }, { name: "At it", num: true, sort: total }, { name: "Waiting", num: true, sort: (n) => n.load?.waiting ?? 0 },
	{ name: "KV in use", sort: (n) => n.load?.kv_usage ?? 0 }, { name: "GPU, RAM, SSD blocks", num: true, wide: true, sort: (n) => n.cache.blocks },
	{ name: "GPU power", num: true, wide: true, sort: (n) => n.load?.gpu_power_mw ?? 0 }, { name: "Order" }];

function stateOf(n) {
	if (n.cordoned) return ["warn", total(n) > 0 ? `cordoned, ${total(n)} left` : "cordoned, empty"];
	if (n.state === "ready") return n.breaker.state === "closed" ? ["good", "ready"] : ["bad", n.breaker.text || n.breaker.state];
	return ["bad", n.state];
}
const words = (n) => [n.reason, ...(n.engines ?? []).map((e) => e.trouble && `${e.name}: ${e.trouble}`)].filter(Boolean).join("; ");

async function order(n, verb, question, button) {
	if (question && !await ask(`${button} ${n.id}?`, question, button)) return;
	try {
		await post(`nodes/${encodeURIComponent(n.id)}/${verb}`, n.router);
	} catch (e) {
		await ask("Not done", `${e.message} The same on a command line: cgn-ctl cluster ${verb} ${n.id}`, "Understood");
	}
	again();
}
function buttons(n) {
	if (n.cordoned)
		return el("button", { type: "button", onclick: () => order(n, "uncordon", null, "Uncordon") }, "Uncordon");
	const left = total(n);
	return el("button", { type: "button", onclick: () => order(n, "cordon",
		`It gets no new requests until it is uncordoned. ${left ? `Its ${left} running requests are finished; the list shows how many are left.` : "It has no requests now."}`, "Drain") }, "Drain");
}
function nodeCells(n) {
	const [cls, text] = stateOf(n), why = words(n), l = n.load ?? {};
	return [el("td", null, el("strong", null, n.id), el("div", { class: "soft small" }, n.address, n.router && `, by router ${n.router}`)),
		el("td", { class: "wrap" }, el("span", { class: cls }, text), why && el("div", { class: "small soft" }, why)),
		cell(n.role, "wide"),
		el("td", { class: "wide wrap" }, (n.engines ?? []).map((e) => el("div", { class: "small" }, `${e.kind} ${e.name}: ${(e.models ?? []).join(", ")}${e.swap ? ` (${e.swap.state})` : ""}`))),
		cell(count(total(n)), "num", `${n.router_inflight} from this router`), cell(count(l.waiting ?? 0), "num"),
		el("td", null, meter(l.kv_usage ?? 0, percent(l.kv_usage ?? 0, 1) + " of the KV cache is in use"), " ", percent(l.kv_usage ?? 0, 1)),
		cell([n.cache.gpu, n.cache.ram, n.cache.ssd].map(count).join(" · "), "num wide", `${n.cache.source}, ${n.cache.state}`),
		cell(l.gpus ? `${count((l.gpu_power_mw ?? 0) / 1000)} of ${count((l.gpu_power_limit_mw ?? 0) / 1000)} W` : "–", "num wide"),
		el("td", null, buttons(n))];
}
/* Rows are kept and only changed ones are built again, so that a thousand nodes do not cost a frame. */
function nodesShow(box, s, all) {
	const find = s.find.value.toLowerCase();
	const list = all.nodes.filter((n) => !find || JSON.stringify([n.id, n.address, n.state, n.role, n.engines, n.router]).toLowerCase().includes(find));
	const by = s.sorted && nodeColumns.find((c) => c.name === s.sorted.name);
	if (by) list.sort((a, b) => { const x = by.sort(a), y = by.sort(b); return (x < y ? -1 : x > y ? 1 : 0) * (s.sorted.down ? -1 : 1); });
	const rows = list.slice(0, s.most).map((n) => {
		const text = JSON.stringify([n.id, n.address, n.state, n.reason, n.cordoned, n.breaker.state, total(n), n.load?.waiting, n.load?.kv_usage, n.cache.blocks, n.load?.gpu_power_mw, n.engines]);
		const key = JSON.stringify([n.router, n.id]);
		let row = s.rows.get(key);
		if (!row || row.text !== text) {
			const held = row?.e.contains(document.activeElement);
			const cells = nodeCells(n);
			if (row) row.e.replaceChildren(...cells);
			else row = { e: el("tr", null, cells) };
			if (held) row.e.querySelector("button")?.focus();
			row.text = text;
			s.rows.set(key, row);
		}
		return row.e;
	});
	const caption = `${count(list.length)} nodes${list.length > s.most ? `, the first ${s.most} of them` : ""}; ${all.nodes.filter((n) => n.state === "ready" && !n.cordoned).length} of ${all.nodes.length} take requests`;
	const body = s.body?.querySelector("tbody");
	const head = JSON.stringify(s.sorted ?? null);
	if (body && s.head === head) {
		s.body.querySelector("caption").textContent = caption;
		const same = body.children.length === rows.length && rows.every((r, i) => body.children[i] === r);
		if (!same) body.replaceChildren(...rows);
	} else {
		s.head = head;
		s.body = table(caption, nodeColumns, rows, (c) => {
			s.sorted = { name: c.name, down: s.sorted?.name === c.name ? !s.sorted.down : c.num === true };
			nodesShow(box, s, s.all);
		}, s.sorted);
		s.place.replaceChildren(s.body);
	}
	document.getElementById("cluster").textContent = `${all.cluster}, policy ${all.policy}${all.state_connected ? "" : ", state backend unreachable"}${all.state_stale ? ", membership from disk" : ""}`;
}
const nodes = {
	title: "Nodes", every: 2000,
	open(box, s) {
		s.rows = new Map();
		s.most = 2000;
		s.find = el("input", { type: "search", placeholder: "id, state, model", "aria-label": "Find nodes", oninput: () => s.all && nodesShow(box, s, s.all) });
		s.place = el("div");
		box.append(el("h1", null, "Nodes"), el("div", { class: "tools" }, s.find), s.place);
	},
	async show(box, s) {
		s.all = await get("nodes");
		nodesShow(box, s, s.all);
	},
};

/* ---- models ---- */

const models = {
	title: "Models", every: 3000,
	async show(box) {
		const [m, q] = await Promise.all([get("models"), get("queue")]);
		box.replaceChildren(el("h1", null, "Models"),
			table(`${m.models.length} models`, [{ name: "Model" }, { name: "Nodes ready", num: true }, { name: "Prompts are cut by" }, { name: "Block", num: true }, { name: "Why", wide: true }],
				m.models.map((k) => el("tr", null, el("td", { class: "wrap" }, k.name, k.router && el("div", { class: "soft small" }, `router ${k.router}`)), cell(String(k.ready_nodes), "num" + (k.ready_nodes ? "" : " bad")),
					cell(k.tokens), cell(k.block_tokens ? `${k.block_tokens} tokens` : `${k.block_bytes} bytes`, "num"), cell(k.why, "wide wrap")))),
			el("h2", null, "Waiting for room"),
			q.queues.length ? el("pre", { class: "card mono", tabindex: "0" }, JSON.stringify(q.queues, null, 1)) : el("p", { class: "soft" }, `Nobody waits. At most ${q.max_queue} requests of a model may.`));
	},
};

/* ---- cache ---- */

const sum = (list, want) => (list ?? []).filter((s) => Object.entries(want).every(([k, v]) => s.labels[k] === v)).reduce((a, s) => a + s.value, 0);

/* "−38 % (−46 to −30 %)". */
function measured(m, policy) {
	const at = (end) => (m.cgn_shadow_measured_ratio ?? []).find((s) => s.labels.policy === policy && s.labels.figure === "ttft" && s.labels.end === end)?.value;
	const share = (v) => `${v > 0 ? "+" : ""}${Math.round(100 * v)}`;
	if (at("middle") === undefined) return "not measured";
	return Number.isFinite(at("low")) ? `${share(at("middle"))} % (${share(at("low"))} to ${share(at("high"))} %)` : "too few";
}
function shadows(m) {
	const names = [...new Set((m.cgn_shadow_decisions_total ?? []).map((s) => s.labels.policy))];
	if (!names.length)
		return el("p", { class: "soft" }, "No other policy is compared. Set router.shadow to see what others would have chosen, and router.shadow_share to measure what they bring.");
	return table("What other policies would have chosen", [{ name: "Policy" }, { name: "Decisions", num: true }, { name: "Same node", num: true }, { name: "Measured TTFT, to ours", num: true }, { name: "Requests", num: true }, { name: "Believed cheaper, dearer", num: true, wide: true }, { name: "Cached tokens: it, ours", num: true, wide: true }],
		names.map((p) => {
			const yes = sum(m.cgn_shadow_decisions_total, { policy: p, agree: "yes" }), no = sum(m.cgn_shadow_decisions_total, { policy: p, agree: "no" });
			const believed = (c) => ms(1e3 * sum(m.cgn_shadow_believed_seconds_sum, { policy: p, cheaper: c }));
			const n = sum(m.cgn_shadow_measured_requests, { policy: p, figure: "ttft" });
			return el("tr", null, cell(p), cell(count(yes + no), "num"), cell(percent(yes, yes + no), "num"), cell(measured(m, p), "num"), cell(count(n), "num"), cell(`${believed("shadow")}, ${believed("chosen")}`, "num wide"),
				cell([["shadow"], ["chosen"]].map(([of]) => count(sum(m.cgn_shadow_cached_tokens_total, { policy: p, of }))).join(" · "), "num wide"));
		}));
}
const cache = {
	title: "Cache", every: 4000,
	async show(box) {
		const [n, m, i] = await Promise.all([get("nodes"), metrics(["cgn_cached_tokens_total", "cgn_tokens_total", "cgn_shadow_decisions_total", "cgn_shadow_believed_seconds_sum", "cgn_shadow_measured_ratio", "cgn_shadow_measured_requests", "cgn_shadow_cached_tokens_total"]), get("index")]);
		const predicted = sum(m.cgn_cached_tokens_total, { kind: "predicted" }), actual = sum(m.cgn_cached_tokens_total, { kind: "actual" }), prompt = sum(m.cgn_tokens_total, { kind: "prompt" });
		const of = (k, kind) => sum(m.cgn_cached_tokens_total, { node: k.id, kind, ...(k.router ? { router: k.router } : {}) });
		box.replaceChildren(el("h1", null, "Cache"),
			el("p", { class: "card" }, `Since the router started, engines found ${count(actual)} of ${count(prompt)} prompt tokens in their caches (${percent(actual, prompt)}); the router had predicted ${count(predicted)}. `,
				`The index holds ${count(i.blocks)} blocks in ${bytes(i.bytes)} of ${bytes(i.budget_bytes)}; ${count(i.shed_blocks)} were dropped for room. The record of sent prompts holds ${count(i.record.blocks)}.`),
			table("What each node holds", [{ name: "Node" }, { name: "Known from" }, { name: "GPU", num: true }, { name: "RAM", num: true }, { name: "SSD", num: true }, { name: "Elsewhere", num: true, wide: true }, { name: "Behind", num: true, wide: true }, { name: "Trust", num: true, wide: true }, { name: "Cached tokens: predicted, actual", num: true }, { name: "Block store", wide: true }],
				n.nodes.slice(0, 500).map((k) => el("tr", null, cell(k.router ? `${k.id}, router ${k.router}` : k.id), cell(`${k.cache.source}, ${k.cache.state}`), cell(count(k.cache.gpu), "num"), cell(count(k.cache.ram), "num"), cell(count(k.cache.ssd), "num"), cell(count(k.cache.remote), "num wide"),
					cell(ms(1e3 * k.cache.staleness_seconds), "num wide"), cell(k.cache.trust.toFixed(2), "num wide"), cell(`${count(of(k, "predicted"))} · ${count(of(k, "actual"))}`, "num"),
					cell(k.kv ? k.kv.quic_address + (k.kv.rack ? `, rack ${k.kv.rack}` : "") : "none", "wide")))),
			el("h2", null, "Other policies"), shadows(m));
	},
};

/* ---- tenants ---- */

const tenants = {
	title: "Tenants", every: 4000,
	async show(box) {
		const m = await metrics(["cgn_tenant_requests_total", "cgn_tenant_tokens_total", "cgn_rate_limited_total", "cgn_rejected_total"]);
		const names = [...new Set((m.cgn_tenant_requests_total ?? []).map((s) => s.labels.tenant))].sort((a, b) => sum(m.cgn_tenant_requests_total, { tenant: b }) - sum(m.cgn_tenant_requests_total, { tenant: a }));
		box.replaceChildren(el("h1", null, "Tenants"),
			names.length ? table("Use since the router started", [{ name: "Tenant" }, { name: "Requests", num: true }, { name: "Prompt tokens", num: true }, { name: "From cache", num: true }, { name: "Answer tokens", num: true }],
				names.slice(0, 500).map((t) => {
					const k = (kind) => sum(m.cgn_tenant_tokens_total, { tenant: t, kind });
					return el("tr", null, cell(t === "-" ? "without a key" : t), cell(count(sum(m.cgn_tenant_requests_total, { tenant: t })), "num"), cell(count(k("prompt")), "num"), cell(`${count(k("cached"))} (${percent(k("cached"), k("prompt"))})`, "num"), cell(count(k("completion")), "num"));
				})) : el("p", { class: "soft" }, "No request yet."),
			el("h2", null, "Refused"),
			table("Requests that were refused", [{ name: "Why" }, { name: "Requests", num: true }],
				[...(m.cgn_rejected_total ?? []).map((s) => [s.labels.reason, s.value]), ...(m.cgn_rate_limited_total ?? []).map((s) => ["rate limit: " + s.labels.kind, s.value])]
					.filter(([, v]) => v > 0).map(([why, v]) => el("tr", null, cell(why), cell(count(v), "num")))));
	},
};

export const views = { nodes, models, cache, tenants };
