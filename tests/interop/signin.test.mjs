// SPDX-License-Identifier: Apache-2.0
// A person signs in to the page in a real Chromium, at a real OpenID provider. BASE: the router's admin port; GATE: its gateway; ISSUER: the provider.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import puppeteer from "puppeteer-core";

const { BASE, GATE, ISSUER, SHOTS } = process.env;
let browser, page;

before(async () => {
	browser = await puppeteer.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
	page = await browser.newPage();
});
after(() => browser?.close());
const shows = (what) => page.waitForFunction((w) => document.body.innerText.includes(w), { polling: 50 }, what);
const press = (selector) => Promise.all([page.waitForNavigation(), page.click(selector)]);

test("a person signs in at the provider, and out again", async () => {
	const trouble = [];
	page.on("pageerror", (e) => trouble.push(e.message));
	await page.goto(BASE + "/page/");
	await shows("Sign in");
	await press("#who a");
	assert.ok(page.url().startsWith(ISSUER), page.url());
	await page.type("input[name=login]", "ann");
	await page.type("input[name=password]", "whatever");
	await press("button[type=submit]");
	await press("button[type=submit]"); // her consent
	await page.waitForFunction((b) => location.href.startsWith(b), { polling: 50 }, BASE);
	await shows("ann (viewer)");
	assert.ok(page.url().endsWith("/page/"), page.url());
	if (SHOTS) await page.screenshot({ path: `${SHOTS}/signed-in.png` });
	const cookies = await page.cookies(BASE);
	const session = cookies.find((c) => c.name === "cgn_session");
	assert.ok(session.httpOnly && session.sameSite === "Lax" && !cookies.some((c) => c.name === "cgn_signin"));
	await page.click("#who button");
	await shows("Sign in");
	assert.deepEqual(await page.cookies(BASE).then((all) => all.filter((c) => c.name === "cgn_session")), []);
	assert.deepEqual(trouble, []);
});

test("a program's token of the provider gets an answer of the gateway", async () => {
	const r = await fetch(ISSUER + "/token", { method: "POST", headers: { "content-type": "application/x-www-form-urlencoded",
		authorization: "Basic " + Buffer.from("robot:" + encodeURIComponent("another secret of 32 characters.")).toString("base64") }, body: "grant_type=client_credentials&scope=chat" });
	const { access_token: token } = await r.json();
	assert.equal(r.status, 200);
	const ask = (bearer) => fetch(GATE + "/v1/chat/completions", { method: "POST", headers: { "content-type": "application/json", authorization: "Bearer " + bearer },
		body: JSON.stringify({ model: "sim", max_tokens: 4, messages: [{ role: "user", content: "hello" }] }) });
	const answer = await ask(token);
	assert.equal(answer.status, 200, await answer.clone().text());
	assert.equal((await ask(token.slice(0, -8) + "AAAAAAAA")).status, 401);
	assert.equal((await ask("cgn_none")).status, 401);
});
