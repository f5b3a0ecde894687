/* SPDX-License-Identifier: Apache-2.0 */
/* fetch: one block, for all who want it now, from the nearest peer that has it; from the next one when that
 * one is silent or fails, going on where it stopped. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/kvpeer/kvpeer_priv.h"
#include "joint/telemetry/telemetry.h"

#define LONGEST     (30 * CGN_SEC)
#define ON_THE_POOL ((uint64_t)1 << 20) /* larger values are summed there */

static struct cgn_link *bucket(struct kvpeer *kp, const struct block_key *k)
{
	return &kp->gets[kvframe_short(k) % FETCH_BUCKETS];
}

static struct get *find(struct kvpeer *kp, const struct block_key *k)
{
	struct cgn_link *b = bucket(kp, k);
	cgn_list_each (it, b) {
		struct get *g = CGN_CONTAINER(it, struct get, link);
		if (block_key_eq(&g->key, k))
			return g;
	}
	return NULL;
}

static void get_close(struct get *g);

/* ---- who asked ---- */

static const char *outcome(enum cgn_code code)
{
	static const char *const names[CGN_CODE_COUNT] = {[CGN_FINE] = "hit",
		[CGN_NOT_FOUND] = "miss",
		[CGN_OVERLOADED] = "busy",
		[CGN_DEADLINE] = "late",
		[CGN_CANCELLED] = "cancelled",
		[CGN_STORAGE] = "corrupt"};
	return names[code] != NULL ? names[code] : "failed";
}

static void asker_free(struct kvpeer_fetch *f)
{
	cgn_list_drop(&f->link);
	cgn_timer_cancel(&f->timer);
	f->kp->n_askers--;
	f->tag = 0;
	free(f);
}

/* Nothing of the fetch may be touched after |done|, which may ask again, cancel others or close
 * everything. */
static void asker_done(struct kvpeer_fetch *f, struct kvstore_block *block, const struct cgn_err *why)
{
	struct get *g = f->g;
	kvpeer_fetch_done done = f->done;
	void *user = f->user;
	metric_observe(METRIC_OF(f->kp->telemetry, KV_PEER_FETCH,
			       outcome(block != NULL ? CGN_FINE : why->code)),
		cgn_clock_now() - f->began);
	if (block != NULL)
		kvstore_block_ref(block);
	asker_free(f);
	if (g != NULL && cgn_list_empty(&g->askers))
		get_close(g);
	done(user, &block, why);
}

/* ---- tries: a stream to one peer ---- */

static struct asked *asked_of(struct get *g, uint64_t instance)
{
	for (unsigned i = 0; i < g->n_tried; i++)
		if (g->tried[i].instance == instance)
			return &g->tried[i];
	return NULL;
}

static void try_end(struct try *t)
{
	struct asked *a = t->peer != NULL ? asked_of(t->g, t->peer->instance) : NULL;
	if (t->peer == NULL)
		return;
	if (a != NULL && t->pos > t->begun_at)
		a->brought = true;
	if (t->stream != NULL)
		quic_stream_cancel(&t->stream, CODE_FINE);
	t->peer->path.under_way -= t->promised;
	t->peer = NULL;
	kvframe_in_fini(&t->in);
	if (t->g->active == t)
		t->g->active = NULL;
}

/* It was not needed this time: it may be asked again. */
static void try_spare(struct try *t)
{
	struct get *g = t->g;
	struct asked *a = t->peer != NULL ? asked_of(g, t->peer->instance) : NULL;
	try_end(t);
	if (a != NULL && !a->brought)
		*a = g->tried[--g->n_tried];
}

static void tries_end(struct get *g)
{
	for (size_t i = 0; i < CGN_COUNT(g->tries); i++)
		try_end(&g->tries[i]);
}

static struct try *try_free(struct get *g)
{
	for (size_t i = 0; i < CGN_COUNT(g->tries); i++)
		if (g->tries[i].peer == NULL)
			return &g->tries[i];
	return NULL;
}

static bool any_try(const struct get *g)
{
	return g->tries[0].peer != NULL || g->tries[1].peer != NULL;
}

/* ---- the end ---- */

static void get_free(struct get *g)
{
	cgn_timer_cancel(&g->timer);
	if (g->read != NULL)
		kvstore_read_cancel(&g->read);
	if (g->writer != NULL)
		kvstore_writer_abort(&g->writer);
	g->tag = 0;
	free(g);
}

