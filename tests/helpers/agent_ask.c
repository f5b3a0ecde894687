/* SPDX-License-Identifier: Apache-2.0 */
/* agent_ask ADDR watch [OPTION...]: prints Agent.Watch's events, one JSON object a line, until killed or
 * ended
 *   repair=N,N       request these ranges after the first check
 *   pause=N          stop reading after N events until a line comes on stdin
 *   blocks=count     print how many blocks came and went, not which
 *
 * agent_ask ADDR generate PATH [OPTION...] <body: one Agent.Generate; prints {"head":...},
 * {"data":"..."}..., {"code":"FINE","message":""}
 *   model=M engine=E id=ID method=GET chain=HEX,HEX header=name:value    fields of the request
 *   made=SEED:COUNT  a made-up chain
 *   cancel=N         cancel after N data chunks and print {"cancelled":true}
 *   pause=N          stop reading after N data chunks until a line comes on stdin (the body is then
 *                    body=TEXT) */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/pb/pb.h"
#include "io/wire/grpc/grpc.h"
#include "policy/node/proto/proto.h"

struct ask {
	struct cgn_loop *loop;
	struct grpc_call *call;
	struct cgn_buf body;
	struct proto_header headers[32];
	uint64_t chain[PROTO_MAX_CHAIN];
	uint32_t repair[BLOCK_RANGES];
	size_t n_repair;
	bool count_only, repaired;
	struct proto_generate rq;
	size_t cancel_after, pause_after, chunks, bytes;
	struct cgn_timer poll;
	int exit_code;
};

static void line_print(struct cgn_buf *b)
{
	cgn_buf_char(b, '\n');
	(void)fwrite(b->p, 1, b->n, stdout);
	(void)fflush(stdout);
	cgn_buf_fini(b);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct ask *a = user;
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	(void)c;
	json_open(&o, '{');
	json_key(&o, "code");
	json_put_z(&o, cgn_code_name(why->code));
	json_key(&o, "message");
	json_put_z(&o, why->code != CGN_FINE ? why->msg : "");
	json_key(&o, "bytes");
	json_put_u64(&o, a->bytes);
	json_close(&o, '}');
	line_print(&b);
	a->exit_code = why->code != CGN_FINE;
	cgn_loop_stop(a->loop);
}

/* ---- generate ---- */
static void say_head(const struct proto_chunk *ch)
{
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	json_key(&o, "head");
	json_put_u64(&o, (uint64_t)ch->status);
	json_key(&o, "engine");
	json_put_str(&o, ch->engine);
	json_key(&o, "headers");
	json_open(&o, '[');
	for (size_t i = 0; i < ch->n_headers; i++) {
		json_open(&o, '[');
		json_put_str(&o, ch->headers[i].name);
		json_put_str(&o, ch->headers[i].value);
		json_close(&o, ']');
	}
	json_close(&o, ']');
	json_close(&o, '}');
	line_print(&b);
}

static void say_data(const struct proto_chunk *ch)
{
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	json_key(&o, "data");
	json_put_str(&o, ch->data);
	json_close(&o, '}');
	line_print(&b);
}

static void say_word(const char *word)
{
	struct cgn_buf b = {0};
	cgn_buf_fmt(&b, "{\"%s\":true}", word);
	line_print(&b);
}

static void on_poll(struct cgn_timer *t)
{
	struct ask *a = CGN_CONTAINER(t, struct ask, poll);
	char c;
	if (read(0, &c, 1) >= 0)
		grpc_resume(a->call);
	else
		cgn_timer_set(t, 10 * CGN_MSEC);
}

static void after_chunk(struct ask *a)
{
	a->chunks++;
	if (a->chunks == a->cancel_after) {
		grpc_cancel(&a->call);
		say_word("cancelled");
		cgn_loop_stop(a->loop);
	} else if (a->chunks == a->pause_after) {
		grpc_pause(a->call);
		say_word("paused");
		cgn_timer_set(&a->poll, 10 * CGN_MSEC);
	}
}

static void on_chunk(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct ask *a = user;
	struct cgn_arena arena;
	struct proto_chunk ch;
	struct cgn_err err = {0};
	(void)c;
	cgn_arena_init(&arena, (size_t)1024 * 1024);
	if (!cgn_ok(proto_chunk_read((struct cgn_str){(const char *)p, n}, &arena, &ch, &err)))
		cgn_must_failed(err.msg, CGN_HERE);
	if (ch.kind == PROTO_CHUNK_HEAD)
		say_head(&ch);
	a->bytes += ch.kind == PROTO_CHUNK_DATA ? ch.data.n : 0;
	if (ch.kind == PROTO_CHUNK_DATA && a->pause_after == 0)
		say_data(&ch);
	cgn_arena_fini(&arena);
	if (ch.kind == PROTO_CHUNK_DATA)
		after_chunk(a);
}

static void read_chain(struct ask *a, const char *text)
{
	for (char *end; *text != '\0' && a->rq.facts.n_chain < CGN_COUNT(a->chain);
		text = *end == ',' ? end + 1 : end)
		a->chain[a->rq.facts.n_chain++] = strtoull(text, &end, 16);
}

