/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/events/publisher.h"

#include <stdlib.h>

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "io/wire/zmtp/zmtp.h"

#define PUBLISHER_TAG 0x51b90b11U
#define GARBAGE_MAX   256

struct batch {
	uint64_t number;
	char *p; /* Owned. */
	size_t n;
};

struct sim_publisher {
	uint32_t tag;
	struct sim_publisher_cfg cfg;
	struct sim_events *events;
	struct sim_faults *faults;
	struct zmtp *pub, *router;
	uint64_t next;
	struct batch *kept; /* Ring of cfg.buffer batches. */
	uint32_t first, n_kept;
	size_t kept_bytes;
	struct batch held; /* Batch to be published behind the next one; p == NULL: none. */
	struct cgn_buf scratch;
	uint64_t rng;
};

CGN_RC sim_endpoint_check(const char *endpoint, struct cgn_err *err)
{
	return zmtp_endpoint_check(endpoint, err);
}

/* Write the endpoint that |rank| binds into |out|. */
static CGN_RC endpoint_of(const char *base, unsigned rank, char out[300], struct cgn_err *err)
{
	const char *colon = strrchr(base, ':');
	uint64_t port = 0;
	CGN_TRY(zmtp_endpoint_check(base, err));
	bool tcp =
		strncmp(base, "tcp://", 6) == 0 && colon != NULL && cgn_str_u64(cgn_str_of(colon + 1), &port);
	int n = 0;
	if (rank == 0 || (tcp && port == 0))
		n = snprintf(out, 300, "%s", base);
	else if (tcp)
		n = snprintf(out, 300, "%.*s:%llu", (int)(colon - base), base,
			(unsigned long long)(port + rank));
	else
		n = snprintf(out, 300, "%s_dp%u", base, rank);
	if (n >= 300 || port + rank > 65535)
		return CGN_FAIL(err, INVALID, "\"%.200s\": no endpoint for rank %u", base, rank);
	return CGN_OK;
}

static void batch_free(struct batch *b)
{
	free(b->p);
	*b = (struct batch){0};
}

static void batch_copy(struct batch *to, uint64_t number, struct cgn_str bytes)
{
	*to = (struct batch){number, CGN_NEW_ARRAY(char, bytes.n), bytes.n};
	memcpy(to->p, bytes.p, bytes.n);
}

static void drop_oldest(struct sim_publisher *p)
{
	struct batch *b = &p->kept[p->first];
	p->kept_bytes -= b->n;
	batch_free(b);
	p->first = (p->first + 1) % p->cfg.buffer;
	p->n_kept--;
}

static void keep_batch(struct sim_publisher *p, uint64_t number, struct cgn_str bytes)
{
	while (p->n_kept > 0 && (p->n_kept == p->cfg.buffer || p->kept_bytes + bytes.n > SIM_REPLAY_BYTES))
		drop_oldest(p);
	struct batch *b = &p->kept[(p->first + p->n_kept) % p->cfg.buffer];
	batch_copy(b, number, bytes);
	p->n_kept++;
	p->kept_bytes += b->n;
}

static struct cgn_str number_bytes(uint64_t number, uint8_t out[8])
{
	for (unsigned i = 0; i < 8; i++)
		out[i] = (uint8_t)(number >> (56 - 8 * i));
	return (struct cgn_str){(const char *)out, 8};
}

static bool replay_one(struct sim_publisher *p, uint64_t peer, struct cgn_str topic, uint64_t number,
	struct cgn_str bytes)
{
	uint8_t raw[8];
	struct cgn_str parts[4] = {CGN_STR("")};
	size_t n = 1;
	if (p->cfg.replay_topic)
		parts[n++] = topic;
	parts[n++] = number_bytes(number, raw);
	parts[n++] = bytes;
	return cgn_ok(zmtp_send_to(p->router, peer, parts, n));
}

static void answer_replay(struct sim_publisher *p, uint64_t peer, uint64_t from)
{
	bool sent = true;
	for (uint32_t i = 0; i < p->n_kept && sent; i++) {
		const struct batch *b = &p->kept[(p->first + i) % p->cfg.buffer];
		if (b->number >= from)
			sent = replay_one(p, peer, cgn_str_of(p->cfg.topic), b->number,
				(struct cgn_str){b->p, b->n});
	}
	if (sent)
		sent = replay_one(p, peer, CGN_STR(""), UINT64_MAX, CGN_STR(""));
	if (!sent)
		cgn_log(WARN, "sim.replay_cut", F_U64("rank", p->cfg.rank), F_U64("from", from));
}

static void on_replay(struct zmtp *s, void *user, uint64_t peer, const struct cgn_str *parts, size_t n)
{
	(void)s;
	struct sim_publisher *p = user;
	CGN_LIVE(p, PUBLISHER_TAG);
	if (n != 2 || parts[0].n != 0 || parts[1].n != 8) {
		cgn_log(WARN, "sim.bad_replay_request", F_U64("rank", p->cfg.rank), F_U64("parts", n));
		return;
	}
	uint64_t from = 0;
	for (unsigned i = 0; i < 8; i++)
		from = from << 8 | (uint8_t)parts[1].p[i];
	if (!sim_faults_ignore_replay(p->faults))
		answer_replay(p, peer, from);
}

static CGN_RC bind_one(struct sim_publisher *p, struct cgn_loop *l, enum zmtp_kind kind, const char *base,
	struct zmtp **out, struct cgn_err *err)
{
	static const struct zmtp_ops ops = {.on_message = on_replay};
	char endpoint[300];
	CGN_TRY(endpoint_of(base, p->cfg.rank, endpoint, err));
	const struct zmtp_cfg cfg = {.kind = kind,
		.endpoint = endpoint,
		.bind = true,
		.queue = SIM_REPLAY_BYTES};
	return zmtp_open(l, &cfg, &ops, p, out, err);
}

