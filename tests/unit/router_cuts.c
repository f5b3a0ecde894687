/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of engines that come in two pieces, or break off, at each of their bytes, with each order of the legs' ends: in
 * every dialect that the gateway changes. A gateway worker runs on its own thread between a client and scripted nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "base/json/json.h"
#include "base/log/log.h"
#include "base/sse/sse.h"
#include "disk_folder.h"
#include "gateway_world.h"
#include "io/wire/grpc/grpc_priv.h"
#include "io/wire/http/server_priv.h"
#include "policy/route/routing/answerhome.h"
#include "router/request/account/account.h"
#include "router/shared/pregate/pregate.h"

#define JOBS    256 /* requests at once */
#define NODES   2
#define WHOLE   SIZE_MAX
#define ID_LEAD "cut-"
#define PROMPT  " is the prompt"

#define JSON   "application/json"
#define EVENTS "text/event-stream"

enum hook_use { HOOK_NONE, HOOK_WHOLE, HOOK_WINDOW };

/* A kind of answer, and what the gateway makes of it. */
struct dialect {
	const char *name, *path, *request;
	const char *type, *answer;  /* the engine's */
	const char *toml, *handoff; /* NULL: none */
	const char *models[NODES];  /* NULL: there is no such node */
	const char *small;          /* the answer of node 0, which serves the smaller model of a cascade */
	enum hook_use hook;
	bool resumes;
	bool stored;                 /* by the engine: answers are named by STORED_ID */
	const char *wants;           /* the client's answer has this text */
	unsigned prompt, completion; /* tokens of the answer */
};

struct job {
	size_t at; /* bytes of the first piece, of the answer or of the prefill leg's */
	struct grpc_call *answer, *prefill;
	unsigned asked, prefills; /* calls */
	struct cgn_buf text;      /* sent to the call for the answer */
	struct cgn_buf body;      /* received by the client */
	int status;
	bool over, failed;
};

struct world {
	const struct dialect *d;
	char folder[64];
	struct cgn_loop *loop;
	struct grpc_server *node[NODES];
	size_t n_nodes;
	struct http_server *hook;
	struct cluster *cluster;
	struct gw_shared shared;
	struct gw_worker *worker;
	struct http_client *client;
	struct cgn_timer tick;
	struct job job[JOBS];
	size_t n_jobs, first_id;
	bool steps_over; /* The steps of all jobs are done. */
	cgn_nsec steps_took;
	bool fails; /* The first call for an answer gets no head before its step. */
	struct cgn_buf expected;
};

static struct world *w;

static void world_until(bool (*done)(void))
{
	alarm(60);
	while (!done())
		(void)uv_run(cgn_loop_uv(w->loop), UV_RUN_ONCE);
	alarm(0);
}

static void on_tick(struct cgn_timer *t)
{
	cgn_timer_set(t, CGN_MSEC);
}

/* ---- nodes ---- */

static void piece_send(struct grpc_call *c, const char *p, size_t n)
{
	uint8_t lead[PROTO_CHUNK_LEAD];
	const struct iovec iov[] = {{lead, proto_chunk_lead(lead, n)}, {(void *)(uintptr_t)p, n}};
	grpc_send(c, iov, 2);
}

static void status_send(struct grpc_call *c, int status, const char *type)
{
	const struct proto_header h = {CGN_STR("content-type"), cgn_str_of(type)};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	proto_chunk_head(status, &h, 1, CGN_STR("e"), &b);
	grpc_send(c, &(struct iovec){b.p, b.n}, 1);
}

static void head_send(struct grpc_call *c, const char *type)
{
	status_send(c, 200, type);
}

static const char prefill_answer[] =
	"{\"id\":\"p\",\"choices\":[{\"index\":0,\"text\":\"a\",\"disaggregated_params\":{\"a\":1}}],"
	"\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_engine_id\":\"e\"},"
	"\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":1,\"total_tokens\":41,"
	"\"prompt_tokens_details\":{\"cached_tokens\":7}}}";

#define PREFILL_ANSWER (sizeof prefill_answer - 1) /* bytes */

static void prefill_end(struct job *j, enum cgn_code code)
{
	if (j->prefill != NULL)
		grpc_finish(j->prefill, code, code == CGN_FINE ? "" : "the engine died");
	j->prefill = NULL;
}

static void prefill_part_send(struct job *j, size_t from, size_t to)
{
	if (j->prefill != NULL)
		piece_send(j->prefill, prefill_answer + from, to - from);
}

static void prefill_answer_send(struct job *j)
{
	prefill_part_send(j, 0, PREFILL_ANSWER);
	prefill_end(j, CGN_FINE);
}

static void answer_end(struct job *j, enum cgn_code code)
{
	if (j->answer != NULL)
		grpc_finish(j->answer, code, code == CGN_FINE ? "" : "the engine died");
	j->answer = NULL;
}

#define ENGINE_ERROR "{\"error\":{\"message\":\"no KV cache came\",\"type\":\"server_error\",\"code\":500}}"

/* The engine that was to take the prompt over answers 500. */
static void answer_fail(struct job *j)
{
	if (j->answer == NULL || j->asked > 1)
		return;
	status_send(j->answer, 500, JSON);
	piece_send(j->answer, ENGINE_ERROR, sizeof ENGINE_ERROR - 1);
	answer_end(j, CGN_FINE);
}

static size_t first_piece(const struct job *j)
{
	return j->at < j->text.n ? j->at : j->text.n;
}

static void answer_part_send(struct job *j, size_t from, size_t to)
{
	if (j->answer != NULL)
		piece_send(j->answer, j->text.p + from, to - from);
}

#define TOKEN(text)                                                                                                                   \
	"data: {\"id\":\"x\",\"object\":\"o\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text \
	"\"},\"finish_reason\":null}]}\n\n"
#define END_OF_STREAM                                                                                                                                 \
	"data: {\"id\":\"x\",\"object\":\"o\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" \
	"data: {\"id\":\"x\",\"object\":\"o\",\"created\":1,\"model\":\"m\",\"choices\":[],"                                                          \
	"\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3,\"total_tokens\":43}}\n\ndata: [DONE]\n\n"

/* The text that a client of a resumed answer is to see, and the tokens that engines make of it. */
static const char *const tokens[] = {"Hell\xc3\xb6", " brave", " world"};

