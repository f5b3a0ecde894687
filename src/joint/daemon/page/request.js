// Views of requests: the stream, one request, the playground.
import { el, get, refusal, count, decimal, ms, percent, table, cell, again } from "./page.js";
import { baseOf } from "./several.js";

const phases = [["receive", "receiving the body, checking the key, asking a hook"], ["choose", "choosing a node"], ["limit", "reserving rates"], ["tokens", "tokenizing the prompt"], ["queue", "waiting for room on a node"],
	["prefill", "another node computed the prompt"], ["first_byte", "at the node, until the first byte: its queue, fetch and prefill"], ["stream", "decoding and sending the answer"]];
const shown = (end) => phases.map(([k], i) => [k, end.phases_ms[k] ?? 0, i]).filter(([, v]) => v > 0);
function bar(end) {
	const all = shown(end).reduce((a, [, v]) => a + v, 0);
	const e = el("div", { class: "phases", role: "img", "aria-label": shown(end).map(([k, v]) => `${k.replace("_", " ")} ${ms(v)}`).join(", ") });
	for (const [k, v, i] of shown(end)) {
		const part = el("span", { class: "p" + i, title: `${k.replace("_", " ")} ${ms(v)}` });
		part.style.flexGrow = String(v / all);
		e.append(part);
	}
	return e;
}
const link = (id) => el("a", { href: "#request/" + encodeURIComponent(id), class: "mono" }, id.length > 18 ? id.slice(0, 17) + "…" : id);
const nodeOf = (r) => r.end?.node || r.tries.at(-1)?.node || "";

/* ---- the stream ---- */

function row(r) {
	const e = r.end, c = r.cached_tokens;
	return el("tr", null, cell(new Date(r.at).toLocaleTimeString([], { hour12: false }), "wide"), el("td", null, link(r.id)), cell(r.model, "wide"), cell(nodeOf(r) + (r.router ? `, by ${r.router}` : "")),
		e ? cell(String(e.status) + (e.outcome === "ok" ? "" : " " + e.outcome), e.status < 400 ? "good" : e.status < 500 ? "warn" : "bad") : cell("running", "soft"),
		cell(ms(r.ttft_ms.actual), "num"), cell(e ? ms(e.total_ms) : "", "num"), el("td", null, e ? bar(e) : ""),
		cell(e?.prompt_tokens !== undefined ? `${c.actual ?? "?"} of ${e.prompt_tokens}` : "", "num wide"), cell(c.predicted !== undefined ? String(c.predicted) : "", "num wide"), cell(e?.completion_tokens !== undefined ? String(e.completion_tokens) : "", "num wide"));
}
const stream = {
	title: "Requests", every: 1000,
	open(box, s) {
		s.find = el("input", { type: "search", placeholder: "id, model, node, status", "aria-label": "Find requests" });
		s.pause = el("input", { type: "checkbox" });
		s.place = el("div");
		box.append(el("h1", null, "Requests"), el("div", { class: "tools" }, s.find, el("label", null, s.pause, "Pause")), s.place);
	},
	async show(box, s) {
		if (s.pause.checked || s.place.contains(document.activeElement)) return;
		const all = await get("explain?last=100&detail=brief");
		const find = s.find.value.toLowerCase();
		const list = all.requests.filter((r) => !find || [r.id, r.model, nodeOf(r), r.end?.status, r.end?.outcome].join(" ").toLowerCase().includes(find)).slice(0, 60);
		s.place.replaceChildren(table(`The newest requests; ${count(all.record.decisions)} decisions since the router started`,
			[{ name: "At", wide: true }, { name: "Request" }, { name: "Model", wide: true }, { name: "Node" }, { name: "Answer" }, { name: "First byte", num: true }, { name: "Total", num: true }, { name: "Where the time went" }, { name: "Cached tokens", num: true, wide: true }, { name: "Predicted", num: true, wide: true }, { name: "Answer tokens", num: true, wide: true }],
			list.map(row)));
	},
	fail(box, e) {
		box.replaceChildren(el("h1", null, "Requests"), el("p", { class: "soft" }, e.message));
	},
};

/* ---- one request ---- */

