/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets around policy/kv/kvsource: perform its orders and report messages and connections to it. */
#include "joint/node/enginefeed/enginefeed.h"

#include <stdlib.h>
#include <string.h>

#include "base/log/log.h"
#include "io/wire/zmtp/zmtp.h"
#include "joint/report/telemetry/telemetry.h"

#define FEED_TAG     0xfeed5001U
#define RANK_TAG     0xfeed5002U
#define NUMBER_BYTES 8

/* Metrics of the source's counters. */
static const struct {
	enum metric_joint_id id;
	const char *kind; /* Value of the second label; NULL: the metric has one label */
	size_t offset;
} counted[] = {
	{METRIC_KV_EVENTS, "stored", offsetof(struct kvsource_stats, stored)},
	{METRIC_KV_EVENTS, "removed", offsetof(struct kvsource_stats, removed)},
	{METRIC_KV_EVENTS, "cleared", offsetof(struct kvsource_stats, cleared)},
	{METRIC_KV_EVENTS, "orphan", offsetof(struct kvsource_stats, orphans)},
	{METRIC_KV_EVENTS, "unknown", offsetof(struct kvsource_stats, unknown_events)},
	{METRIC_KV_EVENT_GAPS, NULL, offsetof(struct kvsource_stats, gaps)},
	{METRIC_KV_EVENT_ERRORS, NULL, offsetof(struct kvsource_stats, errors)},
	{METRIC_KV_EVENT_REPLAYS, "ordered", offsetof(struct kvsource_stats, replays)},
	{METRIC_KV_EVENT_REPLAYS, "failed", offsetof(struct kvsource_stats, replay_failures)},
	{METRIC_KV_EVENT_RESTARTS, NULL, offsetof(struct kvsource_stats, restarts)},
};

struct rank {
	uint32_t tag;
	struct enginefeed *feed;
	uint32_t number;
	char label[12];
	struct kvsource *source;
	struct zmtp *events, *replay;
	char replay_endpoint[300];
	uint64_t replay_from;
	struct cgn_timer wake;
	struct kvsource_stats told;
	enum kvsource_state told_state;
	char told_why[200];
	bool frames_told; /* A malformed event was logged, once for each connection */
	struct metric_cell *cells[CGN_COUNT(counted)], *states[KVSOURCE_STATES], *blocks;
};

struct enginefeed {
	uint32_t tag;
	struct telemetry *telemetry;
	struct cgn_loop *loop;
	char name[65];
	void (*changed)(void *user);
	void *user;
	struct cgn_hook hook; /* Calls |changed| at the end of the turn */
	uint32_t n_ranks;
	struct rank ranks[];
};

static void rank_step(struct rank *r, const struct kvsource_input *in);

/* ---- endpoints ---- */

static CGN_RC endpoint_of(const char *base, uint32_t rank, char *out, size_t cap, struct cgn_err *err)
{
	const char *colon = strrchr(base, ':');
	uint64_t port = 0;
	int n;
	CGN_TRY(zmtp_endpoint_check(base, err));
	bool tcp =
		strncmp(base, "tcp://", 6) == 0 && colon != NULL && cgn_str_u64(cgn_str_of(colon + 1), &port);
	if (rank == 0)
		n = snprintf(out, cap, "%s", base);
	else if (tcp)
		n = snprintf(out, cap, "%.*s:%llu", (int)(colon - base), base,
			(unsigned long long)(port + rank));
	else
		n = snprintf(out, cap, "%s_dp%u", base, rank);
	if (n < 0 || (size_t)n >= cap || port + rank > 65535 || (tcp && port == 0) ||
		strncmp(base, "tcp://*", 7) == 0)
		return CGN_FAIL(err, INVALID, "\"%.200s\" is not an endpoint to connect to for rank %u", base,
			rank);
	return CGN_OK;
}

CGN_RC enginefeed_check(const struct enginefeed_cfg *cfg, struct cgn_err *err)
{
	char text[300];
	if (cfg->ranks == 0 || cfg->ranks > ENGINEFEED_MAX_RANKS)
		return CGN_FAIL(err, INVALID, "%u ranks: 1 to %d", cfg->ranks, ENGINEFEED_MAX_RANKS);
	if (cfg->topic.n > ZMTP_MAX_TOPIC)
		return CGN_FAIL(err, INVALID, "a topic of %zu bytes: at most %d", cfg->topic.n,
			ZMTP_MAX_TOPIC);
	CGN_TRY(endpoint_of(cfg->events, cfg->ranks - 1, text, sizeof text, err));
	return cfg->replay == NULL ? CGN_OK
				   : endpoint_of(cfg->replay, cfg->ranks - 1, text, sizeof text, err);
}