/* Write the stream of an engine that was shown |n| bytes of the answer's text. */
static void rest_write(struct cgn_buf *out, size_t n)
{
	for (size_t i = 0; i < CGN_COUNT(tokens); i++) {
		size_t len = strlen(tokens[i]), skip = n < len ? n : len;
		n -= skip;
		if (skip < len)
			cgn_buf_fmt(out,
				"data: {\"id\":\"y\",\"object\":\"o\",\"created\":2,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"finish_reason\":null}]}\n\n",
				tokens[i] + skip);
	}
	cgn_buf_putz(out, END_OF_STREAM);
}

/* Return how many bytes of the answer's text the request continues. */
static size_t shown_of(struct cgn_str body)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf all = {0};
	static const char key[] = "\"role\":\"assistant\",\"content\":\"";
	const char *at = memmem(body.p, body.n, key, sizeof key - 1);
	if (at == NULL)
		return 0;
	at += sizeof key - 1;
	size_t n = (size_t)((const char *)memchr(at, '"', (size_t)(body.p + body.n - at)) - at);
	for (size_t i = 0; i < CGN_COUNT(tokens); i++)
		cgn_buf_putz(&all, tokens[i]);
	assert_true(n <= all.n && memcmp(all.p, at, n) == 0);
	return n;
}

/* Return true if the node is asked for prompt and answer. */
static bool is_lone(struct cgn_str body)
{
	static const char *const members[] = {"\"bootstrap_room\"", "\"kv_transfer_params\"",
		"\"disaggregated_params\""};
	for (size_t i = 0; i < CGN_COUNT(members); i++)
		if (memmem(body.p, body.n, members[i], strlen(members[i])) != NULL)
			return false;
	return w->d->handoff != NULL;
}

#define STORED_ID "resp_000000"

/* Give the answer a name of its own. */
static void stored_name(struct job *j, char out[sizeof STORED_ID])
{
	(void)snprintf(out, sizeof STORED_ID, "resp_%06zu", w->first_id + (size_t)(j - w->job));
}

static void name_write(struct job *j)
{
	char id[sizeof STORED_ID];
	char *at = j->text.n == 0 ? NULL : memmem(j->text.p, j->text.n, STORED_ID, sizeof STORED_ID - 1);
	stored_name(j, id);
	if (at != NULL)
		memcpy(at, id, sizeof id - 1);
}

/* The first call for an answer is answered step by step; further ones, and those without a partner, at once and in full. */
static void answer_begin(struct job *j, struct grpc_call *c, size_t node, struct cgn_str body)
{
	cgn_buf_fini(&j->text);
	j->asked++;
	j->answer = c;
	if (w->fails && j->asked == 1 && j->prefills < 2 && !is_lone(body))
		return;
	head_send(c, w->d->type);
	if (w->d->resumes && j->asked > 1)
		rest_write(&j->text, shown_of(body));
	else
		cgn_buf_putz(&j->text, node == 0 && w->d->small != NULL ? w->d->small : w->d->answer);
	name_write(j);
	if (j->asked == 1 && j->prefills < 2 && !is_lone(body) && !w->steps_over)
		return;
	answer_part_send(j, 0, j->text.n);
	answer_end(j, CGN_FINE);
}

/* NULL: the client has had its answer. */
static struct job *job_of(struct cgn_str id)
{
	uint64_t n = 0;
	assert_true(cgn_str_starts(id, ID_LEAD));
	assert_true(cgn_str_u64((struct cgn_str){id.p + strlen(ID_LEAD), id.n - strlen(ID_LEAD)}, &n));
	return n >= w->first_id && n < w->first_id + w->n_jobs ? &w->job[n - w->first_id] : NULL;
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct cgn_arena arena;
	struct proto_generate g;
	size_t node = (size_t)((struct grpc_server **)user - w->node);
	cgn_arena_init(&arena, 1 << 16);
	assert_true(cgn_ok(proto_generate_read((struct cgn_str){(const char *)p, n}, &arena, &g, NULL)));
	struct job *j = job_of(g.request_id);
	if (j == NULL) {
		grpc_finish(c, CGN_UNAVAILABLE, "too late");
	} else if (node == 0 && w->d->handoff != NULL && !is_lone(g.body)) {
		j->prefill = c;
		head_send(c, JSON);
		if (++j->prefills > 1)
			prefill_answer_send(j);
	} else {
		answer_begin(j, c, node, g.body);
	}
	cgn_arena_fini(&arena);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)user;
	(void)why;
	for (size_t i = 0; i < w->n_jobs; i++) {
		if (w->job[i].answer == c)
			w->job[i].answer = NULL;
		if (w->job[i].prefill == c)
			w->job[i].prefill = NULL;
	}
}

static const struct grpc_call_ops node_ops = {.on_message = on_message, .on_close = on_close};

static void on_generate(struct grpc_call *c, void *user)
{
	grpc_call_take(c, &node_ops, user);
}

static const struct grpc_method node_methods[] = {{PROTO_AGENT_GENERATE, on_generate}};

static void node_join(size_t i)
{
	char id[8], addr[32];
	struct grpc_server_cfg cfg = {.listen = {.addr = "127.0.0.1:0"},
		.methods = node_methods,
		.n_methods = 1,
		.max_message = 1 << 20};
	assert_true(cgn_ok(grpc_server_new(w->loop, &cfg, &w->node[i], &w->node[i], NULL)));
	(void)snprintf(id, sizeof id, "n%zu", i);
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", grpc_server_port(w->node[i]));
	gateway_join(w->cluster,
		&(struct gateway_node){.id = id,
			.addr = addr,
			.kind = "openai_compat",
			.model = w->d->models[i],
			.handoff = w->d->handoff,
			.role = w->d->handoff == NULL ? COGNITORA__V1__ROLE__ROLE_BOTH
				: i == 0              ? COGNITORA__V1__ROLE__ROLE_PREFILL
						      : COGNITORA__V1__ROLE__ROLE_DECODE});
}

/* ---- the external check, which allows everything ---- */

static void hook_request(struct http_exchange *x, const struct http_head *h, void *user)
{
	(void)h;
	(void)user;
	http_exchange_user(x, NULL);
}