function phaseTable(e) {
	const all = shown(e).reduce((a, [, v]) => a + v, 0);
	return table("Where the milliseconds went", [{ name: "Phase" }, { name: "Time", num: true }, { name: "Share", num: true }, { name: "What", wide: true }],
		shown(e).map(([k, v, i]) => el("tr", null, el("td", null, el("span", { class: "key p" + i }), k.replace("_", " ")), cell(ms(v), "num"), cell(percent(v, all), "num"), cell(phases[i][1] + (k === "first_byte" && !e.stream ? "; the answer was not streamed, so its decoding too" : ""), "wide wrap"))));
}
function candidates(t) {
	return table(`${t.leg} leg, try ${t.try}: policy ${t.policy}, ${t.verdict}${t.over ? `, over ${t.over} by ${decimal(t.margin)} ${t.unit}` : ""}; chosen in ${decimal(t.took_us)} µs`,
		[{ name: "Candidate" }, { name: "Why" }, { name: "Holds", num: true }, { name: "At it", num: true }, { name: "Queue", num: true }, { name: "Prefill", num: true }, { name: "Fetch", num: true }, { name: "Slowdown", num: true, wide: true }, { name: "First byte", num: true }, { name: "Score", num: true, wide: true }],
		t.candidates.map((c) => { const p = c.predicted_ms; return el("tr", { class: c.why === "won" ? "won" : null }, cell(c.node), cell(c.why), cell(`${c.held_blocks} of ${t.blocks}`, "num"), cell(String(c.inflight + c.others), "num"),
			cell(ms(p.queue), "num"), cell(ms(p.prefill), "num"), cell(ms(p.fetch), "num"), cell(ms(p.slowdown), "num wide"), cell(ms(p.queue + p.prefill + p.fetch), "num"), cell(decimal(c.score), "num wide")); }));
}
function shadowTable(t) {
	if (!t.shadows?.length) return null;
	return table("Other policies, for this request", [{ name: "Policy" }, { name: "Node" }, { name: "The router believes it saves", num: true }, { name: "Holds", num: true }],
		t.shadows.map((s) => el("tr", null, cell(s.policy), cell(s.node + (s.agrees ? ", the same" : "")), cell(s.agrees ? "" : ms(s.believed_ms), "num"), cell(String(s.held_blocks), "num"))));
}
function splitText(t) {
	const s = t.split;
	if (!s) return null;
	const cost = (v) => v === null ? "not possible" : ms(v);
	return el("p", { class: "card" }, `Prefill and decode apart? Chosen: ${s.chosen} (${s.by}). One node: ${cost(s.whole.cost_ms)}; two nodes: ${cost(s.pair.cost_ms)}, of it ${ms(s.transfer_ms)} to move ${count(s.moved_tokens)} tokens; the prefill node goes on: ${cost(s.continues.cost_ms)}.`);
}
function facts(r) {
	const e = r.end, c = r.cached_tokens, t = r.ttft_ms, rows = [["Model", r.model], ["Node", nodeOf(r)], ...(r.router ? [["Router", r.router]] : []), ["At", new Date(r.at).toLocaleString()]];
	if (e) rows.push(["Answer", `${e.status} ${e.outcome}, ${e.tries} ${e.tries === 1 ? "try" : "tries"}${e.direct ? ", straight from the engine" : ""}`], ["Total", ms(e.total_ms)]);
	if (e?.prompt_tokens !== undefined) rows.push(["Tokens", `${e.prompt_tokens} of the prompt, ${e.completion_tokens} of the answer`]);
	if (c.predicted !== undefined) rows.push(["Cached tokens", `predicted ${c.predicted}, actual ${c.actual}`]);
	if (t.actual !== undefined) rows.push(["TTFT", ms(t.actual)]);
	if (t.node_predicted !== undefined) rows.push(["First byte from the node", `predicted ${ms(t.node_predicted)}${t.node_actual !== undefined ? `, actual ${ms(t.node_actual)}${r.end?.stream ? "" : " with the whole answer, which was not streamed"}` : ""}`]);
	return el("div", { class: "scroll" }, el("table", null, el("tbody", null, rows.map(([k, v]) => el("tr", null, el("th", { scope: "row", class: "soft" }, k), el("td", { class: "wrap" }, v))))));
}
function requestBody(r) {
	return [facts(r), r.end && el("h2", null, "Time"), r.end && bar(r.end), r.end && phaseTable(r.end), el("h2", null, "Candidates"),
		...r.tries.flatMap((t) => [splitText(t), candidates(t), shadowTable(t)])].filter(Boolean);
}
const request = {
	under: "requests", every: 2000,
	async show(box, s) {
		if (s.done) return;
		const all = await get("explain/" + encodeURIComponent(s.arg));
		const r = all.requests[0];
		s.done = !r.in_flight;
		box.replaceChildren(el("h1", null, "Request ", el("span", { class: "mono" }, r.id)), ...requestBody(r));
	},
	fail(box, e) {
		box.replaceChildren(el("h1", null, "Request"), el("p", null, e.message), el("p", null, el("a", { href: "#requests" }, "All requests")));
	},
};

/* ---- the playground ---- */

