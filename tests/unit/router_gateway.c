/* SPDX-License-Identifier: Apache-2.0 */
/* A gateway worker on its own thread between a client and scripted agents, all in one process. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/digest/digest.h"
#include "base/json/json.h"
#include "base/log/log.h"
#include "disk_folder.h"
#include "gateway_world.h"
#include "io/net/net/addr.h"
#include "io/os/disk/disk.h"
#include "io/wire/grpc/grpc_priv.h"
#include "io/wire/http/server_priv.h"
#include "router/request/account/account.h"
#include "router/request/account/usage.h"
#include "router/request/limit/budgets.h"
#include "router/shared/age/age.h"
#include "router/shared/pregate/pregate.h"
#include "toy_tokenizer.h"

#define MAX_AGENTS 5
#define WHOLE      1000000 /* Bytes of a long answer. */
/* SHA-256 of "password" */
#define KEY_HASH "sha256:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
/* SHA-256 of "test" */
#define KEY_HASH_TEST "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

enum act {
	ACT_ANSWER, /* 200 and ANSWER. */
	ACT_STREAM, /* 200, two events, [DONE]. */
	ACT_LIE,    /* 200, two events, and a usage of 10^12 tokens. */
	/* The first of all calls dies in a stream that counts tokens; later calls are refused. */
	ACT_ONCE,
	ACT_FLOOD,      /* 200, and more bytes than fit between two sockets. */
	ACT_500,        /* The engine's own error. */
	ACT_400,        /* An error that blames the request. */
	ACT_REFUSE,     /* UNAVAILABLE before any head. */
	ACT_INVALID,    /* INVALID_ARGUMENT: another node would give the same. */
	ACT_HEAD_ONLY,  /* A head, then the agent dies. */
	ACT_EMPTY,      /* A head, then a good end without a body. */
	ACT_CUT_EVENTS, /* Dies between two events. */
	ACT_CUT_MIDWAY, /* Dies inside an event. */
	ACT_CUT_PLAIN,  /* Dies inside a body of known length. */
	ACT_HANG,       /* No answer at all. */
	ACT_STALL,      /* An event, then nothing. */
	ACT_STEPS,      /* An event, and then what the test sends to |w->open|. */
	ACT_STORED,     /* 200, and an answer that the engine has stored as resp_1. */
	ACT_CODED,      /* 200, and CODED, which is gzip. */
	ACT_WHOLE,      /* A document of WHOLE bytes. */
	ACT_DATA_FIRST, /* Bytes without a head. */
	ACT_TWO_HEADS,
	ACT_JUNK,        /* Bytes that are not protobuf. */
	ACT_END_AT_ONCE, /* A good end without a head. */
};

struct agent {
	struct grpc_server *server;
	enum act act;
	unsigned calls, cancelled, asked; /* |asked|: tokenize requests, which do not count as calls. */
};

enum tokens_act { TOKENS_FORTY, TOKENS_400, TOKENS_500, TOKENS_JUNK, TOKENS_DIE, TOKENS_HANG };

struct world {
	const char *kind; /* Kind of the agents' engines. */
	enum tokens_act tokens;
	struct cgn_loop *loop;
	struct agent agent[MAX_AGENTS];
	size_t n_agents;
	struct cluster *cluster;
	struct gw_shared shared;
	struct gw_worker *worker;
	struct http_client *client;
	struct cgn_timer limit;
	/* The last answer. */
	bool over, failed;
	struct grpc_call *open; /* The call that ACT_FLOOD or ACT_STEPS answered last. */
	const char *small;      /* The model of the first agent; NULL: that of the others. */
	char dir[64];           /* Folder of files; empty: none. */
	bool pause_at_head;     /* Read nothing of the next answer after its head. */
	enum http_fail_stage stage;
	int status;
	char node[64], hit[32], request_id[160], retry_after[16], content_type[64];
	char rate[3][2][32], should_retry[8]; /* Limit, remaining, reset; for requests, for tokens. */
	struct cgn_buf body;
	/* The last request that an agent received. */
	struct cgn_buf seen_body, seen_headers;
	char seen_model[64], seen_path[64];
	size_t seen_chain;
	uint64_t seen_first; /* First digest of the chain. */
	uint64_t seen_digests[64];
	uint32_t seen_attempt;
	bool seen_stream;
};

static struct world *w; /* The world of the running test. */

/* ---- agents ---- */

/* An answer and an event that each route takes for one: it has the members of all. */
#define ANSWER "{\"choices\":[1],\"data\":[1],\"results\":[1],\"tokens\":[1]}"
#define EVENT  "data: {\"choices\":[1]}\n\n"

static void bytes_send(struct grpc_call *c, struct cgn_str data)
{
	uint8_t lead[PROTO_CHUNK_LEAD];
	size_t n = proto_chunk_lead(lead, data.n);
	const struct iovec iov[] = {{lead, n}, {(void *)(uintptr_t)data.p, data.n}};
	grpc_send(c, iov, 2);
}

static void data_send(struct grpc_call *c, const char *data)
{
	bytes_send(c, cgn_str_of(data));
}

static void head_send(struct grpc_call *c, int status, const char *type, const char *length)
{
	struct proto_header h[] = {{CGN_STR("content-type"), cgn_str_of(type)},
		{CGN_STR("x-engine"), CGN_STR("toy")}, {CGN_STR("content-length"), cgn_str_of(length)}};
	struct cgn_buf b = {0};
	proto_chunk_head(status, h, length != NULL ? 3 : 2, CGN_STR("e"), &b);
	const struct iovec iov = {b.p, b.n};
	grpc_send(c, &iov, 1);
	cgn_buf_fini(&b);
}

static void act_stream(struct grpc_call *c, enum act act)
{
	head_send(c, 200, "text/event-stream", NULL);
	data_send(c, EVENT);
	if (act == ACT_CUT_MIDWAY)
		data_send(c, "data: {\"b\"");
	if (act == ACT_LIE) {
		data_send(c,
			"data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1000000000000}}\n\ndata: [DONE]\n\n");
		grpc_finish(c, CGN_FINE, "");
	} else if (act == ACT_STREAM) {
		data_send(c,
			"data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n");
		grpc_finish(c, CGN_FINE, "");
	} else if (act != ACT_STALL)
		grpc_finish(c, CGN_BAD_GATEWAY, "the engine died");
}

static void act_once(struct grpc_call *c)
{
	unsigned sum = 0;
	for (size_t i = 0; i < w->n_agents; i++)
		sum += w->agent[i].calls;
	if (sum == 1) {
		head_send(c, 200, "text/event-stream", NULL);
		data_send(c,
			"data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}],"
			"\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":1}}\n\n");
	}
	grpc_finish(c, CGN_UNAVAILABLE, "the engine died");
}

static void act_flood(struct grpc_call *c)
{
	static char event[65536];
	w->open = c;
	memset(event, 'x', sizeof event - 1);
	memcpy(event, "data: {\"choices\":[\"", 19);
	memcpy(event + sizeof event - 7, "\"]}\n\n", 5);
	event[sizeof event - 2] = '\0';
	head_send(c, 200, "text/event-stream", NULL);
	for (int i = 0; i < 256; i++)
		data_send(c, event);
	data_send(c, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":50}}\n\ndata: [DONE]\n\n");
	grpc_finish(c, CGN_FINE, "");
}

/* A document in a stored block of gzip: its text can be read. */
#define CODED                                                                  \
	CGN_STR("\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03\x01\x1b\x00\xe4\xff" \
		"{\"model\":\"m\",\"choices\":[1]}"                            \
		"\x4b\x37\x45\x93\x1b\x00\x00\x00")

static void act_coded(struct grpc_call *c)
{
	struct proto_header h[] = {{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("content-encoding"), CGN_STR("gzip")}};
	struct cgn_buf b = {0};
	proto_chunk_head(200, h, CGN_COUNT(h), CGN_STR("e"), &b);
	grpc_send(c, &(struct iovec){b.p, b.n}, 1);
	cgn_buf_fini(&b);
	bytes_send(c, CODED);
	grpc_finish(c, CGN_FINE, "");
}

static void act_whole(struct grpc_call *c)
{
	static char text[WHOLE + 1];
	memset(text, 'x', sizeof text - 1);
	memcpy(text, "{\"choices\":[\"", 13);
	memcpy(text + sizeof text - 4, "\"]}", 3);
	head_send(c, 200, "application/json", NULL);
	data_send(c, text);
	grpc_finish(c, CGN_FINE, "");
}

static void act_wrong(struct grpc_call *c, enum act act)
{
	if (act == ACT_DATA_FIRST)
		data_send(c, "early");
	if (act == ACT_TWO_HEADS) {
		head_send(c, 200, "application/json", NULL);
		head_send(c, 200, "application/json", NULL);
	}
	if (act == ACT_JUNK)
		grpc_send(c, &(struct iovec){(void *)(uintptr_t)"\x0a\xff\xff\xff\xff\x0fzz", 8}, 1);
	grpc_finish(c, CGN_FINE, "");
}

static void act_perform(struct grpc_call *c, enum act act)
{
	char length[24];
	switch (act) {
	case ACT_ANSWER:
		(void)snprintf(length, sizeof length, "%zu", strlen(ANSWER));
		head_send(c, 200, "application/json", length);
		data_send(c, (char[4]){ANSWER[0], ANSWER[1], ANSWER[2], '\0'});
		data_send(c, &ANSWER[3]);
		grpc_finish(c, CGN_FINE, "");
		break;
	case ACT_500:
		head_send(c, 500, "application/json", NULL);
		data_send(c, "{\"engine\":\"broke\"}");
		grpc_finish(c, CGN_FINE, "");
		break;
	case ACT_400:
		head_send(c, 400, "application/json", NULL);
		data_send(c, "{\"engine\":\"too long\"}");
		grpc_finish(c, CGN_FINE, "");
		break;
	case ACT_REFUSE:
		grpc_finish(c, CGN_UNAVAILABLE, "not now");
		break;
	case ACT_INVALID:
		grpc_finish(c, CGN_INVALID, "no such thing");
		break;
	case ACT_HEAD_ONLY:
	case ACT_EMPTY:
		head_send(c, 200, "application/json", NULL);
		grpc_finish(c, act == ACT_EMPTY ? CGN_FINE : CGN_BAD_GATEWAY, "");
		break;
	case ACT_CUT_PLAIN:
		head_send(c, 200, "application/json", "99");
		data_send(c, "{\"choices\":[1],");
		grpc_finish(c, CGN_BAD_GATEWAY, "the engine died");
		break;
	case ACT_STREAM:
	case ACT_LIE:
	case ACT_CUT_EVENTS:
	case ACT_CUT_MIDWAY:
	case ACT_STALL:
		act_stream(c, act);
		break;
	case ACT_ONCE:
		act_once(c);
		break;
	case ACT_FLOOD:
		act_flood(c);
		break;
	case ACT_STEPS:
		w->open = c;
		head_send(c, 200, "text/event-stream", NULL);
		data_send(c, EVENT);
		break;
	case ACT_STORED:
		head_send(c, 200, "application/json", NULL);
		data_send(c,
			"{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"completed\",\"output\":[1]}");
		grpc_finish(c, CGN_FINE, "");
		break;
	case ACT_CODED:
		act_coded(c);
		break;
	case ACT_WHOLE:
		act_whole(c);
		break;
	case ACT_HANG:
		break;
	case ACT_DATA_FIRST:
	case ACT_TWO_HEADS:
	case ACT_JUNK:
	case ACT_END_AT_ONCE:
		act_wrong(c, act);
		break;
	}
}

