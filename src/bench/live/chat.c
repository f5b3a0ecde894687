/* SPDX-License-Identifier: Apache-2.0 */
/* live, the room: load on a gateway, an engine or a block store that runs. */
/* bench chat: an open-loop load generator. Requests arrive at random (Poisson), independent of answers. Each
 * request is measured from its scheduled arrival, so a stalled server cannot hide the requests that it
 * delayed. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mix/mix.h"
#include "base/samples/samples.h"
#include "base/sse/sse.h"
#include "bench/bench.h"
#include "bench/common/traces.h"
#include "bench/live/playback.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/client/client.h"
#include "joint/ctl/client/origin.h"
#include "joint/ctl/line/progress.h"

#define EVENT_LIMIT ((size_t)1 << 20)
#define MAX_STATUS  600

struct bench {
	struct cgn_loop *loop;
	struct ctl_origin origin;
	struct cgn_timer arrivals, progress;
	int stop_signal; /* SIGINT or SIGTERM ended the run early; 0: none did. */
	char model[256], path[300];
	struct cgn_buf key; /* API key with its NUL; empty: none. */
	bool stream, stopping, traced, ignore_eos;
	struct played played; /* Used when |traced|. */
	double rate;
	uint64_t rng, max_inflight, prompt_bytes, shared_bytes, max_tokens;
	cgn_nsec duration, timeout, began, next_at;
	uint64_t sent, not_sent, inflight, done, failed, tokens;
	uint64_t by_status[MAX_STATUS];
	struct cgn_err first_failure;
	struct samples ttft, itl, latency;
	struct samples per_token; /* Mean time between tokens of each answer. */
};

/* A request. */
struct shot {
	struct bench *b;
	cgn_nsec due, first, last;
	int status;
	uint64_t tokens;
	struct sse_scan scan;
	bool saw_done, saw_error;
	struct usagescan told; /* Usage of a trace's request. */
	char node[132];
};

static double rng_unit(uint64_t *s) /* Draw from (0, 1]. */
{
	return ((double)(mix_xorshift_star(s) >> 11) + 1) / 9007199254740993.0;
}

/* ---- answers ---- */

/* True when a chat chunk has content of any kind: text, reasoning or a tool call. */
static bool has_content(struct json_val chunk)
{
	static const char *const places[] = {"content", "reasoning_content", "reasoning", "tool_calls",
		"refusal"};
	struct json_val choices, choice, delta, v;
	if (!json_get(chunk, "choices", &choices) || choices.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(choices);
	while (json_next_elem(&it, &choice)) {
		if (!json_get(choice, "delta", &delta))
			continue;
		for (size_t i = 0; i < CGN_COUNT(places); i++)
			if (json_get(delta, places[i], &v) &&
				((v.type == JSON_STRING && v.raw.n > 2) || v.type == JSON_ARRAY))
				return true;
	}
	return false;
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct shot *s = arg;
	struct json_val chunk;
	if (cgn_str_is(data, "[DONE]")) {
		s->saw_done = true;
		return;
	}
	s->saw_error |= cgn_str_is(name, "error");
	if (!cgn_ok(json_parse(data, &chunk, NULL, NULL)) || !has_content(chunk))
		return;
	cgn_nsec now = cgn_clock_now();
	s->first = s->tokens == 0 ? now : s->first;
	if (s->tokens++ == 0)
		samples_add(&s->b->ttft, cgn_since(now, s->due));
	else
		samples_add(&s->b->itl, cgn_since(now, s->last));
	s->last = now;
}

/* ---- a request ---- */

static void check_end(struct bench *b)
{
	if (b->stopping && b->inflight == 0)
		cgn_loop_stop(b->loop);
}

static void shot_fail(struct shot *s, enum cgn_code code, const char *why)
{
	if (s->b->failed++ == 0)
		(void)CGN_FAIL_AS(&s->b->first_failure, code, "%s", why);
}

static void shot_end(struct shot *s)
{
	struct bench *b = s->b;
	b->inflight--;
	b->tokens += s->tokens;
	sse_scan_fini(&s->scan);
	free(s);
	check_end(b);
}

static void shot_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)c;
	struct shot *s = user;
	s->status = h->status;
	(void)cgn_str_copyz(s->node, sizeof s->node, http_head_get(h, "x-cgn-node"));
}

static void shot_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	struct shot *s = user;
	if (s->b->traced)
		usagescan_feed(&s->told, (struct cgn_str){(const char *)p, n});
	if (s->b->stream && s->status == 200)
		sse_scan_feed(&s->scan, (struct cgn_str){(const char *)p, n});
	/* The first byte of a plain answer counts as its first token. */
	else if (s->tokens == 0 && s->status == 200) {
		samples_add(&s->b->ttft, cgn_since(cgn_clock_now(), s->due));
		s->tokens = 1;
	}
}

