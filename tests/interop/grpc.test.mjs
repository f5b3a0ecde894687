// SPDX-License-Identifier: Apache-2.0
// gRPC's own client for JavaScript with our .proto files: what cgn-agent and cgn-router speak is gRPC.
import test, { after } from 'node:test';
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';
import { env, slowEngine, until } from './lib.mjs';

const files = ['agent', 'control', 'metrics', 'router'].map((f) => `cognitora/v1/${f}.proto`);
const api = grpc.loadPackageDefinition(loader.loadSync([...files, 'grpc/health.proto'],
	{ includeDirs: [fileURLToPath(new URL('../../proto', import.meta.url))], keepCase: true, longs: Number, enums: String, defaults: true }));
const { Agent, Control, Metrics, Router } = api.cognitora.v1;
const { Health } = api.grpc.health.v1;
const { status } = grpc;
const pki = process.env.CGN_PKI;
const read = (folder, name) => readFileSync(join(folder, name));
const mutual = (folder, ca = pki) => grpc.credentials.createSsl(read(ca, 'ca.pem'), read(folder, 'admin.key'), read(folder, 'admin.pem'));
const credentials = pki ? mutual(pki) : grpc.credentials.createInsecure();
const AGENT = env('CGN_AGENT_GRPC'), SLOW = env('CGN_SLOW_AGENT_GRPC'), ROUTER = env('CGN_ROUTER_GRPC');
const open = [];
const connect = (Service, address, how = credentials) => {
	const client = new Service(address, how);
	open.push(client);
	return client;
};
after(() => open.forEach((client) => client.close()));

const soon = () => ({ deadline: Date.now() + 20000 });
const unary = (client, method, request = {}, options = soon()) =>
	new Promise((done, fail) => client[method](request, options, (e, answer) => (e ? fail(e) : done(answer))));
const hasCode = (code) => (e) => {
	assert.equal(e.code, code, `${status[e.code]}: ${e.details}, not ${status[code]}`);
	return true;
};
// Everything that a call of streamed answers gives, until its end; |each| may cancel it.
const drain = (call, each = () => {}) => new Promise((done, fail) => {
	const all = [];
	call.on('data', (message) => { all.push(message); each(message, all); });
	call.on('error', (e) => fail(Object.assign(e, { all })));
	call.on('end', () => done(all));
});
const chat = (model, more = {}) => ({
	request_id: 'interop', method: 'POST', path: '/v1/chat/completions', headers: [{ name: 'content-type', value: 'application/json' }],
	facts: { model, attempt: 1 },
	body: Buffer.from(JSON.stringify({ model, messages: [{ role: 'user', content: 'Tell me about the sea.' }], max_tokens: 20, ...more })),
});
const bytes = (chunks) => Buffer.concat(chunks.filter((c) => c.data?.length).map((c) => c.data)).toString();
const bare = (text) => text.replace(/"created":\d+/g, '"created":0');

test('grpc.health.v1 on both', async () => {
	for (const address of [AGENT, ROUTER]) {
		const health = connect(Health, address);
		assert.equal((await unary(health, 'Check')).status, 'SERVING');
		await assert.rejects(unary(health, 'Check', { service: 'no.such' }), hasCode(status.NOT_FOUND));
		const call = health.Watch({}, soon());
		await assert.rejects(drain(call, (m) => { assert.equal(m.status, 'SERVING'); call.cancel(); }), hasCode(status.CANCELLED));
	}
});

test('Agent.Watch: a snapshot, then what changes, numbered', async () => {
	const call = connect(Agent, SLOW).Watch(soon());
	call.write({ router_id: 'interop' });
	const held = connect(Agent, SLOW).Generate(chat('slow', { max_tokens: 10000, ignore_eos: true }), soon());
	const generating = drain(held).catch((e) => e);
	const end = await drain(call, (event, all) => {
		if (all.length > 1 && event.load?.inflight >= 1) call.cancel();
	}).catch((e) => e);
	held.cancel();
	await generating;
	assert.equal(end.code, status.CANCELLED);
	const [first] = end.all;
	assert.equal(first.seq, 1);
	assert.equal(first.node.id, 'slow');
	assert.equal(first.node.engines[0].ready, true);
	assert.deepEqual(first.node.engines[0].models, ['slow']);
	end.all.forEach((event, i) => assert.equal(event.seq, i + 1));
	await until(async () => (await slowEngine()).running === 0, 'the engine is idle again');
});

test('Agent.Generate gives the engine\'s bytes', async () => {
	const agent = connect(Agent, AGENT);
	for (const stream of [false, true]) {
		const request = chat('sim', { stream });
		const chunks = await drain(agent.Generate(request, soon()));
		const direct = await fetch(env('CGN_TWIN_URL') + request.path,
			{ method: 'POST', body: request.body, headers: { 'content-type': 'application/json', 'x-request-id': 'interop' } });
		assert.equal(chunks[0].head.status, 200);
		assert.equal(chunks.filter((c) => c.head).length, 1);
		assert.equal(chunks[0].head.headers.find((h) => h.name.toLowerCase() === 'content-type').value, direct.headers.get('content-type'));
		assert.equal(bare(bytes(chunks)), bare(await direct.text()));
	}
	const refused = await drain(agent.Generate(chat('sim', { max_tokens: -1 }), soon()));
	assert.equal(refused[0].head.status, 400);
});

