/* SPDX-License-Identifier: Apache-2.0 */
/* relay AGENT ENGINE BODY-FILE REQUESTS: ask the engine directly and through its agent's Generate, one request at a time
 * and in turns, and print the times in microseconds as JSON. bench/relay.py starts the programs. */
#include <stdio.h>
#include <stdlib.h>

#include "io/disk/disk.h"
#include "io/grpc/grpc.h"
#include "joint/enginefetch/enginefetch.h"
#include "policy/proto/proto.h"

#define PATH     "/v1/chat/completions"
#define WARM_UP  200 /* Requests of each kind that are not counted */
#define BODY_MAX ((size_t)16 * 1024 * 1024)

struct bench {
	struct cgn_loop *loop;
	struct enginefetch_endpoint endpoint;
	struct grpc_channel *agent;
	struct grpc_call *call;
	struct cgn_buf body;
	double *us[2]; /* 0: direct, 1: through the agent */
	size_t n, done;
	cgn_nsec begun;
	size_t bytes[2];
};

static void turn_begin(struct bench *b);

static void turn_end(struct bench *b, unsigned kind)
{
	size_t at = b->done / 2;
	if (at >= WARM_UP)
		b->us[kind][at - WARM_UP] = (double)(cgn_clock_now() - b->begun) / 1e3;
	b->done++;
	if (b->done == 2 * (b->n + WARM_UP))
		cgn_loop_stop(b->loop);
	else
		turn_begin(b);
}

static void on_direct(void *user, const struct enginefetch_answer *r)
{
	struct bench *b = user;
	if (!enginefetch_is_ok(r))
		cgn_must_failed(r->err->code != CGN_FINE ? r->err->msg : "the engine did not answer 200",
			CGN_HERE);
	b->bytes[0] = r->body.n;
	turn_end(b, 0);
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
		b->bytes[1] += ch.data.n;
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct bench *b = user;
	(void)c;
	if (why->code != CGN_FINE)
		cgn_must_failed(why->msg, CGN_HERE);
	turn_end(b, 1);
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
	b->bytes[1] = 0;
	if (!cgn_ok(grpc_call_start(b->agent, PROTO_AGENT_GENERATE, 0, &ops, b, &b->call, NULL)))
		cgn_must_failed("no call to the agent", CGN_HERE);
	proto_generate_prefix(&rq, &prefix);
	const struct iovec iov[] = {{prefix.p, prefix.n}, {b->body.p, b->body.n}};
	grpc_send(b->call, iov, CGN_COUNT(iov));
	grpc_half_close(b->call);
}

static void turn_begin(struct bench *b)
{
	struct enginefetch *fetch = NULL;
	const struct enginefetch_ask ask = {.path = PATH,
		.json = cgn_buf_view(&b->body),
		.max_bytes = BODY_MAX,
		.timeout = 10 * CGN_SEC};
	b->begun = cgn_clock_now();
	if (b->done % 2 == 1)
		relayed_begin(b);
	else if (!cgn_ok(enginefetch_start(b->loop, &b->endpoint, &ask, on_direct, b, &fetch, NULL)))
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

int main(int argc, char **argv)
{
	struct bench b = {.n = argc == 5 ? strtoul(argv[4], NULL, 10) : 0};
	struct http_client *client = NULL;
	struct engine_url url;
	struct cgn_err err = {0};
	char text[300];
	if (b.n == 0) {
		(void)fputs("usage: bench_relay AGENT ENGINE BODY-FILE REQUESTS\n", stderr);
		return 2;
	}
	(void)snprintf(text, sizeof text, "http://%s", argv[2]);
	const struct grpc_channel_cfg agent = {.addr = argv[1]};
	cgn_rc rc = cgn_loop_new(&b.loop, &err);
	if (cgn_ok(rc))
		rc = engine_url_parse(text, &url, &err);
	const struct http_client_cfg engine = {.addr = url.addr,
		.authority = url.authority,
		.proto = HTTP_1,
		.max_conns = 1};
	if (cgn_ok(rc))
		rc = http_client_new(b.loop, &engine, &client, &err);
	if (cgn_ok(rc))
		rc = grpc_channel_new(b.loop, &agent, &b.agent, &err);
	if (cgn_ok(rc))
		rc = disk_read_file(argv[3], BODY_MAX, &b.body, &err);
	if (!cgn_ok(rc)) {
		(void)fprintf(stderr, "bench_relay: %s\n", err.msg);
		return 1;
	}
	b.endpoint = (struct enginefetch_endpoint){.client = client, .url = &url};
	b.us[0] = calloc(b.n, sizeof(double));
	b.us[1] = calloc(b.n, sizeof(double));
	if (b.us[0] == NULL || b.us[1] == NULL)
		return 1;
	turn_begin(&b);
	cgn_loop_run(b.loop);
	if (b.bytes[0] != b.bytes[1])
		(void)fprintf(stderr, "bench_relay: the answers differ: %zu and %zu bytes\n", b.bytes[0],
			b.bytes[1]);
	printf("{\"direct\":{\"p50_us\":%.1f,\"p99_us\":%.1f},", quantile_of(b.us[0], b.n, 0.5),
		quantile_of(b.us[0], b.n, 0.99));
	printf("\"agent\":{\"p50_us\":%.1f,\"p99_us\":%.1f},\"bytes\":%zu}\n", quantile_of(b.us[1], b.n, 0.5),
		quantile_of(b.us[1], b.n, 0.99), b.bytes[1]);
	http_client_free(&client);
	grpc_channel_free(&b.agent);
	cgn_loop_stop(b.loop);
	cgn_loop_run(b.loop);
	cgn_loop_free(&b.loop);
	cgn_buf_fini(&b.body);
	free(b.us[0]);
	free(b.us[1]);
	return 0;
}
