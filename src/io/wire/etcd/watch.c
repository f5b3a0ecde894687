/* SPDX-License-Identifier: Apache-2.0 */
/* watch: a prefix of etcd's keys as a source of listwatch: pages of keys, and the stream of changes. */
#include <stdlib.h>

#include "base/pb/pb.h"
#include "io/wire/etcd/etcd_priv.h"

#define ETCD_WATCH_TAG 0xe7cd0004U
#define PAGE_KEYS      256 /* A page must fit into one message of 4 MiB. */
#define PROBE_INTERVAL (10 * CGN_SEC)

struct etcd_watch {
	uint32_t tag;
	struct etcd *e;
	const struct etcd_watch_ops *ops;
	void *user;
	char *prefix, *end; /* Both have the same length. */
	size_t n;
	struct cgn_buf from; /* First key of the next page. */
	uint64_t cluster_id;
	struct etcd_op *op; /* A page, or a probe that runs beside the stream. */
	struct grpc_call *call;
	size_t endpoint; /* The stream's endpoint. */
	struct listwatch follow;
};

static void watch_stop(void *source)
{
	struct etcd_watch *w = source;
	etcd_op_drop(&w->op);
	grpc_cancel(&w->call);
}

/* ---- list: the whole prefix, page by page at one revision ---- */

static void page_done(void *user, const struct etcd_result *r)
{
	struct etcd_watch *w = user;
	struct cgn_err err = {.code = CGN_UNAVAILABLE, .msg = "etcd answered without a revision"};
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->op = NULL;
	if (r->err->code != CGN_FINE || r->revision <= 0) {
		listwatch_failed(&w->follow, r->err->code != CGN_FINE ? r->err : &err);
		return;
	}
	if (w->follow.revision == 0) /* The first page. */
		w->cluster_id = r->cluster_id;
	listwatch_page(&w->follow, r->revision);
	for (size_t i = 0; i < r->n_kvs; i++)
		w->ops->on_put(w->user, &r->kvs[i]);
	if (r->n_kvs > 0) {
		w->from.n = 0;
		cgn_buf_str(&w->from, r->kvs[r->n_kvs - 1].key);
		cgn_buf_char(&w->from, '\0'); /* The first key after the last one read. */
	}
	listwatch_page_end(&w->follow, r->more && r->n_kvs > 0);
}

static void page_read(void *source, int64_t revision)
{
	struct etcd_watch *w = source;
	const struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for a key of etcd"};
	if (revision == 0) {
		w->from.n = 0;
		cgn_buf_add(&w->from, w->prefix, w->n);
	}
	const struct etcd_range range = {
		.key = cgn_buf_view(&w->from),
		.end = {w->end, w->n},
		.limit = PAGE_KEYS,
		.revision = revision,
	};
	if (w->from.bad)
		listwatch_failed(&w->follow, &err);
	else
		w->op = etcd_get(w->e, &range, page_done, w);
}

/* ---- watch: the stream of changes ---- */

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
	listwatch_seen(&w->follow, kv.mod_revision);
}

/* Is this another cluster behind the same address, or one that lost its data? Our revision means nothing
 * there. */
static bool is_foreign(const struct etcd_watch *w, const Etcdserverpb__ResponseHeader *h)
{
	return h != NULL && (h->cluster_id != w->cluster_id || h->revision < w->follow.revision);
}

static void on_canceled(struct etcd_watch *w, const Etcdserverpb__WatchResponse *m)
{
	struct cgn_err err;
	if (m->compact_revision != 0) {
		listwatch_compacted(&w->follow);
		return;
	}
	(void)CGN_FAIL_AS(&err, CGN_UNAVAILABLE, "etcd ended the watch: %.200s", m->cancel_reason);
	listwatch_failed(&w->follow, &err);
}

static void on_response(struct etcd_watch *w, const Etcdserverpb__WatchResponse *m)
{
	static const struct cgn_err foreign = {.code = CGN_UNAVAILABLE,
		.msg = "etcd is at an older revision than was seen: reading everything again"};
	if (m->canceled) {
		on_canceled(w, m);
		return;
	}
	if (m->created) {
		if (is_foreign(w, m->header)) {
			listwatch_foreign(&w->follow, &foreign);
			return;
		}
		listwatch_opened(&w->follow);
	}
	for (size_t i = 0; i < m->n_events; i++)
		on_event(w, m->events[i]);
	/* A progress notice: every change up to its revision was delivered. A "created" message does not say
	 * so. */
	if (!m->created && m->n_events == 0 && m->header != NULL)
		listwatch_seen(&w->follow, m->header->revision);
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
		listwatch_failed(&w->follow, &err);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct etcd_watch *w = user;
	struct cgn_err err = {.code = CGN_UNAVAILABLE, .msg = "etcd ended the watch"};
	(void)c;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->call = NULL;
	etcd_move_on(w->e, w->endpoint);
	listwatch_failed(&w->follow, why->code == CGN_FINE ? &err : why);
}

