/* SPDX-License-Identifier: Apache-2.0 */
/* generate: GenerateRequest and GenerateChunk, the two messages that carry the bytes of every request. */
#include "policy/node/proto/proto_priv.h"

enum generate_field { G_REQUEST_ID = 1, G_METHOD, G_PATH, G_HEADERS, G_FACTS, G_BODY = 15 };
enum header_field { H_NAME = 1, H_VALUE };
enum facts_field {
	F_MODEL = 1,
	F_ENGINE,
	F_BLOCKS_TOTAL,
	F_BLOCKS_PREDICTED,
	F_CHAIN,
	F_ATTEMPT,
	F_STREAM,
	F_BLOCK_TOKENS,
	F_ROUTER,
	F_NEW_TOKENS,
	F_LEG,
	F_KEEP_ALIVE,
	F_TENANT,
	F_ONCE,
	F_KEEP_BOUNDED,
	F_PROMPT_US
};
enum chunk_field { C_HEAD = 1, C_DATA };
enum head_field { R_STATUS = 1, R_HEADERS, R_ENGINE };
#define BYTES(field)  WIRE_TAG(field, WIRE_BYTES)
#define VARINT(field) WIRE_TAG(field, WIRE_VARINT)

/* ---- writing ---- */

static size_t header_size(const struct proto_header *h)
{
	return wire_str_size(H_NAME, h->name) + wire_str_size(H_VALUE, h->value);
}

static void put_headers(struct cgn_buf *out, unsigned field, const struct proto_header *h, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		wire_put_head(out, field, header_size(&h[i]));
		wire_put_str(out, H_NAME, h[i].name);
		wire_put_str(out, H_VALUE, h[i].value);
	}
}

static size_t facts_size(const struct proto_facts *f)
{
	return wire_str_size(F_MODEL, f->model) + wire_str_size(F_ENGINE, f->engine) +
		wire_u64_size(F_BLOCKS_TOTAL, f->blocks_total) +
		wire_u64_size(F_BLOCKS_PREDICTED, f->blocks_predicted) +
		wire_str_size(F_CHAIN, (struct cgn_str){NULL, f->n_chain * sizeof *f->chain}) +
		wire_u64_size(F_ATTEMPT, f->attempt) + wire_u64_size(F_STREAM, f->stream) +
		wire_u64_size(F_BLOCK_TOKENS, f->block_tokens) + wire_fixed64_size(F_ROUTER, f->router) +
		wire_u64_size(F_NEW_TOKENS, f->new_tokens) + wire_u64_size(F_LEG, (uint64_t)f->leg) +
		wire_u64_size(F_KEEP_ALIVE, f->keep_alive) + wire_str_size(F_TENANT, f->tenant) +
		wire_u64_size(F_ONCE, f->once) + wire_u64_size(F_KEEP_BOUNDED, f->keep_bounded) +
		wire_u64_size(F_PROMPT_US, f->prompt_us);
}

size_t proto_generate_body(const struct proto_generate *g, struct cgn_str out[PROTO_BODY_PIECES])
{
	const struct proto_swap *s = &g->swap;
	size_t behind = s->at + s->n, n = 0;
	struct cgn_str all[PROTO_BODY_PIECES] = {g->body};
	CGN_MUST(behind >= s->at && behind <= g->body.n);
	if (s->by.p != NULL) {
		all[0].n = s->at;
		all[1] = s->by;
		all[2] = (struct cgn_str){g->body.p + behind, g->body.n - behind};
	}
	for (size_t i = 0; i < PROTO_BODY_PIECES; i++)
		if (all[i].n > 0)
			out[n++] = all[i];
	return n;
}

