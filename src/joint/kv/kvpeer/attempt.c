/* SPDX-License-Identifier: Apache-2.0 */
/* attempt: one stream to one peer for a block. When a peer is silent, busy or fails, the next one is asked for
 * the bytes that are missing. */
#include "joint/kv/kvpeer/get_priv.h"
#include "joint/report/telemetry/telemetry.h"

struct kvpeer_asked *kvpeer_get_asked(struct kvpeer_get *g, uint64_t instance)
{
	for (unsigned i = 0; i < g->n_asked_peers; i++)
		if (g->tried[i].instance == instance)
			return &g->tried[i];
	return NULL;
}

static void attempt_end(struct kvpeer_attempt *t)
{
	struct kvpeer_asked *a = t->peer != NULL ? kvpeer_get_asked(t->g, t->peer->instance) : NULL;
	if (t->peer == NULL)
		return;
	if (a != NULL && t->pos > t->begun_at)
		a->brought = true;
	if (t->stream != NULL)
		quic_stream_cancel(&t->stream, KVPEER_CODE_FINE);
	t->peer->path.under_way -= t->promised;
	t->peer = NULL;
	kvframe_in_fini(&t->in);
	if (t->g->active == t)
		t->g->active = NULL;
}

/* The attempt was not needed. Its peer may be asked again, unless it sent bytes. */
void kvpeer_attempt_spare(struct kvpeer_attempt *t)
{
	struct kvpeer_get *g = t->g;
	struct kvpeer_asked *a = t->peer != NULL ? kvpeer_get_asked(g, t->peer->instance) : NULL;
	attempt_end(t);
	if (a != NULL && !a->brought)
		*a = g->tried[--g->n_asked_peers];
}

void kvpeer_attempts_end(struct kvpeer_get *g)
{
	for (size_t i = 0; i < CGN_COUNT(g->attempts); i++)
		attempt_end(&g->attempts[i]);
}

static struct kvpeer_attempt *attempt_slot(struct kvpeer_get *g)
{
	for (size_t i = 0; i < CGN_COUNT(g->attempts); i++)
		if (g->attempts[i].peer == NULL)
			return &g->attempts[i];
	return NULL;
}

static bool attempt_any(const struct kvpeer_get *g)
{
	return g->attempts[0].peer != NULL || g->attempts[1].peer != NULL;
}

static struct kvfetch_ask attempt_cost(const struct kvpeer_get *g, const struct kvpeer_peer *p)
{
	struct kvfetch_ask ask = g->cost;
	ask.bytes = g->writer != NULL ? g->size - g->got : p->mean_bytes;
	return ask;
}

static bool attempt_may_ask(const struct kvpeer_get *g, const struct kvpeer_peer *p)
{
	return kvpeer_is_here(p->site) || (g->sites & 1U << p->site->index) != 0;
}

/* Return the best peer to ask, or NULL. |*dearer|: a peer has the block, but recomputing is faster. */
static struct kvpeer_peer *attempt_choose_peer(struct kvpeer_get *g, bool *dearer)
{
	struct kvfetch_peer rows[KVPEER_MAX];
	struct kvpeer_peer *peers[KVPEER_MAX];
	size_t n = 0;
	unsigned tiers;
	*dearer = false;
	cgn_list_each (it, &g->kp->peers) {
		struct kvpeer_peer *p = CGN_CONTAINER(it, struct kvpeer_peer, link);
		if (!kvpeer_peer_has(g->kp, p, &g->key, &tiers) || kvpeer_get_asked(g, p->instance) != NULL ||
			!attempt_may_ask(g, p))
			continue;
		const struct kvfetch_ask ask = attempt_cost(g, p);
		if (!kvfetch_worth(&p->path, &ask)) {
			*dearer = true;
			continue;
		}
		rows[n] = (struct kvfetch_peer){.distance = p->distance,
			.in_ram = (tiers & BLOCK_TIER_BIT(BLOCK_RAM)) != 0,
			.busy_until = p->busy_until,
			.ms = kvfetch_ms(&p->path, ask.bytes)};
		peers[n++] = p;
	}
	size_t at = kvfetch_choose(rows, n, cgn_loop_now(g->kp->loop));
	return at < n ? peers[at] : NULL;
}