static void note_played(struct shot *s)
{
	playback_note(&s->b->played, cgn_str_of(s->node), &s->told.usage);
}

static void shot_done(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)trailers;
	(void)n;
	struct shot *s = user;
	char why[64];
	s->b->by_status[s->status >= 0 && s->status < MAX_STATUS ? s->status : 0]++;
	if (s->status != 200) {
		(void)snprintf(why, sizeof why, "status %d", s->status);
		shot_fail(s, CGN_BAD_GATEWAY, why);
	} else if (s->b->stream && (s->saw_error || !s->saw_done)) {
		shot_fail(s, CGN_BAD_GATEWAY,
			s->saw_error ? "the stream ended in an error event"
				     : "the stream ended without [DONE]");
	} else {
		s->b->done++;
		samples_add(&s->b->latency, cgn_since(cgn_clock_now(), s->due));
		if (s->tokens > 1)
			samples_add(&s->b->per_token, (s->last - s->first) / (s->tokens - 1));
		if (s->b->traced)
			note_played(s);
	}
	shot_end(s);
}

static void shot_failed(struct http_call *c, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	(void)c;
	(void)stage;
	struct shot *s = user;
	shot_fail(s, why->code, why->msg);
	shot_end(s);
}

/* Append words of the generator; the shared beginning is the same in all requests. */
static void put_prompt(struct bench *b, struct cgn_buf *out)
{
	static const char *const words[] = {"the ", "router ", "sends ", "each ", "request ", "where ",
		"its ", "cache ", "already ", "is ", "and ", "counts ", "load "};
	uint64_t fixed = 88172645463325252U, *state = &fixed;
	size_t start = out->n;
	while (out->n - start < b->prompt_bytes) {
		if (out->n - start >= b->shared_bytes)
			state = &b->rng;
		cgn_buf_putz(out, words[mix_xorshift_star(state) % CGN_COUNT(words)]);
	}
	out->n = start + b->prompt_bytes;
}

/* Add members of a trace's request: an answer of the recorded length, and usage with cached tokens. */
static void put_traced(const struct bench *b, struct json_out *o)
{
	if (b->ignore_eos) {
		json_key_bool(o, "ignore_eos", true);
	}
	if (!b->stream)
		return;
	json_key(o, "stream_options");
	json_put_raw(o, CGN_STR("{\"include_usage\":true}"));
}

static void body_of(struct bench *b, struct cgn_buf *out)
{
	struct cgn_buf text = {0};
	struct json_out o = json_out_to(out);
	uint64_t max_tokens = b->traced ? b->played.trace.requests[b->played.next].output : b->max_tokens;
	if (b->traced)
		playback_prompt(&b->played, b->played.next, &text);
	else
		put_prompt(b, &text);
	json_open(&o, '{');
	json_key_z(&o, "model", b->model);
	json_key_bool(&o, "stream", b->stream);
	json_key_u64(&o, "max_tokens", max_tokens);
	if (b->traced)
		put_traced(b, &o);
	json_key_open(&o, "messages", '[');
	json_open(&o, '{');
	json_key_z(&o, "role", "user");
	json_key_str(&o, "content", cgn_buf_view(&text));
	json_close(&o, '}');
	json_close(&o, ']');
	json_close(&o, '}');
	cgn_buf_fini(&text);
}

static void shot_start(struct bench *b, cgn_nsec due)
{
	static const struct http_call_ops ops = {.on_head = shot_head,
		.on_body = shot_body,
		.on_end = shot_done,
		.on_fail = shot_failed};
	char authorization[512], session[24];
	struct http_field fields[3];
	struct cgn_buf body = {0};
	struct http_call *call = NULL;
	struct cgn_err err = {0};
	struct shot *s = b->inflight < b->max_inflight ? calloc(1, sizeof *s) : NULL;
	if (s == NULL) {
		b->not_sent++;
		return;
	}
	body_of(b, &body);
	s->b = b;
	s->due = due;
	sse_scan_init(&s->scan, EVENT_LIMIT, on_event, s);
	const struct iovec iov = {body.p, body.n};
	size_t n_fields = ctl_origin_fields(b->key.p, authorization, sizeof authorization, fields);
	if (b->traced && b->played.trace.requests[b->played.next].session != 0) {
		(void)snprintf(session, sizeof session, "%" PRIu64,
			b->played.trace.requests[b->played.next].session);
		fields[n_fields++] = (struct http_field){CGN_STR("x-cgn-session"), cgn_str_of(session)};
	}
	const struct http_request rq = {.method = "POST",
		.path = b->path,
		.fields = fields,
		.n_fields = n_fields,
		.body_len = (int64_t)body.n,
		.head_timeout = b->timeout,
		.idle_timeout = b->timeout,
		.body = &iov,
		.n_body = 1};
	b->inflight++;
	b->sent++;
	if (!cgn_ok(http_call_start(b->origin.client, &rq, &ops, s, &call, &err))) {
		shot_fail(s, err.code, err.msg);
		shot_end(s);
	}
	cgn_buf_fini(&body);
}

