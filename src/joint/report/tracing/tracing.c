/* SPDX-License-Identifier: Apache-2.0 */
/* tracing: spans that wait, and their way to the collector. One request is under way at a time. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log/log.h"
#include "base/pb/pb.h"
#include "base/weburl/weburl.h"
#include "joint/report/tracing/tracing_priv.h"
#include "otlp/otlp.pb-c.h"
#include "policy/node/engine/engine.h"

#define LOOK_EVERY   (500 * CGN_MSEC)
#define TRIES_MOST   5
#define BACKOFF      CGN_SEC
#define PAUSE_MOST   (60 * CGN_SEC)
#define ANSWER_MOST  ((size_t)64 << 10)
#define GRPC_UNKNOWN 2
#define GRPC_PATH    "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

const struct tracing_rules *tracing_rules_of(const struct tracing *t)
{
	return t != NULL ? &t->settings.rules : NULL;
}

/* ---- adding ---- */

static struct tracing_attribute *attribute_new(struct tracing_span *s, const char *key)
{
	static struct tracing_attribute none; /* Takes attributes for which there is no room; never read. */
	struct tracing_attribute *a = s->n < TRACING_ATTRIBUTES ? &s->attributes[s->n++] : &none;
	if (a != &none)
		*a = (struct tracing_attribute){.key = key};
	return a != &none ? a : NULL;
}

void tracing_text(struct tracing_span *s, const char *key, struct cgn_str text)
{
	struct tracing_attribute *a = text.n > 0 ? attribute_new(s, key) : NULL;
	if (a != NULL)
		a->text = text;
}

void tracing_number(struct tracing_span *s, const char *key, uint64_t number)
{
	struct tracing_attribute *a = attribute_new(s, key);
	if (a == NULL)
		return;
	a->type = TRACING_NUMBER;
	a->number = number < INT64_MAX ? (int64_t)number : INT64_MAX;
}

void tracing_real(struct tracing_span *s, const char *key, double real)
{
	struct tracing_attribute *a = attribute_new(s, key);
	if (a == NULL)
		return;
	a->type = TRACING_REAL;
	a->real = real;
}

void tracing_flag(struct tracing_span *s, const char *key, bool flag)
{
	struct tracing_attribute *a = attribute_new(s, key);
	if (a == NULL)
		return;
	a->type = TRACING_FLAG;
	a->number = flag;
}

/* Return the wall clock less the clock of loops, now: a wall clock that jumped counts for later spans. */
static int64_t wall_offset(void)
{
	struct timespec now;
	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)((uint64_t)now.tv_sec * CGN_SEC + (uint64_t)now.tv_nsec - cgn_clock_now());
}

void tracing_add(struct tracing *t, const struct tracing_span *s)
{
	CGN_LIVE(t, TRACING_TAG);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf one = {0};
	tracing_span_pack(s, wall_offset(), &one);
	(void)pthread_mutex_lock(&t->lock);
	bool room = !one.bad && t->n < t->settings.queue && t->spans.n + one.n <= TRACING_BYTES;
	if (room)
		cgn_buf_str(&t->spans, cgn_buf_view(&one));
	room = room && !t->spans.bad;
	t->n += room;
	(void)pthread_mutex_unlock(&t->lock);
	if (!room)
		metric_add(t->dropped, 1);
}

/* ---- sending ---- */

static void batch_end(struct tracing *t)
{
	cgn_buf_fini(&t->sent);
	t->n_sent = 0;
	t->tries = 0;
	t->retry_at = 0;
}

static void batch_failed(struct tracing *t, bool again, const char *why)
{
	bool last = !again || t->tries >= TRIES_MOST;
	cgn_log_limited(WARN, "tracing.export_failed", F_STR("endpoint", t->settings.url), F_STR("why", why),
		F_STR("then", last ? "these spans are dropped" : "they are sent again"));
	if (last) {
		metric_add(t->failed, t->n_sent);
		batch_end(t);
		return;
	}
	cgn_nsec backoff = BACKOFF << (t->tries - 1);
	t->retry_at = cgn_loop_now(t->loop) + (backoff > t->asked_pause ? backoff : t->asked_pause);
}

/* The collector may take a part and say what it refused. */
static void batch_taken(struct tracing *t)
{
	CGN_ON_EXIT(pb_free) CgnOtlp__ExportResponse *rs = NULL;
	struct cgn_err err;
	size_t lead = t->settings.grpc ? 5 : 0, refused = 0;
	struct cgn_str message = {t->answer.p + lead, t->answer.n > lead ? t->answer.n - lead : 0};
	if (message.n > 0 && cgn_ok(pb_unpack(&cgn_otlp__export_response__descriptor, message, &rs, &err)) &&
		rs->partial_success != NULL && rs->partial_success->rejected_spans > 0) {
		refused = (size_t)rs->partial_success->rejected_spans;
		refused = refused < t->n_sent ? refused : t->n_sent;
		cgn_log_limited(WARN, "tracing.spans_refused", F_U64("spans", refused),
			F_STR("why", rs->partial_success->error_message));
	}
	metric_add(t->failed, refused);
	metric_add(t->exported, t->n_sent - refused);
	batch_end(t);
}

