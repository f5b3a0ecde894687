/* SPDX-License-Identifier: Apache-2.0 */
/* gate: the control loop's side of waiting: the queues, which node has room, and who is let in. */
#include "router/admission/admission.h"

#include <stdlib.h>

#include "base/json/json.h"
#include "base/log/log.h"
#include "router/control/router.h"

/* while anybody waits: for what nobody tells, such as others' load or the end of patience */
#define POLL      (50 * CGN_MSEC)
#define BOUNCE    (20 * CGN_MSEC)  /* after a place turned out to be gone, so that nobody runs in circles */
#define PAUSE     (250 * CGN_MSEC) /* between tries of one request on nodes that failed it all */
#define LANE_IDLE (300 * CGN_SEC)  /* how fast a model moved is remembered for so long */

/* The queue of one model and role. */
struct admission_queue {
	struct cgn_link link;
	char *model;
	size_t cell;
	enum admission_role role;
	struct queue *queue;
	struct cgn_link retries; /* tickets of requests that a node failed; before everybody else */
	size_t n_retries;
	struct queue_rate pace;
	cgn_nsec not_before, idle_since;
	struct metric_cell *depth; /* of its model, both roles */
};

static struct gw_ticket *ticket_of(struct queue_item *it)
{
	return CGN_CONTAINER(it, struct gw_ticket, item);
}

static cgn_nsec now_of(const struct gw_admission *g)
{
	return cgn_loop_now(g->loop);
}

/* ---- lanes ---- */

static struct queue_rules rules_of(const struct gw_admission *g)
{
	return (struct queue_rules){g->r->rules->queue_policy, g->r->rules->max_queue};
}

static struct admission_queue *lane_new(struct gw_admission *g, const struct gw_ticket *t)
{
	struct queue_rules rules = rules_of(g);
	struct admission_queue *l = calloc(1, sizeof *l);
	if (l == NULL || (l->model = cgn_str_dupz(t->model)) == NULL ||
		!cgn_ok(queue_new(&rules, &l->queue, NULL))) {
		if (l != NULL)
			free(l->model);
		free(l);
		return NULL;
	}
	cgn_list_init(&l->retries);
	l->cell = route_hash(t->model.p, t->model.n) % ADMISSION_BUCKETS;
	l->role = t->role;
	l->depth = METRIC_OF(QUEUE_DEPTH, l->model);
	cgn_list_push(&g->lanes, &l->link);
	return l;
}

/* Models are known ones, so they are few; a scan beats hashing. */
static struct admission_queue *lane_of(struct gw_admission *g, const struct gw_ticket *t)
{
	cgn_list_each (k, &g->lanes) {
		struct admission_queue *l = CGN_CONTAINER(k, struct admission_queue, link);
		if (l->role == t->role && cgn_str_is(t->model, l->model))
			return l;
	}
	return lane_new(g, t);
}

static void lane_free(struct admission_queue *l)
{
	cgn_list_drop(&l->link);
	queue_free(&l->queue);
	free(l->model);
	free(l);
}

static size_t lane_len(const struct admission_queue *l)
{
	return queue_len(l->queue) + l->n_retries;
}

/* After its queue changed. */
static void lane_look(struct gw_admission *g, struct admission_queue *l)
{
	cgn_nsec now = now_of(g);
	size_t n = lane_len(l);
	if (n == 0)
		queue_rate_stop(&l->pace, now);
	else
		queue_rate_start(&l->pace, now);
	cgn_nsec wait = queue_rate_time(&l->pace, n + 1, now) / CGN_MSEC;
	atomic_store_explicit(&g->wait_ms[l->cell], wait < UINT32_MAX ? (uint32_t)wait : UINT32_MAX,
		memory_order_relaxed);
	if (n > 0)
		l->idle_since = 0;
	else if (l->idle_since == 0)
		l->idle_since = now;
	if (n > 0 && g->poll.at == 0)
		cgn_timer_set(&g->poll, POLL);
}

static const struct view_model *model_of(const struct gw_admission *g, const struct admission_queue *l)
{
	return view_model_find(g->r->view, cgn_str_of(l->model));
}

/* ---- verdicts ---- */

