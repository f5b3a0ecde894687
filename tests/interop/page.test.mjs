// SPDX-License-Identifier: Apache-2.0
// The page in a real Chromium. BASE: the router's admin port; GATE: its gateway; PREFIX: the page behind a proxy; BIG: an admin
// port that tells of 1,000 nodes; SEVERAL: cgn-metrics with the routers east (BASE), west, gone and hung.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import puppeteer from "puppeteer-core";

const { BASE, GATE, PREFIX, BIG, SEVERAL, SHOTS } = process.env;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let browser, page, trouble;

before(async () => {
	browser = await puppeteer.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
});
after(() => browser?.close());

async function open(base, hash = "", look = {}) {
	await page?.close();
	trouble = [];
	page = await browser.newPage();
	page.on("pageerror", (e) => trouble.push(e.message));
	page.on("console", (m) => ["error", "warn"].includes(m.type()) && trouble.push(m.text()));
	await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: look.dark ? "dark" : "light" }]);
	await page.setViewport({ width: look.width ?? 1200, height: 900 });
	await page.goto(`${base}/page/${hash}`);
	await shows("live");
}
const text = () => page.evaluate(() => document.body.innerText);
const shows = (what) => page.waitForFunction((w) => document.body.innerText.includes(w), { polling: 50 }, what);
const button = (name, where = "main") => page.evaluateHandle((n, w) => [...document.querySelectorAll(`${w} button`)].find((b) => b.innerText === n), name, where);
async function violations() { // by the protocol: the page's policy lets no script in
	const session = await page.createCDPSession();
	await session.send("Runtime.evaluate", { expression: axe });
	const r = await session.send("Runtime.evaluate", { expression: "axe.run().then((r) => r.violations.map((v) => v.id + ': ' + v.nodes[0].html))", awaitPromise: true, returnByValue: true });
	return r.result.value;
}
async function chat(id) {
	const r = await fetch(`${GATE}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json", "x-request-id": id },
		body: JSON.stringify({ model: "sim", stream: true, max_tokens: 8, messages: [{ role: "user", content: "where did the milliseconds of this request go? ".repeat(20) }] }) });
	assert.equal(r.status, 200);
	await r.text();
	return r.headers.get("x-cgn-node");
}

for (const [view, look] of [["nodes", {}], ["models", { dark: true }], ["cache", {}], ["tenants", { dark: true }], ["requests", {}], ["playground", { dark: true }]])
	for (const width of [1200, 390])
		test(`${view} at ${width} pixels: accessible, nothing wider than the screen or its tile, no error`, async () => {
			await chat("seen");
			await open(BASE, "#" + view, { ...look, width });
			await page.waitForSelector("main h1");
			await page.waitForFunction(() => document.querySelectorAll("main table, main textarea").length > 0, { polling: 50 });
			if (SHOTS) await page.screenshot({ path: `${SHOTS}/${view}-${width}.png` });
			assert.deepEqual(await violations(), []);
			assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
			assert.deepEqual(await page.evaluate(() => [...document.querySelectorAll(".tile")].filter((t) => t.scrollWidth > t.clientWidth).map((t) => t.innerText)), []);
			assert.deepEqual(trouble, []);
		});

test("the root sends a browser to the page, and a program to the list of paths", async () => {
	const html = await fetch(`${BASE}/`, { headers: { accept: "text/html,*/*" }, redirect: "manual" });
	assert.equal(html.status, 302);
	assert.equal((await (await fetch(`${BASE}/`)).json()).program, "cgn-router");
});

test("where the milliseconds of one request went, and what each candidate would have cost", async () => {
	const node = await chat("one-request");
	await open(BASE, "#requests");
	await page.waitForSelector('a[href="#request/one-request"]');
	await page.click('a[href="#request/one-request"]');
	await shows("Candidates");
	const seen = await text();
	for (const word of [node, "first byte", "stream", "Where the milliseconds went", "predicted", "won", "round_robin"]) assert.ok(seen.includes(word), word);
	const { requests: [r] } = await (await fetch(`${BASE}/explain/one-request`)).json();
	const sum = Object.values(r.end.phases_ms).reduce((a, b) => a + b, 0);
	assert.ok(Math.abs(sum - r.end.total_ms) < 1, `${sum} of ${r.end.total_ms}`);
	assert.ok(r.end.phases_ms.stream > 0 && r.end.phases_ms.first_byte > 0);
	await open(BASE, "#request/nobody");
	await shows("All requests");
});

test("a node is drained after a confirmation, by keyboard, and comes back", async () => {
	await open(BASE);
	await shows("n0");
	await page.type("main input[type=search]", "n0");
	await page.waitForFunction(() => document.querySelectorAll("main tbody tr").length === 1, { polling: 50 });
	await (await button("Drain")).focus();
	await page.keyboard.press("Enter");
	await page.waitForSelector("dialog[open]");
	assert.deepEqual(await violations(), []);
	await page.keyboard.press("Escape");
	await page.waitForSelector("dialog:not([open])");
	const cordoned = async () => (await (await fetch(`${BASE}/nodes`)).json()).nodes.filter((n) => n.cordoned).map((n) => n.id);
	assert.deepEqual(await cordoned(), []);
	await (await button("Drain")).click();
	await page.waitForSelector("dialog[open]");
	await (await button("Drain", "dialog")).click();
	await shows("cordoned");
	assert.deepEqual(await cordoned(), ["n0"]);
	for (let i = 0; i < 5; i++) assert.notEqual(await chat(`after-${i}`), "n0");
	await (await page.waitForFunction(() => [...document.querySelectorAll("main button")].find((b) => b.innerText === "Uncordon"), { polling: 50 })).click();
	await page.waitForFunction(() => [...document.querySelectorAll("main button")].some((b) => b.innerText === "Drain"), { polling: 50 });
	assert.deepEqual(await cordoned(), []);
	assert.deepEqual(trouble, []);
});

test("the playground streams an answer and says which node and how much was cached", async () => {
	await open(BASE, "#playground");
	await page.waitForSelector("option[value=sim]");
	await page.select("select", "sim");
	await page.type("textarea", "Tell me about the sea");
	await page.keyboard.press("Enter");
	await shows("prompt tokens were cached");
	assert.match(await text(), /Node n\d\. First token after/);
	await page.click("main p[role=status] a");
	await shows("Where the milliseconds went");
	assert.deepEqual(trouble, []);
});

test("behind a proxy with a path of its own it reads, and orders are refused with the reason", async () => {
	await open(PREFIX);
	await shows("n0");
	await (await button("Drain")).click();
	await page.waitForSelector("dialog[open]");
	await (await button("Drain", "dialog")).click();
	await shows("not through a proxy");
	assert.match(await text(), /cgn-ctl cluster cordon (n\d|odd)/);
});

test("a model's name that is HTML is shown as it is", async () => {
	await open(BASE, "#models");
	await shows("<img src=x onerror=alert(1)>");
	assert.equal(await page.evaluate(() => document.querySelectorAll("main img").length), 0);
	assert.deepEqual(trouble, []);
});

for (const [view, look] of [["nodes", { width: 390 }], ["models", { dark: true }], ["cache", {}], ["requests", {}], ["playground", { width: 390 }]])
	test(`several routers, ${view}: accessible, nothing wider than the screen`, async () => {
		await chat("seen-by-all");
		await open(SEVERAL, "#" + view, look);
		await page.waitForFunction(() => document.querySelectorAll("main table, main option").length > 0, { polling: 50 });
		if (SHOTS) await page.screenshot({ path: `${SHOTS}/several-${view}.png` });
		assert.deepEqual(await violations(), []);
		assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
		assert.deepEqual(trouble.filter((t) => !/502|504/.test(t)), []);
	});

test("several routers: one table of all nodes, those that are away are named, and one can be chosen", async () => {
	await open(SEVERAL);
	await shows("w0");
	for (const word of ["by router east", "by router west", "Router gone is away", "Router hung is away"]) await shows(word);
	await shows("5 of 5 take requests");
	await page.select("#router-list", "west");
	await shows("1 of 1 take requests");
	assert.match(page.url(), /router=west/);
	await page.reload();
	await shows("1 of 1 take requests");
	await page.select("#router-list", "");
	await shows("5 of 5 take requests");
	await page.goto(`${SEVERAL}/page/#models`);
	await shows("router west");
	assert.equal(await page.evaluate(() => document.querySelectorAll("main img").length), 0);
});