/* Return the code of a gRPC answer; |otherwise| when |fields| have none. */
static uint64_t grpc_status_of(const struct http_field *fields, size_t n, uint64_t otherwise)
{
	uint64_t code = otherwise;
	for (size_t i = 0; i < n; i++)
		if (cgn_str_is(fields[i].name, "grpc-status") && !cgn_str_u64(fields[i].value, &code))
			code = GRPC_UNKNOWN;
	return code;
}

/* Return the pause that a collector asks for by Retry-After in seconds, at most PAUSE_MOST; 0: it asks for none. */
static cgn_nsec pause_of(const struct http_head *h)
{
	uint64_t seconds = 0;
	if (!cgn_str_u64(http_head_get(h, "retry-after"), &seconds))
		return 0;
	return seconds < PAUSE_MOST / CGN_SEC ? seconds * CGN_SEC : PAUSE_MOST;
}

static void on_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct tracing *t = user;
	(void)c;
	CGN_LIVE(t, TRACING_TAG);
	t->status = h->status;
	t->code = grpc_status_of(h->fields, h->n_fields,
		GRPC_UNKNOWN); /* An answer may be its trailers alone. */
	t->answer.n = 0;
	t->asked_pause = pause_of(h);
}

static void on_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct tracing *t = user;
	(void)c;
	CGN_LIVE(t, TRACING_TAG);
	if (t->answer.n + n <= ANSWER_MOST)
		cgn_buf_add(&t->answer, p, n);
}

static void on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct tracing *t = user;
	(void)c;
	CGN_LIVE(t, TRACING_TAG);
	/* The answers after which the specification has a client try again. */
	static const uint64_t again[] = {1, 4, 8, 10, 11, 14, 15};
	uint64_t code = t->settings.grpc ? grpc_status_of(trailers, n, t->code) : 0;
	bool retry = t->status == 429 || t->status == 502 || t->status == 503 || t->status == 504;
	char why[80];
	t->call = NULL;
	for (size_t i = 0; i < CGN_COUNT(again); i++)
		retry = retry || (t->status == 200 && code == again[i]);
	if (t->status == 200 && code == 0) {
		batch_taken(t);
		return;
	}
	(void)snprintf(why, sizeof why, "the collector answers %s %llu", code != 0 ? "gRPC status" : "status",
		code != 0 ? (unsigned long long)code : (unsigned long long)t->status);
	batch_failed(t, retry, why);
}

static void on_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct tracing *t = user;
	(void)c;
	(void)stage;
	CGN_LIVE(t, TRACING_TAG);
	t->call = NULL;
	batch_failed(t, true, why->msg);
}

static void batch_send(struct tracing *t)
{
	static const struct http_call_ops ops = {.on_head = on_head,
		.on_body = on_body,
		.on_end = on_end,
		.on_fail = on_fail};
	struct http_field fields[TRACING_HEADERS + 2];
	struct cgn_err err;
	size_t n = 0;
	fields[n++] = (struct http_field){CGN_STR("content-type"),
		t->settings.grpc ? CGN_STR("application/grpc") : CGN_STR("application/x-protobuf")};
	if (t->settings.grpc)
		fields[n++] = (struct http_field){CGN_STR("te"), CGN_STR("trailers")};
	for (size_t i = 0; i < t->settings.n_headers; i++)
		fields[n++] = t->settings.headers[i];
	const struct iovec body = {t->sent.p, t->sent.n};
	const struct http_request rq = {.method = "POST",
		.path = t->path,
		.fields = fields,
		.n_fields = n,
		.body_len = (int64_t)t->sent.n,
		.head_timeout = t->settings.timeout,
		.idle_timeout = t->settings.timeout,
		.body = &body,
		.n_body = 1};
	t->tries++;
	t->status = 0;
	t->asked_pause = 0;
	t->code = GRPC_UNKNOWN;
	if (!cgn_ok(http_call_start(t->client, &rq, &ops, t, &t->call, &err)))
		batch_failed(t, true, err.msg);
}

/* Take the waiting spans into a batch. */
static void batch_take(struct tracing *t)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf spans = {0};
	(void)pthread_mutex_lock(&t->lock);
	spans = t->spans;
	t->n_sent = t->n;
	t->spans = (struct cgn_buf){0};
	t->n = 0;
	(void)pthread_mutex_unlock(&t->lock);
	tracing_request_pack(t, cgn_buf_view(&spans), &t->sent);
	if (!t->sent.bad)
		return;
	metric_add(t->dropped, t->n_sent);
	batch_end(t);
}

