/* SPDX-License-Identifier: Apache-2.0 */
/* watch: a list of the API server as a source of listwatch: pages at one version, then the stream of events, one JSON
 * object a line. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "io/wire/k8s/k8s_priv.h"

#define K8S_WATCH_TAG  0x6b385003U
#define PAGE_OBJECTS   200
#define STREAM_SECONDS 290 /* The server ends a stream after that time; it is opened again at its version. */
#define PROBE_INTERVAL (60 * CGN_SEC)
#define SHORT_STREAM   CGN_SEC

struct k8s_watch {
	uint32_t tag;
	struct k8s *k;
	const struct k8s_watch_ops *ops;
	void *user;
	char *path, *query;
	struct cgn_buf more;   /* Token of the next page; empty: there is none. */
	struct k8s_call *call; /* A page, or a probe that runs beside the stream. */
	struct http_call *stream;
	cgn_nsec opened_at;
	int status;           /* The stream's status. */
	struct cgn_buf lines; /* Bytes of the stream that do not make a whole line yet. */
	bool expired;         /* The last stream ended because its version was too old. */
	bool ended;           /* The stream was ended while its lines were read. */
	struct listwatch follow;
};

static void watch_stop(void *source)
{
	struct k8s_watch *w = source;
	k8s_call_drop(&w->call);
	if (w->stream != NULL)
		http_call_cancel(&w->stream);
	w->ended = true;
}

/* The server no longer has our version: list again, at once unless the last list was of no use either. */
static void watch_expired(struct k8s_watch *w)
{
	static const struct cgn_err err = {.code = CGN_UNAVAILABLE,
		.msg = "the Kubernetes API no longer has the version of its own list"};
	bool again = w->expired && cgn_since(cgn_loop_now(w->k->loop), w->opened_at) < SHORT_STREAM;
	w->expired = true;
	if (again)
		listwatch_foreign(&w->follow, &err);
	else
		listwatch_compacted(&w->follow);
}

/* ---- list ---- */

static void more_read(struct k8s_watch *w, struct json_val list)
{
	struct json_val meta, v;
	w->more.n = 0;
	if (json_get(list, "metadata", &meta) && json_get(meta, "continue", &v) && v.type == JSON_STRING)
		json_str_to(v, &w->more);
}

static void page_done(void *user, const struct k8s_answer *a)
{
	static const struct cgn_err odd = {.code = CGN_UNAVAILABLE,
		.msg = "the Kubernetes API answered with a list that has no version"};
	struct k8s_watch *w = user;
	struct json_val items, item;
	CGN_LIVE(w, K8S_WATCH_TAG);
	w->call = NULL;
	if (a->status == 410) { /* The token of the next page is too old: begin again. */
		listwatch_failed(&w->follow, a->err);
		return;
	}
	int64_t version = k8s_version(a->object);
	if (a->err->code != CGN_FINE || version == 0) {
		listwatch_failed(&w->follow, a->err->code != CGN_FINE ? a->err : &odd);
		return;
	}
	listwatch_page(&w->follow, version);
	if (json_get(a->object, "items", &items) && items.type == JSON_ARRAY)
		for (struct json_iter it = json_iter_of(items); json_next_elem(&it, &item);)
			w->ops->on_object(w->user, item);
	more_read(w, a->object);
	listwatch_page_end(&w->follow, w->more.n > 0);
}

/* Append the path with |more| of its query. */
static void path_put(const struct k8s_watch *w, struct cgn_buf *b)
{
	cgn_buf_fmt(b, "%s?%s%s", w->path, w->query, w->query[0] != '\0' ? "&" : "");
}

static void page_read(void *source, int64_t revision)
{
	struct k8s_watch *w = source;
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for a list"};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	path_put(w, &path);
	cgn_buf_fmt(&path, "limit=%d", PAGE_OBJECTS);
	if (revision != 0) {
		cgn_buf_putz(&path, "&continue=");
		percent_put(&path, cgn_buf_view(&w->more));
	}
	const struct k8s_request rq = {.method = "GET", .path = cgn_buf_z(&path)};
	if (path.bad || w->more.bad || !cgn_ok(k8s_call_start(w->k, &rq, page_done, w, &w->call, &err)))
		listwatch_failed(&w->follow, &err);
}