/* Nobody joins it any more. One whose value is on the pool is freed when it comes from there. */
static void get_close(struct get *g)
{
	cgn_list_drop(&g->link);
	if (g->state != GET_DONE)
		g->kp->n_gets--;
	g->state = GET_DONE;
	tries_end(g);
	cgn_timer_cancel(&g->timer);
	if (!g->on_pool)
		get_free(g);
}

/* |block| NULL: |why|. Everybody has a reference of his own. */
static void finish(struct get *g, struct kvstore_block *block, const struct cgn_err *why)
{
	struct cgn_link askers, *l;
	struct cgn_err said = *why;
	cgn_list_init(&askers);
	while ((l = cgn_list_first(&g->askers)) != NULL) {
		cgn_list_drop(l);
		cgn_list_push(&askers, l);
		CGN_CONTAINER(l, struct kvpeer_fetch, link)->g = NULL;
	}
	get_close(g);
	while ((l = cgn_list_first(&askers)) != NULL)
		asker_done(CGN_CONTAINER(l, struct kvpeer_fetch, link), block, &said);
	kvstore_block_unref(&block);
}

static void asker_leaves(struct kvpeer_fetch *f)
{
	struct get *g = f->g;
	asker_free(f);
	if (g != NULL && cgn_list_empty(&g->askers))
		get_close(g);
}

/* ---- whom to ask ---- */

static struct kvfetch_ask cost_at(const struct get *g, const struct peer *p)
{
	struct kvfetch_ask ask = g->cost;
	ask.bytes = g->writer != NULL ? g->size - g->got : p->mean_bytes;
	return ask;
}