static void hook_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	(void)user;
	(void)p;
	(void)n;
}

static void hook_asked(struct http_exchange *x, void *user)
{
	(void)user;
	http_exchange_reply(x, 200, NULL, 0, CGN_STR("{\"allow\":true}"));
}

static void hook_closed(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	(void)user;
	(void)why;
}

static const struct http_server_ops hook_ops = {.on_request = hook_request,
	.on_body = hook_body,
	.on_body_end = hook_asked,
	.on_close = hook_closed};

/* ---- the world ---- */

static void settings_write(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"[router.retry]\nbackoff = \"1ms\"\nbudget = 1.0\n"
		"[router.breaker]\nfailures = 0\nfailure_share = 0.0\n");
	if (w->d->handoff != NULL)
		cgn_buf_putz(out, "[router.disagg]\nenabled = true\ncolocate_below_tokens = 16\n");
	if (w->d->hook != HOOK_NONE)
		cgn_buf_fmt(out,
			"[hooks]\nafter_url = \"http://127.0.0.1:%u/after\"\nafter_window = \"%s\"\n",
			http_server_port(w->hook), w->d->hook == HOOK_WINDOW ? "100" : "0");
	if (w->d->toml != NULL)
		cgn_buf_putz(out, w->d->toml);
}

static void world_open(const struct dialect *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf toml = {0};
	char addr[32], file[96];
	log_setup("test", LOG_ERROR, LOG_HUMAN);
	w = calloc(1, sizeof *w);
	w->d = d;
	disk_folder_make(w->folder, "cuts");
	assert_true(cgn_ok(cgn_loop_new(&w->loop, NULL)));
	w->cluster = cluster_new();
	w->cluster->heard = true;
	for (; w->n_nodes < NODES && d->models[w->n_nodes] != NULL; w->n_nodes++)
		node_join(w->n_nodes);
	if (d->hook != HOOK_NONE) {
		struct http_server_cfg hook = {.listen = {.addr = "127.0.0.1:0"}};
		assert_true(cgn_ok(http_server_new(w->loop, &hook, &hook_ops, NULL, &w->hook, NULL)));
	}
	gateway_shared_open(&w->shared, w->cluster);
	(void)snprintf(file, sizeof file, "%s/cascades", w->folder);
	w->shared.pregate = gw_pregate_open(w->loop, file);
	settings_write(&toml);
	w->worker = gateway_worker(&w->shared, w->cluster, cgn_buf_z(&toml), NULL, addr);
	struct http_client_cfg client = {.addr = addr};
	assert_true(cgn_ok(http_client_new(w->loop, &client, &w->client, NULL)));
	cgn_timer_init(&w->tick, w->loop, on_tick);
	cgn_timer_set(&w->tick, CGN_MSEC);
}

/* Bookings and memory are given back a moment after the client has its answer. */
static bool is_settled(void)
{
	uint64_t open = atomic_load(&w->shared.body_bytes) + atomic_load(&w->shared.resume_bytes);
	for (size_t s = 0; s < w->n_nodes; s++)
		open += cluster_inflight(w->cluster, (uint16_t)s);
	return open == 0;
}

static void worker_wait(void);

/* Wait until all is counted and given back. */
static void world_settle(void)
{
	world_until(is_settled);
	worker_wait();
}

static void world_close(void)
{
	world_settle();
	cgn_timer_cancel(&w->tick);
	http_client_free(&w->client);
	gw_worker_free(&w->worker);
	for (size_t i = 0; i < w->n_nodes; i++)
		grpc_server_free(&w->node[i]);
	if (w->hook != NULL)
		http_server_free(&w->hook);
	gw_pregate_close(&w->shared.pregate);
	cgn_loop_free(&w->loop);
	disk_folder_remove(w->folder);
	gateway_shared_close(&w->shared);
	cluster_free(&w->cluster);
	cgn_buf_fini(&w->expected);
	free(w);
	w = NULL;
}

/* ---- clients ---- */

static void on_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)c;
	((struct job *)user)->status = h->status;
}

static void on_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	cgn_buf_add(&((struct job *)user)->body, p, n);
}

static void on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)trailers;
	(void)n;
	((struct job *)user)->over = true;
}

static void on_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	(void)c;
	(void)stage;
	(void)why;
	((struct job *)user)->failed = true;
}

static const struct http_call_ops client_ops = {.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail};

/* Each prompt is another one: no engine has its beginning cached. */
static void request_write(struct cgn_buf *out, size_t id)
{
	const char *at = strstr(w->d->request, PROMPT);
	assert_non_null(at);
	cgn_buf_add(out, w->d->request, (size_t)(at - w->d->request));
	cgn_buf_fmt(out, "%zu", id);
	cgn_buf_putz(out, at);
}

static void job_start(size_t i, size_t at)
{
	char id[24];
	struct job *j = &w->job[i];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	request_write(&body, w->first_id + i);
	struct iovec iov = {body.p, body.n};
	(void)snprintf(id, sizeof id, ID_LEAD "%zu", w->first_id + i);
	const struct http_field f[] = {{CGN_STR("x-request-id"), cgn_str_of(id)},
		{CGN_STR("content-type"), CGN_STR(JSON)},
		{CGN_STR("x-cgn-resume"), w->d->resumes ? CGN_STR("1") : CGN_STR("0")}};
	struct http_request rq = {.method = "POST",
		.path = w->d->path,
		.fields = f,
		.n_fields = CGN_COUNT(f),
		.body = &iov,
		.n_body = 1,
		.body_len = (int64_t)iov.iov_len};
	struct http_call *c = NULL;
	*j = (struct job){.at = at};
	assert_true(cgn_ok(http_call_start(w->client, &rq, &client_ops, j, &c, NULL)));
}

static void jobs_drop(void)
{
	for (size_t i = 0; i < w->n_jobs; i++) {
		cgn_buf_fini(&w->job[i].text);
		cgn_buf_fini(&w->job[i].body);
	}
	w->first_id += w->n_jobs;
	w->n_jobs = 0;
}

static bool all_over(void)
{
	for (size_t i = 0; i < w->n_jobs; i++)
		if (!w->job[i].over && !w->job[i].failed)
			return false;
	return true;
}