static void tell_tokens(struct grpc_call *c)
{
	struct cgn_buf b = {0};
	head_send(c, 200, "application/json", NULL);
	cgn_buf_putz(&b, "{\"count\":40,\"tokens\":[0");
	for (int i = 1; i < 40; i++)
		cgn_buf_fmt(&b, ",%d", i);
	cgn_buf_putz(&b, "]}");
	data_send(c, cgn_buf_z(&b));
	cgn_buf_fini(&b);
	grpc_finish(c, CGN_FINE, "");
}

static void perform_tokens(struct grpc_call *c)
{
	if (w->tokens == TOKENS_FORTY) {
		tell_tokens(c);
	} else if (w->tokens == TOKENS_DIE) {
		grpc_finish(c, CGN_UNAVAILABLE, "not now");
	} else if (w->tokens != TOKENS_HANG) {
		head_send(c,
			w->tokens == TOKENS_400           ? 400
				: w->tokens == TOKENS_500 ? 500
							  : 200,
			"application/json", NULL);
		data_send(c, "{\"tokens\":[1,-2]}");
		grpc_finish(c, CGN_FINE, "");
	}
}

static void agent_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct agent *a = user;
	struct cgn_arena arena;
	struct proto_generate g;
	cgn_arena_init(&arena, 1 << 20);
	assert_true(cgn_ok(proto_generate_read((struct cgn_str){(const char *)p, n}, &arena, &g, NULL)));
	if (cgn_str_is(g.path, "/tokenize") || cgn_str_is(g.path, "/apply-template")) {
		assert_true(cgn_ok(json_parse(g.body, &(struct json_val){0}, NULL, NULL)));
		cgn_arena_fini(&arena);
		a->asked++;
		perform_tokens(c);
		return;
	}
	cgn_buf_fini(&w->seen_body);
	cgn_buf_fini(&w->seen_headers);
	cgn_buf_str(&w->seen_body, g.body);
	for (size_t i = 0; i < g.n_headers; i++)
		cgn_buf_fmt(&w->seen_headers, "%.*s: %.*s\n", CGN_STR_ARG(g.headers[i].name),
			CGN_STR_ARG(g.headers[i].value));
	(void)cgn_str_copyz(w->seen_model, sizeof w->seen_model, g.facts.model);
	(void)cgn_str_copyz(w->seen_path, sizeof w->seen_path, g.path);
	w->seen_chain = g.facts.n_chain;
	for (size_t i = 0; i < g.facts.n_chain && i < CGN_COUNT(w->seen_digests); i++)
		w->seen_digests[i] = g.facts.chain[i];
	w->seen_first = g.facts.n_chain > 0 ? g.facts.chain[0] : 0;
	w->seen_attempt = g.facts.attempt;
	w->seen_stream = g.facts.stream;
	cgn_arena_fini(&arena);
	a->calls++;
	act_perform(c, a->act);
}

static void agent_closed(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	struct agent *a = user;
	a->cancelled += why->code == CGN_CANCELLED;
}

static const struct grpc_call_ops agent_ops = {.on_message = agent_message, .on_close = agent_closed};

static void on_generate(struct grpc_call *c, void *user)
{
	grpc_call_take(c, &agent_ops, user);
}

static const struct grpc_method agent_methods[] = {{PROTO_AGENT_GENERATE, on_generate}};

/* ---- the world ---- */

static void agent_join(size_t i)
{
	struct agent *a = &w->agent[i];
	struct grpc_server_cfg cfg = {.listen = {.addr = "127.0.0.1:0"},
		.methods = agent_methods,
		.n_methods = 1,
		.max_message = 16 << 20};
	assert_true(cgn_ok(grpc_server_new(w->loop, &cfg, a, &a->server, NULL)));
	char id[8], addr[32];
	snprintf(id, sizeof id, "n%zu", i);
	snprintf(addr, sizeof addr, "127.0.0.1:%u", grpc_server_port(a->server));
	gateway_join(w->cluster,
		&(struct gateway_node){.id = id,
			.addr = addr,
			.kind = w->kind,
			.model = i == 0 && w->small != NULL ? w->small : "m"});
}

static void on_limit(struct cgn_timer *t)
{
	cgn_loop_stop(t->loop);
}

static void world_start(size_t n_agents, const char *toml, const char *keys)
{
	char addr[32];
	log_setup("test", LOG_ERROR, LOG_HUMAN);
	assert_true(cgn_ok(cgn_loop_new(&w->loop, NULL)));
	w->cluster = cluster_new();
	w->cluster->heard = true;
	w->n_agents = n_agents;
	for (size_t i = 0; i < n_agents; i++)
		agent_join(i);
	gateway_shared_open(&w->shared, w->cluster);
	w->worker = gateway_worker(&w->shared, w->cluster, toml, keys, addr);
	struct http_client_cfg client = {.addr = addr};
	assert_true(cgn_ok(http_client_new(w->loop, &client, &w->client, NULL)));
	cgn_timer_init(&w->limit, w->loop, on_limit);
}

static void world_of(const char *kind, size_t n_agents, const char *toml, const char *keys)
{
	w = calloc(1, sizeof *w);
	w->kind = kind;
	world_start(n_agents, toml, keys);
}

/* Open a world whose engines do not tokenize. */
static void world_open(size_t n_agents, const char *toml, const char *keys)
{
	world_of("openai_compat", n_agents, toml, keys);
}

static void turn_for(cgn_nsec delay)
{
	cgn_timer_set(&w->limit, delay);
	cgn_loop_run(w->loop);
	cgn_timer_cancel(&w->limit);
}

/* Wait until bookings and memory are given back, a moment after the client has its answer. */
static void world_settle(void)
{
	for (int i = 0; i < 500; i++) {
		uint64_t open = atomic_load(&w->shared.body_bytes) + atomic_load(&w->shared.resume_bytes);
		for (size_t s = 0; s < w->n_agents; s++)
			open += cluster_inflight(w->cluster, (uint16_t)s);
		if (open == 0)
			return;
		turn_for(10 * CGN_MSEC);
	}
	fail_msg("bookings or body memory were not given back");
}

static void world_close(void)
{
	world_settle();
	http_client_free(&w->client);
	gw_worker_free(&w->worker);
	for (size_t i = 0; i < w->n_agents; i++)
		grpc_server_free(&w->agent[i].server);
	gw_budgets_close(&w->shared.budgets);
	gw_pregate_close(&w->shared.pregate);
	cgn_loop_free(&w->loop);
	gateway_shared_close(&w->shared);
	cluster_free(&w->cluster);
	cgn_buf_fini(&w->body);
	cgn_buf_fini(&w->seen_body);
	cgn_buf_fini(&w->seen_headers);
	if (w->dir[0] != '\0')
		disk_folder_remove(w->dir);
	free(w);
	w = NULL;
}

/* ---- the client ---- */

static void field_keep(const struct http_head *h, const char *name, char *to, size_t cap)
{
	(void)cgn_str_copyz(to, cap, http_head_get(h, name));
}

static void keep_rates(const struct http_head *h)
{
	static const char *const whats[] = {"limit", "remaining", "reset"},
				 *const units[] = {"requests", "tokens"};
	char name[40];
	for (size_t i = 0; i < 3; i++)
		for (size_t u = 0; u < 2; u++) {
			(void)snprintf(name, sizeof name, "x-ratelimit-%s-%s", whats[i], units[u]);
			field_keep(h, name, w->rate[i][u], sizeof w->rate[i][u]);
		}
	field_keep(h, "x-should-retry", w->should_retry, sizeof w->should_retry);
}

static void on_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)user;
	w->status = h->status;
	if (w->pause_at_head)
		http_call_pause(c);
	field_keep(h, "x-cgn-node", w->node, sizeof w->node);
	field_keep(h, "x-cgn-cache-hit", w->hit, sizeof w->hit);
	field_keep(h, "x-request-id", w->request_id, sizeof w->request_id);
	field_keep(h, "retry-after", w->retry_after, sizeof w->retry_after);
	field_keep(h, "content-type", w->content_type, sizeof w->content_type);
	keep_rates(h);
}

static void on_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)user;
	cgn_buf_add(&w->body, p, n);
}

static void on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)user;
	(void)trailers;
	(void)n;
	w->over = true;
	cgn_loop_stop(w->loop);
}

static void on_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
	w->failed = true;
	w->stage = stage;
	cgn_loop_stop(w->loop);
}

static const struct http_call_ops client_ops = {.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail};

static struct http_call *chat_start(const char *path, struct cgn_str body, const struct http_field *fields,
	size_t n)
{
	struct http_call *c = NULL;
	const struct iovec iov = {(void *)(uintptr_t)body.p, body.n};
	struct http_request rq = {.method = body.n > 0 ? "POST" : "GET",
		.path = path,
		.fields = fields,
		.n_fields = n,
		.body = &iov,
		.n_body = 1};
	rq.body_len = (int64_t)body.n;
	cgn_buf_fini(&w->body);
	w->over = w->failed = false;
	w->status = 0;
	w->node[0] = w->hit[0] = w->retry_after[0] = '\0';
	assert_true(cgn_ok(http_call_start(w->client, &rq, &client_ops, NULL, &c, NULL)));
	return c;
}

static void chat_ask(const char *path, const char *body, const struct http_field *fields, size_t n)
{
	(void)chat_start(path, cgn_str_of(body), fields, n);
	turn_for(20 * CGN_SEC);
	assert_true(w->over || w->failed);
}

#define CHAT  "/v1/chat/completions"
#define HELLO "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}"

static void chat_hello(void)
{
	chat_ask(CHAT, HELLO, NULL, 0);
}

static const char *body_text(void)
{
	return cgn_buf_z(&w->body);
}

static unsigned calls_sum(void)
{
	unsigned sum = 0;
	for (size_t i = 0; i < w->n_agents; i++)
		sum += w->agent[i].calls;
	return sum;
}

static void all_act(enum act act)
{
	for (size_t i = 0; i < w->n_agents; i++)
		w->agent[i].act = act;
}

static void rules_reload(const char *toml)
{
	struct gw_rules *rules = gateway_rules(toml, NULL);
	gw_worker_update(w->worker, NULL, rules);
	gw_rules_unref(&rules);
	turn_for(50 * CGN_MSEC);
}

/* ---- tests ---- */