/* *|dearer|: there are some, and computing it anew is faster. */
static struct peer *choose(struct get *g, bool *dearer)
{
	struct kvfetch_peer rows[KVPEER_MAX];
	struct peer *peers[KVPEER_MAX];
	size_t n = 0;
	unsigned tiers;
	*dearer = false;
	cgn_list_each (it, &g->kp->peers) {
		struct peer *p = CGN_CONTAINER(it, struct peer, link);
		if (!kvpeer_peer_has(g->kp, p, &g->key, &tiers) || asked_of(g, p->instance) != NULL)
			continue;
		const struct kvfetch_ask ask = cost_at(g, p);
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

static bool try_start(struct get *g, struct peer *p, struct cgn_err *err);

/* Ask the next one. False: nobody is left to be asked. */
static bool ask_next(struct get *g)
{
	bool dearer;
	while (g->n_tried < KVPEER_MAX_TRIES) {
		struct peer *p = choose(g, &dearer);
		if (p == NULL && dearer && g->why.code == CGN_NOT_FOUND)
			(void)CGN_FAIL(&g->why, NOT_FOUND,
				"computing it anew is faster than fetching it from those that have it");
		if (p == NULL)
			return false;
		g->tried[g->n_tried++] = (struct asked){.instance = p->instance};
		if (try_start(g, p, &g->why))
			return true;
	}
	return false;
}

/* What went wrong counts for what is told in the end: who is busy may have it, who says no has not. */
static void try_failed(struct try *t, enum cgn_code code, const char *what)
{
	struct get *g = t->g;
	if (code != CGN_NOT_FOUND || g->why.code == CGN_NOT_FOUND)
		(void)CGN_FAIL_AS(&g->why, code, "peer %s: %.300s", t->peer->id, what);
	try_end(t);
	if (!ask_next(g) && !any_try(g))
		finish(g, NULL, &g->why);
}

static void try_broke(struct try *t, const char *what)
{
	struct peer *p = t->peer;
	p->failed++;
	p->failures++;
	p->busy_until = cgn_loop_now(t->g->kp->loop) + kvfetch_rest(0, p->failures);
	try_failed(t, CGN_UNAVAILABLE, what);
}

/* ---- it is whole ---- */

static unsigned ghost_of(struct get *g, uint32_t *mark)
{
	uint64_t h = kvframe_short(&g->key);
	*mark = (uint32_t)(h >> 32) | 1U;
	return (unsigned)(h % GHOSTS);
}

/* Wanted by so many, the last fetch of it that is remembered counted. */
static unsigned wanted(struct get *g)
{
	uint32_t mark;
	unsigned at = ghost_of(g, &mark), before = g->kp->ghosts[at] == mark ? 1 : 0;
	g->kp->ghosts[at] = mark;
	return g->n_asked + before;
}

static void on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct get *g = user;
	struct kvstore_block *block = *take;
	*take = NULL;
	CGN_LIVE(g, KVPEER_GET_TAG);
	g->read = NULL;
	finish(g, block, why);
}

/* Somebody put it while it came: what the store has counts. */
static void read_back(struct get *g)
{
	struct cgn_err err;
	g->state = GET_READING;
	if (!cgn_ok(kvstore_get(g->kp->store, g->kp->loop, &g->key, on_read, g, &g->read, &err)))
		finish(g, NULL, &err);
}

static void committed(struct get *g, const struct cgn_err *why)
{
	struct kvpeer *kp = g->kp;
	if (why->code == CGN_CONFLICT) {
		read_back(g);
		return;
	}
	struct kvstore_block *block =
		why->code == CGN_FINE ? kvstore_get_ram(kp->store, &g->key, false) : NULL;
	struct cgn_err err = *why;
	if (block == NULL && why->code == CGN_FINE)
		(void)CGN_FAIL(&err, OVERLOADED, "it had to leave the RAM tier at once: there is no room");
	if (block != NULL && !g->keep)
		(void)kvstore_remove(kp->store, &g->key); /* whoever holds it reads it to the end */
	finish(g, block, &err);
}

/* Each whose bytes are in it may be the one. */
static void blame(struct get *g)
{
	cgn_list_each (it, &g->kp->peers) {
		struct peer *p = CGN_CONTAINER(it, struct peer, link);
		struct asked *a = asked_of(g, p->instance);
		if (a == NULL || !a->brought)
			continue;
		a->brought = false;
		p->corrupt++;
		p->failures++;
		p->busy_until = cgn_loop_now(g->kp->loop) + kvfetch_rest(0, p->failures);
		cgn_log(ERROR, "kvpeer.corrupt", F_STR("peer", p->id), F_U64("bytes", g->size),
			F_STR("then", "it is dropped, and fetched from another"));
	}
}

/* Of what came from a peer, some is not what its checksum says. All of it is fetched anew, from others. */
static void was_not_whole(struct get *g)
{
	metric_add(METRIC_ONE(g->kp->telemetry, KV_PEER_CORRUPT), 1);
	blame(g);
	g->got = g->size = 0;
	g->state = GET_FETCHING;
	(void)CGN_FAIL(&g->why, STORAGE, "what came was not what its checksum says");
	if (!ask_next(g))
		finish(g, NULL, &g->why);
}

static void on_committed(struct get *g, const struct cgn_err *why)
{
	if (why->code == CGN_INVALID)
		was_not_whole(g);
	else
		committed(g, why);
}

static void commit_work(void *arg)
{
	struct get *g = arg;
	if (cgn_ok(kvstore_writer_commit(&g->writer, &g->checksum, KVSTORE_IF_ABSENT, &g->committed)))
		g->committed.code = CGN_FINE;
}

static void commit_done(void *arg)
{
	struct get *g = arg;
	CGN_LIVE(g, KVPEER_GET_TAG);
	g->on_pool = false;
	if (g->state == GET_DONE) {
		get_free(g);
		return;
	}
	on_committed(g, &g->committed);
}

static void complete(struct get *g)
{
	struct try *t = g->active;
	if (t != NULL) {
		cgn_nsec spent = cgn_clock_now() - t->first_at;
		t->peer->fetched++;
		t->peer->failures = 0;
		kvfetch_path_rate(&t->peer->path, g->size - t->begun_at, (double)spent / (double)CGN_MSEC);
	}
	for (size_t i = 0; i < CGN_COUNT(g->tries); i++)
		if (&g->tries[i] != t)
			try_spare(&g->tries[i]);
	tries_end(g);
	cgn_timer_cancel(&g->timer);
	g->keep = kvfetch_keep(g->kp->ram_budget, g->used_before, g->size, wanted(g));
	g->state = GET_COMMITTING;
	g->on_pool = g->size > ON_THE_POOL && cgn_ok(cgn_loop_work(g->kp->loop, commit_work, commit_done, g));
	if (g->on_pool)
		return;
	commit_work(g);
	on_committed(g, &g->committed);
}

/* ---- what comes ---- */

static bool begin_writing(struct get *g, const struct kvframe_answer *a, struct cgn_err *err)
{
	const struct block_meta meta = {.model = a->model,
		.name = a->name,
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

/* The first answer is the one that counts; a later one takes over when nothing came since it was asked
 * for. */
static bool takes_over(const struct try *t)
{
	return t->g->active == NULL || t->g->moved_at <= t->asked_at;
}

static void stop_other(struct try *t)
{
	struct get *g = t->g;
	struct try *other = t == &g->tries[0] ? &g->tries[1] : &g->tries[0];
	if (other->answered)
		try_end(other);
	else
		try_spare(other);
	g->active = t;
	g->moved_at = cgn_clock_now();
}

/* False: |t| is at its end, and |g| may be. */
static bool on_value(struct try *t, const struct kvframe_answer *a)
{
	struct get *g = t->g;
	struct cgn_err err;
	struct kvfetch_ask ask = g->cost;
	struct kvfetch_path others = t->peer->path;
	others.under_way -= t->promised;
	if (a->offset != t->begun_at || a->length != a->size - a->offset) {
		try_broke(t, "it answered with other bytes than those asked for");
		return false;
	}
	if (g->writer != NULL && (a->size != g->size || a->checksum != g->checksum)) {
		try_failed(t, CGN_NOT_FOUND, "its value is another one");
		return false;
	}
	ask.bytes = a->size - a->offset;
	if (!kvfetch_worth(&others, &ask)) {
		try_failed(t, CGN_NOT_FOUND, "computing it anew is faster than fetching it");
		return false;
	}
	if (!takes_over(t)) {
		try_spare(t); /* the first one is alive again */
		return false;
	}
	if (g->writer == NULL && !begin_writing(g, a, &err)) {
		if (err.code == CGN_INVALID || err.code == CGN_TOO_LARGE) {
			try_broke(t, err.msg);
			return false;
		}
		finish(g, NULL, &err); /* there is no room here, whoever sends it */
		return false;
	}
	stop_other(t);
	return true;
}

static bool on_answer(struct try *t, const struct kvframe_answer *a)
{
	struct peer *p = t->peer;
	struct get *g = t->g;
	kvfetch_path_first(&p->path, (double)(cgn_clock_now() - t->asked_at) / (double)CGN_MSEC);
	t->first_at = cgn_clock_now();
	t->answered = true;
	switch (a->status) {
	case KVFRAME_OK:
		return on_value(t, a);
	case KVFRAME_NOT_FOUND:
		p->missed++;
		kvpeer_has_not(p, &g->key);
		try_failed(t, CGN_NOT_FOUND, "it has it no more");
		return false;
	case KVFRAME_BUSY:
		p->refused++;
		p->busy_until = cgn_loop_now(g->kp->loop) + kvfetch_rest(a->wait_ms, 0);
		try_failed(t, CGN_OVERLOADED, "it is busy");
		return false;
	case KVFRAME_FAILED:
	case KVFRAME_REFUSED:
	case KVFRAME_STATUSES:
		break;
	}
	try_broke(t, kvframe_status_text(a->status));
	return false;
}

/* False: as on_value. */
static bool read_head(struct try *t, struct cgn_str *rest)
{
	struct kvframe f;
	struct kvframe_answer a;
	struct cgn_err err;
	bool got;
	if (!cgn_ok(kvframe_next(&t->in, rest, &f, &got, &err))) {
		try_broke(t, err.msg);
		return false;
	}
	if (!got)
		return true;
	if (f.type != KVFRAME_ANSWER || !cgn_ok(kvframe_read_answer(f.payload, &a, &err))) {
		try_broke(t, f.type != KVFRAME_ANSWER ? "it did not answer" : err.msg);
		return false;
	}
	return on_answer(t, &a);
}

static void take_bytes(struct try *t, struct cgn_str bytes)
{
	struct get *g = t->g;
	uint64_t skip = t->pos < g->got ? g->got - t->pos : 0; /* the one before brought these */
	skip = skip < bytes.n ? skip : bytes.n;
	t->pos += bytes.n;
	uint64_t n = bytes.n - skip < g->size - g->got ? bytes.n - skip : g->size - g->got;
	if (n > 0)
		kvstore_writer_add(g->writer, bytes.p + skip, n);
	g->got += n;
	t->peer->fetched_bytes += bytes.n;
	metric_add(METRIC_OF(t->g->kp->telemetry, KV_PEER_BYTES, "in"), bytes.n);
	g->moved_at = cgn_clock_now();
}

static void on_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct try *t = user;
	struct get *g = t->g;
	struct cgn_str rest = {(const char *)p, n};
	(void)s;
	CGN_LIVE(g, KVPEER_GET_TAG);
	if (!t->answered && !read_head(t, &rest))
		return;
	if (t->answered)
		take_bytes(t, rest);
	if (t->answered && g->got == g->size)
		complete(g);
	else if (fin)
		try_broke(t, "it ended before its end");
}

static void on_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct try *t = user;
	(void)s;
	CGN_LIVE(t->g, KVPEER_GET_TAG);
	t->stream = NULL;
	if (why->code == CGN_CANCELLED)
		try_broke(t, code == CODE_SLOW ? "it gave up: we took nothing" : "it cancelled the answer");
	else
		try_broke(t, why->code == CGN_FINE ? "it ended before its end" : why->msg);
}

static const struct quic_stream_ops ops = {.on_data = on_data, .on_close = on_close};

void kvpeer_tries_lost(struct peer *p, const struct cgn_err *why)
{
	struct kvpeer *kp = p->kp;
	for (size_t b = 0; b < FETCH_BUCKETS; b++)
		cgn_list_each_safe (it, &kp->gets[b]) {
			struct get *g = CGN_CONTAINER(it, struct get, link);
			struct try *t = g->tries[0].peer == p ? &g->tries[0]
				: g->tries[1].peer == p       ? &g->tries[1]
							      : NULL;
			if (t != NULL)
				cgn_timer_set(&g->timer, 0); /* on_patience finds it without a peer */
			if (t != NULL)
				(void)CGN_FAIL(&g->why, UNAVAILABLE, "peer %s: %.300s", p->id, why->msg);
			if (t != NULL)
				try_end(t);
		}
}

/* ---- asking ---- */

static uint32_t budget_left(const struct get *g)
{
	cgn_nsec now = cgn_loop_now(g->kp->loop), last = 0;
	cgn_list_each (it, &g->askers) {
		const struct kvpeer_fetch *f = CGN_CONTAINER(it, struct kvpeer_fetch, link);
		last = f->deadline > last ? f->deadline : last;
	}
	return last > now ? (uint32_t)((last - now + CGN_MSEC - 1) / CGN_MSEC) : 1;
}

static bool try_start(struct get *g, struct peer *p, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct try *t = try_free(g);
	struct quic_stream *s;
	if (t == NULL || !cgn_ok(quic_stream_open(p->conn, &ops, t, &s, err)))
		return false;
	*t = (struct try){.g = g,
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
			.budget_ms = budget_left(g),
			.priority = g->priority});
	kvpeer_send_buf(s, &b, true);
	if (g->active == NULL)
		g->moved_at = t->asked_at;
	cgn_timer_set(&g->timer, kvfetch_patience(&p->path));
	return true;
}