static bool prefills_came(void)
{
	for (size_t i = 0; i < w->n_jobs; i++)
		if (w->job[i].prefills == 0 && !w->job[i].over && !w->job[i].failed)
			return false;
	return true;
}

static bool answers_came(void)
{
	for (size_t i = 0; i < w->n_jobs; i++)
		if (w->job[i].asked == 0 && !w->job[i].over && !w->job[i].failed)
			return false;
	return true;
}

/* ---- steps ---- */

/* The worker has read the bytes that were sent so far: it has answered another request since. */
static bool pong;

static void pong_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)user;
	(void)trailers;
	(void)n;
	pong = true;
}

static void pong_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)user;
	(void)p;
	(void)n;
}

static void pong_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)c;
	(void)user;
	(void)h;
}

static bool is_pong(void)
{
	return pong;
}

static void worker_wait(void)
{
	static const struct http_call_ops ops = {.on_head = pong_head,
		.on_body = pong_body,
		.on_end = pong_end};
	struct http_request rq = {.method = "GET", .path = "/healthz"};
	for (int i = 0; i < 2; i++) {
		struct http_call *c = NULL;
		pong = false;
		assert_true(cgn_ok(http_call_start(w->client, &rq, &ops, NULL, &c, NULL)));
		world_until(is_pong);
	}
}

/* A step is a letter. P: the prefill leg answers; p, q: the first piece of its answer comes, the second one and the end; x: it
 * breaks off. 1, 2: the first and the second piece of the answer come; E: the answer ends; X: it breaks off; F: the engine answers
 * 500 instead. */
static void step_run(struct job *j, char step)
{
	switch (step) {
	case 'P':
		prefill_answer_send(j);
		break;
	case 'p':
		prefill_part_send(j, 0, j->at);
		break;
	case 'q':
		prefill_part_send(j, j->at, PREFILL_ANSWER);
		prefill_end(j, CGN_FINE);
		break;
	case 'x':
		prefill_end(j, CGN_BAD_GATEWAY);
		break;
	case 'F':
		answer_fail(j);
		break;
	case '1':
		answer_part_send(j, 0, first_piece(j));
		break;
	case '2':
		answer_part_send(j, first_piece(j), j->text.n);
		break;
	default:
		answer_end(j, step == 'E' ? CGN_FINE : CGN_BAD_GATEWAY);
		break;
	}
}

static void jobs_run(const char *order)
{
	cgn_nsec began = cgn_clock_now();
	w->steps_over = false;
	for (const char *step = order; *step != '\0'; step++) {
		world_until(strchr("Ppqx", *step) != NULL ? prefills_came : answers_came);
		for (size_t i = 0; i < w->n_jobs; i++)
			step_run(&w->job[i], *step);
		worker_wait();
	}
	w->steps_over = true;
	w->steps_took = cgn_since(cgn_clock_now(), began);
	world_until(all_over);
}

/* ---- checks ---- */

/* Times differ: replace each number of |b| by 0. */
static void numbers_drop(struct cgn_buf *b)
{
	size_t n = 0;
	for (size_t i = 0; i < b->n; i++) {
		bool digit = b->p[i] >= '0' && b->p[i] <= '9';
		if (digit && n > 0 && b->p[n - 1] == '0')
			continue;
		b->p[n++] = digit ? '0' : b->p[i];
	}
	b->n = n;
}

/* Later requests that name the answer go to the node that stored it. */
static void stored_check(struct job *j, const char *order)
{
	char id[sizeof STORED_ID];
	stored_name(j, id);
	struct answerhome home =
		answerhome_get(w->shared.tails, (struct answerhome_of){cgn_str_of(id), CGN_STR("m")});
	if (!home.known)
		fail_msg("%s, %s, in pieces at %zu: nobody knows who stored %s", w->d->name, order, j->at,
			id);
}

static bool is_ollama(void)
{
	return strncmp(w->d->path, "/api/", 5) == 0;
}

static bool is_stream(void)
{
	return strcmp(w->d->type, EVENTS) == 0;
}

/* Find the error behind a part of the answer. */
static const char *error_in(const char *text)
{
	const char *failed = strstr(text, "event: response.failed\ndata: {");
	if (is_ollama())
		return strstr(text, "{\"error\":");
	return failed != NULL ? failed : strstr(text, "event: error\ndata: {");
}

static void text_collect(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct cgn_buf *out = arg;
	struct json_val v, choices, choice, delta, text;
	(void)name;
	if (cgn_str_is(data, "[DONE]")) {
		cgn_buf_putz(out, "|done");
		return;
	}
	assert_true(cgn_ok(json_parse(data, &v, NULL, NULL)));
	if (!json_get(v, "choices", &choices)) {
		cgn_buf_putz(out, "|error");
		return;
	}
	struct json_iter it = json_iter_of(choices);
	if (!json_next_elem(&it, &choice)) {
		cgn_buf_putz(out, "|usage");
		return;
	}
	if (json_get(choice, "delta", &delta) && json_get(delta, "content", &text))
		json_str_to(text, out);
	if (json_get(choice, "finish_reason", &text) && text.type == JSON_STRING)
		cgn_buf_putz(out, "|stop");
}

/* Write the text of a stream and its ends, whatever its events. */
static void stream_read(struct cgn_str body, struct cgn_buf *out)
{
	struct sse_scan scan;
	sse_scan_init(&scan, 1 << 16, text_collect, out);
	sse_scan_feed(&scan, body);
	sse_scan_fini(&scan);
}

/* Return how many bytes |j| got that the answer |whole| begins with too. */
static size_t same_bytes(const struct job *j, struct cgn_str whole)
{
	size_t n = 0;
	while (n < j->body.n && n < whole.n && j->body.p[n] == whole.p[n])
		n++;
	return n;
}

static void same_check(struct job *j, const char *order)
{
	if (w->d->stored)
		stored_check(j, order);
	if (is_ollama() || w->d->stored)
		numbers_drop(&j->body);
	if (!j->over || j->status != 200 || j->body.n != w->expected.n ||
		same_bytes(j, cgn_buf_view(&w->expected)) != j->body.n)
		fail_msg("%s, %s, in pieces at %zu: status %d%s, got %s\nwanted %s", w->d->name, order, j->at,
			j->status, j->failed ? ", cut" : "", cgn_buf_z(&j->body), cgn_buf_z(&w->expected));
}