/* The queue's reference goes with the post. */
static void answer(struct gw_ticket *t, enum admission_verdict verdict, unsigned retry_after)
{
	t->verdict = verdict;
	t->retry_after = retry_after;
	t->lane = NULL;
	cgn_loop_post(t->w->loop, &t->answer, gw_ticket_on_answer);
}

static void entered(struct gw_admission *g, struct admission_queue *l)
{
	metric_shift(l->depth, 1);
	lane_look(g, l);
}

static void left(struct gw_admission *g, struct admission_queue *l)
{
	metric_shift(l->depth, -1);
	lane_look(g, l);
}

static unsigned drained_in(const struct gw_admission *g, const struct admission_queue *l)
{
	return admission_retry_after(queue_rate_time(&l->pace, lane_len(l), now_of(g)));
}

/* It could be met once all is done that is before it now; never, if even that would not help. */
static unsigned met_in(const struct gw_ticket *t, cgn_nsec wait)
{
	return t->item.need > t->objective ? 0 : admission_retry_after(wait);
}

static void let_in(struct gw_admission *g, struct admission_queue *l, struct gw_ticket *t, uint16_t slot)
{
	g->reserved[slot]++;
	t->slot = slot;
	queue_rate_count(&l->pace, now_of(g));
	answer(t, ADMISSION_ADMITTED, 0);
}

/* ---- room ---- */

/* What waits for a probe takes one, however much it could hold. */
static uint32_t room_of(const struct gw_admission *g, const struct route_cand *c)
{
	uint32_t reserved = g->reserved[c->slot];
	uint32_t room =
		route_room(g->r->rules->route.max_inflight, c->width, c->inflight + reserved, c->others);
	uint64_t word = atomic_load_explicit(&g->r->cluster->cells[c->slot].breaker, memory_order_relaxed);
	if (room > 0 && breaker_gate(word, now_of(g)) == BREAKER_PROBE)
		return reserved == 0;
	return room;
}

/* The node with the most of it, of those that the chooser would take for |role| and where |t| (NULL: anybody)
 * was not yet. False: none. */
static bool room_find(struct gw_admission *g, const struct admission_queue *l, const struct gw_ticket *t,
	uint16_t *slot)
{
	const struct view_model *m = model_of(g, l);
	const struct view_ask ask = {.excluded = t != NULL ? t->excluded : NULL,
		.n_excluded = t != NULL ? t->n_excluded : 0,
		.now = now_of(g)};
	uint32_t most = 0;
	size_t n = m != NULL ? view_candidates(m, g->r->cluster->cells, &ask, g->cands) : 0;
	n = chooser_roles(&(struct choose_ask){.embeds = l->role == ADMISSION_PROMPT_ONLY}, g->cands, n);
	for (size_t i = 0; i < n; i++) {
		const struct route_cand *c = &g->cands[i];
		uint32_t room = room_of(g, c);
		if (room <= most)
			continue;
		most = room;
		*slot = c->slot;
	}
	return most > 0;
}

static void retry_put(struct admission_queue *l, struct gw_ticket *t)
{
	t->retries = true;
	cgn_list_push(&l->retries, &t->retry);
	l->n_retries++;
}

static void retry_drop(struct admission_queue *l, struct gw_ticket *t)
{
	t->retries = false;
	cgn_list_drop(&t->retry);
	l->n_retries--;
}

static bool retries_serve(struct gw_admission *g, struct admission_queue *l)
{
	uint16_t slot = 0;
	cgn_list_each (k, &l->retries) {
		struct gw_ticket *t = CGN_CONTAINER(k, struct gw_ticket, retry);
		if (now_of(g) < t->not_before || !room_find(g, l, t, &slot))
			continue;
		retry_drop(l, t);
		let_in(g, l, t, slot);
		left(g, l);
		return true;
	}
	return false;
}

