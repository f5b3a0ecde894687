/* SPDX-License-Identifier: Apache-2.0 */
/* watch: read a prefix once as a whole, then follow it from the next revision. */
#include <stdlib.h>

#include "base/pb/pb.h"
#include "io/etcd/etcd_priv.h"

#define ETCD_WATCH_TAG 0xe7cd0004U
#define PAGE_KEYS      256 /* A page must fit into one message of 4 MiB. */
#define PROBE_EVERY    (10 * CGN_SEC)

struct etcd_watch {
	uint32_t tag;
	struct etcd *e;
	const struct etcd_watch_ops *ops;
	void *user;
	char *prefix, *end; /* Both have the same length. */
	size_t n;
	struct cgn_buf from;   /* First key of the next page. */
	int64_t pinned;        /* Revision at which the pages are read; 0: the first page. */
	int64_t next_revision; /* Revision to watch from; 0: read everything again. */
	uint64_t cluster_id;
	struct etcd_op *op; /* A page, or a probe that runs beside the stream. */
	struct grpc_call *call;
	size_t endpoint;        /* The stream's endpoint. */
	struct cgn_timer timer; /* Backoff, or the next probe. */
	struct cgn_backoff backoff;
	bool connected, told;
};

static void watch_go(struct etcd_watch *w);

static void connected_tell(struct etcd_watch *w, bool connected, const char *why)
{
	if (w->told && w->connected == connected)
		return;
	w->told = true;
	w->connected = connected;
	w->ops->on_connected(w->user, connected, why);
}

static void watch_fail(struct etcd_watch *w, const struct cgn_err *why)
{
	etcd_op_drop(&w->op);
	grpc_cancel(&w->call);
	cgn_timer_set(&w->timer, cgn_backoff_next(&w->backoff));
	connected_tell(w, false, why->msg);
}

static void start_over(struct etcd_watch *w)
{
	w->next_revision = 0;
	grpc_cancel(&w->call);
	etcd_op_drop(&w->op);
	watch_go(w);
}

/* ---- reading the whole prefix, page by page at one revision ---- */

static void read_page(struct etcd_watch *w);

static void page_done(void *user, const struct etcd_result *r)
{
	struct etcd_watch *w = user;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->op = NULL;
	if (r->err->code != CGN_FINE) {
		watch_fail(w, r->err);
		return;
	}
	if (w->pinned == 0) {
		w->pinned = r->revision;
		w->cluster_id = r->cluster_id;
		w->ops->on_snapshot_begin(w->user);
	}
	for (size_t i = 0; i < r->n_kvs; i++)
		w->ops->on_put(w->user, &r->kvs[i]);
	if (r->more && r->n_kvs > 0) {
		w->from.n = 0;
		cgn_buf_str(&w->from, r->kvs[r->n_kvs - 1].key);
		cgn_buf_char(&w->from, '\0'); /* The first key after the last one read. */
		read_page(w);
		return;
	}
	w->ops->on_snapshot_end(w->user);
	w->next_revision = w->pinned + 1;
	watch_go(w);
}

static void read_page(struct etcd_watch *w)
{
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for reading etcd"};
	const struct etcd_range range = {
		.key = cgn_buf_view(&w->from),
		.end = {w->end, w->n},
		.limit = PAGE_KEYS,
		.revision = w->pinned,
	};
	if (w->from.bad || !cgn_ok(etcd_get(w->e, &range, page_done, w, &w->op, &err)))
		watch_fail(w, &err);
}

/* ---- following ---- */

static void on_event(struct etcd_watch *w, const Etcdserverpb__Event *event)
{
	const Etcdserverpb__KeyValue *m = event->kv;
	if (m == NULL)
		return;
	struct etcd_kv kv = {{(const char *)m->key.data, m->key.len},
		{(const char *)m->value.data, m->value.len}, m->mod_revision, m->lease};
	if (event->type == ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE)
		w->ops->on_delete(w->user, &kv);
	else
		w->ops->on_put(w->user, &kv);
	if (kv.mod_revision >= w->next_revision)
		w->next_revision = kv.mod_revision + 1;
}

/* Is this another cluster behind the same address, or one that lost its data? Our revision means nothing
 * there. */
static bool is_foreign(const struct etcd_watch *w, const Etcdserverpb__ResponseHeader *h)
{
	return h != NULL && (h->cluster_id != w->cluster_id || h->revision < w->next_revision - 1);
}

/* Wait with backoff: a member that merely lags behind answers the same for a moment. */
static void on_foreign(struct etcd_watch *w)
{
	struct cgn_err err;
	(void)CGN_FAIL_AS(&err, CGN_UNAVAILABLE,
		"etcd is at an older revision than was seen: reading everything again");
	w->next_revision = 0;
	watch_fail(w, &err);
}

static void on_canceled(struct etcd_watch *w, const Etcdserverpb__WatchResponse *m)
{
	struct cgn_err err;
	if (m->compact_revision != 0) {
		start_over(w);
		return;
	}
	(void)CGN_FAIL_AS(&err, CGN_UNAVAILABLE, "etcd ended the watch: %.200s", m->cancel_reason);
	watch_fail(w, &err);
}

