/* SPDX-License-Identifier: Apache-2.0 */
/* summary_ask: ask a peer for its summary. The summary has a connection of its own: a whole set may take seconds, and the
 * heartbeat must not wait for it. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/log/log.h"
#include "base/unlikely/unlikely.h"
#include "base/weburl/weburl.h"
#include "io/wire/webask/webask.h"
#include "joint/web/webclient/webclient.h"
#include "policy/route/peer/bid.h"
#include "router/control/control/summaries.h"
#include "router/shared/peers/peers.h"
#include "router/shared/peers/summaries.h"

#define ASK_TIMEOUT     (30 * CGN_SEC)
#define CONNECT_TIMEOUT CGN_SEC
#define SOON            (250 * CGN_MSEC) /* Until the first set of the peer is made. */
#define REFUSED_PAUSE   (10 * CGN_SEC)

struct router_ask {
	struct router *r;
	struct gw_peer *peer;
	cgn_nsec interval;
	struct http_client *client;
	struct weburl url;
	struct webask *fetch;
	struct cgn_timer timer;
	struct peer_known known[PEER_VIEWS]; /* With a reference. That of the last answer comes first. */
};

static void outcome_count(struct router_ask *a, const char *outcome)
{
	metric_add(METRIC_OF(a->r->shared.telemetry, FED_SUMMARY, a->peer->name, outcome), 1);
}

/* Forget the sets from the |from|-th on. */
static void known_drop(struct router_ask *a, size_t from)
{
	for (size_t i = from; i < PEER_VIEWS; i++) {
		peer_set_unref(&a->known[i].set);
		a->known[i] = (struct peer_known){0};
	}
}

/* Put the set of an answer first, in the place of the |which|-th; PEER_VIEWS: of the one that was named
 * longest ago. */
static void known_put(struct router_ask *a, size_t which, struct peer_known now)
{
	size_t last = which < PEER_VIEWS ? which : PEER_VIEWS - 1;
	peer_set_unref(&a->known[last].set);
	memmove(&a->known[1], &a->known[0], last * sizeof a->known[0]);
	a->known[0] = now;
	peer_set_ref(now.set);
}

/* The peer's summary counts for nothing: its measured time to first token decides. */
static cgn_nsec summary_refuse(struct router_ask *a, const char *why)
{
	struct gw_known *none = NULL;
	outcome_count(a, "refused");
	cgn_log_limited(WARN, "router.summary_refused", F_STR("peer", a->peer->name), F_STR("why", why),
		F_STR("then", "the peer is judged by its measured time to first token, and is asked again"));
	known_drop(a, 0);
	gw_summaries_know(a->peer->summaries, &none);
	return a->interval > REFUSED_PAUSE ? a->interval : REFUSED_PAUSE;
}

/* The two sides have different sets: ask for the whole. Until then the set that is known counts. */
static cgn_nsec summary_diverged(struct router_ask *a, const char *why)
{
	outcome_count(a, "diverged");
	cgn_log_limited(WARN, "router.summary_diverged", F_STR("peer", a->peer->name), F_STR("why", why),
		F_STR("then", "the whole is asked for"));
	known_drop(a, 0);
	return 1;
}

/* Take the answer. Return the time until the next one. */
static cgn_nsec summary_take(struct router_ask *a, struct cgn_str body)
{
	static struct peer_summary s; /* The control loop's; 7 KiB. */
	struct peer_set *set = NULL;
	struct cgn_err err;
	const struct peer_known nothing = {0};
	size_t which = peer_summary_which(body, a->known, PEER_VIEWS, &s);
	cgn_rc rc = peer_summary_get(body, which < PEER_VIEWS ? &a->known[which] : &nothing, &s, &set, &err);
	if (rc.code == CGN_CONFLICT && s.base != 0)
		return summary_diverged(a, err.msg);
	if (!cgn_ok(rc))
		return summary_refuse(a, err.msg);
	if (s.generation != 0)
		known_put(a, which, (struct peer_known){set, s.generation, s.shift});
	struct gw_known *k = gw_known_new(a->peer, &s, &set);
	peer_set_unref(&set);
	k->at = cgn_loop_now(a->r->loop);
	k->valid_to = k->at + peer_valid_span(a->interval);
	k->bytes = body.n;
	gw_summaries_know(a->peer->summaries, &k);
	outcome_count(a, s.base == 0 ? "whole" : "changes");
	metric_add(METRIC_OF(a->r->shared.telemetry, FED_SUMMARY_BYTES, a->peer->name), body.n);
	return s.generation == 0 && a->interval > SOON ? SOON : a->interval;
}

static void on_answer(void *user, const struct webask_answer *got)
{
	struct router_ask *a = user;
	cgn_nsec next = a->interval;
	a->fetch = NULL;
	if (got->stale)
		next = 1;
	else if (webask_is_ok(got))
		next = summary_take(a, got->body);
	else if (got->err->code == CGN_TOO_LARGE)
		next = summary_refuse(a, got->err->msg);
	else
		outcome_count(a, "failed"); /* The summary that is known counts until it is too old. */
	cgn_timer_set(&a->timer, unlikely_way(UNLIKELY_summary_early) ? 1 : next);
}

static void on_ask(struct cgn_timer *t)
{
	struct router_ask *a = CGN_CONTAINER(t, struct router_ask, timer);
	char path[200];
	struct cgn_err err;
	if (unlikely_way(UNLIKELY_summary_whole))
		known_drop(a, 0);
	int n = snprintf(path, sizeof path, "/federation/v1/summary?since=%" PRIu64 "&version=%d",
		a->known[0].generation, PEER_VERSION);
	for (size_t i = 1; i < PEER_VIEWS && a->known[i].generation != 0; i++)
		n += snprintf(path + n, sizeof path - (size_t)n, "%s%" PRIu64, i == 1 ? "&also=" : ",",
			a->known[i].generation);
	const struct webask_endpoint to = {.client = a->client, .url = &a->url};
	const struct webask_question ask = {.path = path, .max_bytes = PEER_BYTES, .timeout = ASK_TIMEOUT};
	if (cgn_ok(webask_start(a->r->loop, &to, &ask, on_answer, a, &a->fetch, &err)))
		return;
	a->fetch = NULL;
	outcome_count(a, "failed");
	cgn_timer_set(&a->timer, a->interval);
}

CGN_RC router_ask_open(struct router *r, struct gw_peer *peer, cgn_nsec interval, struct router_ask **out,
	struct cgn_err *err)
{
	const struct webclient_cfg cfg = {.url = peer->url,
		.tls = peer->tls,
		.max_conns = 1,
		.connect_timeout = CONNECT_TIMEOUT};
	struct router_ask *a = *out = CGN_NEW(struct router_ask);
	a->r = r;
	a->peer = peer;
	a->interval = interval;
	cgn_timer_init(&a->timer, r->loop, on_ask);
	CGN_TRY(webclient_open(r->loop, &cfg, &a->url, &a->client, err));
	cgn_timer_set(&a->timer, 1);
	return CGN_OK;
}

void router_ask_close(struct router_ask **take)
{
	struct router_ask *a = CGN_TAKE(take);
	if (a == NULL)
		return;
	cgn_timer_cancel(&a->timer);
	webask_cancel(&a->fetch);
	http_client_free(&a->client);
	known_drop(a, 0);
	free(a);
}