/* One of the lane, if there is room for it. False: nothing to do there. */
static bool lane_serve(struct gw_admission *g, struct admission_queue *l)
{
	struct queue_item *it = NULL;
	uint16_t slot = 0;
	if (l->n_retries > 0 && retries_serve(g, l))
		return true;
	if (queue_len(l->queue) == 0 || now_of(g) < l->not_before || !room_find(g, l, NULL, &slot))
		return false;
	enum queue_take got = queue_take(l->queue, now_of(g), &it);
	if (got == QUEUE_NONE)
		return false;
	struct gw_ticket *t = ticket_of(it);
	if (got == QUEUE_GO)
		let_in(g, l, t, slot);
	else
		answer(t, ADMISSION_UNMEETABLE,
			met_in(t, queue_rate_time(&l->pace, lane_len(l) + 1, now_of(g))));
	left(g, l);
	return true;
}

/* Each lane in turn, so that models and roles that share nodes share their room. */
static void serve(struct gw_admission *g)
{
	for (bool any = true; any;) {
		any = false;
		cgn_list_each (k, &g->lanes)
			any |= lane_serve(g, CGN_CONTAINER(k, struct admission_queue, link));
	}
	struct cgn_link *first = cgn_list_first(&g->lanes);
	if (first != NULL) { /* the last place of a moment is another's the next time */
		cgn_list_drop(first);
		cgn_list_push(&g->lanes, first);
	}
}

/* Any of it, whatever there is room for; NULL: it is empty. */
static struct gw_ticket *lane_pull(struct gw_admission *g, struct admission_queue *l)
{
	struct queue_item *it = NULL;
	if (l->n_retries > 0) {
		struct gw_ticket *t = CGN_CONTAINER(l->retries.next, struct gw_ticket, retry);
		retry_drop(l, t);
		return t;
	}
	return queue_take(l->queue, now_of(g), &it) != QUEUE_NONE ? ticket_of(it) : NULL;
}

/* All of them get the same. */
static void lane_clear(struct gw_admission *g, struct admission_queue *l, enum admission_verdict verdict,
	unsigned retry_after)
{
	struct gw_ticket *t;
	while ((t = lane_pull(g, l)) != NULL) {
		answer(t, verdict, retry_after);
		left(g, l);
	}
}

/* A node that is started again is back within a moment: that long its model's requests wait. */
static bool is_abandoned(const struct gw_admission *g, const struct admission_queue *l)
{
	const struct view_model *m = model_of(g, l);
	cgn_nsec last = g->ready_at[l->cell] > g->r->started ? g->ready_at[l->cell] : g->r->started;
	return (m == NULL || m->n_ready == 0) && now_of(g) >= last + g->r->rules->node_wait;
}

static void lane_poll(struct gw_admission *g, struct admission_queue *l)
{
	cgn_nsec now = now_of(g);
	if (lane_len(l) > 0 && g->drain_until != 0 && now >= g->drain_until)
		lane_clear(g, l, ADMISSION_DRAINING, 1);
	if (lane_len(l) > 0 && is_abandoned(g, l))
		lane_clear(g, l, ADMISSION_NO_NODE, ADMISSION_RETRY_NO_NODE);
	lane_look(g, l);
	if (lane_len(l) == 0 && now >= l->idle_since + LANE_IDLE)
		lane_free(l);
}

static void poll(struct cgn_timer *t)
{
	struct gw_admission *g = CGN_CONTAINER(t, struct gw_admission, poll);
	CGN_LIVE(g, GW_ADMISSION_TAG);
	cgn_list_each_safe (k, &g->lanes)
		lane_poll(g, CGN_CONTAINER(k, struct admission_queue, link));
	serve(g);
}

/* ---- tickets ---- */

static void displace(struct gw_admission *g, struct admission_queue *l, struct queue_item *it)
{
	if (it == NULL)
		return;
	answer(ticket_of(it), ADMISSION_FULL, drained_in(g, l));
	left(g, l);
}

/* What it asks for cannot be met by anybody, as far as is known: it need not wait to learn that. */
static void judge(struct gw_admission *g, struct admission_queue *l, struct gw_ticket *t)
{
	if (t->objective == 0 || !t->measured)
		return;
	if (t->item.need > t->objective && !t->item.firm)
		return; /* a long prompt is served all the same */
	cgn_nsec now = now_of(g),
		 wait = queue_rate_known(&l->pace)
		? queue_rate_time(&l->pace, queue_ahead(l->queue, &t->item) + 1, now)
		: 0;
	/* what the nodes have already goes before all that waits here */
	wait = wait > t->ahead ? wait : t->ahead;
	if (now + wait + t->item.need <= t->item.deadline)
		return;
	queue_drop(l->queue, &t->item);
	answer(t, ADMISSION_UNMEETABLE, met_in(t, wait));
	left(g, l);
}