/* The whole answer is that of an engine that was asked afterwards. */
static bool is_anothers(const struct job *j)
{
	return j->asked > 1 && j->over && cgn_str_is(cgn_buf_view(&j->body), w->d->answer);
}

static void event_check(void *arg, struct cgn_str name, struct cgn_str data)
{
	bool *sound = arg;
	(void)name;
	*sound = *sound &&
		(cgn_str_is(data, "[DONE]") || cgn_ok(json_parse(data, &(struct json_val){0}, NULL, NULL)));
}

/* Return true if the bytes are whole events, or whole lines of Ollama's API, of JSON. */
static bool is_of_events(struct cgn_str bytes)
{
	struct sse_scan scan;
	bool sound = true;
	if (!is_ollama()) {
		sse_scan_init(&scan, 1 << 16, event_check, &sound);
		sse_scan_feed(&scan, bytes);
		sse_scan_fini(&scan);
		return sound && (bytes.n == 0 || sse_border(bytes, 0) == bytes.n);
	}
	while (sound && bytes.n > 0) {
		const char *end = memchr(bytes.p, '\n', bytes.n);
		sound = end != NULL &&
			cgn_ok(json_parse((struct cgn_str){bytes.p, (size_t)(end - bytes.p)},
				&(struct json_val){0}, NULL, NULL));
		size_t n = sound ? (size_t)(end - bytes.p) + 1 : 0;
		bytes = (struct cgn_str){bytes.p + n, bytes.n - n};
	}
	return sound;
}

/* An answer that broke off: whole events and an error behind them, a cut body, an error alone, or (of another engine) all. */
static bool cut_is_right(struct job *j, struct cgn_str whole)
{
	if (is_ollama() || w->d->stored)
		numbers_drop(&j->body);
	size_t n = same_bytes(j, whole);
	struct cgn_str rest = {j->body.p + n, j->body.n - n};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (j->status >= 500)
		return j->over &&
			cgn_ok(json_parse(cgn_buf_view(&j->body), &(struct json_val){0}, NULL, NULL));
	if (j->failed)
		return !is_stream() && rest.n == 0;
	if (j->status != 200)
		return false;
	if ((rest.n == 0 && n == whole.n) || is_anothers(j))
		return true;
	cgn_buf_str(&text, cgn_buf_view(&j->body));
	const char *error = error_in(cgn_buf_z(&text));
	if (error == NULL || (!is_stream() && !is_ollama()))
		return false;
	size_t at = (size_t)(error - text.p);
	struct cgn_str before = {text.p, at}, last = {error, text.n - at};
	return n >= at && is_of_events(before) && is_of_events(last) && strstr(error, "[DONE]") == NULL;
}

/* Another engine goes on: the client sees one answer. */
static bool resumed_is_right(const struct job *j)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf got = {0};
	if (!j->over || j->status != 200)
		return false;
	stream_read(cgn_buf_view(&j->body), &got);
	return strcmp(cgn_buf_z(&got), "Hell\xc3\xb6 brave world|stop|usage|done") == 0;
}

/* Without the prefill leg, the engine's own number of cached tokens is shown. */
static struct cgn_str whole_of(const char *order)
{
	return w->d->handoff != NULL && strchr(order, 'P') == NULL ? cgn_str_of(w->d->answer)
								   : cgn_buf_view(&w->expected);
}

static void cut_check(struct job *j, const char *order)
{
	struct cgn_str whole = whole_of(order);
	if (w->d->resumes ? !resumed_is_right(j) : !cut_is_right(j, whole))
		fail_msg("%s, %s, cut at %zu: status %d%s, got %s\nof %s", w->d->name, order, j->at,
			j->status, j->failed ? ", cut" : "", cgn_buf_z(&j->body), cgn_buf_z(&w->expected));
}

/* The prefill leg broke off: the engine's own number of cached tokens may be shown, or another engine's answer. */
static void lone_check(const struct job *j, const char *order)
{
	if (!j->over || (j->status != 200 && j->status < 500))
		fail_msg("%s, %s, cut at %zu: status %d%s, got %s", w->d->name, order, j->at, j->status,
			j->failed ? ", cut" : "", cgn_buf_z((struct cgn_buf *)(uintptr_t)&j->body));
}

/* Return true if the client has whole events and [DONE], which needs no blank line. */
static bool is_finished(const struct job *j)
{
	static const char done[] = "data: [DONE]";
	struct cgn_str events = cgn_buf_view(&j->body);
	while (events.n > 0 && events.p[events.n - 1] == '\n')
		events.n--;
	size_t n = sizeof done - 1;
	if (!j->over || j->status != 200 || events.n < n || memcmp(events.p + events.n - n, done, n) != 0)
		return false;
	events.n -= n;
	return is_of_events(events);
}

/* The engine ended well, although the answer is not whole: no byte is lost, but of a number that became shorter. A stream that
 * ends before [DONE] was cut. */
static void early_check(struct job *j, const char *order)
{
	/* Without an event, or a member that only answers have, there is no answer. */
	size_t least = is_stream() ? (size_t)(strstr(w->d->answer, "\n\n") - w->d->answer) + 2
				   : strlen(w->d->answer);
	if (j->at < least && j->over && j->status >= 500)
		return;
	if (is_stream() && (cut_is_right(j, whole_of(order)) || is_finished(j)))
		return;
	size_t same = same_bytes(j, cgn_buf_view(&w->expected)),
	       as_sent = same_bytes(j, cgn_str_of(w->d->answer));
	if (!j->over || j->status != 200 || is_stream() || (same < j->body.n && as_sent < j->body.n) ||
		j->body.n + 1 < j->at)
		fail_msg("%s, %s, ended at %zu: status %d%s, got %s", w->d->name, order, j->at, j->status,
			j->failed ? ", cut" : "", cgn_buf_z((struct cgn_buf *)(uintptr_t)&j->body));
}

static void job_check(struct job *j, const char *order)
{
	if (strchr(order, 'x') != NULL)
		lone_check(j, order);
	else if (strchr(order, 'X') != NULL)
		cut_check(j, order);
	else if (strchr(order, '2') == NULL)
		early_check(j, order);
	else
		same_check(j, order);
}

/* ---- tests ---- */