/* ---- watch ---- */

static void event_failed(struct k8s_watch *w, struct json_val status)
{
	struct cgn_err err;
	uint64_t code = json_get_u64(status, "code", 500);
	if (code == 410) {
		watch_expired(w);
		return;
	}
	k8s_status_err((int)(code < 1000 ? code : 500), status.raw, &err);
	listwatch_failed(&w->follow, &err);
}

static void event_take(struct k8s_watch *w, struct json_val event)
{
	static const struct cgn_err odd = {.code = CGN_UNAVAILABLE,
		.msg = "the Kubernetes API sent an event without type or object"};
	struct json_val type, object;
	if (!json_get(event, "type", &type) || !json_get(event, "object", &object)) {
		listwatch_failed(&w->follow, &odd);
		return;
	}
	if (cgn_str_is(type.raw, "\"ERROR\"")) {
		event_failed(w, object);
		return;
	}
	if (cgn_str_is(type.raw, "\"DELETED\""))
		w->ops->on_gone(w->user, object);
	else if (!cgn_str_is(type.raw, "\"BOOKMARK\""))
		w->ops->on_object(w->user, object);
	listwatch_seen(&w->follow, k8s_version(object));
	w->expired = false;
}

static void on_head(struct http_call *h, void *user, const struct http_head *head)
{
	struct k8s_watch *w = user;
	(void)h;
	CGN_LIVE(w, K8S_WATCH_TAG);
	w->status = head->status;
	if (w->status == 200)
		listwatch_opened(&w->follow);
}

static void on_body(struct http_call *h, void *user, const uint8_t *p, size_t n)
{
	static const struct cgn_err large = {.code = CGN_TOO_LARGE,
		.msg = "an event of the Kubernetes API is too large"};
	struct k8s_watch *w = user;
	struct cgn_err err;
	const char *end;
	(void)h;
	CGN_LIVE(w, K8S_WATCH_TAG);
	cgn_buf_add(&w->lines, p, n);
	if (w->lines.bad) {
		listwatch_failed(&w->follow, &large);
		return;
	}
	size_t at = 0;
	w->ended = false;
	while (w->status == 200 && !w->ended &&
		(end = memchr(w->lines.p + at, '\n', w->lines.n - at)) != NULL) {
		struct cgn_str line = {w->lines.p + at, (size_t)(end - w->lines.p) - at};
		struct json_val event;
		at += line.n + 1;
		if (cgn_ok(json_parse(line, &event, NULL, &err)))
			event_take(w, event);
		else
			listwatch_failed(&w->follow, &err);
	}
	if (!w->ended)
		cgn_buf_eat(&w->lines, at);
}

static void stream_over(struct k8s_watch *w, const struct cgn_err *why)
{
	w->stream = NULL;
	if (w->status == 410)
		watch_expired(w);
	else if (why == NULL)
		listwatch_ended(&w->follow);
	else
		listwatch_failed(&w->follow, why);
}

static void on_end(struct http_call *h, void *user, const struct http_field *trailers, size_t n)
{
	struct k8s_watch *w = user;
	struct cgn_err err = {.code = CGN_UNAVAILABLE, .msg = "the Kubernetes API ended a watch at once"};
	(void)h;
	(void)trailers;
	(void)n;
	CGN_LIVE(w, K8S_WATCH_TAG);
	if (w->status != 200)
		k8s_status_err(w->status, cgn_buf_view(&w->lines), &err);
	bool orderly = w->status == 200 && cgn_since(cgn_loop_now(w->k->loop), w->opened_at) >= SHORT_STREAM;
	stream_over(w, orderly ? NULL : &err);
}