/* ---- metrics and log ---- */

static void rank_count(struct rank *r, const struct kvsource_stats *now)
{
	for (size_t i = 0; i < CGN_COUNT(counted); i++) {
		uint64_t before, after;
		memcpy(&before, (const char *)&r->told + counted[i].offset, sizeof before);
		memcpy(&after, (const char *)now + counted[i].offset, sizeof after);
		if (after > before)
			metric_add(r->cells[i], after - before);
	}
	metric_set(r->blocks, (double)now->blocks);
	r->told = *now;
}

static void log_state(const struct rank *r, enum kvsource_state state, const char *why)
{
	const char *name = kvsource_state_name(state);
	if (state == KVSOURCE_DEMOTED || (state == KVSOURCE_PARTIAL && r->told.replay_failures > 0))
		cgn_log(WARN, "kv_events.state", F_STR("engine", r->feed->name), F_U64("rank", r->number),
			F_STR("state", name), F_STR("why", why));
	else
		cgn_log(INFO, "kv_events.state", F_STR("engine", r->feed->name), F_U64("rank", r->number),
			F_STR("state", name), F_STR("why", why), F_U64("next", r->told.next_seq),
			F_U64("blocks", r->told.blocks));
}

static void rank_report(struct rank *r)
{
	struct kvsource_stats now = kvsource_stats(r->source);
	enum kvsource_state state = kvsource_state(r->source);
	const char *why = kvsource_why(r->source);
	bool keeps_changed = now.keeps != r->told.keeps;
	rank_count(r, &now);
	if (state == r->told_state && strcmp(why, r->told_why) == 0 && !keeps_changed)
		return;
	if (state != r->told_state || strcmp(why, r->told_why) != 0)
		log_state(r, state, why);
	metric_set(r->states[r->told_state], 0);
	metric_set(r->states[state], 1);
	r->told_state = state;
	(void)cgn_str_copyz(r->told_why, sizeof r->told_why, cgn_str_of(why));
	cgn_loop_defer(r->feed->loop, &r->feed->hook);
}

static void on_hook(struct cgn_hook *h)
{
	struct enginefeed *f = CGN_CONTAINER(h, struct enginefeed, hook);
	CGN_LIVE(f, FEED_TAG);
	f->changed(f->user);
}

/* ---- frames ---- */

static uint64_t number_of(struct cgn_str s)
{
	uint64_t v = 0;
	for (size_t i = 0; i < NUMBER_BYTES; i++)
		v = v << 8 | (uint8_t)s.p[i];
	return v;
}

/* Read the last two frames: a number and a batch. */
static bool read_frames(struct rank *r, const struct cgn_str *parts, size_t n, struct kvsource_input *in)
{
	if (n >= 2 && parts[n - 2].n == NUMBER_BYTES) {
		in->seq = number_of(parts[n - 2]);
		in->payload = parts[n - 1];
		return true;
	}
	if (!r->frames_told)
		cgn_log_limited(WARN, "kv_events.no_event", F_STR("engine", r->feed->name),
			F_U64("rank", r->number), F_U64("frames", n),
			F_STR("then",
				"messages other than topic, number of 8 bytes, batch are passed over; is this the right endpoint?"));
	r->frames_told = true;
	return false;
}

/* ---- replays: each has its own connection, so that answers are not mixed ---- */

static void on_replay_message(struct zmtp *z, void *user, uint64_t peer, const struct cgn_str *parts,
	size_t n)
{
	struct rank *r = user;
	struct kvsource_input in = {.type = KVSOURCE_IN_REPLAYED};
	(void)z;
	(void)peer;
	CGN_LIVE(r, RANK_TAG);
	if (!read_frames(r, parts, n, &in))
		return;
	if (in.seq == UINT64_MAX) {
		zmtp_close(&r->replay);
		in = (struct kvsource_input){.type = KVSOURCE_IN_REPLAY_END};
	}
	rank_step(r, &in);
}