static void expect_whole(const char *order)
{
	w->n_jobs = 1;
	job_start(0, WHOLE);
	jobs_run(order);
	struct job *j = &w->job[0];
	if (!j->over || j->status != 200)
		fail_msg("%s, whole: status %d%s, got %s", w->d->name, j->status, j->failed ? ", cut" : "",
			cgn_buf_z(&j->body));
	if (w->d->wants != NULL && strstr(cgn_buf_z(&j->body), w->d->wants) == NULL)
		fail_msg("%s, whole: got %s, without %s", w->d->name, cgn_buf_z(&j->body), w->d->wants);
	cgn_buf_fini(&w->expected);
	cgn_buf_str(&w->expected, cgn_buf_view(&j->body));
	if (is_ollama() || w->d->stored)
		numbers_drop(&w->expected);
	jobs_drop();
	world_settle();
}

/* Ask once for each byte of the answer, or of the prefill leg's. */
static void each_byte(const char *order)
{
	const char *answer = w->d->small != NULL ? w->d->small : w->d->answer;
	size_t n = strchr(order, 'p') != NULL ? PREFILL_ANSWER : strlen(answer);
	const size_t most = w->d->resumes ? BUDGET_RESERVE : JOBS; /* more would be over the retry budget */
	for (size_t at = 0; at <= n; at += most) {
		w->n_jobs = n + 1 - at < most ? n + 1 - at : most;
		for (size_t i = 0; i < w->n_jobs; i++)
			job_start(i, at + i);
		jobs_run(order);
		for (size_t i = 0; i < w->n_jobs; i++)
			job_check(&w->job[i], order);
		jobs_drop();
	}
	world_settle();
}

static uint64_t tokens_counted(const char *kind)
{
	return metric_count(METRIC_OF(w->shared.telemetry, TOKENS, kind));
}

/* The engine's counts are found in each answer, wherever it was cut. */
static void each_byte_counted(const char *order)
{
	uint64_t prompt = tokens_counted("prompt"), completion = tokens_counted("completion");
	size_t n = strlen(w->d->answer) + 1;
	each_byte(order);
	if (w->d->completion == 0)
		return;
	assert_int_equal(tokens_counted("prompt") - prompt, n * w->d->prompt);
	assert_int_equal(tokens_counted("completion") - completion, n * w->d->completion);
}

#define CHAT_REQUEST "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT "\"}]"
#define LONG         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define PAIR_REQUEST                                                                                  \
	"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT LONG LONG LONG LONG \
		LONG LONG "\"}]"
#define CHAT_ANSWER                                                                                     \
	"{\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","  \
	"\"content\":\"Hi \\u00e9\\\\\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":40," \
	"\"completion_tokens\":3,\"total_tokens\":43,\"prompt_tokens_details\":{\"cached_tokens\":39}}}"
#define CHAT_STREAM TOKEN("Hell\xc3\xb6") TOKEN(" brave") TOKEN(" world") END_OF_STREAM
#define PAIR_STREAM                                                                                          \
	TOKEN("Hi")                                                                                          \
	"data: {\"id\":\"x\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":40,"                \
	"\"completion_tokens\":3,\"total_tokens\":43,\"prompt_tokens_details\":{\"cached_tokens\":39}}}\n\n" \
	"data: [DONE]\n\n"
#define STREAMS    ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
#define CHAT       "/v1/chat/completions"
#define CACHED     "\"cached_tokens\":7"
#define ALIAS      "[models.m]\naliases = [\"alias\"]\n"
#define ALIAS_CHAT "{\"model\":\"alias\",\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT "\"}]"
#define SURE                                                                                                      \
	"\"logprobs\":{\"content\":[{\"token\":\"word\",\"logprob\":-0.01,\"top_logprobs\":[{\"token\":\"word\"," \
	"\"logprob\":-0.01},{\"token\":\"b\",\"logprob\":-5.0}]}]}"
#define SURE_TOKEN(text)                                                                               \
	"data: {\"id\":\"x\",\"model\":\"s\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text \
	"\"}," SURE ",\"finish_reason\":null}]}\n\n"
#define CASCADE \
	"[router.cascade]\nenabled = true\nsmall_model = \"s\"\nlarge_model = \"m\"\ntokens = 2\npregate = 1\ncalibration_share = 0\n"