void proto_generate_prefix(const struct proto_generate *g, struct cgn_buf *out)
{
	const struct proto_facts *f = &g->facts;
	wire_put_str(out, G_REQUEST_ID, g->request_id);
	wire_put_str(out, G_METHOD, g->method);
	wire_put_str(out, G_PATH, g->path);
	put_headers(out, G_HEADERS, g->headers, g->n_headers);
	wire_put_head(out, G_FACTS, facts_size(f));
	wire_put_str(out, F_MODEL, f->model);
	wire_put_str(out, F_ENGINE, f->engine);
	wire_put_u64(out, F_BLOCKS_TOTAL, f->blocks_total);
	wire_put_u64(out, F_BLOCKS_PREDICTED, f->blocks_predicted);
	wire_put_fixed64s(out, F_CHAIN, f->chain, f->n_chain);
	wire_put_u64(out, F_ATTEMPT, f->attempt);
	wire_put_u64(out, F_STREAM, f->stream);
	wire_put_u64(out, F_BLOCK_TOKENS, f->block_tokens);
	wire_put_fixed64(out, F_ROUTER, f->router);
	wire_put_u64(out, F_NEW_TOKENS, f->new_tokens);
	wire_put_u64(out, F_LEG, (uint64_t)f->leg);
	wire_put_u64(out, F_KEEP_ALIVE, f->keep_alive);
	wire_put_str(out, F_TENANT, f->tenant);
	wire_put_u64(out, F_ONCE, f->once);
	wire_put_u64(out, F_KEEP_BOUNDED, f->keep_bounded);
	wire_put_u64(out, F_PROMPT_US, f->prompt_us);
	wire_put_head(out, G_BODY, g->swap.by.p != NULL ? g->body.n - g->swap.n + g->swap.by.n : g->body.n);
}

size_t proto_chunk_lead(uint8_t lead[PROTO_CHUNK_LEAD], size_t data_bytes)
{
	lead[0] = BYTES(C_DATA);
	return 1 + wire_varint_to(lead + 1, data_bytes);
}

void proto_chunk_head(int status, const struct proto_header *headers, size_t n, struct cgn_str engine,
	struct cgn_buf *out)
{
	size_t size = wire_u64_size(R_STATUS, (uint64_t)status) + wire_str_size(R_ENGINE, engine);
	for (size_t i = 0; i < n; i++) {
		size_t one = header_size(&headers[i]);
		size += 1 + wire_varint_size(one) + one; /* Field 2: the tag is one byte. */
	}
	wire_put_head(out, C_HEAD, size);
	wire_put_u64(out, R_STATUS, (uint64_t)status);
	put_headers(out, R_HEADERS, headers, n);
	wire_put_str(out, R_ENGINE, engine);
}

/* ---- reading ---- */

/* Count |tag| in |msg|, so that the array is allocated once. */
static size_t count_tag(struct cgn_str msg, uint32_t tag)
{
	struct wire_rd rd = wire_rd_of(msg);
	size_t n = 0;
	for (uint32_t t; (t = wire_tag(&rd)) != 0; wire_skip(&rd, t))
		n += t == tag;
	return n;
}

/* Is the value free of bytes that would end an HTTP head or split a line? */
static bool value_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if ((c < ' ' && c != '\t') || c == 0x7f)
			return false;
	}
	return true;
}

static bool word_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c <= ' ' || c == 0x7f)
			return false;
	}
	return true;
}

static bool header_ok(const struct proto_header *h)
{
	return h->name.n > 0 && word_ok(h->name) && memchr(h->name.p, ':', h->name.n) == NULL &&
		value_ok(h->value);
}

static CGN_RC read_header(struct cgn_str msg, struct proto_header *out, struct cgn_err *err)
{
	struct wire_rd rd = wire_rd_of(msg);
	for (uint32_t tag; (tag = wire_tag(&rd)) != 0;) {
		if (tag == BYTES(H_NAME))
			out->name = wire_bytes(&rd);
		else if (tag == BYTES(H_VALUE))
			out->value = wire_bytes(&rd);
		else
			wire_skip(&rd, tag);
	}
	if (rd.bad)
		return CGN_FAIL(err, INVALID, "Header: truncated or not protobuf");
	if (!header_ok(out))
		return CGN_FAIL(err, INVALID, "Header: a name or value that can't stand in an HTTP head");
	return CGN_OK;
}

/* Allocate an array for the headers under |tag| in |msg|; the array is filled later. */
static CGN_RC make_headers(struct cgn_str msg, uint32_t tag, struct cgn_arena *a, struct proto_header **out,
	struct cgn_err *err)
{
	size_t n = count_tag(msg, tag);
	*out = NULL;
	if (n == 0)
		return CGN_OK;
	if (n > PROTO_MAX_HEADERS)
		return CGN_FAIL(err, INVALID, "%zu headers, at most %d are taken", n, PROTO_MAX_HEADERS);
	*out = cgn_arena_zero(a, n * sizeof **out);
	return *out != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for %zu headers", n);
}