static void what_goes_out_and_comes_back(void **state)
{
	(void)state;
	world_open(1, "[models.m]\naliases = [\"alias\"]\n", NULL);
	const struct http_field f[] = {{CGN_STR("authorization"), CGN_STR("Bearer secret")},
		{CGN_STR("x-request-id"), CGN_STR("id-7")},
		{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("x-cgn-subject"), CGN_STR("root")}, {CGN_STR("cookie"), CGN_STR("a=b")},
		{CGN_STR("openai-organization"), CGN_STR("org")}, {CGN_STR("openai-project"), CGN_STR("p")},
		{CGN_STR("openai-beta"), CGN_STR("x=1")}, {CGN_STR("traceparent"), CGN_STR("00-1")}};
	const char *body =
		" {\"stream\" :true,\"x\":[1.50,null] , \"model\":\"alias\",\"messages\":[{\"role\":\"user\",\"content\":\"h\\u0069\"}]}\n";
	chat_ask(CHAT "?a=b", body, f, CGN_COUNT(f));
	assert_int_equal(w->status, 200);
	assert_string_equal(body_text(), ANSWER);
	assert_string_equal(w->node, "n0");
	assert_string_equal(w->request_id, "id-7");
	assert_string_equal(w->content_type, "application/json");
	/* Only the name changed, into the one that the engine knows, and usage is asked for. */
	assert_string_equal(cgn_buf_z(&w->seen_body),
		" {\"stream\" :true,\"x\":[1.50,null] , \"model\":\"m\",\"stream_options\":{\"include_usage\":true},\"messages\":[{\"role\":\"user\",\"content\":\"h\\u0069\"}]}\n");
	assert_string_equal(w->seen_path, CHAT "?a=b");
	assert_string_equal(w->seen_model, "m");
	assert_true(w->seen_stream);
	assert_int_equal(w->seen_attempt, 1);
	const char *headers = cgn_buf_z(&w->seen_headers);
	assert_string_equal(headers,
		"content-type: application/json\nopenai-beta: x=1\ntraceparent: 00-1\nx-request-id: id-7\n");
	world_close();
}

static void a_coded_answer_is_not_renamed(void **state)
{
	(void)state;
	world_open(1, "[models.m]\naliases = [\"alias\"]\n", NULL);
	all_act(ACT_CODED);
	const struct http_field f = {CGN_STR("accept-encoding"), CGN_STR("gzip")};
	chat_ask(CHAT, "{\"model\":\"alias\",\"messages\":[]}", &f, 1);
	assert_int_equal(w->status, 200);
	assert_true(cgn_str_eq(cgn_buf_view(&w->body), CODED));
	world_close();
}

static void a_failed_try_goes_elsewhere_unseen(void **state)
{
	(void)state;
	static const enum act bad[] = {ACT_REFUSE, ACT_500, ACT_HEAD_ONLY, ACT_EMPTY, ACT_DATA_FIRST,
		ACT_TWO_HEADS, ACT_JUNK, ACT_END_AT_ONCE};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		world_open(3, "[router.retry]\nbackoff = \"1ms\"\n", NULL);
		w->agent[0].act = w->agent[1].act = bad[i];
		for (int k = 0; k < 5; k++) {
			chat_hello();
			assert_int_equal(w->status, 200);
			assert_string_equal(body_text(), ANSWER);
			assert_string_equal(w->node, "n2");
		}
		assert_true(calls_sum() > 5);
		world_close();
	}
}

static void the_last_answer_of_failing_engines_is_relayed(void **state)
{
	(void)state;
	world_open(5, "[router.retry]\nattempts = 4\nbackoff = \"0ms\"\n", NULL);
	all_act(ACT_500);
	chat_hello();
	assert_int_equal(w->status, 500);
	assert_string_equal(body_text(), "{\"engine\":\"broke\"}");
	assert_int_equal(calls_sum(), 4);
	assert_int_equal(w->seen_attempt, 4);
	all_act(ACT_REFUSE);
	chat_hello();
	assert_int_equal(w->status, 503);
	assert_string_equal(w->retry_after, "2");
	assert_non_null(strstr(body_text(), "engine_unavailable"));
	assert_int_equal(calls_sum(), 8);
	world_close();
}

static void what_no_node_would_do_better_is_not_retried(void **state)
{
	(void)state;
	world_open(3, "", NULL);
	all_act(ACT_INVALID);
	chat_hello();
	assert_int_equal(w->status, 400);
	assert_non_null(strstr(body_text(), "no such thing"));
	assert_int_equal(calls_sum(), 1);
	world_close();
}

static void a_stored_answer_is_asked_for_at_its_node_alone(void **state)
{
	(void)state;
	world_open(3, "", NULL);
	all_act(ACT_STORED);
	chat_ask("/v1/responses", "{\"model\":\"m\",\"input\":\"hello\"}", NULL, 0);
	assert_int_equal(w->status, 200);
	size_t home = (size_t)(w->node[1] - '0');
	w->agent[home].act = ACT_500;
	for (unsigned i = 1; i < 4; i++) {
		chat_ask("/v1/responses/resp_1", "", NULL, 0);
		assert_int_equal(w->status, 500);
		assert_int_equal(w->agent[home].calls, 1 + i);
		assert_int_equal(calls_sum(), 1 + i);
	}
	world_close();
}

static void an_empty_answer_is_no_answer(void **state)
{
	(void)state;
	world_open(2, "", NULL);
	all_act(ACT_EMPTY);
	chat_hello();
	assert_int_equal(w->status, 503);
	assert_true(w->over);
	assert_non_null(strstr(body_text(), "it answered 200 with nothing"));
	assert_int_equal(calls_sum(), 2);
	world_close();
}

static void a_dying_stream_ends_with_an_error_event(void **state)
{
	(void)state;
	world_open(1, "", NULL);
	all_act(ACT_STREAM);
	chat_hello();
	assert_string_equal(body_text(),
		EVENT "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n");
	all_act(ACT_CUT_EVENTS);
	chat_hello();
	assert_true(w->over);
	assert_memory_equal(body_text(), EVENT "event: error\ndata: {\"error\":", strlen(EVENT) + 28);
	assert_null(strstr(body_text(), "[DONE]"));
	all_act(ACT_CUT_MIDWAY);
	chat_hello();
	assert_memory_equal(body_text(), EVENT "event: error\ndata: {\"error\":", strlen(EVENT) + 27);
	assert_null(strstr(body_text(), "[DONE]"));
	world_close();
}

static void a_dying_plain_answer_is_cut(void **state)
{
	(void)state;
	world_open(2, "", NULL);
	all_act(ACT_CUT_PLAIN);
	chat_hello();
	assert_true(w->failed);
	assert_int_equal(w->stage, HTTP_FAIL_BODY);
	assert_int_equal(calls_sum(), 1); /* No retry after the first byte. */
	world_close();
}

static void silence_is_bounded(void **state)
{
	(void)state;
	world_open(2, "[router]\nfirst_byte_timeout = \"60ms\"\nstream_idle_timeout = \"60ms\"\n", NULL);
	all_act(ACT_HANG);
	chat_hello();
	assert_int_equal(w->status, 504);
	assert_int_equal(calls_sum(), 2);
	all_act(ACT_STALL);
	chat_hello();
	assert_int_equal(w->status, 200);
	assert_non_null(strstr(body_text(), "event: error"));
	world_close();
}

static void cascade_open(const char *more)
{
	char toml[400], path[80];
	(void)snprintf(toml, sizeof toml,
		"[router.cascade]\nenabled = true\nsmall_model = \"s\"\nlarge_model = \"m\"\ntokens = 2\npregate = 1\ncalibration_share = 0\n%s",
		more);
	w = calloc(1, sizeof *w);
	w->kind = "openai_compat";
	w->small = "s";
	world_start(2, toml, NULL);
	disk_folder_make(w->dir, "cascades");
	(void)snprintf(path, sizeof path, "%s/cascades", w->dir);
	w->shared.pregate = gw_pregate_open(w->loop, path);
}

/* The smaller model's engine begins an answer, which is held, and then says nothing more. */
static void a_silent_engine_of_a_held_answer_is_given_up(void **state)
{
	(void)state;
	cascade_open("[router]\nstream_idle_timeout = \"60ms\"\n");
	w->agent[0].act = ACT_STALL;
	chat_hello();
	assert_int_equal(w->status, 200);
	assert_string_equal(body_text(), ANSWER);
	assert_int_equal(w->agent[0].calls, 1);
	world_close();
}

static void an_engine_that_dies_under_a_held_answer_is_blamed(void **state)
{
	(void)state;
	cascade_open("");
	w->agent[0].act = ACT_CUT_EVENTS;
	chat_hello();
	assert_int_equal(w->status, 200);
	assert_string_equal(body_text(), ANSWER);
	assert_int_equal(w->agent[0].calls, 1);
	world_settle();
	assert_true(atomic_load(&w->shared.choice.stats[0].breaker) != 0);
	assert_true(atomic_load(&w->shared.choice.stats[1].breaker) == 0);
	world_close();
}

#define STEPS 20 /* events of a stream, 20 ms apart */

/* Return whether the events came close enough upon each other to tell. */
static bool steps_send(void)
{
	cgn_nsec last = cgn_clock_now(), longest = 0;
	(void)chat_start(CHAT, CGN_STR("{\"model\":\"m\",\"stream\":true,\"messages\":[]}"), NULL, 0);
	for (int i = 0; i < 500 && w->body.n == 0; i++)
		turn_for(CGN_MSEC);
	for (int i = 0; i < STEPS; i++) {
		turn_for(20 * CGN_MSEC);
		data_send(w->open, EVENT);
		cgn_nsec gap = cgn_since(cgn_clock_now(), last);
		longest = gap > longest ? gap : longest;
		last += gap;
	}
	data_send(w->open, "data: [DONE]\n\n");
	grpc_finish(w->open, CGN_FINE, "");
	turn_for(20 * CGN_SEC);
	assert_true(w->over);
	return longest < 70 * CGN_MSEC;
}

static void a_stream_that_goes_on_has_no_comments(void **state)
{
	bool quick = false;
	(void)state;
	for (int tries = 0; !quick && tries < 10; tries++) {
		world_open(1, "[router]\nsse_keepalive = \"150ms\"\n", NULL);
		all_act(ACT_STEPS);
		quick = steps_send();
		if (quick)
			assert_null(strstr(body_text(), "\n: "));
		if (quick)
			assert_int_equal(strncmp(body_text(), EVENT, strlen(EVENT)), 0);
		world_close();
	}
	if (!quick)
		skip(); /* This machine is too slow to tell. */
}

/* The engine pauses for several comments inside an event that is too long to wait for its end. */
static void no_comment_is_put_into_a_long_event(void **state)
{
	static char part[300000];
	struct cgn_buf whole = {0};
	(void)state;
	world_open(1, "[router]\nsse_keepalive = \"20ms\"\n", NULL);
	all_act(ACT_STEPS);
	(void)chat_start(CHAT, CGN_STR("{\"model\":\"m\",\"stream\":true,\"messages\":[]}"), NULL, 0);
	for (int i = 0; i < 500 && w->body.n == 0; i++)
		turn_for(CGN_MSEC);
	memset(part, 'x', sizeof part - 1);
	cgn_buf_fmt(&whole, "data: {\"choices\":[\"%s%s\"]}\n\n", part, part);
	bytes_send(w->open, (struct cgn_str){whole.p, whole.n / 2});
	for (int i = 0; i < 500 && w->body.n < whole.n / 2 - 9;
		i++) /* The last bytes wait for the event's end. */
		turn_for(CGN_MSEC);
	turn_for(150 * CGN_MSEC);
	bytes_send(w->open, (struct cgn_str){whole.p + whole.n / 2, whole.n - whole.n / 2});
	grpc_finish(w->open, CGN_FINE, "");
	turn_for(20 * CGN_SEC);
	assert_true(w->over);
	assert_non_null(strstr(body_text(), cgn_buf_z(&whole)));
	cgn_buf_fini(&whole);
	world_close();
}