/* ---- arrivals ---- */

/* Return the time of the next arrival, a time beyond the end after the last one of a trace. */
static cgn_nsec next_arrival(struct bench *b)
{
	if (!b->traced)
		return b->next_at + (cgn_nsec)(-log(rng_unit(&b->rng)) / b->rate * 1e9);
	size_t i = ++b->played.next;
	return i < b->played.trace.n ? b->began + playback_due(&b->played, i) : UINT64_MAX;
}

static void on_arrival(struct cgn_timer *t)
{
	struct bench *b = CGN_CONTAINER(t, struct bench, arrivals);
	cgn_nsec now = cgn_clock_now();
	while (b->next_at <= now && b->next_at < b->began + b->duration) {
		shot_start(b, b->next_at);
		b->next_at = next_arrival(b);
	}
	if (b->next_at >= b->began + b->duration) {
		b->stopping = true;
		check_end(b);
		return;
	}
	cgn_timer_set(t, b->next_at > now ? b->next_at - now : 0);
}

/* End the run: the measurements so far are reported, open requests are given up. */
static void on_stop_signal(void *arg, int signo)
{
	struct bench *b = arg;
	b->stop_signal = signo;
	cgn_loop_stop(b->loop);
}

static void show_progress(struct cgn_timer *t)
{
	struct bench *b = CGN_CONTAINER(t, struct bench, progress);
	double part = (double)cgn_since(cgn_clock_now(), b->began) / (double)b->duration;
	ctl_progress("%s %" PRIu64 " sent, %" PRIu64 " answered, %" PRIu64 " failed, %" PRIu64 " open",
		ctl_bar(part).text, b->sent, b->done, b->failed, b->inflight);
	cgn_timer_set(t, 200 * CGN_MSEC);
}

/* ---- report ---- */

static double elapsed_seconds(const struct bench *b)
{
	return (double)cgn_since(cgn_clock_now(), b->began) / 1e9;
}