static void admit(struct gw_admission *g, struct admission_queue *l, struct gw_ticket *t)
{
	struct queue_item *out = NULL;
	t->lane = l;
	if (t->again) {
		g->reserved[t->slot]--;
		queue_rate_uncount(&l->pace, now_of(g));
		*(t->n_excluded > 0 ? &t->not_before : &l->not_before) = now_of(g) + BOUNCE;
	}
	if (t->pause)
		t->not_before = now_of(g) + PAUSE;
	if (t->n_excluded > 0 || t->again) {
		t->again = false;
		if (t->n_excluded > 0)
			retry_put(l, t);
		else
			queue_return(l->queue, &t->item);
		entered(g, l);
		serve(g);
		return;
	}
	if (is_abandoned(g, l)) {
		answer(t, ADMISSION_NO_NODE, ADMISSION_RETRY_NO_NODE);
		return;
	}
	enum queue_put put = queue_put(l->queue, &t->item, &out);
	if (put == QUEUE_FULL || put == QUEUE_NO_MEMORY) {
		answer(t, ADMISSION_FULL, drained_in(g, l));
		return;
	}
	entered(g, l);
	displace(g, l, out);
	serve(g);
	if (queue_has(&t->item))
		judge(g, l, t);
}

void gw_admission_on_enter(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, ask);
	struct gw_admission *g = t->gate;
	CGN_LIVE(t, GW_TICKET_TAG);
	if (g->r == NULL) {
		gw_ticket_unref(t); /* and its worker is gone, too */
		return;
	}
	struct admission_queue *l = lane_of(g, t);
	if (l != NULL) {
		/* once answered it is the worker's, who may be done with it before admit is */
		gw_ticket_ref(t);
		admit(g, l, t);
		gw_ticket_unref(t);
		return;
	}
	if (t->again)
		g->reserved[t->slot]--;
	answer(t, ADMISSION_FULL, 1);
}

void gw_admission_on_leave(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, leave);
	struct admission_queue *l = t->lane;
	CGN_LIVE(t, GW_TICKET_TAG);
	if (t->gate->r != NULL && (queue_has(&t->item) || t->retries)) {
		if (t->retries)
			retry_drop(l, t);
		else
			queue_drop(l->queue, &t->item);
		left(t->gate, l);
		gw_ticket_unref(t); /* the queue's */
	}
	gw_ticket_unref(t);
}

void gw_admission_on_settle(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, settle);
	struct gw_admission *g = t->gate;
	CGN_LIVE(t, GW_TICKET_TAG);
	if (g->r != NULL) {
		CGN_MUST(g->reserved[t->slot] > 0);
		g->reserved[t->slot]--;
		serve(g);
	}
	gw_ticket_unref(t);
}

void gw_admission_on_room(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_admission *g = CGN_CONTAINER(p, struct gw_admission, room);
	CGN_LIVE(g, GW_ADMISSION_TAG);
	atomic_store(&g->room_posted, false); /* before looking: what ends from now on posts again */
	if (g->r != NULL)
		serve(g);
	gw_admission_unref(&g);
}

/* ---- the router's ---- */

CGN_RC router_admission_open(struct router *r, struct cgn_err *err)
{
	struct gw_admission *g = calloc(1, sizeof *g);
	if (g == NULL)
		return CGN_FAIL(err, NO_MEMORY, "the queue: out of memory");
	g->tag = GW_ADMISSION_TAG;
	atomic_init(&g->refs, 1);
	g->loop = r->loop;
	g->r = r;
	cgn_list_init(&g->lanes);
	cgn_timer_init(&g->poll, r->loop, poll);
	r->shared.gate = g;
	return CGN_OK;
}