static void a_client_that_goes_cancels_the_engine(void **state)
{
	(void)state;
	world_open(1, "", NULL);
	static const enum act acts[] = {ACT_HANG, ACT_STALL};
	for (unsigned i = 0; i < 2; i++) {
		w->agent[0].act = acts[i];
		struct http_call *c = chat_start(CHAT, cgn_str_of(HELLO), NULL, 0);
		for (int k = 0; k < 500 && w->agent[0].calls <= i; k++)
			turn_for(10 * CGN_MSEC);
		assert_int_equal(w->agent[0].calls, i + 1);
		http_call_cancel(&c);
		for (int k = 0; k < 500 && w->agent[0].cancelled <= i; k++)
			turn_for(10 * CGN_MSEC);
		assert_int_equal(w->agent[0].cancelled, i + 1);
	}
	world_close();
}

static void each_refusal_has_its_status(void **state)
{
	(void)state;
	world_open(1, "[router]\nmax_body = \"2KiB\"\n[models.absent]\n", NULL);
	struct {
		const char *path, *body;
		int status;
		const char *code;
	} rows[] = {
		{CHAT, "{\"model\":\"m\",}", 400, "invalid_json"},
		{CHAT, "[]", 400, "invalid_json"},
		{CHAT, "{\"model\":[\"m\"]}", 400, "missing_model"},
		{CHAT, "{\"model\":\"\"}", 404, "model_not_found"},
		{CHAT, "{\"model\":\"\\u006e\"}", 404, "model_not_found"},
		{CHAT, "{\"model\":\"absent\"}", 503, "no_node"},
		{"/v1/models", "{}", 405, "method_not_allowed"},
		{"/v1/chat/completionsx", "{}", 404, "not_found"},
		{CHAT, "", 405, "method_not_allowed"},
		{"/v1/models/", "", 200, "list"},
		{"//v1//models", "", 200, "list"},
		{"/v1/models/%6", "", 404, "model_not_found"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		chat_ask(rows[i].path, rows[i].body, NULL, 0);
		if (w->status != rows[i].status || strstr(body_text(), rows[i].code) == NULL)
			fail_msg("row %zu: %d %s", i, w->status, body_text());
	}
	char *big = malloc(4001);
	memset(big, ' ', 4000);
	big[4000] = '\0';
	chat_ask(CHAT, big, NULL, 0);
	assert_int_equal(w->status, 413);
	free(big);
	assert_int_equal(calls_sum(), 0);
	chat_ask("/v1/models/%6d", "", NULL, 0);
	assert_int_equal(w->status, 200);
	world_close();
}

static void keys_are_asked_for(void **state)
{
	(void)state;
	world_open(1, "", "k " KEY_HASH " chat 2026-01-31T08:00:00Z\n");
	chat_hello();
	assert_int_equal(w->status, 401);
	struct http_field f[] = {{CGN_STR("authorization"), CGN_STR("Bearer password")},
		{CGN_STR("x-cgn-node"), CGN_STR("n0")}};
	chat_ask(CHAT, HELLO, f, 1);
	assert_int_equal(w->status, 200);
	chat_ask(CHAT, HELLO, f, 2); /* X-Cgn-Node needs the scope admin */
	assert_int_equal(w->status, 403);
	f[0] = (struct http_field){CGN_STR("x-api-key"), CGN_STR("password")};
	chat_ask(CHAT, HELLO, f, 1);
	assert_int_equal(w->status, 200);
	chat_ask("/v1/embeddings", "{\"model\":\"m\",\"input\":\"x\"}", f, 1);
	assert_int_equal(w->status, 403);
	assert_int_equal(calls_sum(), 2);
	struct gw_rules *open_rules =
		gateway_rules("", NULL); /* Keys may be replaced while the worker runs. */
	gw_worker_update(w->worker, NULL, open_rules);
	gw_rules_unref(&open_rules);
	for (int i = 0; i < 500 && w->status != 200; i++)
		chat_hello();
	assert_int_equal(w->status, 200);
	world_close();
}

static void tenants_have_rows(void **state)
{
	(void)state;
	struct gw_rules *r = gateway_rules(
		"[tenants.acme]\nweight = 3\n[tenants.acm]\nweight = 2\n[tenants.\"-\"]\nmax_priority = 1\n",
		NULL);
	assert_int_equal(gw_rules_tenant(r, CGN_STR("acme"))->weight, 3);
	assert_int_equal(gw_rules_tenant(r, CGN_STR("acm"))->weight, 2);
	assert_int_equal(gw_rules_tenant(r, CGN_STR("-"))->max_priority, 1);
	const struct gw_tenant *other = gw_rules_tenant(r, CGN_STR("nobody"));
	assert_int_equal(other->weight, 1);
	assert_int_equal(other->name.n, 0);
	assert_ptr_equal(gw_rules_tenant(r, (struct cgn_str){NULL, 0}), other);
	gw_rules_unref(&r);
}

static void addresses_have_a_rate(void **state)
{
	(void)state;
	world_open(1, "[router.rate_limit]\nrps = 0.001\nburst = 3\n", NULL);
	char other[] = "10.0.0.0";
	for (int i = 0; i < 5; i++) { /* A client's own header changes nothing. */
		other[7] = (char)('1' + i);
		const struct http_field f[] = {{CGN_STR("x-forwarded-for"), cgn_str_of(other)},
			{CGN_STR("forwarded"), CGN_STR("for=10.1.1.1")},
			{CGN_STR("x-real-ip"), cgn_str_of(other)},
			{CGN_STR("x-cgn-session"), cgn_str_of(other)}};
		chat_ask(CHAT, HELLO, f, 4);
		assert_int_equal(w->status, i < 3 ? 200 : 429);
		assert_string_equal(w->rate[0][0], "3");
		assert_int_equal(atoi(w->rate[1][0]), i < 3 ? 2 - i : 0);
		assert_string_equal(w->rate[0][1], "");
	}
	assert_int_equal(calls_sum(), 3);
	assert_true(atoi(w->retry_after) > 990 && atoi(w->retry_after) <= 1000);
	assert_non_null(strstr(w->rate[2][0], "m")); /* "49m59.9s" */
	assert_non_null(strstr(body_text(), "\"type\":\"requests\""));
	assert_non_null(strstr(body_text(), "\"code\":\"rate_limit_exceeded\""));
	assert_non_null(strstr(body_text(), "the address has 0.001 requests a second, 3 at once"));
	rules_reload("[router.rate_limit]\nrps = 1000\n");
	chat_hello();
	assert_int_equal(w->status, 200);
	assert_string_equal(w->rate[0][0], "1000");
	rules_reload("");
	chat_hello();
	assert_int_equal(w->status, 200);
	assert_string_equal(w->rate[0][0], "");
	world_close();
}

static int chat_with(const char *key)
{
	char bearer[40];
	(void)snprintf(bearer, sizeof bearer, "Bearer %s", key);
	const struct http_field f[] = {{CGN_STR("authorization"), cgn_str_of(bearer)}};
	chat_ask(CHAT, HELLO, f, 1);
	return w->status;
}

static void keys_have_a_rate_and_tenants_another(void **state)
{
	(void)state;
	world_open(1, "[router.rate_limit]\nrps = 0.001\nburst = 2\n[tenants.acme]\nrps = 0.001\nburst = 3\n",
		"a " KEY_HASH " chat 2026-01-31T08:00:00Z tenant=acme\nb " KEY_HASH_TEST
		" chat 2026-01-31T08:00:00Z tenant=acme\n");
	assert_int_equal(chat_with("password"), 200);
	assert_int_equal(chat_with("password"), 200);
	assert_int_equal(chat_with("password"), 429);
	assert_non_null(strstr(body_text(), "the API key has"));
	/* A request with an unknown key takes nothing from a limit. */
	assert_int_equal(chat_with("nonsense"), 401);
	assert_int_equal(chat_with("test"), 200);
	assert_string_equal(w->rate[0][0], "3"); /* Fields of the limit that is nearest. */
	assert_string_equal(w->rate[1][0], "0");
	assert_int_equal(chat_with("test"), 429);
	assert_non_null(strstr(body_text(), "the tenant has"));
	assert_int_equal(calls_sum(), 3);
	world_close();
}

/* The engines count 5 + 2 tokens; the body asks for 80 and has a short prompt. */
#define EIGHTY \
	"{\"model\":\"m\",\"stream\":true,\"max_tokens\":80,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}"

static void tokens_are_reserved_and_settled(void **state)
{
	(void)state;
	unsigned granted = 0;
	world_open(1, "[router.rate_limit]\ntokens_per_minute = 200\n", NULL);
	all_act(ACT_STREAM);
	for (int i = 0; i < 40; i++) {
		chat_ask(CHAT, EIGHTY, NULL, 0);
		granted += w->status == 200;
		assert_string_equal(w->rate[0][1], "200");
		if (w->status == 429)
			break;
	}
	/* Each request took 7 in the end: several were granted, but none with fewer than 80 left. */
	assert_int_equal(w->status, 429);
	assert_true(granted >= 10 && granted <= 20);
	assert_true(atoi(w->retry_after) >= 1 && atoi(w->retry_after) <= 3);
	assert_non_null(strstr(body_text(), "200 tokens a minute"));
	assert_non_null(strstr(body_text(), "\"type\":\"tokens\""));
	/* A request that takes less than the remaining tokens passes. */
	chat_ask(CHAT,
		"{\"model\":\"m\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
		NULL, 0);
	assert_int_equal(w->status, 200);
	chat_ask("/tokenize", "{\"model\":\"m\",\"prompt\":\"hi\"}", NULL, 0); /* Takes no tokens. */
	assert_int_equal(w->status, 200);
	assert_string_equal(w->rate[0][1], "");
	world_close();
}

static void what_can_never_be_granted_is_told_so(void **state)
{
	(void)state;
	world_open(1, "[router.rate_limit]\ntokens_per_minute = 100\n", NULL);
	chat_ask(CHAT, "{\"model\":\"m\",\"max_tokens\":101,\"messages\":[]}", NULL, 0);
	assert_int_equal(w->status, 429);
	assert_string_equal(w->retry_after, "");
	assert_string_equal(w->should_retry, "false");
	assert_non_null(strstr(body_text(),
		"the request is too large: it may take 101 tokens, and the address has 100 tokens a minute"));
	/* An estimate refuses no request: the tokens of this one are not known. */
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 4000; i++)
		cgn_buf_char(&b, 'a');
	cgn_buf_putz(&b, "\"}]}");
	chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
	assert_int_equal(w->status, 200);
	cgn_buf_fini(&b);
	world_close();
}

