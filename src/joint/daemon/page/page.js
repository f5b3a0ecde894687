// The base of the page: elements, numbers, reading the admin port, the header, and the choice of a view.
// Texts from the cluster go into text nodes only, never into HTML.
import { views as tables } from "./views.js";
import { views as requests } from "./request.js";
import { askAll, baseOf, begin, isSeveral, unite } from "./several.js";

export function el(tag, props, ...inner) {
	const e = tag === "svg" || tag === "path" ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
	for (const [k, v] of Object.entries(props ?? {})) {
		if (v === undefined || v === null || v === false) continue;
		if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
		else e.setAttribute(k, v === true ? "" : v);
	}
	e.append(...inner.flat().filter((i) => i !== null && i !== undefined));
	return e;
}
const nice = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (n) => n >= 1e9 ? (n / 1e9).toFixed(1) + " G" : n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : n >= 1e4 ? (n / 1e3).toFixed(1) + " k" : nice.format(n ?? 0);
export const decimal = (n) => n >= 100 ? nice.format(n) : n >= 10 ? n.toFixed(1) : (n ?? 0).toFixed(2);
export const ms = (n) => n === null || n === undefined ? "" : n >= 10000 ? (n / 1000).toFixed(1) + " s" : n >= 100 ? n.toFixed(0) + " ms" : n >= 1 ? n.toFixed(1) + " ms" : n.toFixed(2) + " ms";
export const bytes = (n) => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(1) + " GiB" : n >= 2 ** 20 ? (n / 2 ** 20).toFixed(1) + " MiB" : n >= 1024 ? (n / 1024).toFixed(0) + " KiB" : (n ?? 0) + " B";
export const percent = (part, all) => all > 0 ? (100 * part / all).toFixed(part / all >= .1 ? 0 : 1) + " %" : "–";
export function meter(share, label) {
	const inner = el("span");
	inner.style.width = Math.min(100, 100 * Math.max(0, share)) + "%";
	return el("span", { class: "meter", role: "img", "aria-label": label }, inner);
}
/* A table that scrolls by itself on a narrow screen. Columns: {name, num, wide, sort}. */
export function table(caption, columns, rows, onsort, sorted) {
	const head = columns.map((c) => el("th", { scope: "col", class: [c.num && "num", c.wide && "wide"].filter(Boolean).join(" ") || null,
		"aria-sort": sorted?.name === c.name ? (sorted.down ? "descending" : "ascending") : null },
	c.sort && onsort ? el("button", { type: "button", onclick: () => onsort(c) }, c.name + (sorted?.name === c.name ? (sorted.down ? " ↓" : " ↑") : "")) : c.name));
	return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
		el("table", null, el("caption", null, caption), el("thead", null, el("tr", null, head)), el("tbody", null, rows)));
}
export const cell = (text, cls, title) => el("td", { class: cls, title }, text);

/* ---- who is signed in ---- */

let canSignIn = false;
async function whoami() {
	const r = await fetch("../whoami", { cache: "no-store" }).catch(() => null);
	if (!r?.ok) return;
	const who = await r.json(), box = document.getElementById("who");
	canSignIn = who.can_sign_in;
	box.hidden = !canSignIn;
	if (who.signed_in) box.replaceChildren(`${who.subject} (${who.roles.join(", ")}) `, el("button", { type: "button", onclick: async () => {
		await fetch("../logout", { method: "POST", headers: { "x-cgn-page": "1" } });
		location.reload();
	} }, "Sign out"));
	else box.replaceChildren(el("a", { href: "../login" }, "Sign in"));
}

/* ---- the admin port ---- */

async function reach(path, how, router) {
	let r;
	try {
		r = await fetch(baseOf(router) + path, { cache: "no-store", ...how });
	} catch {
		throw Object.assign(new Error("no answer from this address; trying again"), { lost: true });
	}
	if (r.status === 401 && canSignIn) location.assign("../login"); /* The session has ended. */
	if (!r.ok) throw await refusal(r);
	return r;
}
const read = async (path, router) => (await reach(path, null, router)).json();
export const get = async (path) => isSeveral ? unite(path, await askAll(path, (router) => read(path, router))) : read(path);
export async function refusal(r) {
	let text = r.statusText;
	try { text = (await r.json()).error.message; } catch { /* the status says what there is to say */ }
	return Object.assign(new Error(text), { status: r.status });
}
export const post = async (path, router) => (await reach(path, { method: "POST", headers: { "x-cgn-page": "1" } }, router)).json();
/* The samples of the Prometheus text, by name: [{labels, value}]. Of several routers each sample has the label router. */
export async function metrics(wanted) {
	const found = {}, text = async (router) => (await reach("metrics", null, router)).text();
	for (const { router, value } of isSeveral ? await askAll("metrics", text) : [{ value: await text() }])
		samples(value, wanted, router ? { router } : {}, found);
	return found;
}
function samples(text, wanted, more, found) {
	for (const line of text.split("\n")) {
		const name = /^[a-zA-Z_:][\w:]*/.exec(line)?.[0];
		if (!name || !wanted.includes(name)) continue;
		const labels = { ...more };
		const close = line.lastIndexOf("}");
		if (close > 0)
			for (const m of line.slice(name.length + 1, close).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
				labels[m[1]] = m[2].replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c);
		(found[name] ??= []).push({ labels, value: Number(line.slice(close > 0 ? close + 1 : name.length).trim().split(" ")[0]) });
	}
}
export function ask(title, text, verb) {
	const box = document.getElementById("ask");
	document.getElementById("ask-title").textContent = title;
	document.getElementById("ask-text").textContent = text;
	document.getElementById("ask-yes").textContent = verb;
	box.returnValue = "no";
	box.showModal();
	return new Promise((done) => box.addEventListener("close", () => done(box.returnValue === "yes"), { once: true }));
}