/* Nothing came for a while: somebody else may be faster. */
static void on_patience(struct cgn_timer *timer)
{
	struct get *g = CGN_CONTAINER(timer, struct get, timer);
	CGN_LIVE(g, KVPEER_GET_TAG);
	const struct try *t = g->active != NULL ? g->active
		: g->tries[0].peer != NULL      ? &g->tries[0]
						: &g->tries[1];
	if (t->peer == NULL) {
		if (!ask_next(g))
			finish(g, NULL, &g->why);
		return;
	}
	cgn_nsec patience = kvfetch_patience(&t->peer->path), silent = cgn_clock_now() - g->moved_at;
	if (silent < patience)
		cgn_timer_set(timer, patience - silent);
	else if (try_free(g) == NULL || !ask_next(g))
		cgn_timer_set(timer, patience);
}

static void on_deadline(struct cgn_timer *timer)
{
	struct kvpeer_fetch *f = CGN_CONTAINER(timer, struct kvpeer_fetch, timer);
	struct cgn_err err;
	CGN_LIVE(f, KVPEER_FETCH_TAG);
	(void)CGN_FAIL(&err, DEADLINE, "no peer sent it within %llu ms",
		(unsigned long long)((f->deadline - f->began) / CGN_MSEC));
	asker_done(f, NULL, &err);
}