static void ask_replay(struct rank *r)
{
	uint8_t number[NUMBER_BYTES];
	for (unsigned i = 0; i < NUMBER_BYTES; i++)
		number[i] = (uint8_t)(r->replay_from >> (56 - 8 * i));
	const struct cgn_str parts[] = {CGN_STR(""), {(const char *)number, sizeof number}};
	/* A new connection has room for the message. If not, the replay times out. */
	(void)zmtp_send(r->replay, parts, 2).code;
}

static void on_replay_link(struct zmtp *z, void *user, uint64_t peer, enum zmtp_link what, const char *why)
{
	struct rank *r = user;
	(void)z;
	(void)peer;
	CGN_LIVE(r, RANK_TAG);
	if (what == ZMTP_CONNECTED) {
		ask_replay(r);
	} else if (what == ZMTP_DISCONNECTED) {
		const struct kvsource_input in = {.type = KVSOURCE_IN_REPLAY_FAILED, .why = why};
		zmtp_close(&r->replay);
		rank_step(r, &in);
	}
}

static const struct zmtp_ops replay_ops = {.on_message = on_replay_message, .on_link = on_replay_link};

/* A socket that can't be opened ends as a replay without an answer. */
static void begin_replay(struct rank *r, uint64_t from)
{
	const struct zmtp_cfg cfg = {.kind = ZMTP_DEALER, .endpoint = r->replay_endpoint};
	struct cgn_err err = {0};
	zmtp_close(&r->replay);
	r->replay_from = from;
	if (!cgn_ok(zmtp_open(r->feed->loop, &cfg, &replay_ops, r, &r->replay, &err)))
		cgn_log(WARN, "kv_events.replay", F_STR("engine", r->feed->name), F_U64("rank", r->number),
			F_STR("why", err.msg));
}

/* ---- the source ---- */

static void rank_step(struct rank *r, const struct kvsource_input *in)
{
	struct kvsource_orders o;
	cgn_nsec now = cgn_loop_now(r->feed->loop);
	kvsource_step(r->source, in, now, &o);
	if (o.unparsable)
		cgn_log_limited(WARN, "kv_events.unparsable", F_STR("engine", r->feed->name),
			F_U64("rank", r->number), F_STR("why", kvsource_why(r->source)),
			F_STR("head", o.head), F_STR("then", "its events are not used for 30 s"));
	if (o.replay)
		begin_replay(r, o.replay_from);
	else if (o.cancel_replay)
		zmtp_close(&r->replay);
	if (o.wake_at != 0)
		cgn_timer_set(&r->wake, o.wake_at > now ? o.wake_at - now : 0);
	else
		cgn_timer_cancel(&r->wake);
	rank_report(r);
}

static void on_wake(struct cgn_timer *t)
{
	struct rank *r = CGN_CONTAINER(t, struct rank, wake);
	const struct kvsource_input in = {.type = KVSOURCE_IN_TICK};
	CGN_LIVE(r, RANK_TAG);
	rank_step(r, &in);
}

static void on_event(struct zmtp *z, void *user, uint64_t peer, const struct cgn_str *parts, size_t n)
{
	struct rank *r = user;
	struct kvsource_input in = {.type = KVSOURCE_IN_LIVE};
	(void)z;
	(void)peer;
	CGN_LIVE(r, RANK_TAG);
	if (read_frames(r, parts, n, &in))
		rank_step(r, &in);
}

static void on_link(struct zmtp *z, void *user, uint64_t peer, enum zmtp_link what, const char *why)
{
	struct rank *r = user;
	(void)z;
	(void)peer;
	CGN_LIVE(r, RANK_TAG);
	if (what == ZMTP_RETRYING)
		return; /* The state is "waiting" already */
	cgn_log(INFO, "kv_events.link", F_STR("engine", r->feed->name), F_U64("rank", r->number),
		F_STR("is", what == ZMTP_CONNECTED ? "connected" : "lost"), F_STR("why", why));
	r->frames_told = false;
	const struct kvsource_input in = {
		.type = what == ZMTP_CONNECTED ? KVSOURCE_IN_CONNECTED : KVSOURCE_IN_DISCONNECTED};
	rank_step(r, &in);
}

static const struct zmtp_ops event_ops = {.on_message = on_event, .on_link = on_link};

/* ---- open and close ---- */