static void report_json(struct bench *b, double took, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	struct {
		const char *name;
		double v;
	} numbers[] = {{"rate", b->rate}, {"seconds", took}, {"sent", (double)b->sent},
		{"not_sent", (double)b->not_sent}, {"answered", (double)b->done},
		{"failed", (double)b->failed}, {"given_up", (double)b->inflight},
		{"requests_per_second", (double)b->done / took},
		{"tokens_per_second", (double)b->tokens / took}};
	json_open(&o, '{');
	json_key_z(&o, "bench", "chat");
	json_key_z(&o, "model", b->model);
	json_key_bool(&o, "stream", b->stream);
	json_key_bool(&o, "interrupted", b->stop_signal != 0);
	for (size_t i = 0; i < CGN_COUNT(numbers); i++) {
		json_key_f64(&o, numbers[i].name, numbers[i].v);
	}
	json_key_open(&o, "status", '{');
	for (int i = 0; i < MAX_STATUS; i++) {
		char code[16];
		if (b->by_status[i] == 0)
			continue;
		(void)snprintf(code, sizeof code, "%d", i);
		json_key_u64(&o, code, b->by_status[i]);
	}
	json_close(&o, '}');
	json_key(&o, "ttft_ms");
	samples_json(&b->ttft, &o);
	json_key(&o, "itl_ms");
	samples_json(&b->itl, &o);
	json_key(&o, "request_itl_ms");
	samples_json(&b->per_token, &o);
	json_key(&o, "latency_ms");
	samples_json(&b->latency, &o);
	if (b->traced)
		playback_json(&b->played, &o);
	json_key(&o, "first_failure");
	if (b->failed > 0)
		json_put_z(&o, b->first_failure.msg);
	else
		json_put_null(&o);
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

static void report_line(const char *name, struct samples *s, struct cgn_buf *out)
{
	if (s->lost > 0)
		cgn_buf_fmt(out, "%-26s %" PRIu64 " of %" PRIu64 " were not kept: no mean and percentiles\n",
			name, s->lost, samples_count(s) + s->lost);
	else if (samples_count(s) > 0)
		cgn_buf_fmt(out, "%-26s p50 %9.2f   p90 %9.2f   p99 %9.2f   max %9.2f ms\n", name,
			samples_ms(s, 0.5), samples_ms(s, 0.9), samples_ms(s, 0.99), samples_ms(s, 1));
}

/* Append "statuses 24 x 200, 36 x 503" when there was any other than 200. */
static void report_statuses(const struct bench *b, struct cgn_buf *out)
{
	const char *before = "statuses               ";
	for (int i = 0; b->failed > 0 && i < MAX_STATUS; i++)
		if (b->by_status[i] > 0) {
			cgn_buf_fmt(out, "%s%" PRIu64 " x %d", before, b->by_status[i], i);
			before = ", ";
		}
	if (before[0] == ',')
		cgn_buf_char(out, '\n');
}

static void report_text(struct bench *b, double took, struct cgn_buf *out)
{
	if (b->stop_signal != 0)
		cgn_buf_putz(out, "interrupted; until then:\n");
	cgn_buf_fmt(out, "%" PRIu64 " requests at %.6g/s in %.1f s: %" PRIu64 " answered, %" PRIu64 " failed",
		b->sent, b->rate, took, b->done, b->failed);
	if (b->not_sent > 0)
		cgn_buf_fmt(out, ", %" PRIu64 " not sent (--max-inflight)", b->not_sent);
	if (b->inflight > 0)
		cgn_buf_fmt(out, ", %" PRIu64 " open and given up", b->inflight);
	cgn_buf_fmt(out, "\n%.1f requests/s, %.1f tokens/s\n", (double)b->done / took,
		(double)b->tokens / took);
	report_statuses(b, out);
	report_line("time to first token", &b->ttft, out);
	report_line("time between tokens", &b->itl, out);
	report_line("time per token, by answer", &b->per_token, out);
	report_line("request latency", &b->latency, out);
	if (b->traced)
		playback_text(&b->played, out);
	if (b->failed > 0)
		cgn_buf_fmt(out, "first failure: %s\n", ctl_shown(b->first_failure.msg));
}

/* ---- set-up ---- */

/* Read a trace, which replaces the flags for rate, duration and lengths. */
static CGN_RC read_played(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	const char *path = ctl_flag(a, "--trace");
	uint64_t limit = 0;
	CGN_TRY(ctl_flag_f64(a, "--speed", 1e-6, 1e6, &b->played.speed, err));
	CGN_TRY(ctl_flag_u64(a, "--limit", 0, TRACE_MAX_REQUESTS, &limit, err));
	if (path == NULL)
		return CGN_OK;
	CGN_TRY(ctl_trace_read(path, 0, (size_t)limit, &b->played.trace, err));
	b->traced = true;
	b->duration = playback_due(&b->played, b->played.trace.n - 1) + 1;
	b->rate = (double)b->played.trace.n * 1e9 / (double)b->duration;
	return CGN_OK;
}

static CGN_RC read_flags(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	char *end = NULL;
	const char *rate = ctl_flag(a, "--rate");
	b->rate = strtod(rate, &end);
	if (*end != '\0' || !(b->rate > 0) || b->rate > 1e6)
		return CGN_FAIL(err, INVALID,
			"--rate takes requests per second above 0 and up to 1000000, not '%s'", rate);
	CGN_TRY(ctl_flag_duration(a, "--duration", &b->duration, err));
	CGN_TRY(ctl_flag_duration(a, "--timeout", &b->timeout, err));
	CGN_TRY(ctl_flag_u64(a, "--max-inflight", 1, 1000000, &b->max_inflight, err));
	CGN_TRY(ctl_flag_u64(a, "--prompt-bytes", 1, 16 << 20, &b->prompt_bytes, err));
	CGN_TRY(ctl_flag_u64(a, "--shared-bytes", 0, b->prompt_bytes, &b->shared_bytes, err));
	CGN_TRY(ctl_flag_u64(a, "--max-tokens", 1, 1000000, &b->max_tokens, err));
	CGN_TRY(ctl_flag_u64(a, "--seed", 1, UINT64_MAX, &b->rng, err));
	b->stream = !ctl_switch(a, "--no-stream");
	b->ignore_eos = ctl_switch(a, "--ignore-eos");
	CGN_TRY(read_played(a, b, err));
	const char *key = ctl_flag(a, "--key-file");
	return key != NULL ? ctl_origin_key(key, &b->key, err) : CGN_OK;
}

static CGN_RC find_model(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	struct cgn_buf body = {0};
	struct json_val root = {0}, data = {0}, first = {0}, id = {0};
	struct cgn_arena arena;
	const char *named = ctl_flag(a, "--model");
	if (named != NULL)
		return cgn_str_copyz(b->model, sizeof b->model, cgn_str_of(named))
			? CGN_OK
			: CGN_FAIL(err, INVALID, "--model: too long");
	cgn_arena_init(&arena, 64 << 10);
	cgn_rc rc = ctl_origin_get(b->loop, &b->origin, "/v1/models", b->key.p, &body, err);
	if (cgn_ok(rc)) {
		bool found = cgn_ok(json_parse(cgn_buf_view(&body), &root, NULL, NULL)) &&
			json_get(root, "data", &data) && data.type == JSON_ARRAY;
		struct json_iter it = found ? json_iter_of(data) : (struct json_iter){0};
		if (!found || !json_next_elem(&it, &first) || !json_get(first, "id", &id) ||
			id.type != JSON_STRING ||
			!cgn_str_copyz(b->model, sizeof b->model, json_str(id, &arena)))
			rc = CGN_FAIL(err, BAD_GATEWAY, "%s lists no model; name one with --model",
				b->origin.addr);
	}
	cgn_arena_fini(&arena);
	cgn_buf_fini(&body);
	return rc;
}

static CGN_RC run_load(struct bench *b, struct cgn_err *err)
{
	CGN_TRY(cgn_loop_signal(b->loop, SIGINT, on_stop_signal, b, err));
	CGN_TRY(cgn_loop_signal(b->loop, SIGTERM, on_stop_signal, b, err));
	b->began = b->next_at = cgn_clock_now();
	if (b->traced)
		b->next_at += playback_due(&b->played, 0);
	cgn_timer_init(&b->arrivals, b->loop, on_arrival);
	cgn_timer_init(&b->progress, b->loop, show_progress);
	cgn_timer_set(&b->arrivals, 0);
	if (ctl_progress_shown())
		cgn_timer_set(&b->progress, 0);
	cgn_loop_run(b->loop);
	cgn_timer_cancel(&b->arrivals);
	cgn_timer_cancel(&b->progress);
	ctl_progress_end();
	return CGN_OK;
}

/* The measurement counts as failed when a request failed or it was interrupted, also when others were answered. */
static CGN_RC run_verdict(const struct bench *b, struct cgn_err *err)
{
	unsigned long long failed = b->failed, sent = b->sent;
	if (b->stop_signal != 0)
		return CGN_FAIL(err, CANCELLED, "interrupted");
	if (b->done == 0)
		return CGN_FAIL(err, UNAVAILABLE, "no request was answered: %.300s", b->first_failure.msg);
	if (failed > 0)
		return CGN_FAIL(err, INTERNAL, "%llu of %llu requests failed, the first: %.300s", failed,
			sent, b->first_failure.msg);
	return CGN_OK;
}

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_TRY(read_flags(a, b, err));
	CGN_TRY(cgn_loop_new(&b->loop, err));
	const struct tls_cfg tls = {.ca_file = ctl_flag(a, "--ca"), .crl_file = ctl_flag(a, "--crl")};
	CGN_TRY(ctl_crl_check(&tls, err));
	CGN_TRY(ctl_origin_open(b->loop, ctl_flag(a, "--url"), &tls, (uint32_t)b->max_inflight, &b->origin,
		err));
	b->origin.timeout = b->timeout;
	CGN_TRY(find_model(a, b, err));
	(void)snprintf(b->path, sizeof b->path, "%s/v1/chat/completions", b->origin.base);
	CGN_TRY(run_load(b, err));
	struct cgn_buf out = {0};
	double took = elapsed_seconds(b);
	(a->json ? report_json : report_text)(b, took, &out);
	CGN_TRY(ctl_print(&out, err));
	return run_verdict(b, err);
}

CGN_RC ctl_bench_chat(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench *b = CGN_NEW(struct bench);
	cgn_rc rc = run_bench(a, b, err);
	ctl_origin_close(&b->origin);
	cgn_loop_close(&b->loop);
	samples_fini(&b->ttft);
	samples_fini(&b->itl);
	samples_fini(&b->per_token);
	samples_fini(&b->latency);
	playback_fini(&b->played);
	cgn_buf_fini(&b->key);
	int signo = b->stop_signal;
	free(b);
	if (signo == SIGTERM) { /* The status of a program that SIGTERM ended, 143. */
		(void)signal(SIGTERM, SIG_DFL);
		(void)raise(SIGTERM);
	}
	return rc;
}