static bool attempt_start(struct kvpeer_get *g, struct kvpeer_peer *p, struct cgn_err *err);

/* Ask the next peer. Returns false when no peer is left. */
bool kvpeer_attempt_next(struct kvpeer_get *g)
{
	bool dearer;
	while (g->n_asked_peers < KVPEER_MAX_ATTEMPTS) {
		struct kvpeer_peer *p = attempt_choose_peer(g, &dearer);
		if (p == NULL && dearer && g->why.code == CGN_NOT_FOUND)
			(void)CGN_FAIL(&g->why, NOT_FOUND,
				"recomputing is faster than fetching it from the peers that have it");
		if (p == NULL)
			return false;
		g->tried[g->n_asked_peers++] = (struct kvpeer_asked){.instance = p->instance};
		if (attempt_start(g, p, &g->why))
			return true;
	}
	return false;
}

/* Record the failure and ask the next peer. A busy peer may have the block, so its failure is kept when
 * another peer does not have it. */
static void attempt_failed(struct kvpeer_attempt *t, enum cgn_code code, const char *what)
{
	struct kvpeer_get *g = t->g;
	if (code != CGN_NOT_FOUND || g->why.code == CGN_NOT_FOUND)
		(void)CGN_FAIL_AS(&g->why, code, "peer %s: %.300s", t->peer->id, what);
	attempt_end(t);
	if (!kvpeer_attempt_next(g) && !attempt_any(g))
		kvpeer_get_finish(g, NULL, &g->why);
}

static void attempt_broke(struct kvpeer_attempt *t, const char *what)
{
	struct kvpeer_peer *p = t->peer;
	p->failed++;
	p->failures++;
	p->busy_until = cgn_loop_now(t->g->kp->loop) + kvfetch_rest(0, p->failures);
	attempt_failed(t, CGN_UNAVAILABLE, what);
}

static bool attempt_open_writer(struct kvpeer_get *g, const struct kvframe_answer *a, struct cgn_err *err)
{
	const struct block_meta meta = {.model = a->model,
		.name = a->name,
		.tenant = a->tenant,
		.tokens = a->tokens,
		.created_unix_ms = a->created_unix_ms,
		.expires_unix_ms = a->expires_unix_ms};
	struct kvstore_stats st;
	kvstore_stats(g->kp->store, &st);
	g->used_before = st.tier[BLOCK_RAM].bytes;
	if (!cgn_ok(kvstore_put(g->kp->store, &g->key, &meta, a->size, &g->writer, err)))
		return false;
	g->size = a->size;
	g->checksum = a->checksum;
	g->got = 0;
	return true;
}

/* The first answer counts. A later one takes over when nothing arrived since it was asked for. */
static bool attempt_takes_over(const struct kvpeer_attempt *t)
{
	return t->g->active == NULL || t->g->moved_at <= t->asked_at;
}

static void attempt_stop_other(struct kvpeer_attempt *t)
{
	struct kvpeer_get *g = t->g;
	struct kvpeer_attempt *other = t == &g->attempts[0] ? &g->attempts[1] : &g->attempts[0];
	if (other->answered)
		attempt_end(other);
	else
		kvpeer_attempt_spare(other);
	g->active = t;
	g->moved_at = cgn_clock_now();
}

/* Returns false when |t| ended; then |g| may be freed. */
static bool attempt_on_value(struct kvpeer_attempt *t, const struct kvframe_answer *a)
{
	struct kvpeer_get *g = t->g;
	struct cgn_err err;
	struct kvfetch_ask ask = g->cost;
	struct kvfetch_path others = t->peer->path;
	others.under_way -= t->promised;
	if (a->offset != t->begun_at || a->length != a->size - a->offset) {
		attempt_broke(t, "it answered with other bytes than requested");
		return false;
	}
	if (!kvpeer_site_takes_in(g->kp, t->peer->site, a->tenant, a->model)) {
		attempt_broke(t, "its site may not send blocks of this tenant and model (kv_sites)");
		return false;
	}
	if (g->writer != NULL && (a->size != g->size || a->checksum != g->checksum)) {
		attempt_failed(t, CGN_NOT_FOUND, "it holds another value");
		return false;
	}
	ask.bytes = a->size - a->offset;
	if (!kvfetch_worth(&others, &ask)) {
		attempt_failed(t, CGN_NOT_FOUND, "recomputing is faster than fetching it");
		return false;
	}
	if (!attempt_takes_over(t)) {
		kvpeer_attempt_spare(t); /* the first attempt delivers again */
		return false;
	}
	if (g->writer == NULL && !attempt_open_writer(g, a, &err)) {
		if (err.code == CGN_INVALID || err.code == CGN_TOO_LARGE) {
			attempt_broke(t, err.msg);
			return false;
		}
		/* This store has no room for the value, whichever peer sends it. */
		kvpeer_get_finish(g, NULL, &err);
		return false;
	}
	attempt_stop_other(t);
	return true;
}