static struct get *get_new(struct kvpeer *kp, const struct block_key *k, const struct kvpeer_ask *ask)
{
	struct get *g = calloc(1, sizeof *g);
	if (g == NULL)
		return NULL;
	*g = (struct get){.tag = KVPEER_GET_TAG,
		.kp = kp,
		.key = *k,
		.priority = ask->priority < QUIC_PRIORITIES ? ask->priority : 7};
	g->cost = (struct kvfetch_ask){.tokens = ask->tokens,
		.ms_per_token = ask->ms_per_token,
		.budget_ms = ask->budget_ms};
	(void)CGN_FAIL(&g->why, NOT_FOUND, "no peer has it");
	cgn_list_init(&g->askers);
	cgn_timer_init(&g->timer, kp->loop, on_patience);
	cgn_list_push(bucket(kp, k), &g->link);
	kp->n_gets++;
	return g;
}

static struct kvpeer_fetch *asker_new(struct get *g, const struct kvpeer_ask *ask, kvpeer_fetch_done done,
	void *user)
{
	struct kvpeer_fetch *f = calloc(1, sizeof *f);
	if (f == NULL)
		return NULL;
	cgn_nsec longest = ask->budget_ms > 0 && ask->budget_ms * CGN_MSEC < LONGEST
		? ask->budget_ms * CGN_MSEC
		: LONGEST;
	*f = (struct kvpeer_fetch){.tag = KVPEER_FETCH_TAG,
		.kp = g->kp,
		.g = g,
		.done = done,
		.user = user,
		.began = cgn_loop_now(g->kp->loop)};
	f->deadline = f->began + longest;
	cgn_timer_init(&f->timer, g->kp->loop, on_deadline);
	cgn_timer_set(&f->timer, longest);
	cgn_list_push(&g->askers, &f->link);
	g->n_asked++;
	g->kp->n_askers++;
	return f;
}