static CGN_RC open_sockets(struct sim_publisher *p, struct cgn_loop *l, struct cgn_err *err)
{
	CGN_TRY(bind_one(p, l, ZMTP_PUB, p->cfg.endpoint, &p->pub, err));
	if (p->cfg.replay[0] == '\0')
		return CGN_OK;
	return bind_one(p, l, ZMTP_ROUTER, p->cfg.replay, &p->router, err);
}

CGN_RC sim_publisher_new(struct cgn_loop *l, const struct sim_publisher_cfg *cfg, struct sim_events *events,
	struct sim_faults *faults, struct sim_publisher **out, struct cgn_err *err)
{
	CGN_MUST(cfg->buffer > 0);
	CGN_ON_EXIT(sim_publisher_free) struct sim_publisher *p = CGN_NEW(struct sim_publisher);
	*p = (struct sim_publisher){.tag = PUBLISHER_TAG,
		.cfg = *cfg,
		.events = events,
		.faults = faults,
		.kept = CGN_NEW_ARRAY(struct batch, cfg->buffer)};
	CGN_TRY(open_sockets(p, l, err));
	*out = CGN_TAKE(&p);
	return CGN_OK;
}

static void forget_kept(struct sim_publisher *p)
{
	while (p->n_kept > 0)
		drop_oldest(p);
	batch_free(&p->held);
}

void sim_publisher_free(struct sim_publisher **take)
{
	struct sim_publisher *p = CGN_TAKE_LIVE(take, PUBLISHER_TAG);
	if (p == NULL)
		return;
	zmtp_close(&p->pub);
	zmtp_close(&p->router);
	forget_kept(p);
	cgn_buf_fini(&p->scratch);
	p->tag = 0;
	free(p->kept);
	free(p);
}

/* Send a batch to all subscribers. A subscriber that is too slow misses the batch, as with a real engine. */
static void publish_batch(struct sim_publisher *p, uint64_t number, struct cgn_str bytes)
{
	uint8_t raw[8];
	const struct cgn_str parts[3] = {cgn_str_of(p->cfg.topic), number_bytes(number, raw), bytes};
	(void)!cgn_ok(zmtp_send(p->pub, parts, CGN_COUNT(parts)));
}

static void publish_garbage(struct sim_publisher *p, uint64_t number, size_t n)
{
	char bytes[GARBAGE_MAX];
	n = n < sizeof bytes ? n : sizeof bytes;
	for (size_t i = 0; i < n; i++)
		bytes[i] = (char)((p->rng = mix64(p->rng + 1)) & 0xff);
	bytes[0] = (char)0xc1; /* The only byte that no msgpack value begins with. */
	publish_batch(p, number, (struct cgn_str){bytes, n});
}

static void send_batch(struct sim_publisher *p, const struct sim_batch_verdict *v, uint64_t number,
	struct cgn_str bytes)
{
	struct batch before = p->held;
	p->held = (struct batch){0};
	if (v->swap && before.p == NULL) {
		batch_copy(&p->held, number, bytes);
		return;
	}
	if (v->garbage)
		publish_garbage(p, number, bytes.n);
	else if (!v->lose)
		publish_batch(p, number, bytes);
	if (v->twice)
		publish_batch(p, number, bytes);
	if (before.p != NULL)
		publish_batch(p, before.number, (struct cgn_str){before.p, before.n});
	batch_free(&before);
}

bool sim_publisher_flush(struct sim_publisher *p)
{
	CGN_LIVE(p, PUBLISHER_TAG);
	struct sim_batch_verdict v;
	if (!sim_events_any(p->events))
		return false;
	sim_faults_judge_batch(p->faults, &v);
	if (v.silent) {
		sim_events_drop(p->events);
	} else {
		uint64_t number = p->next++;
		p->scratch.n = 0;
		sim_events_take(p->events, (double)cgn_clock_wall_ms() / 1e3, v.alien, &p->scratch);
		if (p->scratch.bad) {
			cgn_log(ERROR, "sim.batch_lost", F_U64("rank", p->cfg.rank), F_U64("number", number));
			cgn_buf_fini(&p->scratch);
		} else if (!v.drop) {
			keep_batch(p, number, cgn_buf_view(&p->scratch));
			send_batch(p, &v, number, cgn_buf_view(&p->scratch));
		}
	}
	if (!v.restart)
		return false;
	forget_kept(p);
	p->next = 0;
	return true;
}

uint64_t sim_publisher_next(const struct sim_publisher *p)
{
	CGN_LIVE(p, PUBLISHER_TAG);
	return p->next;
}

void sim_publisher_endpoint(const struct sim_publisher *p, bool answer_replay, char out[300])
{
	CGN_LIVE(p, PUBLISHER_TAG);
	const struct zmtp *s = answer_replay ? p->router : p->pub;
	struct cgn_err err;
	out[0] = '\0';
	if (s == NULL ||
		!cgn_ok(endpoint_of(answer_replay ? p->cfg.replay : p->cfg.endpoint, p->cfg.rank, out, &err)))
		return;
	char *colon = strrchr(out, ':');
	if (strncmp(out, "tcp://", 6) == 0 && colon != NULL)
		(void)snprintf(colon, (size_t)(out + 300 - colon), ":%u", zmtp_port(s));
}