static const struct dialect alone[] = {
	{.name = "plain",
		.path = CHAT,
		.request = CHAT_REQUEST "}",
		.type = JSON,
		.answer = CHAT_ANSWER,
		.models = {"m"},
		.prompt = 40,
		.completion = 3},
	{.name = "stream",
		.path = CHAT,
		.request = CHAT_REQUEST STREAMS,
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m"},
		.prompt = 40,
		.completion = 3},
	{.name = "messages",
		.path = "/v1/messages",
		.request =
			"{\"model\":\"m\",\"max_tokens\":9,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT
			"\"}]}",
		.type = EVENTS,
		.answer =
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"x\",\"usage\":{\"input_tokens\":40,\"output_tokens\":1}}}\n\n"
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n"
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\n"
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		.models = {"m"},
		.prompt = 40,
		.completion = 3},
	{.name = "rename",
		.path = CHAT,
		.request = ALIAS_CHAT "}",
		.type = JSON,
		.answer = CHAT_ANSWER,
		.models = {"m"},
		.toml = ALIAS,
		.wants = "\"model\":\"alias\"",
		.prompt = 40,
		.completion = 3},
	{.name = "rename, stream",
		.path = CHAT,
		.request = ALIAS_CHAT STREAMS,
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m"},
		.toml = ALIAS,
		.wants = "\"model\":\"alias\"",
		.prompt = 40,
		.completion = 3},
	{.name = "hook",
		.path = CHAT,
		.request = CHAT_REQUEST "}",
		.type = JSON,
		.answer = CHAT_ANSWER,
		.models = {"m"},
		.hook = HOOK_WHOLE,
		.prompt = 40,
		.completion = 3},
	{.name = "hook, stream",
		.path = CHAT,
		.request = CHAT_REQUEST STREAMS,
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m"},
		.hook = HOOK_WHOLE,
		.prompt = 40,
		.completion = 3},
	{.name = "hook, window",
		.path = CHAT,
		.request = CHAT_REQUEST STREAMS,
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m"},
		.hook = HOOK_WINDOW,
		.prompt = 40,
		.completion = 3},
	{.name = "ollama",
		.path = "/api/chat",
		.request =
			"{\"model\":\"m\",\"stream\":false,\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT
			"\"}]}",
		.type = JSON,
		.answer = CHAT_ANSWER,
		.models = {"m"},
		.wants = "\"done\":true",
		.prompt = 40,
		.completion = 3},
	{.name = "ollama, stream",
		.path = "/api/chat",
		.request = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT "\"}]}",
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m"},
		.wants = "\"done\":true",
		.prompt = 40,
		.completion = 3},
	{.name = "messages, not streamed",
		.path = "/v1/messages",
		.request =
			"{\"model\":\"m\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT
			"\"}]}",
		.type = JSON,
		.answer =
			"{\"id\":\"x\",\"type\":\"message\",\"model\":\"m\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}],"
			"\"stop_reason\":\"end_turn\",\"usage\":{\"input_tokens\":40,\"output_tokens\":3}}",
		.models = {"m"},
		.prompt = 40,
		.completion = 3},
	{.name = "responses",
		.path = "/v1/responses",
		.request = "{\"model\":\"m\",\"input\":\"" PROMPT "\"}",
		.type = JSON,
		.stored = true,
		.answer = "{\"id\":\"" STORED_ID "\",\"object\":\"response\",\"model\":\"m\",\"output\":[],"
			  "\"usage\":{\"input_tokens\":40,\"output_tokens\":3}}",
		.models = {"m"},
		.prompt = 40,
		.completion = 3},
	{.name = "responses, stream",
		.path = "/v1/responses",
		.request = "{\"model\":\"m\",\"stream\":true,\"input\":\"" PROMPT "\"}",
		.type = EVENTS,
		.stored = true,
		.answer =
			"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"" STORED_ID
			"\",\"model\":\"m\"}}\n\n"
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n"
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"" STORED_ID
			"\",\"usage\":{\"input_tokens\":40,\"output_tokens\":3}}}\n\n",
		.models = {"m"},
		.prompt = 40,
		.completion = 3},
	{.name = "text",
		.path = "/v1/completions",
		.request = "{\"model\":\"alias\",\"prompt\":\"" PROMPT "\"}",
		.type = JSON,
		.toml = ALIAS,
		.answer =
			"{\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"\"}],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3}}",
		.models = {"m"},
		.wants = "\"model\":\"alias\"",
		.prompt = 40,
		.completion = 3},
	{.name = "text, stream",
		.path = "/v1/completions",
		.request = "{\"model\":\"m\",\"stream\":true,\"prompt\":\"" PROMPT "\"}",
		.type = EVENTS,
		.answer =
			"data: {\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"Hi\"}]}\n\n"
			"data: {\"id\":\"x\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
		.models = {"m"},
		.prompt = 40,
		.completion = 3},
	{.name = "carriage returns",
		.path = CHAT,
		.request = ALIAS_CHAT STREAMS,
		.type = EVENTS,
		.toml = ALIAS,
		.answer =
			"data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\r\n\r\n"
			"data: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3}}\r\n\r\ndata: [DONE]\r\n\r\n",
		.models = {"m"},
		.wants = "\"alias\"",
		.prompt = 40,
		.completion = 3},
	{.name = "ollama, renamed and checked",
		.path = "/api/chat",
		.request =
			"{\"model\":\"alias\",\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT "\"}]}",
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m"},
		.toml = ALIAS,
		.hook = HOOK_WINDOW,
		.wants = "\"done\":true",
		.prompt = 40,
		.completion = 3},
	{.name = "ollama, generate",
		.path = "/api/generate",
		.request = "{\"model\":\"m\",\"prompt\":\"" PROMPT "\"}",
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m"},
		.wants = "\"done\":true",
		.prompt = 40,
		.completion = 3},
	{.name = "ollama, embed",
		.path = "/api/embed",
		.request = "{\"model\":\"m\",\"input\":\"" PROMPT "\"}",
		.type = JSON,
		.answer =
			"{\"object\":\"list\",\"data\":[{\"index\":0,\"embedding\":[0.5,-1]}],\"model\":\"m\",\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3}}",
		.models = {"m"},
		.wants = "\"embeddings\"",
		.prompt = 40,
		.completion = 3},
	{.name = "cascade",
		.path = CHAT,
		.request = CHAT_REQUEST "}",
		.type = JSON,
		.answer = CHAT_ANSWER,
		.small =
			"{\"id\":\"x\",\"model\":\"s\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"word\"}," SURE
			",\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3}}",
		.models = {"s", "m"},
		.toml = CASCADE,
		.wants = "\"model\":\"m\""},
	{.name = "cascade, stream",
		.path = CHAT,
		.request = CHAT_REQUEST STREAMS,
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.small = SURE_TOKEN("word") SURE_TOKEN(" word") SURE_TOKEN(" word") END_OF_STREAM,
		.models = {"s", "m"},
		.toml = CASCADE,
		.wants = "\"logprobs\":null"},
	{.name = "resume",
		.path = CHAT,
		.request = CHAT_REQUEST STREAMS,
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m", "m"},
		.resumes = true,
		.prompt = 40,
		.completion = 3},
	{.name = "resume, rename",
		.path = CHAT,
		.request = ALIAS_CHAT STREAMS,
		.type = EVENTS,
		.answer = CHAT_STREAM,
		.models = {"m", "m"},
		.toml = ALIAS,
		.resumes = true,
		.wants = "\"model\":\"alias\"",
		.prompt = 40,
		.completion = 3},
};

static void test_one_engine_answers(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(alone); i++) {
		world_open(&alone[i]);
		expect_whole("12E");
		each_byte_counted("12E");
		each_byte("1X");
		world_close();
	}
}

static const struct dialect pairs[] = {
	{.name = "pair",
		.path = CHAT,
		.request = PAIR_REQUEST "}",
		.type = JSON,
		.answer = CHAT_ANSWER,
		.models = {"m", "m"},
		.wants = CACHED,
		.prompt = 40,
		.completion = 3},
	{.name = "pair, stream",
		.path = CHAT,
		.request = PAIR_REQUEST STREAMS,
		.type = EVENTS,
		.answer = PAIR_STREAM,
		.models = {"m", "m"},
		.wants = CACHED,
		.prompt = 40,
		.completion = 3},
};