test("several routers: orders and chats go to the router of their row", async () => {
	await open(SEVERAL);
	await shows("w0");
	await page.type("main input[type=search]", "w0");
	await page.waitForFunction(() => document.querySelectorAll("main tbody tr").length === 1, { polling: 50 });
	await (await button("Drain")).click();
	await page.waitForSelector("dialog[open]");
	await (await button("Drain", "dialog")).click();
	await shows("cordoned");
	await (await page.waitForFunction(() => [...document.querySelectorAll("main button")].find((b) => b.innerText === "Uncordon"), { polling: 50 })).click();
	await shows("1 nodes; 5 of 5 take requests");
	await page.click('a[href="#playground"]');
	await page.waitForSelector("option[data-router=west]");
	await page.evaluate(() => { document.querySelector("option[data-router=west]").selected = true; });
	await page.type("textarea", "Tell me about the west");
	await page.keyboard.press("Enter");
	await shows("prompt tokens were cached");
	assert.match(await text(), /Node w0\./);
	await page.click("main p[role=status] a");
	await shows("Where the milliseconds went");
	await shows("west");
});

test("1,000 nodes and 1,000 requests a second do not freeze it", async (t) => {
	await open(BIG);
	await shows("1,000 of 1000 take requests".replace(",", ""));
	assert.equal(await page.evaluate(() => document.querySelectorAll("main tbody tr").length), 1000);
	await page.evaluate(() => {
		globalThis.slow = 0;
		new PerformanceObserver((l) => { for (const e of l.getEntries()) globalThis.slow = Math.max(globalThis.slow, e.duration); }).observe({ type: "longtask" });
	});
	await new Promise((r) => setTimeout(r, 2500));
	await page.type("main input[type=search]", "node-77");
	await page.waitForFunction(() => document.querySelectorAll("main tbody tr").length === 11, { polling: 50 });
	t.diagnostic(`nodes: longest task ${await page.evaluate(() => Math.round(globalThis.slow))} ms`);
	await page.click('a[href="#requests"]');
	await shows("The newest requests");
	await page.evaluate(() => { globalThis.slow = 0; });
	await new Promise((r) => setTimeout(r, 2000));
	t.diagnostic(`requests: longest task ${await page.evaluate(() => Math.round(globalThis.slow))} ms`);
	await page.keyboard.press("1");
	await page.waitForFunction(() => document.querySelector("main h1")?.innerText === "Nodes", { polling: 50 });
	assert.deepEqual(trouble, []);
});