/* Count the digests in one RouteFacts, packed or not. */
static size_t count_chain(struct cgn_str msg)
{
	struct wire_rd rd = wire_rd_of(msg);
	size_t n = 0;
	for (uint32_t tag; (tag = wire_tag(&rd)) != 0;) {
		if (tag == BYTES(F_CHAIN)) {
			n += wire_bytes(&rd).n / 8;
			continue;
		}
		n += tag == WIRE_TAG(F_CHAIN, WIRE_FIXED64);
		wire_skip(&rd, tag);
	}
	return n;
}

/* Make room behind the values of an earlier occurrence of the message, because protobuf merges
 * occurrences. */
static CGN_RC grow_chain(struct cgn_str msg, struct cgn_arena *a, struct proto_facts *f, uint64_t **out,
	struct cgn_err *err)
{
	size_t n = count_chain(msg);
	*out = NULL;
	if (n == 0)
		return CGN_OK;
	if (n > PROTO_MAX_CHAIN || f->n_chain > PROTO_MAX_CHAIN - n)
		return CGN_FAIL(err, INVALID, "RouteFacts.chain: over %d digests", PROTO_MAX_CHAIN);
	*out = cgn_arena_get(a, (f->n_chain + n) * sizeof **out);
	if (*out == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %zu digests", n);
	if (f->n_chain > 0)
		memcpy(*out, f->chain, f->n_chain * sizeof **out);
	f->chain = *out;
	return CGN_OK;
}

static void read_packed(struct cgn_str run, uint64_t *chain, size_t *n, bool *bad)
{
	struct wire_rd rd = wire_rd_of(run);
	*bad |= run.n % 8 != 0;
	while (!*bad && rd.p < rd.end)
		chain[(*n)++] = wire_fixed64(&rd);
}

static Cognitora__V1__Leg leg_of(uint64_t v)
{
	return v <= COGNITORA__V1__LEG__LEG_DECODE ? (Cognitora__V1__Leg)v : COGNITORA__V1__LEG__LEG_WHOLE;
}

static void read_facts_field(struct wire_rd *rd, uint32_t tag, struct proto_facts *f, uint64_t *chain)
{
	switch (tag) {
	case BYTES(F_MODEL):
		f->model = wire_bytes(rd);
		return;
	case BYTES(F_ENGINE):
		f->engine = wire_bytes(rd);
		return;
	case VARINT(F_BLOCKS_TOTAL):
		f->blocks_total = (uint32_t)wire_varint(rd);
		return;
	case VARINT(F_BLOCKS_PREDICTED):
		f->blocks_predicted = (uint32_t)wire_varint(rd);
		return;
	case BYTES(F_CHAIN):
		read_packed(wire_bytes(rd), chain, &f->n_chain, &rd->bad);
		return;
	case WIRE_TAG(F_CHAIN, WIRE_FIXED64):
		chain[f->n_chain++] = wire_fixed64(rd);
		return;
	case VARINT(F_ATTEMPT):
		f->attempt = (uint32_t)wire_varint(rd);
		return;
	case VARINT(F_STREAM):
		f->stream = wire_varint(rd) != 0;
		return;
	case VARINT(F_BLOCK_TOKENS):
		f->block_tokens = (uint32_t)wire_varint(rd);
		return;
	case WIRE_TAG(F_ROUTER, WIRE_FIXED64):
		f->router = wire_fixed64(rd);
		return;
	case VARINT(F_NEW_TOKENS):
		f->new_tokens = (uint32_t)wire_varint(rd);
		return;
	case VARINT(F_LEG):
		f->leg = leg_of(wire_varint(rd));
		return;
	case VARINT(F_KEEP_ALIVE):
		f->keep_alive = wire_varint(rd);
		return;
	case BYTES(F_TENANT):
		f->tenant = wire_bytes(rd);
		return;
	case VARINT(F_ONCE):
		f->once = wire_varint(rd) != 0;
		return;
	case VARINT(F_KEEP_BOUNDED):
		f->keep_bounded = wire_varint(rd) != 0;
		return;
	case VARINT(F_PROMPT_US):
		f->prompt_us = (uint32_t)wire_varint(rd);
		return;
	default:
		wire_skip(rd, tag);
	}
}

static CGN_RC read_facts(struct cgn_str msg, struct cgn_arena *a, struct proto_facts *f, struct cgn_err *err)
{
	uint64_t *chain = NULL;
	CGN_TRY(grow_chain(msg, a, f, &chain, err));
	struct wire_rd rd = wire_rd_of(msg);
	for (uint32_t tag; (tag = wire_tag(&rd)) != 0;)
		read_facts_field(&rd, tag, f, chain);
	return rd.bad ? CGN_FAIL(err, INVALID, "RouteFacts: truncated or not protobuf") : CGN_OK;
}

static CGN_RC read_generate_field(struct wire_rd *rd, uint32_t tag, struct cgn_arena *a,
	struct proto_header *headers, struct proto_generate *out, struct cgn_err *err)
{
	switch (tag) {
	case BYTES(G_REQUEST_ID):
		out->request_id = wire_bytes(rd);
		return CGN_OK;
	case BYTES(G_METHOD):
		out->method = wire_bytes(rd);
		return CGN_OK;
	case BYTES(G_PATH):
		out->path = wire_bytes(rd);
		return CGN_OK;
	case BYTES(G_HEADERS):
		return read_header(wire_bytes(rd), &headers[out->n_headers++], err);
	case BYTES(G_FACTS):
		return read_facts(wire_bytes(rd), a, &out->facts, err);
	case BYTES(G_BODY):
		out->body = wire_bytes(rd);
		return CGN_OK;
	default:
		wire_skip(rd, tag);
		return CGN_OK;
	}
}

CGN_RC proto_generate_read(struct cgn_str msg, struct cgn_arena *a, struct proto_generate *out,
	struct cgn_err *err)
{
	struct proto_header *headers = NULL;
	*out = (struct proto_generate){.n_headers = 0};
	CGN_TRY(make_headers(msg, BYTES(G_HEADERS), a, &headers, err));
	out->headers = headers;
	struct wire_rd rd = wire_rd_of(msg);
	for (uint32_t tag; (tag = wire_tag(&rd)) != 0;)
		CGN_TRY(read_generate_field(&rd, tag, a, headers, out, err));
	if (rd.bad)
		return CGN_FAIL(err, INVALID, "GenerateRequest: truncated or not protobuf");
	if (!word_ok(out->method) || !word_ok(out->path) || !word_ok(out->request_id))
		return CGN_FAIL(err, INVALID,
			"GenerateRequest: a method, path or request id that can't stand in an HTTP head");
	return CGN_OK;
}

static CGN_RC read_head(struct cgn_str msg, struct cgn_arena *a, struct proto_chunk *out, struct cgn_err *err)
{
	struct proto_header *headers = NULL;
	*out = (struct proto_chunk){.kind = PROTO_CHUNK_HEAD};
	CGN_TRY(make_headers(msg, BYTES(R_HEADERS), a, &headers, err));
	out->headers = headers;
	struct wire_rd rd = wire_rd_of(msg);
	for (uint32_t tag; (tag = wire_tag(&rd)) != 0;) {
		if (tag == VARINT(R_STATUS))
			out->status = (int)(uint32_t)wire_varint(&rd);
		else if (tag == BYTES(R_HEADERS))
			CGN_TRY(read_header(wire_bytes(&rd), &headers[out->n_headers++], err));
		else if (tag == BYTES(R_ENGINE))
			out->engine = wire_bytes(&rd);
		else
			wire_skip(&rd, tag);
	}
	if (rd.bad)
		return CGN_FAIL(err, INVALID, "ResponseHead: truncated or not protobuf");
	if (out->status < 100 || out->status > 599)
		return CGN_FAIL(err, INVALID, "ResponseHead: %d is not an HTTP status", out->status);
	return CGN_OK;
}

CGN_RC proto_chunk_read(struct cgn_str msg, struct cgn_arena *a, struct proto_chunk *out, struct cgn_err *err)
{
	struct wire_rd rd = wire_rd_of(msg);
	*out = (struct proto_chunk){.kind = PROTO_CHUNK_EMPTY};
	for (uint32_t tag; (tag = wire_tag(&rd)) != 0;) {
		if (tag == BYTES(C_DATA))
			*out = (struct proto_chunk){.kind = PROTO_CHUNK_DATA, .data = wire_bytes(&rd)};
		else if (tag == BYTES(C_HEAD))
			CGN_TRY(read_head(wire_bytes(&rd), a, out, err));
		else
			wire_skip(&rd, tag);
	}
	return rd.bad ? CGN_FAIL(err, INVALID, "GenerateChunk: truncated or not protobuf") : CGN_OK;
}