static const struct dialect pair_of_all = {.name = "pair, renamed, checked, for ollama",
	.path = "/api/chat",
	.request = "{\"model\":\"alias\",\"messages\":[{\"role\":\"user\",\"content\":\"" PROMPT LONG LONG
		LONG LONG LONG LONG "\"}]}",
	.type = EVENTS,
	.answer = PAIR_STREAM,
	.models = {"m", "m"},
	.toml = ALIAS,
	.hook = HOOK_WINDOW,
	.wants = "\"done\":true",
	.prompt = 40,
	.completion = 3};

static void pair_run(const struct dialect *like, const char *handoff, const char *const *orders)
{
	struct dialect d = *like;
	d.handoff = handoff;
	world_open(&d);
	expect_whole("P12E");
	for (; *orders != NULL; orders++)
		strchr(*orders, 'p') != NULL || strchr(*orders, '2') == NULL ? each_byte(*orders)
									     : each_byte_counted(*orders);
	world_close();
}

/* The prefill leg is before, between and behind the pieces of the answer; it comes in pieces itself, or breaks off. */
static const char *const at_once[] = {"P12E", "1P2E", "12PE", "12EP", "pq12E", "p12Eq", "1pq2E", "P1X", "1PX",
	"1XP", "P1E", "1EP", "1px2E", "px", NULL};

/* The same without an early end: an answer of Ollama's API that is not whole is an error. */
static const char *const all_at_once[] = {"P12E", "1P2E", "12PE", "12EP", "pq12E", "p12Eq", "P1X", "1PX",
	"1XP", NULL};

static void test_two_engines_answer_at_once(void **state)
{
	static const char *const kinds[] = {"sglang", "mooncake"}, *const lonely[] = {"1X", NULL};
	(void)state;
	for (size_t k = 0; k < CGN_COUNT(kinds); k++)
		for (size_t i = 0; i < CGN_COUNT(pairs); i++)
			pair_run(&pairs[i], kinds[k], at_once);
	pair_run(&pair_of_all, "sglang", all_at_once);
	pair_run(&pairs[0], "sglang", lonely); /* waits a second for the prefill leg */
}

/* ---- blame ---- */

#define PAIR_JOBS 8 /* within the retries that a worker may always make */

static uint64_t breaker_of(size_t slot)
{
	return atomic_load(&w->cluster->stats[slot].breaker);
}

/* Run |order| with |d|, and return whether the steps came close enough upon each other: the router waits for the partner's end
 * for 100 ms at most. */
static bool failure_runs(const struct dialect *d, const char *order)
{
	world_open(d);
	w->fails = true;
	w->n_jobs = PAIR_JOBS;
	for (size_t i = 0; i < w->n_jobs; i++)
		job_start(i, WHOLE);
	world_until(prefills_came);
	if (strchr("Fx", order[0]) != NULL)
		world_until(answers_came);
	jobs_run(order);
	return w->steps_took < 80 * CGN_MSEC;
}

static void failure_check(const struct dialect *d, const char *order, bool partner_died)
{
	world_settle();
	for (size_t i = 0; i < w->n_jobs; i++) {
		struct job *j = &w->job[i];
		/* Another engine answers, or none can: the client gets the error of the engine that is to blame. */
		bool good = j->over &&
			(j->status == 200 || j->status == 503 || (j->status == 500 && !partner_died));
		if (!good)
			fail_msg("%s by %s, %s: status %d%s, got %s", d->name, d->handoff, order, j->status,
				j->failed ? ", cut" : "", cgn_buf_z(&j->body));
	}
	size_t blamed = partner_died ? 0 : 1;
	if (breaker_of(blamed) == 0 || breaker_of(!blamed) != 0)
		fail_msg("%s by %s, %s: the breakers are %llx and %llx", d->name, d->handoff, order,
			(unsigned long long)breaker_of(0), (unsigned long long)breaker_of(1));
}

static void failure_case(const struct dialect *like, const char *handoff, const char *order,
	bool partner_died)
{
	struct dialect d = *like;
	bool quick = false;
	d.handoff = handoff;
	for (int tries = 0; !quick && tries < 20; tries++) {
		quick = failure_runs(&d, order);
		if (quick)
			failure_check(&d, order, partner_died);
		jobs_drop();
		world_close();
	}
	if (!quick)
		skip(); /* This machine is too slow to tell. */
}

/* An engine that takes a prompt over says 500 when its partner is gone, and may say so before the partner's agent does. */
static void test_the_engine_that_failed_is_blamed(void **state)
{
	static const char *const at_once_kinds[] = {"sglang", "mooncake"},
				 *const others[] = {"nixl", "p2p", "trtllm"};
	const struct dialect *const shapes[] = {&pairs[0], &pairs[1], &pair_of_all};
	(void)state;
	for (size_t k = 0; k < CGN_COUNT(at_once_kinds); k++)
		for (size_t i = 0; i < CGN_COUNT(shapes); i++) {
			failure_case(shapes[i], at_once_kinds[k], "Fx", true);
			failure_case(shapes[i], at_once_kinds[k], "xF", true);
			failure_case(shapes[i], at_once_kinds[k], "FP", false);
			failure_case(shapes[i], at_once_kinds[k], "PF", false);
		}
	for (size_t k = 0; k < CGN_COUNT(others); k++)
		for (size_t i = 0; i < CGN_COUNT(shapes); i++)
			failure_case(shapes[i], others[k], "PF", false);
}

static void test_two_engines_answer_in_sequence(void **state)
{
	static const char *const kinds[] = {"nixl", "p2p", "trtllm"};
	static const char *const orders[] = {"P12E", "pq12E", "P1X", "px12E", NULL};
	(void)state;
	for (size_t k = 0; k < CGN_COUNT(kinds); k++)
		for (size_t i = 0; i < CGN_COUNT(pairs); i++)
			pair_run(&pairs[i], kinds[k], orders);
	pair_run(&pair_of_all, "nixl", orders);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_engine_answers),
		cmocka_unit_test(test_two_engines_answer_at_once),
		cmocka_unit_test(test_two_engines_answer_in_sequence),
		cmocka_unit_test(test_the_engine_that_failed_is_blamed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