/* ---- the last hour ---- */

function line(values, most, cls) {
	const step = 100 / Math.max(1, values.length - 1);
	const d = values.map((v, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(27 - 26 * Math.min(1, v / (most || 1))).toFixed(1)}`).join("");
	return el("path", { d: d || "M0 27", class: cls });
}
export function chart(label, series) {
	const most = Math.max(1e-9, ...series.flat());
	return el("svg", { viewBox: "0 0 100 28", preserveAspectRatio: "none", role: "img", "aria-label": label },
		series.map((s, i) => line(s, most, i ? "spark two" : "spark")));
}
const last = (v) => v.length ? v[v.length - 1] : 0;
/* Two values; a unit of both stands once. */
const pair = (a, b) => (a.split(" ")[1] === b.split(" ")[1] ? a.split(" ")[0] : a) + " / " + b;
const tiles = [
	["Requests a second", (h) => decimal(last(h.requests_per_second)), (h) => [h.requests_per_second]],
	["Failed a second", (h) => decimal(last(h.failed_per_second)), (h) => [h.failed_per_second]],
	["First byte, p50, p95", (h) => pair(ms(last(h.ttft_p50_ms)), ms(last(h.ttft_p95_ms))), (h) => [h.ttft_p50_ms, h.ttft_p95_ms]],
	["Prompt from cache", (h) => percent(last(h.cached_tokens_per_second), last(h.prompt_tokens_per_second)),
		(h) => [h.cached_tokens_per_second.map((c, i) => h.prompt_tokens_per_second[i] > 0 ? c / h.prompt_tokens_per_second[i] : 0)]],
	["Tokens a second", (h) => decimal(last(h.completion_tokens_per_second)), (h) => [h.completion_tokens_per_second]],
	["At nodes, waiting", (h) => count(last(h.inflight)) + " / " + count(last(h.queued)), (h) => [h.inflight, h.queued]],
	["Power of the GPUs", (h) => last(h.watts) > 0 ? count(last(h.watts)) + " W" : "not reported", (h) => [h.watts]],
];
async function hour() {
	const h = await get("history");
	const box = document.getElementById("tiles");
	box.hidden = false;
	box.replaceChildren(...tiles.map(([name, value, series]) => el("div", { class: "tile" },
		el("h2", null, name), el("div", { class: "n" }, h.at_ms.length ? value(h) : "–"),
		chart(`${name}, the last ${Math.round(h.at_ms.length / 6)} minutes; now ${h.at_ms.length ? value(h) : "unknown"}`, series(h)))));
}

/* ---- views ---- */

const views = { ...tables, ...requests };
let current = null;

function choose() {
	const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
	const view = views[name] ?? views.nodes;
	current?.leave?.();
	const main = document.getElementById("main");
	const box = el("div");
	main.replaceChildren(box);
	current = { ...view, box, state: { arg: rest.join("/") }, due: 0, leave: view.leave && (() => view.leave(current?.state)) };
	document.getElementById("views").replaceChildren(...Object.entries(views).filter(([, v]) => v.title).map(([n, v]) =>
		el("a", { href: "#" + n, "aria-current": v === view || v === views[view.under] ? "page" : null }, v.title)));
	document.title = "Cognitora: " + (view.title ?? "request");
	view.open?.(current.box, current.state);
	void turn();
}
let busy = false, hourDue = 0;
export const again = () => { if (current) current.due = 0; void turn(); };
async function turn() {
	if (busy || document.hidden) return;
	busy = true;
	const mine = current, now = Date.now();
	try {
		if (now >= hourDue) {
			hourDue = now + 10000;
			await hour();
		}
		if (mine && now >= mine.due && mine.show) {
			const began = performance.now();
			await mine.show(mine.box, mine.state);
			/* A large cluster is asked less often: reading may take a tenth of the time. */
			mine.due = Date.now() + Math.max(mine.every ?? 2000, 10 * (performance.now() - began));
		}
		told("");
	} catch (e) {
		told(e.lost ? e.message : "");
		if (e.status) mine.fail ? mine.fail(mine.box, e) : mine.box.replaceChildren(el("p", { class: "bad" }, e.message));
		if (!e.status && !e.lost) reportError(e);
	}
	busy = false;
	if (mine !== current) void turn();
}
function told(text) {
	const link = document.getElementById("link");
	link.classList.toggle("lost", text !== "");
	if (link.textContent !== (text || "live")) link.textContent = text || "live";
}
addEventListener("keydown", (e) => {
	if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName)) return;
	const links = document.querySelectorAll("#views a");
	if (e.key >= "1" && e.key <= String(links.length)) links[Number(e.key) - 1].click();
	else if (e.key === "/") { e.preventDefault(); document.querySelector("main input[type=search]")?.focus(); }
});
addEventListener("hashchange", () => { choose(); document.getElementById("main").focus(); });
document.addEventListener("visibilitychange", () => void turn());
if (isSeveral) await begin(() => { hourDue = 0; choose(); }).catch((e) => told(e.message));
void whoami();
setInterval(turn, 500);
choose();