static void what_failed_costs_nothing(void **state)
{
	(void)state;
	world_open(2, "[router.rate_limit]\nrps = 0.001\nburst = 2\ntokens_per_minute = 100\n", NULL);
	all_act(ACT_REFUSE);
	for (int i = 0; i < 5; i++) {
		chat_ask(CHAT, EIGHTY, NULL, 0);
		assert_int_equal(w->status, 503);
	}
	all_act(ACT_500); /* The engine's own error is an answer, but took no tokens. */
	chat_ask(CHAT, EIGHTY, NULL, 0);
	assert_int_equal(w->status, 500);
	all_act(ACT_STREAM);
	chat_ask(CHAT, EIGHTY, NULL, 0);
	assert_int_equal(w->status, 200);
	chat_ask(CHAT, EIGHTY, NULL, 0);
	assert_int_equal(w->status, 429);
	assert_non_null(strstr(body_text(), "requests a second")); /* The longer wait of two limits. */
	world_close();
}

#define BUDGET_KEY "a " KEY_HASH " chat 2026-01-31T08:00:00Z tenant=acme"

static void budget_world(const char *toml, const char *keys)
{
	char path[80];
	world_open(1, toml, keys);
	disk_folder_make(w->dir, "budgets");
	(void)snprintf(path, sizeof path, "%s/budgets", w->dir);
	w->shared.budgets = gw_budgets_open(w->loop, path);
	all_act(ACT_STREAM);
}

static uint64_t spent_of(const char *name, enum budget_unit unit)
{
	struct budget_account spent;
	assert_true(gw_budgets_get(w->shared.budgets, cgn_str_of(name), &spent));
	return spent.spells[BUDGET_MONTH][0].spent.v[unit];
}

/* Requests are settled a moment after the client has its answer. */
static void spent_check(const char *name, enum budget_unit unit, uint64_t want)
{
	for (int i = 0; i < 500 && spent_of(name, unit) != want; i++)
		turn_for(10 * CGN_MSEC);
	assert_int_equal(spent_of(name, unit), want);
}

/* The body asks for no number of tokens: more are expected than a small budget has. */
static void an_estimate_is_too_large_for_no_budget(void **state)
{
	(void)state;
	budget_world("[tenants.acme]\nbudgets = [\"100 tokens/month\"]\n", BUDGET_KEY "\n");
	assert_int_equal(chat_with("password"), 200);
	spent_check("t:acme", BUDGET_TOKENS, 7);
	world_close();
}

static void what_one_budget_refuses_is_held_in_none(void **state)
{
	(void)state;
	budget_world("[tenants.acme]\nbudgets = [\"1 requests/month\"]\n",
		BUDGET_KEY " limits=10requests/month\n");
	assert_int_equal(chat_with("password"), 200);
	for (int i = 0; i < 3; i++)
		assert_int_equal(chat_with("password"), 429);
	spent_check("k:a", BUDGET_REQUESTS, 1);
	world_close();
}

static void cached_tokens_have_a_price_of_their_own(void **state)
{
	(void)state;
	struct gw_rules *rules =
		gateway_rules("[prices.m]\ninput = 3\ncached_input = 0.5\noutput = 10\n", NULL);
	struct gw_worker worker = {.rules = rules};
	const struct gw_req r = {.w = &worker};
	/* A price is that of a million tokens. */
	assert_int_equal(gw_used_price(&r, CGN_STR("m"), 1000, 0, 0), 3 * BUDGET_MONEY_SCALE / 1000);
	assert_int_equal(gw_used_price(&r, CGN_STR("m"), 1000, 800, 0), BUDGET_MONEY_SCALE / 1000);
	assert_int_equal(gw_used_price(&r, CGN_STR("m"), 1000, 800, 100), 2 * BUDGET_MONEY_SCALE / 1000);
	gw_rules_unref(&rules);
}

/* A failure that the client caused opens no breaker. */
static void failures_are_told_apart(void **state)
{
	(void)state;
	static const struct {
		enum cgn_code code;
		enum breaker_failure failure;
	} rows[] = {
		{CGN_INVALID, BREAKER_FAILURES},
		{CGN_UNSUPPORTED, BREAKER_FAILURES},
		{CGN_UNAUTHENTICATED, BREAKER_FAILURES},
		{CGN_FORBIDDEN, BREAKER_FAILURES},
		{CGN_TOO_LARGE, BREAKER_FAILURES},
		{CGN_NO_MEMORY, BREAKER_OURS},
		{CGN_OVERLOADED, BREAKER_FULL},
		{CGN_DEADLINE, BREAKER_STALL},
		{CGN_UNAVAILABLE, BREAKER_CONNECT},
		{CGN_BAD_GATEWAY, BREAKER_RESET},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		const struct gw_attempt a = {.call = {.closed = true, .why = {.code = rows[i].code}}};
		if (gw_attempt_failure(&a) != rows[i].failure)
			fail_msg("%s", cgn_code_name(rows[i].code));
	}
}

static void addresses_are_counted_as_people_have_them(void **state)
{
	(void)state;
	static const char *const rows[][2] = {
		{"127.0.0.1:4711", "127.0.0.1"},
		{"[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"},
		{"[2001:db8:1:2::9]:81", "2001:db8:1:2::/64"},
		{"[::ffff:10.1.2.3]:80", "10.1.2.3"},
		{"[fe80::1%eth0]:80", "fe80::/64"},
		{"unix", "unix"},
		{"", ""},
	};
	char out[NET_ADDR_GROUP_MAX];
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		net_addr_group(cgn_str_of(rows[i][0]), out);
		assert_string_equal(out, rows[i][1]);
	}
}

static void durations_are_written_as_clients_know_them(void **state)
{
	(void)state;
	static const struct {
		cgn_nsec d;
		const char *text;
	} rows[] = {{0, "0ms"}, {1, "1ms"}, {120 * CGN_MSEC, "120ms"}, {CGN_SEC, "1s"},
		{8640 * CGN_MSEC, "8.64s"}, {360 * CGN_SEC, "6m0s"}, {61500 * CGN_MSEC, "1m1.5s"}};
	char out[LIMIT_DURATION_MAX];
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		limit_duration(rows[i].d, out);
		assert_string_equal(out, rows[i].text);
	}
}

static void a_pin_is_kept_and_a_node_that_leaves_is_not_used(void **state)
{
	(void)state;
	world_open(3, "", NULL);
	const struct http_field f[] = {{CGN_STR("x-cgn-node"), CGN_STR("n1")}};
	for (int i = 0; i < 3; i++) {
		chat_ask(CHAT, HELLO, f, 1);
		assert_string_equal(w->node, "n1");
	}
	w->agent[1].act = ACT_REFUSE;
	chat_ask(CHAT, HELLO, f, 1);
	assert_int_equal(w->status, 503);
	struct cluster_orders o;
	struct cluster_view *v = NULL;
	assert_true(cluster_node_gone(w->cluster, "n1", &o));
	assert_true(cgn_ok(cluster_view_new(w->cluster, NULL, NULL, &v, NULL)));
	gw_worker_update(w->worker, v, NULL);
	cluster_view_unref(&v);
	turn_for(50 * CGN_MSEC);
	unsigned before = w->agent[1].calls;
	for (int i = 0; i < 6; i++) {
		chat_hello();
		assert_int_equal(w->status, 200);
	}
	chat_ask(CHAT, HELLO, f, 1);
	assert_int_equal(w->status, 503);
	assert_int_equal(w->agent[1].calls, before);
	world_close();
}

static void long_prompts_have_chains_and_hits(void **state)
{
	(void)state;
	world_open(2, "", NULL);
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 400; i++)
		cgn_buf_fmt(&b, "word %d ", i);
	cgn_buf_putz(&b, "\"}]}");
	chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
	char first[64], all[32];
	strcpy(first, w->node);
	assert_true(w->seen_chain >= 10);
	assert_int_equal(strncmp(w->hit, "0/", 2), 0);
	snprintf(all, sizeof all, "%zu/%zu", w->seen_chain, w->seen_chain);
	for (int i = 0; i < 5; i++) {
		world_settle();
		chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
		assert_string_equal(w->hit, all);
		assert_string_equal(w->node, first);
	}
	cgn_buf_fini(&b);
	world_close();
}

static uint64_t last_digest(void)
{
	assert_in_range(w->seen_chain, 1, CGN_COUNT(w->seen_digests));
	return w->seen_digests[w->seen_chain - 1];
}

static struct prompttail tail_of(uint64_t digest)
{
	const char *id = w->cluster->by_slot[0]->info->id;
	return prompttail_get(w->shared.tails, digest, route_hash(id, strlen(id)));
}

static void several_answers_are_no_tail(void **state)
{
	(void)state;
	static const struct {
		const char *more;
		bool kept;
	} row[] = {{"", true}, {",\"n\":1", true}, {",\"n\":3", false}, {",\"best_of\":2", false},
		{",\"prompt\":[\"b\",\"c\"]", false}, {",\"prompt\":[\"b\"]", true}};
	for (size_t i = 0; i < CGN_COUNT(row); i++) {
		struct cgn_buf b = {0};
		world_open(1, "[models.m]\nblock_bytes = 16\n", NULL);
		w->agent[0].act = ACT_STREAM;
		cgn_buf_fmt(&b, "{\"model\":\"m\",\"system\":\"who is it that comes here\",\"stream\":true%s",
			row[i].more);
		cgn_buf_putz(&b, strstr(row[i].more, "prompt") != NULL ? "}" : ",\"prompt\":\"a\"}");
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		uint64_t asked_first = last_digest();
		chat_ask("/v1/completions",
			"{\"model\":\"m\",\"stream\":true,\"prompt\":\"and who is it that comes behind\"}",
			NULL, 0);
		/* Wait until that request and the one before it are settled. */
		for (int k = 0; k < 500 && tail_of(last_digest()).prompt == 0; k++)
			turn_for(10 * CGN_MSEC);
		assert_int_equal(tail_of(last_digest()).prompt, 5);
		struct prompttail t = tail_of(asked_first);
		assert_int_equal(t.prompt, row[i].kept ? 5 : 0);
		assert_int_equal(t.answer, row[i].kept ? 2 : 0);
		cgn_buf_fini(&b);
		world_close();
	}
}

/* Make the engines of all nodes publish events. */
static void feed_all(void)
{
	struct cluster_view *view = NULL;
	for (size_t i = 0; i < w->n_agents; i++) {
		struct cluster_node *n = w->cluster->by_slot[i];
		assert_true(cgn_ok(kvindex_node_add(w->shared.choice.index, &n->index_id, NULL)));
		n->has_index_id = n->fed = true;
	}
	assert_true(cgn_ok(cluster_view_new(w->cluster, NULL, NULL, &view, NULL)));
	gw_worker_update(w->worker, view, NULL);
	cluster_view_unref(&view);
	world_settle();
}

