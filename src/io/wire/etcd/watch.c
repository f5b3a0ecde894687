/* SPDX-License-Identifier: Apache-2.0 */
/* watch: a prefix of etcd's keys as a source of listwatch: pages of keys, and the stream of changes. */
#include <stdlib.h>

#include "base/pb/pb.h"
#include "base/unlikely/unlikely.h"
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
	/* The last put that was seen, and the one that is asked for: an etcd with another history lacks it. */
	struct cgn_buf witness; /* The put's key. */
	struct etcd_put {
		int64_t revision, lease; /* A revision of 0: no put was seen. */
	} put, asked;
	bool listed, fresh; /* The next stream, and the present one, follows a list at once. */
	struct etcd_op *op; /* A page, or a read that runs beside the stream. */
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

static void witness_set(struct etcd_watch *w, const struct etcd_kv *kv)
{
	if (kv->mod_revision < w->put.revision) /* A list is in the order of keys. */
		return;
	w->witness.n = 0;
	cgn_buf_str(&w->witness, kv->key);
	w->put = (struct etcd_put){w->witness.bad ? 0 : kv->mod_revision, kv->lease};
}

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
	for (size_t i = 0; i < r->n_kvs; i++) {
		w->ops->on_put(w->user, &r->kvs[i]);
		witness_set(w, &r->kvs[i]);
	}
	if (r->n_kvs > 0) {
		w->from.n = 0;
		cgn_buf_str(&w->from, r->kvs[r->n_kvs - 1].key);
		cgn_buf_char(&w->from, '\0'); /* The first key after the last one read. */
	}
	w->listed = true;
	listwatch_page_end(&w->follow, r->more && r->n_kvs > 0);
}

static void page_read(void *source, int64_t revision)
{
	struct etcd_watch *w = source;
	const struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for a key of etcd"};
	if (revision == 0) {
		w->from.n = 0;
		w->put.revision = 0;
		cgn_buf_add(&w->from, w->prefix, w->n);
	}
	const struct etcd_range range = {
		.key = cgn_buf_view(&w->from),
		.end = {w->end, w->n},
		.limit = unlikely_way(UNLIKELY_page_of_one) ? 1 : PAGE_KEYS,
		.revision = revision,
	};
	if (w->from.bad)
		listwatch_failed(&w->follow, &err);
	else
		w->op = etcd_get(w->e, &range, page_done, w);
}

/* ---- probe: a member that lost its cluster opens streams, and keeps them open and silent; a linearized read on it
 * fails ---- */

/* Fail the stream if other calls left its endpoint, because that one failed them. */
static bool endpoint_check(struct etcd_watch *w)
{
	struct cgn_err err;
	if (w->endpoint == w->e->current)
		return true;
	(void)CGN_FAIL_AS(&err, CGN_UNAVAILABLE, "the etcd endpoint of the watch failed other calls");
	listwatch_failed(&w->follow, &err);
	return false;
}

static void probe_done(void *user, const struct etcd_result *r)
{
	struct etcd_watch *w = user;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->op = NULL;
	if (r->err->code != CGN_FINE) {
		listwatch_failed(&w->follow, r->err);
		return;
	}
	if (endpoint_check(w)) /* An answer of another member proves nothing. */
		listwatch_probed(&w->follow);
}

static void stream_probe(void *source)
{
	struct etcd_watch *w = source;
	const struct etcd_range range = {.key = {w->prefix, w->n}, .limit = 1};
	/* The read that confirms the opening may still be under way. */
	if (w->op == NULL && endpoint_check(w))
		w->op = etcd_get(w->e, &range, probe_done, w);
}

/* ---- history: etcd may have lost its data, or been restored, and count beyond our revision already ---- */

static const struct cgn_err foreign = {.code = CGN_UNAVAILABLE,
	.msg = "etcd has another history than was seen: reading everything again"};

static bool history_is_ours(const struct etcd_watch *w, const struct etcd_result *r)
{
	return w->fresh ||
		(r->n_kvs == 1 && r->kvs[0].mod_revision == w->asked.revision &&
			r->kvs[0].lease == w->asked.lease);
}

static void confirm_done(void *user, const struct etcd_result *r)
{
	struct etcd_watch *w = user;
	CGN_LIVE(w, ETCD_WATCH_TAG);
	w->op = NULL;
	if (r->err->code == CGN_TOO_LARGE) { /* The put was compacted. */
		listwatch_compacted(&w->follow);
	} else if (r->err->code != CGN_FINE) {
		listwatch_failed(&w->follow, r->err);
	} else if (!history_is_ours(w, r)) {
		listwatch_foreign(&w->follow, &foreign);
	} else if (endpoint_check(w)) {
		listwatch_opened(&w->follow);
		listwatch_probed(&w->follow);
		grpc_resume(w->call);
	}
}

/* The server has opened the stream. It counts as open when a linearized read was answered, which also says whether
 * the changes before our revision are still those that were seen. Changes wait for that: those of another history
 * must not be taken for ours. */
static void stream_confirm(struct etcd_watch *w)
{
	const struct etcd_range any = {.key = {w->prefix, w->n}, .limit = 1},
				ours = {.key = cgn_buf_view(&w->witness), .revision = w->put.revision};
	grpc_pause(w->call);
	etcd_op_drop(&w->op); /* A probe, because the server was slow to open the stream. */
	w->asked = w->put;
	/* Only a put at our revision proves it. After a deletion, or changes of other keys, everything is read again. */
	if (!w->fresh && w->put.revision != w->follow.revision)
		listwatch_compacted(&w->follow);
	else
		w->op = etcd_get(w->e, w->fresh ? &any : &ours, confirm_done, w);
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
	else {
		w->ops->on_put(w->user, &kv);
		witness_set(w, &kv);
	}
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
	if (m->canceled) {
		on_canceled(w, m);
		return;
	}
	if (m->created) {
		if (is_foreign(w, m->header)) {
			listwatch_foreign(&w->follow, &foreign);
			return;
		}
		stream_confirm(w);
		return;
	}
	for (size_t i = 0; i < m->n_events; i++)
		on_event(w, m->events[i]);
	/* A progress notice: every change up to its revision was delivered. */
	if (m->n_events == 0 && m->header != NULL)
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

static void stream_open(void *source, int64_t revision)
{
	struct etcd_watch *w = source;
	struct cgn_err err;
	w->endpoint = w->e->current;
	w->fresh = w->listed;
	w->listed = false;
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
	cgn_buf_fini(&w->witness);
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