static void rank_get_metrics(struct rank *r)
{
	struct telemetry *t = r->feed->telemetry;
	const char *engine = r->feed->name;
	for (size_t i = 0; i < CGN_COUNT(counted); i++) {
		const char *labels[] = {engine, counted[i].kind};
		r->cells[i] = metric_get(t, counted[i].id, labels, counted[i].kind != NULL ? 2 : 1);
	}
	for (unsigned i = 0; i < KVSOURCE_STATES; i++) {
		r->states[i] = METRIC_OF(t, KV_SOURCE_STATE, engine, r->label,
			kvsource_state_name((enum kvsource_state)i));
		metric_set(r->states[i], i == KVSOURCE_WAITING);
	}
	r->blocks = METRIC_OF(t, KV_SOURCE_BLOCKS, engine, r->label);
}

static CGN_RC open_rank(struct enginefeed *f, const struct enginefeed_cfg *cfg, uint32_t number,
	struct holdings *h, struct cgn_err *err)
{
	struct rank *r = &f->ranks[number];
	struct kvsource_cfg source = cfg->source;
	char endpoint[300];
	*r = (struct rank){.tag = RANK_TAG, .feed = f, .number = number};
	f->n_ranks++;
	(void)snprintf(r->label, sizeof r->label, "%u", number);
	(void)cgn_str_copyz(r->told_why, sizeof r->told_why, CGN_STR("not connected"));
	cgn_timer_init(&r->wake, f->loop, on_wake);
	source.can_replay = cfg->replay != NULL;
	CGN_TRY(endpoint_of(cfg->events, number, endpoint, sizeof endpoint, err));
	if (cfg->replay != NULL)
		CGN_TRY(endpoint_of(cfg->replay, number, r->replay_endpoint, sizeof r->replay_endpoint, err));
	CGN_TRY(kvsource_new(&source, h, &r->source, err));
	rank_get_metrics(r);
	const struct zmtp_cfg z = {.kind = ZMTP_SUB, .endpoint = endpoint, .topic = cfg->topic};
	return zmtp_open(f->loop, &z, &event_ops, r, &r->events, err);
}

CGN_RC enginefeed_open(struct cgn_loop *l, const struct enginefeed_cfg *cfg, struct holdings *h,
	void (*changed)(void *user), void *user, struct enginefeed **out, struct cgn_err *err)
{
	CGN_TRY(enginefeed_check(cfg, err));
	struct enginefeed *f = cgn_zeroed(1, sizeof *f + cfg->ranks * sizeof f->ranks[0], CGN_HERE);
	f->tag = FEED_TAG;
	f->loop = l;
	f->telemetry = cfg->telemetry;
	f->changed = changed;
	f->user = user;
	(void)cgn_str_copyz(f->name, sizeof f->name, cgn_str_of(cfg->name));
	cgn_hook_init(&f->hook, on_hook);
	for (uint32_t i = 0; i < cfg->ranks; i++) {
		cgn_rc rc = open_rank(f, cfg, i, h, err);
		if (!cgn_ok(rc)) {
			enginefeed_close(&f);
			return rc;
		}
	}
	*out = f;
	return CGN_OK;
}

void enginefeed_close(struct enginefeed **take)
{
	struct enginefeed *f = CGN_TAKE_LIVE(take, FEED_TAG);
	if (f == NULL)
		return;
	for (uint32_t i = 0; i < f->n_ranks; i++) {
		struct rank *r = &f->ranks[i];
		cgn_timer_cancel(&r->wake);
		zmtp_close(&r->events);
		zmtp_close(&r->replay);
		kvsource_free(&r->source);
		r->tag = 0;
	}
	metric_forget(f->telemetry, METRIC_KV_SOURCE_STATE, "engine", f->name);
	metric_forget(f->telemetry, METRIC_KV_SOURCE_BLOCKS, "engine", f->name);
	cgn_hook_drop(&f->hook);
	f->tag = 0;
	free(f);
}

uint32_t enginefeed_ranks(const struct enginefeed *f)
{
	CGN_LIVE(f, FEED_TAG);
	return f->n_ranks;
}

struct enginefeed_rank enginefeed_rank(const struct enginefeed *f, uint32_t rank)
{
	CGN_LIVE(f, FEED_TAG);
	CGN_MUST(rank < f->n_ranks);
	const struct kvsource *s = f->ranks[rank].source;
	return (struct enginefeed_rank){.state = kvsource_state(s),
		.why = kvsource_why(s),
		.stats = kvsource_stats(s)};
}