static void engines_with_events_are_known_by_the_index(void **state)
{
	(void)state;
	world_of("sim", 2, "[models.m]\nblock_tokens = 16\n", NULL);
	struct cgn_buf b = {0};
	uint8_t ram[16], gpu[16];
	memset(ram, BLOCK_TIER_BIT(BLOCK_RAM), sizeof ram);
	memset(gpu, BLOCK_TIER_BIT(BLOCK_GPU), sizeof gpu);
	cgn_buf_putz(&b, "{\"model\":\"m\",\"prompt\":[");
	for (int i = 0; i < 330; i++)
		cgn_buf_fmt(&b, "%s%d", i > 0 ? "," : "", i);
	cgn_buf_putz(&b, "]}");
	chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
	assert_int_equal(w->seen_chain, 20);
	feed_all();
	chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
	/* The prompt was sent there, but the engine's events say that it holds nothing. */
	assert_int_equal(strncmp(w->hit, "0/", 2), 0);
	for (uint16_t i = 0; i < 2; i++) { /* The node that holds the prompt gets the request. */
		uint16_t here = w->cluster->by_slot[i]->index_id,
			 there = w->cluster->by_slot[1 - i]->index_id;
		kvindex_set(w->shared.choice.index, there, w->seen_digests, (uint8_t[16]){0}, 16);
		kvindex_set(w->shared.choice.index, here, w->seen_digests, ram, 12);
		world_settle();
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		assert_string_equal(w->node, w->cluster->by_slot[i]->info->id);
		assert_int_equal(strncmp(w->hit, "12/", 3), 0);
		/* The same blocks, in faster memory. */
		kvindex_set(w->shared.choice.index, there, w->seen_digests, gpu, 12);
		world_settle();
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		assert_string_equal(w->node, w->cluster->by_slot[1 - i]->info->id);
		kvindex_set(w->shared.choice.index, here, w->seen_digests, (uint8_t[16]){0}, 16);
	}
	cgn_buf_fini(&b);
	world_close();
}

static void blocks_of_bytes_are_in_no_index(void **state)
{
	(void)state;
	char first[64];
	world_of("sim", 2, "[models.m]\ntokens = \"bytes\"\nblock_bytes = 64\n", NULL);
	feed_all();
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"model\":\"m\",\"prompt\":\"");
	for (int i = 0; i < 300; i++)
		cgn_buf_fmt(&b, "word %d ", i);
	cgn_buf_putz(&b, "\"}");
	chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
	strcpy(first, w->node);
	for (int i = 0; i < 4; i++) { /* The prompts that were sent are remembered all the same. */
		world_settle();
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		assert_string_equal(w->node, first);
		assert_true(strncmp(w->hit, "0/", 2) != 0);
	}
	cgn_buf_fini(&b);
	world_close();
}

static void a_node_that_failed_is_not_preferred(void **state)
{
	(void)state;
	world_open(2, "", NULL);
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"model\":\"m\",\"prompt\":\"");
	for (int i = 0; i < 300; i++)
		cgn_buf_fmt(&b, "word %d ", i);
	cgn_buf_putz(&b, "\"}");
	chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
	size_t home = w->node[1] == '0' ? 0 : 1;
	w->agent[home].act = ACT_REFUSE;
	for (int i = 0; i < 5; i++) { /* After one failure, the other node has the prefix. */
		world_settle();
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		assert_int_equal(w->status, 200);
	}
	assert_int_equal(w->agent[home].calls, 2);
	cgn_buf_fini(&b);
	world_close();
}

/* A node that answers an error at once is not fast, and does not hold the prompt. */
static void an_error_teaches_nothing_about_the_node(void **state)
{
	(void)state;
	static const enum act acts[] = {ACT_400, ACT_500};
	for (size_t k = 0; k < CGN_COUNT(acts); k++) {
		world_open(1, "[router.retry]\nattempts = 1\n", NULL);
		struct cgn_buf b = {0};
		cgn_buf_putz(&b, "{\"model\":\"m\",\"stream\":true,\"prompt\":\"");
		for (int i = 0; i < 3000; i++)
			cgn_buf_fmt(&b, "word %d ", i);
		cgn_buf_putz(&b, "\"}");
		w->agent[0].act = acts[k];
		for (int i = 0; i < 3; i++) {
			chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
			assert_int_equal(w->status, acts[k] == ACT_400 ? 400 : 500);
			assert_int_equal(strncmp(w->hit, "0/", 2), 0);
			world_settle();
		}
		const struct node_stats *stats = &w->shared.choice.stats[w->cluster->by_slot[0]->slot];
		assert_true(node_stats_speed(stats).prefill_ms == 0);
		assert_int_equal(stats->inflight, 0);
		assert_int_equal(stats->decoding, 0);
		assert_int_equal(stats->queued_tokens, 0);
		w->agent[0].act = ACT_STREAM;
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		assert_int_equal(w->status, 200);
		assert_int_equal(strncmp(w->hit, "0/", 2), 0);
		world_settle();
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		assert_int_not_equal(strncmp(w->hit, "0/", 2), 0);
		w->agent[0].act = acts[k];
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		world_settle();
		chat_ask("/v1/completions", cgn_buf_z(&b), NULL, 0);
		/* A 400 changes nothing in the node's assumed blocks. */
		assert_int_equal(strncmp(w->hit, "0/", 2) == 0, acts[k] == ACT_500);
		cgn_buf_fini(&b);
		world_close();
	}
}

struct question {
	struct cgn_post post;
	_Atomic int64_t answer;
};

static void on_question(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct question *q = CGN_CONTAINER(p, struct question, post);
	atomic_store(&q->answer, gw_series_answer(w->worker, CGN_STR("m")));
}

static void impossible_token_counts_are_not_believed(void **state)
{
	struct question q = {.answer = -1};
	(void)state;
	world_open(1, "", NULL);
	all_act(ACT_LIE);
	for (int i = 0; i < 3; i++) {
		chat_hello();
		assert_int_equal(w->status, 200);
		world_settle();
	}
	cgn_loop_post(w->worker->loop, &q.post, on_question);
	while (atomic_load(&q.answer) < 0)
		turn_for(CGN_MSEC);
	assert_int_equal(atomic_load(&q.answer), 0); /* Nothing is learned from them */
	world_close();
}

/* A node that failed to resume an answer is not measured by the tokens of the answer's beginning. */
static void what_one_engine_counted_is_not_held_against_another(void **state)
{
	(void)state;
	const struct http_field on = {CGN_STR("x-cgn-resume"), CGN_STR("1")};
	world_open(2, "[router.retry]\nbackoff = \"0ms\"\n", NULL);
	all_act(ACT_ONCE);
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 400; i++)
		cgn_buf_fmt(&b, "word %d ", i);
	cgn_buf_putz(&b, "\"}]}");
	chat_ask(CHAT, cgn_buf_z(&b), &on, 1);
	cgn_buf_fini(&b);
	assert_int_equal(w->status, 200);
	assert_non_null(strstr(body_text(), "engine_failed"));
	assert_int_equal(calls_sum(), 2);
	world_settle();
	for (size_t i = 0; i < 2; i++)
		assert_true(
			node_stats_block_tokens(&w->shared.choice.stats[w->cluster->by_slot[i]->slot]) == 0);
	world_close();
}

static void a_slow_reader_makes_no_node_slow(void **state)
{
	(void)state;
	world_open(1, "", NULL);
	all_act(ACT_FLOOD);
	w->pause_at_head = true;
	struct http_call *c =
		chat_start(CHAT, CGN_STR("{\"model\":\"m\",\"stream\":true,\"messages\":[]}"), NULL, 0);
	for (int i = 0; i < 500 && w->status == 0; i++)
		turn_for(5 * CGN_MSEC);
	assert_int_equal(w->status, 200);
	/* The node's stream stops when the router reads no more: then nothing moves any more. */
	size_t was = SIZE_MAX;
	for (int same = 0; same < 3;) {
		size_t queued = http_exchange_queued(w->open->x);
		same = queued == was ? same + 1 : 0;
		was = queued;
		turn_for(100 * CGN_MSEC);
	}
	assert_true(was > 0);
	http_call_resume(c);
	while (!w->over && !w->failed)
		turn_for(CGN_SEC);
	assert_true(w->over);
	world_settle();
	assert_true(node_stats_speed(&w->shared.choice.stats[w->cluster->by_slot[0]->slot]).step_ms == 0);
	world_close();
}

static void hook_ignore(struct cgn_hook *h)
{
	(void)h;
}

static void a_node_is_indexed_once_there_is_room(void **state)
{
	(void)state;
	world_open(1, "", NULL);
	struct router r = {.tag = ROUTER_TAG,
		.loop = w->loop,
		.members.cluster = w->cluster,
		.shared = w->shared};
	struct router_watch watch = {.r = &r, .slot = w->cluster->by_slot[0]->slot};
	struct cluster_node *n = w->cluster->by_slot[watch.slot];
	uint64_t sums[BLOCK_RANGES] = {0};
	Cognitora__V1__ResidencyCheck check = COGNITORA__V1__RESIDENCY_CHECK__INIT;
	uint16_t index_id = 0;
	check.sums = sums;
	check.n_sums = BLOCK_RANGES;
	cgn_hook_init(&r.published.hook, hook_ignore);
	router_residency_init(&r);
	while (cgn_ok(kvindex_node_add(w->shared.choice.index, &index_id, NULL)))
		continue;
	router_residency_open(&watch);
	assert_false(n->has_index_id);
	router_residency_compare(&watch, &check);
	assert_false(n->has_index_id); /* Still no index id. */
	kvindex_node_remove(w->shared.choice.index, 77);
	while (kvindex_tick(w->shared.choice.index, 1 << 20))
		continue;
	router_residency_compare(&watch, &check);
	assert_true(n->has_index_id);
	assert_int_equal(n->index_id, 77);
	assert_int_equal(watch.stale_since, 0); /* Everything is known: the node holds nothing. */
	turn_for(10 * CGN_MSEC);
	world_close();
}

/* ---- tokens from engines ---- */

static unsigned questions_sum(void)
{
	unsigned sum = 0;
	for (size_t i = 0; i < w->n_agents; i++)
		sum += w->agent[i].asked;
	return sum;
}

static uint64_t first_digest(const char *lora, const char *salt)
{
	char block[64] = {0};
	for (int i = 0; i < 16; i++)
		block[4 * i] = (char)i;
	const struct digest root = digest_chain_root(CGN_STR("m"), cgn_str_of(lora), cgn_str_of(salt));
	const struct digest d = digest_chain_next(&root, (struct cgn_str){block, sizeof block});
	return digest_short(&d);
}

static void an_engines_tokens_are_the_chain(void **state)
{
	(void)state;
	world_of("sim", 2, "", NULL);
	chat_hello();
	assert_int_equal(w->status, 200);
	assert_int_equal(questions_sum(), 1);
	assert_int_equal(w->seen_chain, 2); /* 40 tokens, 16 a block. */
	assert_int_equal(w->seen_first, first_digest("", ""));
	assert_string_equal(w->hit, "0/2");
	world_settle();
	chat_hello(); /* The prompt is in the cache by now. */
	assert_int_equal(questions_sum(), 1);
	assert_int_equal(w->seen_first, first_digest("", ""));
	assert_string_equal(w->hit, "2/2");
	chat_ask(CHAT,
		"{\"model\":\"m\",\"cache_salt\":\"s\",\"lora_path\":\"l\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}",
		NULL, 0);
	assert_int_equal(w->seen_first, first_digest("l", "s"));
	assert_int_equal(questions_sum(), 2);
	world_close();
}

/* A reload, as by SIGHUP, that changes the block size. */
static void what_was_kept_is_of_its_size_of_blocks(void **state)
{
	(void)state;
	world_of("sim", 1, "[models.m]\nblock_tokens = 32\n", NULL);
	chat_hello();
	assert_int_equal(w->seen_chain, 1); /* A block and 8 tokens. */
	rules_reload("[models.m]\nblock_tokens = 4\n");
	chat_hello();
	assert_int_equal(w->seen_chain, 10);
	assert_int_equal(questions_sum(), 2);
	world_close();
}