static bool attempt_on_answer(struct kvpeer_attempt *t, const struct kvframe_answer *a)
{
	struct kvpeer_peer *p = t->peer;
	struct kvpeer_get *g = t->g;
	kvfetch_path_first(&p->path, (double)cgn_since(cgn_clock_now(), t->asked_at) / (double)CGN_MSEC);
	t->first_at = cgn_clock_now();
	t->answered = true;
	switch (a->status) {
	case KVFRAME_OK:
		return attempt_on_value(t, a);
	case KVFRAME_NOT_FOUND:
		p->missed++;
		kvpeer_has_not(p, &g->key);
		attempt_failed(t, CGN_NOT_FOUND, "it no longer holds the block");
		return false;
	case KVFRAME_BUSY:
		p->refused++;
		p->busy_until = cgn_loop_now(g->kp->loop) + kvfetch_rest(a->wait_ms, 0);
		attempt_failed(t, CGN_OVERLOADED, "it is busy");
		return false;
	case KVFRAME_FAILED:
	case KVFRAME_REFUSED:
	case KVFRAME_STATUSES:
		break;
	}
	attempt_broke(t, kvframe_status_text(a->status));
	return false;
}

/* Returns false as attempt_on_value. */
static bool attempt_read_head(struct kvpeer_attempt *t, struct cgn_str *rest)
{
	struct kvframe f;
	struct kvframe_answer a;
	struct cgn_err err;
	bool got;
	if (!cgn_ok(kvframe_next(&t->in, rest, &f, &got, &err))) {
		attempt_broke(t, err.msg);
		return false;
	}
	if (!got)
		return true;
	if (f.type != KVFRAME_ANSWER || !cgn_ok(kvframe_read_answer(f.payload, &a, &err))) {
		attempt_broke(t, f.type != KVFRAME_ANSWER ? "it did not answer" : err.msg);
		return false;
	}
	return attempt_on_answer(t, &a);
}

static void attempt_take_bytes(struct kvpeer_attempt *t, struct cgn_str bytes)
{
	struct kvpeer_get *g = t->g;
	uint64_t skip = t->pos < g->got ? g->got - t->pos : 0; /* bytes that an earlier attempt brought */
	skip = skip < bytes.n ? skip : bytes.n;
	t->pos += bytes.n;
	uint64_t n = bytes.n - skip < g->size - g->got ? bytes.n - skip : g->size - g->got;
	if (n > 0)
		kvstore_writer_add(g->writer, bytes.p + skip, n);
	g->got += n;
	t->peer->fetched_bytes += bytes.n;
	kvpeer_site_count(g->kp, t->peer->site, true, bytes.n);
	g->moved_at = cgn_clock_now();
}

static void attempt_on_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct kvpeer_attempt *t = user;
	struct kvpeer_get *g = t->g;
	struct cgn_str rest = {(const char *)p, n};
	(void)s;
	CGN_LIVE(g, KVPEER_GET_TAG);
	if (!t->answered && !attempt_read_head(t, &rest))
		return;
	if (t->answered)
		attempt_take_bytes(t, rest);
	if (t->answered && g->got == g->size)
		kvpeer_get_complete(g);
	else if (fin)
		attempt_broke(t, "the stream ended early");
}