static void make_chain(struct ask *a, const char *text)
{
	char *end;
	uint64_t seed = strtoull(text, &end, 10), n = strtoull(end + 1, NULL, 10);
	CGN_MUST(*end == ':' && n <= CGN_COUNT(a->chain));
	for (uint64_t i = 0; i < n; i++)
		a->chain[i] = block_fingerprint(seed << 32 | i, 1);
	a->rq.facts.n_chain = n;
}

static void ask_option(struct ask *a, const char *arg)
{
	const char *eq = strchr(arg, '=');
	CGN_MUST(eq != NULL);
	struct cgn_str key = {arg, (size_t)(eq - arg)}, value = cgn_str_of(eq + 1), rest = value;
	if (cgn_str_is(key, "model"))
		a->rq.facts.model = value;
	else if (cgn_str_is(key, "engine"))
		a->rq.facts.engine = value;
	else if (cgn_str_is(key, "id"))
		a->rq.request_id = value;
	else if (cgn_str_is(key, "method"))
		a->rq.method = value;
	else if (cgn_str_is(key, "body"))
		cgn_buf_str(&a->body, value);
	else if (cgn_str_is(key, "chain"))
		read_chain(a, value.p);
	else if (cgn_str_is(key, "made"))
		make_chain(a, value.p);
	else if (cgn_str_is(key, "cancel"))
		a->cancel_after = strtoul(value.p, NULL, 10);
	else if (cgn_str_is(key, "pause"))
		a->pause_after = strtoul(value.p, NULL, 10);
	else if (cgn_str_is(key, "header") && a->rq.n_headers < CGN_COUNT(a->headers))
		a->headers[a->rq.n_headers++] = (struct proto_header){cgn_str_split(&rest, ':'), rest};
	else
		cgn_must_failed(arg, CGN_HERE);
}

static void generate_run(struct ask *a, int argc, char **argv)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prefix = {0};
	ssize_t n = 0;
	a->rq = (struct proto_generate){.method = CGN_STR("POST"),
		.path = cgn_str_of(argv[3]),
		.headers = a->headers,
		.facts.chain = a->chain};
	for (int i = 4; i < argc; i++)
		ask_option(a, argv[i]);
	while (a->body.n == 0 || n > 0) {
		char *room = cgn_buf_room(&a->body, 65536);
		if (a->pause_after > 0 || room == NULL || (n = read(0, room, 65536)) <= 0)
			break;
		cgn_buf_grew(&a->body, (size_t)n);
	}
	(void)fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
	a->rq.body = cgn_buf_view(&a->body);
	proto_generate_prefix(&a->rq, &prefix);
	const struct iovec iov[] = {{prefix.p, prefix.n}, {a->body.p, a->body.n}};
	grpc_send(a->call, iov, a->body.n > 0 ? 2 : 1);
	grpc_half_close(a->call);
}

/* ---- watch ---- */
static unsigned tiers_of(const Cognitora__V1__Residency *r, size_t i)
{
	return r->tiers.len == 0 ? BLOCK_TIER_BIT(BLOCK_GPU) : r->tiers.data[i];
}

/* Write a digest as "abc", or as "abc:6" where the tier is not the GPU alone. */
static void put_digests(struct json_out *o, const char *key, const Cognitora__V1__Residency *r, bool held,
	bool count_only)
{
	json_key(o, key);
	if (count_only) {
		size_t n = 0;
		for (size_t i = 0; i < r->n_blocks; i++)
			n += (tiers_of(r, i) != 0) == held;
		json_put_u64(o, n);
		return;
	}
	json_open(o, '[');
	for (size_t i = 0; i < r->n_blocks; i++) {
		char text[32];
		unsigned tiers = tiers_of(r, i);
		int n = snprintf(text, sizeof text, "%llx", (unsigned long long)r->blocks[i]);
		if (tiers > BLOCK_TIER_BIT(BLOCK_GPU))
			(void)snprintf(text + n, sizeof text - (size_t)n, ":%u", tiers);
		if ((tiers != 0) == held)
			json_put_z(o, text);
	}
	json_close(o, ']');
}

static void put_node(struct json_out *o, const Cognitora__V1__Node *n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	proto_node_to_json(n, &text);
	json_key(o, "node");
	json_put_raw(o, cgn_buf_view(&text));
}

static void put_load(struct json_out *o, const Cognitora__V1__Load *l)
{
	json_key(o, "load");
	json_open(o, '{');
	json_key(o, "inflight");
	json_put_u64(o, l->inflight);
	json_key(o, "running");
	json_put_u64(o, l->running);
	json_key(o, "requests_total");
	json_put_u64(o, l->requests_total);
	json_key(o, "power_headroom");
	json_put_f64(o, (double)l->power_headroom);
	json_close(o, '}');
}

