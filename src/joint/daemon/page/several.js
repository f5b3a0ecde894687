// Several routers: cgn-metrics serves the page with the mark data-routers, and relays ../routers/NAME/PATH to the router NAME.
// What the views ask for is asked of each router and put together; a router that is away delays it by a moment only.
import { el } from "./page.js";

export const isSeveral = "routers" in document.documentElement.dataset;
let names = [], chosen = "", told = "";
const away = new Map(), pending = new Map();
export const baseOf = (router) => router ? `../routers/${encodeURIComponent(router)}/` : "../";

function tell() {
	const text = JSON.stringify([names, chosen, [...away]]);
	if (text === told) return;
	told = text;
	const list = document.getElementById("router-list"), note = document.getElementById("away");
	list.replaceChildren(el("option", { value: "" }, "all"), ...names.map((n) => el("option", { value: n }, away.has(n) ? `${n} (away)` : n)));
	list.value = chosen;
	note.replaceChildren(...[...away].map(([n, why]) => el("span", null, `Router ${n} is away: ${why}. `)));
}
/* Ask one router. The answer of one that was away before is waited for but shortly; it counts once it is there. */
function askOne(name, path, ask) {
	const key = name + " " + path;
	let answer = pending.get(key);
	if (!answer) {
		answer = ask(name).then((v) => { away.delete(name); return v; }, (e) => { if (!(e.status < 500)) away.set(name, e.message); throw e; }).finally(() => pending.delete(key));
		answer.catch(() => {});
		pending.set(key, answer);
	}
	const late = new Promise((_, no) => setTimeout(() => no(Object.assign(new Error("no answer yet"), { late: true })), away.has(name) ? 200 : 1000));
	return Promise.race([answer, late]).catch((e) => { if (e.late && !away.has(name)) away.set(name, e.message); throw e; });
}
/* Ask the chosen router, or all: [{router, value}] of those that answered. */
export async function askAll(path, ask) {
	const of = chosen ? [chosen] : names;
	if (!of.length) throw Object.assign(new Error("No router is named: set metrics.routers in cgn-metrics' configuration."), { status: 404 });
	const all = await Promise.allSettled(of.map((n) => askOne(n, path, ask)));
	tell();
	const good = all.map((a, i) => ({ router: of[i], value: a.value })).filter((_, i) => all[i].status === "fulfilled");
	if (!good.length) throw (all.find((a) => a.reason.status < 500) ?? all[0]).reason;
	return good;
}

const rows = (all, key) => all.flatMap(({ router, value }) => value[key].map((r) => ({ ...r, router })));
const one = (all, key) => [...new Set(all.map(({ value }) => value[key]))].join(", ");
const sum = (all, of) => all.reduce((a, { value }) => a + of(value), 0);
/* Series end now, but begin with their router. Times to the first byte are those of the slowest router; the others add up, but
   for what each router tells of the same nodes. */
function history(all) {
	const longest = all.reduce((a, { value }) => value.at_ms.length > a.at_ms.length ? value : a, all[0].value);
	const worst = /_ms$|^watts$|^ready_nodes$/, out = { ...longest };
	for (const k of Object.keys(longest))
		if (Array.isArray(longest[k]) && k !== "at_ms")
			out[k] = longest[k].map((_, i) => {
				const each = all.map(({ value: v }) => v[k][v[k].length - longest.at_ms.length + i] ?? 0);
				return worst.test(k) ? Math.max(...each) : each.reduce((a, b) => a + b, 0);
			});
	return out;
}
const unions = {
	nodes: (all) => ({ cluster: one(all, "cluster"), policy: one(all, "policy"), state_connected: all.every((a) => a.value.state_connected), state_stale: all.some((a) => a.value.state_stale), nodes: rows(all, "nodes") }),
	models: (all) => ({ models: rows(all, "models") }),
	queue: (all) => ({ max_queue: Math.max(...all.map((a) => a.value.max_queue)), queues: rows(all, "queues") }),
	index: (all) => ({ ...Object.fromEntries(["blocks", "bytes", "budget_bytes", "shed_blocks"].map((k) => [k, sum(all, (v) => v[k])])), record: { blocks: sum(all, (v) => v.record.blocks) } }),
	history,
	explain: (all) => ({ record: { decisions: sum(all, (v) => v.record?.decisions ?? 0) }, requests: rows(all, "requests").sort((a, b) => a.at < b.at ? 1 : -1).slice(0, 100) }),
};
export const unite = (path, all) => unions[/^\w+/.exec(path)[0]](all);

/* Show the switch, with the routers of cgn-metrics; |changed| is called when another one is chosen. */
export async function begin(changed) {
	names = (await (await fetch("../routers", { cache: "no-store" })).json()).routers.map((r) => r.name);
	const asked = new URLSearchParams(location.search).get("router");
	chosen = names.includes(asked) ? asked : "";
	const box = document.getElementById("routers");
	box.hidden = false;
	box.replaceChildren(el("label", null, "Router ", el("select", { id: "router-list", onchange: (e) => {
		chosen = e.target.value;
		globalThis.history.replaceState(null, "", (chosen ? "?router=" + encodeURIComponent(chosen) : location.pathname) + location.hash);
		changed();
	} })));
	tell();
}