static void attempt_on_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct kvpeer_attempt *t = user;
	(void)s;
	CGN_LIVE(t->g, KVPEER_GET_TAG);
	t->stream = NULL;
	if (why->code == CGN_CANCELLED)
		attempt_broke(t,
			code == KVPEER_CODE_SLOW ? "it gave up: this store took no bytes in time"
						 : "it cancelled the answer");
	else
		attempt_broke(t, why->code == CGN_FINE ? "the stream ended early" : why->msg);
}

static const struct quic_stream_ops attempt_ops = {.on_data = attempt_on_data, .on_close = attempt_on_close};

void kvpeer_attempts_lost(struct kvpeer_peer *p, const struct cgn_err *why)
{
	struct kvpeer *kp = p->kp;
	for (size_t b = 0; b < KVPEER_FETCH_BUCKETS; b++)
		cgn_list_each_safe (it, &kp->gets[b]) {
			struct kvpeer_get *g = CGN_CONTAINER(it, struct kvpeer_get, link);
			struct kvpeer_attempt *t = g->attempts[0].peer == p ? &g->attempts[0]
				: g->attempts[1].peer == p                  ? &g->attempts[1]
									    : NULL;
			if (t != NULL)
				cgn_timer_set(&g->timer,
					0); /* kvpeer_attempt_on_patience then finds no peer */
			if (t != NULL)
				(void)CGN_FAIL(&g->why, UNAVAILABLE, "peer %s: %.300s", p->id, why->msg);
			if (t != NULL)
				attempt_end(t);
		}
}

static cgn_nsec attempt_patience(const struct kvpeer_peer *p)
{
	cgn_nsec patience = kvfetch_patience(&p->path);
	return patience > p->kp->least_patience ? patience : p->kp->least_patience;
}

static uint32_t attempt_budget_ms(const struct kvpeer_get *g)
{
	cgn_nsec now = cgn_loop_now(g->kp->loop), last = 0;
	cgn_list_each (it, &g->askers) {
		const struct kvpeer_fetch *f = CGN_CONTAINER(it, struct kvpeer_fetch, link);
		last = f->deadline > last ? f->deadline : last;
	}
	return last > now ? (uint32_t)((last - now + CGN_MSEC - 1) / CGN_MSEC) : 1;
}

static bool attempt_start(struct kvpeer_get *g, struct kvpeer_peer *p, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct kvpeer_attempt *t = attempt_slot(g);
	struct quic_stream *s;
	if (t == NULL || !cgn_ok(quic_stream_open(p->conn, &attempt_ops, t, &s, err)))
		return false;
	*t = (struct kvpeer_attempt){.g = g,
		.peer = p,
		.stream = s,
		.pos = g->got,
		.begun_at = g->got,
		.asked_at = cgn_clock_now()};
	t->promised = g->writer != NULL ? g->size - g->got : p->mean_bytes;
	p->path.under_way += t->promised;
	kvframe_in_init(&t->in);
	quic_priority(s, g->priority);
	kvframe_put_fetch(&b,
		&(struct kvframe_fetch){.key = g->key,
			.offset = g->got,
			.budget_ms = attempt_budget_ms(g),
			.priority = g->priority});
	kvpeer_send_buf(s, &b, true);
	if (g->active == NULL)
		g->moved_at = t->asked_at;
	cgn_timer_set(&g->timer, attempt_patience(p));
	return true;
}

/* Nothing arrived for a while: another peer may be faster. */
void kvpeer_attempt_on_patience(struct cgn_timer *timer)
{
	struct kvpeer_get *g = CGN_CONTAINER(timer, struct kvpeer_get, timer);
	CGN_LIVE(g, KVPEER_GET_TAG);
	const struct kvpeer_attempt *t = g->active != NULL ? g->active
		: g->attempts[0].peer != NULL              ? &g->attempts[0]
							   : &g->attempts[1];
	if (t->peer == NULL) {
		if (!kvpeer_attempt_next(g))
			kvpeer_get_finish(g, NULL, &g->why);
		return;
	}
	cgn_nsec patience = attempt_patience(t->peer), silent = cgn_since(cgn_clock_now(), g->moved_at);
	if (silent < patience)
		cgn_timer_set(timer, patience - silent);
	else if (attempt_slot(g) == NULL || !kvpeer_attempt_next(g))
		cgn_timer_set(timer, patience);
}