static bool batch_is_due(struct tracing *t, bool now)
{
	(void)pthread_mutex_lock(&t->lock);
	bool due = t->n > 0 && (now || t->n >= t->settings.batch || cgn_loop_now(t->loop) >= t->next_at);
	(void)pthread_mutex_unlock(&t->lock);
	return due;
}

static void batch_step(struct tracing *t, bool now)
{
	if (t->call != NULL)
		return;
	if (t->sent.n == 0 && batch_is_due(t, now)) {
		t->next_at = cgn_loop_now(t->loop) + t->settings.delay;
		batch_take(t);
		if (t->sent.n > 0)
			batch_send(t);
	} else if (t->sent.n > 0 && (now || cgn_loop_now(t->loop) >= t->retry_at)) {
		batch_send(t);
	}
}

static void on_timer(struct cgn_timer *timer)
{
	struct tracing *t = CGN_CONTAINER(timer, struct tracing, timer);
	batch_step(t, false);
	cgn_timer_set(timer, LOOK_EVERY);
}

void tracing_flush(struct tracing *t)
{
	if (t != NULL)
		batch_step(t, true);
}

/* ---- life ---- */

static CGN_RC client_open(struct tracing *t, struct cgn_err *err)
{
	struct weburl url;
	struct tls_ctx *tls = NULL;
	static const char *const h1[] = {"http/1.1", NULL}, *const h2[] = {"h2", NULL};
	const struct tls_cfg trust = {.ca_file = t->settings.ca_file, .alpn = t->settings.grpc ? h2 : h1};
	if (!cgn_ok(weburl_parse(t->settings.url, &url, NULL)))
		return CGN_FAIL(err, INVALID,
			"OTEL_EXPORTER_OTLP_ENDPOINT: \"%s\" is not an address of a collector, such as http://collector:4318",
			t->settings.url);
	if (url.tls)
		CGN_TRY(tls_ctx_new(&trust, &tls, err));
	(void)snprintf(t->authority, sizeof t->authority, "%s", url.authority);
	(void)snprintf(t->path, sizeof t->path, "%s",
		t->settings.grpc              ? GRPC_PATH
			: url.base[0] != '\0' ? url.base
					      : "/");
	const struct http_client_cfg cfg = {.addr = url.addr,
		.authority = t->authority,
		.tls = tls,
		.server_name = url.host,
		.proto = t->settings.grpc ? HTTP_2 : HTTP_1,
		.max_conns = 1};
	cgn_rc rc = http_client_new(t->loop, &cfg, &t->client, err);
	tls_ctx_free(&tls);
	return rc;
}

static void metrics_get(struct tracing *t, struct telemetry *telemetry)
{
	t->exported = METRIC_OF(telemetry, SPANS, "exported");
	t->dropped = METRIC_OF(telemetry, SPANS, "dropped");
	t->failed = METRIC_OF(telemetry, SPANS, "failed");
}

static CGN_RC tracing_begin_sending(struct tracing *t, const char *service, struct cgn_err *err)
{
	CGN_TRY(tracing_settings_read(service, &t->settings, err));
	if (!t->settings.on)
		return CGN_OK;
	if (!tracing_resource_pack(&t->settings, &t->resource))
		return CGN_FAIL(err, INVALID,
			"OTEL_RESOURCE_ATTRIBUTES: it is a list key=value,key=value of at most 60 attributes");
	CGN_TRY(client_open(t, err));
	cgn_timer_set(&t->timer, LOOK_EVERY);
	cgn_log(INFO, "tracing.on", F_STR("endpoint", t->settings.url),
		F_STR("protocol", t->settings.grpc ? "grpc" : "http/protobuf"));
	return CGN_OK;
}

CGN_RC tracing_open(struct cgn_loop *l, const char *service, struct telemetry *telemetry,
	struct tracing **out, struct cgn_err *err)
{
	struct tracing *t = CGN_NEW(struct tracing);
	*out = NULL;
	t->tag = TRACING_TAG;
	t->loop = l;
	(void)pthread_mutex_init(&t->lock, NULL);
	cgn_timer_init(&t->timer, l, on_timer);
	cgn_rc rc = tracing_begin_sending(t, service, err);
	if (cgn_ok(rc) && t->settings.on) {
		metrics_get(t, telemetry);
		*out = t;
	} else {
		tracing_close(&t);
	}
	return rc;
}

void tracing_close(struct tracing **take)
{
	struct tracing *t = CGN_TAKE_LIVE(take, TRACING_TAG);
	if (t == NULL)
		return;
	cgn_timer_cancel(&t->timer);
	if (t->call != NULL)
		http_call_cancel(&t->call);
	http_client_free(&t->client);
	cgn_buf_fini(&t->spans);
	cgn_buf_fini(&t->sent);
	cgn_buf_fini(&t->answer);
	cgn_buf_fini(&t->resource);
	cgn_arena_fini(&t->settings.arena);
	(void)pthread_mutex_destroy(&t->lock);
	t->tag = 0;
	free(t);
}