async function* events(body) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		const lines = (rest + value).split("\n");
		rest = lines.pop();
		for (const l of lines) if (l.startsWith("data:")) yield l.slice(5).trim();
	}
}
function say(s, who, text) {
	const p = el("p", null, text);
	s.talk.append(el("div", null, el("div", { class: "who" }, who), p));
	s.talk.scrollTop = s.talk.scrollHeight;
	return p;
}
async function send(s) {
	const text = s.text.value.trim();
	if (!text || !s.model.value) return;
	s.past.push({ role: "user", content: text });
	say(s, "you", text);
	s.text.value = "";
	const into = say(s, s.model.value, ""), began = performance.now();
	let first = 0, answer = "", usage = null, r = null;
	s.stop = new AbortController();
	s.go.textContent = "Stop";
	try {
		r = await fetch(baseOf(s.model.selectedOptions[0].dataset.router) + "playground/v1/chat/completions", { method: "POST", signal: s.stop.signal,
			headers: { "content-type": "application/json", "x-cgn-page": "1", ...(s.key.value ? { "x-api-key": s.key.value } : {}) },
			body: JSON.stringify({ model: s.model.value, messages: s.past, max_tokens: Number(s.most.value) || 256, temperature: Number(s.heat.value), stream: true, stream_options: { include_usage: true } }) });
		if (!r.ok) throw await refusal(r);
		for await (const data of events(r.body)) {
			if (data === "[DONE]") break;
			const piece = JSON.parse(data);
			if (piece.error) throw new Error(piece.error.message);
			const more = piece.choices?.[0]?.delta?.content ?? piece.choices?.[0]?.delta?.reasoning_content ?? "";
			if (more && !first) first = performance.now() - began;
			answer += more;
			into.textContent = answer;
			usage = piece.usage ?? usage;
		}
	} catch (e) {
		into.append(el("span", { class: "bad" }, e.name === "AbortError" ? " (stopped)" : " " + e.message));
	}
	if (answer) s.past.push({ role: "assistant", content: answer });
	else s.past.pop();
	s.stop = null;
	s.go.textContent = "Send";
	const id = r?.headers.get("x-request-id"), total = performance.now() - began;
	const cached = usage?.prompt_tokens_details?.cached_tokens;
	s.note.replaceChildren(...[r?.headers.get("x-cgn-node") && `Node ${r.headers.get("x-cgn-node")}. `, first && `First token after ${ms(first)}. `,
		usage && `${usage.completion_tokens} tokens, ${decimal(1000 * usage.completion_tokens / Math.max(1, total - first))} a second. `,
		usage && `${cached ?? "?"} of ${usage.prompt_tokens} prompt tokens were cached. `, id && el("a", { href: "#request/" + encodeURIComponent(id) }, "Why this node, and where the time went")].filter(Boolean));
}
const playground = {
	title: "Playground",
	open(box, s) {
		s.past = [];
		s.talk = el("div", { class: "card talk", role: "log", "aria-label": "Conversation", tabindex: "0" });
		s.note = el("p", { class: "soft", role: "status" });
		s.model = el("select", { "aria-label": "Model" });
		s.most = el("input", { type: "number", value: "256", min: "1", size: "6", "aria-label": "Most tokens of the answer" });
		s.heat = el("input", { type: "number", value: "0.7", min: "0", max: "2", step: "0.1", size: "4", "aria-label": "Temperature" });
		s.key = el("input", { type: "password", placeholder: "only if keys are asked for", autocomplete: "off", "aria-label": "API key" });
		s.text = el("textarea", { "aria-label": "Message", placeholder: "Message; Enter sends, Shift and Enter begins a line", onkeydown: (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); s.go.click(); } } });
		s.go = el("button", { type: "button", onclick: () => s.stop ? s.stop.abort() : void send(s) }, "Send");
		box.append(el("h1", null, "Playground"),
			el("div", { class: "tools" }, el("label", null, "Model", s.model), el("label", null, "Tokens", s.most), el("label", null, "Temperature", s.heat), el("label", null, "Key", s.key)),
			s.talk, s.note, s.text, el("p", { class: "buttons" }, el("button", { type: "button", onclick: () => { s.past = []; s.talk.replaceChildren(); s.note.replaceChildren(); } }, "New conversation"), s.go));
		void get("models").then((m) => {
			s.model.replaceChildren(...m.models.map((k) => el("option", { value: k.name, disabled: k.ready_nodes === 0, "data-router": k.router }, k.router ? `${k.name}, router ${k.router}` : k.name)));
			again();
		}).catch((e) => s.note.replaceChildren(el("span", { class: "bad" }, e.message)));
	},
	leave: (s) => s?.stop?.abort(),
};

export const views = { requests: stream, request, playground };