static void on_fail(struct http_call *h, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct k8s_watch *w = user;
	struct cgn_err err;
	(void)h;
	CGN_LIVE(w, K8S_WATCH_TAG);
	if (stage == HTTP_FAIL_CONNECT)
		k8s_unreachable(w->k);
	k8s_call_err(w->k, why, &err);
	stream_over(w, &err);
}

static const struct http_call_ops stream_ops = {.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail};

static void stream_open(void *source, int64_t revision)
{
	struct k8s_watch *w = source;
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for a watch"};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	path_put(w, &path);
	cgn_buf_fmt(&path, "watch=1&allowWatchBookmarks=true&resourceVersion=%lld&timeoutSeconds=%d",
		(long long)revision, STREAM_SECONDS);
	const struct k8s_request rq = {.method = "GET", .path = cgn_buf_z(&path)};
	w->lines.n = 0;
	w->status = 0;
	w->opened_at = cgn_loop_now(w->k->loop);
	if (path.bad || !cgn_ok(k8s_start(w->k, &rq, 0, &stream_ops, w, &w->stream, &err)))
		listwatch_failed(&w->follow, &err);
}

/* Any answer shows that the server works; what this client may do there does not matter. */
static void probe_done(void *user, const struct k8s_answer *a)
{
	struct k8s_watch *w = user;
	CGN_LIVE(w, K8S_WATCH_TAG);
	w->call = NULL;
	if (a->status != 0 && a->status < 500)
		listwatch_probed(&w->follow);
	else
		listwatch_failed(&w->follow, a->err);
}

static void stream_probe(void *source)
{
	static const struct k8s_request rq = {.method = "GET", .path = "/version"};
	struct k8s_watch *w = source;
	struct cgn_err err;
	if (!cgn_ok(k8s_call_start(w->k, &rq, probe_done, w, &w->call, &err)))
		listwatch_failed(&w->follow, &err);
}

static const struct listwatch_ops follow_ops = {
	.list = page_read,
	.watch = stream_open,
	.probe = stream_probe,
	.stop = watch_stop,
};

/* ---- open and close ---- */

static void watch_free(struct k8s_watch **take)
{
	struct k8s_watch *w = CGN_TAKE(take);
	if (w == NULL)
		return;
	cgn_buf_fini(&w->more);
	cgn_buf_fini(&w->lines);
	free(w->path);
	free(w->query);
	w->tag = 0;
	free(w);
}

CGN_RC k8s_watch_open(struct k8s *k, const char *path, const char *query, const struct k8s_watch_ops *ops,
	void *user, struct k8s_watch **out, struct cgn_err *err)
{
	CGN_LIVE(k, K8S_TAG);
	CGN_ON_EXIT(watch_free) struct k8s_watch *w = CGN_NEW(struct k8s_watch);
	*w = (struct k8s_watch){.tag = K8S_WATCH_TAG,
		.k = k,
		.ops = ops,
		.user = user,
		.more = {.limit = 64 << 10},
		.lines = {.limit = K8S_MAX_ANSWER}};
	w->path = cgn_str_dupz(cgn_str_of(path));
	w->query = cgn_str_dupz(query != NULL ? cgn_str_of(query) : CGN_STR(""));
	if (w->path == NULL || w->query == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a watch");
	const struct cgn_backoff backoff = {.first = 100 * CGN_MSEC, .last = 10 * CGN_SEC};
	listwatch_init(&w->follow, k->loop,
		&(struct listwatch_cfg){&follow_ops, w, &ops->news, user, backoff, PROBE_INTERVAL});
	k->users++;
	*out = CGN_TAKE(&w);
	return CGN_OK;
}

void k8s_watch_close(struct k8s_watch **take)
{
	struct k8s_watch *w = *take;
	if (w == NULL)
		return;
	CGN_LIVE(w, K8S_WATCH_TAG);
	listwatch_fini(&w->follow);
	w->k->users--;
	watch_free(take);
}