test('a cancelled or late Generate ends in the engine', async () => {
	for (const late of [false, true]) {
		const before = await slowEngine();
		const call = connect(Agent, SLOW).Generate(chat('slow', { stream: true, max_tokens: 20000, ignore_eos: true }),
			late ? { deadline: Date.now() + 500 } : soon());
		const end = await drain(call, (_, all) => { if (!late && all.length === 4) call.cancel(); }).catch((e) => e);
		assert.equal(end.code, late ? status.DEADLINE_EXCEEDED : status.CANCELLED);
		assert.ok(end.all.length >= 4);
		const now = await until(async () => {
			const s = await slowEngine();
			return s.running === 0 && s.aborted > before.aborted && s;
		}, 'the engine sees its request closed');
		assert.ok(now.recent[0].tokens < 1000);
	}
});

test('what is not there is UNIMPLEMENTED, what is too long RESOURCE_EXHAUSTED', async () => {
	const none = new grpc.Client(AGENT, credentials);
	const text = (b) => b;
	for (const path of ['/cognitora.v1.Agent/Nothing', '/no.such.Service/Method', '/cognitora.v1.Control/Status']) {
		const called = new Promise((done, fail) => none.makeUnaryRequest(path, text, text, Buffer.alloc(0), soon(), (e) => (e ? fail(e) : done())));
		await assert.rejects(called, hasCode(status.UNIMPLEMENTED));
	}
	none.close();
	const long = unary(connect(Router, ROUTER), 'Leave', { node_id: 'x'.repeat(5 << 20) });
	await assert.rejects(long, hasCode(status.RESOURCE_EXHAUSTED));
	const garbage = new grpc.Client(ROUTER, credentials);
	const broken = new Promise((done, fail) =>
		garbage.makeUnaryRequest('/cognitora.v1.Control/Cordon', text, text, Buffer.from([0xff, 0xff, 0xff]), soon(), (e) => (e ? fail(e) : done())));
	await assert.rejects(broken, (e) => [status.INVALID_ARGUMENT, status.INTERNAL].includes(e.code));
	garbage.close();
	assert.equal((await unary(connect(Health, ROUTER), 'Check')).status, 'SERVING');
});

test('Control: status, cordon, drain, uncordon', async () => {
	const control = connect(Control, ROUTER);
	const node = async () => (await unary(control, 'Status')).nodes.find((n) => n.node.id === 'fast');
	const before = await unary(control, 'Status');
	assert.deepEqual(before.nodes.map((n) => n.node.id).sort(), ['fast', 'slow']);
	assert.deepEqual([...before.models].sort(), ['sim', 'slow']);
	await unary(control, 'Cordon', { node_id: 'fast' });
	try {
		await until(async () => (await node()).state === 'cordoned', 'it is cordoned');
		assert.equal((await node()).cordoned, true);
		assert.equal((await drain(control.Drain({ node_id: 'fast' }, soon()))).at(-1).done, true);
	} finally {
		await unary(control, 'Uncordon', { node_id: 'fast' });
	}
	await until(async () => (await node()).state === 'ready', 'it is ready again');
	await assert.rejects(unary(control, 'Cordon', { node_id: 'nobody' }), hasCode(status.NOT_FOUND));
});

test('Metrics: what the admin port shows, over gRPC', async () => {
	for (const [address, name] of [[AGENT, 'cgn_engine_ready'], [ROUTER, 'cgn_node_state']]) {
		const { text, taken_unix_ms } = await unary(connect(Metrics, address), 'Scrape');
		assert.match(text, new RegExp(`^# TYPE ${name} gauge$`, 'm'));
		assert.match(text, new RegExp(`^${name}\\{.*\\} 1$`, 'm'));
		assert.ok(Math.abs(Date.now() - taken_unix_ms) < 60000);
	}
});

test('Router: a node that announces itself and leaves', async () => {
	const router = connect(Router, ROUTER), control = connect(Control, ROUTER);
	const ids = async () => (await unary(control, 'Status')).nodes.map((n) => n.node.id);
	const guest = { id: 'guest', address: 'localhost:1', engines: [{ name: 'e', kind: 'sim', models: ['guest'] }] };
	assert.ok((await unary(router, 'Announce', { cluster: 'cognitora', node: guest })).lease_ms > 0);
	await until(async () => (await ids()).includes('guest'), 'it is known');
	await unary(router, 'Leave', { node_id: 'guest' });
	await until(async () => !(await ids()).includes('guest'), 'it is forgotten');
	await assert.rejects(unary(router, 'Announce', { cluster: 'another', node: guest }), (e) => e.code !== status.OK);
});

test('with mutual TLS strangers are refused', { skip: !pki && 'this cluster has no certificates' }, async () => {
	const foreign = mkdtempSync(join(tmpdir(), 'cgn-foreign-'));
	execFileSync(env('CGN_CTL'), ['pki', 'bootstrap', '--out', foreign]);
	const strangers = {
		'no certificate': grpc.credentials.createSsl(read(pki, 'ca.pem')),
		'a foreign certificate': mutual(foreign, pki),
		'no TLS': grpc.credentials.createInsecure(),
		'another idea of our CA': mutual(pki, foreign),
	};
	for (const [who, how] of Object.entries(strangers)) {
		for (const address of [AGENT, ROUTER]) {
			const called = unary(connect(Health, address, how), 'Check', {}, { deadline: Date.now() + 3000 });
			await assert.rejects(called, hasCode(status.UNAVAILABLE), `${who} at ${address}`);
		}
	}
	rmSync(foreign, { recursive: true });
	assert.equal((await unary(connect(Health, AGENT), 'Check')).status, 'SERVING');
});