static const struct grpc_call_ops stream_ops = {.on_message = on_message, .on_close = on_close};

static void create_send(struct etcd_watch *w, int64_t first_revision)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	Etcdserverpb__WatchCreateRequest create = ETCDSERVERPB__WATCH_CREATE_REQUEST__INIT;
	Etcdserverpb__WatchRequest rq = ETCDSERVERPB__WATCH_REQUEST__INIT;
	create.key = (ProtobufCBinaryData){w->n, (uint8_t *)w->prefix};
	create.range_end = (ProtobufCBinaryData){w->n, (uint8_t *)w->end};
	create.start_revision = first_revision;
	create.progress_notify = true;
	rq.request_union_case = ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
	rq.create_request = &create;
	pb_pack(&rq, &b);
	grpc_send(w->call, &(struct iovec){b.p, b.n}, 1);
}

/* A member that lost its cluster keeps its streams open and silent; a linearized read on it fails. */
static void probe_done(void *user, const struct etcd_result *r)
{
	struct etcd_watch *w = user;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->op = NULL;
	if (r->err->code == CGN_FINE)
		listwatch_probed(&w->follow);
	else
		listwatch_failed(&w->follow, r->err);
}

static void stream_probe(void *source)
{
	struct etcd_watch *w = source;
	struct cgn_err err;
	const struct etcd_range range = {.key = {w->prefix, w->n}, .limit = 1};
	if (w->endpoint == w->e->current) {
		w->op = etcd_get(w->e, &range, probe_done, w);
		return;
	}
	/* Other calls left this endpoint because it failed. */
	(void)CGN_FAIL_AS(&err, CGN_UNAVAILABLE, "the etcd endpoint of the watch failed other calls");
	listwatch_failed(&w->follow, &err);
}

static void stream_open(void *source, int64_t revision)
{
	struct etcd_watch *w = source;
	struct cgn_err err;
	w->endpoint = w->e->current;
	if (cgn_ok(grpc_call_start(w->e->channels[w->endpoint], "/etcdserverpb.Watch/Watch", 0, &stream_ops,
		    w, &w->call, &err)))
		create_send(w, revision + 1);
	else
		listwatch_failed(&w->follow, &err);
}

static const struct listwatch_ops follow_ops = {
	.list = page_read,
	.watch = stream_open,
	.probe = stream_probe,
	.stop = watch_stop,
};

/* ---- open and close ---- */

static void watch_release(struct etcd_watch **take)
{
	struct etcd_watch *w = CGN_TAKE(take);
	if (w == NULL)
		return;
	cgn_buf_fini(&w->from);
	free(w->prefix);
	free(w->end);
	w->tag = 0;
	free(w);
}

struct etcd_watch *etcd_watch_open(struct etcd *e, struct cgn_str prefix, const struct etcd_watch_ops *ops,
	void *user)
{
	CGN_LIVE(e, ETCD_TAG);
	CGN_MUST(prefix.n > 0 && (unsigned char)prefix.p[prefix.n - 1] != 0xff);
	struct etcd_watch *w = CGN_NEW(struct etcd_watch);
	*w = (struct etcd_watch){.tag = ETCD_WATCH_TAG, .e = e, .ops = ops, .user = user, .n = prefix.n};
	w->prefix = cgn_str_dupz(prefix);
	w->end = cgn_str_dupz(prefix);
	w->end[w->n - 1] = (char)(w->end[w->n - 1] + 1);
	listwatch_init(&w->follow, e->loop,
		&(struct listwatch_cfg){&follow_ops, w, &ops->news, user, etcd_backoff(), PROBE_INTERVAL});
	e->users++;
	return w;
}

void etcd_watch_close(struct etcd_watch **take)
{
	struct etcd_watch *w = *take;
	if (w == NULL)
		return;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	listwatch_fini(&w->follow);
	w->e->users--;
	watch_release(take);
}