static CGN_RC check(const struct kvpeer *kp, const struct get *g, struct cgn_err *err)
{
	if (kp->draining)
		return CGN_FAIL(err, UNAVAILABLE, "the store is stopping");
	if (kp->n_askers >= KVPEER_MAX_ASKERS || (g == NULL && kp->n_gets >= KVPEER_MAX_FETCHES))
		return CGN_FAIL(err, OVERLOADED, "%zu blocks are being fetched for %zu callers", kp->n_gets,
			kp->n_askers);
	return CGN_OK;
}

CGN_RC kvpeer_fetch(struct kvpeer *kp, const struct block_key *k, const struct kvpeer_ask *ask,
	kvpeer_fetch_done done, void *user, struct kvpeer_fetch **out, struct cgn_err *err)
{
	CGN_LIVE(kp, KVPEER_TAG);
	struct get *g = find(kp, k);
	bool fresh = g == NULL;
	CGN_TRY(check(kp, g, err));
	if (fresh)
		g = get_new(kp, k, ask);
	struct kvpeer_fetch *f = g != NULL ? asker_new(g, ask, done, user) : NULL;
	if (f == NULL) {
		if (fresh && g != NULL)
			get_close(g);
		return CGN_FAIL(err, NO_MEMORY, "no memory for a fetch");
	}
	if (fresh && !ask_next(g)) {
		struct cgn_err why = g->why;
		metric_observe(METRIC_OF(kp->telemetry, KV_PEER_FETCH, outcome(why.code)), 0);
		asker_leaves(f);
		return CGN_FAIL_AS(err, why.code, "%s", why.msg);
	}
	*out = f;
	return CGN_OK;
}

void kvpeer_fetch_cancel(struct kvpeer_fetch **take)
{
	struct kvpeer_fetch *f = *take;
	*take = NULL;
	if (f == NULL)
		return;
	CGN_LIVE(f, KVPEER_FETCH_TAG);
	metric_observe(METRIC_OF(f->kp->telemetry, KV_PEER_FETCH, outcome(CGN_CANCELLED)),
		cgn_clock_now() - f->began);
	asker_leaves(f);
}

void kvpeer_gets_end(struct kvpeer *kp)
{
	struct cgn_err err;
	(void)CGN_FAIL(&err, CANCELLED, "the store is stopping");
	for (size_t b = 0; b < FETCH_BUCKETS; b++)
		while (!cgn_list_empty(&kp->gets[b]))
			finish(CGN_CONTAINER(cgn_list_first(&kp->gets[b]), struct get, link), NULL, &err);
}