static void ids_need_no_engine_and_some_routes_no_chain(void **state)
{
	(void)state;
	world_of("sim", 1, "[models.m]\nblock_tokens = 4\n", NULL);
	chat_ask("/v1/completions", "{\"model\":\"m\",\"prompt\":[0,1,2,3,4,5,6,7,8]}", NULL, 0);
	assert_int_equal(w->seen_chain, 2);
	chat_ask("/v1/rerank", "{\"model\":\"m\",\"query\":\"q\",\"documents\":[\"d\"]}", NULL, 0);
	assert_int_equal(w->status, 200);
	assert_int_equal(w->seen_chain, 0);
	assert_int_equal(questions_sum(), 0);
	world_close();
}

static void an_engine_of_unknown_make_is_asked_when_told_so(void **state)
{
	(void)state;
	world_of("openai_compat", 1, "[models.m]\ntokens = \"engine\"\n", NULL);
	chat_hello();
	assert_int_equal(questions_sum(), 1);
	assert_int_equal(w->seen_first, first_digest("", ""));
	world_close();
	world_of("openai_compat", 1, "", NULL);
	chat_hello();
	assert_int_equal(questions_sum(), 0);
	world_close();
}

static void llama_cpp_is_asked_twice(void **state)
{
	(void)state;
	world_of("llama_cpp", 1, "", NULL);
	chat_hello(); /* The toy answers "tokens" to both questions, which is not a rendered prompt. */
	assert_int_equal(w->status, 200);
	assert_int_equal(questions_sum(), 1);
	chat_ask("/v1/completions", "{\"model\":\"m\",\"prompt\":\"once upon a time\"}", NULL, 0);
	assert_int_equal(questions_sum(), 2);
	assert_int_equal(w->seen_chain, 2);
	world_close();
}

static void a_model_may_be_told_to_have_bytes(void **state)
{
	(void)state;
	world_of("sim", 1, "[models.m]\ntokens = \"bytes\"\nblock_bytes = 16\n", NULL);
	chat_hello();
	assert_int_equal(questions_sum(), 0);
	assert_int_equal(w->seen_chain, 0); /* "user", "hello" and marks are fewer than 16 bytes. */
	chat_ask(CHAT,
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hello, who is there?\"}]}",
		NULL, 0);
	assert_int_equal(w->seen_chain, 1);
	world_close();
}

static void without_tokens_there_are_blocks_of_bytes(void **state)
{
	(void)state;
	static const enum tokens_act bad[] = {TOKENS_400, TOKENS_500, TOKENS_JUNK, TOKENS_DIE, TOKENS_HANG};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		world_of("sim", 1, "[router]\ntokenize_timeout = \"50ms\"\n[models.m]\nblock_bytes = 16\n",
			NULL);
		w->tokens = bad[i];
		for (unsigned k = 0; k < 5; k++) {
			char body[200];
			snprintf(body, sizeof body,
				"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hello, who is there? %u\"}]}",
				k);
			chat_ask(CHAT, body, NULL, 0);
			assert_int_equal(w->status, 200);
			assert_true(w->seen_chain >= 1);
			assert_int_not_equal(w->seen_first, first_digest("", ""));
		}
		/* An engine that fails is not asked for a while, one that stands still is asked once; an engine
		 * that refuses one prompt is asked for the next. */
		assert_int_equal(questions_sum(), bad[i] == TOKENS_400 ? 5 : bad[i] == TOKENS_HANG ? 1 : 3);
		world_close();
	}
}

static void a_client_that_goes_cancels_the_question(void **state)
{
	(void)state;
	world_of("sim", 1, "[router]\ntokenize_timeout = \"60s\"\n", NULL);
	w->tokens = TOKENS_HANG;
	struct http_call *c = chat_start(CHAT, cgn_str_of(HELLO), NULL, 0);
	for (int k = 0; k < 500 && questions_sum() == 0; k++)
		turn_for(10 * CGN_MSEC);
	assert_int_equal(questions_sum(), 1);
	http_call_cancel(&c);
	for (int k = 0; k < 500 && w->agent[0].cancelled == 0; k++)
		turn_for(10 * CGN_MSEC);
	assert_int_equal(w->agent[0].cancelled, 1);
	assert_int_equal(calls_sum(), 0);
	world_close();
}

/* ---- tokens of the model's own files ---- */

/* The files of a tokenizer and a template, which are read when the rules are made. */
struct toy {
	char dir[32], tokenizer[64], template[64], toml[300];
};

static void toy_write(struct toy *t, unsigned block_tokens, bool without_start)
{
	struct cgn_buf json = {0};
	*t = (struct toy){.dir = "/tmp/cgn-toy-XXXXXX"};
	assert_non_null(mkdtemp(t->dir));
	toy_tokenizer(&json);
	char *at = memmem(json.p, json.n, "<|im_start|>", 12);
	assert_non_null(at);
	if (without_start) /* Without the flag, the start token is ordinary text. */
		memcpy(at, "<|im_begin|>", 12);
	snprintf(t->tokenizer, sizeof t->tokenizer, "%s/tokenizer.json", t->dir);
	snprintf(t->template, sizeof t->template, "%s/chat_template.jinja", t->dir);
	snprintf(t->toml, sizeof t->toml,
		"[router]\ntokenize_timeout = \"60s\"\n[models.m]\ntokenizer = \"%s\"\nblock_tokens = %u\n",
		t->tokenizer, block_tokens);
	assert_true(cgn_ok(disk_write_file_atomic(t->tokenizer, cgn_buf_view(&json), 0600, NULL)));
	assert_true(cgn_ok(disk_write_file_atomic(t->template,
		CGN_STR("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"), 0600,
		NULL)));
	cgn_buf_fini(&json);
}

static void toy_remove(struct toy *t)
{
	(void)unlink(t->tokenizer);
	(void)unlink(t->template);
	(void)rmdir(t->dir);
}

/* Open a world whose model has a tokenizer and a template. */
static void toy_world(void)
{
	struct toy t;
	toy_write(&t, 16, false);
	world_of("openai_compat", 1, t.toml, NULL);
	toy_remove(&t);
}

static void long_chat(struct cgn_buf *b, unsigned seed)
{
	cgn_buf_fmt(b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%u", seed);
	for (int i = 0; i < 20000; i++)
		cgn_buf_putz(b, "abc");
	cgn_buf_putz(b, "\"}]}");
}

static void a_file_makes_the_chain(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	toy_world();
	chat_ask(CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"0123456789abcd\"}]}",
		NULL, 0);
	assert_int_equal(w->seen_chain, 1); /* 14 digits and letters between two marks. */
	long_chat(&b, 1);                   /* On the pool. */
	chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
	assert_int_equal(w->seen_chain, 60003 / 16);
	world_settle();
	chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
	assert_int_equal(w->seen_chain, 60003 / 16);
	assert_int_equal(strncmp(w->hit, "3750/", 5), 0);
	world_close();
	cgn_buf_fini(&b);
}

static void chat_of_600(void)
{
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 598; i++)
		cgn_buf_char(&b, (char)('a' + i % 2 * 20));
	cgn_buf_putz(&b, "\"}]}");
	chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
	cgn_buf_fini(&b);
}

static void a_reload_leaves_nothing_old_behind(void **state)
{
	(void)state;
	struct toy t;
	static const struct {
		unsigned block;
		bool without_start;
		size_t tokens;
	} row[] = {{16, false, 600}, {16, true, 611}, {7, true, 611}, {4, false, 600}};
	toy_world();
	for (size_t i = 0; i < CGN_COUNT(row); i++) { /* Other tokens, then other block sizes. */
		toy_write(&t, row[i].block, row[i].without_start);
		rules_reload(t.toml);
		toy_remove(&t);
		chat_of_600();
		assert_int_equal(w->seen_chain, row[i].tokens / row[i].block);
	}
	world_close();
}

static void no_tools_are_no_reason_for_the_template_of_tools(void **state)
{
	(void)state;
	static const char config[] =
		"{\"chat_template\":[{\"name\":\"default\",\"template\":\"{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}\"},"
		"{\"name\":\"tool_use\",\"template\":\"{% for m in messages %}{% for c in m.content %}{{ c.text }}{{ c.text }}<|im_end|>{% endfor %}{% endfor %}\"}]}";
	struct toy t;
	char path[64];
	toy_write(&t, 1, false);
	snprintf(path, sizeof path, "%s/tokenizer_config.json", t.dir);
	(void)unlink(t.template);
	assert_true(cgn_ok(disk_write_file_atomic(path, cgn_str_of(config), 0600, NULL)));
	world_of("openai_compat", 1, t.toml, NULL);
	(void)unlink(path);
	toy_remove(&t);
	chat_ask(CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"0123\"}]}", NULL, 0);
	assert_int_equal(w->seen_chain, 6);
	chat_ask(CHAT,
		"{\"model\":\"m\",\"tools\":[],\"messages\":[{\"role\":\"user\",\"content\":\"0123\"}]}",
		NULL, 0);
	assert_int_equal(w->seen_chain, 6);
	chat_ask(CHAT,
		"{\"model\":\"m\",\"tools\":[{\"name\":\"f\"}],\"messages\":[{\"role\":\"user\",\"content\":\"0123\"}]}",
		NULL, 0);
	assert_int_equal(w->seen_chain, 9);
	world_close();
}

static void a_client_may_go_while_the_pool_works(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	toy_world();
	for (unsigned i = 0; i < 20; i++) {
		b.n = 0;
		long_chat(&b, 100 + i);
		struct http_call *c = chat_start(CHAT, cgn_buf_view(&b), NULL, 0);
		turn_for((1 + i % 5) * CGN_MSEC);
		if (!w->over)
			http_call_cancel(&c);
	}
	chat_hello();
	assert_int_equal(w->status, 200);
	world_close(); /* The worker may end meanwhile too. */
	cgn_buf_fini(&b);
}

/* Jobs that keep the pool busy until pool_blocked is false. */
static _Atomic bool pool_blocked;
static unsigned pool_jobs;

static void pool_job_run(void *arg)
{
	(void)arg;
	while (atomic_load(&pool_blocked))
		usleep(1000);
}

static void pool_job_done(void *arg)
{
	(void)arg;
	pool_jobs--;
}

static void pool_block(void)
{
	atomic_store(&pool_blocked, true);
	for (pool_jobs = 0; pool_jobs < 16; pool_jobs++)
		cgn_loop_work(w->loop, pool_job_run, pool_job_done, NULL);
}

static void pool_release(void)
{
	atomic_store(&pool_blocked, false);
	while (pool_jobs > 0)
		turn_for(10 * CGN_MSEC);
}

#define POOLED_TEXT  250000 /* Read in the worker's turn, tokenized by the pool */
#define POOLED_COUNT ((32 << 20) / POOLED_TEXT)

