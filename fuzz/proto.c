/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz proto: any bytes as GenerateRequest, GenerateChunk, WatchEvent and a Node in JSON. An accepted message
 * must be the same after writing and reading again, and protobuf-c must agree. */
#include "policy/node/proto/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect_same(struct cgn_str a, struct cgn_str b)
{
	CGN_MUST(cgn_str_eq(a, b));
}

static void same_headers(const struct proto_header *a, size_t n_a, const struct proto_header *b, size_t n_b)
{
	CGN_MUST(n_a == n_b);
	for (size_t i = 0; i < n_a; i++) {
		expect_same(a[i].name, b[i].name);
		expect_same(a[i].value, b[i].value);
	}
}

static void check_generate(struct cgn_str in, struct cgn_arena *a)
{
	struct proto_generate g, again;
	struct cgn_buf b = {.n = 0};
	Cognitora__V1__GenerateRequest *m = NULL;
	if (!cgn_ok(proto_generate_read(in, a, &g, NULL)))
		return;
	proto_generate_prefix(&g, &b);
	cgn_buf_str(&b, g.body);
	CGN_MUST(cgn_ok(proto_generate_read(cgn_buf_view(&b), a, &again, NULL)));
	expect_same(g.request_id, again.request_id);
	expect_same(g.method, again.method);
	expect_same(g.path, again.path);
	expect_same(g.body, again.body);
	expect_same(g.facts.model, again.facts.model);
	expect_same(g.facts.engine, again.facts.engine);
	same_headers(g.headers, g.n_headers, again.headers, again.n_headers);
	CGN_MUST(g.facts.n_chain == again.facts.n_chain);
	CGN_MUST(g.facts.attempt == again.facts.attempt && g.facts.stream == again.facts.stream);
	CGN_MUST(cgn_ok(pb_unpack(&cognitora__v1__generate_request__descriptor, cgn_buf_view(&b), &m, NULL)));
	CGN_MUST(m->n_headers == g.n_headers && m->facts->n_chain == g.facts.n_chain &&
		m->body.len == g.body.n);
	pb_free(&m);
	cgn_buf_fini(&b);
}

static void check_chunk(struct cgn_str in, struct cgn_arena *a)
{
	struct proto_chunk c, again;
	struct cgn_buf b = {.n = 0};
	if (!cgn_ok(proto_chunk_read(in, a, &c, NULL)) || c.kind == PROTO_CHUNK_EMPTY)
		return;
	if (c.kind == PROTO_CHUNK_DATA) {
		uint8_t lead[PROTO_CHUNK_LEAD];
		cgn_buf_add(&b, lead, proto_chunk_lead(lead, c.data.n));
		cgn_buf_str(&b, c.data);
	} else {
		proto_chunk_head(c.status, c.headers, c.n_headers, c.engine, &b);
	}
	CGN_MUST(cgn_ok(proto_chunk_read(cgn_buf_view(&b), a, &again, NULL)));
	CGN_MUST(again.kind == c.kind && again.status == c.status);
	expect_same(c.data, again.data);
	expect_same(c.engine, again.engine);
	same_headers(c.headers, c.n_headers, again.headers, again.n_headers);
	cgn_buf_fini(&b);
}

static void check_node(struct cgn_str in)
{
	struct cgn_buf b = {.n = 0};
	Cognitora__V1__Node *n = NULL, *again = NULL;
	if (!cgn_ok(proto_node_from_json(in, &n, NULL)))
		return;
	proto_node_to_json(n, &b);
	CGN_MUST(!b.bad && cgn_ok(proto_node_from_json(cgn_buf_view(&b), &again, NULL)));
	CGN_MUST(proto_node_equal(n, again));
	proto_node_free(&n);
	proto_node_free(&again);
	cgn_buf_fini(&b);
}

/* Write the valid parts of an event again; they must then read the same. */
static void check_event(struct cgn_str in)
{
	struct cgn_buf b = {.n = 0};
	Cognitora__V1__WatchEvent *e = NULL, *again = NULL;
	if (!cgn_ok(pb_unpack(&cognitora__v1__watch_event__descriptor, in, &e, NULL)))
		return;
	const Cognitora__V1__Residency *r = e->residency;
	if (r != NULL && cgn_ok(proto_residency_check(r, e->check, NULL))) {
		const struct proto_residency residency = {.reset = r->reset,
			.ranges = r->ranges,
			.n_ranges = r->n_ranges,
			.blocks = r->blocks,
			.tiers = r->tiers.len > 0 ? r->tiers.data : NULL,
			.n_blocks = r->n_blocks,
			.source = r->source,
			.stale_ms = r->stale_ms};
		const struct proto_check check = {e->check != NULL ? e->check->sums : NULL,
			e->check != NULL ? e->check->blocks : 0};
		proto_watch_event(&(struct proto_event){.seq = e->seq,
					  .residency = &residency,
					  .check = e->check != NULL ? &check : NULL},
			&b);
		CGN_MUST(!b.bad &&
			cgn_ok(pb_unpack(&cognitora__v1__watch_event__descriptor, cgn_buf_view(&b), &again,
				NULL)));
		CGN_MUST(cgn_ok(proto_residency_check(again->residency, again->check, NULL)));
		CGN_MUST(again->seq == e->seq && again->residency->n_blocks == r->n_blocks &&
			again->residency->n_ranges == r->n_ranges);
		CGN_MUST(again->residency->tiers.len == r->tiers.len && again->residency->reset == r->reset);
		CGN_MUST(r->n_blocks == 0 ||
			memcmp(again->residency->blocks, r->blocks, r->n_blocks * sizeof *r->blocks) == 0);
		CGN_MUST((again->check != NULL) == (e->check != NULL));
	}
	pb_free(&e);
	pb_free(&again);
	cgn_buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cgn_str in = {(const char *)data, size};
	struct cgn_arena a;
	cgn_arena_init(&a, (size_t)4 * 1024 * 1024);
	check_generate(in, &a);
	check_chunk(in, &a);
	check_node(in);
	check_event(in);
	cgn_arena_fini(&a);
	return 0;
}
