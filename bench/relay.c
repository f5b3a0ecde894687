/* SPDX-License-Identifier: Apache-2.0 */
/* relay AGENT ENGINE BODY-FILE REQUESTS: ask the engine directly, through its agent's Generate, and through a thread that
 * only passes the bytes on, one request at a time and in turns, and print the times in microseconds as JSON. bench/relay.py starts the programs. */
#include <stdio.h>
#include <stdlib.h>

#include "forwarder.h"
#include "io/os/disk/disk.h"
#include "io/wire/grpc/grpc.h"
#include "io/wire/webask/webask.h"
#include "policy/node/proto/proto.h"

#define PATH     "/v1/chat/completions"
#define WARM_UP  200 /* Requests of each kind that are not counted */
#define BODY_MAX ((size_t)16 * 1024 * 1024)

enum way { WAY_DIRECT, WAY_AGENT, WAY_FORWARDER, WAYS };

struct bench {
	struct cgn_loop *loop;
	struct webask_endpoint endpoint[WAYS]; /* The agent's way has none. */
	struct grpc_channel *agent;
	struct grpc_call *call;
	struct cgn_buf body;
	double *us[WAYS];
	size_t n, done;
	cgn_nsec begun;
	size_t bytes[WAYS];
};

static void turn_begin(struct bench *b);

static void turn_end(struct bench *b)
{
	size_t at = b->done / WAYS, kind = b->done % WAYS;
	if (at >= WARM_UP)
		b->us[kind][at - WARM_UP] = (double)(cgn_clock_now() - b->begun) / 1e3;
	b->done++;
	if (b->done == WAYS * (b->n + WARM_UP))
		cgn_loop_stop(b->loop);
	else
		turn_begin(b);
}

static void on_direct(void *user, const struct webask_answer *r)
{
	struct bench *b = user;
	if (!webask_is_ok(r))
		cgn_must_failed(r->err->code != CGN_FINE ? r->err->msg : "the engine did not answer 200",
			CGN_HERE);
	b->bytes[b->done % WAYS] = r->body.n;
	turn_end(b);
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct bench *b = user;
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena arena;
	struct proto_chunk ch;
	(void)c;
	cgn_arena_init(&arena, (size_t)1024 * 1024);
	if (!cgn_ok(proto_chunk_read((struct cgn_str){(const char *)p, n}, &arena, &ch, NULL)))
		cgn_must_failed("a chunk is malformed", CGN_HERE);
	if (ch.kind == PROTO_CHUNK_DATA)
		b->bytes[WAY_AGENT] += ch.data.n;
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct bench *b = user;
	(void)c;
	if (why->code != CGN_FINE)
		cgn_must_failed(why->msg, CGN_HERE);
	turn_end(b);
}

static void relayed_begin(struct bench *b)
{
	static const struct grpc_call_ops ops = {.on_message = on_message, .on_close = on_close};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prefix = {0};
	struct proto_header headers[] = {{CGN_STR("content-type"), CGN_STR("application/json")}};
	const struct proto_generate rq = {.method = CGN_STR("POST"),
		.path = CGN_STR(PATH),
		.headers = headers,
		.n_headers = CGN_COUNT(headers),
		.body = cgn_buf_view(&b->body)};
	b->bytes[WAY_AGENT] = 0;
	if (!cgn_ok(grpc_call_start(b->agent, PROTO_AGENT_GENERATE, 0, &ops, b, &b->call, NULL)))
		cgn_must_failed("no call to the agent", CGN_HERE);
	proto_generate_prefix(&rq, &prefix);
	const struct iovec iov[] = {{prefix.p, prefix.n}, {b->body.p, b->body.n}};
	grpc_send(b->call, iov, CGN_COUNT(iov));
	grpc_half_close(b->call);
}