static void on_response(struct etcd_watch *w, const Etcdserverpb__WatchResponse *m)
{
	if (m->canceled) {
		on_canceled(w, m);
		return;
	}
	if (m->created) {
		if (is_foreign(w, m->header)) {
			on_foreign(w);
			return;
		}
		cgn_backoff_reset(&w->backoff);
		connected_tell(w, true, "");
	}
	for (size_t i = 0; i < m->n_events; i++)
		on_event(w, m->events[i]);
	/* A progress notice: everything up to its revision was delivered. (A "created" message does not say
	 * so.) */
	if (!m->created && m->n_events == 0 && m->header != NULL && m->header->revision >= w->next_revision)
		w->next_revision = m->header->revision + 1;
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct etcd_watch *w = user;
	CGN_ON_EXIT(pb_free) Etcdserverpb__WatchResponse *m = NULL;
	struct cgn_err err;
	(void)c;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	if (cgn_ok(pb_unpack(&etcdserverpb__watch_response__descriptor, (struct cgn_str){(const char *)p, n},
		    &m, &err)))
		on_response(w, m);
	else
		watch_fail(w, &err);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct etcd_watch *w = user;
	struct cgn_err err = {.code = CGN_UNAVAILABLE, .msg = "etcd ended the watch"};
	(void)c;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->call = NULL;
	etcd_move_on(w->e, w->endpoint);
	watch_fail(w, why->code == CGN_FINE ? &err : why);
}

static const struct grpc_call_ops stream_ops = {.on_message = on_message, .on_close = on_close};

static CGN_RC send_create(struct etcd_watch *w, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	Etcdserverpb__WatchCreateRequest create = ETCDSERVERPB__WATCH_CREATE_REQUEST__INIT;
	Etcdserverpb__WatchRequest rq = ETCDSERVERPB__WATCH_REQUEST__INIT;
	create.key = (ProtobufCBinaryData){w->n, (uint8_t *)w->prefix};
	create.range_end = (ProtobufCBinaryData){w->n, (uint8_t *)w->end};
	create.start_revision = w->next_revision;
	create.progress_notify = true;
	rq.request_union_case = ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
	rq.create_request = &create;
	pb_pack(&rq, &b);
	if (b.bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a watch");
	grpc_send(w->call, &(struct iovec){b.p, b.n}, 1);
	return CGN_OK;
}

/* A member that lost its cluster keeps its streams open and silent; a linearized read on it fails. */
static void probe_done(void *user, const struct etcd_result *r)
{
	struct etcd_watch *w = user;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->op = NULL;
	if (r->err->code == CGN_FINE)
		cgn_timer_set(&w->timer, PROBE_EVERY);
	else
		watch_fail(w, r->err);
}

static void stream_probe(struct etcd_watch *w)
{
	struct cgn_err err;
	const struct etcd_range range = {.key = {w->prefix, w->n}, .limit = 1};
	if (w->endpoint != w->e->current) /* Other calls left this endpoint because it failed. */
		(void)CGN_FAIL_AS(&err, CGN_UNAVAILABLE, "the etcd endpoint of the watch failed other calls");
	else if (cgn_ok(etcd_get(w->e, &range, probe_done, w, &w->op, &err)))
		return;
	watch_fail(w, &err);
}

static void stream_follow(struct etcd_watch *w)
{
	struct cgn_err err;
	w->endpoint = w->e->current;
	cgn_rc rc = grpc_call_start(w->e->channels[w->endpoint], "/etcdserverpb.Watch/Watch", 0, &stream_ops,
		w, &w->call, &err);
	if (cgn_ok(rc))
		rc = send_create(w, &err);
	if (cgn_ok(rc))
		cgn_timer_set(&w->timer, PROBE_EVERY);
	else
		watch_fail(w, &err);
}

static void watch_go(struct etcd_watch *w)
{
	if (w->next_revision != 0) {
		stream_follow(w);
		return;
	}
	w->pinned = 0;
	w->from.n = 0;
	cgn_buf_add(&w->from, w->prefix, w->n);
	read_page(w);
}

static void watch_wake(struct cgn_timer *t)
{
	struct etcd_watch *w = CGN_CONTAINER(t, struct etcd_watch, timer);
	CGN_LIVE(w, ETCD_WATCH_TAG);
	if (w->call != NULL)
		stream_probe(w);
	else
		watch_go(w);
}

/* ---- open and close ---- */

static void watch_release(struct etcd_watch **take)
{
	struct etcd_watch *w = *take;
	*take = NULL;
	if (w == NULL)
		return;
	cgn_buf_fini(&w->from);
	free(w->prefix);
	free(w->end);
	w->tag = 0;
	free(w);
}

CGN_RC etcd_watch_open(struct etcd *e, struct cgn_str prefix, const struct etcd_watch_ops *ops, void *user,
	struct etcd_watch **out, struct cgn_err *err)
{
	CGN_LIVE(e, ETCD_TAG);
	CGN_MUST(prefix.n > 0 && (unsigned char)prefix.p[prefix.n - 1] != 0xff);
	CGN_ON_EXIT(watch_release) struct etcd_watch *w = calloc(1, sizeof *w);
	if (w == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a watch");
	*w = (struct etcd_watch){.tag = ETCD_WATCH_TAG,
		.e = e,
		.ops = ops,
		.user = user,
		.n = prefix.n,
		.backoff = etcd_backoff()};
	w->prefix = cgn_str_dupz(prefix);
	w->end = cgn_str_dupz(prefix);
	if (w->prefix == NULL || w->end == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a watch");
	w->end[w->n - 1] = (char)(w->end[w->n - 1] + 1);
	cgn_timer_init(&w->timer, e->loop, watch_wake);
	cgn_timer_set(&w->timer, 1);
	e->users++;
	*out = w;
	w = NULL;
	return CGN_OK;
}

void etcd_watch_close(struct etcd_watch **take)
{
	struct etcd_watch *w = *take;
	if (w == NULL)
		return;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	etcd_op_drop(&w->op);
	grpc_cancel(&w->call);
	cgn_timer_cancel(&w->timer);
	w->e->users--;
	watch_release(take);
}