static void put_residency(struct json_out *o, const Cognitora__V1__Residency *r, bool count_only)
{
	json_key(o, "residency");
	json_open(o, '{');
	json_key(o, "reset");
	json_put_bool(o, r->reset);
	json_key(o, "ranges");
	json_open(o, '[');
	for (size_t i = 0; i < r->n_ranges; i++)
		json_put_u64(o, r->ranges[i]);
	json_close(o, ']');
	put_digests(o, "stored", r, true, count_only);
	put_digests(o, "removed", r, false, count_only);
	json_key(o, "source");
	json_put_z(o, r->source == COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS ? "events" : "sent");
	json_key(o, "stale_ms");
	json_put_u64(o, r->stale_ms);
	json_close(o, '}');
}

static void ask_repair(struct ask *a)
{
	Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	rq.repair = a->repair;
	rq.n_repair = a->n_repair;
	pb_pack(&rq, &b);
	grpc_send(a->call, &(struct iovec){b.p, b.n}, 1);
	a->repaired = true;
}

static void on_event(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__WatchEvent *ev = NULL;
	struct cgn_err err = {0};
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	struct ask *a = user;
	(void)c;
	if (!cgn_ok(pb_unpack(&cognitora__v1__watch_event__descriptor, (struct cgn_str){(const char *)p, n},
		    &ev, &err)))
		cgn_must_failed(err.msg, CGN_HERE);
	json_open(&o, '{');
	json_key(&o, "seq");
	json_put_u64(&o, ev->seq);
	if (ev->node != NULL)
		put_node(&o, ev->node);
	if (ev->load != NULL)
		put_load(&o, ev->load);
	if (ev->residency != NULL)
		put_residency(&o, ev->residency, a->count_only);
	if (ev->check != NULL) {
		json_key(&o, "check");
		json_put_u64(&o, ev->check->blocks);
	}
	json_close(&o, '}');
	line_print(&b);
	if (ev->check != NULL && a->n_repair > 0 && !a->repaired)
		ask_repair(a);
	after_chunk(a);
}

static void watch_option(struct ask *a, const char *arg)
{
	if (strcmp(arg, "blocks=count") == 0)
		a->count_only = true;
	else if (strncmp(arg, "pause=", 6) == 0)
		a->pause_after = strtoul(arg + 6, NULL, 10);
	else if (strncmp(arg, "repair=", 7) == 0)
		for (char *at = (char *)(uintptr_t)arg + 6;
			*at != '\0' && a->n_repair < CGN_COUNT(a->repair);)
			a->repair[a->n_repair++] = (uint32_t)strtoul(at + 1, &at, 10);
	else
		cgn_must_failed(arg, CGN_HERE);
}

static void watch_run(struct ask *a, int argc, char **argv)
{
	for (int i = 3; i < argc; i++)
		watch_option(a, argv[i]);
	(void)fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
	const Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	pb_pack(&rq, &b);
	const struct iovec iov = {b.p, b.n};
	grpc_send(a->call, &iov, 1); /* Left open for repairs. */
}

/* Trusts ASK_CA of the environment; ASK_CERT and ASK_KEY are the own identity. */
static CGN_RC tls_open(struct tls_ctx **out, struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", NULL};
	const struct tls_cfg cfg = {.ca_file = getenv("ASK_CA"),
		.cert_file = getenv("ASK_CERT"),
		.key_file = getenv("ASK_KEY"),
		.alpn = alpn};
	return tls_ctx_new(&cfg, out, err);
}

int main(int argc, char **argv)
{
	static const struct grpc_call_ops generate_ops = {.on_message = on_chunk, .on_close = on_close};
	static const struct grpc_call_ops watch_ops = {.on_message = on_event, .on_close = on_close};
	struct ask *a = calloc(1, sizeof *a);
	struct grpc_channel *ch = NULL;
	struct cgn_err err = {0};
	bool is_watch = argc > 2 && strcmp(argv[2], "watch") == 0;
	if (a == NULL || argc < (is_watch ? 3 : 4)) {
		(void)fputs("usage: agent_ask ADDR watch [OPTION...] | generate PATH [OPTION...]\n", stderr);
		return 2;
	}
	struct tls_ctx *tls = NULL;
	if (getenv("ASK_CA") != NULL && !cgn_ok(tls_open(&tls, &err)))
		cgn_must_failed(err.msg, CGN_HERE);
	const struct grpc_channel_cfg cfg = {.addr = argv[1], .tls = tls};
	if (!cgn_ok(cgn_loop_new(&a->loop, &err)) || !cgn_ok(grpc_channel_new(a->loop, &cfg, &ch, &err)) ||
		!cgn_ok(grpc_call_start(ch, is_watch ? PROTO_AGENT_WATCH : PROTO_AGENT_GENERATE, 0,
			is_watch ? &watch_ops : &generate_ops, a, &a->call, &err))) {
		(void)fprintf(stderr, "agent_ask: %s\n", err.msg);
		return 1;
	}
	cgn_timer_init(&a->poll, a->loop, on_poll);
	if (is_watch)
		watch_run(a, argc, argv);
	else
		generate_run(a, argc, argv);
	cgn_loop_run(a->loop);
	cgn_timer_cancel(&a->poll);
	grpc_channel_free(&ch);
	tls_ctx_free(&tls);
	cgn_loop_free(&a->loop);
	cgn_buf_fini(&a->body);
	int code = a->exit_code;
	free(a);
	return code;
}