static void turn_begin(struct bench *b)
{
	struct webask *fetch = NULL;
	const struct webask_question ask = {.path = PATH,
		.json = cgn_buf_view(&b->body),
		.max_bytes = BODY_MAX,
		.timeout = 10 * CGN_SEC};
	b->begun = cgn_clock_now();
	if (b->done % WAYS == WAY_AGENT)
		relayed_begin(b);
	else if (!cgn_ok(webask_start(b->loop, &b->endpoint[b->done % WAYS], &ask, on_direct, b, &fetch,
			 NULL)))
		cgn_must_failed("no request to the engine", CGN_HERE);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double quantile_of(double *v, size_t n, double q)
{
	qsort(v, n, sizeof *v, by_size);
	return v[(size_t)(q * (double)(n - 1))];
}

static CGN_RC engine_open(struct bench *b, const char *addr, enum way way, struct http_client **client,
	struct weburl *url, struct cgn_err *err)
{
	char text[300];
	(void)snprintf(text, sizeof text, "http://%s", addr);
	CGN_TRY(weburl_parse(text, url, err));
	const struct http_client_cfg engine = {.addr = url->addr,
		.authority = url->authority,
		.proto = HTTP_1,
		.max_conns = 1};
	CGN_TRY(http_client_new(b->loop, &engine, client, err));
	b->endpoint[way] = (struct webask_endpoint){.client = *client, .url = url};
	return CGN_OK;
}

static void report_print(struct bench *b)
{
	static const char *const names[WAYS] = {"direct", "agent", "forwarder"};
	for (size_t i = 0; i < WAYS; i++)
		printf("%s\"%s\":{\"p50_us\":%.1f,\"p99_us\":%.1f}", i == 0 ? "{" : ",", names[i],
			quantile_of(b->us[i], b->n, 0.5), quantile_of(b->us[i], b->n, 0.99));
	printf(",\"bytes\":%zu}\n", b->bytes[WAY_AGENT]);
	if (b->bytes[WAY_DIRECT] != b->bytes[WAY_AGENT])
		(void)fprintf(stderr, "bench_relay: the answers differ: %zu and %zu bytes\n",
			b->bytes[WAY_DIRECT], b->bytes[WAY_AGENT]);
}

static CGN_RC bench_open(struct bench *b, char **argv, struct http_client *clients[WAYS],
	struct weburl urls[WAYS], struct forwarder *f, struct cgn_err *err)
{
	char passed[32];
	const struct grpc_channel_cfg agent = {.addr = argv[1]};
	if (!forwarder_start(f, argv[2]))
		return CGN_FAIL(err, INTERNAL, "no thread or socket to pass bytes on");
	(void)snprintf(passed, sizeof passed, "127.0.0.1:%u", f->port);
	CGN_TRY(cgn_loop_new(&b->loop, err));
	CGN_TRY(engine_open(b, argv[2], WAY_DIRECT, &clients[WAY_DIRECT], &urls[WAY_DIRECT], err));
	CGN_TRY(engine_open(b, passed, WAY_FORWARDER, &clients[WAY_FORWARDER], &urls[WAY_FORWARDER], err));
	CGN_TRY(grpc_channel_new(b->loop, &agent, &b->agent, err));
	for (size_t i = 0; i < WAYS; i++)
		if ((b->us[i] = calloc(b->n, sizeof(double))) == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for the times");
	return disk_read_file(argv[3], BODY_MAX, &b->body, err);
}

int main(int argc, char **argv)
{
	struct bench b = {.n = argc == 5 ? strtoul(argv[4], NULL, 10) : 0};
	struct http_client *clients[WAYS] = {NULL};
	struct weburl urls[WAYS];
	struct forwarder f;
	struct cgn_err err = {0};
	if (b.n == 0) {
		(void)fputs("usage: bench_relay AGENT ENGINE BODY-FILE REQUESTS\n", stderr);
		return 2;
	}
	if (!cgn_ok(bench_open(&b, argv, clients, urls, &f, &err))) {
		(void)fprintf(stderr, "bench_relay: %s\n", err.msg);
		return 1;
	}
	turn_begin(&b);
	cgn_loop_run(b.loop);
	report_print(&b);
	http_client_free(&clients[WAY_DIRECT]);
	http_client_free(&clients[WAY_FORWARDER]);
	grpc_channel_free(&b.agent);
	cgn_loop_stop(b.loop);
	cgn_loop_run(b.loop);
	cgn_loop_free(&b.loop);
	cgn_buf_fini(&b.body);
	for (size_t i = 0; i < WAYS; i++)
		free(b.us[i]);
	return 0;
}