/* Workers are gone: what waited has posted that it leaves, and that is still to come. */
void router_admission_close(struct router *r)
{
	struct gw_admission *g = r->shared.gate;
	if (g == NULL)
		return;
	CGN_LIVE(g, GW_ADMISSION_TAG);
	cgn_timer_cancel(&g->poll);
	while (!cgn_list_empty(&g->lanes)) {
		struct admission_queue *l =
			CGN_CONTAINER(cgn_list_first(&g->lanes), struct admission_queue, link);
		for (struct gw_ticket *t; (t = lane_pull(g, l)) != NULL;)
			gw_ticket_unref(t); /* the queue's */
		lane_free(l);
	}
	g->r = NULL;
	gw_admission_unref(&r->shared.gate);
}

void router_admission_see(struct router *r)
{
	struct gw_admission *g = r->shared.gate;
	cgn_nsec now = cgn_loop_now(r->loop);
	for (size_t i = 0; g != NULL && i < r->view->n_models; i++) {
		const struct view_model *m = &r->view->models[i];
		if (m->n_ready > 0)
			g->ready_at[route_hash(m->name.p, m->name.n) % ADMISSION_BUCKETS] = now;
	}
}

void router_admission_serve(struct router *r)
{
	if (r->shared.gate != NULL && !cgn_list_empty(&r->shared.gate->lanes))
		serve(r->shared.gate);
}

void router_admission_tune(struct router *r)
{
	struct gw_admission *g = r->shared.gate;
	if (g == NULL)
		return;
	struct queue_rules rules = rules_of(g);
	cgn_list_each (k, &g->lanes)
		queue_tune(CGN_CONTAINER(k, struct admission_queue, link)->queue, &rules);
	serve(g);
}

void router_admission_drain(struct router *r)
{
	struct gw_admission *g = r->shared.gate;
	/* who waits is served as long as there is time for an answer, and told to go elsewhere then */
	if (g != NULL)
		g->drain_until = now_of(g) + r->cfg->router.drain_timeout / 2 + 1;
}

size_t router_admission_depth(const struct router *r, struct cgn_str model)
{
	size_t n = 0;
	if (r->shared.gate != NULL)
		cgn_list_each (k, &r->shared.gate->lanes) {
			const struct admission_queue *l = CGN_CONTAINER(k, struct admission_queue, link);
			n += cgn_str_is(model, l->model) ? lane_len(l) : 0;
		}
	return n;
}

/* ---- /queue ---- */

struct show {
	struct json_out *j;
	cgn_nsec now;
};

static void put_share(void *user, const struct queue_share *s)
{
	struct show *show = user;
	json_open(show->j, '{');
	json_key(show->j, "tenant");
	json_put_str(show->j, s->tenant);
	json_key_u64(show->j, "priority", s->priority);
	json_key_u64(show->j, "requests", s->items);
	json_key_u64(show->j, "tokens", s->tokens);
	json_key_u64(show->j, "oldest_ms", show->now > s->oldest ? (show->now - s->oldest) / CGN_MSEC : 0);
	json_close(show->j, '}');
}

static void put_lane(struct show *show, const struct admission_queue *l)
{
	json_open(show->j, '{');
	json_key(show->j, "model");
	json_put_z(show->j, l->model);
	json_key(show->j, "role");
	json_put_z(show->j, admission_role_text(l->role));
	json_key_u64(show->j, "requests", lane_len(l));
	json_key_u64(show->j, "retries", l->n_retries);
	json_key_u64(show->j, "tokens", queue_tokens(l->queue));
	json_key_u64(show->j, "wait_ms", queue_rate_time(&l->pace, lane_len(l) + 1, show->now) / CGN_MSEC);
	json_key(show->j, "tenants");
	json_open(show->j, '[');
	queue_each(l->queue, put_share, show);
	json_close(show->j, ']');
	json_close(show->j, '}');
}

void router_admin_queue(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	struct show show = {&j, cgn_loop_now(r->loop)};
	json_open(&j, '{');
	json_key_u64(&j, "max_queue", r->rules->max_queue);
	json_key(&j, "queues");
	json_open(&j, '[');
	if (r->shared.gate != NULL)
		cgn_list_each (k, &r->shared.gate->lanes)
			put_lane(&show, CGN_CONTAINER(k, struct admission_queue, link));
	json_close(&j, ']');
	json_close(&j, '}');
}