static void what_waits_for_the_pool_is_bounded(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct http_call *waits[POOLED_COUNT];
	toy_world();
	cgn_buf_putz(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < POOLED_TEXT; i++)
		cgn_buf_char(&b, 'a');
	cgn_buf_putz(&b, "\"}]}");
	pool_block();
	for (size_t i = 0; i < CGN_COUNT(waits); i++)
		waits[i] = chat_start(CHAT, cgn_buf_view(&b), NULL, 0);
	while (atomic_load(&w->shared.body_bytes) < CGN_COUNT(waits) * b.n) /* All bytes came. */
		turn_for(10 * CGN_MSEC);
	turn_for(10 * CGN_MSEC);
	assert_false(w->over);
	chat_ask(CHAT, cgn_buf_z(&b), NULL, 0); /* Expect a fallback: this one is too many. */
	assert_int_equal(w->status, 200);
	assert_int_equal(calls_sum(), 1);
	assert_in_range(w->seen_chain, 1, POOLED_TEXT / 32); /* Blocks of bytes are longer than 16 tokens. */
	for (size_t i = 0; i < CGN_COUNT(waits); i++)
		http_call_cancel(&waits[i]);
	pool_release();
	b.n = 0;
	long_chat(&b, 7);
	/* The pool has room again once it has dropped what the clients that left had there. */
	for (int i = 0; i < 500 && (i == 0 || w->seen_chain != 60003 / 16); i++) {
		turn_for(10 * CGN_MSEC);
		chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
	}
	assert_int_equal(w->seen_chain, 60003 / 16);
	world_close();
	cgn_buf_fini(&b);
}

/* The check of an answer waits for the pool while its client leaves. */
static void a_question_that_the_pool_writes_outlives_its_request(void **state)
{
	(void)state;
	world_open(1, "[hooks]\nafter_url = \"http://127.0.0.1:1/after\"\n", NULL);
	all_act(ACT_WHOLE);
	pool_block();
	struct http_call *c = chat_start(CHAT, CGN_STR(HELLO), NULL, 0);
	while (atomic_load(&w->shared.body_bytes) <
		3 * (uint64_t)WHOLE) /* the answer, its copy, and the document */
		turn_for(10 * CGN_MSEC);
	assert_false(w->over || w->failed);
	http_call_cancel(&c);
	world_settle();
	pool_release();
	all_act(ACT_ANSWER);
	chat_ask("/v1/models", "", NULL, 0);
	assert_int_equal(w->status, 200);
	world_close();
}

/* A large body is read by the pool, and its client may leave meanwhile. */
static void a_body_that_the_pool_reads_outlives_its_client(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	toy_world();
	cgn_buf_putz(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 1 << 20; i++)
		cgn_buf_char(&b, 'a');
	cgn_buf_putz(&b, "\"}]}");
	pool_block();
	struct http_call *left = chat_start(CHAT, cgn_buf_view(&b), NULL, 0);
	while (atomic_load(&w->shared.body_bytes) < b.n)
		turn_for(10 * CGN_MSEC);
	turn_for(10 * CGN_MSEC);
	http_call_cancel(&left);
	turn_for(10 * CGN_MSEC);
	chat_hello(); /* Others are served. */
	assert_int_equal(w->status, 200);
	assert_true(atomic_load(&w->shared.body_bytes) >= b.n); /* The pool may still read it. */
	pool_release();
	while (atomic_load(&w->shared.body_bytes) > 0)
		turn_for(10 * CGN_MSEC);
	chat_ask(CHAT, cgn_buf_z(&b), NULL, 0);
	assert_int_equal(w->status, 200);
	assert_int_equal(w->seen_chain, ROUTE_MAX_BLOCKS);
	world_close();
	cgn_buf_fini(&b);
}

/* ---- budgets and usage, shared by threads ---- */

#define SPEND_THREADS 8
#define SPEND_ROUNDS  500
#define SPEND_BUDGET  1000 /* Less than all of them ask for. */

struct spending {
	struct gw_budgets *budgets;
	struct gw_usage *usage;
	struct budget_set set;
	_Atomic unsigned granted;
};

static void *spend_all(void *arg)
{
	struct spending *s = arg;
	const struct budget_amounts want = {.v = {[BUDGET_REQUESTS] = 1, [BUDGET_TOKENS] = 10}},
				    used = {.v = {[BUDGET_REQUESTS] = 1, [BUDGET_TOKENS] = 4}};
	const struct billing_names names = {CGN_STR("acme"), CGN_STR("k"), CGN_STR("m")};
	for (unsigned i = 0; i < SPEND_ROUNDS; i++) {
		struct budget_answer a;
		struct budget_held h;
		if (!gw_budgets_reserve(s->budgets, CGN_STR("t:acme"), &s->set, &want, &a, &h))
			continue;
		atomic_fetch_add(&s->granted, 1);
		gw_budgets_return(s->budgets, CGN_STR("t:acme"), &h, &used);
		gw_usage_add(s->usage, &names, &(struct billing_amounts){.requests = 1, .input = 4}, NULL);
	}
	return NULL;
}

static void threads_spend_one_budget_exactly(void **state)
{
	(void)state;
	struct spending s = {.granted = 0};
	struct gw_age *age = NULL;
	struct cgn_loop *l = NULL;
	pthread_t threads[SPEND_THREADS];
	struct budget_account a;
	struct cgn_buf csv = {0};
	struct billing_report *report = NULL;
	char dir[] = "/tmp/cgn-spend-XXXXXX", path[64], age_path[64];
	const struct billing_query q = {0, UINT64_MAX, BILLING_BY_TENANT, BILLING_STEP_ALL, "USD"};
	assert_non_null(mkdtemp(dir));
	(void)snprintf(path, sizeof path, "%s/b", dir);
	assert_true(cgn_ok(cgn_loop_new(&l, NULL)));
	s.budgets = gw_budgets_open(l, path);
	(void)snprintf(age_path, sizeof age_path, "%s/age", dir);
	age = gw_age_open(l, age_path);
	s.usage = gw_usage_open(l, path, age, NULL);
	assert_true(cgn_ok(budget_set_add(&s.set, CGN_STR("1000 requests/month"), NULL)));
	for (unsigned i = 0; i < SPEND_THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, spend_all, &s), 0);
	for (unsigned i = 0; i < SPEND_THREADS; i++)
		(void)pthread_join(threads[i], NULL);
	assert_int_equal(s.granted, SPEND_BUDGET);
	assert_true(gw_budgets_get(s.budgets, CGN_STR("t:acme"), &a));
	assert_true(a.spells[BUDGET_MONTH][0].spent.v[BUDGET_TOKENS] == 4 * SPEND_BUDGET);
	assert_true(cgn_ok(gw_usage_report(s.usage, &q, &report, NULL)));
	billing_report_csv(report, &csv);
	billing_report_free(&report);
	assert_non_null(strstr(cgn_buf_z(&csv), "\"acme\",1000,0,4000,"));
	gw_budgets_close(&s.budgets);
	gw_usage_close(&s.usage);
	gw_age_close(&age);
	/* The file has the spent amounts. */
	s.budgets = gw_budgets_open(l, path);
	assert_true(gw_budgets_get(s.budgets, CGN_STR("t:acme"), &a));
	assert_true(a.spells[BUDGET_MONTH][0].spent.v[BUDGET_REQUESTS] == SPEND_BUDGET);
	gw_budgets_close(&s.budgets);
	cgn_loop_free(&l);
	cgn_buf_fini(&csv);
	disk_folder_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_goes_out_and_comes_back),
		cmocka_unit_test(a_coded_answer_is_not_renamed),
		cmocka_unit_test(a_failed_try_goes_elsewhere_unseen),
		cmocka_unit_test(the_last_answer_of_failing_engines_is_relayed),
		cmocka_unit_test(what_no_node_would_do_better_is_not_retried),
		cmocka_unit_test(a_stored_answer_is_asked_for_at_its_node_alone),
		cmocka_unit_test(an_empty_answer_is_no_answer),
		cmocka_unit_test(a_dying_stream_ends_with_an_error_event),
		cmocka_unit_test(a_dying_plain_answer_is_cut),
		cmocka_unit_test(silence_is_bounded),
		cmocka_unit_test(a_silent_engine_of_a_held_answer_is_given_up),
		cmocka_unit_test(an_engine_that_dies_under_a_held_answer_is_blamed),
		cmocka_unit_test(a_stream_that_goes_on_has_no_comments),
		cmocka_unit_test(no_comment_is_put_into_a_long_event),
		cmocka_unit_test(a_client_that_goes_cancels_the_engine),
		cmocka_unit_test(each_refusal_has_its_status),
		cmocka_unit_test(keys_are_asked_for),
		cmocka_unit_test(tenants_have_rows),
		cmocka_unit_test(addresses_have_a_rate),
		cmocka_unit_test(keys_have_a_rate_and_tenants_another),
		cmocka_unit_test(tokens_are_reserved_and_settled),
		cmocka_unit_test(what_can_never_be_granted_is_told_so),
		cmocka_unit_test(what_failed_costs_nothing),
		cmocka_unit_test(an_estimate_is_too_large_for_no_budget),
		cmocka_unit_test(what_one_budget_refuses_is_held_in_none),
		cmocka_unit_test(cached_tokens_have_a_price_of_their_own),
		cmocka_unit_test(failures_are_told_apart),
		cmocka_unit_test(addresses_are_counted_as_people_have_them),
		cmocka_unit_test(durations_are_written_as_clients_know_them),
		cmocka_unit_test(a_pin_is_kept_and_a_node_that_leaves_is_not_used),
		cmocka_unit_test(long_prompts_have_chains_and_hits),
		cmocka_unit_test(several_answers_are_no_tail),
		cmocka_unit_test(engines_with_events_are_known_by_the_index),
		cmocka_unit_test(blocks_of_bytes_are_in_no_index),
		cmocka_unit_test(a_node_that_failed_is_not_preferred),
		cmocka_unit_test(an_error_teaches_nothing_about_the_node),
		cmocka_unit_test(impossible_token_counts_are_not_believed),
		cmocka_unit_test(a_slow_reader_makes_no_node_slow),
		cmocka_unit_test(what_one_engine_counted_is_not_held_against_another),
		cmocka_unit_test(a_node_is_indexed_once_there_is_room),
		cmocka_unit_test(an_engines_tokens_are_the_chain),
		cmocka_unit_test(what_was_kept_is_of_its_size_of_blocks),
		cmocka_unit_test(ids_need_no_engine_and_some_routes_no_chain),
		cmocka_unit_test(an_engine_of_unknown_make_is_asked_when_told_so),
		cmocka_unit_test(llama_cpp_is_asked_twice),
		cmocka_unit_test(a_model_may_be_told_to_have_bytes),
		cmocka_unit_test(without_tokens_there_are_blocks_of_bytes),
		cmocka_unit_test(a_client_that_goes_cancels_the_question),
		cmocka_unit_test(a_file_makes_the_chain),
		cmocka_unit_test(a_reload_leaves_nothing_old_behind),
		cmocka_unit_test(no_tools_are_no_reason_for_the_template_of_tools),
		cmocka_unit_test(a_client_may_go_while_the_pool_works),
		cmocka_unit_test(what_waits_for_the_pool_is_bounded),
		cmocka_unit_test(a_question_that_the_pool_writes_outlives_its_request),
		cmocka_unit_test(a_body_that_the_pool_reads_outlives_its_client),
		cmocka_unit_test(threads_spend_one_budget_exactly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
